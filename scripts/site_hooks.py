"""Hooks of mkdocs: files outside docs/ that pages link to become pages of the site.

Pages link to examples, to the README and to the changelog by relative paths, so that the links also work in
the repository. mkdocs knows only docs/. These hooks add each linked file as a page under `repository/` and
rewrite the link:

    docs/guides/groups.md   [worker](../../examples/worker.py)  ->  ../repository/examples/worker.py.md

A link to a file that does not exist is left alone, and `--strict` fails on it.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
_SHOWN = {
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".service": "ini",
}
_PLACE = "repository"


def _source(page: str) -> str:
    """The path in the repository of a page of the site."""
    if page.startswith(_PLACE + "/"):
        inner = page.removeprefix(_PLACE + "/")
        return inner if (_ROOT / inner).exists() else inner.removesuffix(".md")
    return "docs/" + page


def _place(path: str) -> str | None:
    """The page of the site that shows a file of the repository; None if there is none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    file = _ROOT / path
    if path.startswith("..") or not file.is_file():
        return None
    if file.suffix == ".md":
        return f"{_PLACE}/{path}"
    return f"{_PLACE}/{path}.md" if file.suffix in _SHOWN else None


def _targets(page: str, text: str) -> set[str]:
    folder = posixpath.dirname(_source(page))
    paths = {posixpath.normpath(posixpath.join(folder, link[1])) for link in _LINK.findall(text)}
    return {place for path in paths if (place := _place(path)) and place.startswith(_PLACE)}


def _content(page: str) -> str:
    path = _source(page)
    text = (_ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{_SHOWN[Path(path).suffix]}\n{text}````\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every decision in the navigation, in the order of their numbers."""
    pages = sorted(
        path.relative_to(config.docs_dir).as_posix()
        for path in Path(config.docs_dir, "decisions").glob("*.md")
    )
    design = next(tab for tab in config.nav or [] if "Design" in tab)
    design["Design"].append({"Decisions": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    found = {
        page for file in files.documentation_pages() for page in _targets(file.src_uri, file.content_string)
    }
    done: set[str] = set()
    while found - done:
        page = min(found - done)
        done.add(page)
        content = _content(page)
        found |= _targets(page, content)
        files.append(File.generated(config, page, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = _source(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        before, target, anchor, after = link.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = _place(path)
        if place is None or (_source(page.file.src_uri).startswith("docs/") and path.startswith("docs/")):
            return link.group()
        return f"{before}{posixpath.relpath(place, here)}{anchor or ''}{after}"

    return _LINK.sub(rewritten, markdown)
