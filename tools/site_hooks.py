"""Hooks of the documentation site: files outside `docs/`, formulas, values on one line, former addresses."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from specbench.records.frame import Records
from specbench.report.explorer import page

ROOT = Path(__file__).resolve().parent.parent
FEWEST_PROMPTS = 20  # of a record in a table, a figure and the explorer
OUTSIDE = re.compile(r"\]\(\.\./(results/[^)#]+)")
COMMENT = re.compile(r"(?m)^<!--.*-->\n+|<!--.*?-->")
FORMULA = re.compile(r"(?m)^```math\n((?s:.*?))\n```$")
INLINE_FORMULA = re.compile(r"\$`([^`]+)`\$")
CODE = re.compile(r"(<pre.*?</pre>|<code.*?</code>|<svg.*?</svg>)", re.DOTALL)
VALUE = re.compile(r"[-+−]?\d[\d.,]*%?×? \[[-+−]?\d[^\]<]*\]")
# Former pages, and where their text is now: the site forwards links to them.
MOVED = {
    "api": "reference/#api", "artifact": "paper/#check-our-claims",
    "beyond": "results/", "disturbed": "method/#contention", "eagle": "heads/#eagle",
    "explain": "run/#why-is-it-not-faster",
    "medusa": "heads/#medusa-and-hydra", "numerics": "engines/#numerics",
    "profile": "reference/#profiles", "prompts": "method/#how-many-prompts", "proof": "losslessness/",
    "public-models": "results/", "python": "reference/#python", "rules": "acceptance-rules/#rules-of-engines",
    "vocabularies": "models/#vocabularies",
}  # fmt: skip


def on_config(config: Any) -> Any:
    """The link to the repository: of the workflow that builds the site, or of this clone's origin."""
    name = os.environ.get("GITHUB_REPOSITORY")
    origin = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True).stdout
    found = re.fullmatch(r"(?:git@|https?://)([^/:]+)[:/](.+?)(?:\.git)?", origin.strip())
    config["repo_url"] = f"https://github.com/{name}" if name else found and f"https://{found[1]}/{found[2]}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the tables and figures of `results/` that a page links to, and the explorer of the kept records."""
    linked = {link for page in Path(config["docs_dir"]).glob("*.md") for link in OUTSIDE.findall(page.read_text())}
    for link in sorted(linked):
        files.append(File.generated(config, f"files/{link}", content=(ROOT / link).read_bytes()))
    files.append(File.generated(config, "explorer.html", content=page(Records(ROOT / "results", FEWEST_PROMPTS))))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links as the site has them: `results/` lies in `files/`; no comments, which name sources; formulas as MathML."""
    markdown = OUTSIDE.sub(r"](files/\1", COMMENT.sub("", markdown))
    markdown = markdown.replace("](../docs/", "](../../")
    markdown = FORMULA.sub(lambda found: convert(found[1].strip(), display="block"), markdown)
    return INLINE_FORMULA.sub(lambda found: convert(found[1]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """A value with its interval stays on one line, except in code."""
    parts = CODE.split(html)
    parts[::2] = [VALUE.sub(r'<span class="value">\g<0></span>', part) for part in parts[::2]]
    return "".join(parts)


def on_post_build(config: Any) -> None:
    """Forward the addresses of former pages."""
    for former, goal in MOVED.items():
        folder = Path(config["site_dir"], former)
        folder.mkdir(exist_ok=True)
        (folder / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url=../{goal}">\n')
