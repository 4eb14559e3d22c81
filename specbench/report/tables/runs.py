"""A table of runs as they are, whatever the paper has: the runs of this machine, or the kept ones if it has none."""

import pandas as pd

from specbench.formatting import NONE, cells, draft_name
from specbench.records.catalog import digest
from specbench.records.frame import Records
from specbench.report.table import Table
from specbench.report.tables import notes
from specbench.report.views import RUNS, keys

TAKEN = keys(
    RUNS, "run_id", "target", "draft", "task", "temperature", "gamma_said", "tree", "accept", "batch", "context",
    "prompts", "tokens", "alpha", "alpha_low", "alpha_high", "c", "verify_cost", "tokens_per_pass",
    "speedup_predicted", "speedup_measured", "speedup_low", "speedup_high", "speedup_end_to_end", "identical", "lossy",
    "unproved", "simulated", "hardware", "dtype", "engine", "passes_run",
)  # fmt: skip
# Columns that are shown if rows differ in them, or are not as usual.
TELLING = {"tree": "tree", "accept": "rule", "batch": "batch", "context": "context", "dtype": "dtype"}
USUAL = {"accept": "exact", "batch": 1}


def runs(records: Records) -> Table:
    """Table of the runs of this machine, or of the kept ones if there are none."""
    frame = records.all_runs
    mine = records.catalog.own - set(records.served["run_id"])  # including runs that are left out
    used = frame[frame["run_id"].isin(mine)] if mine else frame
    values = used.reindex(columns=TAKEN).reset_index(drop=True)
    telling = [name for name in TELLING if set(values[name].dropna()) - {USUAL.get(name)} and (
        name != "dtype" or values[name].nunique() > 1)]  # fmt: skip
    shown = pd.DataFrame([_show(row, telling) for row in values.to_dict("records")])
    kept = ["there is no run of yours: these are the kept records"] if len(used) and not mine else []
    small = [run_id for run_id in records.left_out if run_id in mine or not mine]
    under = [
        *kept,
        "c: draft step over target step; v: verification cost; measured: decoding time per token, target alone over "
        "speculative. [95% interval over prompts]",
        *notes.of_passes(used),
        *notes.of_alpha(used),
        *notes.of_records(used),
        *notes.of_loops(used, records),
    ] if len(used) else [_nothing(records)]  # fmt: skip
    if small:
        under.append(
            f"left out, fewer than {records.fewest_prompts} prompts (--min-prompts): {', '.join(map(digest, small))}"
        )
    return Table("runs", "Runs. The target alone and with a draft", shown, values, under)


def _nothing(records: Records) -> str:
    """Why there is no row: no run at all, or only runs that are left out, each of which another note names."""
    return "no run to show" if records.left_out or records.disturbed else "no record: specbench run makes one"


def _show(row: dict[str, object], telling: list[str]) -> dict[str, str]:
    def told(name: str) -> str:
        value = row[name]
        return NONE if pd.isna(value) else str(value)

    return {
        "target": str(row["target"]), "draft": draft_name(str(row["draft"])), "task": str(row["task"]),
        "T": f"{row['temperature']:g}", "γ": told("gamma_said"), **{TELLING[name]: told(name) for name in telling},
        "prompts": told("prompts"), **cells(RUNS, row),
        "record": notes.record(str(row["run_id"]), bool(row["simulated"])),
    }  # fmt: skip
