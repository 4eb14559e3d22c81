"""The record that fills a cell of a table if several fit, the reason, and how many fit."""

from collections.abc import Sequence

import pandas as pd

REASONS = {
    "prompts": "most prompts",
    "tokens": "most tokens",
    "speedup_measured": "fastest",
    "created": "newest",
}
SIZE_THEN_DATE = ("prompts", "created")
SIZE_THEN_SPEED = ("prompts", "speedup_measured", "created")  # where the cell leaves gamma open


def choose(frame: pd.DataFrame, cell: Sequence[str], by: Sequence[str] = SIZE_THEN_DATE) -> pd.DataFrame:
    """One record for each combination of the columns `cell`, in the order of `frame`: the highest by the columns `by`.

    Adds `fitting`, how many records fit the cell, and `chosen_for`, the column that decided; empty for a single record.
    If `frame` was chosen from more, the records that were dropped then are counted too.
    """
    chosen = frame.iloc[:0].assign(fitting=pd.Series(dtype=int), chosen_for=pd.Series(dtype=str))
    for _, group in frame.groupby(list(cell), dropna=False, sort=False):
        index, reason = _first(group, by)
        fitting = group["fitting"].sum() if "fitting" in group else len(group)
        reason = reason or (group.at[index, "chosen_for"] if "chosen_for" in group else "")
        row = group.loc[[index]].assign(fitting=fitting, chosen_for=reason)
        chosen = row if chosen.empty else pd.concat([chosen, row])
    return chosen.sort_index()


def remark(fitting: object, chosen_for: object) -> str:
    """'most prompts of 3' for a cell that several records fit; otherwise ''."""
    return f"{chosen_for} of {fitting:.0f}" if isinstance(fitting, int | float) and fitting > 1 else ""


def _first(group: pd.DataFrame, by: Sequence[str]) -> tuple[int, str]:
    """The index of the first record by `by`, and the last column that mattered."""
    left, reason = group, ""
    for column in by:
        best = left[left[column] == left[column].max()] if left[column].notna().any() else left
        if len(best) < len(left):
            left, reason = best, REASONS[column]
    return left.index[-1], reason or ("the last" if len(group) > 1 else "")
