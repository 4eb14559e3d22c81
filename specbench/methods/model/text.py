"""A model of another vocabulary that drafts text: string-level exact match (Timor et al. 2025, section 3, "SLEM").

The draft reads the text as its own tokenizer has it and continues it in its own tokens; the text that they spell is
tokenised for the target. The draft's q of the target's tokens is not known, so the proposal counts as certain: a token
is accepted with p(x), and every token that is written is a draw from the target's own distribution. Since its q is not
used, the draft decodes greedily at every temperature.

Tokenising a longer text anew may move the boundaries of earlier tokens. In the draft's tokens what it has read is then
rolled back to where both agree; in the target's the tokens that were written stand, and if no token begins where they
end, the new text is tokenised by itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.engine.session import Prompt, Read, Reading, answered
from specbench.engine.translated import TranslatedModel
from specbench.methods.copying import certain
from specbench.sampling import Sampling, most_likely

SCORED = 6  # tokens of the draft that are drafted at most to score one of the target's


class TextDraft:
    """`model`, in whose translation the target's vocabulary is the target's."""

    def __init__(self, model: TranslatedModel) -> None:
        self.model = model
        self.models = (model,)
        self.operations = model.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "TextDraftSession":
        return TextDraftSession(self.model, prompt)

    def in_batch(self, rows: int) -> "TextDraft":
        return TextDraft(self.model.in_batch(rows))


class TextDraftSession:
    """The draft model's own session, in its own tokens. `texts`: what followed each of the tokens scored last."""

    def __init__(self, model: TranslatedModel, prompt: Prompt) -> None:
        self.model, self.translation = model, model.translation
        self._own = self.translation.prompt(prompt)
        self._first = len(prompt.prefix)
        self._read = list(self._own.prefix[:-1])
        self.session = model.model.start(self._own)
        self.texts: list[bytes] = []

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return answered(self.proposing(tokens, gamma, generator))

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

    def rollback(self, length: int) -> None:
        """Nothing to do: the next proposal compares the tokens read with the text."""

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """The first token of a proposal, certain, at each place; zeros where nothing is proposed."""
        first = list[int | None]()
        self.texts = []
        for end in range(prefix_length, len(tokens)):
            drafted, text, _ = answered(self._drafted(tokens[:end], SCORED, 2))
            first.append(drafted[0] if drafted else None)
            self.texts.append(text)
        return certain(first, self.model.vocabulary_size, self.model.device)
