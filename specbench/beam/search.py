"""One step of a beam search, on log-probabilities that somebody else read.

What counts, when a text has ended and when the search is over are as in `transformers` 5.23 (`generate(num_beams=...)`
for one prompt), so that the results are, too.

Shapes: W running texts, K candidates, V logits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.models import TokenSequence
from specbench.sampling import NOT_FINITE

NOWHERE = -1e9  # the score of a beam that is not there yet


class Reader(Protocol):
    """A model that has begun on a prompt; `models.PrefixBatch` is one."""

    def read(self, texts: Iterable[TokenSequence]) -> Mapping[TokenSequence, Tensor]:
        """Log-probabilities [V] of what follows each of `texts`, prefix included, from one run."""
        ...


@dataclass(frozen=True)
class Rule:
    """How a beam search goes, in `generate`'s words. `early_stopping`: True | False | 'never'."""

    width: int
    max_new_tokens: int
    eos_ids: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    @property
    def candidates(self) -> int:
        """How many are looked at in a step: so many that W of them have not ended."""
        return max(2, 1 + len(self.eos_ids)) * self.width


@dataclass(frozen=True)
class Hypothesis:
    """A text that has ended, prefix included, and its log-probability over its length to the power of the penalty."""

    text: TokenSequence
    score: float


@dataclass(frozen=True)
class Beams:
    """A beam search between two steps. Texts include the prefix; the best come first."""

    running: list[TokenSequence]
    scores_W: Tensor  # log-probabilities of `running`, fp32
    ended: list[Hypothesis]  # at most W
    written: int = 0  # tokens behind the prefix
    over: bool = False


def begin(prefix: TokenSequence, rule: Rule) -> Beams:
    """The search before its first step: one beam, and as many as are missing with no chance."""
    return Beams([prefix] * rule.width, torch.tensor([0.0] + [NOWHERE] * (rule.width - 1)), [])


def continuations(
    texts: Sequence[TokenSequence],
    scores_W: Tensor,
    rows: Mapping[TokenSequence, Tensor],
    count: int,
    never: Iterable[int] = (),
) -> tuple[list[TokenSequence], Tensor]:
    """The `count` most likely texts that are one of `texts` and a token, none of `never`, and their log-probabilities;
    fewer where there are no more that are possible.

    Raises KeyError where `rows` lacks a text, FloatingPointError where a row is not finite.
    """
    sums_WV = torch.stack([rows[text] for text in texts])
    sums_WV += scores_W.to(sums_WV)[:, None]
    sums_WV[:, list(never)] = -torch.inf
    best_K, index_K = sums_WV.flatten().topk(min(count, sums_WV.numel()))
    if not best_K[0].isfinite():  # NaN counts as the highest
        raise FloatingPointError(NOT_FINITE)
    best_K = best_K[best_K > -torch.inf]
    size = sums_WV.shape[1]
    return [(*texts[index // size], index % size) for index in index_K[: len(best_K)].tolist()], best_K


def step(beams: Beams, rows: Mapping[TokenSequence, Tensor], rule: Rule) -> Beams:
    """One more token: `rows` holds what follows each running text. Raises as `continuations` does."""
    texts, best_K = continuations(beams.running, beams.scores_W, rows, rule.candidates)
    written = beams.written + 1
    last = written == rule.max_new_tokens
    ends = [last or text[-1] in rule.eos_ids for text in texts]

    # Only the first W candidates may end the text: those behind them are there so that W others go on.
    penalised = (best_K[: rule.width] / written**rule.length_penalty).tolist()
    new = [Hypothesis(text, score) for text, score, end in zip(texts, penalised, ends, strict=False) if end]
    ended = sorted([*beams.ended, *new], key=lambda one: -one.score)[: rule.width]

    on = [index for index, end in enumerate(ends) if not end][: rule.width]
    running, scores_W = [texts[index] for index in on], best_K[on]
    over = last or (len(ended) == rule.width and not _can_improve(scores_W, ended, written, rule))
    return Beams(running, scores_W, ended, written, over)


def _can_improve(scores_W: Tensor, ended: list[Hypothesis], written: int, rule: Rule) -> bool:
    """Whether the best running text may come before the last of W that have ended, by `generate`'s own heuristic."""
    if rule.early_stopping is True:
        return False
    longest = rule.early_stopping == "never" and rule.length_penalty > 0
    length = rule.max_new_tokens if longest else written
    return float(scores_W[0] / length**rule.length_penalty) > ended[-1].score
