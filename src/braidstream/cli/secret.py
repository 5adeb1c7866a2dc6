"""Keeps passwords out of the process list: --url-file or the environment variable BRAID_URL instead of --url.

--url wins over --url-file, which wins over BRAID_URL. If the user passes --config, --region or --lake instead
of an optional --url, sets BRAID_CONFIG for a command that reads it, or has the file that the command reads by
default (braid.toml), BRAID_URL is ignored.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperOption

from braidstream.cli.help import HelpCommand, name_value

_VARIABLE: Final = "BRAID_URL"
_INSTEAD: Final = ("--config", "--region", "--lake")


class UrlCommand(HelpCommand):
    """A command with --url, which also accepts --url-file and BRAID_URL."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        [url] = (each for each in self.params if each.name == "url")
        # --help would show the URL of BRAID_URL or --url-file, with its password.
        cast(TyperOption, url).show_default = False
        self.params.insert(self.params.index(url) + 1, _OPTION)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        found = os.environ.get(_VARIABLE)
        [url] = (each for each in self.params if each.name == "url")
        if found and (url.required or not self._names_another(args)):
            ctx.default_map = {"url": found}
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is url and not error.message:  # it is missing
                error.message = f"Add --url redis://localhost:6379, say, or set {_VARIABLE}."
            raise

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
        why = getattr(error, "strerror", None) or "it is no text"
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
) -> None:
    """Typer builds options from functions only."""


_made = typer.Typer(add_completion=False)
_made.command()(_template)
_OPTION: Final = next(each for each in typer.main.get_command(_made).params if each.name == "url_file")
name_value(_OPTION)
