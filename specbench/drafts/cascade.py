"""A draft that is itself decoded speculatively, with a cheaper draft of its own (section 6 of the paper: "hierarchical"
speculation; bigram to T5-small to T5-XXL).

Inside, Algorithm 1 runs with the middle model in the target's place. It is lossless, so the tokens that it hands out
are draws from the middle model's distribution behind what stands before them, and that row of the verification is the
q that the target's test must use, for the accepted tokens and for the one that follows them alike. The inner draft's
own distribution plays no part outside.

A pass inside never drafts past what was asked for outside, so nothing has to be cut off.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.acceptance import accept_certain, accept_exact
from specbench.drafts.base import Draft, Proposal, start_beside
from specbench.drafts.model import ModelDraftSession
from specbench.models import Model, Prompt, up_to_end
from specbench.sampling import Sampling, most_likely, standardise


class CascadeDraft:
    """`middle`, which shares the target's vocabulary, drafting with `inner`, `inner_gamma` tokens at a time."""

    def __init__(self, middle: Model, inner: Draft, inner_gamma: int, vocabulary_size: int) -> None:
        self.model = middle
        self.vocabulary_size = vocabulary_size
        self.inner = inner
        self.inner_gamma = inner_gamma
        self.inner_drafted = self.read = self.emitted = 0  # tokens, so far

    @property
    def operations(self) -> float:
        """Counted over what was drafted so far, with every position that the middle model checked (Theorem 3.11);
        before anything was, as if the inner draft were never right."""
        if self.emitted == 0:
            return (self.inner_gamma + 1) * self.model.operations + self.inner_gamma * self.inner.operations
        return (self.read * self.model.operations + self.inner_drafted * self.inner.operations) / self.emitted

    def start(self, prompt: Prompt, sampling: Sampling) -> "CascadeSession":
        return CascadeSession(self, prompt, sampling)


class CascadeSession(ModelDraftSession):
    """The middle model's session, and the inner draft's beside it. By teacher forcing it scores as the middle model
    alone does."""

    def __init__(self, draft: CascadeDraft, prompt: Prompt, sampling: Sampling) -> None:
        super().__init__(draft.model, draft.model.start(prompt), sampling, draft.vocabulary_size)
        self.draft = draft
        self.drafting = start_beside(self.session, draft.inner, prompt, sampling)

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        sequence, end = list(tokens), len(tokens) + gamma
        rows: list[Tensor] = []
        while len(sequence) < end:
            inner = self.drafting.propose(sequence, min(self.draft.inner_gamma, end - len(sequence) - 1), generator)
            count = len(inner.tokens)
            logits_LV = self.session.extend(sequence[self.session.length :] + inner.tokens)
            if self.sampling.temperature == 0:
                verdict = accept_certain(most_likely(logits_LV, self.vocabulary_size, count + 1), inner.tokens)
            else:
                q_GV = standardise(logits_LV[-(count + 1) :], self.sampling, self.vocabulary_size)
                verdict = accept_exact(q_GV, inner.q(q_GV), inner.tokens, generator)
                rows += q_GV[: verdict.accepted + 1].split(1)
            emitted = up_to_end([*inner.tokens[: verdict.accepted], verdict.token], self.model.eos_ids)
            self._count(count, len(emitted))
            sequence += emitted
            self.rollback(len(sequence) - 1)
            if sequence[-1] in self.model.eos_ids:
                break
        drafted = sequence[len(tokens) :]
        return Proposal(drafted, torch.cat(rows[: len(drafted)]) if rows else None)

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self.drafting.rollback(length)

    def _count(self, drafted: int, emitted: int) -> None:
        self.draft.inner_drafted += drafted
        self.draft.read += drafted + 1
        self.draft.emitted += emitted
