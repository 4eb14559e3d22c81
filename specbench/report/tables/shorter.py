"""Rows of a table that a page shows: all of the paper's, ours beside them, and a few of the others.

A page is read; the CSV has every row. Of the others, the rows with the most prompts are shown, and among equals the
newest, whatever their speed, so that the choice favours no draft.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pandas as pd

from specbench.records.frame import Records
from specbench.records.run_record import Row

MOST_OTHERS = 20  # rows of a page beside the paper's


def shorter(
    rows: Sequence[Row], records: Records, most: int | None, is_other: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """The rows that a page shows, in their order; `most` of those that `is_other` than the paper's, None for all."""
    others = [number for number, row in enumerate(rows) if is_other(row)]
    if most is None or len(others) <= most:
        return list(rows)
    known = {
        head.run_id: (head.summary.get("prompts") or 0, str(head.summary.get("created")))
        for head in records.catalog.heads
    }
    kept = {*sorted(others, key=lambda number: known.get(_record(rows[number]), (0, "")), reverse=True)[:most]}
    return [row for number, row in enumerate(rows) if number in kept or number not in set(others)]


def of_rows(used: pd.DataFrame, rows: Sequence[Row]) -> pd.DataFrame:
    """The records of `rows`, among the records `used` in a table."""
    shown = {row.get(name) for row in rows for name in RUN_IDS}
    return used[used["run_id"].isin(shown)]


def of_left_out(name: str, rows: Collection[Any], shown: Collection[Any]) -> list[str]:
    """Where the rows are that a page leaves out, if it does."""
    less = len(rows) - len(shown)
    said = (
        f"{less} further rows: `specbench tables {name} --all`, or {name}.csv. Those shown have the most prompts, and"
    )
    return [f"{said} are the newest of these"] if less else []


RUN_IDS = ("run_id", "run_measured")  # columns that name a record


def _record(row: Row) -> str:
    return next((str(row[name]) for name in RUN_IDS if isinstance(row.get(name), str)), "")
