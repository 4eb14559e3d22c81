"""The keys of a run, typed. Hydra fills these from `conf/` and the command line; the result is frozen.

Every key here can be set as `key=value` (`sampling.temperature=1`); the sentence beside it is what `--help` prints.
Defaults that a person picks by name (a target, a draft, a task) live in `conf/`, those that are one number live here.
"""

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING

from specbench.config.draft import DraftConfig
from specbench.config.draft_keys import DraftKeys
from specbench.config.keys import (
    CONTEXT,
    EXISTS,
    MAX_BATCH,
    SHARE,
    Allowed,
    at_least,
    between,
    fresh,
    key,
    one_of,
    tokens_of,
)
from specbench.config.model import ModelConfig
from specbench.config.rule import AcceptConfig
from specbench.config.rules import AcceptKeys
from specbench.config.tree import TreeConfig
from specbench.errors import UserError

METRICS = {
    "bleu": "BLEU", "rouge": "ROUGE-L", "chrf": "chrF", "exact": "exact answers, %", "number": "right numbers, %",
}  # fmt: skip
PLACE = re.compile(r"\{\w+\}")  # of a field in a template


@dataclass
class TaskConfig:
    """Where prompts and references come from."""

    name: str = key(MISSING, "the name in tables")
    path: str | None = key(
        None, "your rows: FILE.jsonl, .csv, .tsv or .txt, optionally .gz, or a folder of these", EXISTS
    )
    train_path: str | None = key(
        None, "your training text for n-gram and retrieval drafts, with the same fields", EXISTS
    )
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
        1, "rows that are joined into one prompt and one reference, for prompts longer than a sentence", at_least(1)
    )
    prefix: str = key("", "text before the source")
    suffix: str = key("", "text after the source for decoder-only models, to mark where the answer begins")
    chat_template: bool | None = key(
        None,
        "true: format prompts with the target's chat template; unset: only conversations; or prompt.template=chat|none",
    )
    prompt_words: int | None = key(
        None,
        "unconditional tasks: words of the row that are the prompt; unset: 0, or 4 at T=0",
        at_least(0, ", or null"),
    )
    shuffle: int | None = key(
        None, "decode the prompts in an order drawn with this seed; unset: as they come", at_least(0, ", or null")
    )
    max_source_tokens: int = key(512, "cut longer prompts to this many tokens", at_least(1))
    train_limit: int = key(100_000, "maximum number of rows of training text for n-gram drafts", at_least(1))
    metric: str | None = key(None, "bleu | rouge | chrf | exact | number", one_of(METRICS))
    template: str | None = key(
        None,
        "a template of the prompt, with {field} for each field of a row; unset: source_field",
        Allowed(lambda text: PLACE.search(text) is not None, "text with {field} for a field of a row"),
    )
    each_turn: bool = key(
        False,
        "conversations: each message of the assistant is a prompt's reference, after the recorded messages before it",
    )
    category_field: str | None = key(None, "the field with the kind of the prompt, for results --by category")


COLDEST = 1e-6  # of the temperatures above 0: logits over a smaller one leave the range of fp32


BIAS = re.compile(r"(\d+):([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)")


def bias_of(text: str) -> tuple[int, float] | None:
    """The token and the number of '17:-2.5'; None for another text."""
    found = BIAS.fullmatch(text)
    return None if found is None or math.isinf(number := float(found[2])) else (int(found[1]), number)


@dataclass
class SamplingConfig:
    """Standardised sampling (section 2.2), for p and q alike."""

    temperature: float = key(
        0.0,
        "T, for both p and q; 0: argmax",
        Allowed(
            lambda temperature: temperature == 0 or COLDEST <= temperature <= 100,
            f"0 (argmax), or from {COLDEST:g} to 100",
        ),
    )
    top_k: int | None = key(None, "sample only from the K most likely tokens", at_least(1, ", or null for off"))
    top_p: float | None = key(
        None,
        "sample only from the smallest set of tokens with this probability",
        Allowed(lambda top_p: 0 < top_p <= 1, "above 0 and at most 1, or null for off"),
    )
    min_p: float | None = key(
        None,
        "sample only tokens with at least this share of the likeliest token's probability",
        Allowed(lambda min_p: 0 < min_p <= 1, "above 0 and at most 1, or null for off"),
    )
    repetition_penalty: float = key(
        1.0,
        "divide positive logits of tokens that came before by this, multiply negative ones",
        Allowed(lambda penalty: penalty > 0, "above 0; 1 is off"),
    )
    presence_penalty: float = key(0.0, "subtract this from the logits of tokens in the completion", between(-2, 2))
    frequency_penalty: float = key(0.0, "subtract this for each time that the completion has the token", between(-2, 2))
    bad_words: list[str] = fresh(list, "words, and sequences of words, that a completion must not have")
    bad_words_ids: list[list[int]] = fresh(list, "the same as lists of token ids, as [[5],[17,3]]")
    min_new_tokens: int = key(0, "no end of sequence before this many tokens", at_least(0))
    logit_bias: list[str] = fresh(
        list,
        "ID:NUMBER, added to the logit of the token with this id: [17:-100,5:2.5]",
        Allowed(lambda listed: all(map(bias_of, listed)), "a list of ID:NUMBER, as in [17:-100,5:2.5]"),
    )
    no_repeat_ngram_size: int = key(
        0, "no sequence of so many tokens occurs twice in prompt and completion; 0: off", at_least(0)
    )
    suppress_tokens: list[int] = fresh(list, "ids of tokens that a completion must not have")
    forced_tokens: list[int] = fresh(list, "ids of the tokens that each completion begins with")
    stop: list[str] = fresh(
        list,
        "a completion ends with the token that completes one of these strings",
        Allowed(all, "strings of at least one character"),
    )
    ignore_eos: bool = key(False, "end-of-sequence tokens do not end a completion")
    from_model: bool = key(False, "take what the target's generation_config.json sets and no option here does")
    regex: str | None = key(None, "a regular expression that the completion must match, unless max_new_tokens cuts it")

    typed: ClassVar[frozenset[str]] = frozenset()  # of an instance: keys that were set by hand, also to their default

    def chosen(self) -> frozenset[str]:
        """The keys that are set: to another value than their default, or by hand."""
        return self.typed | self.set_keys().keys()

    @property
    def processes(self) -> bool:
        """Whether logits are changed by id or by the tokens before them: any key but of `DRAWING` and `ENDING`."""
        return any(name not in (*DRAWING, *ENDING) for name in self.set_keys())

    def set_keys(self) -> dict[str, object]:
        """The keys that are not at their default."""
        plain = SamplingConfig()
        named = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in named if value != getattr(plain, name)}

    def processing(self) -> str | None:
        """The settings besides temperature, top-k and top-p that shape the distribution, for tables; None: nothing."""
        return " ".join(f"{name}={value}" for name, value in self.set_keys().items() if name not in OLD) or None

    def pattern(self) -> Any:
        """`regex`, compiled; None without one. Raises UserError if it is no regular expression."""
        if self.regex is None:
            return None
        import regex

        try:
            return regex.compile(self.regex)
        except regex.error as error:
            raise UserError(f"sampling.regex={self.regex}: is no regular expression ({error})") from error


OLD = ("temperature", "top_k", "top_p")  # columns of their own in every record
DRAWING = (*OLD, "min_p")  # functions of one row
ENDING = ("stop", "ignore_eos", "from_model")  # that change no row


@dataclass
class SimulateConfig:
    """Measuring times at a given alpha: the real loop and kernels, acceptance at random. Texts mean nothing then."""

    alpha: float | None = key(
        None,
        "accept each draft token with this probability, to time passes; unset: accept by the rule",
        between(0, 1, ", or null"),
    )


MEASURES = ("run", "sweep")  # the verbs that read `runs` and `until`
PREDICTS = ("recommend", "recommend --validate")  # the verbs that read `resamples`
DEVICE = "cpu | cuda | cuda:N | mps | auto: cuda if there is one"
THREADS = "CPU threads; unset: the physical cores that this process may use"
DEVICES = Allowed(re.compile(r"auto|cpu|cuda(:\d+)?|mps").fullmatch, "auto | cpu | cuda | cuda:N | mps")


@dataclass
class RunConfig:
    """One run: a target, a draft, a task, and how they decode.

    conf_file: the file of `conf/` that composes the config.
    tells_alpha: whether alpha is a result, which it cannot be with random weights.
    """

    conf_file: ClassVar[str] = "run"
    tells_alpha: ClassVar[bool] = True

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
    batch: int = key(1, "prompts decoded at once, with continuous batching", between(1, MAX_BATCH))
    context: str | None = key(
        None,
        "prepend other whole rows of the task to each prompt, up to so many tokens in all: 4096, 4k (4 x 1024); with "
        "commas in run, sweep, alpha and recommend; unset: prompts as they are (docs/tasks.md)",
        CONTEXT,
    )
    max_new_tokens: int = key(128, "maximum number of new tokens per prompt", at_least(1))
    limit: int | None = key(None, "number of prompts; unset: all of the task", at_least(1, ", or null for all"))
    until: str | None = key(
        None,
        "stop at the first look at which the speedup's interval reaches this far to either side (2% or 0.02); limit, "
        "or the task, is the most prompts; the interval is corrected for the looks",
        SHARE,
        MEASURES,
    )
    runs: int = key(
        1,
        "fresh processes that measure the same prompts, one after the other; the intervals of times then cover "
        "differences between processes",
        between(1, 100),
        MEASURES,
    )
    seed: int = key(0, "seed of sampling", at_least(0))
    dtype: str = key(
        "auto",
        "bfloat16 | float32 | float16 | auto: bfloat16 where a GPU computes in it; on a CPU bfloat16, or "
        "float32 where a short probe finds it clearly faster; the run prints and records it",
        one_of(("auto", "bfloat16", "float32", "float16")),
    )
    device: str = key("auto", DEVICE, DEVICES)
    engine: str = key(
        "auto",
        "eager | static | native | cudagraph | compile | auto: cudagraph on CUDA, native on a CPU (static if there "
        "is no C compiler)",
        one_of(("auto", "eager", "static", "native", "cudagraph", "compile")),
    )
    numerics: str = key(
        "auto",
        "the target's kernels: invariant (logits bitwise the same however many positions are read at once) | fast | "
        "auto: invariant if that costs nothing (engine=native), else fast",
        one_of(("auto", "invariant", "fast")),
    )
    threads: int | None = key(None, THREADS, at_least(1, ", or null"))
    warmup: int = key(2, "prompts decoded before timing starts", at_least(0))
    reuse: bool = key(
        True,
        "read what prompts of the task begin with alike (a system prompt, examples, earlier turns) once, with and "
        "without the draft, and copy its cache; false: read every prompt as a whole",
    )
    resamples: int = key(2000, "resamples of prompts and rounds, for intervals of predictions", at_least(100), PREDICTS)
    results: str = key("results", "the folder of the records")
    force: bool = key(False, "run even if a record of this config exists")

    @property
    def context_tokens(self) -> int | None:
        """Maximum tokens of a prompt with the rows before it; None if prompts are as they are."""
        return None if self.context is None else tokens_of(self.context)


def task_label(name: str, path: str | None) -> str:
    """The task's name; with the user's own rows also their file: 'ende (rows.jsonl)' is not the paper's EnDe."""
    return name if path is None else f"{name} ({Path(path).name})"
