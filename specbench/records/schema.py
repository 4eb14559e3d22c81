"""The types of a run's record: run, prompt and pass, with units and versions.

A record is plain JSON, so these are dictionaries with typed keys. `specbench results --schema` prints them as JSON
Schema: a docstring is a type's description, a string beside a type is a key's unit or meaning. A key that is not
required is absent where it means nothing, or where the record is older than the key.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from specbench.environment import Environment
from specbench.stats import IntervalRecord

# A run's explanation: the steps from gamma + 1 to the speedup (`analysis.explain.waterfall`).

StepName = Literal[
    "rejections", "rule", "shape", "ends", "positions", "drafting", "verification", "overhead", "rest", "start"
]


class StepRecord(TypedDict):
    """One step of the waterfall."""

    step: StepName
    factor: Annotated[IntervalRecord, "of the speedup so far"]
    speedup: Annotated[float, "after this step, if a pass cost what the steps so far say"]
    ms: Annotated[IntervalRecord, "milliseconds a token that it adds; negative where it gains"]
    alone: Annotated[float | None, "the speedup if only this loss were removed; null if it costs nothing"]


class Explanation(TypedDict):
    """The factors of a run's speedup."""

    ideal: Annotated[float, "tokens per pass if every drafted token were accepted: gamma + 1"]
    steps: Annotated[list[StepRecord], "their factors times the ideal, up to 'rest', are the measured speedup"]
    measured: IntervalRecord
    end_to_end: IntervalRecord
    levers: Annotated[list[StepName], "the steps that cost speed, the largest loss first"]
    missing: Annotated[list[str], "what the record does not hold, a sentence each"]


SCHEMA_VERSION: Literal[2] = 2  # `records.store` says what earlier versions had

Seconds = Annotated[float, "seconds"]
Probability = Annotated[float, "probability"]
Times = Annotated[float, "ratio of seconds a token, the target alone over speculative decoding"]
Steps = Annotated[float, "mean steps of the target alone"]
DecodingMode = Literal["baseline", "speculative"]
DECODING_MODES: tuple[DecodingMode, ...] = ("baseline", "speculative")
Row = dict[str, Any]  # a row of a table: what columns it has is known when it is read
AcceptanceByRank = list[float] | list[list[float]]  # of a node's children; or a list for each level of a tree
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


class PassRecord(TypedDict):
    """One run of the target over drafted tokens, and the drafting before it."""

    drafted: int
    accepted: int
    emitted: Annotated[int, "accepted + 1, minus the tokens after an end of sequence inside the block"]
    draft_s: Seconds
    verify_s: Seconds
    accept_s: Seconds
    tokens: Annotated[list[int], "the draft tokens, including rejected tokens"]
    draft_operations: NotRequired[Annotated[float | None, "arithmetic operations, where the draft counts them"]]
    parents: NotRequired[Annotated[list[int] | None, "of a tree: the index of each token's parent, -1 for the root"]]
    path: NotRequired[Annotated[list[int] | None, "of a tree: the indices of the accepted tokens"]]
    experts: NotRequired[
        Annotated[list[int], "distinct experts that the target read, by layer; in a batch those of all rows"]
    ]
    draft_run_s: NotRequired[Annotated[float, "seconds of forward passes while drafting; on a CPU"]]
    verify_run_s: NotRequired[Annotated[float, "seconds of forward passes while verifying; on a CPU"]]
    loop_s: NotRequired[Annotated[float, "seconds of the loop around the forward passes; on a CPU"]]


class TraceRecord(TypedDict):
    """The decoding of one prompt, with or without the draft."""

    text: str
    tokens: list[int]
    start_s: Annotated[float, "seconds: encoder and prefill, of the draft too"]
    decode_s: Annotated[float, "seconds: everything after that; in a batch the row's share of each step or pass"]
    steps_s: Annotated[list[float], "seconds of each step of the target alone"]
    passes: Annotated[list[PassRecord], "speculative decoding: the passes of the target"]
    draft_start_s: Annotated[float, "seconds: the draft's part of start_s"]
    rows: NotRequired[Annotated[list[int], "in a batch: how many rows each step or pass had"]]
    step_experts: NotRequired[Annotated[list[int], "distinct experts that each step read, summed over layers"]]
    prompt_read: NotRequired[Annotated[int, "tokens of the prompt that the target read; absent in older records"]]
    prompt_copied: NotRequired[
        Annotated[int, "those whose caches it copied from an earlier prompt that begins alike; none with reuse=false"]
    ]
    draft_prompt_read: NotRequired[Annotated[int, "those that models of the draft read"]]
    draft_prompt_copied: NotRequired[Annotated[int, "those that models of the draft copied"]]


class DifferenceRecord(TypedDict):
    """The token that decides whether rounding explains how two completions differ that should be equal (T = 0)."""

    position: int
    margin: Annotated[float, "logits of the target's best token above the emitted one; older: above its second best"]
    noise: Annotated[float, "difference in logits between two ways of computing the row"]
    is_rounding: bool
    departures: NotRequired[Annotated[int, "tokens that are not the target's best; older records lack it"]]
    misplaced_end: NotRequired[Annotated[bool, "the completion ends too early, or continues after its end"]]


class RuleSums(TypedDict):
    """Sums over the target's completion for a rule with an alpha of its own."""

    accept_probability: float
    total_variation: NotRequired[Annotated[float, "of a lossy rule"]]


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


class FindingRecord(TypedDict):
    """What is probably wrong with a draft (`analysis.findings`)."""

    name: Annotated[str, "one word for the kind of finding"]
    line: Annotated[str, "what was counted, and what it probably is"]
    check: Annotated[str, "what to check next"]
    evidence: Annotated[dict[str, float], "the numbers of the line"]


class SumsRecord(TypedDict):
    """Of one score along a text: its values, its variances given the tokens so far, and its third moments."""

    sum: float
    variance: float
    third: float


class EvidenceRecord(TypedDict):
    """Sums of the proof over a sampled completion (`analysis.proof.evidence`)."""

    tokens: int
    likelihood: SumsRecord
    draft: SumsRecord
    echo: SumsRecord
    order: SumsRecord
    deviation: Annotated[float, "the sum of E|log p + H|"]
    outside: Annotated[int, "tokens to which p gives no probability"]


class TreeForecast(TypedDict):
    """The expected passes of a run's trees along the target's completion (`analysis.forecast.trees`)."""

    accepted: Annotated[list[float] | None, "by rank of the child: probability of acceptance, summed over the tokens"]
    passes: Annotated[float | None, "null where they cannot be computed"]


class LoadRecord(TypedDict):
    """Times of the process's threads while a prompt was decoded, both ways together."""

    ran_s: Annotated[float, "seconds on a core, summed over threads"]
    waited_s: Annotated[float, "seconds ready to run without a core, summed over threads"]


class OnlineRecord(TypedDict):
    """What a draft with `draft.online=true` did after a prompt. Its `beta` are from the weights before."""

    rejected: Annotated[int, "drafted tokens of this prompt that were rejected"]
    positions: Annotated[
        int, "positions of this and earlier prompts that the update after this prompt learnt from; 0 without an update"
    ]
    steps: Annotated[int, "of the optimiser"]
    loss: Annotated[float | None, "KL(p || q) before the first step, mean over the positions; null without a step"]
    seconds: Annotated[float, "seconds of learning, including the update of captured steps"]
    timed: Annotated[bool, "whether they are part of the speculative decode_s"]


class TimesRecord(TypedDict):
    """The times of one decoding in one of several processes."""

    start_s: Seconds
    decode_s: Seconds
    draft_start_s: Seconds
    steps_s: Annotated[list[float], "seconds of each step of the target alone"]
    passes_s: Annotated[list[list[float]], "seconds of drafting, verifying and accepting of each pass"]


# The machine of a run: what it is, and the state that it was in.


class GpuRecord(TypedDict):
    """A GPU and its limits, as its driver reports them; null where it does not tell."""

    name: str | None
    driver: str | None
    most_clock_mhz: Annotated[float | None, "MHz of its multiprocessors, at most"]
    most_memory_clock_mhz: Annotated[float | None, "MHz of its memory, at most"]
    power_limit_w: Annotated[float | None, "watts"]
    slowdown_c: Annotated[float | None, "degrees Celsius from which it lowers its clocks"]


class GpuState(TypedDict):
    """The state of a GPU at one moment; null where its driver does not tell."""

    clock_mhz: Annotated[float | None, "MHz of its multiprocessors"]
    memory_clock_mhz: Annotated[float | None, "MHz of its memory"]
    temperature_c: Annotated[float | None, "degrees Celsius"]
    power_w: Annotated[float | None, "watts"]
    throttled: Annotated[list[str], "why its clocks are below their most, in words; empty: they are not, or it idles"]
    others: Annotated[int | None, "other processes that compute on it"]


class StateRecord(TypedDict):
    """The state of the machine before or after a prompt, read while nothing was timed."""

    cap: NotRequired[Annotated[float, "the processor's frequency that is allowed, over its greatest"]]
    overheated: NotRequired[Annotated[int, "how often its cores have throttled for heat since the system started"]]
    gpu: NotRequired[GpuState]


class MachineRecord(TypedDict):
    """The machine that a run was measured on; null where the system does not tell. No part of a run's identity."""

    processor: str | None
    cores: Annotated[int | None, "of all sockets, without hyper-threads"]
    threads: Annotated[int | None, "that run at once on all cores"]
    caches: Annotated[dict[str, int], "bytes of each cache of the first core, by level: L1d, L1i, L2, L3"]
    vectors: Annotated[list[str], "the widest vector and matrix instructions: avx2, avx512f, amx_bf16, sve, ..."]
    memory_bytes: int | None
    memory_mts: Annotated[int | None, "mega-transfers a second of its memory, as configured"]
    governor: Annotated[str | None, "the policy that sets the processor's frequency"]
    least_mhz: float | None
    most_mhz: float | None
    microcode: str | None
    gpu: NotRequired[GpuRecord]


class UsedRecord(TypedDict):
    """What one decoding of a prompt used beside time; in a batch the prompt's share of its group's energy."""

    peak_bytes: NotRequired[Annotated[int, "of the CUDA allocator, or of the process (VmHWM), both models loaded"]]
    joules: NotRequired[Annotated[float, "of the GPU (NVML), or of the processor's packages (RAPL)"]]


class ProcessTimes(TypedDict):
    """The times of a prompt in one of several processes; its tokens and passes are the same in all."""

    baseline: TimesRecord
    speculative: TimesRecord
    load: LoadRecord | None
    states: NotRequired[Annotated[list[StateRecord], "of the machine before and after"]]


class PromptRecord(TypedDict):
    """One prompt, decoded with and without the draft: the raw measurement from which all numbers are computed."""

    index: int
    prompt: str
    reference: str | None
    prompt_tokens: int
    baseline: TraceRecord
    speculative: TraceRecord
    difference: DifferenceRecord | None
    beta: Annotated[
        list[float], "probability of acceptance at each token of the baseline's completion (Definition 3.1)"
    ]
    signs: NotRequired[SignsRecord]
    lenient: NotRequired[Annotated[dict[str, float], "by lenience: the sum of beta under it"]]
    total_variation: NotRequired[Annotated[dict[str, float], "by lenience: the sum over the tokens"]]
    rule: NotRequired[RuleSums]
    proof: NotRequired[EvidenceRecord]
    tree: NotRequired[TreeForecast]
    load: NotRequired[Annotated[LoadRecord | None, "null if the system does not report it"]]
    thinking: NotRequired[Annotated[bool, "whether the chat template leaves the prompt inside thinking"]]
    category: NotRequired[Annotated[str, "kind of prompt, from task.category_field"]]
    grown: NotRequired[Annotated[int, "tokens of earlier completions in the draft's store (draft.grow=true)"]]
    online: NotRequired[OnlineRecord]
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
    states: NotRequired[Annotated[list[StateRecord], "of the machine before and after; absent where nothing is known"]]
    used: NotRequired[Annotated[dict[str, UsedRecord], "by decoding: baseline, speculative"]]


class PositionCounts(TypedDict):
    """A position of the proposals: how many passes reached it, and how many of those accepted its token."""

    position: int
    reached: int
    accepted: int


class LenienceRow(TypedDict):
    """alpha(l) of appendix A.5."""

    lenience: float
    alpha: Probability
    alpha_low: Probability | None
    alpha_high: Probability | None
    total_variation: NotRequired[Annotated[float, "mean over the tokens"]]


class Names(TypedDict):
    """Target, draft, task and settings of a run."""

    target: str
    draft: str
    task: str
    temperature: float
    top_k: int | None
    top_p: float | None
    processing: NotRequired[
        Annotated[str, "what else is done to logits (min_p, penalties, bad words ...), as keys; absent: nothing"]
    ]
    context: NotRequired[
        Annotated[int, "tokens of a prompt with the rows before it, at most (context=); absent: unset"]
    ]


class Predicted(TypedDict):
    """The theorems applied to the run's own alpha, c and v; null where gamma changed from pass to pass."""

    prediction: NotRequired[Annotated[str | None, "the source of the prediction: 'Eq. 1', 'by position', 'by rank'"]]
    tokens_per_pass_predicted: float | None
    speedup_predicted: Annotated[float | None, "Theorem 3.8"]
    speedup_calibrated: Annotated[float | None, "with the cost of the passes in place of 1"]
    operations_predicted: Annotated[float | None, "Theorem 3.11"]


class Speedups(TypedDict):
    """Measured speedups; null if the completions are not the target's own."""

    speedup_measured: Times | None
    speedup_low: Times | None
    speedup_high: Times | None
    speedup_end_to_end: Annotated[float | None, "with encoder and prefill"]
    speedup_end_to_end_low: float | None
    speedup_end_to_end_high: float | None


class Repeated(TypedDict, total=False):
    """With runs=N: how much the speedup differs between processes that measured the same prompts; absent otherwise.

    `speedup_between` is where the spread between processes stands. The interval of a mean over N processes has
    speedup_between² / N as a part of its variance, relative to the speedup; a difference of two records has both parts.
    """

    speedup_by_process: Annotated[list[float], "speedup_measured of each process"]
    speedup_between: Annotated[
        float, "standard deviation of their logs, so relative; a process's own noise is part of it"
    ]


class Stopped(TypedDict, total=False):
    """With until=SHARE: the looks at the interval of the speedup; absent otherwise."""

    until: Annotated[float, "half width at which the run stops, as a share of the speedup"]
    looks: Annotated[int, "looks that were taken"]
    looks_planned: Annotated[int, "looks over all prompts"]
    level: Annotated[float, "of this record's intervals: 1 - 0.05 / looks_planned, so that all looks cover with 95%"]
    prompts_offered: Annotated[int, "prompts that the run would have decoded at most"]


class UnderRule(TypedDict, total=False):
    """The acceptance of a rule with an alpha of its own: match, onehot, or a lossy rule.

    It is measured along the target's own completion.
    """

    alpha_rule: Annotated[float, "acceptance probability under the rule"]
    alpha_rule_low: Probability | None
    alpha_rule_high: Probability | None
    total_variation: Annotated[
        float, "of the next token from the target's own under a lossy rule, mean over the tokens"
    ]


class Counted(TypedDict):
    """Statistics of a run's raw prompts, without predictions and speedups."""

    prompts: int
    tokens: Annotated[int, "of the target alone"]
    passes: int
    alpha: Annotated[float, "probability: the mean of beta (Corollary 3.6)"]
    alpha_low: Probability | None
    alpha_high: Probability | None
    accepted_per_drafted: float | None
    tokens_per_pass: float
    distinct_prompts: NotRequired[Annotated[int, "different ones, where some are equal: those count in intervals"]]
    c: Annotated[float | None, "seconds of drafting a token over those of a target step (Theorem 3.8), means"]
    c_low: NotRequired[Annotated[float | None, "95% interval of c over prompts"]]
    c_high: NotRequired[float | None]
    c_step: NotRequired[
        Annotated[float, "mean seconds of a draft step that drafts a whole proposal, over those of a target step"]
    ]
    verify_cost: Annotated[
        float | None, "v: mean seconds of verifying in a pass over those of a step; older records: of full passes"
    ]
    verify_cost_low: NotRequired[Annotated[float | None, "95% interval of v over prompts"]]
    verify_cost_high: NotRequired[float | None]
    experts_read: NotRequired[
        Annotated[float, "of a target with experts: those that the mean full pass reads over those of a step"]
    ]
    overhead: Annotated[float, "mean seconds of accepting in a pass over those of a target step"]
    target_step_s: Annotated[float, "seconds, mean"]
    drafting_per_pass: NotRequired[Steps]
    checking_per_pass: NotRequired[Steps]
    accepting_per_pass: NotRequired[Steps]
    c_hat: Annotated[float, "arithmetic operations of a drafted token over those of a target step"]
    operations: NotRequired[Annotated[float, "arithmetic operations of a token, in target steps"]]
    drafted_per_pass: float
    identical: Annotated[float | None, "share of completions equal to the target's, at T = 0"]
    lossless: bool
    lossy: bool
    acceptance_by_position: list[PositionCounts]
    tokens_per_pass_histogram: dict[str, int]


class Proved(TypedDict, total=False):
    """The proof that completions were sampled from the target (`analysis.proof`); null without a proof."""

    proof_tokens: int | None
    proof_z: Annotated[float | None, "z of the likelihood, standard normal if the tokens were drawn from p"]
    proof_p: Probability | None
    proof_power: Annotated[
        float | None, "the smallest total variation per token that proof_z would have detected nine times in ten"
    ]
    proof_z_draft: float | None
    proof_p_draft: Probability | None
    proof_z2: float | None
    proof_p2: Probability | None
    proof_z_order: float | None
    proof_p_order: Probability | None
    proof_outside: Annotated[int | None, "tokens to which p gives no probability"]


class Disturbed(TypedDict, total=False):
    """Whether the machine was shared or held back while the run was timed (`analysis.costs.disturbance`)."""

    disturbed: bool
    disturbed_by: Annotated[str | None, "the signs, in words"]
    waited: Annotated[float | None, "share of the time in which the process waited for a core"]
    unevenness: Annotated[float | None, "90th percentile of the ratio of neighbouring steps"]


class Throughput(TypedDict, total=False):
    """Throughput at this batch, and the latency of one row; without encoder and prefill."""

    batch: Annotated[int, "prompts decoded at once"]
    occupancy: Annotated[float, "rows of the mean pass"]
    occupancy_baseline: Annotated[float, "rows of the mean step of the target alone"]
    tokens_per_second: Annotated[float | None, "of speculative decoding, all rows together"]
    tokens_per_second_baseline: Annotated[float, "of the target alone, all rows together"]
    latency_s: Annotated[float | None, "seconds a token of one row, speculative decoding"]
    latency_s_baseline: Annotated[float, "seconds a token of one row, the target alone"]


class OfPrompts(TypedDict, total=False):
    """Reading of prompts, and the time to their first token; absent in older records."""

    ttft_s_baseline: Annotated[float, "seconds to the first token: prompt and first step of the target alone, mean"]
    ttft_s: Annotated[float | None, "the same of speculative decoding: prompt by target and draft, and the first pass"]
    tpot_s_baseline: Annotated[float | None, "seconds a token after the first of a row, the target alone"]
    tpot_s: Annotated[float | None, "seconds a token after the first pass of a row, speculative decoding"]
    target_start_s: Annotated[float, "seconds in which the target reads a prompt, mean"]
    draft_start_s: Annotated[float | None, "seconds in which the draft starts with a prompt, mean; null: not recorded"]
    prompt_tokens: Annotated[float, "tokens of a prompt that are read before decoding: all but the last, mean"]
    prompt_tokens_read: Annotated[int, "of all prompts those that the target read"]
    prompt_tokens_copied: Annotated[int, "those whose caches it copied: an earlier prompt begins alike (reuse)"]
    prompt_tokens_per_s: Annotated[float | None, "tokens read a second by the target; null: it reads none"]
    draft_prompt_tokens_read: Annotated[int, "those that models of the draft read; absent where not counted"]
    draft_prompt_tokens_copied: Annotated[int, "those that models of the draft copied; absent where not counted"]
    draft_prompt_tokens_per_s: Annotated[float | None, "tokens read a second by models of the draft; null: none read"]
    end_to_end_predicted: Annotated[
        float | None, "speedup with the time of both models' prompts, by Theorem 3.8 for what follows"
    ]
    end_to_end_calibrated: Annotated[float | None, "the same with the calibrated speedup"]


class Memory(TypedDict, total=False):
    """Bytes that the target needs alone, and with the draft; absent in older records.

    Weights, caches and tables are counted from the tensors that the models hold: equal runs have equal numbers.
    """

    memory_bytes: Annotated[int, "target and draft"]
    memory_baseline_bytes: Annotated[int, "the target alone"]
    memory_ratio: Annotated[float, "the first over the second"]
    memory_source: Annotated[str, "tensors: counted from tensors; allocator: the most that CUDA's allocator had given"]
    memory_parts: Annotated[dict[str, int], "bytes of weights and caches of either, and of draft_tables"]
    memory_peak_bytes: Annotated[int | None, "the most that the process, or CUDA's allocator, held during a decoding"]


class Energy(TypedDict, total=False):
    """Energy of decoding, encoder and prefill included; absent in older records."""

    joules_per_token: Annotated[float | None, "speculative decoding"]
    joules_per_token_baseline: Annotated[float | None, "the target alone"]
    joules_missing: Annotated[str | None, "why there is no energy; null where there is"]


class UnderLenience(TypedDict, total=False):
    """alpha under lenience; absent for simulated runs."""

    lenience: list[LenienceRow]


class OfTrees(TypedDict, total=False):
    """Further statistics of a run whose proposals are trees; absent for chains."""

    nodes_per_pass: Annotated[float, "drafted tokens of the mean pass"]
    depth_per_pass: Annotated[float, "levels of the mean pass"]
    acceptance_by_rank: Annotated[list[float], "of visits to a node: the share in which child 1, 2, ... was accepted"]
    acceptance_by_rank_estimated: NotRequired[
        Annotated[list[float] | None, "the same, estimated by teacher forcing along the target's completions"]
    ]


class Grown(TypedDict, total=False):
    """A draft that adds completions to its store; absent for others. Its numbers depend on the order of the prompts."""

    grown: Annotated[int, "tokens of earlier completions in the draft's store before the last prompt"]


class Learnt(TypedDict, total=False):
    """A draft that learns between prompts; absent for others. Its numbers depend on the order of the prompts."""

    learning_rate: Annotated[float, "draft.online_lr; 0 learns nothing"]
    learnt_positions: Annotated[int, "tokens that the draft learnt from: those rejected, or all (draft.online_tokens)"]
    learnt_steps: Annotated[int, "steps of the optimiser"]
    learning_s: Annotated[float, "seconds of learning, in all"]
    learning_timed: Annotated[bool, "whether they are part of the speedups"]
    alpha_first: Annotated[float, "alpha on the first third of the prompts"]
    alpha_last: Annotated[float, "alpha on the last third of the prompts"]


class Degenerate(TypedDict, total=False):
    """Completions that loop or copy their prompt (`analysis.degenerate`); absent in older records."""

    looping: Annotated[float, "share of prompts whose completion loops, with or without the draft"]
    repeated: Annotated[float, "share of the baseline's tokens inside a repeated n-gram, mean over the prompts"]
    compression: Annotated[float, "bytes of the baseline's tokens over the same compressed, mean over the prompts"]
    copied: Annotated[float, "share of the baseline's words that it copies from the prompt, mean over the prompts"]
    speedup_without_loops: Annotated[
        float | None, "of the prompts that do not loop, where more than one in twenty does; null: not measured"
    ]
    speedup_without_loops_low: float | None
    speedup_without_loops_high: float | None


class Measured(
    Counted,
    Throughput,
    OfPrompts,
    OfTrees,
    Grown,
    Learnt,
    Proved,
    Disturbed,
    Energy,
    Degenerate,
    UnderRule,
    UnderLenience,
    Predicted,
    Speedups,
    Repeated,
):
    """All statistics of a run's raw prompts."""


class Quality(TypedDict):
    """Scores of the completions against their references; null without a metric."""

    quality_metric: str | None
    quality_baseline: float | None
    quality_speculative: float | None
    quality_difference: NotRequired[float | None]
    quality_difference_low: NotRequired[float | None]
    quality_difference_high: NotRequired[float | None]


class Vocabularies(TypedDict, total=False):
    """Of a draft whose vocabulary differs from the target's; absent where they agree."""

    vocabulary: Annotated[str, "tli: draft only shared tokens; slem: draft a string"]
    vocabulary_reason: Annotated[str, "why"]
    shared_of_target: Annotated[float, "share of the target's tokens that the draft has"]
    shared_of_draft: Annotated[float, "share of the draft's tokens that the target has"]


class Limits(TypedDict, total=False):
    """The target's roofline on this device; absent where several devices share the target, and in older records."""

    reading_ms: Annotated[float, "milliseconds in which its weights are read: a run over any tokens takes no less"]
    multiplying_ms: Annotated[float, "milliseconds of one token's multiply-adds, at this device's fastest"]
    expert_share: NotRequired[Annotated[float, "of a step's weights: those of the experts of one token"]]
    recurrent_layers: NotRequired[
        Annotated[int, "layers of the target with a recurrent state, which read the tokens of a pass one after another"]
    ]


class Summary(Names, Measured, Quality, Vocabularies, Limits, Memory, Stopped):
    """A run in numbers: a row of `specbench results`. A low and a high bound a 95% interval, or one of `level`."""

    gamma: Annotated[int | None, "null where it changed from pass to pass"]
    gamma_requested: int | str
    accept: Annotated[str, "the acceptance rule"]
    tree: NotRequired[Annotated[str | None, "the tree that is drafted; null or absent for chains"]]
    prompts_cut: int
    device: str
    dtype: str
    dtype_bfloat16_ms: NotRequired[
        Annotated[
            float | None,
            "milliseconds in bfloat16 of the linear maps of the target's shape over 1 and 8 tokens, by which "
            "dtype=auto chose on a CPU; null: dtype was given",
        ]
    ]
    dtype_float32_ms: NotRequired[Annotated[float | None, "the same in float32"]]
    engine: str
    fell_back: NotRequired[
        Annotated[
            str | None, "why engine=auto runs a model by a slower engine than this device's fastest; null: it does not"
        ]
    ]
    rollout_fell_back: NotRequired[
        Annotated[
            str | None,
            "why the draft's steps are not one CUDA graph where they should be, and it drafts step by step; null: they "
            "are as they should be",
        ]
    ]
    numerics: NotRequired[
        Annotated[str, "invariant: the target's logits at a position are bitwise the same in every pass; or fast"]
    ]
    numerics_reason: NotRequired[
        Annotated[str | None, "why it is fast where invariant was requested or is the default"]
    ]
    warmup_s: Seconds
    hardware: str
    simulated: Annotated[bool, "acceptance was drawn at a given alpha, or weights are random"]
    processes: int
    created: Annotated[str, "ISO 8601, UTC"]


class FailedSummary(Names):
    """The names of a failed run, and the reason."""

    error: str
    created: str


class CostRecord(TypedDict):
    """The costs of passes, in target steps."""

    c: float
    verify_cost: float
    overhead: float
    passes: Annotated[int, "how many were timed"]
    first: Annotated[float, "cost of the first pass of a completion"]


class PredictionRow(TypedDict):
    """One candidate at one gamma, and the quantities that its speedup is computed from."""

    draft: str
    gamma: Annotated[int, "of a tree: its levels"]
    alpha: IntervalRecord
    cost: CostRecord
    tree: NotRequired[Annotated[str | None, "the tree that is drafted; null or absent for chains"]]
    nodes: NotRequired[Annotated[int | None, "of the tree, including the root"]]
    acceptance: NotRequired[
        Annotated[AcceptanceByRank | None, "by rank of the child: from which the tree's shape was computed"]
    ]
    tokens_per_pass: Annotated[float, "counted along the completions"]
    prediction: Annotated[str, "the source of `predicted` and `calibrated`"]
    tokens_per_pass_iid: Annotated[float, "by Eq. 1, or by position"]
    drafted_per_pass: float
    steps_per_pass: Annotated[float, "mean cost of a pass, in target steps"]
    predicted: Annotated[float, "speedup by Theorem 3.8"]
    calibrated: Annotated[float, "speedup with the cost of the passes in place of 1"]
    estimated: Annotated[IntervalRecord, "speedup from the passes that the completions need"]


class GammaRecord(TypedDict):
    """The choice that `gamma=` was resolved to."""

    requested: int | str
    gamma: int | None
    most: NotRequired[int]
    alpha: NotRequired[float]
    prices: NotRequired[dict[str, float]]
    probe: NotRequired[list[PredictionRow]]
    acceptance: NotRequired[
        Annotated[AcceptanceByRank, "by rank of the child: from which the tree's shape was computed"]
    ]
    size: NotRequired[Annotated[int, "chosen for the tree, including the root"]]
    verify: NotRequired[Annotated[dict[str, float], "v(n): cost of verifying n tokens, in target steps"]]
    level: NotRequired[Annotated[float, "cost of drafting a level of the tree, in target steps"]]


class Process(TypedDict):
    """A process that worked on the run: more than one after an interruption, or with runs=N."""

    started: str
    gamma: GammaRecord
    after_prompts: int
    run: NotRequired[Annotated[int, "with runs=N: which of the N it is, from 1"]]


class RunRecord(TypedDict):
    """The record of a finished run. The file's first line holds the first four keys, its last line `complete`."""

    schema_version: Literal[2]
    run_id: str
    summary: Summary
    config: Config
    gamma: GammaRecord
    environment: Environment
    machine: NotRequired[MachineRecord]
    processes: list[Process]
    pieces: Annotated[dict[str, str], "the string of every emitted or drafted token, by its id"]
    thinking: NotRequired[Annotated[list[str], "the tags between which the target thinks, by its chat template"]]
    prompts: list[PromptRecord]
    explanation: NotRequired[Annotated[Explanation | None, "null where the run has no speedup"]]
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
