"""A record as one line with what a comparison over commits needs, for baselines and for the history.

A baseline (`specbench compare --baseline FILE`) is a file of such lines, one for each config and machine; the history
(`results/history/`) is a folder of them, one for each record. A line is complete: nothing else is read to compare it
with a record, so that records of a GPU that are not committed can also be compared. It holds each quantity with its
interval, and each prompt's contribution to it, from which prompts are paired (`analysis.changes`). All 250 kept
records fit in 300 KB.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict, get_args

from specbench import border
from specbench.border import Unreadable
from specbench.errors import UserError
from specbench.files import json_digest, write_atomically
from specbench.records.frame import MACHINE
from specbench.records.run_record import Config, Row
from specbench.records.store import config_digest, require_created

Quantity = Literal["alpha", "tokens_per_pass", "speedup", "c", "v", "memory"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
PER_UNIT = 100  # contributions of prompts are whole numbers of hundredths
SERVER = "server"  # the device of a measured server, which may count nothing
HISTORY = "history"  # the folder inside the results' folder
Estimate = tuple[float, float | None, float | None]


class Measurement(TypedDict):
    """The line of a record."""

    id: Annotated[str, "digest of the config and the machine: records that agree in it measure the same"]
    config: Annotated[str, "digest of only the config"]
    run_id: str
    commit: Annotated[str | None, "12 digits, and '+changes' where the tree differed from it"]
    created: Annotated[str, "ISO 8601, UTC"]
    hardware: str | None
    device: str
    dtype: str | None
    simulated: bool
    lossless: Annotated[bool, "whether the completions are the target's own, or the rule is lossy"]
    disturbed_by: Annotated[str | None, "why its times are not here"]
    step_s: NotRequired[Annotated[float, "seconds of the target's own mean step; absent without times"]]
    contradicts: NotRequired[Annotated[str, "what its record contradicts itself in; never in a file"]]
    runs: NotRequired[Annotated[int, "processes that measured it; absent for one"]]
    between: NotRequired[Annotated[float, "standard deviation of the log of their speedups"]]
    prompts: Annotated[str, "digest of the prompts: measurements that agree in it are paired by prompt"]
    quantities: Annotated[dict[Quantity, Estimate], "value and 95% interval, over prompts"]
    by_prompt: Annotated[
        dict[Quantity, list[int]], "hundredths: the relative change of the value if the prompt counted more"
    ]


def identity(config: Config, row: Row) -> tuple[str, str]:
    """The digests `Measurement.id` and `.config` of a record with this config and summary.

    A record without a config measures the same as no other.
    """
    digest = config_digest(config, "runs") if config else json_digest(row.get("run_id"))
    return json_digest([digest, *(row.get(name) for name in MACHINE)], 12), digest


def read_measurements(file: Path, option: str) -> list[Measurement]:
    """The measurements in `file`.

    Raises UserError if it cannot be read, or has another line; the message names the line and `option`.
    """
    try:
        lines = border.read_text(file).splitlines()
    except Unreadable as error:
        raise UserError(f"{option}: {file}: {error}; --write makes it from records") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row: Measurement = border.parse(line, Measurement)
            require_measurement(row)
        except Unreadable as error:
            raise UserError(
                f"{option}: {file}, line {number}: is not a measurement ({error}); --write makes the file from records"
            ) from error
        found.append(row)
    return found


def require_measurement(row: Measurement) -> None:
    """Raises Unreadable if a row has the types of a measurement, and values that no measurement has."""
    require_created(row["created"])
    if row.get("runs", 1) < 1 or row.get("between", 0.0) < 0:
        raise Unreadable("it is of no process, or its processes have a negative deviation")
    if ("alpha" not in row["quantities"] and row["device"] != SERVER) or not row["by_prompt"].keys() <= row[
        "quantities"
    ].keys():
        raise Unreadable("it has no alpha, or prompts of a quantity that it lacks")
    for name, estimate in row["quantities"].items():
        if any(one is not None and one < 0 for one in estimate):
            raise Unreadable(f"{name} is below 0")
    if row.get("step_s", 1.0) <= 0:
        raise Unreadable("step_s is not above 0")


def write_measurements(file: Path, rows: Iterable[Measurement], option: str) -> None:
    """Write a line a measurement, in the order of run ids and dates, so that a diff shows what changed."""
    ordered = sorted(rows, key=lambda row: (row["run_id"], row["created"], row["id"]))
    text = "".join(
        json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n" for row in ordered
    )
    write_atomically(file, text, option)


def read_history(results: str | Path) -> list[Measurement]:
    """All lines of the history of a results folder, oldest first."""
    files = sorted((Path(results) / HISTORY).glob("*.jsonl"))
    rows = [row for file in files for row in read_measurements(file, f"--results={results}")]
    return sorted(rows, key=lambda row: (row["created"], row["run_id"]))


def add_to_history(results: str | Path, rows: Sequence[Measurement]) -> int:
    """Add the measurements that the history lacks, in a file for each month; returns how many."""
    known = {(row["id"], row["created"]) for row in read_history(results)}
    new = [row for row in rows if (row["id"], row["created"]) not in known]
    months: Mapping[str, list[Measurement]] = {row["created"][:7]: [] for row in new}
    for row in new:
        require_created(row["created"])  # it names a file
        months[row["created"][:7]].append(row)
    for month, added in months.items():
        file = Path(results) / HISTORY / f"{month}.jsonl"
        before = read_measurements(file, f"--results={results}") if file.exists() else []
        write_measurements(file, [*before, *added], "--results FOLDER")
    return len(new)
