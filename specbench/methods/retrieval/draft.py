"""Continuations from a corpus: the tokens that most often followed the last tokens there (REST, He et al. 2023).

"REST: Retrieval-Based Speculative Decoding". The longest run of the last tokens, up to `match` of them, that occurs in
the corpus is found by its suffix array, and the token that followed most often is proposed; then the next, after a run
that is longer by that token. If not even the last token occurs, nothing is proposed. A tree holds the most common
continuations, as REST's does (`methods.copying`).

The corpus may grow by completions; then the order of the prompts matters. It grows between prompts only: a proposal
depends on earlier completions and on nothing drawn later, so that decoding is as exact as before.

q is one-hot: the proposal is certain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations
from specbench.algorithm.draft import Draft, ScoresAhead
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftRequest
from specbench.methods.certain import certain_ahead
from specbench.methods.copying import GrowsFromPlaces
from specbench.methods.from_text import Arrays, Corpus, FromText
from specbench.methods.retrieval.config import RetrievalConfig
from specbench.methods.retrieval.suffix_array import GrowingStore, SuffixIndex, build
from specbench.sampling import Sampling

MOST_PLACES = 256  # of one run, that a tree is grown from


@dataclass(eq=False)
class RetrievalDraft(Draft):
    """Proposes from a corpus, or from a `GrowingStore` that also holds earlier completions."""

    index: SuffixIndex | GrowingStore
    vocabulary_size: int
    device: torch.device
    match: int
    operations = 0.0

    def start(self, prompt: Prompt, sampling: Sampling) -> "RetrievalSession":
        return RetrievalSession(self)

    @property
    def grown(self) -> int | None:
        """Decoded tokens that are now in the store; None if it does not grow."""
        return self.index.grown if isinstance(self.index, GrowingStore) else None

    def add_texts(self, decoded: Sequence[tuple[Prompt, Sequence[int]]]) -> None:
        """A text is kept with the last tokens of its prompt, so that runs which lead into it are found."""
        if isinstance(self.index, GrowingStore) and decoded:
            texts = [[*prompt.prefix[-self.match :], *tokens] for prompt, tokens in decoded]
            self.index.add(texts, sum(len(tokens) for _, tokens in decoded))

    def forget_texts(self) -> None:
        if isinstance(self.index, GrowingStore):
            self.index.clear()


class RetrievalSession(GrowsFromPlaces, ScoresAhead):
    """The state is only the current tree."""

    stops_at_end = True  # as the texts of the corpus do

    def __init__(self, draft: RetrievalDraft) -> None:
        self.index, self.match = draft.index, draft.match
        self.size, self.device = draft.vocabulary_size, draft.device

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return Proposal(self._continuation(tokens, gamma))

    def matched(self, tokens: Sequence[int]) -> int:
        return self.index.longest(tokens[-self.match :], self.match)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        places = self.index.places(tokens[-self.match :], self.match, MOST_PLACES)
        return self._grow(self.index.tokens, places, self.index.end)

    def _continuation(self, tokens: Sequence[int], gamma: int) -> list[int]:
        context = list(tokens[-self.match :])
        drafted: list[int] = []
        found = 0
        while len(drafted) < gamma:
            # The run found continues with the proposed token; a longer run cannot.
            longest = min(found + 1, self.match) if drafted else self.match
            token, found = self.index.follower(context, longest, longest if drafted else 0)
            if token == self.index.end:
                break
            drafted.append(token)
            context.append(token)
        return drafted

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        first = max(1, prefix_length - most + 1)
        proposals = [
            self._continuation(tokens[max(0, end - self.match) : end], most) for end in range(first, len(tokens))
        ]
        return certain_ahead(proposals, len(tokens) - prefix_length, most, self.size, self.device)


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
            return build(corpus, size)

        self.index = SuffixIndex(self.fitted("suffixes", "", make, say), size)

    def load(self, target: EagerModel, say: Say) -> Draft:
        index = GrowingStore(self.index) if self.draft.grow else self.index
        return RetrievalDraft(index, self.request.vocabulary.size, self.request.device, self.draft.match)
