"""A draft that is itself decoded speculatively, with a cheaper draft of its own (section 6 of the paper: "hierarchical"
speculation; bigram to T5-small to T5-XXL).

Inside, Algorithm 1 runs with the middle model in the target's place. It is lossless, so the tokens that it hands out
are draws from the middle model's distribution given what stands before them, and that row of the verification is the
q that the target's test must use, for the accepted tokens and for the one that follows them alike. The inner draft's
own distribution plays no part outside.

A pass inside never drafts past what was asked for outside, so nothing has to be cut off.

Shapes: G drafted tokens, L positions, V logits of the head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.acceptance import Proposal, Verification, accept_exact, target_rows, verify
from specbench.drafts.base import Draft, proposing, start_beside
from specbench.drafts.model import ModelDraftSession
from specbench.models import Model, Prompt, Read, Reading, up_to_end
from specbench.sampling import Sampling


class CascadeDraft:
    """`middle`, which shares the target's vocabulary, drafting with `inner`, `inner_gamma` tokens at a time."""

    def __init__(self, middle: Model, inner: Draft, inner_gamma: int, vocabulary_size: int) -> None:
        self.model = middle
        self.vocabulary_size = vocabulary_size
        self.inner = inner
        self.inner_gamma = inner_gamma
        # As if the inner draft were never right. What a proposal really took depends on that, and is counted in it.
        self.operations = (inner_gamma + 1) * middle.operations + inner_gamma * inner.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "CascadeSession":
        return CascadeSession(self, prompt, sampling)


class CascadeSession(ModelDraftSession):
    """The middle model's session, and the inner draft's beside it. By teacher forcing it scores as the middle model
    alone does."""

    def __init__(self, draft: CascadeDraft, prompt: Prompt, sampling: Sampling) -> None:
        super().__init__(draft.model, draft.model.start(prompt), sampling, draft.vocabulary_size)
        self.draft = draft
        self.verification = Verification(accept_exact, sampling)
        self.drafting = start_beside(self.session, draft.inner, prompt, sampling)
        self.inner_proposing = proposing(self.drafting)

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposal]:
        sequence, end = list(tokens), len(tokens) + gamma
        middle_operations, inner_operations, operations = self.model.operations, self.draft.inner.operations, 0.0
        q_rows: list[Tensor] = []
        while len(sequence) < end:
            most = min(self.draft.inner_gamma, end - len(sequence) - 1)
            inner = yield from self.inner_proposing(sequence, most, generator)
            drafted = inner.tokens
            logits_LV = yield Read(self.session, sequence[self.session.length :] + drafted)
            rows = target_rows(logits_LV, len(drafted), self.verification, self.vocabulary_size)
            path, token = verify(rows, inner, self.verification, generator)
            if isinstance(rows, Tensor):
                q_rows += rows[: len(path) + 1].split(1)
            sequence += up_to_end([*(drafted[index] for index in path), token], self.model.eos_ids)
            # Every position that the middle model checked counts (Theorem 3.11).
            drafting = len(drafted) * inner_operations if inner.operations is None else inner.operations
            operations += (len(drafted) + 1) * middle_operations + drafting
            self.rollback(len(sequence) - 1)
            if sequence[-1] in self.model.eos_ids:
                break
        tokens_G = sequence[len(tokens) :]
        return Proposal(tokens_G, torch.cat(q_rows[: len(tokens_G)]) if q_rows else None, operations)

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self.drafting.rollback(length)
