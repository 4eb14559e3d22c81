"""One record for each cell of a table, of the records that fit it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

REASONS = {
    "prompts": "most prompts",
    "tokens": "most tokens",
    "speedup_measured": "fastest",
    "created": "newest",
}
SIZE_THEN_DATE = ("prompts", "created")
SIZE_THEN_SPEED = ("prompts", "speedup_measured", "created")  # if the cell leaves gamma open
EARLIER = ("fitting", "chosen_for")  # the columns that an earlier choice added


def choose(frame: pd.DataFrame, cell: Sequence[str], by: Sequence[str] = SIZE_THEN_DATE) -> pd.DataFrame:
    """One record for each combination of the columns `cell`, in the order of `frame`: the highest by the columns `by`.

    Adds `fitting`, how many records fit the cell, and `chosen_for`, the column that decided; empty for a single record.
    If `frame` was chosen from more, the records that were dropped then are also counted.
    """
    numbers = frame.groupby(list(cell), dropna=False, sort=False).ngroup().tolist() if len(frame) else []
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(numbers):
        groups.setdefault(group, []).append(place)
    # Only these columns are looked at: a frame may have hundreds, and taking rows of all of them is slow.
    values = {name: frame[name].tolist() for name in (*by, *EARLIER) if name in frame}
    found: dict[int, tuple[int, str]] = {}  # place -> how many fit, and why it was chosen
    for places in groups.values():
        place, reason = _first(places, {name: values[name] for name in by})
        fitting = sum(values["fitting"][one] for one in places) if "fitting" in values else len(places)
        found[place] = fitting, reason or (values["chosen_for"][place] if "chosen_for" in values else "")
    chosen = frame.iloc[list(found)]
    return chosen.assign(
        fitting=pd.Series([fitting for fitting, _ in found.values()], index=chosen.index, dtype=int),
        chosen_for=pd.Series([reason for _, reason in found.values()], index=chosen.index, dtype=str),
    ).sort_index()


def remark(fitting: object, chosen_for: object) -> str:
    """'most prompts of 3' for a cell that several records fit; otherwise ''."""
    return f"{chosen_for} of {fitting:.0f}" if isinstance(fitting, int | float) and fitting > 1 else ""


def _first(places: list[int], values: Mapping[str, list[Any]]) -> tuple[int, str]:
    """The first of `places` by the columns `values`, and the last column that mattered."""
    left, reason = places, ""
    for column, cells in values.items():
        known = [cells[place] for place in left if not pd.isna(cells[place])]
        highest = max(known, default=None)
        best = [place for place in left if cells[place] == highest] if known else left
        if len(best) < len(left):
            left, reason = best, REASONS[column]
    return left[-1], reason or ("the last" if len(places) > 1 else "")
