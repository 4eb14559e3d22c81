"""A builder for each kind of draft. Its constructor refuses what does not fit; `fit` reads text; `load` loads weights,
once the target is loaded.

A new kind is a `DraftBuilder` and its entry in BUILDERS, a name in `config.kinds`, and a file in `conf/draft/`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from specbench.config import DraftConfig
from specbench.config.kinds import DRAFT_KINDS, ngram_order
from specbench.drafts import (
    CascadeDraft,
    Draft,
    LookupDraft,
    ModelDraft,
    NgramDraft,
    RetrievalDraft,
    UniformDraft,
    suffixes,
)
from specbench.drafts.cache import Arrays, cached
from specbench.drafts.corpus import Corpus, gather
from specbench.drafts.counts import Counts, fit
from specbench.drafts.suffixes import SuffixIndex
from specbench.errors import UserError
from specbench.models import load_tokenizer
from specbench.models.eager import EagerModel
from specbench.models.load import name_of
from specbench.run.compatibility import require_a_pair, require_range
from specbench.run.draft_builders.base import DraftBuilder, DraftRequest
from specbench.run.draft_builders.inside_target import BlockwiseBuilder, EarlyExitBuilder
from specbench.run.model_loader import ModelRequest, Say
from specbench.tasks import Task

ROWS_BETWEEN_WORDS = 20_000


def builder_for(request: DraftRequest) -> DraftBuilder:
    return BUILDERS[request.draft.kind](request)


class _Model(DraftBuilder):
    def __init__(self, wanted: DraftRequest) -> None:
        super().__init__(wanted)
        self.own_vocabulary = load_tokenizer(wanted.draft, wanted.key)
        require_a_pair(wanted.run, wanted.draft, wanted.key, wanted.vocabulary, self.own_vocabulary)
        require_range(wanted.run, self.own_vocabulary, name_of(wanted.draft))

    def load(self, target: EagerModel, say: Say) -> Draft:
        self.models.append(self.load_model(say))
        return ModelDraft(self.models[0], self.wanted.vocabulary.size, self.wanted.draft.confidence)

    def load_model(self, say: Say, states: bool = False) -> EagerModel:
        wanted = self.wanted
        request = ModelRequest(wanted.draft, wanted.key, self.own_vocabulary, wanted.run, wanted.device, states)
        return wanted.loader.load(request, say)


class _Uniform(DraftBuilder):
    def load(self, target: EagerModel, say: Say) -> Draft:
        return UniformDraft(self.wanted.vocabulary.size, self.wanted.device)


class _Lookup(DraftBuilder):
    def load(self, target: EagerModel, say: Say) -> Draft:
        return LookupDraft(self.wanted.vocabulary.size, self.wanted.device, self.wanted.draft.match)


class _FromText(DraftBuilder):
    """What is fitted on the task's training text, or on `draft.corpus`, and kept by content."""

    def __init__(self, wanted: DraftRequest) -> None:
        super().__init__(wanted)
        task = wanted.run.task
        self.task = Task(replace(task, train_path=wanted.draft.corpus) if wanted.draft.corpus else task)

    def fitted(self, kind: str, settings: str, make: Callable[[Corpus], Arrays], say: Say) -> Arrays:
        """What `make` makes of the text. `settings` are what it depends on besides."""
        vocabulary = self.wanted.vocabulary
        key = f"{vocabulary.fingerprint()}/{vocabulary.start}/{self.task.training_key()}/{settings}"
        return cached(cache_folder(self.wanted.draft), kind, key, lambda: make(self._corpus(say)))

    def _corpus(self, say: Say) -> Corpus:
        def sequences() -> Iterator[list[int]]:
            for number, text in enumerate(self.task.training_text()):
                if number % ROWS_BETWEEN_WORDS == 0:
                    say(f"reading the training text of {self.task.config.name}: {number:,} rows")
                yield self.wanted.vocabulary.ids(text)

        return gather(sequences(), self.wanted.vocabulary.start)


class _Ngram(_FromText):
    counts: Counts

    def __init__(self, wanted: DraftRequest) -> None:
        super().__init__(wanted)
        self.order = ngram_order(wanted.draft)

    def fit(self, say: Say) -> None:
        size, order = self.wanted.vocabulary.size, max(2, self.order)  # a unigram takes a bigram's counts

        def make(corpus: Corpus) -> Arrays:
            return fit(corpus, size, order, say).arrays()

        self.counts = Counts.of(self.fitted("ngram", f"order {order}", make, say))

    def load(self, target: EagerModel, say: Say) -> Draft:
        return NgramDraft(self.counts, self.order, self.wanted.draft.discount, self.wanted.device)


class _Retrieval(_FromText):
    index: SuffixIndex

    def __init__(self, wanted: DraftRequest) -> None:
        super().__init__(wanted)
        if find_spec("pydivsufsort") is None:
            raise UserError(
                f"{wanted.key}.kind=retrieval: pydivsufsort, which sorts the corpus, is not installed: "
                "pip install 'specbench-toolkit[retrieval]'"
            )

    def fit(self, say: Say) -> None:
        size = self.wanted.vocabulary.size

        def make(corpus: Corpus) -> Arrays:
            say(f"sorting the suffixes of {len(corpus.tokens_N):,} tokens")
            return suffixes.build(corpus, size)

        self.index = SuffixIndex(self.fitted("suffixes", "", make, say), size)

    def load(self, target: EagerModel, say: Say) -> Draft:
        return RetrievalDraft(self.index, self.wanted.vocabulary.size, self.wanted.device, self.wanted.draft.match)


class _Cascade(DraftBuilder):
    def __init__(self, wanted: DraftRequest) -> None:
        super().__init__(wanted)
        draft = wanted.draft
        assert draft.via is not None and draft.inner is not None
        self.middle = _Model(replace(wanted, draft=draft.via, key=f"{wanted.key}.via"))
        inner = replace(draft.inner, cache_dir=draft.inner.cache_dir or draft.cache_dir)
        run = wanted.run
        if DRAFT_KINDS[inner.kind].inside:  # of the middle model, which is its target
            run = replace(run, target=draft.via, gamma=draft.inner_gamma)
        self.inner = builder_for(replace(wanted, run=run, draft=inner, key=f"{wanted.key}.inner"))

    def fit(self, say: Say) -> None:
        self.inner.fit(say)

    def load(self, target: EagerModel, say: Say) -> Draft:
        middle = self.middle.load_model(say, self.inner.needs_states)
        inner = self.inner.load(middle, say)
        self.models += [middle, *self.inner.models]
        return CascadeDraft(middle, inner, self.wanted.draft.inner_gamma, self.wanted.vocabulary.size)


def cache_folder(draft: DraftConfig) -> Path:
    """Where what is fitted on text is kept: `draft.cache_dir`, or the user's cache."""
    if draft.cache_dir:
        return Path(draft.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specbench"


BUILDERS: dict[str, Callable[[DraftRequest], DraftBuilder]] = {
    "model": _Model,
    "unigram": _Ngram,
    "bigram": _Ngram,
    "ngram": _Ngram,
    "random": _Uniform,
    "lookup": _Lookup,
    "retrieval": _Retrieval,
    "cascade": _Cascade,
    "early-exit": EarlyExitBuilder,
    "blockwise": BlockwiseBuilder,
}
