"""Whether a record agrees with itself: its passes with its completions, and its summary with its prompts.

Tables read the stored summary, and `specbench compare --baseline` computes its quantities from the prompts: each would
miss an error in the other's input.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from specbench.analysis.acceptance.by_position import levels
from specbench.analysis.costs import rows_of
from specbench.analysis.summary import times_of
from specbench.records.run_record import PromptRecord, Row, RunRecord
from specbench.records.served import is_served
from specbench.stats import ratio_of_ratios

NEAR = 1e-5  # relative: times are stored in rounded seconds


def contradictions(record: RunRecord) -> list[str]:
    """The contradictions in a record, one line each; empty for a sound record."""
    if is_served(record):  # its passes are not seen one by one
        return []
    summary: Row = dict(record["summary"])
    prompts = record["prompts"]
    lines = [line for prompt in prompts for line in _within(prompt)]
    for name, value in computed_again(prompts).items():
        said = summary.get(name)
        if said is not None and not math.isclose(float(said), value, rel_tol=NEAR, abs_tol=1e-9):
            lines.append(f"its summary says {name} {said:.6g}, its prompts {value:.6g}")
    return lines


def computed_again(prompts: Sequence[PromptRecord]) -> dict[str, float]:
    """Columns of the summary that have one formula, from the prompts."""
    passes = [one for prompt in prompts for one in prompt["speculative"].passes]
    betas = [beta for prompt in prompts for beta in prompt["beta"]]
    rows = [of for prompt in prompts for of in rows_of(prompt["speculative"])]  # a pass of several rows counts once
    steps = [
        (step, of)
        for prompt in prompts
        for step, of in zip(prompt["baseline"].steps_s, rows_of(prompt["baseline"]), strict=True)
    ]
    step_s = sum(step / of for step, of in steps) / sum(1 / of for _, of in steps)
    drafting_s, verifying_s, accepting_s = (
        sum(getattr(one, part) / of for one, of in zip(passes, rows, strict=True)) / sum(1 / of for of in rows)
        for part in ("draft_s", "verify_s", "accept_s")
    )
    drafted = sum(one.drafted for one in passes)
    found = {
        "prompts": len(prompts),
        "passes": len(passes),
        "tokens": sum(len(prompt["baseline"].tokens) for prompt in prompts),
        "alpha": sum(betas) / len(betas),
        "tokens_per_pass": sum(one.emitted for one in passes) / len(passes),
        "drafted_per_pass": drafted / len(passes),
        "target_step_s": step_s,
        "verify_cost": verifying_s / step_s,
        "overhead": accepting_s / step_s,
        "speedup_measured": float(ratio_of_ratios(np.sum([times_of(p, ("decode_s",)) for p in prompts], axis=0))),
    }
    if drafted:
        found["accepted_per_drafted"] = sum(one.accepted for one in passes) / drafted
        found["c"] = drafting_s / (sum(map(levels, passes)) / len(passes)) / step_s
    return found


def _within(prompt: PromptRecord) -> Iterator[str]:
    """Contradictions between a prompt's passes and its other numbers."""
    passes, tokens = prompt["speculative"].passes, len(prompt["speculative"].tokens)
    emitted = sum(one.emitted for one in passes)
    if emitted != tokens:
        yield f"prompt {prompt['index']}: its passes emitted {emitted} tokens, its completion has {tokens}"
    for number, one in enumerate(passes, 1):
        if not (one.accepted <= one.drafted and one.accepted <= one.emitted <= one.accepted + 1):
            counts = f"{one.drafted} drafted, {one.accepted} accepted, {one.emitted} emitted"
            yield f"prompt {prompt['index']}, pass {number}: {counts}"
