"""Each kind of draft in the making. What can be refused is refused when its maker is made; then text is read; then
weights are loaded, when the target is there already.

A new kind is a `Maker` and its entry in MAKERS, a name in `config.kinds`, and a file in `conf/draft/`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from specbench.config import DraftConfig, RunConfig
from specbench.drafts import Draft, LookupDraft, ModelDraft, NgramDraft, UniformDraft
from specbench.drafts.counts import Counts, cached, fit
from specbench.models import Vocabulary, load_model, load_tokenizer
from specbench.models.eager import EagerModel
from specbench.models.load import name_of
from specbench.run.refuse import require_a_pair, require_range
from specbench.tasks import Task

Say = Callable[[str], None]
ROWS_BETWEEN_WORDS = 20_000


@dataclass(frozen=True)
class Wanted:
    """A draft to be made for the target of `run`. `key` is what the config calls it, for messages."""

    run: RunConfig
    draft: DraftConfig
    key: str
    vocabulary: Vocabulary  # the target's
    device: torch.device


class Maker:
    """One draft in the making; `load` is called once, after `fit`."""

    def __init__(self, wanted: Wanted) -> None:
        """Refuse what does not go together (UserError)."""
        self.wanted = wanted
        self.models: list[EagerModel] = []  # what `load` loaded besides the target

    def fit(self, say: Say) -> None:
        """Read what needs no weights."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        """The draft, ready to start on prompts of the loaded `target`."""
        raise NotImplementedError


def maker(wanted: Wanted) -> Maker:
    return MAKERS[wanted.draft.kind](wanted)


class _Model(Maker):
    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self.own_vocabulary = load_tokenizer(wanted.draft, wanted.key)
        require_a_pair(wanted.run, wanted.draft, wanted.key, wanted.vocabulary, self.own_vocabulary)
        require_range(wanted.run, self.own_vocabulary, name_of(wanted.draft))

    def load(self, target: EagerModel, say: Say) -> Draft:
        run, draft, key = self.wanted.run, self.wanted.draft, self.wanted.key
        say(f"loading {key} {name_of(draft)}")
        dtype: torch.dtype = getattr(torch, run.dtype)
        model = load_model(draft, key, self.own_vocabulary, dtype, self.wanted.device, run.engine)
        say_fall_back(model, key, say)
        self.models.append(model)
        return ModelDraft(model, self.wanted.vocabulary.size, draft.confidence)


def say_fall_back(model: EagerModel, key: str, say: Say) -> None:
    """Tell why `engine=auto` came to the slowest engine, if it did."""
    if model.fell_back is not None:
        say(f"{key}: engine=auto came to eager, {model.fell_back}")


class _Uniform(Maker):
    def load(self, target: EagerModel, say: Say) -> Draft:
        return UniformDraft(self.wanted.vocabulary.size, self.wanted.device)


class _Lookup(Maker):
    def load(self, target: EagerModel, say: Say) -> Draft:
        return LookupDraft(self.wanted.vocabulary.size, self.wanted.device, self.wanted.draft.match)


class _Ngram(Maker):
    counts: Counts

    def fit(self, say: Say) -> None:
        vocabulary, task = self.wanted.vocabulary, Task(self.wanted.run.task)
        key = f"{vocabulary.fingerprint()}/{vocabulary.start}/{task.training_key()}"
        self.counts = cached(
            cache_folder(self.wanted.draft),
            key,
            lambda: fit(_sequences(task, vocabulary, say), vocabulary.size, vocabulary.start),
        )

    def load(self, target: EagerModel, say: Say) -> Draft:
        draft = self.wanted.draft
        return NgramDraft(self.counts, {"unigram": 1, "bigram": 2}[draft.kind], draft.discount, self.wanted.device)


def _sequences(task: Task, vocabulary: Vocabulary, say: Say) -> Iterator[list[int]]:
    for number, text in enumerate(task.training_text()):
        if number % ROWS_BETWEEN_WORDS == 0:
            say(f"fitting n-gram counts on the training text of {task.config.name}: {number:,} rows")
        yield vocabulary.ids(text)


def cache_folder(draft: DraftConfig) -> Path:
    """Where what is fitted on text is kept: `draft.cache_dir`, or the user's cache."""
    if draft.cache_dir:
        return Path(draft.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specbench"


MAKERS: dict[str, Callable[[Wanted], Maker]] = {
    "model": _Model,
    "unigram": _Ngram,
    "bigram": _Ngram,
    "random": _Uniform,
    "lookup": _Lookup,
}
