"""Hooks of mkdocs: files outside docs/ that pages link to become pages of the site.

Pages link to examples, to the README and to the changelog by relative paths, so that the links also work in
the repository. mkdocs knows only docs/. These hooks add each linked file as a page under `repository/` and
rewrite the link:

    docs/guides/groups.md   [worker](../../examples/worker.py)  ->  ../repository/examples/worker.py.md

A link to a file that does not exist is left alone, and `--strict` fails on it.

They also write each page as Markdown beside its HTML (guides/groups.md beside guides/groups.html), and
`llms.txt`, which lists these: for programs that read documentation.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation, Section
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
_SENTENCE = re.compile(r".*?[.:](?=\s|$)", re.DOTALL)
_texts = dict[str, str]()  # of pages, by their path: links lead to other such pages
_sections = list[Section]()


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

    text = _LINK.sub(rewritten, markdown)
    _texts[page.file.src_uri] = text
    return text


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    _sections[:] = [each for each in nav.items if isinstance(each, Section)]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    for path, text in _texts.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text.strip() + "\n", encoding="utf-8")
    (site / "llms.txt").write_text(_listed(config), encoding="utf-8")


def _listed(config: MkDocsConfig) -> str:
    """The pages of the navigation, each with its first sentence, as https://llmstxt.org describes."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in _sections:
        lines += ["", f"## {section.title}", ""]
        for page in _pages(section):
            path = page.file.src_uri
            lines.append(f"- [{page.title}]({config.site_url}{path}): {_first_sentence(_texts[path])}")
    return "\n".join(lines) + "\n"


def _pages(section: Section) -> list[Page]:
    found = list[Page]()
    for each in section.children:
        if isinstance(each, Section):
            found += _pages(each)
        elif isinstance(each, Page):
            found.append(each)
    return found


def _first_sentence(markdown: str) -> str:
    """Of the first paragraph, without links and emphasis."""
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE))
    prose = next((each for each in paragraphs if re.match(r"\s*[\w`*\[\"]", each)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())).replace("**", "")
    found = _SENTENCE.match(plain)
    return (found[0] if found else plain).removesuffix(":")
