"""Faults of completions beside their tokens: copies, tokens after an end, contradictory finish reasons.

A server may also be asked to go on after an end (`ignore_eos`), or to use one seed for all requests: such a finding is
reported, and does not change the verdict on tokens. Copies do: such draws are not independent.
"""

from specbench.interop.certify.outputs import Outputs
from specbench.interop.certify.tested_rows import COPIES
from specbench.records.draft_signs import Finding

COPIED, AFTER_END, FINISH = "copies", "after end", "finish reason"
CHECKS = {
    AFTER_END: "that a pass stops at the first end among its accepted tokens, and that ignore_eos is off",
    FINISH: "where the server decides that a completion has ended: in the block, or at its last token",
}


def findings_of(found: Outputs, temperature: float) -> list[Finding]:
    """The findings of the rows of a file."""
    rows = len(found.rows) + sum(found.left_out.values())
    made = []
    if temperature and (copies := found.left_out[COPIES]):
        made.append(Finding(
            COPIED,
            f"{copies} of {rows} completions are copies of an earlier one with the same prompt, each by chance less "
            "often than once in a million: requests share random numbers, or answers are cached",
            "that each request has its own seed, and that no cache of answers is in between",
            {"copies": copies, "rows": rows},
        ))  # fmt: skip
    for (name, what), where in found.contradictions.items():
        line = f"{what} in {len(where)} of {rows} completions (first: {where[0]})"
        made.append(Finding(name, line, CHECKS[name], {"count": len(where), "rows": rows}))
    return made


def only_drafted(drafted: list[Finding], plain: list[Finding]) -> str:
    """Findings of ends that the completions without a draft do not have, in words."""
    known = {one.name for one in plain}
    return "; ".join(
        f"{one.line}, and without a draft none" for one in drafted if one.name in {AFTER_END, FINISH} - known
    )
