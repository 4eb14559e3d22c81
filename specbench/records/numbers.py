"""A run in numbers: the columns of its summary, by what they are about."""

from typing import Annotated, NotRequired, TypedDict

from specbench.records.units import Probability, Seconds, Steps, Times


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
    """The theorems applied to the run's own alpha, c and v; null if gamma changed from pass to pass."""

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
    """How much the speedup differs between processes that measured the same prompts, with runs=N; absent otherwise.

    `speedup_between` is where the spread between processes stands. The interval of a mean over N processes has
    speedup_between² / N as a part of its variance, relative to the speedup; a difference of two records has both parts.
    """

    speedup_by_process: Annotated[list[float], "speedup_measured of each process"]
    speedup_between: Annotated[
        float, "standard deviation of their logs, so relative; a process's own noise is part of it"
    ]


class Stopped(TypedDict, total=False):
    """The looks at the interval of the speedup, with until=SHARE; absent otherwise."""

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
    c: Annotated[float | None, "time of drafting a token, in target steps (Theorem 3.8), means"]
    c_low: NotRequired[Annotated[float | None, "95% interval of c over prompts"]]
    c_high: NotRequired[float | None]
    c_step: NotRequired[Annotated[float, "mean time of a draft step that drafts a whole proposal, in target steps"]]
    verify_cost: Annotated[float | None, "v: mean time of verifying in a pass, in steps; older records: of full passes"]
    verify_cost_low: NotRequired[Annotated[float | None, "95% interval of v over prompts"]]
    verify_cost_high: NotRequired[float | None]
    experts_read: NotRequired[
        Annotated[float, "of a target with experts: how many times a step's experts the mean full pass reads"]
    ]
    overhead: Annotated[float, "mean time of accepting in a pass, in target steps"]
    target_step_s: Annotated[float, "seconds, mean"]
    drafting_per_pass: NotRequired[Steps]
    checking_per_pass: NotRequired[Steps]
    accepting_per_pass: NotRequired[Steps]
    c_hat: Annotated[float, "arithmetic operations of a drafted token, in target steps"]
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


class Slow(TypedDict, total=False):
    """Steps and passes of more than 1.3 medians of their kind (`analysis.costs.slow`); absent in older records."""

    slow_steps: Annotated[float, "share of the steps of the target alone"]
    slow_passes: Annotated[float, "share of the passes; a kind is those that drafted as many tokens"]


class Loop(TypedDict, total=False):
    """Where the passes ran; absent in older records, whose config decides (`records.passes_run`)."""

    passes_run: Annotated[
        str, "in C: whole, by the engine in one call; verified in C: the drafting in Python; in Python"
    ]


class Throughput(TypedDict, total=False):
    """Throughput at this batch, and the latency of one row; without encoder and prefill."""

    batch: Annotated[int, "prompts decoded at once"]
    occupancy: Annotated[float, "rows of the mean pass"]
    occupancy_baseline: Annotated[float, "rows of the mean step of the target alone"]
    tokens_per_second: Annotated[float | None, "of speculative decoding, all rows together"]
    tokens_per_second_baseline: Annotated[float, "of the target alone, all rows together"]
    latency_s: Annotated[float | None, "seconds per token of one row, speculative decoding"]
    latency_s_baseline: Annotated[float, "seconds per token of one row, the target alone"]


class OfPrompts(TypedDict, total=False):
    """Reading of prompts, and the time to their first token; absent in older records."""

    ttft_s_baseline: Annotated[float, "seconds to the first token: prompt and first step of the target alone, mean"]
    ttft_s: Annotated[float | None, "the same of speculative decoding: prompt by target and draft, and the first pass"]
    tpot_s_baseline: Annotated[float | None, "seconds per token after the first of a row, the target alone"]
    tpot_s: Annotated[float | None, "seconds per token after the first pass of a row, speculative decoding"]
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
    """Bytes that the target needs by itself, and with the draft; absent in older records.

    Weights, caches and tables are counted from the tensors that the models hold: equal runs have equal numbers.
    """

    memory_bytes: Annotated[int, "target and draft"]
    memory_baseline_bytes: Annotated[int, "the target alone"]
    memory_ratio: Annotated[float, "the first over the second"]
    memory_source: Annotated[str, "tensors: counted from tensors; allocator: peak of what CUDA's allocator had given"]
    memory_parts: Annotated[dict[str, int], "bytes of weights and caches of either, and of draft_tables"]
    memory_peak_bytes: Annotated[int | None, "peak of the process, or of CUDA's allocator, during a decoding"]


class Energy(TypedDict, total=False):
    """Energy of decoding, encoder and prefill included; absent in older records."""

    joules_per_token: Annotated[float | None, "speculative decoding"]
    joules_per_token_baseline: Annotated[float | None, "the target alone"]
    joules_missing: Annotated[str | None, "why there is no energy; null if there is"]


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
    Slow,
    Loop,
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
    """Overlap of the vocabularies of draft and target if they differ; absent if they agree."""

    vocabulary: Annotated[str, "tli: draft only shared tokens; slem: draft a string"]
    vocabulary_reason: Annotated[str, "why"]
    shared_of_target: Annotated[float, "share of the target's tokens that the draft has"]
    shared_of_draft: Annotated[float, "share of the draft's tokens that the target has"]


class Limits(TypedDict, total=False):
    """The target's roofline on this device; absent if several devices share the target, and in older records."""

    reading_ms: Annotated[float, "milliseconds in which its weights are read: a run over any tokens takes no less"]
    multiplying_ms: Annotated[float, "milliseconds of one token's multiply-adds, at this device's fastest"]
    expert_share: NotRequired[Annotated[float, "share of a step's weights in the experts of one token"]]
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
    gpu_kernels: NotRequired[
        Annotated[
            str | None,
            "the Triton kernels of specbench that its captured steps call, and those left to torch's operations with "
            "the reason; null: not on a CUDA device",
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
