"""One record per run: a JSON file written atomically.

The file's first line holds the run's id, its summary and its config and nothing else, so that a table of thousands of
runs reads one line of each; the file as a whole is plain JSON. Raw times are in the record; means are made from them
later. Copies that are committed are smaller (`records.kept_form`).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from specbench import border
from specbench.border import Unreadable
from specbench.config.schema import RunConfig, task_label
from specbench.errors import UserError
from specbench.files import json_digest, json_text, write_atomically
from specbench.recorded import from_json
from specbench.records.kept_form import restored
from specbench.records.numbers import Summary
from specbench.records.run_record import (
    SCHEMA_VERSION,
    Config,
    FailedRecord,
    FrozenConfig,
    Row,
    RunRecord,
    ServedRecord,
)
from specbench.records.served import SERVED, ServedSummary, is_served


def of_this_version(record: Row) -> Row:
    """`record`, if it is of the version that this specbench reads. Raises Unreadable for another, or none."""
    version = record.get("schema_version")
    if version is None:
        raise Unreadable("it has no schema version")
    if type(version) is not int or version < SCHEMA_VERSION:
        raise Unreadable(f"its schema version is {border.shown(version)}, and this specbench reads {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise Unreadable(f"it has schema version {version}, and this specbench reads {SCHEMA_VERSION}; update it")
    return _labelled(record) if "summary" in record else record


class _Task(TypedDict, total=False):
    name: str
    path: str | None


class _ConfigParts(TypedDict, total=False):
    task: _Task


class _Parts(TypedDict, total=False):
    """What the label of a task is made from."""

    summary: Row
    config: _ConfigParts


def _labelled(record: Row) -> Row:
    """Rename the task of runs over the user's rows, so that they are never confused with the task itself."""
    border.check(record, _Parts)
    summary, task = record["summary"], record.get("config", {}).get("task", {})
    if task.get("path") is None or "name" not in task or summary.get("task") != task["name"]:
        return record
    return record | {"summary": summary | {"task": task_label(task["name"], task["path"])}}


FAILED = "error"  # the summary's key that says why a run failed; a finished run has none
FEWEST_PROMPTS = 20  # of a record that fills a table or a figure, unless fewer are asked for
CREATED = re.compile(r"\d{4}-\d{2}(-\d{2}(T[\d:.]+(Z|[+-]\d{2}:\d{2})?)?)?", re.ASCII)  # its month names a file
FILE_NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f]{1,240}")
NOT_MEASURED = ("results", "force")
PROSE = "note"
NESTED = re.compile(r"\.(?:via|inner)(?=\.)")  # the drafts that a draft is made of have the defaults of a draft
HEAD = ("schema_version", "run_id", "summary", "config")  # the keys of the first line
TAIL = b'"complete": true\n}\n'  # how a whole record ends


class _Head(TypedDict):
    """The first line of a finished run."""

    run_id: str
    summary: Summary
    config: FrozenConfig


class _ServedHead(TypedDict):
    """The first line of a measurement of servers."""

    run_id: str
    summary: ServedSummary
    config: FrozenConfig


class _FailedSummary(TypedDict):
    """What is read of a failed run."""

    error: str
    created: NotRequired[str]
    target: NotRequired[str]
    draft: NotRequired[str]
    task: NotRequired[str]


class _FailedHead(TypedDict):
    """The first line of a failed run."""

    run_id: str
    summary: _FailedSummary
    config: FrozenConfig


@dataclass(frozen=True)
class Head:
    """The first line of a record, and its file."""

    run_id: str
    summary: Row
    config: Config
    file: Path

    @property
    def failed(self) -> bool:
        """Whether the run failed: then there is no number in the summary."""
        return FAILED in self.summary

    @property
    def row(self) -> Row:
        """The run's id and its summary: a row of a table."""
        return {"run_id": self.run_id, **self.summary}


def runs_folder(results: str | Path) -> Path:
    """Where the records of a results folder lie."""
    return Path(results) / "runs"


def record_file(results: str | Path, run_id: str) -> Path:
    """The file of the record `run_id` in the folder `results`. Raises UserError if the id is no name of a file."""
    return runs_folder(results) / f"{require_file_name(run_id)}.json"


def is_file_name(run_id: object) -> bool:
    """Whether an id names a file of its folder, and none elsewhere. An id is read from a file of anyone's."""
    return isinstance(run_id, str) and bool(FILE_NAME.fullmatch(run_id))


def require_file_name(run_id: object) -> str:
    """`run_id`, if it names a file of its folder. Raises UserError if it would lead to a file elsewhere, or to none."""
    if not is_file_name(run_id):
        raise UserError(
            f"run_id {border.shown(run_id)}: is not the name of a file; an id has no slash and does not start "
            "with a dot"
        )
    return str(run_id)


def head_line(record: Mapping[str, object]) -> str:
    """A record's first line, without its closing brackets."""
    head = {"schema_version": SCHEMA_VERSION} | {key: record[key] for key in HEAD[1:] if key in record}
    return json_text(head)[:-1]


def write(results: str | Path, record: RunRecord | ServedRecord | FailedRecord) -> Path:
    """Write `record` atomically."""
    file = record_file(results, record["run_id"])
    body = {key: value for key, value in record.items() if key not in HEAD} | {"complete": True}
    # Two objects laid into one: the head closes on its own line only for the quick reader below.
    write_atomically(file, f"{head_line(record)},\n{json_text(body, indent=1)[1:]}\n")
    return file


def read(file: Path) -> RunRecord:
    """The whole record of a finished run, compressed or not, as its type says. Raises Unreadable if damaged."""
    record = of_this_version(border.parse(border.read_bytes(file), Row))
    _require_head(record)
    if FAILED in record["summary"]:  # it says why, and has no prompts
        return cast(RunRecord, record)
    record = restored(record, file)
    border.check(record, ServedRecord if is_served(record) else RunRecord)
    border.check(record["config"], FrozenConfig)
    return cast(RunRecord, from_json(RunRecord, record))


def read_head(file: Path) -> Head:
    """A record's first line, as its type says. Raises Unreadable if the file is damaged or cut short."""
    with border.opened(file) as stream:
        line = stream.readline(border.LONGEST_LINE)
        if file.suffix not in border.PACKED:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - len(TAIL)))
            if stream.read() != TAIL:
                raise Unreadable("the file is cut short")
    head: Row = border.parse(line.rstrip().removesuffix(b",") + b"}", Row)
    head = of_this_version(head)
    _require_head(head)
    return Head(head["run_id"], head["summary"], head["config"], file)


def _require_head(head: Row) -> None:
    """Raises Unreadable if a first line is not of its type, or holds an id or a date that names another file."""
    if not is_file_name(head.get("run_id")):
        raise Unreadable(f"run_id {border.shown(head.get('run_id'))} is not the name of a file")
    summary: Any = head.get("summary")
    failed = isinstance(summary, dict) and FAILED in summary
    served = isinstance(summary, dict) and summary.get(SERVED) is True
    border.check(head, _FailedHead if failed else _ServedHead if served else _Head)
    if "created" in summary:
        require_created(summary["created"])


def require_created(created: str) -> None:
    """Raises Unreadable if a time stamp is none: its month names a file of the history."""
    if not CREATED.fullmatch(created):
        raise Unreadable(f"created is {border.shown(created)}, not a time in ISO 8601")


@dataclass(frozen=True)
class Result:
    """A finished run: the file of its record, the record, and whether it existed already."""

    file: Path
    record: RunRecord
    reused: bool


def settings(config: Config) -> dict[str, object]:
    """The keys of a frozen config, dotted, that are not at their default: records that agree in them are of one config.

    So a record older than a key agrees with one that has it at its default. The folder of a record and the description
    of a checkpoint are not part of the measurement.
    """
    defaults = _defaults()
    return {key: value for key, value in _flat(config).items() if defaults.get(NESTED.sub("", key)) != value}


def config_digest(config: Config, *but: str) -> str:
    """A digest of all keys of a frozen config but those named, each with the keys under it ('draft', 'gamma')."""
    kept = {
        key: value
        for key, value in settings(config).items()
        if not any(key == name or key.startswith(f"{name}.") for name in but)
    }
    return json_digest(kept)


def differing(one: Config, other: Config) -> dict[str, tuple[object, object]]:
    """The dotted keys in which two configs differ, with both values; None stands for the default."""
    mine, theirs = settings(one), settings(other)
    return {
        key: (mine.get(key), theirs.get(key)) for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)
    }


@cache
def _defaults() -> dict[str, object]:
    return _flat(asdict(RunConfig()))


def _flat(config: Config, before: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        elif name != PROSE and not (not before and name in NOT_MEASURED):
            found[f"{before}{name}"] = list(value) if isinstance(value, tuple) else value
    return found
