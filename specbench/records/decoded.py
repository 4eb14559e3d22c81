"""The decoding of a prompt, pass by pass, with its times; and its times in each of several processes."""

from dataclasses import dataclass, field
from typing import Annotated, NotRequired, TypedDict

from specbench.recorded import OMITTED
from specbench.records.machine_record import StateRecord
from specbench.records.units import Seconds


@dataclass
class Pass:
    """One target pass of speculative decoding, and the drafting before it."""

    drafted: int
    accepted: int
    emitted: Annotated[int, "accepted + 1, minus the tokens after an end of sequence inside the block"]
    draft_s: Seconds
    verify_s: Seconds
    accept_s: Seconds
    tokens: Annotated[list[int], "the draft tokens, including rejected tokens"] = field(default_factory=list)
    draft_operations: Annotated[float | None, "arithmetic operations, where the draft counts them"] = None
    parents: Annotated[list[int] | None, "of a tree: the index of each token's parent, -1 for the root"] = None
    path: Annotated[list[int] | None, "of a tree: the indices of the accepted tokens"] = None
    experts: Annotated[
        list[int] | None, "distinct experts that the target read, by layer; in a batch: by all rows", OMITTED
    ] = None
    # The pass, in other parts; None on a device that works while the host goes on.
    draft_run_s: Annotated[float | None, "seconds of forward passes while drafting; on a CPU", OMITTED] = None
    verify_run_s: Annotated[float | None, "seconds of forward passes while verifying; on a CPU", OMITTED] = None
    loop_s: Annotated[float | None, "seconds of the loop around the forward passes; on a CPU", OMITTED] = None


@dataclass
class Trace:
    """The decoding of one prompt, with or without the draft."""

    text: str = field(default="", kw_only=True)
    tokens: list[int]
    start_s: Annotated[float, "seconds: encoder and prefill, of the draft too"]
    decode_s: Annotated[float, "seconds: everything after that; in a batch the row's share of each step or pass"]
    steps_s: Annotated[list[float], "seconds of each step of the target alone"] = field(default_factory=list)
    passes: Annotated[list[Pass], "speculative decoding: the passes of the target"] = field(default_factory=list)
    draft_start_s: Annotated[float, "seconds: the draft's part of start_s"] = 0.0
    rows: Annotated[list[int] | None, "in a batch: how many rows each step or pass had", OMITTED] = None
    passes_run: Annotated[str | None, "speculative decoding: in C, verified in C, in Python", OMITTED] = field(
        default=None, compare=False
    )
    step_experts: Annotated[list[int] | None, "distinct experts that each step read, summed over layers", OMITTED] = (
        None
    )
    prompt_read: Annotated[
        int | None, "tokens of the prompt that the target read; absent in older records", OMITTED
    ] = None
    prompt_copied: Annotated[
        int | None,
        "those whose caches it copied from an earlier prompt that begins alike; none with reuse=false",
        OMITTED,
    ] = None
    draft_prompt_read: Annotated[int | None, "those that models of the draft read", OMITTED] = None
    draft_prompt_copied: Annotated[int | None, "those that models of the draft copied", OMITTED] = None


class LoadRecord(TypedDict):
    """Times of the process's threads while a prompt was decoded, both ways together."""

    ran_s: Annotated[float, "seconds on a core, summed over threads"]
    waited_s: Annotated[float, "seconds ready to run without a core, summed over threads"]


class TimesRecord(TypedDict):
    """The times of one decoding in one of several processes."""

    start_s: Seconds
    decode_s: Seconds
    draft_start_s: Seconds
    steps_s: Annotated[list[float], "seconds of each step of the target alone"]
    passes_s: Annotated[list[list[float]], "seconds of drafting, verifying and accepting of each pass"]


class ProcessTimes(TypedDict):
    """The times of a prompt in one of several processes; its tokens and passes are the same in all."""

    baseline: TimesRecord
    speculative: TimesRecord
    load: LoadRecord | None
    states: NotRequired[Annotated[list[StateRecord], "of the machine before and after"]]
