"""The exact law of speculative decoding on the toy model: every draft, every outcome of a rule, how likely each is.

A rule is taken by its formulas (`TokenRule`, or `block.chances`), which other tests hold to what it does when played.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import torch

from specbench.algorithm.acceptance.base import TokenRule, residual
from specbench.algorithm.acceptance.rules.block import chances
from specbench.sampling import Sampling, standardise
from tests.support.toy import EOS, PROMPT, VOCABULARY, ToyModel

Rows = torch.Tensor
Text = tuple[int, ...]
Outcome = tuple[int, float, torch.Tensor]  # how many are accepted, its probability, the distribution of the next token
Outcomes = Callable[[Rows, Rows, Sequence[int]], Iterator[Outcome]]


def token_by_token(rule: TokenRule) -> Outcomes:
    """The answers of a rule that tests each token independently."""

    def outcomes(p_GV: Rows, q_GV: Rows, drafted: Sequence[int]) -> Iterator[Outcome]:
        reached = 1.0
        for place, token in enumerate(drafted):
            p_1V, q_1V = p_GV[place : place + 1], q_GV[place : place + 1]
            kept = float(rule.accept_probability(p_1V[:, [token]], q_1V[:, [token]], p_1V))
            yield place, reached * (1 - kept), rule.recovered(p_1V, q_1V)[0]
            reached *= kept
        yield len(drafted), reached, rule.bonus(p_GV[-1:])[0]

    return outcomes


def block(p_GV: Rows, q_GV: Rows, drafted: Sequence[int]) -> Iterator[Outcome]:
    """What block verification may answer: the last of the beginnings that pass."""
    if not drafted:
        yield 0, 1.0, p_GV[0]
        return
    h_G, weights = chances(p_GV, q_GV, torch.tensor(drafted), len(drafted))
    none_behind = 1.0
    for count in range(len(drafted), -1, -1):
        passed = float(h_G[count - 1]) if count else 1.0
        if count == len(drafted):
            following = p_GV[count]
        else:
            weight = weights[count - 1] if count else 1.0
            rest = residual(weight * p_GV[count], q_GV[count])
            following = rest / rest.sum().clamp(min=1e-30)
        yield count, none_behind * passed, following
        none_behind *= 1 - passed


class Law:
    """Passes of up to `gamma` tokens of `draft`, checked by `target` under a rule."""

    def __init__(
        self,
        target: ToyModel,
        draft: ToyModel,
        outcomes: Outcomes,
        gamma: int,
        sampling: Sampling,
        compared: Sampling | None = None,
        confidence: float = 0.0,
        dropping: bool = False,
    ) -> None:
        """A proposal ends after a token whose q is below `confidence`; or, `dropping`, before it."""
        self.target, self.draft, self.outcomes, self.gamma = target, draft, outcomes, gamma
        self.sampling, self.compared = sampling, compared or sampling
        self.confidence, self.dropping = confidence, dropping

    def texts(self, length: int) -> dict[Text, float]:
        """How likely each text of up to `length` tokens is; shorter ones end in EOS."""
        found: dict[Text, float] = defaultdict(float)
        open_texts: dict[Text, float] = {(): 1.0}
        while open_texts:
            text = min(open_texts, key=len)  # all that leads to it is counted by then
            chance = open_texts.pop(text)
            for tokens, likely in self._pass(text, length - len(text)):
                longer = text + tokens
                ended = len(longer) == length or longer[-1] == EOS
                kept = found if ended else open_texts
                kept[longer] = kept.get(longer, 0.0) + chance * likely
        return found

    def tokens_per_pass(self, text: Text) -> float:
        """Expected tokens of the pass after `text`."""
        return sum(len(tokens) * likely for tokens, likely in self._pass(text, self.gamma + 1))

    def _pass(self, text: Text, room: int) -> Iterator[tuple[Text, float]]:
        before = [*PROMPT.prefix, *text]
        for drafted, likely in self._drafts(text, min(self.gamma, room - 1)):
            read = [*before, *drafted]
            p_GV = self._rows(self.target, read, self.compared)[len(before) - 1 :]
            q_GV = self._rows(self.draft, read, self.sampling)[len(before) - 1 : -1]
            for kept, chance, next_V in self.outcomes(p_GV, q_GV, drafted):
                if chance * likely == 0:
                    continue
                stays = drafted[:kept]
                if EOS in stays:
                    yield stays[: stays.index(EOS) + 1], likely * chance
                    continue
                for token in range(VOCABULARY):
                    yield (*stays, token), likely * chance * float(next_V[token])

    def _drafts(self, text: Text, room: int) -> Iterator[tuple[Text, float]]:
        if room == 0:
            yield (), 1.0
            return
        q_V = self._rows(self.draft, [*PROMPT.prefix, *text], self.sampling)[-1]
        for token in range(VOCABULARY):
            if (likely := float(q_V[token])) > 0:
                unsure = likely < self.confidence
                if unsure and self.dropping:
                    yield (), likely
                    continue
                ends = unsure or token == EOS
                following = [((), 1.0)] if ends else self._drafts((*text, token), room - 1)
                for rest, chance in following:
                    yield (token, *rest), likely * chance

    def _rows(self, model: ToyModel, read: Sequence[int], sampling: Sampling) -> Rows:
        return standardise(model.start(PROMPT).extend(read), sampling, VOCABULARY)


def total_variation(one: dict[Text, float], other: dict[Text, float]) -> float:
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other}) / 2
