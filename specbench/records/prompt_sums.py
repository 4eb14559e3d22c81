"""What a record holds of a prompt beside its decodings: sums along them, rounding, learning, memory and energy."""

from dataclasses import dataclass, field
from typing import Annotated, NotRequired, TypedDict

from specbench.recorded import LATER


@dataclass(frozen=True)
class Difference:
    """The token that decides whether rounding explains how two completions differ that should be equal (T = 0)."""

    position: Annotated[int, "its index in the generated tokens"]
    margin: Annotated[float, "logits of the target's best token above the emitted one; older: above its second best"]
    noise: Annotated[float, "difference in logits between two ways of computing the row"]
    is_rounding: Annotated[bool, "whether rounding explains it: never a misplaced end"]
    departures: Annotated[int, "tokens that are not the target's best, up to this place if it is a fault", LATER] = 0
    misplaced_end: Annotated[bool, "the completion ends too early, or continues after its end", LATER] = False


class RuleSums(TypedDict):
    """Sums over the target's completion for a rule with an alpha of its own."""

    accept_probability: float
    total_variation: NotRequired[Annotated[float, "of a lossy rule"]]


@dataclass
class Sums:
    """Sums of one score along a text: its values, its variances given the tokens so far, and its third moments."""

    sum: float = 0.0
    variance: float = 0.0
    third: float = 0.0

    def add(self, value: float, variance: float, third: float) -> None:
        self.sum += value
        self.variance += variance
        self.third += third


@dataclass
class Evidence:
    """Sums of the proof over a sampled completion (`analysis.proof.evidence`)."""

    tokens: int = 0
    likelihood: Sums = field(default_factory=Sums)
    draft: Sums = field(default_factory=Sums)
    echo: Sums = field(default_factory=Sums)
    order: Sums = field(default_factory=Sums)
    deviation: Annotated[float, "the sum of E|log p + H|"] = 0.0
    outside: Annotated[int, "tokens to which p gives no probability"] = 0


class TreeForecast(TypedDict):
    """The expected passes of a run's trees along the target's completion (`analysis.forecast.grown_trees`)."""

    accepted: Annotated[list[float] | None, "by rank of the child: probability of acceptance, summed over the tokens"]
    passes: Annotated[float | None, "null where they cannot be computed"]


@dataclass(frozen=True)
class Lesson:
    """What a draft with `draft.online=true` learnt after a prompt. The prompt's `beta` are from the weights before."""

    rejected: Annotated[int, "drafted tokens of this prompt that were rejected"]
    positions: Annotated[
        int, "positions of this and earlier prompts that the update after this prompt learnt from; 0 without an update"
    ] = 0
    steps: Annotated[int, "of the optimiser"] = 0
    loss: Annotated[float | None, "KL(p || q) before the first step, mean over the positions; null without a step"] = (
        None
    )
    seconds: Annotated[float, "seconds of learning, including the update of captured steps"] = 0.0
    timed: Annotated[bool, "whether they are part of the speculative decode_s"] = False


class UsedRecord(TypedDict):
    """What one decoding of a prompt used beside time; in a batch the prompt's share of its group's energy."""

    peak_bytes: NotRequired[Annotated[int, "of the CUDA allocator, or of the process (VmHWM), both models loaded"]]
    joules: NotRequired[Annotated[float, "of the GPU (NVML), or of the processor's packages (RAPL)"]]
