"""The keys of a run, typed. Hydra fills these from `conf/` and the command line; the result is frozen.

Every key here can be set as `key=value` (`sampling.temperature=1`). Defaults that a person picks by name
(a target, a draft, a task) live in `conf/`; defaults that are one number live here.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class ModelConfig:
    """Where a model comes from. The first of `path`, `hub`, `shipped` that is set is used."""

    name: str | None = None  # shown in tables; the folder's or repository's name where unset
    path: str | None = None  # a local folder of weights and tokenizer
    hub: str | None = None  # a repository on the model hub
    revision: str | None = None  # its commit; needed with `hub`
    shipped: str | None = None  # a model that comes with this project
    device_map: str | None = None  # auto | balanced | sequential: spread over all GPUs, layer by layer (accelerate)
    tp_plan: str | None = None  # auto: every layer over all GPUs (tensor parallel), under torchrun
    weights: str = "trained"  # trained | random: the true shape, for times without a checkpoint; see simulate.alpha
    architecture: dict[str, Any] = field(default_factory=dict)  # random weights without a config.json: the shape
    note: str | None = None  # what this checkpoint is, and which one of the paper's it stands for


@dataclass
class DraftConfig(ModelConfig):
    """A draft: a model as above, or one of the kinds that have no weights, or one made of others (cascade)."""

    kind: str = "model"  # config/kinds.py names them all
    confidence: float | None = None  # model: a proposal ends behind a token whose own q is below this
    match: int = 3  # lookup, retrieval: the longest run of tokens that is looked for
    order: int = 3  # ngram: tokens of the longest n-gram
    discount: float = 0.75  # n-grams: absolute discount that feeds the backoff
    corpus: str | None = None  # n-grams, retrieval: own text in the place of the task's training text, same fields
    cache_dir: str | None = None  # n-grams, retrieval: where what was fitted is kept
    via: "DraftConfig | None" = None  # cascade: the model whose tokens the target checks
    inner: "DraftConfig | None" = None  # cascade: the cheaper draft, whose tokens `via` checks
    inner_gamma: int = 2  # cascade: tokens that the inner draft drafts at a time
    layers: int = 1  # early-exit: the target's own first decoder layers that draft


@dataclass
class TaskConfig:
    """Where prompts and references come from."""

    name: str = MISSING
    path: str | None = None  # own rows: FILE.jsonl[.gz], FILE.txt[.gz], or a folder of text shards
    train_path: str | None = None  # own training text for n-gram drafts, same fields
    hub: str | None = None  # a data set on the hub
    subset: str | None = None
    revision: str | None = None
    split: str = "test"
    train_split: str = "train"
    shipped: str | None = None  # a file that comes with this project
    train_shipped: str | None = None
    source_field: str | None = None  # the row's field that goes into the prompt; none: unconditional
    reference_field: str = MISSING  # the field that quality is measured against and n-grams are fitted on
    rows_per_prompt: int = 1  # rows joined into one prompt and one reference, for texts longer than a sentence
    prefix: str = ""  # put before the source
    suffix: str = ""  # put behind the source for decoder-only models, which must be told where to answer
    prompt_words: int | None = None  # unconditional tasks: words of the text given; unset: 0, or 4 at T=0
    max_source_tokens: int = 512  # longer prompts are cut to this
    train_limit: int = 100_000  # rows of training text that n-gram drafts are fitted on
    metric: str | None = None  # bleu | rouge


@dataclass
class SamplingConfig:
    """Standardised sampling (section 2.2), for p and q alike."""

    temperature: float = 0.0  # 0 is argmax
    top_k: int | None = None
    top_p: float | None = None


@dataclass
class AcceptConfig:
    """Which drafted tokens stay."""

    rule: str = "exact"  # exact | lenient | typical | block
    lenience: float | None = None  # lenient: l of A.5
    epsilon: float | None = None  # typical: the highest bar that a token's p must pass
    delta: float | None = None  # typical: the bar is delta exp(-entropy) below that


@dataclass
class SimulateConfig:
    """Measuring times at a given alpha: the real loop and kernels, acceptance by chance. Texts mean nothing then."""

    alpha: float | None = None  # the probability that a drafted token is accepted; unset: Algorithm 1 decides


@dataclass
class RunConfig:
    """One run: a target, a draft, a task, and how they decode."""

    target: ModelConfig = field(default_factory=ModelConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    accept: AcceptConfig = field(default_factory=AcceptConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    gamma: int | str = 7  # tokens drafted in a pass | auto: by a probe | adaptive, heuristic: follows each text
    max_new_tokens: int = 128
    limit: int | None = None  # prompts; unset: all
    seed: int = 0
    dtype: str = "auto"  # bfloat16 | float32 | float16; auto: bfloat16 where the device computes in it
    device: str = "auto"  # cpu | cuda | cuda:N; auto: cuda where there is one
    engine: str = (
        "auto"  # eager | static | cudagraph | compile; auto: cudagraph on CUDA, static on CPU, where the model allows
    )
    threads: int | None = None  # CPU threads of torch; unset: torch's own choice
    warmup: int = 2  # prompts decoded before the clock starts
    resamples: int = 2000  # bootstrap resamples over prompts
    results: str = "results"  # the folder that records go to
    force: bool = False  # run again although the record is there
