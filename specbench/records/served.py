"""Records of servers that were measured from outside: what a request shows, and the summary of many.

They have the form of a run's record, so that the same commands read them. What cannot be seen from outside is null: c,
v, and if the server counts nothing α and tokens per pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from specbench.records.numbers import Names, PositionCounts
from specbench.records.units import Probability, Seconds, Times

UNKNOWN = -1  # a token whose id the server does not give
SERVED = "served"  # the key of a summary that only these records have


@dataclass
class DraftCounts:
    """Passes of a request, as the server counts them; null if it does not."""

    drafted: int
    accepted: int
    passes: int | None = None
    prompts: Annotated[int, "requests that these are of: several at once where only the server counts"] = 1
    at_position: Annotated[list[int], "passes that accepted the first, second, ... token; empty where not known"] = (
        field(default_factory=list)
    )

    def since(self, before: "DraftCounts") -> "DraftCounts":
        """What was counted since `before`."""
        at_position = [
            now - (before.at_position[place] if place < len(before.at_position) else 0)
            for place, now in enumerate(self.at_position)
        ]
        passes = None if self.passes is None or before.passes is None else self.passes - before.passes
        return replace(
            self,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            passes=passes,
            at_position=at_position,
        )


@dataclass
class Answer:
    """One request and its answer, as seen from outside."""

    tokens: Annotated[int, "as the server counts them"]
    seconds: Annotated[float, "from the request to the whole answer"]
    first_s: Annotated[float | None, "seconds to the first text; null: not streamed"]
    text: str
    ids: Annotated[list[int] | None, "token ids; null: the server did not give them"]
    finish: Annotated[str | None, "why it ended"]
    first_tokens: Annotated[int, "tokens that came first, together"] = 1
    arrivals: Annotated[list[float], "seconds at which text came"] = field(default_factory=list)
    counts: Annotated[DraftCounts | None, "of several prompts at once the counts of all, at the first of them"] = None
    counted_by: Annotated[str | None, "where the counts come from"] = None
    stop: Annotated[str | int | None, "the string or token at which it ended; null: an end, or not told"] = None
    late_s: Annotated[float, "seconds that the request was sent after it was due, with rates="] = 0.0


class ServedPrompt(TypedDict):
    """A prompt at both servers."""

    drafted: Answer
    plain: Annotated[Answer | None, "null without plain="]
    block: Annotated[int, "prompts that were asked together"]
    wall_s: Annotated[float, "its share, by tokens, of the block's seconds at the server with a draft"]
    plain_wall_s: Annotated[float | None, "the same at the other"]


class ServedSummary(Names):
    """A server in numbers: a row of `specbench results`. A low and a high bound are a 95% interval.

    It is over prompts, with several requests at once or a rate over blocks of prompts.
    """

    served: Literal[True]
    gamma: Annotated[int | None, "as given, or counted where every pass drafts as many"]
    gamma_requested: int | str
    accept: str
    batch: Annotated[int, "requests at once"]
    rate: Annotated[float | None, "requests per second; null: the next is sent when one is done"]
    prompts: int
    tokens: Annotated[int, "of the server without a draft; of the other if there is none"]
    passes: int | None
    alpha: Annotated[float | None, "acceptance probability by the server's counts (Eq. 1); null if it has none"]
    alpha_low: Probability | None
    alpha_high: Probability | None
    alpha_method: Annotated[str | None, "how α follows from the counts"]
    drafted: Annotated[int | None, "draft tokens"]
    accepted: int | None
    rejected: int | None
    accepted_per_drafted: float | None
    tokens_per_pass: float | None
    drafted_per_pass: float | None
    acceptance_by_position: list[PositionCounts]
    counted_by: Annotated[str | None, "where the counts come from: /metrics, timings, usage"]
    speedup_measured: Times | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_end_to_end: float | None
    speedup_end_to_end_low: float | None
    speedup_end_to_end_high: float | None
    ttft_s: Seconds | None
    ttft_s_baseline: Seconds | None
    ttft_p90_s: Seconds | None
    ttft_p90_s_baseline: Seconds | None
    tpot_s: Seconds | None
    tpot_s_baseline: Seconds | None
    tokens_per_second: float | None
    tokens_per_second_baseline: float | None
    late_s: Annotated[float | None, "with a rate: the longest that a request was sent late"]
    identical: Annotated[float | None, "share of completions equal to those without a draft, at T=0"]
    verdict: str
    verdict_reason: str
    verified: Annotated[bool, "whether a test shows the completions to be the target's"]
    lossless: Annotated[bool, "false where a test shows that they are not"]
    lossy: bool
    engine: str
    flags: str | None
    sent: Annotated[str, "how prompts were sent: ids, text, chat"]
    streamed: bool
    speedup_predicted: None
    speedup_calibrated: None
    prediction: None
    c: None
    verify_cost: None
    device: str
    dtype: str
    hardware: Annotated[str, "of this machine, if the server is here; of a server of others each that it may be on"]
    simulated: bool
    disturbed: Annotated[bool, "whether this machine did other work, by the pieces of streams of servers here"]
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words"]]
    processes: int
    created: str
    proof_z: NotRequired[float | None]
    proof_power: NotRequired[float | None]
    proof_tokens: NotRequired[int | None]


def is_served(record: Mapping[str, Any]) -> bool:
    """Whether a record, or its first line, is of a server measured from outside."""
    summary = record.get("summary")
    return isinstance(summary, Mapping) and bool(summary.get(SERVED))
