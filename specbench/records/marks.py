"""Runs whose numbers need a remark: completions that nothing proves to be the target's own, and completions that loop.

Unproved are records made before records held a proof, and runs too small for their proof to find a fault
(docs/method.md).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specbench.formatting import interval_of
from specbench.records.schema import Row

# Runs of which many completions loop, in words: on such text any draft looks good (docs/run.md).


MOST_LOOPING = 0.05  # share of looping completions, above which a speedup has a mark
LOOPING = "loops: completions repeat a phrase at once, and any draft looks good on them (docs/run.md)"


def many_loop(row: Row) -> bool:
    """Whether more than `MOST_LOOPING` of a run's completions loop; False where that is not known or not measured."""
    share = row.get("looping")
    return not row.get("simulated") and isinstance(share, float) and share > MOST_LOOPING  # NaN is not above


def why_loops(row: Row) -> str | None:
    """'63% of completions loop, 2.10 (2.00–2.20) without them' for a run with many loops; otherwise None."""
    if not many_loop(row):
        return None
    without = row.get("speedup_without_loops")
    known = without is not None and without == without  # NaN where a frame has no value
    said = f"{interval_of(row, 'speedup_without_loops')} without them" if known else "no speedup without them"
    return f"{row['looping']:.0%} of completions loop, {said}"


def remarks_on_loops(rows: Iterable[Row]) -> list[str]:
    """What the marks of runs with many loops mean."""
    return [LOOPING] if any(map(many_loop, rows)) else []


# Where the passes of a run went on: in one call of the engine, or in Python after each.


IN_C, IN_PYTHON = "in C", "in Python"
PASSES_RUN = (
    "passes: in C, the engine runs whole passes in one call; in Python, each pass returns to Python, which may take as "
    "long as steps of a small model. A ranking across the two compares loops, not drafts or rules"
)


OF_ONE_MODEL = ("model", "quantised")  # kinds of draft whose tokens a model of their own chooses one by one
BY_ARGMAX = ("block", "match", "onehot", "typical")  # rules that are Algorithm 1 at T = 0


def passes_run(row: Row, config: Mapping[str, Any]) -> str:
    """Where the passes of a record ran (docs/engines.md#captured-steps), from its config: records do not say it.

    `native` runs whole passes in one call for a draft model of its own at a constant gamma, one prompt at a time, by
    Algorithm 1's rule (or any that is the argmax at T = 0), without a tree, a confidence, a window, min-p or processed
    logits. It cannot for a model whose step is not one program of kernels, which a config does not tell.
    """
    draft, sampling = config.get("draft") or {}, config.get("sampling") or {}
    plain = draft.get("kind", "model") in OF_ONE_MODEL and draft.get("confidence") is draft.get("window") is None
    by_argmax = row.get("temperature") == 0 and str(row.get("accept")).partition(" ")[0] in BY_ARGMAX
    by_rule = (row.get("accept", "exact") == "exact" or by_argmax) and sampling.get("min_p") is None
    alone = (row.get("batch") or 1) == 1 and not row.get("tree") and isinstance(row.get("gamma"), int)
    own = not row.get("vocabulary") and not row.get("processing") and not row.get("simulated")
    learns = row.get("learnt_positions") is not None
    whole = row.get("engine") == "native" and plain and by_rule and alone and own and not learns
    return IN_C if whole else IN_PYTHON


# Runs of a contended machine, whose times are left out of tables and figures.


AGAIN = "specbench results --again"  # measures them again


def contended(run_ids: Sequence[str]) -> list[str]:
    """Which runs are left out since the machine was contended, and the command that repeats them."""
    if not run_ids:
        return []
    names = ", ".join(run_id.rpartition("-")[2] for run_id in run_ids)
    return [
        f"left out, since the machine was contended while they were timed: {names}; `{AGAIN}` measures them again when "
        "nothing else runs"
    ]


WEAKEST = 0.1  # total variation a token: docs/method.md says why; `certify within=` has the same default
UNPROVED = "untested: sampled before records held a test; only two greedy completions were compared (docs/method.md)"
TOO_SMALL = f"underpowered: the tests would have missed a fault of {WEAKEST} total variation per token (docs/method.md)"


def is_unproved(row: Row) -> bool:
    """Whether completions were sampled losslessly, and nothing shows that they are the target's own."""
    return _without_proof(row) or prompts_for_proof(row) is not None


def prompts_for_proof(row: Row) -> int | None:
    """About how many prompts would prove a run whose proof has too little power; None for all other runs.

    The power falls with the square root of the tokens. A run that failed its tests needs no more prompts.
    """
    power = row.get("proof_power")
    if power is None or not power > WEAKEST or not row.get("lossless", True):  # NaN where a frame has no value
        return None
    return math.ceil(int(row["prompts"]) * (float(power) / WEAKEST) ** 2)


def why_unproved(row: Row) -> str | None:
    """'untested', or 'underpowered: 75 prompts are needed'; None for a run that passed with enough power."""
    if _without_proof(row):
        return "untested"
    prompts = prompts_for_proof(row)
    return None if prompts is None else f"underpowered: {prompts} prompts are needed"


def remarks_on_proof(rows: Iterable[Row]) -> list[str]:
    """What the marks of unproved runs among `rows` mean, one line for each kind."""
    rows = list(rows)
    return explained(any(map(_without_proof, rows)), any(prompts_for_proof(row) is not None for row in rows))


def explained(older: bool, small: bool) -> list[str]:
    """The sentences under a table whose unproved records are older ones, small ones or both."""
    return [UNPROVED] * older + [TOO_SMALL] * small


def _without_proof(row: Row) -> bool:
    sampled = (row.get("temperature") or 0) > 0 and not row.get("lossy") and not row.get("simulated")
    tokens = row.get("proof_tokens")
    return sampled and (tokens is None or tokens != tokens)  # NaN where a frame has no value
