"""The types of what a run shows of its draft beside alpha, and of what is probably wrong with it."""

from dataclasses import dataclass
from typing import Annotated, TypedDict


class SignsRecord(TypedDict):
    """What teacher forcing shows of the draft beside beta (`analysis.acceptance.signs`)."""

    named: Annotated[
        list[int | None], "the draft's likeliest token at each token of the baseline's completion; null: it has none"
    ]
    sums: Annotated[
        dict[str, float],
        "at temperatures above 0, over the tokens: entropy_p and entropy_q in nats; flatter and sharper, beta with q "
        "at twice and at half its temperature",
    ]


@dataclass(frozen=True)
class Finding:
    """What is probably wrong with a draft (`analysis.findings`)."""

    name: Annotated[str, "one word for the kind of finding"]
    line: Annotated[str, "what was counted, and what it probably is"]
    check: Annotated[str, "what to check next"]
    evidence: Annotated[dict[str, float], "the numbers of the line"]
