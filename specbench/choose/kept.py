"""Agreements of a comparison that is not finished yet: each completion's are on the disk when it has been scored.

A file of JSON lines for each draft, named by a digest of all that they depend on, so that the same command resumes, and
another one that compares the same draft in the same way takes them up, too. The record at the end holds them all, and
the files are removed.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.analysis.acceptance.agreement import Agreement, Chances
from specbench.analysis.acceptance.ranks import Ranks
from specbench.escaping import file_name
from specbench.files import note_finished, unwritable


class KeptAgreements:
    """The agreements of some drafts along one sample, by draft and completion."""

    def __init__(self, drafts: Iterable[str], files: Mapping[str, Path]) -> None:
        """`files`: where each draft's are kept (`kept_file`); without one they are in memory alone."""
        self._files = files
        self.seconds = 0.0
        self.found: dict[str, dict[int, Agreement]] = {draft: {} for draft in drafts}
        for draft, file in files.items():
            for entry in _entries(file):
                self.found[draft][entry["index"]] = agreement_of(entry["agreement"])
                self.seconds += entry["seconds"]
                note_finished()

    def without(self, index: int) -> list[str]:
        """The drafts whose agreement along this completion is not known."""
        return [draft for draft, found in self.found.items() if index not in found]

    def add(self, index: int, agreements: Mapping[str, Agreement], seconds: float) -> None:
        """Append what took `seconds` to score; it is on the disk when this returns. Raises MachineError."""
        share = seconds / len(agreements)
        for draft, agreement in agreements.items():
            entry = {"index": index, "seconds": share, "agreement": asdict(agreement)}
            self.found[draft][index] = agreement
            if (file := self._files.get(draft)) is None:
                continue
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with open(file, "ab") as opened:
                    opened.write(json.dumps(entry).encode() + b"\n")
                    opened.flush()
                    os.fsync(opened.fileno())
            except OSError as error:
                raise unwritable(file, error) from error
            note_finished()
        self.seconds += seconds

    def remove(self) -> None:
        """Remove the files, after a record was written that holds their content."""
        for file in self._files.values():
            file.unlink(missing_ok=True)
        for file in self._files.values():
            with contextlib.suppress(OSError):  # another comparison has files there
                file.parent.rmdir()


def kept_file(results: str | Path, draft: str, key: str) -> Path:
    """The file of the agreements of `draft`; `key` is a digest of all that they depend on."""
    return Path(results) / "alpha" / "unfinished" / f"{file_name(draft, f'-{key}')}.jsonl"


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of `file`; what a kill left of the last line is cut off."""
    if not file.is_file():
        return
    whole = 0
    with open(file, "rb") as opened:
        for line in opened:
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if not isinstance(entry, dict):
                break
            whole += len(line)
            yield entry
    if whole < file.stat().st_size:
        os.truncate(file, whole)


def agreement_of(row: Mapping[str, Any]) -> Agreement:
    """The agreement that `asdict` made `row` of."""
    others = {name: Chances(**chances) for name, chances in row["others"].items()}
    ranks = None if row["ranks"] is None else _ranks_of(row["ranks"])
    return Agreement(**{**row, "others": others, "ranks": ranks, "ahead": [agreement_of(one) for one in row["ahead"]]})


def _ranks_of(row: Mapping[str, Any]) -> Ranks:
    return Ranks(**{**row, "ahead": [_ranks_of(one) for one in row["ahead"]]})
