"""One record per run: a JSON file written atomically, and all of them as a table.

The file's first line holds the run's id and its summary and nothing else, so that a table of thousands of runs reads
one line of each; the file as a whole is plain JSON. Raw times stay in the record; means are made from them later.
"""

import json
import os
import warnings
from pathlib import Path
from typing import Any

from specbench.files import write_atomically

SCHEMA = 1
FAILED = "error"  # the summary's key that says why a run failed; a finished run has none
TAIL = b'"complete": true\n}\n'  # how a whole record ends


class Damaged(UserWarning):
    """A file among the records is not a whole one; the message names it."""


def runs_folder(results: str | Path) -> Path:
    """Where the records of a results folder lie."""
    return Path(results) / "runs"


def record_file(results: str | Path, run_id: str) -> Path:
    return runs_folder(results) / f"{run_id}.json"


def write(results: str | Path, record: dict[str, Any]) -> Path:
    """Write `record` (keys run_id, summary and more) so that a reader sees all of it or nothing."""
    file = record_file(results, record["run_id"])
    head = {"schema": SCHEMA, "run_id": record["run_id"], "summary": record["summary"]}
    body = {key: value for key, value in record.items() if key not in head} | {"complete": True}
    # Two objects laid into one: the head closes on its own line only for the quick reader below.
    text = f"{json.dumps(head, ensure_ascii=False)[:-1]},\n{json.dumps(body, ensure_ascii=False, indent=1)[1:]}\n"
    write_atomically(file, text)
    return file


def read(file: Path) -> dict[str, Any]:
    """A whole record. Raises ValueError where it is damaged."""
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def read_summary(file: Path) -> dict[str, Any]:
    """The summary alone, from the first line. Raises ValueError where the file is damaged or cut short."""
    with open(file, "rb") as opened:
        head = opened.readline()
        opened.seek(max(0, os.fstat(opened.fileno()).st_size - len(TAIL)))
        if opened.read() != TAIL:
            raise ValueError("the file is cut short")
    record = json.loads(head.rstrip().removesuffix(b",") + b"}")
    return {"run_id": record["run_id"], **record["summary"]}


def summaries(results: str | Path, failed: bool = False) -> list[dict[str, Any]]:
    """The summaries of all records, by the time of writing; a damaged one is skipped with a warning that names it.
    Those of failed runs, which hold no numbers, are left out unless asked for."""
    rows = []
    for file in sorted(runs_folder(results).glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name)):
        try:
            row = read_summary(file)
        except (ValueError, KeyError, OSError) as error:
            warnings.warn(f"{file}: skipped, it is no record ({error})", Damaged, stacklevel=2)
            continue
        if failed or FAILED not in row:
            rows.append(row)
    return rows
