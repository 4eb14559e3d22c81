"""Decoded prompts whose passes, times and acceptance are known."""

from typing import Any

from specbench.records.decoded import Pass
from tests.support.made_passes import made_trace


def a_pass(emitted: int) -> Pass:
    return Pass(4, emitted - 1, emitted, draft_s=1.0, verify_s=1.0, accept_s=0.0)


def prompt(tokens: int, context: int, beta: float, category: str | None = None) -> Any:
    made: dict[str, Any] = {
        "prompt": f"{context}, {tokens}, {beta}, {category}",
        "prompt_tokens": context,
        "beta": [beta] * tokens,
        "baseline": made_trace(tokens=[5] * tokens, steps_s=[1.0] * tokens, decode_s=float(tokens)),
        "speculative": made_trace(
            tokens=[5] * tokens, decode_s=tokens / 2, passes=[a_pass(4) for _ in range(tokens // 4)]
        ),
    }  # fmt: skip
    return made | ({} if category is None else {"category": category})
