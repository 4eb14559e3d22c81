"""The keys of a run, typed. Hydra fills these from `conf/` and the command line; the result is frozen.

Every key here can be set as `key=value` (`sampling.temperature=1`); the sentence beside it is what `--help` prints.
Defaults that a person picks by name (a target, a draft, a task) live in `conf/`, those that are one number live here.
"""

from dataclasses import dataclass

from omegaconf import MISSING

from specbench.config.draft import DraftConfig
from specbench.config.drafts import DraftKeys
from specbench.config.keys import fresh, key
from specbench.config.model import ModelConfig
from specbench.config.rule import AcceptConfig
from specbench.config.rules import AcceptKeys
from specbench.config.tree import TreeConfig


@dataclass
class TaskConfig:
    """Where prompts and references come from."""

    name: str = key(MISSING, "the name in tables")
    path: str | None = key(None, "your rows: FILE.jsonl, .csv, .tsv or .txt, optionally .gz, or a folder of these")
    train_path: str | None = key(None, "your training text for n-gram and retrieval drafts, with the same fields")
    hub: str | None = key(None, "a data set on the hub, OWNER/NAME")
    subset: str | None = key(None, "its configuration")
    revision: str | None = key(None, "its commit")
    split: str = key("test", "the split of the prompts")
    train_split: str = key("train", "the split of the training text")
    shipped: str | None = key(None, "a file of rows that ships with this project")
    train_shipped: str | None = key(None, "a file of training rows that ships with this project")
    source_field: str | None = key(None, "the field of a row that is the prompt; unset: unconditional generation")
    reference_field: str | None = key(
        None, "the field with the reference, also the training text of n-grams; unset: no reference"
    )
    rows_per_prompt: int = key(
        1, "rows that are joined into one prompt and one reference, for prompts longer than a sentence"
    )
    prefix: str = key("", "text before the source")
    suffix: str = key("", "text after the source for decoder-only models, to mark where the answer begins")
    chat_template: bool | None = key(
        None,
        "true: format prompts with the target's chat template; unset: only conversations; or prompt.template=chat|none",
    )
    prompt_words: int | None = key(
        None, "unconditional tasks: words of the row that are the prompt; unset: 0, or 4 at T=0"
    )
    shuffle: int | None = key(None, "decode the prompts in an order drawn with this seed; unset: as they come")
    max_source_tokens: int = key(512, "cut longer prompts to this many tokens")
    train_limit: int = key(100_000, "the most rows of training text that n-gram drafts are fitted on")
    metric: str | None = key(None, "bleu | rouge | chrf | exact | number")
    template: str | None = key(
        None, "a template of the prompt, with {field} for each field of a row; unset: source_field"
    )
    category_field: str | None = key(None, "the field with the kind of the prompt, for results --by category")


@dataclass
class SamplingConfig:
    """Standardised sampling (section 2.2), for p and q alike."""

    temperature: float = key(0.0, "T, for both p and q; 0: argmax")
    top_k: int | None = key(None, "sample only from the K most likely tokens")
    top_p: float | None = key(None, "sample only from the smallest set of tokens with this probability")


@dataclass
class SimulateConfig:
    """Measuring times at a given alpha: the real loop and kernels, acceptance at random. Texts mean nothing then."""

    alpha: float | None = key(
        None, "accept each draft token with this probability, to time passes; unset: accept by the rule"
    )


@dataclass
class RunConfig:
    """One run: a target, a draft, a task, and how they decode."""

    target: ModelConfig = fresh(ModelConfig, "the model to accelerate")
    draft: DraftConfig = fresh(DraftKeys, "what drafts for it")
    task: TaskConfig = fresh(TaskConfig, "what to decode")
    sampling: SamplingConfig = fresh(SamplingConfig, "how tokens are sampled")
    accept: AcceptConfig = fresh(AcceptKeys, "which drafted tokens are accepted")
    tree: TreeConfig = fresh(TreeConfig, "several continuations verified in one pass")
    simulate: SimulateConfig = fresh(SimulateConfig, "timing without checkpoints")
    gamma: int | str = key(
        3,
        "tokens drafted in a pass | auto: the best by a short probe | adaptive: starts there and adapts to each "
        "completion | heuristic: the schedule of transformers",
    )
    batch: int = key(1, "prompts decoded at once, with continuous batching")
    max_new_tokens: int = key(128, "the most tokens generated for a prompt")
    limit: int | None = key(None, "number of prompts; unset: all of the task")
    seed: int = key(0, "seed of sampling and bootstrap")
    dtype: str = key(
        "auto",
        "bfloat16 | float32 | float16 | auto: bfloat16 where a GPU computes in it; on a CPU bfloat16, or "
        "float32 where a short probe finds it clearly faster; the run prints and records it",
    )
    device: str = key("auto", "cpu | cuda | cuda:N | mps | auto: cuda where there is one")
    engine: str = key(
        "auto",
        "eager | static | native | cudagraph | compile | auto: cudagraph on CUDA, native on a CPU (static where there "
        "is no C compiler)",
    )
    numerics: str = key(
        "auto",
        "the target's kernels: invariant (logits bitwise the same however many positions are read at once) | fast | "
        "auto: invariant where that costs nothing (engine=native), else fast",
    )
    threads: int | None = key(None, "CPU threads of torch; unset: torch's own choice")
    warmup: int = key(2, "prompts decoded before timing starts")
    resamples: int = key(2000, "bootstrap resamples over prompts")
    results: str = key("results", "the folder of the records")
    force: bool = key(False, "run even if a record of this config exists")
