"""Runs in parts, by kind of prompt, length of context and position in the completion: rows for a table and a figure."""

import pandas as pd

from specbench.analysis.acceptance.strata import NO_CATEGORY, By, Stratum, strata
from specbench.records.frame import PAIR, Records
from specbench.records.schema import Row

BY: dict[By, str] = {
    "category": "kind of prompt",
    "length": "tokens of context",
    "position": "position in the completion",
}
MOST_RUNS = 4
COLUMNS = (
    "run_id", "by", "group", "prompts", "tokens", "alpha", "low", "high", "tokens_per_pass", "tokens_per_pass_low",
    "tokens_per_pass_high", "speedup", "speedup_low", "speedup_high",
)  # fmt: skip


def chosen_runs(records: Records) -> pd.DataFrame:
    """A few records: for each pair, task and temperature the record with the most prompts; among equals the newest.

    Records whose prompts have categories come first, then records with the most parts, then those of the best drafts.
    """
    newest = records.paper_runs.sort_values(["prompts", "created"], kind="stable", ascending=False).drop_duplicates(
        PAIR
    )
    counts = [_counts(records, run_id) for run_id in newest["run_id"]]
    ranked = newest.assign(
        parted=pd.Series([has for has, _ in counts], index=newest.index, dtype=bool),
        number=pd.Series([number for _, number in counts], index=newest.index, dtype=int),
    )
    order = ["parted", "number", "alpha"]
    return ranked.sort_values(order, kind="stable", ascending=False).drop(columns=order[:2]).head(MOST_RUNS)


def _counts(records: Records, run_id: str) -> tuple[bool, int]:
    """Whether the prompts of a run have categories, and into how many lengths and positions they fall."""
    prompts = records.whole(run_id)["prompts"]
    parts_of = [strata(prompts, by, with_speed=False) for by in BY if by != "category"]
    return any("category" in prompt for prompt in prompts), sum(map(len, parts_of))


def parts(records: Records, chosen: pd.DataFrame) -> pd.DataFrame:
    """A row for each part of each run of `chosen`, with 95% intervals over prompts."""
    rows = [row for run_id in chosen["run_id"] for row in _of_run(records, run_id)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of_run(records: Records, run_id: str) -> list[Row]:
    record = records.whole(run_id)
    timed = record["summary"]["speedup_measured"] is not None
    rows: list[Row] = []
    for by in BY:
        found = strata(record["prompts"], by, timed)
        if {one.name for one in found} <= {NO_CATEGORY}:
            continue
        rows += [{"run_id": run_id, "by": by} | _row(one) for one in found]
    return [row for row in rows if row["alpha"] == row["alpha"]]


def _row(one: Stratum) -> Row:
    row: Row = {
        "group": one.name, "prompts": one.prompts, "tokens": one.tokens,
        "alpha": one.alpha.value, "low": one.alpha.low, "high": one.alpha.high,
    }  # fmt: skip
    for name, interval in (("tokens_per_pass", one.tokens_per_pass), ("speedup", one.speedup)):
        bounds = (None, None, None) if interval is None else (interval.value, interval.low, interval.high)
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), bounds, strict=True))
    return row
