"""A run's waterfall in words: the largest loss first, with numbers; and what a given speedup would take."""

import numpy as np

from specbench.analysis.explain import Need, Waterfall, passes_of_texts, speedup_with_longer_prompts
from specbench.analysis.explain.loop import LoopShare
from specbench.records.steps import Step, StepName

TINY = 0.005  # a factor this close to 1 gets no sentence
LONGER = 4  # times the completions', or the prompts', length: the example printed beside the cost of ends and prefill
NAMES: dict[StepName, str] = {
    "rejections": "rejections (α, Eq. 1)",
    "rule": "the rule's α",
    "shape": "by position",
    "ends": "completions end",
    "positions": "positions not independent",
    "drafting": "drafting (c)",
    "verification": "verification (v)",
    "overhead": "accepting",
    "rest": "unexplained",
    "start": "encoder and prefill",
}
QUANTITIES = {"tokens_per_pass": "tokens per pass", "alpha": "α", "c": "c", "verify_cost": "v"}
LITTLE = 0.002  # a share that is not worth a word
DIGITS = {"tokens_per_pass": 2, "alpha": 3, "c": 3, "verify_cost": 2}


def name(step: StepName, found: Waterfall) -> str:
    """A step's name in tables."""
    return "levels of the tree" if step == "shape" and found.sample.tree else NAMES[step]


def sentences(found: Waterfall) -> list[str]:
    """A sentence for each step that costs speed, the largest loss first.

    Then encoder and prefill, then the data that the record lacks.
    """
    before = _before(found)
    lines = []
    for step in found.levers:
        if step.factor.value < 1 - TINY:
            lines.append(_sentence(step, before[step.step], found))
            lines += _least(found) if step.step == "verification" else []
    start = found.steps[-1]
    if abs(start.factor.value - 1) >= TINY:
        said = f"encoder and prefill: {start.speedup:.2f}× end to end instead of {before['start']:.2f}×"
        lines.append(said + _longer_prompts(found))
    if (read := found.sample.experts_read) is not None:
        lines.append(_experts(read, found))
    if layers := found.sample.recurrent_layers:
        lines.append(
            f"{layers} layers of the target are recurrent: their states are computed one token after another, which is "
            "part of v; the state after each token is held, so that a rejection costs no further reading"
        )
    return lines + found.sample.missing


def largest(found: Waterfall) -> str | None:
    """The largest loss in a line; None if no step costs speed."""
    if not found.levers:
        return None
    step, now = found.levers[0], found.measured.value
    cost, would = float(found.levels.costs.get(step.step, 0.0)), f"would give {step.alone:.2f}× instead of {now:.2f}×"
    said: dict[StepName, str] = {
        "rejections": f"rejections; a draft that is always accepted {would}",
        "drafting": f"drafting, {cost:.2f} target steps per pass; a free draft {would}",
        "verification": f"verification, {cost:.2f} target steps per pass; v = 1 {would}",
        "ends": f"ends of completions; completions without an end {would}",
        "overhead": f"accepting, {cost:.2f} target steps per pass; accepting in no time {would}",
    }
    return said.get(step.step, f"{name(step.step, found)}; a run without it {would}")


def needed(speedup: float, rows: list[Need]) -> list[str]:
    """The values that would give a speedup, one quantity at a time."""
    return [f"a speedup of {speedup:g} {_needed(row)}" for row in rows]


def of_loop(loop: LoopShare | None) -> list[str]:
    """The share of the loop around the models, and the speedup on slower models; nothing if it takes little."""
    if loop is None or loop.share < TINY:
        return []
    slower = ", ".join(f"{speedup:.2f}×" for speedup in loop.at_step_ms.values())
    steps = ", ".join(f"{ms:g}" for ms in loop.at_step_ms)
    return [
        f"the loop around the models takes {100 * loop.share:.0f}% of a pass ({loop.ms:.2f} ms): in no time "
        f"{loop.without:.2f}×; as it is, {slower} where a target step takes {steps} ms and forward passes keep their "
        "ratio to it"
    ]


def _needed(row: Need) -> str:
    called, digits = QUANTITIES[row.quantity], DIGITS[row.quantity]
    now = f"{called} is {row.now:.{digits}f}"
    if row.why:
        return f"with only {called} changed: unknown, since {row.why}"
    if row.needed is None:
        return f"with only {called} changed: not possible, {row.limit:g} gives {row.most:.2f} ({now})"
    return f"with only {called} changed: {row.needed:.{digits}f} ({now})"


def _before(found: Waterfall) -> dict[StepName, float]:
    """The speedup before each step."""
    values = [found.ideal, *(step.speedup for step in found.steps)]
    return {step.step: before for step, before in zip(found.steps, values, strict=False)}


def _sentence(step: Step, before: float, found: Waterfall) -> str:
    """The cost of a step, its cause, and the speedup without it."""
    totals, levels = found.sample.totals, found.levels
    passes, drafted = float(totals["passes"]), float(totals["drafted"])
    fewer, alone = f"{step.speedup:.2f} tokens per pass instead of {before:.2f}", f"would give {step.alone:.2f}×"
    cost, step_ms = float(levels.costs.get(step.step, 0.0)), float(levels.step_ms)  # in target steps
    if step.step == "rejections":
        alpha = float(totals["beta"] / totals["scored_tokens"])
        return f"rejections: α = {alpha:.3f} leaves {fewer}; α = 1 {alone}"
    if step.step == "ends":
        length = float(totals["ours_tokens"]) / len(found.sample.columns["passes"])
        return (
            f"completions of {length:.0f} tokens end inside passes: {fewer} ({_longer(found):.2f} with completions of "
            f"{LONGER * length:.0f} tokens); endless completions {alone}"
        )
    if step.step == "shape":
        shares = ", ".join(f"{chance:.2f}" for chance in np.asarray(levels.chances)[:4])
        return f"acceptance differs by position ({shares}): {fewer}; the same at each position {alone}"
    if step.step == "positions":
        return f"acceptances are correlated: {fewer}; independent acceptances {alone}"
    if step.step == "drafting":
        return (
            f"drafting {drafted / passes:.1f} tokens takes {cost:.2f} target steps per pass ({cost * step_ms:.2f} ms, "
            f"c = {cost * passes / drafted:.3f}); a free draft {alone}"
        )
    if step.step == "verification":
        return (
            f"verifying {drafted / passes + 1:.1f} tokens takes {cost:.2f} target steps per pass instead of 1 "
            f"({(cost - 1) * step_ms:.2f} ms more); v = 1 {alone}"
        )
    if step.step == "overhead":
        took = f"{cost:.2f} target steps per pass ({cost * step_ms:.2f} ms)"
        return f"accepting takes {took}; accepting in no time {alone}"
    holds = "; ".join(_unexplained(found))
    said = f"unexplained: {step.speedup:.2f}× instead of {before:.2f}×; a run without it {alone}"
    return f"{said}; it holds {holds}" if holds else said


def _unexplained(found: Waterfall) -> list[str]:
    """The parts of the factor that no step explains, in words; nothing if each part is below `LITTLE`."""
    totals = found.sample.totals
    timed = sum(totals[name] for name in ("drafting_s", "verifying_s", "accepting_s"))
    levels = found.levels
    counted, said = float(levels.tokens_per_pass), float(levels.after["overhead"] * sum(levels.costs.values()))
    lines = []
    if abs(counted / said - 1) > LITTLE:
        lines.append(f"passes that emitted {counted:.2f} tokens, where the rows above say {said:.2f}")
    for way, other, whole in (
        ("with the draft, outside of passes (the loop between them, learning)", totals["ours_other_s"], timed),
        ("of the target alone, outside of its steps", totals["baseline_other_s"], totals["steps_s"]),
    ):
        if (share := float(other / (whole + other))) > LITTLE:
            lines.append(f"{100 * share:.1f}% of the time {way}")
    return lines


def _experts(read: float, found: Waterfall) -> str:
    """How many experts a pass reads, and v if it takes as many times its least time as a step."""
    line, least, gamma = f"verification reads {read:.1f} times the experts of a step", found.sample.roofline, None
    if not found.sample.tree:
        gamma = found.sample.gamma
    if least is None or gamma is None:
        return line
    return f"{line}; by their bytes v({gamma + 1}) = {least.verify_cost(gamma + 1, read):.2f}"


def _least(found: Waterfall) -> list[str]:
    """The least time of verifying a pass's tokens on this device, and which of the two bounds binds.

    Nothing if a step was faster than that: its weights came from a cache that the copy did not fit into.
    """
    least, totals = found.sample.roofline, found.sample.totals
    if least is None or least.of_run(1) > float(found.levels.step_ms):
        return []
    tokens = float(totals["drafted"] / totals["passes"]) + 1
    binds = f"up to Ω = {least.turning:.1f} tokens, reading the weights takes longer than multiplying"
    if tokens > least.turning:
        binds = f"from Ω = {least.turning:.1f} tokens on, multiplying takes longer than reading the weights"
    run = least.of_run(tokens, found.sample.experts_read or 1.0)
    return [f"bound on this device: a step takes {least.of_run(1):.2f} ms at least, these tokens {run:.2f} ms; {binds}"]


def _longer_prompts(found: Waterfall) -> str:
    """The effect of longer prompts on the speedup end to end; nothing if no prompt is read before the first step."""
    totals, prompts = found.sample.totals, len(found.sample.columns["passes"])
    tokens = float(totals["prompt_tokens"]) / prompts
    if tokens < 1:
        return ""
    longer = speedup_with_longer_prompts(totals, LONGER)
    return (
        f"; {longer:.2f}× with prompts of {LONGER * tokens:.0f} tokens instead of {tokens:.0f}, if a token of a prompt "
        "takes as long and decoding is as fast"
    )


def _longer(found: Waterfall) -> float:
    """Tokens a pass, before the step 'positions', if completions were `LONGER` times as long."""
    made, totals = found.sample, found.sample.totals
    lengths = [length * LONGER for length in made.lengths]
    counts = {
        f"texts of {longer}": totals[f"texts of {length}"] for length, longer in zip(made.lengths, lengths, strict=True)
    }
    return float(LONGER * totals["ours_tokens"] / passes_of_texts(lengths, counts, found.levels.chances))
