"""Changes since an earlier measurement of the same config on the same machine: how large, and how certain.

`analysis.changes` compares two measurements.

All tests of a comparison are corrected together (Benjamini and Hochberg 1995, Controlling the false discovery rate):
without any change, the probability of a single alarm is at most `FALSE_ALARMS`, however many records are compared, and
of the changes that are reported, that share is false. Tests that share a process are positively dependent, for which
the procedure holds (Benjamini and Yekutieli 2001).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.as_measurement import COUNTED
from specbench.analysis.changes import FALSE_ALARMS, Change, adjusted, change, over_prompts
from specbench.records.measurements import Measurement, Quantity

LESS_IS_BETTER: tuple[Quantity, ...] = ("c", "v", "memory")


@dataclass(frozen=True)
class Tested:
    """A quantity of a record against its row of the baseline; `q` is p after the correction."""

    before: Measurement
    after: Measurement
    quantity: Quantity
    change: Change
    q: float
    moved: bool

    @property
    def fails(self) -> bool:
        """Whether it moved for the worse. α and tokens per pass do not depend on time: any move of theirs counts."""
        better = (self.change.ratio > 1) != (self.quantity in LESS_IS_BETTER)
        return self.moved and (self.quantity in COUNTED or not better)


@dataclass(frozen=True)
class Comparison:
    """The result of comparing records with a baseline.

    Attributes:
        tested: every quantity that was compared, in the order of records.
        wrong: records whose completions are not the target's own.
        contradicting: records whose summary or passes contradict their prompts (`analysis.contradictions`).
        disturbed: records timed while another process used the machine: their times are not compared.
        unknown: records of which the baseline has no row.
        same: records that the baseline's row was made of.
        untimed: records compared only by α and tokens per pass, since they are of other hardware, or the row has no
            times.
        missing: the baseline's rows for this kind of device whose config no record has.
        elsewhere: rows of other kinds of device.
    """

    tested: list[Tested]
    wrong: list[Measurement]
    contradicting: list[Measurement]
    disturbed: list[Measurement]
    unknown: list[Measurement]
    same: list[Measurement]
    untimed: list[Measurement]
    missing: int
    elsewhere: int

    @property
    def compared(self) -> list[str]:
        """The run ids of the records that were compared."""
        return list(dict.fromkeys(one.after["run_id"] for one in self.tested))

    @property
    def fails(self) -> bool:
        """Whether a comparison must not pass."""
        return bool(self.wrong or self.contradicting or self.disturbed) or any(one.fails for one in self.tested)


def compare_with_baseline(
    baseline: Sequence[Measurement], now: Sequence[Measurement], margin: float = 0.0
) -> Comparison:
    """Compare records with the baseline's rows of their config; `margin`: the smallest change that counts, a share."""
    rows = {row["id"]: row for row in baseline}
    alike_but_hardware = {_counts_as(row): row for row in baseline}
    pairs: list[tuple[Measurement, Measurement, Quantity, Change]] = []
    unknown, same, untimed = [], [], []
    for after in now:
        before = rows.get(after["id"]) or alike_but_hardware.get(_counts_as(after))
        if before is None:
            unknown.append(after)
            continue
        if (before["run_id"], before["created"]) == (after["run_id"], after["created"]):
            same.append(after)
            continue
        alike = before["id"] == after["id"]
        if not alike or "speedup" not in before["quantities"]:
            untimed.append(after)
        for name in before["quantities"]:
            found = change([before], [after], name) if alike or name in COUNTED else None
            if found is not None:
                pairs.append((before, after, name, found))
    qs = adjusted([one.p for *_, one in pairs])
    tested = [
        Tested(*pair, q, moved=q <= FALSE_ALARMS and abs(pair[3].ratio - 1) >= margin)
        for pair, q in zip(pairs, qs, strict=True)
    ]
    kinds, found_here = {kind(row) for row in now}, {_counts_as(row) for row in now}
    return Comparison(
        tested,
        wrong=[row for row in now if not row["lossless"]],
        contradicting=[row for row in now if "contradicts" in row],
        disturbed=[row for row in now if row["disturbed_by"]],
        unknown=unknown,
        same=same,
        untimed=untimed,
        missing=sum(_counts_as(row) not in found_here and kind(row) in kinds for row in baseline),
        elsewhere=sum(kind(row) not in kinds for row in baseline),
    )


def baseline_of(rows: Iterable[Measurement], before: Iterable[Measurement] = ()) -> list[Measurement]:
    """The rows of a new baseline: `before`, each row replaced by the newest measurement of its config and machine.

    A disturbed record, which has no times, replaces no row that has some. One that contradicts itself replaces none.
    """
    newest = {row["id"]: row for row in before}
    for row in sorted(sound(rows), key=lambda row: row["created"]):
        if not row["disturbed_by"] or row["id"] not in newest:
            newest[row["id"]] = row
    return list(newest.values())


def sound(rows: Iterable[Measurement]) -> list[Measurement]:
    """The measurements of records that do not contradict themselves."""
    return [row for row in rows if "contradicts" not in row]


def _counts_as(row: Measurement) -> tuple[str, str, str | None]:
    """What measurements agree in whose α and tokens per pass can be compared, whatever hardware they are of."""
    return row["config"], kind(row), row["dtype"]


def kind(row: Measurement) -> str:
    """The kind of device: cpu, cuda or mps."""
    return row["device"].partition(":")[0]


def between_processes(rows: Sequence[Measurement], name: Quantity) -> float:
    """The standard deviation of the log of a quantity between processes, over what prompts explain.

    `rows` are repeats of one config without a change, each in a process of its own: half the mean square of the
    differences of all pairs, less the variance that their prompts give them.
    """
    variances = []
    for place, a in enumerate(rows):
        for b in rows[:place]:
            if name in a["quantities"] and name in b["quantities"]:
                apart = math.log(a["quantities"][name][0] / b["quantities"][name][0])
                parts, _ = over_prompts([[a], [b]], name)
                variances.append(apart**2 - sum(part for part, _ in parts or ()))
    return math.sqrt(max(0.0, float(np.mean(variances)) / 2)) if variances else 0.0
