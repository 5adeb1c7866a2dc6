"""The Lua files say what they use, and are loaded in an order that fits."""

import hashlib
import os
import subprocess
import sys

import pytest

from braidstream.lua import source
from braidstream.lua.parts import Part, ordered

IDS = """--[[ IDs. ]]
-- fills: ids
do
  function ids.less(a, b) return a < b end
end
"""


def part(name: str, body: str, *, fills: str = "", uses: str = "") -> Part:
    lines = [
        "--[[ A file. ]]",
        *([f"-- fills: {fills}"] if fills else []),
        *([f"-- uses: {uses}"] if uses else []),
    ]
    return Part.parse(name, "\n".join((*lines, "do", body, "end", "")))


def test_a_file_that_does_not_say_what_it_uses_is_named() -> None:
    first = "  function acks.first(a, b)\n    return ids.less(a, b)\n  end"
    silent = part("acks.lua", first, fills="acks")
    with pytest.raises(ValueError, match=r"acks\.lua uses ids"):
        ordered([Part.parse("id.lua", IDS), silent])


def test_a_file_that_names_what_it_does_not_use_is_named() -> None:
    first = "  function acks.first(a) return 'ids.less' end -- ids.less"
    with pytest.raises(ValueError, match=r"acks\.lua says that it uses ids"):
        ordered([Part.parse("id.lua", IDS), part("acks.lua", first, fills="acks", uses="ids")])


def test_no_variable_has_the_name_of_a_namespace() -> None:
    hidden = "  function acks.first(ids)\n    return ids[1]\n  end"
    with pytest.raises(ValueError, match=r"acks\.lua has a variable ids"):
        ordered([Part.parse("id.lua", IDS), part("acks.lua", hidden, fills="acks")])


def test_what_is_used_while_loading_comes_first() -> None:
    early = part("acks.lua", "  acks.first = ids.less", fills="acks", uses="ids")
    late = part("bell.lua", "  function bells.ring() return rings.ring() end", fills="bells", uses="rings")
    mutual = part(
        "ring.lua", "  function rings.ring()\n    return bells.ring()\n  end", fills="rings", uses="bells"
    )
    order = [each.name for each in ordered([early, late, mutual, Part.parse("id.lua", IDS)])]
    assert order.index("id.lua") < order.index("acks.lua")
    assert {*order} == {"acks.lua", "bell.lua", "id.lua", "ring.lua"}


def test_two_processes_join_the_same_text() -> None:
    """`braid doctor` compares the engine's text with ours."""
    code = "import braidstream.lua as lua, hashlib; print(hashlib.sha256(lua.source().encode()).hexdigest())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert seen == {hashlib.sha256(source().encode()).hexdigest()}
