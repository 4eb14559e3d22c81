"""DSpark (2607.05147): DFlash's network, whose tokens are drawn one after another, as a draft.

The network runs once per pass. The contribution of a token to the next token's logits is a look-up and a matrix of low
rank, so that a token is drawn given the one before it, from the row that is reported as its q. With `confidence` a
proposal ends before the token that the network's own head expects to be rejected: that is decided before the token is
drawn, from the tokens before it, so that Algorithm 1 is exact.

Shapes: L positions, K drafted tokens, D width, N nodes of a tree, V logits.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations
from specbench.algorithm.draft import Draft
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt, Session
from specbench.errors import UserError
from specbench.methods.dflash.draft import BlockBuilder, BlockDraft, BlockSession
from specbench.methods.dflash.network import BlockDrafter
from specbench.methods.dspark.config import DsparkConfig
from specbench.sampling import Sampling, draw_next


class MarkovDraft(BlockDraft):
    """`confidence`: a proposal ends before a token whose predicted acceptance is below it."""

    target: EagerModel
    confidence: float | None = None

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        self.added([0])  # made ready now, not in the first pass

    @cached_property
    def _added_by(self) -> Callable[[Tensor], Tensor]:
        """In the target's engine, what the entries [1, N, R] of tokens add to the logits [N, V] of the next."""
        last = self.drafter.markov_head.markov_w2
        return self.target.ready(lambda read_1NR: last(read_1NR[0]), [self.drafter.shape.rank])

    @torch.inference_mode()
    def added(self, tokens: Sequence[int]) -> Tensor:
        """The contribution [N, V] of these tokens to the logits of the next."""
        ids_N = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return self._added_by(self.drafter.markov_head.markov_w1(ids_N).unsqueeze(0))

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "MarkovSession":
        return MarkovSession(self, session, sampling)


class MarkovSession(BlockSession):
    """The network at work beside the target's session."""

    draft: MarkovDraft
    _nodes: Sequence[int] = ()  # the tokens that a tree is continued after

    @torch.inference_mode()
    def drafted(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        target = self.draft.target
        states_KD, logits_KV = self.block(tokens, gamma)
        drafted, rows, token = list[int](), list[Tensor](), tokens[-1]
        for state_1D, logits_1V in zip(states_KD.split(1), logits_KV.split(1), strict=True):
            if self._is_unlikely(state_1D, token):
                break
            logits_1V = RUNS.run(torch.add, logits_1V, self._added([token]))
            token, row_1V = draw_next(logits_1V, self.sampling, target.vocabulary_size, generator)
            drafted.append(token)
            rows += [] if row_1V is None else [row_1V]
            if token in target.eos_ids:
                break
        return Proposal(drafted, torch.cat(rows) if rows else None, self.draft.operations_of_block)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        self._nodes = tokens[-1:]
        return super().after_text(tokens, levels)

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """They depend on a node's depth and on its token."""
        self._nodes = tokens
        return super().after_nodes(tokens, parents)

    def after_depths(self, ahead_KV: Tensor, depths: Sequence[int]) -> Tensor:
        return ahead_KV[depths] + self._added(self._nodes)

    def logits_along(self, states_LD: Tensor, before: Sequence[int]) -> Tensor:
        return super().logits_along(states_LD, before) + self._added(before)

    def _added(self, tokens: Sequence[int]) -> Tensor:
        """The contribution [N, V] of these tokens to the logits of the next: as much a forward pass as the block."""
        return RUNS.run(self.draft.added, tokens)

    def _is_unlikely(self, state_1D: Tensor, before: int) -> bool:
        """Whether a token is not expected to be accepted."""
        if self.draft.confidence is None:
            return False
        before_1 = torch.tensor([before], device=self.draft.device)
        return float(RUNS.run(self.draft.drafter.accepted, state_1D, before_1).sigmoid()) < self.draft.confidence


class DsparkBuilder(BlockBuilder):
    """DSpark's weights, of our own recipes or a published checkpoint."""

    draft: DsparkConfig

    def build_draft(self, target: EagerModel, drafter: BlockDrafter) -> Draft:
        made = MarkovDraft(target, drafter, target.tap_depths)
        made.confidence = self.draft.confidence
        if made.confidence is not None and drafter.shape.confidence is None:
            key = self.request.key
            raise UserError(f"{key}.confidence={made.confidence}: these weights predict no acceptance; leave it unset")
        return made
