"""Config to working parts: prompts, target, draft. What can be refused is refused before weights are loaded."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specbench.config import RunConfig
from specbench.drafts import Draft, ModelDraft, NgramDraft, UniformDraft
from specbench.drafts.counts import Counts, cached, fit
from specbench.errors import UserError
from specbench.models import Model, Prompt, Vocabulary, load_model, load_tokenizer, require_same_vocabulary
from specbench.models.load import name_of
from specbench.tasks import Example, Task

Say = Callable[[str], None]


@dataclass(frozen=True)
class Parts:
    """What a run works with; `prompts[i]` is `examples[i]` in tokens."""

    examples: list[Example]
    prompts: list[Prompt]
    vocabulary: Vocabulary
    target: Model
    draft: Draft
    device: torch.device


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
    device = torch.device(config.device)
    dtype: torch.dtype = getattr(torch, config.dtype)
    examples = Task(config.task).examples(config.limit)
    vocabulary = load_tokenizer(config.target, "target")
    draft_vocabulary = None
    if config.draft.kind == "model":
        draft_vocabulary = load_tokenizer(config.draft, "draft")
        _require_a_pair(config, vocabulary, draft_vocabulary)
    prompts = [_prompt(config, vocabulary, example) for example in examples]
    if draft_vocabulary is None:
        draft = _without_weights(config, vocabulary, device, say)
    say(f"loading target {name_of(config.target)}")
    target = load_model(config.target, "target", vocabulary, dtype, device)
    _require_room(config, target.longest, prompts)
    if draft_vocabulary is not None:
        say(f"loading draft {name_of(config.draft)}")
        model = load_model(config.draft, "draft", draft_vocabulary, dtype, device)
        _require_room(config, model.longest, prompts)
        draft = ModelDraft(model, vocabulary.size)
    return Parts(examples, prompts, vocabulary, target, draft, device)


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
    task = Task(config.task)

    def count() -> Counts:
        say(f"fitting n-gram counts on the training text of {config.task.name}")
        return fit((vocabulary.ids(text) for text in task.training_text()), vocabulary.size, vocabulary.start)

    key = f"{vocabulary.fingerprint()}/{vocabulary.start}/{task.training_key()}"
    counts = cached(ngram_cache(config), key, count)
    return NgramDraft(counts, {"unigram": 1, "bigram": 2}[kind], config.draft.discount, device)


def ngram_cache(config: RunConfig) -> Path:
    """The folder of fitted counts: `draft.cache_dir`, or the user's cache."""
    if config.draft.cache_dir:
        return Path(config.draft.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specbench"
