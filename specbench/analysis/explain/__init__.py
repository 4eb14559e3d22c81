"""Factors of a run's speedup, from the ideal gamma + 1 to the measured speedup.

Ideally every draft token is accepted and a pass costs one target step. The losses, in order:

- rejections: Eq. 1 from alpha
- rule: the alpha of the rule instead, if it has its own: match, onehot, or a lossy rule
- shape: the acceptance at each position instead of one alpha, if a draft agrees less the further ahead it drafts; for a
  tree, the acceptance at each of its levels
- ends: completions end inside passes (`analysis.forecast.passes_to_come`; if acceptance differs by position, with
  the room that each pass had)
- positions: easy and hard stretches, by a walk along the completions with the beta of each token (only Algorithm 1's:
  no record holds what another rule, or a tree, would do at each token)
- drafting, verification, overhead: the cost of a pass, in mean steps of the target alone
- rest: unexplained; the product up to here is exactly the measured speedup
- start: encoder and prefill of both models; with it the product is the speedup end to end

A walltime is a sum, so costs are means over passes, as a run's c and v are.
Pure arithmetic over what a record holds; no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.distinct import groups_of
from specbench.analysis.explain.totals import Sample, sample
from specbench.analysis.forecast import expected_by_position, passes_to_come
from specbench.records.run_record import RunRecord
from specbench.records.steps import Explanation, Step, StepName
from specbench.stats import Interval, Jackknife, Scale, grouped

Floats = NDArray[np.float64]
Quantity = Literal["tokens_per_pass", "alpha", "c", "verify_cost"]
TINY = 1e-5
LEAST_V = 1.0  # a pass over several tokens costs no less than a step
ROUNDING = 1e-6  # of times that are kept to the microsecond


@dataclass(frozen=True)
class Levels:
    """The speedup after each step, for one choice of the prompts or for many (leading axes)."""

    ideal: Floats
    after: dict[StepName, Floats]
    step_ms: Floats  # milliseconds of the target alone, per token
    chances: Floats  # [..., depth]: acceptance at each position, as far as the ends know it
    tokens_per_pass: Floats
    costs: dict[StepName, Floats]  # drafting, verification, overhead: of the mean pass, in mean steps

    @property
    def measured(self) -> Floats:
        return self.after["rest"]


@dataclass(frozen=True)
class Waterfall:
    """A run's steps, and the numbers that words about them need."""

    ideal: float
    steps: list[Step]
    measured: Interval
    end_to_end: Interval
    sample: Sample
    levels: Levels

    @property
    def levers(self) -> list[Step]:
        """The steps that cost speed while decoding, first the one whose removal by itself would gain most."""
        losing = [step for step in self.steps if step.alone is not None and step.step != "start"]
        return sorted(losing, key=lambda step: -(step.alone or 0.0))

    @property
    def explanation(self) -> Explanation:
        """The part of it that a record holds."""
        return Explanation(
            self.ideal, self.steps, self.measured, self.end_to_end,
            levers=[one.step for one in self.levers], missing=self.sample.missing,
        )  # fmt: skip


def is_explained(record: RunRecord) -> bool:
    """Whether a run has a speedup to explain; a batch, whose passes have several rows, is not explained."""
    return record["summary"]["speedup_measured"] is not None and record["config"].get("batch", 1) == 1


def waterfall(record: RunRecord, intervals: bool = True) -> Waterfall:
    """The waterfall of a record, with 95% intervals over prompts, and over the steps and passes within them.

    Those of the speedups are the record's, which know of its processes and looks.
    """
    made = sample(record)
    names = list(made.columns)
    rows = np.stack([made.columns[name] for name in names], axis=-1)
    variances = np.stack([made.variances.get(name, np.zeros(len(rows))) for name in names], axis=-1)
    groups = groups_of(record["prompts"])
    moved = Jackknife.of(grouped(rows, groups), grouped(variances, groups))
    one = speedup_levels(made, made.totals)
    with np.errstate(divide="ignore", invalid="ignore"):
        many = speedup_levels(made, dict(zip(names, np.moveaxis(moved.totals_PK, -1, 0), strict=True)))

    def interval(value: Floats, values_P: Floats, scale: Scale = "ratio") -> Interval:
        found = float(value)
        return moved.interval(found, values_P, scale=scale) if intervals else Interval(found, None, None)

    steps, before, before_P = list[Step](), one.ideal, many.ideal
    for name, level in one.after.items():
        level_P = many.after[name]
        added, added_P = one.step_ms * (1 / level - 1 / before), many.step_ms * (1 / level_P - 1 / before_P)
        steps.append(
            Step(
                name,
                interval(level / before, level_P / before_P),
                float(level),
                interval(added, added_P, "difference"),
                speedup_without(made, one, name, float(level / before)),
            )
        )
        before, before_P = level, level_P
    measured, whole = (Interval(float(one.after[name]), None, None) for name in ("rest", "start"))
    summary = record["summary"]
    if intervals:
        measured = replace(measured, low=summary["speedup_low"], high=summary["speedup_high"])
        whole = replace(whole, low=summary["speedup_end_to_end_low"], high=summary["speedup_end_to_end_high"])
    return Waterfall(float(one.ideal), steps, measured, whole, made, one)


def speedup_levels(made: Sample, totals: dict[str, Floats]) -> Levels:
    """The speedups after each step, from totals over prompts."""
    passes = totals["passes"]
    after: dict[StepName, Floats] = {}
    alpha = totals["beta"] / totals["scored_tokens"]
    ideal, tokens = _of_alpha(made, totals, alpha)
    after["rejections"] = tokens
    chances = same_at_every_position(alpha, made.depth)
    if made.ruled:
        alpha = totals["rule"] / totals["scored_tokens"]
        after["rule"] = tokens = _of_alpha(made, totals, alpha)[1]
        chances = same_at_every_position(alpha, made.depth)
    if made.gamma is not None and (made.falls_with_position or made.tree):
        chances = _by_position(made, totals)
        after["shape"] = tokens = expected_by_position(chances)
    if made.gamma is not None:
        needed = passes_of_texts(made.lengths, totals, chances)
        tokens = with_their_room(made, totals, chances) if made.falls_with_position else totals["ours_tokens"] / needed
        after["ends"] = tokens
        if "walked" in totals:
            after["positions"] = tokens = tokens * needed / totals["walked"]
    tokens_per_pass = totals["ours_tokens"] / passes
    step_s = totals["steps_s"] / totals["baseline_tokens"]
    costs: dict[StepName, Floats] = {
        "drafting": totals["drafting_s"] / passes / step_s,
        "verification": totals["verifying_s"] / passes / step_s,
        "overhead": totals["accepting_s"] / passes / step_s,
    }
    after["drafting"] = tokens / (1 + costs["drafting"])
    after["verification"] = tokens / (costs["drafting"] + costs["verification"])
    after["overhead"] = tokens / sum(costs.values())
    baseline_s = totals["steps_s"] + totals["baseline_other_s"]
    ours_s = totals["drafting_s"] + totals["verifying_s"] + totals["accepting_s"] + totals["ours_other_s"]
    per_token = totals["ours_tokens"] / totals["baseline_tokens"]
    after["rest"] = baseline_s / ours_s * per_token
    after["start"] = (baseline_s + totals["baseline_start_s"]) / (ours_s + totals["ours_start_s"]) * per_token
    step_ms = 1000 * baseline_s / totals["baseline_tokens"]
    return Levels(ideal, after, step_ms, chances, tokens_per_pass, costs)


def speedup_with_longer_prompts(totals: Mapping[str, Floats], longer: float) -> float:
    """The speedup end to end if both models took `longer` times as long to read the prompts."""
    baseline_s = totals["steps_s"] + totals["baseline_other_s"] + longer * totals["baseline_start_s"]
    ours_s = totals["drafting_s"] + totals["verifying_s"] + totals["accepting_s"] + totals["ours_other_s"]
    per_token = totals["ours_tokens"] / totals["baseline_tokens"]
    return float(baseline_s / (ours_s + longer * totals["ours_start_s"]) * per_token)


def speedup_without(made: Sample, levels: Levels, name: StepName, factor: float) -> float | None:
    """The speedup if only the step `name` were removed; None if it costs nothing.

    For rejections and costs everything else is as measured; for the other steps it is the speedup without their factor,
    which depends on the steps before.
    """
    if factor >= 1 - ROUNDING:
        return None
    measured, spent = float(levels.measured), float(sum(levels.costs.values()))
    if name == "rejections":
        return measured * float(_all_accepted(made, levels) / levels.tokens_per_pass)
    if name in levels.costs:
        usual = 1.0 if name == "verification" else 0.0
        return measured * spent / (spent - float(levels.costs[name]) + usual)
    return measured if name == "start" else measured / factor


def _all_accepted(made: Sample, levels: Levels) -> Floats:
    """Tokens a pass if every drafted token were accepted: the ends of completions are left."""
    if made.gamma is None:
        return levels.ideal
    totals = made.totals
    accepted: Floats = totals["ours_tokens"] / passes_of_texts(made.lengths, totals, np.ones(made.depth))
    return accepted


def _of_alpha(made: Sample, totals: dict[str, Floats], alpha: Floats) -> tuple[Floats, Floats]:
    """The ideal, and tokens per pass by Eq. 1; if gamma changed, means over the passes as they were."""
    if made.gamma is not None:
        tokens = expected_by_position(same_at_every_position(alpha, made.gamma))
        return np.full_like(tokens, made.gamma + 1.0), tokens
    gammas = np.arange(made.depth + 1)
    counts = np.stack([totals[f"passes of {gamma}"] for gamma in gammas], axis=-1)
    tokens = np.stack([expected_by_position(same_at_every_position(alpha, int(gamma))) for gamma in gammas], axis=-1)
    return (counts * (gammas + 1)).sum(-1) / counts.sum(-1), (counts * tokens).sum(-1) / counts.sum(-1)


def same_at_every_position(alpha: Floats, depth: int) -> Floats:
    """`alpha` at every position: [..., depth]."""
    return np.repeat(np.asarray(alpha)[..., None], depth, axis=-1)


def _by_position(made: Sample, totals: dict[str, Floats]) -> Floats:
    reached = np.stack([totals[f"reached {place}"] for place in range(1, made.depth + 1)], axis=-1)
    accepted = np.stack([totals[f"accepted {place}"] for place in range(1, made.depth + 1)], axis=-1)
    return np.divide(accepted, reached, out=np.zeros_like(accepted), where=reached > 0)


def with_their_room(made: Sample, totals: dict[str, Floats], chances: Floats) -> Floats:
    """Tokens a pass with these probabilities at each position, in passes with the room that each had."""
    rooms = np.stack([totals[f"room for {room}"] for room in range(made.depth + 1)], axis=-1)
    further = 1 + np.cumsum(np.cumprod(chances, axis=-1), axis=-1)
    expected = np.concatenate([np.ones((*chances.shape[:-1], 1)), further], axis=-1)
    found: Floats = (rooms * expected).sum(-1) / rooms.sum(-1)
    return found


def passes_of_texts(lengths: Sequence[int], counts: Mapping[str, Floats], chances: Floats) -> Floats:
    """Passes that all completions need with these probabilities at each position.

    `counts` gives the number of `texts of` each length.
    """
    table = passes_to_come(chances, max(lengths))
    number = np.stack([counts[f"texts of {length}"] for length in lengths], axis=-1)
    needed: Floats = (number * table[..., list(lengths)]).sum(-1)
    return needed


@dataclass(frozen=True)
class Need:
    """The value of one quantity that would give a certain speedup, all else as measured.

    Attributes:
        now: the value measured.
        needed: the value that would give the speedup; None if no value would.
        most: the speedup at the best value, `limit`.
        why: why neither is known, if so.
    """

    quantity: Quantity
    now: float
    needed: float | None
    limit: float
    most: float | None
    why: str = ""


def needs(found: Waterfall, speedup: float) -> list[Need]:
    """The required value of each quantity, all else as measured."""
    made, levels = found.sample, found.levels
    totals, measured = made.totals, float(levels.measured)
    spent, tokens = float(sum(levels.costs.values())), float(levels.tokens_per_pass)
    drafted = float(totals["drafted"] / totals["passes"])
    saved = spent * (1 - measured / speedup)  # steps per pass that must go
    tokens_needed = tokens * speedup / measured
    drafting, checking = float(levels.costs["drafting"]), float(levels.costs["verification"])
    return [
        Need(
            "tokens_per_pass", tokens, tokens_needed if tokens_needed <= found.ideal else None, found.ideal,
            measured * found.ideal / tokens,
        ),
        _alpha(found, speedup),
        _cost("c", drafting / drafted, saved / drafted, 0.0, measured * spent / (spent - drafting))
        if drafted
        else Need("c", 0.0, None, 0.0, None, "nothing was drafted"),
        _cost("verify_cost", checking, saved, LEAST_V, measured * spent / (spent - checking + LEAST_V)),
    ]  # fmt: skip


def _cost(quantity: Quantity, now: float, saved: float, limit: float, most: float) -> Need:
    needed = now - saved
    return Need(quantity, now, needed if needed >= limit else None, limit, most)


def _alpha(found: Waterfall, speedup: float) -> Need:
    """The alpha needed: tokens per pass follow Eq. 1 and the ends; the factor of dependent positions is unchanged."""
    made = found.sample
    totals = made.totals
    now = float((totals["rule"] if made.ruled else totals["beta"]) / totals["scored_tokens"])
    if made.gamma is None or made.tree or made.falls_with_position:
        kind = "γ changed from pass to pass" if made.gamma is None else "acceptance differs from position to position"
        return Need("alpha", now, None, 1.0, None, kind)
    measured, tokens = float(found.levels.measured), float(found.levels.tokens_per_pass)

    def tokens_at(alpha: float) -> float:
        chances = same_at_every_position(np.asarray(alpha), made.depth)
        return float(totals["ours_tokens"] / passes_of_texts(made.lengths, totals, chances))

    all_accepted, scale = tokens_at(1.0), tokens / tokens_at(now)

    def speedup_at(alpha: float) -> float:
        return measured * min(tokens_at(alpha) * scale, all_accepted) / tokens

    limit = 0.0 if speedup_at(0.0) > speedup else 1.0
    return Need("alpha", now, _root(lambda alpha: speedup_at(alpha) - speedup), limit, speedup_at(limit))


def _root(rising: Callable[[float], float]) -> float | None:
    """Where a rising function of [0, 1] reaches 0; None if it does not."""
    low, high = 0.0, 1.0
    if rising(high) < 0 or rising(low) > 0:
        return None
    while high - low > TINY:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
