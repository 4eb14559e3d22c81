"""The documentation: every page is in the site's menu, and every link leads somewhere."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        goal = (page.parent / file).resolve() if file else page
        assert goal.exists(), link
        if anchor and goal.suffix == ".md":
            assert anchor in anchors(goal), link


MADE = {"explorer.html"}  # when the site is built: it is no page of docs/


def named(menu: object) -> set[str]:
    if isinstance(menu, str):
        return {menu}
    values = menu.values() if isinstance(menu, dict) else menu
    assert not isinstance(values, str)
    return {page for one in values for page in named(one)}  # type: ignore[attr-defined]


def test_the_menu_holds_every_page() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert named(menu) - MADE == {page.name for page in (ROOT / "docs").glob("*.md")}


def titles(menu: object) -> dict[str, str]:
    """Title of each page in the menu."""
    found: dict[str, str] = {}
    for entry in menu if isinstance(menu, list) else []:
        for title, inner in entry.items():
            found |= {inner: title} if isinstance(inner, str) else titles(inner)
    return found


def test_a_page_has_one_name() -> None:
    """In the menu, as its heading and in the index."""
    named_in_menu = titles(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## Pages")[2]
    for page, title in named_in_menu.items():
        if page in MADE:
            continue
        assert (ROOT / "docs" / page).read_text(encoding="utf-8").startswith(f"# {title}\n")
        assert page == "index.md" or f"[{title}]({page})" in index


NAMED_FILE = re.compile(r"`((?:specbench|tests|tools|experiments|conf|locks)/[\w./*-]*\w)`")


def missing_files(text: str) -> list[str]:
    """The files and folders of this repository that a page names without their being there; `*` is any name."""
    return [name for name in NAMED_FILE.findall(text) if not any(ROOT.glob(name))]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    assert not missing_files(page.read_text(encoding="utf-8"))


def test_a_file_that_is_not_there_is_seen() -> None:
    text = "`specbench/methods/*/captured.py`, `specbench/theory/__init__.py`, `docs/none.md`"
    assert missing_files(text) == ["specbench/methods/*/captured.py"]


NAMED_PAGE = re.compile(r"(?<!/)\b(docs/[\w-]+\.md)(?:#([^\s`'\"),;:]+))?")
NAMING = [*(ROOT / "specbench").rglob("*.py"), *(ROOT / "conf").rglob("*.yaml"), *(ROOT / "experiments").glob("*.yaml")]


def test_a_page_that_code_names_exists() -> None:
    """Error lines, help strings, notes and comments: a reader follows them."""
    wrong = []
    for file in NAMING:
        for page, anchor in NAMED_PAGE.findall(file.read_text(encoding="utf-8")):
            anchor = anchor.rstrip(".")
            if not (ROOT / page).exists() or (anchor and anchor not in anchors(ROOT / page)):
                wrong.append((str(file.relative_to(ROOT)), f"{page}#{anchor}"))
    assert not wrong


@pytest.mark.parametrize("page", PAGES[3:], ids=lambda page: page.name)
def test_a_page_has_at_most_250_lines(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 250
