"""The types of the documents that choose for a target: `recommend`, its `--load` and its `--validate`."""

from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

from specbench.records.alpha_document import AlphaRow
from specbench.records.decoded import Trace
from specbench.records.prediction import PredictionRow
from specbench.records.run_record import Config, Document, Row
from specbench.records.timed_rounds import Round
from specbench.records.units import Seconds
from specbench.stats import Interval


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
    memory_ratio: Annotated[float, "over what the target needs by itself"]


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
    estimated: Interval
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


class OfContext(TypedDict, total=False):
    """The context of the prompts; absent if none was set."""

    context: Annotated[int, "tokens of a prompt with the rows before it, at most"]
    context_tokens: Annotated[float, "of the mean prompt and half of its completion"]


class Heading(TypedDict):
    """What a document that chooses for one target was measured of, and where."""

    target: str
    task: str
    temperature: float
    dtype: str
    hardware: str
    engine: str


class OfTarget(Document, Heading):
    """The common fields of all documents that choose for one target."""

    configs: list[Config]


class Choosing(OfTarget, OfContext):
    """The common fields of `recommend` and `validate`."""

    alpha_rows: list[AlphaRow]
    rounds: list[Round]
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
    interrupted: NotRequired[
        Annotated[bool, "Ctrl-C ended the timing, or the runs that check the ranking; the last reason says which"]
    ]


class ServiceRecord(TypedDict):
    """What a server did at one load."""

    goodput: Annotated[float, "requests per second within the promise, over the time until the last completion"]
    kept: Annotated[float, "share of the requests within the promise"]
    throughput: Annotated[float, "requests per second"]
    tokens_per_second: float
    ttft_s: Annotated[dict[str, float], "p50, p95, p99 of the time to first token, the wait included"]
    tpot_s: Annotated[dict[str, float], "p50, p95, p99 of the time per output token after the first"]


class AtLoad(TypedDict):
    """A candidate with a gamma at one load."""

    candidate: Annotated[str, "'none': the target alone"]
    gamma: int
    rate: Annotated[float, "requests per second that arrive"]
    load: Annotated[float, "rate over what the target alone serves when requests always wait"]


class LoadRow(AtLoad, ServiceRecord):
    """A candidate with a gamma at one load, simulated."""

    goodput_low: Annotated[float, "2.5% of the simulated arrivals are below"]
    goodput_high: Annotated[float, "2.5% of the simulated arrivals are above"]


class TurnCostRow(TypedDict):
    """What turns of a real batch cost with one candidate and gamma: `analysis.turn_costs.Costs`."""

    candidate: str
    gamma: int
    tokens_per_pass: float
    turns: Annotated[int, "turns that were timed"]
    join_s: Annotated[float, "seconds to start a request"]
    token_s: Annotated[float, "seconds per token of its prompt"]
    pass_s: Annotated[dict[str, float], "seconds of a pass, by rows"]
    first_s: Annotated[float, "seconds more for each row that has just joined"]
    start_at: NotRequired[Annotated[dict[str, float], "a factor of `join_s` and `token_s`, by rows at work"]]
    held_s: Annotated[float, "seconds more for each token that rows hold"]
    c: Annotated[dict[str, float], "c(B), by rows"]
    verify_cost: Annotated[dict[str, float], "v(B, gamma), by rows"]


@dataclass(frozen=True)
class LoadSpan:
    """Batch sizes, from `first` to `last` (null: and above), and the gamma with the highest tokens per second there."""

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
    server_rows: Annotated[int, "maximum number of requests that decode at a time"]
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

    measured: Interval
    error: Annotated[Interval, "estimated over measured, less 1"]
    alpha_decoded: Annotated[Interval | None, "accepted over tested tokens, where that estimates alpha"]
    lossless: bool


class PolicyRow(TypedDict):
    """A gamma or policy against the best constant gamma of its candidate."""

    candidate: str
    gamma: int | str
    measured: Interval
    best: int
    against_best: Interval
    lossless: bool


class Learning(TypedDict):
    """The time to estimate alpha of all drafts by scoring, and by decoding."""

    drafts: int
    score_s: Seconds
    decode_s: Seconds


@dataclass
class Decoded:
    """The decoding of each prompt by one candidate and gamma, over all repeats; of the first also the draft tokens."""

    candidate: str
    gamma: int | str
    decode_s: list[float]
    start_s: list[float]
    tokens: list[int]
    accepted: list[int]
    judged: Annotated[list[int], "draft tokens that were tested"]

    @classmethod
    def of(cls, name: tuple[str, int | str], prompts: int) -> "Decoded":
        """Nothing decoded yet."""
        return cls(*name, [0.0] * prompts, [0.0] * prompts, [0] * prompts, [0] * prompts, [0] * prompts)

    def add(self, index: int, trace: Trace, first: bool) -> None:
        """Count a decoding of the prompt `index`; `first`: with its draft tokens."""
        self.decode_s[index] += trace.decode_s
        self.start_s[index] += trace.start_s
        self.tokens[index] += len(trace.tokens)
        if first:
            self.accepted[index] += sum(p.accepted for p in trace.passes)
            # A token drafted after an accepted end of sequence was not tested.
            self.judged[index] += sum(min(p.emitted, p.drafted) for p in trace.passes)


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
    decoded: list[Decoded]
