"""Hooks of the documentation site: what pages link to outside `docs/` becomes part of the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\]\(\.\./(results/[^)#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the tables and figures of `results/` that a page links to."""
    linked = {link for page in Path(config["docs_dir"]).glob("*.md") for link in OUTSIDE.findall(page.read_text())}
    for link in sorted(linked):
        content = (ROOT / link).read_bytes()
        files.append(File.generated(config, link, content=content if link.endswith(".png") else content.decode()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links as the site has them: `results/` lies beside the pages."""
    return OUTSIDE.sub(r"](\1", markdown)
