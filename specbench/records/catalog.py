"""All records of a results folder, by id: this machine's, and the kept copies that are committed.

All verbs read records through this module. If a run is both in `runs/` and in `kept/`, the newer record is used; for
the same record its copy, so that a table is the same on every machine.
"""

import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from specbench.border import Unreadable
from specbench.errors import UserError
from specbench.files import files_in
from specbench.records import store
from specbench.records.kept_form import ENDING
from specbench.records.run_record import Row, RunRecord
from specbench.records.store import FAILED, Head

LAST = "last"


class NotOwn(UserWarning):
    """The records shown are not from runs of this machine."""


class Damaged(UserWarning):
    """A file among the records is damaged; the message names it."""


class Catalog:
    """The heads of all records of `results`, oldest first; `kept=False` leaves the committed copies out.

    With `undisturbed` a disturbed record does not replace an undisturbed record of the same run, however new it is.
    A damaged file is skipped with a warning that names it.
    """

    def __init__(self, results: str | Path, kept: bool = True, undisturbed: bool = False) -> None:
        self.results = Path(results)
        copies = kept_files(results) if kept else []
        own = sorted(files_in(store.runs_folder(results), ".json"), key=lambda file: (_modified(file), file.name))
        own_files = set(own)
        self._heads: dict[str, Head] = {}
        self._failed: dict[str, Head] = {}
        self.own: set[str] = set()  # ids of this machine's records, whichever copy is used
        for head in _read([*copies, *own]):
            if head.file in own_files:
                self.own.add(head.run_id)
            there = self._heads.get(head.run_id)
            if head.failed:
                self._failed[head.run_id] = head
            elif there is None or _rank(head, undisturbed) > _rank(there, undisturbed):
                self._heads[head.run_id] = head
        self._whole: dict[str, RunRecord] = {}

    @property
    def heads(self) -> list[Head]:
        """The heads of finished runs."""
        return list(self._heads.values())

    def own_first(self) -> "Catalog":
        """Only the records of this machine if it has any, otherwise all."""
        return Catalog(self.results, kept=False) if self.own else self

    def rows(self, failed: bool = False) -> list[Row]:
        """A row for each finished run, and on request for each failed run, which has no numbers."""
        return [head.row for head in [*self.heads, *(self._failed.values() if failed else ())]]

    def forget_failed(self) -> list[str]:
        """Remove the records of failed runs; returns their ids."""
        forgotten = list(self._failed)
        for head in self._failed.values():
            head.file.unlink(missing_ok=True)
        self._failed.clear()
        return forgotten

    def head(self, run_id: str) -> Head:
        return self._heads[run_id]

    def whole(self, run_id: str) -> RunRecord:
        """The whole record. Raises UserError if its file is damaged after the first line."""
        if run_id not in self._whole:
            file = self._heads[run_id].file
            try:
                self._whole[run_id] = store.read(file)
            except Unreadable as error:
                raise UserError(f"{file}: is damaged ({error}); remove it, or restore it from a copy") from error
        return self._whole[run_id]

    @cached_property
    def unkept(self) -> list[str]:
        """Ids of finished runs that have no copy in `kept/`, or an older one."""
        folder = kept_folder(self.results)
        return [head.run_id for head in self.heads if head.file.parent != folder and not self._is_kept(head)]

    def _is_kept(self, head: Head) -> bool:
        file = kept_file(self.results, head.run_id)
        try:
            return file.is_file() and _created(store.read_head(file)) >= _created(head)
        except Unreadable:
            return False

    def find(self, name: str) -> str:
        """The id of the finished run that `name` means: an id, a unique part of it, the path of a record, or 'last'.

        'last' and a part of an id mean a run of this machine before a kept copy. Raises UserError if there is none,
        or several.
        """
        if name in self._heads:
            return name
        if name in self._failed:
            raise _without_numbers(self._failed[name])
        if name == LAST:
            return self._last()
        if Path(name).is_file():
            return self._open(Path(name))
        found = [head.run_id for head in self.heads if head.run_id.startswith(name)]
        found = found or [head.run_id for head in self.heads if name in head.run_id]
        found = [run_id for run_id in found if run_id in self.own] or found
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
            raise UserError(f"{name}: the ids of {len(found)} records have this in them ({some}); give more of it")
        raise UserError(
            f"{name}: no record of that id in {self.results}, and no file; 'specbench results' lists the ids"
        )

    def _last(self) -> str:
        if not self.heads:
            raise UserError(f"{LAST}: there is no record in {self.results}; 'specbench run' makes one")
        mine = [head for head in self.heads if head.run_id in self.own]
        runs = [head for head in self.heads if not head.summary.get("served")]  # what an example in a page is about
        found = max(mine or runs or self.heads, key=_created).run_id
        if not mine:
            warnings.warn(
                f"{LAST}: no run of your own in {self.results}; this is the kept record {found}", NotOwn, stacklevel=3
            )
        return found

    def _open(self, file: Path) -> str:
        """Add the record in `file`."""
        try:
            head = store.read_head(file)
        except Unreadable as error:
            raise UserError(f"{file}: is not a record of specbench ({error})") from error
        if head.failed:
            raise _without_numbers(head)
        self._heads[head.run_id] = head
        self._whole.pop(head.run_id, None)
        return head.run_id


def digest(run_id: str) -> str:
    """The last part of a run id, which tells records apart in a narrow column."""
    return run_id.rpartition("-")[2]


def _without_numbers(head: Head) -> UserError:
    return UserError(f"{head.run_id}: this run failed ({head.summary[FAILED]}); it has neither text nor numbers")


def _created(head: Head) -> str:
    return str(head.summary.get("created"))


def kept_folder(results: str | Path) -> Path:
    """The folder of the compressed records that are committed."""
    return Path(results) / "kept"


def kept_file(results: str | Path, run_id: str) -> Path:
    """The file of the copy of the record `run_id`. Raises UserError if the id is no name of a file."""
    return kept_folder(results) / f"{store.require_file_name(run_id)}{ENDING}"


def kept_files(results: str | Path) -> list[Path]:
    """The copies of a results folder, by name."""
    return files_in(kept_folder(results), ENDING)


def _modified(file: Path) -> float:
    """When `file` was written; 0 for a link to nothing, which reading it then names."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _rank(head: Head, undisturbed: bool) -> tuple[bool, str]:
    """The order of records of one run: of those with the highest rank the first is used."""
    return undisturbed and not head.summary.get("disturbed"), _created(head)


def _read(files: list[Path]) -> Iterator[Head]:
    for file in files:
        try:
            yield store.read_head(file)
        except Unreadable as error:
            warnings.warn(f"{file}: skipped, it is not a record ({error})", Damaged, stacklevel=4)
