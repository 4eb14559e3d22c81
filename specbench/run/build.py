"""Config to working parts: prompts, target, draft. What can be refused is refused before weights are loaded."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specbench.config import RunConfig
from specbench.drafts import Draft, LookupDraft, ModelDraft, NgramDraft, UniformDraft
from specbench.drafts.counts import Counts, cached, fit
from specbench.errors import UserError
from specbench.gamma import Constant, Gamma
from specbench.models import Model, Prompt, Vocabulary, load_model, load_tokenizer, require_same_vocabulary
from specbench.models.eager import EagerModel
from specbench.models.load import name_of
from specbench.tasks import Example, Task

Say = Callable[[str], None]
UNSETTLED = Constant(1)
ROWS_BETWEEN_WORDS = 20_000


@dataclass(frozen=True)
class Parts:
    """What a run works with; `prompts[i]` is `examples[i]` in tokens."""

    examples: list[Example]
    prompts: list[Prompt]
    vocabulary: Vocabulary
    target: Model
    draft: Draft
    device: torch.device
    engine: str  # what ran the target, and after a '+' the draft where it is another
    warmup_s: float  # seconds that made the engines ready
    gamma: Gamma = UNSETTLED  # `run.gamma` puts in what the config comes to


def resolve(config: RunConfig) -> RunConfig:
    """The config with every 'auto' and every dependent default replaced by what it comes to on this machine."""
    device = _device(config.device)
    task = config.task
    if task.source_field is None and task.prompt_words is None:
        # From the empty prompt, argmax writes one and the same text every time.
        task = replace(task, prompt_words=4 if config.sampling.temperature == 0 else 0)
    return replace(config, device=str(device), dtype=_dtype(config.dtype, device), task=task)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name}: this machine has {torch.cuda.device_count()} CUDA devices; use device=cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"device={name}: there is no such device on this machine; use device=cpu")
    return device


def _dtype(name: str, device: torch.device) -> str:
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    fast = (
        device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
    return "bfloat16" if fast else "float32"


def build(config: RunConfig, say: Say) -> Parts:
    """The parts of a resolved config. `say` is told of each long step."""
    return build_each([config], say)[0]


def build_each(configs: Sequence[RunConfig], say: Say) -> list[Parts]:
    """The parts of each of several resolved configs that differ in draft, task and sampling alone. The target and every
    draft are loaded once and stay in memory together; every pair is checked before any weight is loaded."""
    first = configs[0]
    device = torch.device(first.device)
    vocabulary = load_tokenizer(first.target, "target")
    _require_range(first, vocabulary, name_of(first.target))
    drafts = {_key(config): _DraftMaker(config, vocabulary, device) for config in configs}
    examples = [Task(config.task).examples(config.limit) for config in configs]
    prompts = [
        [_prompt(config, vocabulary, example) for example in given]
        for config, given in zip(configs, examples, strict=True)
    ]
    for maker in drafts.values():
        maker.fit(say)
    say(f"loading target {name_of(first.target)}")
    dtype: torch.dtype = getattr(torch, first.dtype)
    target = load_model(first.target, "target", vocabulary, dtype, device, first.engine)
    _say_fall_back(target, "target", say)
    for config, told in zip(configs, prompts, strict=True):
        _require_room(config, target.longest, told)
    for maker in drafts.values():
        maker.load(say)
    if first.simulate.alpha is not None:  # texts mean nothing, so where they would end does not either
        for model in (target, *(maker.model for maker in drafts.values() if maker.model is not None)):
            model.eos_ids = frozenset()
    found = []
    for config, given, told in zip(configs, examples, prompts, strict=True):
        maker = drafts[_key(config)]
        engine, warmup_s = target.engine, target.warmup_s
        if maker.model is not None:
            _require_room(config, maker.model.longest, told)
            engine += f"+{maker.model.engine}" if maker.model.engine != engine else ""
            warmup_s += maker.model.warmup_s
        assert maker.draft is not None
        found.append(Parts(given, told, vocabulary, target, maker.draft, device, engine, warmup_s))
    return found


def _key(config: RunConfig) -> str:
    """What makes one draft another: its own config, and for n-grams the text they are fitted on."""
    return repr((config.draft, config.task if config.draft.kind in ("unigram", "bigram") else None))


class _DraftMaker:
    """A draft in the making: first all that can be refused without weights, then the weights."""

    def __init__(self, config: RunConfig, vocabulary: Vocabulary, device: torch.device) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.device = device
        self.model: EagerModel | None = None
        self.draft: Draft | None = None
        if config.draft.kind == "model":
            self.own_vocabulary = load_tokenizer(config.draft, "draft")
            _require_a_pair(config, vocabulary, self.own_vocabulary)
            _require_range(config, self.own_vocabulary, name_of(config.draft))

    def fit(self, say: Say) -> None:
        if self.config.draft.kind != "model":
            self.draft = _without_weights(self.config, self.vocabulary, self.device, say)

    def load(self, say: Say) -> None:
        config = self.config
        if config.draft.kind == "model":
            say(f"loading draft {name_of(config.draft)}")
            dtype: torch.dtype = getattr(torch, config.dtype)
            self.model = load_model(config.draft, "draft", self.own_vocabulary, dtype, self.device, config.engine)
            _say_fall_back(self.model, "draft", say)
            self.draft = ModelDraft(self.model, self.vocabulary.size)


def _say_fall_back(model: EagerModel, key: str, say: Say) -> None:
    if model.fell_back is not None:
        say(f"{key}: engine=auto came to eager, {model.fell_back}")


def _prompt(config: RunConfig, vocabulary: Vocabulary, example: Example) -> Prompt:
    if config.task.source_field is not None and not example.prompt.removeprefix(config.task.prefix).strip():
        raise UserError(
            f"task={config.task.name}, row {example.index + 1}: the prompt is empty "
            f"(field '{config.task.source_field}')"
        )
    return vocabulary.prompt(example.prompt, config.task.suffix, config.task.max_source_tokens)


def _require_a_pair(config: RunConfig, target: Vocabulary, draft: Vocabulary) -> None:
    if target.is_encoder_decoder != draft.is_encoder_decoder:
        kinds = {True: "encoder-decoder", False: "decoder-only"}
        raise UserError(
            f"draft={name_of(config.draft)}: is {kinds[draft.is_encoder_decoder]} and target={name_of(config.target)} "
            f"is {kinds[target.is_encoder_decoder]}: pick a draft of the target's kind, or use unigram, bigram, random"
        )
    require_same_vocabulary(target, draft, name_of(config.target), name_of(config.draft))


def _require_range(config: RunConfig, vocabulary: Vocabulary, name: str) -> None:
    """T5 was trained in bf16, and its activations leave the range of fp16 (transformers#9295)."""
    if config.dtype == "float16" and vocabulary.family in ("t5", "mt5", "umt5"):
        raise UserError(f"dtype=float16: {name} is a T5, which overflows in fp16; use bfloat16 or float32")


def _require_room(config: RunConfig, longest: int | None, prompts: list[Prompt]) -> None:
    """Learned positions end somewhere; a text must not run past them."""
    needed = max(len(prompt.prefix) for prompt in prompts) + config.max_new_tokens
    if longest is not None and needed > longest:
        raise UserError(
            f"max_new_tokens={config.max_new_tokens}: with the longest prompt this makes {needed} tokens, and the "
            f"model has positions for {longest}; lower max_new_tokens or task.max_source_tokens"
        )


def _without_weights(config: RunConfig, vocabulary: Vocabulary, device: torch.device, say: Say) -> Draft:
    kind = config.draft.kind
    if kind == "random":
        return UniformDraft(vocabulary.size, device)
    if kind == "lookup":
        return LookupDraft(vocabulary.size, device, config.draft.match)
    task = Task(config.task)

    def sequences() -> Iterator[list[int]]:
        for number, text in enumerate(task.training_text()):
            if number % ROWS_BETWEEN_WORDS == 0:
                say(f"fitting n-gram counts on the training text of {config.task.name}: {number:,} rows")
            yield vocabulary.ids(text)

    def count() -> Counts:
        return fit(sequences(), vocabulary.size, vocabulary.start)

    key = f"{vocabulary.fingerprint()}/{vocabulary.start}/{task.training_key()}"
    counts = cached(ngram_cache(config), key, count)
    return NgramDraft(counts, {"unigram": 1, "bigram": 2}[kind], config.draft.discount, device)


def ngram_cache(config: RunConfig) -> Path:
    """The folder of fitted counts: `draft.cache_dir`, or the user's cache."""
    if config.draft.cache_dir:
        return Path(config.draft.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specbench"
