"""A model as a draft: gamma steps of M_q, each drawn from its standardised distribution.

A model of another vocabulary may draft text instead: string-level exact match (Timor et al. 2025, section 3, "SLEM").
It reads the text as its own tokenizer has it and continues it in its own tokens; the text that they spell is tokenised
for the target. The draft's q of the target's tokens is not known, so the proposal counts as certain: a token is
accepted with p(x), and every token that is written is a draw from the target's own distribution. Since its q is not
used, the draft decodes greedily at every temperature.

Tokenising a longer text anew may move the boundaries of earlier tokens. In the draft's tokens what it has read is then
rolled back to where both agree; in the target's the tokens that were written stand, and if no token begins where they
end, the new text is tokenised by itself.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import PendingProposal, Proposal
from specbench.algorithm.continuations import Continuations, Predicted
from specbench.algorithm.draft import AnyProposal, Draft, ProposesByReading, Stateless
from specbench.engine.reads import Read, Reading, answered
from specbench.engine.session import Model, Prompt, Session
from specbench.methods.certain import certain
from specbench.sampling import BEFORE_ARGMAX, Sampling, TokenChoice, checked, most_likely, standardise
from specbench.text.translation import TranslatedModel


class ModelDraft(Draft):
    """Any `Model` that reads and predicts the target's tokens; a `TranslatedModel` for another vocabulary.

    `vocabulary_size` is the target's: q must have p's width.
    """

    def __init__(self, model: Model, vocabulary_size: int, confidence: float | None = None) -> None:
        self.model = model
        self.models = (model,)
        self.vocabulary_size = vocabulary_size
        self.confidence = confidence
        self.operations = model.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "ModelDraftSession":
        return ModelDraftSession(self.model, self.model.start(prompt), sampling, self.vocabulary_size, self.confidence)

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        if self.confidence is None:
            self.model.expect_rollouts(TokenChoice(sampling, self.vocabulary_size), gammas)

    def in_batch(self, rows: int) -> "ModelDraft":
        return ModelDraft(self.model.in_batch(rows), self.vocabulary_size, self.confidence)


class ModelDraftSession(ProposesByReading):
    """The draft model's session.

    It reads unread tokens at its next step, so after a fully accepted block, whose last token it has not read, that
    step takes two tokens. If the model's engine has captured them, the steps of a proposal are one run, and the
    proposal remains on the device (`PendingProposal`).

    With a `confidence` a proposal ends after the first token whose own q is below it (at T = 0: q before argmax). That
    token is part of the proposal. An end that depends on earlier draws is an end of the block like any other, and each
    token is still a draw from the q that it is tested with. If the token were dropped, the proposal would be drawn from
    the confident tokens only, not from q.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        sampling: Sampling,
        vocabulary_size: int,
        confidence: float | None = None,
    ) -> None:
        self.model = model
        self.session = session
        self.sampling = sampling
        self.vocabulary_size = vocabulary_size
        self.confidence = confidence
        self.choice = TokenChoice(sampling, vocabulary_size)
        # An end by confidence saves the steps that would follow it: there each token is looked at.
        self.rolls_out = confidence is None and model.rolls_out

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[AnyProposal]:
        # All random numbers first: which of them a token takes then depends on neither the engine nor an early end.
        uniform_G = self.choice.uniforms(gamma, generator)
        if self.rolls_out and gamma:
            unread = tokens[self.session.length :]
            if (rolled := self.session.rollout(unread, self.choice, gamma, uniform_G)) is not None:
                chosen, rows_GV = rolled
                if isinstance(chosen, Tensor):
                    return PendingProposal(chosen, rows_GV, self._ends_E)
                return Proposal(checked(list(chosen)), rows_GV, asked=gamma)
        sequence, session, ends = list(tokens), self.session, self.model.eos_ids
        rows: list[Tensor] = []
        for uniform_1 in [None] * gamma if uniform_G is None else uniform_G.split(1)[:gamma]:
            logits_LV = yield Read(session, sequence[session.length :])
            token, row_1V = self.choice(logits_LV, uniform_1)
            if row_1V is not None:
                rows.append(row_1V)
            sequence.append(token)
            if token in ends:
                break  # nothing can follow
            if self.confidence is not None and self._is_unsure(token, row_1V, logits_LV):
                break
        return Proposal(sequence[len(tokens) :], torch.cat(rows) if rows else None, asked=gamma)

    @cached_property
    def _ends_E(self) -> Tensor:
        return torch.tensor(sorted(self.model.eos_ids), dtype=torch.long, device=self.model.device)

    @property
    def chooses(self) -> tuple[Session, TokenChoice] | None:
        return (self.session, self.choice) if self.rolls_out else None

    def _is_unsure(self, token: int, row_1V: Tensor | None, logits_LV: Tensor) -> bool:
        """Whether the q of `token` is below the confidence.

        q is the row that it was drawn from, or, if it needed none (T = 0), the row before argmax.
        """
        if row_1V is None:
            row_1V = standardise(logits_LV[-1:], BEFORE_ARGMAX, self.vocabulary_size)
        return float(row_1V[0, token]) < (self.confidence or 0.0)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        return self._predicted(self.session.extend(tokens[self.session.length :])[-1:])

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        return self._predicted(self.session.extend(tokens, parents))

    def _predicted(self, logits_LV: Tensor, operations: float | None = None) -> Predicted:
        return Predicted(logits_LV, self.vocabulary_size, self.sampling, operations)

    def select(self, path: Sequence[int]) -> None:
        self.session.select(path)

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        self.session.rollback(prefix_length - 1)  # one that shares the target's cache begins where the target ended
        logits_LV = self.session.extend(tokens[self.session.length : -1])
        rows = len(tokens) - prefix_length
        return standardise(logits_LV[-rows:], self.sampling, self.vocabulary_size)


SCORED = 6  # tokens of the draft that are drafted at most to score one of the target's


class TextDraft(Draft):
    """`model`, in whose translation the target's vocabulary is the target's."""

    def __init__(self, model: TranslatedModel) -> None:
        self.model = model
        self.models = (model,)
        self.operations = model.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "TextDraftSession":
        return TextDraftSession(self.model, prompt)

    def in_batch(self, rows: int) -> "TextDraft":
        return TextDraft(self.model.in_batch(rows))


class TextDraftSession(Stateless, ProposesByReading):
    """The draft model's own session, in its own tokens; a proposal compares the tokens that it has read with the text.

    `texts`: what followed each of the tokens scored last.
    """

    def __init__(self, model: TranslatedModel, prompt: Prompt) -> None:
        self.model, self.translation = model, model.translation
        self._own = self.translation.prompt(prompt)
        self._first = len(prompt.prefix)
        self._read = list(self._own.prefix[:-1])
        self.session = model.model.start(self._own)
        self.texts: list[bytes] = []

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposal]:
        """Propose up to `gamma` tokens of the target's vocabulary, translated from the draft's."""
        drafted, _, steps = yield from self._drafted(tokens, gamma, gamma + 1)
        return Proposal(drafted[:gamma], operations=steps * self.model.operations)

    def _drafted(self, tokens: Sequence[int], most: int, enough: int) -> Reading[tuple[list[int], bytes, int]]:
        """The target's tokens that follow `tokens`, the text that they are from, and the draft's steps.

        The steps are `most`, or as many as make `enough` tokens of the target.
        """
        written = list(tokens[self._first :])
        own, waiting = self.translation.read(written)
        sequence = [*self._own.prefix, *own]
        common = min(self._common(sequence), len(sequence) - 1)
        self.session.rollback(common)
        del self._read[common:]
        found, text, steps = list[int](), b"", 0
        longest = self.model.longest
        while steps < most and len(found) < enough and (longest is None or len(sequence) <= longest):
            fresh = sequence[len(self._read) :]
            logits_LV = yield Read(self.session, fresh)
            self._read += fresh
            steps += 1
            (token,) = most_likely(logits_LV, self.translation.draft.size)
            if token in self.model.model.eos_ids:
                if text.startswith(waiting):
                    found = [*found, *self.model.ours(token)]
                break
            spelled = self.translation.to.bytes_of.get(token)
            if spelled is None:  # another special token: no text follows
                break
            sequence.append(token)
            text += spelled
            if text.startswith(waiting):
                found = self.translation.back(written, text.removeprefix(waiting))
        return found, text.removeprefix(waiting) if text.startswith(waiting) else b"", steps

    def _common(self, sequence: Sequence[int]) -> int:
        """How many tokens of `sequence` have been read."""
        pairs = zip(self._read, sequence, strict=False)
        return next(
            (place for place, (one, other) in enumerate(pairs) if one != other), min(len(self._read), len(sequence))
        )

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """The first token of a proposal, with probability 1, at each place; zeros without a proposal."""
        first = list[int | None]()
        self.texts = []
        for end in range(prefix_length, len(tokens)):
            drafted, text, _ = answered(self._drafted(tokens[:end], SCORED, 2))
            first.append(drafted[0] if drafted else None)
            self.texts.append(text)
        return certain(first, self.model.vocabulary_size, self.model.device)
