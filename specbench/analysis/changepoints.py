"""The history of one config on one machine: where it stepped."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.changes import FALSE_ALARMS, Change, adjusted, change
from specbench.records.measurements import Measurement, Quantity


@dataclass(frozen=True)
class StepOf:
    """A step in a history: the first measurement after it, and the change. `q` is p after the correction."""

    first: Measurement
    before: Measurement
    quantity: Quantity
    change: Change
    q: float


def steps(histories: Sequence[Sequence[Measurement]], names: Sequence[Quantity]) -> list[StepOf]:
    """The steps of all histories, each of one config on one machine, oldest first.

    A history is split where the two sides differ most (binary segmentation: Scott and Knott 1974), then each side
    again. p is the p-value of the most different sides times the number of places (Bonferroni). All splits are
    corrected together, so that without any change the probability of a single step is at most `FALSE_ALARMS`.
    """
    found: list[tuple[Measurement, Measurement, Quantity, Change]] = []
    for rows in histories:
        for name in names:
            known = [row for row in rows if name in row["quantities"]]
            found += [(known[place], known[place - 1], name, one) for place, one in _splits(known, name)]
    return [
        StepOf(*one, q) for one, q in zip(found, adjusted([c.p for *_, c in found]), strict=True) if q <= FALSE_ALARMS
    ]


def _splits(rows: Sequence[Measurement], name: Quantity, start: int = 0) -> list[tuple[int, Change]]:
    """The tests of a history: its best split and, if it is certain on its own, the tests of either side."""
    tried = [(place, change(rows[:place], rows[place:], name)) for place in range(1, len(rows))]
    known = [(place, one) for place, one in tried if one is not None]
    if not known:
        return []
    place, best = min(known, key=lambda one: one[1].p)
    p = min(1.0, best.p * len(known))
    here = [(start + place, Change(best.ratio, best.low, best.high, p, best.paired))]
    if p > FALSE_ALARMS:
        return here
    return [*_splits(rows[:place], name, start), *here, *_splits(rows[place:], name, start + place)]
