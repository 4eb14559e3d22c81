"""Unigram and bigram drafts (the paper's cheapest; it does not say how it fitted them, so we choose and say it).

Unigram: add-one, q1(x) = (n(x) + 1) / (N + V).
Bigram: interpolated absolute discounting,
q2(x | y) = max(n(yx) - D, 0) / n(y) + D t(y) / n(y) q1(x), with t(y) the distinct tokens seen behind y and D the
discount; q1 where y was never seen. (Ney, Essen, Kneser 1994.)
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.drafts.base import Proposal
from specbench.drafts.counts import Counts
from specbench.models import Prompt
from specbench.sampling import Sampling, draw, standardise

ROWS_KEPT_BYTES = 256 * 2**20  # standardised rows kept between steps


class NgramDraft:
    """q from counts and the last token alone. `order` is 1 or 2."""

    operations = 0.0  # a table look-up

    def __init__(self, counts: Counts, order: int, discount: float, device: torch.device) -> None:
        self.counts = counts
        self.order = order
        self.discount = discount
        self.device = device
        unigrams = counts.unigrams_V
        self.unigram_V = (unigrams + 1) / (unigrams.sum() + len(unigrams))
        self._rows: dict[tuple[Sampling, int], Tensor] = {}
        self._most_rows = max(1, ROWS_KEPT_BYTES // (4 * len(unigrams)))

    def start(self, prompt: Prompt, sampling: Sampling) -> "NgramSession":
        return NgramSession(self, sampling)

    def probabilities(self, previous: int) -> Tensor:
        """q [V] behind `previous`, before any sampling setting; fp64."""
        row_V = self.unigram_V
        if self.order == 2:
            followers, counts = self.counts.row(previous)
            total = counts.sum()
            if total > 0:
                row_V = row_V * (self.discount * len(followers) / total)
                row_V[followers] += (counts - self.discount) / total
        return torch.from_numpy(np.ascontiguousarray(row_V))

    def row(self, previous: int, sampling: Sampling) -> Tensor:
        """Standardised q [1, V] behind `previous`; kept, since text repeats itself."""
        key = (sampling, previous if self.order == 2 else 0)
        row_1V = self._rows.get(key)
        if row_1V is None:
            if len(self._rows) >= self._most_rows:
                self._rows.clear()
            logits_1V = self.probabilities(previous).log().to(self.device, torch.float32).unsqueeze(0)
            row_1V = self._rows[key] = standardise(logits_1V, sampling, logits_1V.shape[-1])
        return row_1V


class NgramSession:
    """It remembers nothing: the last token of the sequence is all it looks at."""

    def __init__(self, draft: NgramDraft, sampling: Sampling) -> None:
        self.draft = draft
        self.sampling = sampling

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        previous = tokens[-1]
        drawn: list[int] = []
        rows: list[Tensor] = []
        for _ in range(gamma):
            q_1V = self.draft.row(previous, self.sampling)
            previous = draw(q_1V[0], generator)
            drawn.append(previous)
            rows.append(q_1V)
        return Proposal(drawn, torch.cat(rows) if rows else torch.empty(0))

    def rollback(self, length: int) -> None:
        """It remembers nothing."""

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return torch.cat([self.draft.row(token, self.sampling) for token in tokens[prefix_length - 1 : -1]])
