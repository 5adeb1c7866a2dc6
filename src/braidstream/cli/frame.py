"""How every verb of `braid` looks: its help, groups of commands, which server it works on.

app = Verbs("Add or remove a region.")

@app.command("add")
def add(...): ...
"""

import contextlib
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

# ----------------------------------------------------------------------------------------------------
#
# How --help looks: plain text as wide as the terminal (at most 120 columns), words instead of Python types.
#
# The docstring of a command is its help. Its last paragraph, `Example: braid ...`, is shown as lines that
# one can paste.

SETTINGS: Final = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}
_EXAMPLE: Final = "Example: "
# What stands for the value of an option or argument, by its name. Others: N for integers, NUMBER, TEXT.
_VALUES: Final = {
    "URL": ("url", "to_url"),
    "FILE": (
        "url_file",
        "config",
        "out",
        "logs",
        "png",
        "html",
        "tls_cert",
        "tls_key",
        "tls_ca",
        "password_file",
        "audit",
    ),
    "FOLDER": ("lake", "directory", "table"),
    "ADDRESS": ("listen", "metrics", "gateway", "receive"),
    "NAME": ("region", "name", "home", "to", "job", "group", "key", "without", "stream", "functions_admin"),
    "NAME,...": ("streams",),
    "ADDRESS,...": ("announce",),
    "NAME=VALUE": ("redis",),
    "GLOB": ("pattern", "patterns"),
    "TIME": ("since", "until"),
    "SQL": ("where", "key_expr", "tombstone"),
    "SECONDS": ("max_lag", "every"),
    "PROGRAM": ("engine",),
    "ID": ("ids",),
}
_VALUE_OF: Final = {name: value for value, names in _VALUES.items() for name in names}
_OF_TYPE: Final = {"int": "N", "float": "NUMBER"}
# Whose values Tab completes (completion.py): regions of the file, and streams.
_REGIONS: Final = ("region", "home", "without")
_STREAMS: Final = ("stream", "streams", "pattern", "patterns")


class HelpCommand(TyperCommand):
    """A command whose help has words for values, and an example that can be pasted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["context_settings"] = SETTINGS | (options.get("context_settings") or {})
        super().__init__(*args, **options)
        for each in self.params:
            name_value(each)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes a word
            ctx.meta["given"] = self.make_parser(ctx).parse_args(args=list(args))[0]
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, _, example = (self.help or "").partition(f"\n\n{_EXAMPLE}")
        for paragraph in text.split("\n\n"):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(paragraph)
        if example:
            with formatter.section("Example"):
                for line in paste_lines(" ".join(example.split()), formatter.width - 4):
                    formatter.write(f"  {line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is None:
                continue
            if each.param_type_name == "argument":
                sections["Arguments"].append((str(each.metavar), _plain(record[1])))
            else:
                sections["Options"].append((record[0], self.described(each, record[1])))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def described(self, param: Any, text: str) -> str:
        """What --help says of an option."""
        return _plain(text)


class HelpGroup(TyperGroup):
    """A group that shows the first sentence of each command in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: Any) -> list[tuple[str, str]]:
        """Each command's name, and what it does."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return [(name, str(each.help).partition("\n\n")[0]) for name, each in found.items() if each]


def name_value(param: Any) -> None:
    """Set the word that stands for the value of an option or argument, and what Tab completes."""
    if param.metavar is None and not getattr(param, "is_flag", False):
        param.metavar = _word_for(param)
    is_name = param.param_type_name == "argument" and param.name == "name"
    if param.metavar != "N" and (is_name or param.name in (*_REGIONS, *_STREAMS)):
        param._custom_shell_complete = _complete


def _word_for(param: Any) -> str:
    shown = str(param.display_type(None)).strip("<>") if hasattr(param, "display_type") else ""
    if "|" in shown:  # choices
        return shown
    kind = shown.split()[0] if shown else ""
    named = _VALUE_OF.get(param.name, "TEXT")
    return named if named == "SECONDS" else _OF_TYPE.get(kind, named)


def paste_lines(command: str, width: int) -> list[str]:
    r"""A command line as lines that fit, each but the last ending in a backslash. Quoted words stay whole."""
    lines = [""]
    one = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
    for word in re.findall(rf"--[\w-]+ (?!-){one}|{one}", command):  # an option stays with its value
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if len(joined) + 2 <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines[-1] += " \\"
            lines.append(f"  {word}")
    return lines


def _plain(text: str) -> str:
    """`[x>=5]` and `[1<=x<=9]` in words. That a count is not negative needs none."""
    text = re.sub(r"(; )?x>=[01]\b(?!\.)", "", text).replace("[; ", "[").replace("  []", "")
    text = re.sub(r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2", text)
    return re.sub(r"x>=([\d.]+)", r"at least \1", text)


# ----------------------------------------------------------------------------------------------------
#
# Which server a command works on, and how passwords stay out of the process list: --url, --url-file, the
# variable BRAID_URL, or a region of braid.toml.
#
# --url wins over --url-file, which wins over BRAID_URL. A command that needs one URL also takes --region and
# --config; without any of these it takes the file in its folder. BRAID_URL is ignored if --region, --config
# or --lake is given, and by commands that read a whole file if there is one.

_VARIABLE: Final = "BRAID_URL"
_INSTEAD: Final = ("--config", "--region", "--lake")
_FILE: Final = Path("braid.toml")
_FILE_VARIABLE: Final = "BRAID_CONFIG"


def _complete(ctx: Any, param: Any, begun: str) -> list[str]:
    """What Tab offers for a word."""
    from braidstream.cli import completion

    given = ctx.meta.get("given", {})
    file = Path(given.get("config") or os.environ.get(_FILE_VARIABLE) or _FILE)
    if param.name in _REGIONS or (param.name == "name" and ctx.parent.info_name == "region"):
        return completion.regions(file, begun)
    url = given.get("url")
    if url is None and "url_file" in given:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            url = Path(given["url_file"]).read_text(encoding="utf-8").strip()
    elif url is None and not given.keys() & {"region", "config"}:
        url = os.environ.get(_VARIABLE)
    return completion.streams(url, file, given.get("region"), begun)


class UrlCommand(HelpCommand):
    """A command with --url, which also accepts --url-file, BRAID_URL and a region of braid.toml."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # --help would show the URL of BRAID_URL or --url-file, with its password.
        cast(TyperOption, self._url).show_default = False
        names = {each.name for each in self.params}
        self._takes_region = self._url.required and not names & {"config", "region"}
        more = _OPTIONS if self._takes_region else _OPTIONS[:1]
        at = self.params.index(self._url) + 1
        self.params[at:at] = more

    @property
    def _url(self) -> Any:
        return next(each for each in self.params if each.name == "url")

    def described(self, param: Any, text: str) -> str:
        if self._takes_region and param is self._url:
            text = text.replace("[required]", "").rstrip()
        return super().described(param, text)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        found = os.environ.get(_VARIABLE)
        if self._takes_region:
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            if "url" not in given and "url_file" not in given:
                found = self._of_file(given, found, as_json="--json" in args)
        elif found and not self._url.required and self._names_another(args):
            found = None
        if found:
            ctx.default_map = {"url": found}
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is self._url and not error.message:  # it is missing
                error.message = f"Add --url, as in --url redis://localhost:6379, or set {_VARIABLE}."
                if self._takes_region:
                    error.message += f" Or work where a {_FILE} lists your regions."
            raise

    def _of_file(self, given: dict[str, Any], found: str | None, as_json: bool) -> str | None:
        """The URL of a region of the file, if the user names one, or names nothing and has a file."""
        region, config = given.get("region"), given.get("config")
        if region is None and config is None and found:
            return found
        file = Path(config or os.environ.get(_FILE_VARIABLE) or _FILE)
        if region is None and config is None and not file.exists():
            return None
        from braidstream.cli.reach import trouble
        from braidstream.config import load

        with trouble(file, as_json):
            regions = load(file)
            if region is not None:
                return regions.named(region).url
        if len(regions.region) > 1:
            names = ", ".join(each.name for each in regions.region)
            raise typer.BadParameter(f"{file} lists {names}. Name one of them: --region NAME.")
        return regions.region[0].url

    def _names_another(self, args: list[str]) -> bool:
        """Whether the user says otherwise what to work on: by an option, by the variable of one, or by a file
        in its default place."""
        files = (each.default for each in self.params if each.name == "config")
        if any(isinstance(each, Path) and each.exists() for each in files):
            return True
        typed = {word.partition("=")[0] for word in args}
        set_ = {each.name for each in self.params if each.envvar and os.environ.get(str(each.envvar))}
        return any(option in typed or option.removeprefix("--") in set_ for option in _INSTEAD)


def _read(ctx: typer.Context, value: Path | None) -> None:
    if value is None:
        return
    try:
        ctx.default_map = {"url": value.read_text(encoding="utf-8").strip()}
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise typer.BadParameter(f"{value}: {why}.") from None


def _template(
    url_file: Annotated[
        Path | None,
        typer.Option(
            callback=_read,
            is_eager=True,
            expose_value=False,
            help=f"File with the URL, to keep the password out of `ps`. Or set {_VARIABLE}.",
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(expose_value=False, help=f"Instead of a URL: a region of {_FILE}, by name or number."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            expose_value=False,
            help=f"The file that lists the regions. Default: {_FILE}, or what {_FILE_VARIABLE} says.",
        ),
    ] = None,
) -> None:
    """Typer builds options from functions only."""


_made = typer.Typer(add_completion=False)
_made.command()(_template)
_OPTIONS: Final = [
    each
    for name in ("url_file", "region", "config")
    for each in typer.main.get_command(_made).params
    if each.name == name
]
for _each in _OPTIONS:
    name_value(_each)


# ----------------------------------------------------------------------------------------------------
# Frame


class Verbs(typer.Typer):
    """Commands with --url also take --url-file and BRAID_URL."""

    def __init__(self, text: str = "") -> None:
        super().__init__(
            help=text,
            no_args_is_help=True,
            rich_markup_mode=None,
            add_completion=False,
            context_settings=dict(SETTINGS),
            cls=HelpGroup,
        )
        self.callback()(_always_a_group)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            has_url = "url" in inspect.signature(function).parameters
            cls = UrlCommand if has_url else HelpCommand
            return super(Verbs, self).command(name, cls=cls, **options)(function)

        return register


def _always_a_group() -> None:
    """Without a callback, Typer makes a group of one command that command."""
