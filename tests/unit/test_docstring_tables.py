"""What a docstring says of parameters becomes a table on the site."""

import pytest

from scripts.docstring_tables import with_table

TEXT = """Do it.

client: where it is
    done.
low, high: the limits; see: below.
unknown: no parameter.

Then more: text.
"""


def test_lines_about_parameters_become_a_section_and_all_else_stays() -> None:
    assert with_table(TEXT, ["client", "low", "high"], "Args").splitlines() == [
        "Do it.",
        "",
        "",
        "Args:",
        "    client: where it is done.",
        "    low: the limits; see: below. unknown: no parameter.",
        "    high: the limits; see: below. unknown: no parameter.",
        "",
        "",
        "Then more: text.",
    ]


@pytest.mark.parametrize("text", ["Do it.", "Note: this.\n\nother: that."])
def test_a_docstring_without_parameters_stays_as_it_is(text: str) -> None:
    assert with_table(text, ["client"], "Args") == text
