"""Beam search with and without a draft (appendix A.4 of the paper)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.eager.model import TokenSequence
from specbench.sampling import NOT_FINITE

IMPOSSIBLE = -1e9  # the score of a beam that does not exist yet


class HypothesisReader(Protocol):
    """A model that has begun on a prompt; `engine.eager.model.PrefixBatch` implements it."""

    def read(self, hypotheses: Iterable[TokenSequence]) -> Mapping[TokenSequence, Tensor]:
        """Log-probabilities [V] of the next token of each hypothesis, prefix included, from one run."""


@dataclass(frozen=True)
class BeamSettings:
    """The settings of a beam search, in `generate`'s words. `early_stopping`: True | False | 'never'."""

    width: int
    max_new_tokens: int
    eos_ids: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    @property
    def candidates(self) -> int:
        """Candidates of a step: enough that W of them have not ended."""
        return max(2, 1 + len(self.eos_ids)) * self.width


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that has ended, prefix included, and its score.

    The score is its log-probability over its length to the power of the length penalty.
    """

    tokens: TokenSequence
    score: float


@dataclass(frozen=True)
class Beams:
    """A beam search between two steps. Hypotheses include the prefix; the best come first."""

    running: list[TokenSequence]
    scores_W: Tensor  # log-probabilities of `running`, fp32
    ended: list[Hypothesis]  # at most W
    written: int = 0  # tokens after the prefix
    finished: bool = False


def begin(prefix: TokenSequence, settings: BeamSettings) -> Beams:
    """The search before its first step: one beam, and W - 1 copies of it that cannot win."""
    scores = [0.0] + [IMPOSSIBLE] * (settings.width - 1)
    return Beams([prefix] * settings.width, torch.tensor(scores), [])


def continuations(
    hypotheses: Sequence[TokenSequence],
    scores_W: Tensor,
    rows: Mapping[TokenSequence, Tensor],
    count: int,
    never: Iterable[int] = (),
) -> tuple[list[TokenSequence], Tensor]:
    """The `count` most likely one-token continuations of `hypotheses`, or fewer if fewer exist; none of `never`.

    Returns:
        The continuations and their log-probabilities.

    Raises:
        KeyError: `rows` lacks a hypothesis.
        FloatingPointError: a row is not finite.
    """
    sums_WV = torch.stack([rows[hypothesis] for hypothesis in hypotheses])
    sums_WV += scores_W.to(sums_WV)[:, None]
    sums_WV[:, list(never)] = -torch.inf
    best_K, index_K = sums_WV.flatten().topk(min(count, sums_WV.numel()))
    if not best_K[0].isfinite():  # NaN counts as the highest
        raise FloatingPointError(NOT_FINITE)
    best_K = best_K[best_K > -torch.inf]
    size = sums_WV.shape[1]
    return [(*hypotheses[index // size], index % size) for index in index_K[: len(best_K)].tolist()], best_K


def step(beams: Beams, rows: Mapping[TokenSequence, Tensor], settings: BeamSettings) -> Beams:
    """The search after one more token.

    Args:
        beams: the search so far.
        rows: the log-probabilities [V] after each running hypothesis.
        settings: width, penalties and when to stop.

    Raises:
        KeyError, FloatingPointError: as `continuations`.
    """
    candidates, best_K = continuations(beams.running, beams.scores_W, rows, settings.candidates)
    written = beams.written + 1
    last = written == settings.max_new_tokens
    has_ended = [last or candidate[-1] in settings.eos_ids for candidate in candidates]

    # Only the first W candidates may end; the others ensure that W hypotheses continue.
    penalised = (best_K[: settings.width] / written**settings.length_penalty).tolist()
    scored = zip(candidates, penalised, has_ended, strict=False)
    new = [Hypothesis(tokens, score) for tokens, score, end in scored if end]
    ended = sorted([*beams.ended, *new], key=lambda hypothesis: -hypothesis.score)[: settings.width]

    continued = [index for index, end in enumerate(has_ended) if not end][: settings.width]
    running, scores_W = [candidates[index] for index in continued], best_K[continued]
    finished = last or (len(ended) == settings.width and not _can_improve(scores_W, ended, written, settings))
    return Beams(running, scores_W, ended, written, finished)


def _can_improve(scores_W: Tensor, ended: list[Hypothesis], written: int, settings: BeamSettings) -> bool:
    """Whether the best running hypothesis may still beat the worst of W ended hypotheses, by `generate`'s heuristic."""
    if settings.early_stopping is True:
        return False
    longest = settings.early_stopping == "never" and settings.length_penalty > 0
    length = settings.max_new_tokens if longest else written
    return float(scores_W[0] / length**settings.length_penalty) > ended[-1].score
