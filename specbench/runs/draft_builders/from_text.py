"""Builders of drafts that are fitted on text: n-gram counts and the index of a corpus."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from specbench.config.draft_kinds import DiscountedConfig, RetrievalConfig, TextDraftConfig, UnigramConfig
from specbench.drafts import Draft, NgramDraft, RetrievalDraft, suffixes
from specbench.drafts.cache import Arrays, cached
from specbench.drafts.corpus import Corpus, gather
from specbench.drafts.counts import Counts, fit
from specbench.drafts.store import GrowingStore
from specbench.drafts.suffixes import SuffixIndex
from specbench.errors import UserError
from specbench.files import user_cache
from specbench.models.eager import EagerModel
from specbench.runs.draft_builders.base import DraftBuilder, DraftRequest
from specbench.runs.model_loader import Say
from specbench.tasks import Task

ROWS_BETWEEN_WORDS = 20_000
Fitted = TypeVar("Fitted", bound=TextDraftConfig)


class FromText(DraftBuilder[Fitted]):
    """Builds a draft that is fitted on the task's training text, or on `corpus`, and cached by content."""

    def __init__(self, request: DraftRequest[Fitted]) -> None:
        super().__init__(request)
        task, corpus = request.run.task, self.draft.corpus
        self.task = Task(replace(task, train_path=corpus) if corpus else task)

    def fitted(self, kind: str, settings: str, make: Callable[[Corpus], Arrays], say: Say) -> Arrays:
        """The result of `make` on the text. `settings` are its further inputs."""
        vocabulary = self.request.vocabulary
        key = f"{vocabulary.fingerprint()}/{vocabulary.start}/{self.task.training_key()}/{settings}"
        return cached(cache_folder(self.draft), kind, key, lambda: make(self._corpus(say)))

    def _corpus(self, say: Say) -> Corpus:
        def sequences() -> Iterator[list[int]]:
            for number, text in enumerate(self.task.training_text()):
                if number % ROWS_BETWEEN_WORDS == 0:
                    say(f"reading the training text of {self.task.config.name}: {number:,} rows")
                yield self.request.vocabulary.ids(text)

        return gather(sequences(), self.request.vocabulary.start)


class NgramBuilder(FromText[UnigramConfig | DiscountedConfig]):
    """Builds n-gram drafts: `unigram`, `bigram`, `ngram`."""

    counts: Counts

    def fit(self, say: Say) -> None:
        size, order = self.request.vocabulary.size, max(2, self.draft.longest())  # a unigram takes a bigram's counts

        def make(corpus: Corpus) -> Arrays:
            return fit(corpus, size, order, say).arrays()

        self.counts = Counts.of(self.fitted("ngram", f"order {order}", make, say))

    def load(self, target: EagerModel, say: Say) -> Draft:
        # A unigram has no order below it.
        discount = self.draft.discount if isinstance(self.draft, DiscountedConfig) else 0.0
        return NgramDraft(self.counts, self.draft.longest(), discount, self.request.device)


class RetrievalBuilder(FromText[RetrievalConfig]):
    """Builds `draft=retrieval`."""

    index: SuffixIndex

    def __init__(self, request: DraftRequest[RetrievalConfig]) -> None:
        super().__init__(request)
        if find_spec("pydivsufsort") is None:
            raise UserError(
                f"{request.key}.kind=retrieval: pydivsufsort, which sorts the corpus, is not installed: "
                "pip install pydivsufsort"
            )

    def fit(self, say: Say) -> None:
        size = self.request.vocabulary.size

        def make(corpus: Corpus) -> Arrays:
            say(f"sorting the suffixes of {len(corpus.tokens_N):,} tokens")
            return suffixes.build(corpus, size)

        self.index = SuffixIndex(self.fitted("suffixes", "", make, say), size)

    def load(self, target: EagerModel, say: Say) -> Draft:
        index = GrowingStore(self.index) if self.draft.grow else self.index
        return RetrievalDraft(index, self.request.vocabulary.size, self.request.device, self.draft.match)


def cache_folder(draft: TextDraftConfig) -> Path:
    """The folder of fitted drafts: `draft.cache_dir`, or the user's cache."""
    if draft.cache_dir:
        return Path(draft.cache_dir)
    return user_cache()
