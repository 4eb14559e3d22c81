"""The types of a run's record: run, prompt and pass, with units and versions.

A record is plain JSON, so these are dictionaries with typed keys. `specbench results --schema` prints them as JSON
Schema: a docstring is a type's description, a string beside a type is a key's unit or meaning. A key that is not
required is absent if it means nothing, or if the record is older than the key.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from specbench.environment import Environment
from specbench.records.decoded import LoadRecord, ProcessTimes, Trace
from specbench.records.draft_signs import Signs
from specbench.records.machine_record import MachineRecord, StateRecord
from specbench.records.numbers import FailedSummary, Summary
from specbench.records.prediction import DraftingPlan
from specbench.records.prompt_sums import (
    Difference,
    Evidence,
    Lesson,
    RuleSums,
    TreeForecast,
    UsedRecord,
)
from specbench.records.served import ServedPrompt, ServedSummary
from specbench.records.steps import Explanation

SCHEMA_VERSION: Literal[2] = 2  # `records.store` says what earlier versions had

DecodingMode = Literal["baseline", "speculative"]
DECODING_MODES: tuple[DecodingMode, ...] = ("baseline", "speculative")
Row = dict[str, Any]  # a row of a table: what columns it has is known when it is read
Config = Mapping[str, Any]  # the keys of a run as `specbench.config` has them


class FrozenPart(TypedDict, total=False):
    """A target, draft or task in a frozen config."""

    name: str | None
    kind: str
    path: str | None
    hub: str | None
    shipped: str | None


class FrozenConfig(TypedDict, total=False):
    """What is read of a run's frozen config; a record that is older than a key lacks it."""

    target: FrozenPart
    draft: FrozenPart
    task: FrozenPart
    sampling: Config
    accept: Config
    tree: Config
    engine: str
    max_new_tokens: int
    resamples: int
    seed: int
    batch: int


class PromptRecord(TypedDict):
    """One prompt, decoded with and without the draft: the raw measurement from which all numbers are computed."""

    index: int
    prompt: str
    reference: str | None
    prompt_tokens: int
    baseline: Trace
    speculative: Trace
    difference: Difference | None
    beta: Annotated[
        list[float], "probability of acceptance at each token of the baseline's completion (Definition 3.1)"
    ]
    signs: NotRequired[Signs]
    lenient: NotRequired[Annotated[dict[str, float], "by lenience: the sum of beta under it"]]
    total_variation: NotRequired[Annotated[dict[str, float], "by lenience: the sum over the tokens"]]
    rule: NotRequired[RuleSums]
    proof: NotRequired[Evidence]
    tree: NotRequired[TreeForecast]
    load: NotRequired[Annotated[LoadRecord | None, "null if the system does not report it"]]
    thinking: NotRequired[Annotated[bool, "whether the chat template leaves the prompt inside thinking"]]
    category: NotRequired[Annotated[str, "kind of prompt, from task.category_field"]]
    grown: NotRequired[Annotated[int, "tokens of earlier completions in the draft's store (draft.grow=true)"]]
    online: NotRequired[Lesson]
    runs: NotRequired[
        Annotated[list[ProcessTimes], "with runs=N: the times in each process, of which the other times are the mean"]
    ]
    turn: NotRequired[
        Annotated[
            int,
            "of a conversation of several turns, from 1; later turns read the baseline's answers, or the recorded ones "
            "with task.each_turn",
        ]
    ]
    states: NotRequired[Annotated[list[StateRecord], "of the machine before and after; absent if nothing is known"]]
    used: NotRequired[Annotated[dict[str, UsedRecord], "by decoding: baseline, speculative"]]
    served: NotRequired[Annotated[ServedPrompt, "of servers: what the two requests showed"]]


def emitted_and_passes(prompt: PromptRecord) -> tuple[int, int]:
    """Tokens that the passes of a prompt emitted, and how many passes these are; zeros if they are not known.

    Of a server they are what it counted, if it counted the prompt by itself.
    """
    if (served := prompt.get("served")) is not None:
        counts = served["drafted"].counts
        if counts is None or not counts.passes or counts.prompts > 1:
            return 0, 0
        return counts.accepted + counts.passes, counts.passes
    passes = prompt["speculative"].passes
    return sum(one.emitted for one in passes), len(passes)


class Process(TypedDict):
    """A process that worked on the run: more than one after an interruption, or with runs=N."""

    started: str
    gamma: DraftingPlan
    after_prompts: int
    code: NotRequired[Annotated[str, "its commit, or version outside a checkout; older records lack it"]]
    run: NotRequired[Annotated[int, "with runs=N: which of the N it is, from 1"]]


class RunRecord(TypedDict):
    """The record of a finished run. The file's first line holds the first four keys, its last line `complete`."""

    schema_version: Literal[2]
    run_id: str
    summary: Summary
    config: Config
    gamma: DraftingPlan
    environment: Environment
    machine: NotRequired[MachineRecord]
    processes: list[Process]
    pieces: Annotated[dict[str, str], "the string of every emitted or drafted token, by its id"]
    thinking: NotRequired[Annotated[list[str], "the tags between which the target thinks, by its chat template"]]
    prompts: list[PromptRecord]
    shown: NotRequired[
        Annotated[int, "of a kept record: the place of the prompt that has all its draft tokens and their strings"]
    ]
    explanation: NotRequired[Annotated[Explanation | None, "null where the run has no speedup; a kept record lacks it"]]
    complete: NotRequired[Literal[True]]


class ServedRecord(TypedDict):
    """The record of two servers of one target, measured from outside: with a draft and without."""

    schema_version: Literal[2]
    run_id: str
    summary: ServedSummary
    config: Config
    gamma: DraftingPlan
    environment: Environment
    processes: list[Process]
    pieces: dict[str, str]
    prompts: list[PromptRecord]
    complete: NotRequired[Literal[True]]


class Failure(TypedDict):
    """The error, and where in the code it was raised."""

    type: str
    message: str
    traceback: str


class FailedRecord(TypedDict):
    """The record of a failed run."""

    schema_version: Literal[2]
    run_id: str
    summary: FailedSummary
    config: Config
    failure: Failure
    environment: Environment


class Document(TypedDict):
    """The common fields of all documents."""

    schema_version: Literal[2]
    environment: Environment
