"""Agreements of a comparison that is not finished yet: each completion's are on the disk when it has been scored.

A file of JSON lines for each draft, named by a digest of all that they depend on, so that the same command resumes, and
so does another one that compares the same draft in the same way. The record at the end holds them all, and the files
are removed.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from specbench import border
from specbench.analysis.acceptance.agreement import Agreement
from specbench.border import Unreadable
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.files import note_finished, unwritable
from specbench.recorded import from_json, to_json


class KeptAgreements:
    """The agreements of some drafts along one sample, by draft and completion."""

    def __init__(self, drafts: Iterable[str], files: Mapping[str, Path]) -> None:
        """`files`: where each draft's are kept (`kept_file`); without one they are only in memory."""
        self._files = files
        self.seconds = 0.0
        self.found: dict[str, dict[int, Agreement]] = {draft: {} for draft in drafts}
        for draft, file in files.items():
            for index, seconds, agreement in _entries(file):
                self.found[draft][index] = agreement
                self.seconds += seconds
                note_finished()

    def without(self, index: int) -> list[str]:
        """The drafts whose agreement along this completion is not known."""
        return [draft for draft, found in self.found.items() if index not in found]

    def add(self, index: int, agreements: Mapping[str, Agreement], seconds: float) -> None:
        """Append what took `seconds` to score; it is on the disk when this returns. Raises MachineError."""
        share = seconds / len(agreements)
        for draft, agreement in agreements.items():
            entry = {"index": index, "seconds": share, "agreement": to_json(agreement)}
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


class _Entry(TypedDict):
    index: int
    seconds: float
    agreement: Agreement


def _entries(file: Path) -> Iterator[tuple[int, float, Agreement]]:
    """Index, seconds and agreement of each whole line of `file`, which is cut off at the first line that is not whole.

    Raises UserError for a link, whose target would be cut.
    """
    if file.is_symlink():
        raise UserError(f"{file}: is a link, which is not followed; remove it")
    if not file.is_file():
        return
    whole = 0
    with open(file, "rb") as opened:
        for line in iter(lambda: opened.readline(border.LONGEST_LINE), b""):
            try:
                line_of = border.parse(line if line.endswith(b"\n") else b"", _Entry, finite=False)
            except Unreadable:
                break
            entry: _Entry = from_json(_Entry, line_of)
            whole += len(line)
            yield entry["index"], entry["seconds"], entry["agreement"]
    if whole < file.stat().st_size:
        os.truncate(file, whole)
