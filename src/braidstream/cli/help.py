"""How --help looks: plain text as wide as the terminal (at most 120 columns), words instead of Python types.

The docstring of a command is its help. Its last paragraph, `Example: braid ...`, is shown as lines that one
can paste.
"""

import re
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

SETTINGS: Final = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}
_EXAMPLE: Final = "Example: "
# What stands for the value of an option or argument, by its name. Others: N for integers, NUMBER, TEXT.
_VALUES: Final = {
    "URL": ("url", "to_url"),
    "FILE": ("url_file", "config", "png", "html", "tls_cert", "tls_key", "tls_ca", "password_file", "audit"),
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


class HelpCommand(TyperCommand):
    """A command whose help has words for values, and an example that can be pasted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["context_settings"] = SETTINGS | (options.get("context_settings") or {})
        super().__init__(*args, **options)
        for each in self.params:
            name_value(each)

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
                sections["Options"].append((record[0], _plain(record[1])))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


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
    """Set the word that stands for the value of an option or argument."""
    if param.metavar is not None or getattr(param, "is_flag", False):
        return
    shown = str(param.display_type(None)).strip("<>") if hasattr(param, "display_type") else ""
    if "|" in shown:  # choices
        param.metavar = shown
    else:
        kind = shown.split()[0] if shown else ""
        named = _VALUE_OF.get(param.name, "TEXT")
        param.metavar = named if named == "SECONDS" else _OF_TYPE.get(kind, named)


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
