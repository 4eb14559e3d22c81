"""The kept records, chosen by what their first line says of them; a file's name is not read, for names of drafts, rules
and trees share their beginnings, and any record may be replaced by a newer one."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.records import store
from specbench.records.catalog import kept_folder
from specbench.records.store import Head
from tests.support.paths import ROOT

RESULTS = ROOT / "results"
CHAIN = {"target": "t5-mini", "task": "ende-mini", "accept": "exact", "tree": None, "batch": 1}
HERE = pytest.mark.skipif(not kept_folder(RESULTS).is_dir(), reason="needs a checkout, with results/kept")


@cache
def heads() -> tuple[Head, ...]:
    """Of all kept records, oldest first."""
    read = [store.read_head(file) for file in sorted(kept_folder(RESULTS).glob("*.json.xz"))]
    return tuple(sorted(read, key=lambda head: str(head.summary["created"])))


def kept(**columns: Any) -> list[Head]:
    """Those whose summary has these values; an absent column is None, an absent batch 1."""
    return [head for head in heads() if all(_column(head, key) == value for key, value in columns.items())]


def newest(**columns: Any) -> Head:
    """Of those with `columns`; without others in them, a chain of the shipped translation model under Algorithm 1."""
    found = kept(**CHAIN | columns)
    if not found:
        pytest.skip(f"no record of {columns} is kept")
    return found[-1]


def copy_of(head: Head, results: Path) -> None:
    """Copy a kept record, and the prompts that it shares with others, to another folder of results."""
    for file in (head.file, *(head.file.parent / "prompts").iterdir()):
        there = kept_folder(results) / file.relative_to(head.file.parent)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)


def _column(head: Head, key: str) -> object:
    return head.summary.get(key) or 1 if key == "batch" else head.summary.get(key)
