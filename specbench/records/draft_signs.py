"""The types of what a run shows of its draft beside alpha, and of what is probably wrong with it."""

from dataclasses import dataclass, field
from typing import Annotated


@dataclass(frozen=True)
class Signs:
    """What teacher forcing shows of the draft beside beta, along one completion (`analysis.acceptance.signs`)."""

    named: Annotated[
        list[int | None], "the draft's likeliest token at each token of the baseline's completion; null: it has none"
    ] = field(default_factory=list)
    sums: Annotated[
        dict[str, float],
        "at temperatures above 0, over the tokens: entropy_p and entropy_q in nats; flatter and sharper, beta with q "
        "at twice and at half its temperature",
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What is probably wrong with a draft (`analysis.findings`)."""

    name: Annotated[str, "one word for the kind of finding"]
    line: Annotated[str, "what was counted, and what it probably is"]
    check: Annotated[str, "what to check next"]
    evidence: Annotated[dict[str, float], "the numbers of the line"]
