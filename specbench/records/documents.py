"""The types of the documents of `alpha`, `recommend`, `load`, `validate`, `bench`, `beam`, of profiles; their writer.

Each is a JSON file, written atomically. `specbench results --schema NAME` prints its JSON Schema.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from specbench import border
from specbench.border import Unreadable
from specbench.environment import Environment
from specbench.files import json_text, note_finished, write_atomically
from specbench.records.catalog import Damaged
from specbench.records.schema import (
    SCHEMA_VERSION,
    Config,
    FindingRecord,
    FrozenConfig,
    PredictionRow,
    Probability,
    Row,
    Seconds,
    SignsRecord,
    Vocabularies,
)
from specbench.records.store import migrated
from specbench.stats import IntervalRecord


class Document(TypedDict):
    """The common fields of all documents."""

    schema_version: Literal[2]
    environment: Environment


class AlphaRow(Vocabularies):
    """alpha of one draft along one sample of the target's completion, and what one rule makes of it."""

    target: str
    draft: str
    task: str
    own_weights: NotRequired[Annotated[str, "of 'target' and 'draft' those with a folder instead of what they name"]]
    temperature: float
    top_k: int | None
    top_p: float | None
    processing: NotRequired[Annotated[str, "what else is done to logits, as keys; absent: nothing"]]
    context: NotRequired[Annotated[int, "tokens of a prompt with the rows before it, at most; absent: unset"]]
    accept: Annotated[str, "the acceptance rule"]
    lossy: bool
    prompts: int
    distinct_prompts: NotRequired[Annotated[int, "different ones, where some are equal: those count in intervals"]]
    prompt_groups: NotRequired[Annotated[list[int], "where some are equal, a number for each, the same for equal ones"]]
    tokens: int
    alpha: Annotated[float, "probability: the mean of beta (Corollary 3.6)"]
    alpha_low: Probability | None
    alpha_high: Probability | None
    lenient: Annotated[dict[str, IntervalRecord], "by lenience: alpha(l) of appendix A.5"]
    dtype: str
    device: str
    hardware: str
    simulated: bool
    created: Annotated[str, "ISO 8601, UTC"]
    alpha_match: NotRequired[Annotated[float, "probability that a draw from p and one from q agree: accept=match"]]
    alpha_match_low: NotRequired[Probability | None]
    alpha_match_high: NotRequired[Probability | None]
    alpha_onehot: NotRequired[Annotated[float, "probability of the draft's likeliest token under p: accept=onehot"]]
    alpha_onehot_low: NotRequired[Probability | None]
    alpha_onehot_high: NotRequired[Probability | None]
    alpha_rule: NotRequired[Annotated[float, "probability that match, onehot or a lossy rule accepts a drafted token"]]
    alpha_rule_low: NotRequired[Probability | None]
    alpha_rule_high: NotRequired[Probability | None]
    total_variation: NotRequired[
        Annotated[float, "of the next token from the target's own under a lossy rule, mean over the tokens"]
    ]
    silent: NotRequired[Annotated[float, "share of the tokens at which the draft proposes nothing; alpha counts them"]]
    alpha_by_position: NotRequired[
        Annotated[
            list[IntervalRecord],
            "probability under Algorithm 1 that token 1, 2, ... of a proposal is accepted where those before it were; "
            "a proposal begins at each token where the draft has something to propose",
        ]
    ]
    acceptance_by_level: NotRequired[
        Annotated[
            dict[str, list[list[float]]],
            "of a draft that agrees less the further ahead it drafts, by tree.children: `acceptance_by_rank` at each "
            "level of a tree",
        ]
    ]
    acceptance_by_rank: NotRequired[
        Annotated[
            dict[str, list[IntervalRecord]],
            "of a draft that grows trees, by tree.children: the probability that child 1, 2, ... is the accepted one",
        ]
    ]
    acceptance_of_children: NotRequired[
        Annotated[
            dict[str, list[IntervalRecord]],
            "by rule, and by the bound on all rules: the probability that one of 1, 2, ... children is accepted",
        ]
    ]
    shared_mass: NotRequired[Annotated[float, "the target's probability of the shared tokens, mean over the tokens"]]
    alpha_matched: NotRequired[
        Annotated[
            float, "alpha without the mismatch: among shared tokens (tli); by string, however it is tokenised (slem)"
        ]
    ]
    alpha_matched_low: NotRequired[Probability | None]
    alpha_matched_high: NotRequired[Probability | None]


class RouterBound(TypedDict):
    """What a router of two drafts could reach at most: the better of them at each token, in hindsight."""

    drafts: list[str]
    alpha: Annotated[
        float, "the mean over tokens of the higher beta: no choice by the tokens so far has a higher alpha"
    ]
    gamma: NotRequired[int]
    tokens_per_pass: NotRequired[Annotated[float, "with gamma tokens of the better draft of each pass, in hindsight"]]
    alone: NotRequired[Annotated[list[float], "tokens a pass of each draft alone, counted alike"]]


class ScoredAhead(TypedDict):
    """The agreement of a draft with a completion, some tokens ahead."""

    beta: list[float]


class ScoredText(ScoredAhead):
    """The agreement of a draft with a completion: the fields of `analysis.acceptance.agreement.Agreement`."""

    ahead: NotRequired[list[ScoredAhead]]
    signs: NotRequired[SignsRecord]


class ScoredSetting(TypedDict):
    """One sample of the target's completion with the agreement of every draft along it."""

    temperature: float
    sample: Annotated[str, "the file with the text, in the folder samples"]
    sample_s: Seconds
    texts_reused: int
    score_s: Seconds
    wall_s: Seconds
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words, that other work disturbed the times"]]
    of_top_tokens: NotRequired[
        Annotated[
            dict[str, float],
            "by N: the share of the sample's tokens that are among the N likeliest of the training text, "
            "which alpha of a draft with draft.top_tokens=N cannot exceed",
        ]
    ]
    of_routers: NotRequired[Annotated[list[RouterBound], "for each pair of drafts, the highest alpha first"]]
    drafts: Annotated[dict[str, list[ScoredText]], "by draft, for each completion"]
    findings: NotRequired[Annotated[dict[str, list[FindingRecord]], "by draft, the likeliest cause first"]]


class AlphaDocument(Document):
    """The document of `specbench alpha`."""

    alpha_id: str
    rows: list[AlphaRow]
    settings: list[ScoredSetting]
    configs: list[Config]


class KeptAlphaRow(TypedDict):
    """What tables read of an `AlphaRow`; a document that is older than another of its keys lacks it."""

    target: str
    draft: str
    task: str
    temperature: float
    top_k: NotRequired[int | None]
    top_p: NotRequired[float | None]
    processing: NotRequired[str]
    context: NotRequired[int]
    prompts: int
    tokens: int
    alpha: float
    alpha_low: Probability | None
    alpha_high: Probability | None
    lenient: NotRequired[dict[str, IntervalRecord]]
    dtype: NotRequired[str]
    hardware: str
    simulated: NotRequired[bool]
    created: str


class KeptAlphaDocument(TypedDict):
    """What each document of `specbench alpha` holds, and its kept copy: the table."""

    alpha_id: str
    rows: list[KeptAlphaRow]
    settings: NotRequired[list[ScoredSetting]]
    configs: NotRequired[list[FrozenConfig]]


class CandidateNames(TypedDict):
    """A candidate's names in tables: a draft under a rule."""

    draft: str
    accept: str
    lossy: bool
    candidate: str
    vocabulary: NotRequired[Annotated[str, "of a draft whose vocabulary differs from the target's: tli | slem"]]


class CandidateRow(PredictionRow, CandidateNames):
    """A prediction with the candidate's names."""


class MemoryOfCandidate(TypedDict, total=False):
    """Memory that a candidate needs with its target, counted as in a run; absent in older records."""

    memory_bytes: int
    memory_ratio: Annotated[float, "over what the target needs alone"]


class WithPrompts(TypedDict, total=False):
    """A speedup of whole requests, with the time to read the task's prompts; absent in older records and batches."""

    end_to_end: Annotated[float | None, "speedup with both models' prompts, each read as a whole"]
    prompt_tokens: Annotated[float, "tokens of a prompt that are read before decoding, mean"]
    target_start_s: Annotated[float, "seconds in which the target reads a prompt"]
    draft_start_s: Annotated[float | None, "seconds in which the draft starts with a prompt"]


class RankedRow(CandidateRow, MemoryOfCandidate, WithPrompts):
    """A row of a ranking."""

    batch: NotRequired[Annotated[int, "prompts decoded at once; absent: 1"]]


class Verified(CandidateNames):
    """A real run of one candidate and gamma, beside the estimate.

    Of another engine its completions, for which c and v are not known.
    """

    gamma: Annotated[int, "of a tree: its levels"]
    batch: NotRequired[int]
    tree: NotRequired[Annotated[str | None, "the tree that was drafted; null or absent for chains"]]
    run_id: Annotated[str | None, "null of another engine, which leaves no record of a run"]
    reused: bool
    estimated: IntervalRecord
    measured: float | None
    measured_low: float | None
    measured_high: float | None
    off: Annotated[float | None, "estimated over measured, less 1"]
    disturbed_by: Annotated[str | None, "the signs, in words, that other work disturbed the run"]
    tokens_per_pass: float | None
    alpha: float | None
    c: float | None
    verify_cost: float | None
    overhead: float | None
    unproved: NotRequired[
        Annotated[str | None, "why nothing shows that sampled completions are the target's; null: proved"]
    ]
    alike: NotRequired[Annotated[float, "of another engine: share of completions equal to those without a draft"]]


class TimedPasses(TypedDict):
    """The timed passes of one candidate and gamma in one round."""

    candidate: str
    gamma: int
    timed: Annotated[list[Row], "what `analysis.costs.probe.Timed` holds"]


class RoundRecord(TypedDict):
    """A round of timed passes, at one place of one completion."""

    steps_s: list[float]
    first_steps_s: list[float]
    waited: NotRequired[Annotated[float | None, "share of the time in which the process waited for a core"]]
    passes: list[TimedPasses]


class OfContext(TypedDict, total=False):
    """The context of the prompts; absent where they are as they are."""

    context: Annotated[int, "tokens of a prompt with the rows before it, at most"]
    context_tokens: Annotated[float, "of the mean prompt and half of its completion"]


class OfTarget(Document):
    """The common fields of all documents that choose for one target."""

    target: str
    task: str
    temperature: float
    dtype: str
    hardware: str
    engine: str
    configs: list[Config]


class Choosing(OfTarget, OfContext):
    """The common fields of `recommend` and `validate`."""

    alpha_rows: list[AlphaRow]
    rounds: list[RoundRecord]
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words, that other work disturbed the times"]]


class RecommendDocument(Choosing):
    """The document of `specbench recommend`: the ranking, best first, its reasons and its proof."""

    recommend_id: str
    rows: list[RankedRow]
    reasons: list[str]
    verified: list[Verified]
    target_step_s: Seconds
    sample_s: Seconds
    texts_reused: int
    score_s: Seconds
    encoder_decoder: NotRequired[Annotated[bool, "whether the target is an encoder-decoder; absent in older records"]]
    asked: NotRequired[Annotated[str, "digest of the keys and files, known before models are loaded"]]
    interrupted: NotRequired[Annotated[bool, "Ctrl-C ended the timing: the ranking is of the rounds before it"]]


class ServiceRecord(TypedDict):
    """What a server did at one load."""

    goodput: Annotated[float, "requests a second within the promise, over the time until the last completion"]
    kept: Annotated[float, "share of the requests within the promise"]
    throughput: Annotated[float, "requests a second"]
    tokens_per_second: float
    ttft_s: Annotated[dict[str, float], "p50, p95, p99 of the time to first token, the wait included"]
    tpot_s: Annotated[dict[str, float], "p50, p95, p99 of the time per output token after the first"]


class AtLoad(TypedDict):
    """A candidate with a gamma at one load."""

    candidate: Annotated[str, "'none': the target alone"]
    gamma: int
    rate: Annotated[float, "requests a second that arrive"]
    load: Annotated[float, "rate over what the target alone serves when requests always wait"]


class LoadRow(AtLoad, ServiceRecord):
    """A candidate with a gamma at one load, simulated."""

    goodput_low: Annotated[float, "2.5% of the simulated arrivals are below"]
    goodput_high: Annotated[float, "2.5% of the simulated arrivals are above"]


class TurnCostRow(TypedDict):
    """What turns of a real batch cost with one candidate and gamma: `analysis.load.Costs`."""

    candidate: str
    gamma: int
    tokens_per_pass: float
    turns: Annotated[int, "turns that were timed"]
    join_s: Annotated[float, "seconds to start a request"]
    token_s: Annotated[float, "seconds a token of its prompt"]
    pass_s: Annotated[dict[str, float], "seconds of a pass, by rows"]
    first_s: Annotated[float, "seconds more for each row that has just joined"]
    start_at: NotRequired[Annotated[dict[str, float], "a factor of `join_s` and `token_s`, by rows at work"]]
    held_s: Annotated[float, "seconds more for each token that rows hold"]
    c: Annotated[dict[str, float], "c(B), by rows"]
    verify_cost: Annotated[dict[str, float], "v(B, gamma), by rows"]


class LoadSpan(TypedDict):
    """Batch sizes, from `first` to `last` (null: and above), and the gamma with the most tokens a second there."""

    first: int
    last: int | None
    gamma: Annotated[int, "0: no draft"]


class ServedRow(AtLoad):
    """A load that our batching served for real, beside the simulation of the same arrivals."""

    slower: Annotated[float, "how long closed loops right before and after took, over the costs of all rounds"]
    simulated: Annotated[ServiceRecord, "with costs so much longer"]
    measured: ServiceRecord
    errors: Annotated[dict[str, float | None], "simulated over measured, less 1: goodput, ttft_p95, tpot_p95"]
    disturbed_by: str | None


class LoadDocument(OfTarget):
    """The document of `specbench recommend --load`."""

    load_id: str
    requests: Annotated[int, "served at each load"]
    arrivals: Annotated[str, "'Poisson', or the file of recorded arrivals"]
    server_rows: Annotated[int, "the most requests that decode at a time"]
    promise: Annotated[dict[str, float], "ttft_s, tpot_s"]
    rows: list[LoadRow]
    costs: Annotated[list[TurnCostRow], "of each candidate and gamma, and of the target alone"]
    best: Annotated[list[LoadRow], "of each load"]
    schedules: Annotated[dict[str, list[LoadSpan]], "by candidate: gamma by batch size"]
    reasons: list[str]
    verified: Annotated[list[ServedRow], "loads that were served for real (verify=N)"]
    alpha_rows: Annotated[list[Row], "draft and accept of each config"]
    disturbed_by: str | None


class ErrorRow(CandidateRow):
    """Estimated and measured speedup of one candidate and gamma."""

    measured: IntervalRecord
    error: Annotated[IntervalRecord, "estimated over measured, less 1"]
    alpha_decoded: Annotated[IntervalRecord | None, "accepted over tested tokens, where that estimates alpha"]
    lossless: bool


class PolicyRow(TypedDict):
    """A gamma or policy against the best constant gamma of its candidate."""

    candidate: str
    gamma: int | str
    measured: IntervalRecord
    best: int
    against_best: IntervalRecord
    lossless: bool


class Learning(TypedDict):
    """The time to estimate alpha of all drafts by scoring, and by decoding."""

    drafts: int
    score_s: Seconds
    decode_s: Seconds


class DecodedRecord(TypedDict):
    """The decoding of each prompt by one candidate and gamma, over all repeats."""

    candidate: str
    gamma: int | str
    decode_s: list[float]
    start_s: list[float]
    tokens: list[int]
    accepted: list[int]
    judged: list[int]


class ValidateDocument(Choosing):
    """The document of `specbench recommend --validate`."""

    prompts: int
    tokens: int
    repeats: int
    created: str
    rows: list[ErrorRow]
    policies: list[PolicyRow]
    learning: Learning
    same_texts: float | None
    decoded: list[DecodedRecord]


class TimedDocument(Document):
    """The common fields of `bench` and `beam`."""

    command: str
    hardware: str
    dtype: str
    max_new_tokens: int


class BenchRecord(TypedDict):
    """One comparison: ours and theirs in `unit`."""

    part: str
    what: str
    ours: float | None
    theirs: float | None
    unit: str
    ratio: Annotated[float | None, "how many times faster ours is"]
    low: float | None
    high: float | None
    note: str
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words, that other work disturbed the times"]]
    more: dict[str, float]


class BenchDocument(TimedDocument):
    """The document of `specbench bench`."""

    engine: str
    rollout_fell_back: NotRequired[Annotated[str | None, "as in the summary of a run"]]
    prompts: int
    rows: list[BenchRecord]


class BeamRecord(TypedDict):
    """One u and gamma over all prompts; gamma 0 is the search without a draft."""

    u: int
    gamma: int
    passes_per_text: float
    steps_per_pass: float
    scored_per_pass: float
    passes_saved: float
    identical: int
    texts: int
    score_gap: float
    s_per_text: Seconds


class BeamDocument(TimedDocument):
    """The document of `specbench bench beam`."""

    target: str
    draft: str
    task: str
    width: int
    length_penalty: float
    early_stopping: bool | str
    texts: int
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words, that other work disturbed the times"]]
    transformers_s_per_text: Seconds
    rows: list[BeamRecord]


DOCUMENTS: dict[str, type] = {
    "alpha": AlphaDocument,
    "recommend": RecommendDocument,
    "load": LoadDocument,
    "validate": ValidateDocument,
    "bench": BenchDocument,
    "beam": BeamDocument,
}


def write_document(file: Path, document: Mapping[str, object], indent: int | None = None) -> Path:
    """Write `document`, one of the types above without its version, atomically."""
    written = write_atomically(file, json_text({"schema_version": SCHEMA_VERSION, **document}, indent) + "\n")
    note_finished()
    return written


def read_document(file: Path, kind: Any = Row) -> Any:
    """The content of a file, in the format of this version, with what the type `kind` requires of it.

    Raises Unreadable if it is damaged, or of another type.
    """
    document = migrated(border.parse(border.read_bytes(file), Row))
    border.check(document, kind)
    return document


def saved_document(file: Path, kind: Any) -> Any:
    """The content of a file that an earlier command may have written; None if there is none, or it is damaged.

    A warning names a damaged file.
    """
    if not os.path.lexists(file):
        return None
    try:
        return read_document(file, kind)
    except Unreadable as error:
        warnings.warn(f"{file}: is not used, it is damaged ({error})", Damaged, stacklevel=2)
        return None


# A profile: how a draft agrees with a target, as a small JSON that other programs can load. It holds quantities that
# depend only on the two models and the prompts, each with its interval and sample size, and speedups by gamma, which
# were measured on the machine that it names.

FORMAT: Literal["specbench-profile"] = "specbench-profile"
PROFILE_VERSION: Literal[1] = 1


class Share(IntervalRecord):
    """A share of tokens with its 95% interval over prompts."""

    prompts: int
    tokens: Annotated[int, "that it is a share of"]


class PositionShare(Share):
    """Of the drafted tokens that were reached at a position, the share that was accepted."""

    position: Annotated[int, "from 1; of a tree its level"]


class RankShare(Share):
    """Of visits to a node with children, the share in which the child of this rank was accepted."""

    rank: Annotated[int, "from 1: the draft's likeliest child"]
    children: Annotated[str | None, "how the children were chosen (tree.children); null for those of a run"]


class RangeShare(Share):
    """alpha where something lies in a range of tokens, both ends within it."""

    first: int
    last: int


class GammaSpeed(TypedDict):
    """The speedup of one gamma in a range of contexts."""

    gamma: int
    speedup: IntervalRecord
    tokens: int
    run_id: str


class GammaRange(TypedDict):
    """Measured speedups where the context's length lies in a range, and the gamma that was fastest there."""

    first: int
    last: int
    batch: int
    best: int
    gammas: list[GammaSpeed]


class TaskProfile(TypedDict):
    """The profile of one task."""

    task: str
    sources: Annotated[list[str], "ids of the records"]
    accept: Annotated[str, "the acceptance rule of the records; alpha itself is of Algorithm 1"]
    lossy: bool
    dtype: str
    hardware: str
    created: Annotated[str, "ISO 8601, UTC"]
    alpha: Annotated[Share, "the mean of beta (Corollary 3.6)"]
    by_position: list[PositionShare]
    by_rank: list[RankShare]
    by_place: Annotated[list[RangeShare], "by the position of the token in the completion, from 1"]
    by_context: Annotated[
        list[RangeShare], "by context length: the tokens of the prompt and of the completion before the token"
    ]
    gamma_by_context: list[GammaRange]
    missing: Annotated[list[str], "what the records do not hold, a sentence each"]


class Profile(TypedDict):
    """How one draft agrees with one target, sampled in one way, on one or several tasks."""

    format: Literal["specbench-profile"]
    profile_version: Literal[1]
    target: str
    draft: str
    temperature: float
    top_k: int | None
    top_p: float | None
    processing: NotRequired[Annotated[str, "what else is done to logits, as keys; absent: nothing"]]
    simulated: Annotated[bool, "acceptance was drawn at a given alpha: nothing was measured of the models"]
    tasks: list[TaskProfile]
