"""Names of keys and fields: each has one home in Python, and Lua gets it from there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import braidstream
from braidstream.lua import source
from braidstream.model.fields import ConfigField, MetaField, named

SRC = Path(braidstream.__file__).parent


def words(path: Path) -> Iterator[tuple[int, str]]:
    """The literals of a module, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in texts:
            if isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")
            elif isinstance(node.value, str):
                yield node.lineno, node.value


def test_no_two_fields_of_a_hash_share_a_name() -> None:
    for table in (MetaField, ConfigField):
        fields = [field for _, field in named(table)]
        assert len(set(fields)) == len(fields) > 0


def test_python_spells_keys_and_fields_in_the_model_only() -> None:
    prefixes = {field.decode() for _, field in named(MetaField) if field.endswith(b":")}
    found = [
        f"{path.relative_to(SRC)}:{line} {word!r}"
        for path in sorted(SRC.rglob("*.py"))
        if path.parent != SRC / "model"
        for line, word in words(path)
        if word in prefixes or re.match(r"bs:[a-z0-9%*]+:?[*]?\Z", word)
    ]
    assert found == []


def test_kinds_of_strands_have_names() -> None:
    spelled = re.compile(r"""\.kind [!=]= ["'][scp]["']|\bStrand\([^()]*, ["'][scp]["']""")
    found = [
        f"{path.relative_to(SRC)}: {line.strip()}"
        for path in sorted(SRC.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if spelled.search(line)
    ]
    assert found == []


def test_lua_uses_only_fields_that_python_names() -> None:
    text = source()
    for table, fields in (("META", MetaField), ("CONFIG", ConfigField)):
        used = set(re.findall(rf"\b{table}\.(\w+)", text))
        assert used
        assert used <= {name for name, _ in named(fields)}


def test_lua_spells_no_field_itself() -> None:
    prefixes = "".join(field.decode()[0] for _, field in named(MetaField) if field.endswith(b":"))
    found = [
        f"{path.name}:{number} {line.strip()}"
        for path in sorted((SRC / "lua").glob("*.lua"))
        if path.name != "team.lua"  # its hash is no registry
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(rf"'[{prefixes}]:'|'\^bs:|\[sc\]", line)
    ]
    assert found == []


def test_words_of_a_journal_stand_in_one_file_of_each_language() -> None:
    lua = [path.name for path in (SRC / "lua").glob("*.lua") if "JOURNAL.DELETED" in path.read_text()]
    python = [
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if any(word in ("del", "by") for _, word in words(path))
    ]
    assert (lua, python) == (["journal.lua"], ["model/journal.py"])


def test_the_lua_library_has_room_for_more() -> None:
    """Lua allows 200 local variables in a chunk. What a file has is in a block of its own."""
    names = [
        name
        for line in re.findall(r"^local (?:function )?([\w, ]+)", source(), re.M)
        for name in line.split(",")
    ]
    assert len(names) <= 60
