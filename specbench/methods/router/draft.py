"""Two drafts, one of which proposes in each pass: a copy if enough tokens match, otherwise a model.

Engines copy if a lookup finds anything and run a model otherwise (vLLM, "ngram-eagle"). Here the first draft proposes
if at least `least_match` tokens match (`by=match`), or if it has the higher expected tokens per pass for its price
(`by=acceptance`): Eq. 1 with the share of its tokens accepted in this completion so far, (accepted + 1) / (tested + 2),
over 1 + gamma c. If it proposes nothing, the second draft does.

The choice is made before a token is drawn, from tokens that are already emitted. So q of a proposal is the q of the
draft that drew it, and Algorithm 1 applies unchanged.

`score` chooses at each token as if a pass began there. By acceptance it counts one pass per token, with the chance of
the chosen draft to propose the token that follows.

Shapes: L positions, V tokens of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import (
    Draft,
    DraftSession,
    ProposesByReading,
    ScoresAhead,
    on_host,
    operations_of,
)
from specbench.engine.eager.model import EagerModel
from specbench.engine.reads import Reading
from specbench.loading.model_loader import Say
from specbench.methods.router.config import MATCH, RouterConfig
from specbench.methods.several.draft import DraftOfDrafts, SessionsOfDrafts, SeveralBuilder
from specbench.theory import expected_tokens


@dataclass
class Accepted:
    """Tokens of a draft that were accepted, and those and the rejected tokens, at which it was tested."""

    accepted: float = 0.0
    tested: float = 0.0

    @property
    def alpha(self) -> float:
        """The mean of the posterior of a uniform prior."""
        return (self.accepted + 1) / (self.tested + 2)


class RouterDraft(DraftOfDrafts):
    """Two `drafts`, the first preferred."""

    def __init__(self, drafts: Sequence[Draft], config: RouterConfig) -> None:
        super().__init__(drafts)
        self.config = config
        # As if each drafted as many tokens. Proposals count what they took.
        self.operations = sum(draft.operations for draft in drafts) / len(drafts)

    def session(self, sessions: Sequence[DraftSession]) -> "RouterSession":
        return RouterSession(self, sessions)

    def in_batch(self, rows: int) -> "RouterDraft":
        return RouterDraft([draft.in_batch(rows) for draft in self.drafts], self.config)


class RouterSession(SessionsOfDrafts, ScoresAhead, ProposesByReading):
    """The drafts' sessions, and how their tokens fared in this completion."""

    stops_at_end = True

    def __init__(self, draft: RouterDraft, sessions: Sequence[DraftSession]) -> None:
        super().__init__(sessions)
        self.draft, self.config = draft, draft.config
        self.seen = (Accepted(), Accepted())
        self._last: tuple[int, int, list[int]] | None = None  # the last proposal: its draft, its place and its tokens
        self._first: list[bool] = []  # whether the first draft proposes, at the latest positions that were scored

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposal]:
        self._learn(tokens)
        self.follow(tokens)
        for number in (0, 1) if self._prefers_first(tokens, gamma) else (1,):
            draft, session = self.draft.drafts[number], self.sessions[number]
            proposal = on_host((yield from session.proposing(tokens, gamma, generator)))
            if proposal.tokens:
                break
        self._last = number, len(tokens), list(proposal.tokens)
        return proposal._replace(operations=operations_of(draft, proposal.operations, len(proposal.tokens)))

    def _prefers_first(self, tokens: Sequence[int], gamma: int) -> bool:
        if self.config.by == MATCH:
            return self.sessions[0].matched(tokens) >= self.config.least_match
        return self._rate(0, gamma) >= self._rate(1, gamma)

    def _rate(self, number: int, gamma: int) -> float:
        """Expected tokens of a pass with a draft, for each target step that it takes."""
        return expected_tokens(self.seen[number].alpha, gamma) / (1 + number * gamma * self.config.price)

    def _learn(self, tokens: Sequence[int]) -> None:
        """Count the tokens of the last proposal that were accepted, and the one that was rejected."""
        if self._last is None:
            return
        number, place, drafted = self._last
        accepted = 0
        while accepted < min(len(drafted), len(tokens) - place) and drafted[accepted] == tokens[place + accepted]:
            accepted += 1
        self.seen[number].accepted += accepted
        self.seen[number].tested += accepted + (accepted < len(drafted) and place + accepted < len(tokens))
        self._last = None

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        places, before = range(prefix_length, len(tokens)), len(self._first)
        matched = self._matched(tokens, places)
        rows = [session.score_ahead(tokens, prefix_length, most) for session in self.sessions]
        for ahead, pair in enumerate(zip_longest(*rows)):
            first_LV, second_LV = (_or_zeros(one, other) for one, other in (pair, pair[::-1]))
            if not ahead:
                self._choose(matched, tokens, places, first_LV, second_LV, most)
            began = self._first[max(0, before - ahead) : max(0, len(self._first) - ahead)]
            began = [False] * (len(places) - len(began)) + began
            yield torch.where(torch.tensor(began, device=first_LV.device).unsqueeze(-1), first_LV, second_LV)
        self._first = self._first[max(0, len(self._first) - most + 1) :]

    def _matched(self, tokens: Sequence[int], places: range) -> list[int]:
        """The tokens that match at each place, if that decides."""
        copying = self.sessions[0]
        if self.config.by != MATCH:
            return []
        found = [copying.matched(tokens[:place]) for place in places]
        copying.rollback(places.start)
        return found

    def _choose(
        self,
        matched: Sequence[int],
        tokens: Sequence[int],
        places: range,
        first_LV: Tensor,
        second_LV: Tensor,
        most: int,
    ) -> None:
        """Append to `_first` the choice at each place."""
        proposes = (first_LV.sum(-1) > 0).tolist()
        written_L1 = torch.tensor(tokens[places.start : places.stop], device=first_LV.device).unsqueeze(-1)
        chances = [row_LV.gather(-1, written_L1).squeeze(-1).tolist() for row_LV in (first_LV, second_LV)]
        for at in range(len(places)):
            first = matched[at] >= self.config.least_match if matched else self._rate(0, most) >= self._rate(1, most)
            self._first.append(first and proposes[at])
            seen = self.seen[0 if self._first[-1] else 1]
            seen.accepted += chances[0 if self._first[-1] else 1][at]
            seen.tested += 1


def _or_zeros(q_LV: Tensor | None, other_LV: Tensor) -> Tensor:
    """`q_LV`; zeros where a draft proposes no further token, but the other does."""
    return torch.zeros_like(other_LV) if q_LV is None else q_LV


class RouterBuilder(SeveralBuilder[RouterConfig]):
    """Builds `draft=router` from its parts."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return RouterDraft(self.load_parts(target, say), self.draft)
