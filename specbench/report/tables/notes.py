"""The notes under a table: the records used, and the commands that fill empty cells."""

import pandas as pd

from specbench.analysis.summary import completed
from specbench.records.catalog import digest
from specbench.records.frame import Records, date
from specbench.records.looping import LOOPING, why_loops
from specbench.records.marks import explained
from specbench.records.passes_run import GUESSED, PASSES_RUN
from specbench.records.run_record import Row
from specbench.report.paper import experiment, fill_twin, fills, paper, takes


def named(frame: pd.DataFrame) -> str:
    """The digests of records, each with a mark if its rule is lossy or its completions are unproved."""
    return ", ".join(_name(row) for row in frame.to_dict("records"))


def of_proof(frame: pd.DataFrame) -> list[str]:
    """The meaning of the marks of unproved records, if there are any."""
    unproved = [row for row in frame.to_dict("records") if row.get("unproved") is True]
    small = [row.get("too_small") is True for row in unproved]
    return explained(not all(small), any(small))


def of_loops(used: pd.DataFrame, records: Records) -> list[str]:
    """The records of which many completions loop, and their speedups without these, if there are any."""
    said: dict[str, list[str]] = {}
    if used.empty:
        return []
    runs = set(records.all_runs["run_id"])  # records of `specbench alpha` have no completions
    for row in used.drop_duplicates("run_id").to_dict("records"):
        if row["run_id"] not in runs:
            continue
        known = pd.notna(row.get("looping"))
        summary = row if known else dict(completed(records.whole(row["run_id"]))["summary"])
        if (why := why_loops(summary)) is not None:
            said.setdefault(why, []).append(digest(row["run_id"]))
    listed = "; ".join(f"{', '.join(names)} ({why})" for why, names in said.items())
    return [f"{LOOPING}: {listed}"] if said else []


def _name(row: Row) -> str:
    said = {"lossy": "lossy", "unproved": "underpowered" if row.get("too_small") is True else "untested"}
    marks = [word for mark, word in said.items() if row.get(mark) is True]
    return digest(row["run_id"]) + (f" ({', '.join(marks)})" if marks else "")


WITHIN = 0.02  # of a value: the interval that the foot of a table counts prompts for
INTERVALS = {
    "α": ("alpha", "alpha_low", "alpha_high"),
    "a speedup": ("speedup_measured", "speedup_low", "speedup_high"),
}


def of_records(frame: pd.DataFrame) -> list[str]:
    """One line for each machine and day: which records come from it."""
    if frame.empty:
        return []
    lines = []
    used = frame.drop_duplicates("run_id")
    used = used.assign(day=[date(created) for created in used["created"]])
    for (hardware, dtype, day), group in used.groupby(["hardware", "dtype", "day"], dropna=False):
        where = hardware if pd.notna(hardware) else "hardware not noted"
        where += ", acceptance simulated" if group["simulated"].all() else ""
        prompts = " or ".join(str(n) for n in sorted(set(group["prompts"].astype(int))))
        lines.append(f"{where}, {dtype}, {day}, {prompts} prompts a run: records {named(group)}")
    return [*lines, *of_processes(used), *of_proof(used)]


def of_alpha(used: pd.DataFrame) -> list[str]:
    """The meaning of alpha for drafts whose acceptance falls with the position, if there are any."""
    if not used["falls"].astype(bool).any():
        return []
    return [
        "α of drafts whose acceptance falls with the position (lookup, retrieval, lookahead, heads, horizontal "
        "cascades) belongs to a proposal's first token; of a horizontal cascade it is the first draft's"
    ]


def of_precision(frame: pd.DataFrame) -> list[str]:
    """The median width of the intervals, and how many prompts a speedup needs for an interval of ±`WITHIN`."""
    ours = frame[~frame["simulated"].astype(bool)] if "simulated" in frame else frame
    reach = {name: _reach(ours, *columns) for name, columns in INTERVALS.items() if set(columns) <= set(ours)}
    known = {name: values for name, values in reach.items() if len(values)}
    if not known:
        return []
    said = " and ".join(f"±{100 * values.median():.1f}% of {name}" for name, values in known.items())
    name, values = list(known.items())[-1]
    prompts = ours["prompts"].median()
    needed = max(10, round(prompts * (values.median() / WITHIN) ** 2, -1))
    return [
        f"median 95% interval with {prompts:.0f} prompts a record: {said}; "
        f"±{100 * WITHIN:.0f}% of {name} requires about {needed:.0f} prompts "
        f"(`specbench explain RUN --within {100 * WITHIN:.0f}%`)"
    ]


def _reach(frame: pd.DataFrame, value: str, low: str, high: str) -> "pd.Series[float]":
    """Half the width of each interval, as a share of its value."""
    columns = frame[[value, low, high]].astype(float)
    half = (columns[high] - columns[low]) / 2 / columns[value]
    return half[columns[value] > 0].dropna()


def of_filling(name: str, missing: bool) -> list[str]:
    """How to fill the table `name`, if anything is `missing`, and what to have ready."""
    commands, before = [f"`{command}`" for command in fills(name)], experiment(name).get("prepare")
    if not missing or not commands:
        return []
    verb = "fills" if len(commands) == 1 else "fill"
    ours = f"`{fill_twin(name)}` measures the models that ship"
    return [f"no record: {'; '.join(commands)} {verb} these; {ours}", *([f"before that: {before}"] if before else [])]


def silent(name: str) -> list[str]:
    """Our choices where the paper is silent, and how long the sweeps take."""
    return [
        *([f"time of the sweeps: {takes(name)}"] if takes(name) else []),
        *(f"our choice, {choice}" for choice in experiment(name)["silent"]),
    ]


def of_choice(values: pd.DataFrame, records: Records) -> list[str]:
    """The meaning of remarks in the record column, and which records are too small and left out."""
    lines = []
    if any((values[name] > 1).any() for name in ("fitting", "alpha_fitting") if name in values):
        lines.append(
            "(most prompts of 3) after a record: 3 records fit the row and differ in settings that it does not show. "
            "The record with the most prompts is used; among equals the newest, or the fastest if the row has no fixed "
            "γ. `specbench results` lists all"
        )
    if records.left_out:
        lines.append(
            f"left out: {len(records.left_out)} records of fewer than {records.fewest_prompts} prompts; "
            "`specbench tables --min-prompts 1` shows them"
        )
    return lines


def of_passes(used: pd.DataFrame) -> list[str]:
    """The meaning of the column `passes`, if its rows differ in it, and of how many records it is a guess."""
    if used["passes_run"].nunique() < 2:
        return []
    guessed = int(used["passes_guessed"].sum()) if "passes_guessed" in used else 0
    return [PASSES_RUN, *([GUESSED.format(guessed, len(used))] if guessed else [])]


def of_processes(used: pd.DataFrame) -> list[str]:
    """A note on how many records have intervals that hold within one process only."""
    single = int((used["runs"] == 1).sum()) if "runs" in used else 0
    if not single:
        return []
    return [
        f"{single} of {len(used)} records are of one process: their intervals hold within this process. Between "
        "processes speedups differ by a few percent more, which the intervals of runs=3 cover"
    ]


def record(run_id: str, simulated: bool = False, remark: str = "") -> str:
    """A record's digest for the record column, and why this record was chosen."""
    said = ", ".join(filter(None, ["simulated" if simulated else "", remark]))
    return f"{digest(run_id)} ({said})" if said else digest(run_id)


def foot(name: str, used: pd.DataFrame, values: pd.DataFrame, records: Records, missing: bool) -> list[str]:
    """The notes under a table of the paper: checkpoints, the records `used`, and how to fill what is `missing`."""
    return [
        paper()["checkpoints_note"],
        *of_choice(values, records),
        *of_records(used),
        *of_loops(used, records),
        *of_precision(used),
        *of_filling(name, missing),
        *silent(name),
    ]
