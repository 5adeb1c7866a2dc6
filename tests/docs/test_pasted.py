"""Examples can be pasted into Python's prompt, where a loop or a function ends with an empty line."""

import codeop
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def refused(code: str) -> list[str]:
    """Lines at which the prompt reports a syntax error."""
    found, typed = list[str](), list[str]()
    for line in [*code.splitlines(), ""]:
        typed.append(line)
        try:
            if codeop.compile_command("\n".join(typed), symbol="single") is not None:
                typed.clear()
        except SyntaxError:
            found.append(line)
            typed.clear()
    return found


def test_the_prompt_refuses_a_line_right_after_a_loop() -> None:
    assert refused("for n in (1, 2):\n    print(n)\nprint(3)\n") == ["print(3)"]
    assert refused("for n in (1, 2):\n    print(n)\n\nprint(3)\n") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_can_be_pasted(page: Path) -> None:
    blocks = [
        match[1]
        for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))
        if "title=" not in match[0][:80]
    ]
    assert [line for block in blocks for line in refused(block)] == []
