"""N-gram drafts of any order. The paper uses unigrams and bigrams, and does not say how they were fitted.

Order 1: add-one, q_1(x) = (n(x) + 1) / (N + V).

Order k: interpolated absolute discounting (Ney, Essen, Kneser 1994). After the last k - 1 tokens h, q_k(x | h) =
max(n(hx) - D, 0) / n(h) + D t(h) / n(h) q_{k-1}(x | h'), where n(h) counts h with a token after it, t(h) is the number
of distinct tokens counted after h, D the discount and h' is h without its first token; q_{k-1} if h was never
counted. Counts of lower orders are plain counts of the text (not Kneser-Ney's counts of contexts), so that a bigram is
the same draft by itself and inside a trigram.

Without counts: the random draft of the paper's opening, for which every token is equally likely.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations, Predicted
from specbench.algorithm.draft import Draft, Stateless
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder
from specbench.methods.from_text import Arrays, Corpus, FromText
from specbench.methods.ngram.config import DiscountedConfig, RandomConfig, UnigramConfig
from specbench.methods.ngram.counts import Counts, fit
from specbench.sampling import BEFORE_ARGMAX, Sampling, draw, one_hot, standardise

ROWS_KEPT_BYTES = 256 * 2**20  # standardised rows kept between steps
MOST_TOKENS_KEPT = 500_000  # at T = 0
BEFORE_SAMPLING = Sampling(temperature=1.0)

Discounted = tuple[NDArray[np.int32], NDArray[Any], float]  # followers, their shares, and what is left
_NO_CONTEXT: Discounted = (np.empty(0, np.int32), np.empty(0), 1.0)


class NgramDraft(Draft):
    """q from counts and only the last `order` - 1 tokens. `counts` have that order or a higher one."""

    operations = 0.0  # a table look-up

    def __init__(self, counts: Counts, order: int, discount: float, device: torch.device) -> None:
        assert 1 <= order <= counts.order
        self.counts, self.order, self.discount, self.device = counts, order, discount, device
        unigrams = counts.unigrams_V
        self.unigram_V = (unigrams + 1) / (unigrams.sum() + len(unigrams))
        self._rows: dict[tuple[Sampling, tuple[int, ...]], Tensor] = {}
        self._best: dict[tuple[int, ...], int] = {}
        self._most_rows = max(1, ROWS_KEPT_BYTES // (4 * len(unigrams)))

    def start(self, prompt: Prompt, sampling: Sampling) -> "NgramSession":
        return NgramSession(self, sampling)

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        if sampling.temperature == 0:
            self.best([0])  # the table of likeliest tokens, now and not in the first pass

    def probabilities(self, before: Sequence[int]) -> Tensor:
        """q [V] after the tokens `before`, before any sampling setting; fp64."""
        row_V = self.unigram_V.copy()
        for followers, shares, rest in self._discounted(before):
            row_V *= rest
            row_V[followers] += shares
        return torch.from_numpy(row_V)

    def _rounded(self, before: Sequence[int]) -> Tensor:
        """`probabilities` in fp32, of which the last context makes no row in fp64: that would take most of the time."""
        *shorter, (followers, shares, rest) = (_NO_CONTEXT, *self._discounted(before))
        row_V: NDArray[Any] = self.unigram_V
        for some, of_some, left in shorter:
            row_V = row_V * left
            row_V[some] += of_some
        made_V = np.multiply(row_V, rest, out=np.empty(len(row_V), np.float32), casting="same_kind")
        made_V[followers] = row_V[followers] * rest + shares
        return torch.from_numpy(made_V)

    def _discounted(self, before: Sequence[int]) -> Iterator[Discounted]:
        """The followers of each context that was counted, shortest first, with their shares and what is left."""
        for length in range(1, min(self.order - 1, len(before)) + 1):
            found = self.counts.row(before[-length:])
            if found is None:
                break  # nor any longer context
            followers, times = found
            total = int(times.sum(dtype=np.int64))
            yield followers, (times - self.discount) / total, self.discount * len(followers) / total

    def draw_next(
        self, before: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> tuple[int, Tensor | None]:
        """One token that follows, and its row; at T = 0 the token comes from a table, and no row is made."""
        if sampling.temperature == 0:
            return self.best(before), None
        row_1V = self.row(before, sampling)
        return draw(row_1V[0], generator), row_1V

    def row(self, before: Sequence[int], sampling: Sampling) -> Tensor:
        """Standardised q [1, V] after the tokens `before`; cached, since text repeats itself.

        Proposals, trees and scores all take q from here; at T = 0 its token is `best`, and proposals take only that.
        """
        if sampling.temperature == 0:  # the token of the table: rounding to fp32 may make a tie of two
            return one_hot([self.best(before)], len(self.unigram_V), self.device)
        key = (sampling, self._context(before))
        row_1V = self._rows.get(key)
        if row_1V is None:
            if len(self._rows) >= self._most_rows:
                self._rows.clear()
            if sampling == BEFORE_ARGMAX:  # at T = 1 softmax undoes the logarithm
                q_1V = self._rounded(before).unsqueeze(0)
            else:
                q_1V = self.probabilities(before).unsqueeze(0)
                q_1V = standardise(q_1V.log().float(), sampling, q_1V.shape[-1])
            row_1V = self._rows[key] = q_1V.to(self.device, torch.float32)
        return row_1V

    def best(self, before: Sequence[int]) -> int:
        """The argmax token; cached."""
        if self.order == 2 and before:
            return int(self._best_after_V[before[-1]])
        key = self._context(before)
        token = self._best.get(key)
        if token is None:
            if len(self._best) >= MOST_TOKENS_KEPT:
                self._best.clear()
            token = self._best[key] = self._argmax(before)
        return token

    def _argmax(self, before: Sequence[int]) -> int:
        """The argmax of `probabilities`, of equal ones the first, without a row of them.

        A longer context shares its mass among the tokens counted after it, and shrinks all others alike: the best of
        these is the best before.
        """
        if self.order == 1 or not before:
            return int(self.unigram_V.argmax())
        levels, best = list(self._discounted(before)), int(self._best_after_V[before[-1]])
        for depth in range(1, len(levels)):
            candidates = np.append(levels[depth][0], best)
            q_C = self.unigram_V[candidates]
            for followers, shares, rest in levels[: depth + 1]:
                place_C = np.searchsorted(followers, candidates).clip(max=len(followers) - 1)
                q_C = q_C * rest + np.where(followers[place_C] == candidates, shares[place_C], 0.0)
            best = int(candidates[q_C == q_C.max()].min())
        return best

    @cached_property
    def _best_after_V(self) -> NDArray[np.int64]:
        """The argmax of `probabilities` after each token, for all of them at once.

        A row of q made between two target runs evicts the target's weights from the machine's caches, and slows more
        than itself. The argmax is the best of the tokens counted after it, or the most common token: all others rank as
        in the unigram.
        """
        level, size = self.counts.levels[0], len(self.unigram_V)
        seen_V = np.diff(level.offsets_A1)
        before_P = np.repeat(np.arange(size), seen_V)
        total_V = np.bincount(before_P, weights=level.times_P, minlength=size).clip(min=1)
        rest_V = self.discount * seen_V / total_V
        q_P = self.unigram_V[level.tokens_P] * rest_V[before_P] + (level.times_P - self.discount) / total_V[before_P]
        common = int(self.unigram_V.argmax())
        best_V = np.full(size, common)
        rows = np.flatnonzero(seen_V)
        if len(rows):
            top = np.maximum.reduceat(q_P, level.offsets_A1[rows])
            highest = np.flatnonzero(q_P == np.repeat(top, seen_V[rows]))
            first = highest[np.diff(before_P[highest], prepend=-1) > 0]
            best_V[rows] = np.where(rest_V[rows] * self.unigram_V[common] > top, common, level.tokens_P[first])
        return best_V

    def _context(self, before: Sequence[int]) -> tuple[int, ...]:
        return tuple(before[max(0, len(before) - self.order + 1) :])


class NgramSession(Stateless):
    """q depends only on the last tokens of the sequence."""

    def __init__(self, draft: NgramDraft, sampling: Sampling) -> None:
        self.draft = draft
        self.sampling = sampling
        self._text: list[int] = []  # the last tokens, while a tree is grown
        self._paths: list[list[int]] = []  # the tokens that lead to each node

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        before = list(tokens[-self.draft.order :])
        first = len(before)
        rows: list[Tensor] = []
        for _ in range(gamma):
            token, row_1V = self.draft.draw_next(before, self.sampling, generator)
            if row_1V is not None:
                rows.append(row_1V)
            before.append(token)
        return Proposal(before[first:], torch.cat(rows) if rows else None)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        self._text, self._paths = list(tokens[-self.draft.order :]), []
        return self._after([self._text])

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        first = len(self._paths)
        for token, parent in zip(tokens, parents, strict=True):
            self._paths.append([*(self._text if parent < 0 else self._paths[parent]), token])
        return self._after(self._paths[first:])

    def _after(self, contexts: Sequence[Sequence[int]]) -> Continuations:
        logits_LV = torch.cat([self.draft.row(context, BEFORE_SAMPLING).log() for context in contexts])
        return Predicted(logits_LV, logits_LV.shape[-1], self.sampling)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        contexts = [tokens[max(0, end - self.draft.order) : end] for end in range(prefix_length, len(tokens))]
        return torch.cat([self.draft.row(context, self.sampling) for context in contexts])


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


@dataclass(eq=False)
class UniformDraft(Draft, Stateless):
    """q(x) = 1/V at every position and under every sampling setting.

    All entries are equal, so argmax, top-k and nucleus change nothing.
    """

    vocabulary_size: int
    device: torch.device
    operations = 0.0

    def start(self, prompt: Prompt, sampling: Sampling) -> "UniformDraft":
        return self

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        drawn_G = torch.randint(self.vocabulary_size, (gamma,), generator=generator, device=self.device)
        return Proposal(drawn_G.tolist(), self._rows(gamma))

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return self._rows(len(tokens) - prefix_length)

    def _rows(self, count: int) -> Tensor:
        row_V = torch.full((self.vocabulary_size,), 1 / self.vocabulary_size, device=self.device)
        return row_V.expand(count, -1)


class RandomBuilder(DraftBuilder[RandomConfig]):
    """Builds `draft=random`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return UniformDraft(self.request.vocabulary.size, self.request.device)
