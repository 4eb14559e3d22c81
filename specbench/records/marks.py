"""Runs whose numbers need a remark: completions that nothing proves to be the target's own, and completions that loop.

Records made before records held a proof are unproved, and so are runs too small for their proof to find a fault
(docs/losslessness.md).
"""

import math
from collections.abc import Iterable

from specbench.records.run_record import Row

WEAKEST = 0.1  # total variation a token: docs/losslessness.md says why; `certify within=` has the same default
UNPROVED = (
    "untested: sampled before records held a test; only two greedy completions were compared (docs/losslessness.md)"
)
TOO_SMALL = (
    f"underpowered: the tests would have missed a fault of {WEAKEST} total variation per token (docs/losslessness.md)"
)


def is_unproved(row: Row) -> bool:
    """Whether completions were sampled losslessly, and nothing shows that they are the target's own."""
    return _without_proof(row) or prompts_for_proof(row) is not None


def prompts_for_proof(row: Row) -> int | None:
    """About how many prompts would prove a run whose proof has too little power; None for all other runs.

    The power falls with the square root of the tokens. A run that failed its tests needs no more prompts.
    """
    power = row.get("proof_power")
    if power is None or not power > WEAKEST or not row.get("lossless", True):  # NaN if a frame has no value
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
    return sampled and (tokens is None or tokens != tokens)  # NaN if a frame has no value
