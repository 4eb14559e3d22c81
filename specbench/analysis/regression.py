"""What moved since an earlier measurement of the same config on the same machine, by how much, and how certainly.

Two measurements of one config decode the same prompts, so the effects of a prompt are in both and cancel. Each quantity
is a function of totals over prompts; a prompt's contribution to it is the relative change of the value if that prompt
counted more (`Measurement.by_prompt`). The log of the ratio of two values is compared with the standard error of the
differences of contributions, prompt by prompt, by Student's t. Measurements of other prompts are compared by the two
errors together.

Times also differ between processes (address layout, caches, clocks) by more than prompts show: `BETWEEN` is added.
At equal seeds α and tokens per pass are the same in each process, so nothing is added to theirs.

All tests of a comparison are corrected together (Benjamini and Hochberg 1995, Controlling the false discovery rate):
without any change, the probability of a single alarm is at most `FALSE_ALARMS`, however many records are compared, and
of the changes that are reported, that share is false. Tests that share a process are positively dependent, for which
the procedure holds (Benjamini and Yekutieli 2001).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.contradictions import contradictions
from specbench.analysis.costs import POWERS_OF_C, POWERS_OF_V, columns_of_c, columns_of_part
from specbench.analysis.paired import REACH
from specbench.analysis.summary import times_of
from specbench.files import json_digest
from specbench.records.measurements import PER_UNIT, Estimate, Measurement, Quantity, identity
from specbench.records.schema import PromptRecord, Row, RunRecord

FALSE_ALARMS = 0.01  # the probability of an alarm in a comparison, or of a step in a history, where nothing changed
COUNTED: tuple[Quantity, ...] = ("alpha", "tokens_per_pass")  # of tokens and seeds, not of times
LESS_IS_BETTER: tuple[Quantity, ...] = ("c", "v", "memory")
# The standard deviation between fresh processes, relative, over what the contributions of prompts explain. Assumed, and
# meant to be high: `python tools/power.py` estimates it from repeats without a change and says if a value is too low.
# A record of several processes (`runs`) says itself how far their speedups are apart.
BETWEEN: dict[Quantity, float] = {"speedup": 0.015, "c": 0.03, "v": 0.02, "memory": 0.005}
PROCESSES = 50  # BETWEEN counts as if estimated from so many
Floats = NDArray[np.float64]


# A record as a measurement.


def measurement(record: RunRecord) -> Measurement:
    """The line of a record. Of a disturbed record it has no times; its quantities are computed from its prompts."""
    summary, prompts = record["summary"], record["prompts"]
    digest, config = identity(record["config"], dict(summary))
    signs = (summary.get("disturbed_by") or "without a sign") if summary.get("disturbed") else None
    quantities: dict[Quantity, Estimate] = {}
    by_prompt: dict[Quantity, list[int]] = {}
    for name, found in _quantities(record, timed=signs is None).items():
        value, shares = found
        quantities[name] = _estimate(value, shares)
        by_prompt[name] = [round(PER_UNIT * share) for share in shares]
    more: Row = dict(summary)  # it may have columns that older records lack
    if (memory := more.get("memory_bytes")) is not None:
        quantities["memory"] = (float(memory), None, None)
    row: Measurement = {
        "id": digest,
        "config": config,
        "run_id": record["run_id"],
        "commit": _commit(record),
        "created": summary["created"],
        "hardware": summary.get("hardware"),
        "device": summary["device"],
        "dtype": summary.get("dtype"),
        "simulated": bool(summary.get("simulated")),
        "lossless": bool(summary["lossless"] or summary.get("lossy")),
        "disturbed_by": signs,
        "prompts": json_digest([[one["index"], one["prompt"]] for one in prompts]),
        "quantities": quantities,
        "by_prompt": by_prompt,
    }
    if processes := more.get("speedup_by_process"):
        row["runs"] = len(processes)
        row["between"] = more["speedup_between"]
    if lines := contradictions(record):
        row["contradicts"] = "; ".join(lines[:2]) + (f"; and {len(lines) - 2} more" if len(lines) > 2 else "")
    return row


def without_times(row: Measurement) -> Measurement:
    """A measurement with α and tokens per pass alone, so that it does not matter whether it was disturbed."""
    counted = {name: row["quantities"][name] for name in COUNTED if name in row["quantities"]}
    shares = {name: row["by_prompt"][name] for name in COUNTED if name in row["by_prompt"]}
    return {**row, "quantities": counted, "by_prompt": shares, "disturbed_by": None}


def _commit(record: RunRecord) -> str | None:
    """The commit, in 12 digits, with '+changes' where the tree differed from it."""
    digits, plus, changes = (record["environment"]["commit"] or "").partition("+")
    return digits[:12] + plus + changes or None


def _quantities(record: RunRecord, timed: bool) -> dict[Quantity, tuple[float, Floats]]:
    """Value and contributions of each prompt of the quantities that a record has."""
    prompts, summary = record["prompts"], record["summary"]
    found: dict[Quantity, tuple[float, Floats]] = {
        "alpha": _ratio([[sum(p["beta"]), len(p["beta"])] for p in prompts], [1, -1]),
        "tokens_per_pass": _ratio([_emitted(p) for p in prompts], [1, -1]),
    }
    if not timed:
        return found
    if summary["speedup_measured"] is not None:
        found["speedup"] = _ratio([times_of(p, ("decode_s",)) for p in prompts], [1, -1, -1, 1])
    if summary["c"]:
        found["c"] = _ratio([columns_of_c(p) for p in prompts], POWERS_OF_C)
    found["v"] = _ratio([columns_of_part(p, "verify_s") for p in prompts], POWERS_OF_V)
    return {name: one for name, one in found.items() if one[0] > 0 or name == "alpha"}


def _emitted(prompt: PromptRecord) -> list[int]:
    passes = prompt["speculative"]["passes"]
    return [sum(one["emitted"] for one in passes), len(passes)]


def _ratio(columns: Sequence[Sequence[float]], powers: Sequence[int]) -> tuple[float, Floats]:
    """The product of column totals to these powers, and each prompt's contribution: its share less that of the mean."""
    columns_NK, powers_K = np.asarray(columns, float), np.asarray(powers, float)
    totals = columns_NK.sum(0)
    if (totals <= 0).any():
        return 0.0, np.zeros(len(columns_NK))
    return float(np.prod(totals**powers_K)), len(columns_NK) * (columns_NK / totals * powers_K).sum(-1)


def _estimate(value: float, shares: Floats) -> Estimate:
    """A value to six digits, and its interval over prompts."""
    if len(shares) < 2 or value <= 0:
        return (_short(value), None, None)
    reach = REACH * math.sqrt(_variance(shares))
    return (_short(value), _short(value * math.exp(-reach)), _short(value * math.exp(reach)))


def _variance(shares: Floats) -> float:
    """The variance of the log of a value whose prompts contribute `shares`."""
    return float((shares**2).sum() / (len(shares) * (len(shares) - 1)))


def _short(value: float) -> float:
    return float(f"{value:.6g}")


# Two measurements, or two groups of them.


@dataclass(frozen=True)
class Change:
    """A ratio after / before with its 95% interval, and the p of 'nothing changed'.

    Infinite where the quantity was 0, which only α can be. `paired`: prompts in both, or 0.
    """

    ratio: float
    low: float
    high: float
    p: float
    paired: int


def change(before: Sequence[Measurement], after: Sequence[Measurement], name: Quantity) -> Change | None:
    """The change of a quantity from the mean of some measurements to that of others.

    None where one side lacks the quantity, or prompts are too few for an error.
    """
    sides = [[row for row in side if name in row["quantities"]] for side in (before, after)]
    if not all(sides):
        return None
    values = [[row["quantities"][name][0] for row in side] for side in sides]
    if min(map(min, values)) <= 0:
        old, new = values[0][-1], values[1][-1]
        ratio = new / old if old > 0 else 1.0 if new == old else math.inf
        return Change(ratio, ratio, ratio, float(new == old), 0)
    first, second = (float(np.mean(np.log(side))) for side in values)
    effect = second - first
    parts, paired = _over_prompts(sides, name)
    if parts is None:
        return None
    if name in BETWEEN:
        between = sum(sum(_between(row, name) for row in side) / len(side) ** 2 for side in sides)
        parts.append((between, PROCESSES - 1))
    variance = sum(part for part, _ in parts)
    if abs(effect) < 1e-5 or variance == 0:  # equal to the digits of a measurement
        return Change(1.0, 1.0, 1.0, 1.0, paired)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)  # Satterthwaite 1946
    error = math.sqrt(variance)
    reach = _student(REACH, freedom) * error
    p = math.erfc(_normal(abs(effect) / error, freedom) / math.sqrt(2))
    return Change(math.exp(effect), math.exp(effect - reach), math.exp(effect + reach), p, paired)


def _between(row: Measurement, name: Quantity) -> float:
    """The variance between processes of a measurement, which may be the mean over several.

    What a few processes say of their own spread is uncertain, and counts only where it is above BETWEEN.
    """
    own = row.get("between", 0.0) if name == "speedup" else 0.0
    return max(BETWEEN[name], own) ** 2 / row.get("runs", 1)


Part = tuple[float, float]  # a variance, and its degrees of freedom


def _over_prompts(sides: Sequence[Sequence[Measurement]], name: Quantity) -> tuple[list[Part] | None, int]:
    """The variance of a change over prompts, and how many are paired; None where there are too few prompts."""
    rows = [row for side in sides for row in side]
    if not any(name in row["by_prompt"] for row in rows):
        return [], 0
    shares = [[np.array(row["by_prompt"].get(name, ()), float) / PER_UNIT for row in side] for side in sides]
    fewest = min(len(one) for side in shares for one in side)
    if fewest < 2:
        return None, 0
    rounding = sum(1 / (12 * PER_UNIT**2 * len(side)) for side in shares)
    if len({(row["prompts"], len(row["by_prompt"][name])) for row in rows}) == 1:
        apart = np.mean(shares[1], axis=0) - np.mean(shares[0], axis=0)
        return [(_variance(apart) + rounding / fewest, fewest - 1)], fewest
    return [(float(np.mean([_variance(one) for one in side])), min(map(len, side)) - 1) for side in shares], 0


def _normal(t: float, freedom: float) -> float:
    """The standard normal deviate as rare as this value of Student's t (Wallace 1959), to 6% of p from 5 degrees on."""
    return (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))


def _student(z: float, freedom: float) -> float:
    """The inverse of `_normal`."""
    scaled = z * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(scaled * scaled / freedom))


def adjusted(ps: Sequence[float]) -> list[float]:
    """p after the correction of Benjamini and Hochberg: the least share of false discoveries at which each counts."""
    order = np.argsort(ps)[::-1]
    ranks = np.arange(len(ps), 0, -1)
    least = np.minimum.accumulate(np.minimum(1.0, np.asarray(ps, float)[order] * len(ps) / ranks))
    found = np.empty(len(ps))
    found[order] = least
    return [float(one) for one in found]


# Records against a baseline.


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
        untimed: records compared by α and tokens per pass alone, since they are of other hardware, or the row has no
            times.
        missing: rows of the baseline of this kind of device whose config no record has.
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
    """The rows of a new baseline: those of `before`, each replaced by the newest measurement of its config and machine.

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
                parts, _ = _over_prompts([[a], [b]], name)
                variances.append(apart**2 - sum(part for part, _ in parts or ()))
    return math.sqrt(max(0.0, float(np.mean(variances)) / 2)) if variances else 0.0


# The history of one config on one machine.


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

    A history is split where the two sides differ most (binary segmentation: Scott and Knott 1974), p being that of the
    most different sides times the number of places (Bonferroni), and each side again. All are corrected together, so
    that without any change the probability of a single step is at most `FALSE_ALARMS`.
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
    """The tests of a history: its best split and, where that is certain on its own, those of either side."""
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
