"""DFlash (2602.06036) and DSpark (2607.05147): a block of tokens in one run of a small network, as a draft.

`methods.dflash.network` has the network. A pass reads the target's states of the tokens that the last one accepted,
which the run that verified them gave, and then a whole block, however many of its tokens are proposed: q does not
depend on gamma, and neither does the time.

Given the text DFlash's tokens are drawn independently, each from its own row. In DSpark a row also depends on the token
before, which is drawn first. In both q is the row that a token was drawn from, so that Algorithm 1 is exact.

Shapes: A places in a text, K drafted tokens, N nodes of a tree, D width, V logits.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations, Found, Predicted
from specbench.algorithm.draft import Draft, FollowsTarget, ScoresAhead, after_zeros
from specbench.config.draft import TrainedConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session, StatefulSession
from specbench.engine.weights.load import shape_of
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, source_of
from specbench.methods.dflash.cache import BlockCache
from specbench.methods.dflash.network import BlockDrafter
from specbench.methods.dflash.published import published_block
from specbench.methods.heads import independent_proposal, require_weights
from specbench.sampling import Sampling, draw_next, standardise
from specbench.theory.trees import ROOT

SCORED = 32  # blocks of one run along a text


class BlockDraft(FollowsTarget):
    """`drafter`, bound to the network of `target`, whose sessions hand over their tapped states, the prompt's too."""

    def __init__(self, target: Model, drafter: BlockDrafter, taps: tuple[int, ...], confidence: float | None = None):
        """`taps`: after how many layers the states are that the target hands over.

        `confidence`: a proposal ends before a token whose predicted acceptance is below it.
        """
        self.target, self.drafter, self.confidence = target, drafter, confidence
        self.operations = drafter.operations / drafter.shape.drafted
        width, places = drafter.shape.layer.width, [taps.index(depth) for depth in drafter.shape.taps]
        self.columns = [column for place in places for column in range(place * width, (place + 1) * width)]

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "BlockSession":
        return BlockSession(self, cast(StatefulSession, session), sampling)


class BlockSession(ScoresAhead):
    """The network at work beside the target's session."""

    stops_at_end = True

    def __init__(self, draft: BlockDraft, session: StatefulSession, sampling: Sampling) -> None:
        self.draft, self.session, self.sampling = draft, session, sampling
        self.drafter, self.size = draft.drafter, draft.target.vocabulary_size
        self.cache = BlockCache(draft.drafter)
        self._states_KD = torch.empty(0)  # of the block at work, while a tree is grown
        self._logits_KV = torch.empty(0)
        self._depths: list[int] = []  # of the tree's nodes, 1 being that of the root's children
        self._gather(session.length)  # of the prompt, before the target reads on

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        count = min(gamma, self.drafter.shape.drafted)
        if count == 0:
            self.follow(tokens)
            return Proposal([])
        states_KD = self._block(tokens)
        logits_KV = self.drafter.project(states_KD[:count])
        if self.drafter.shape.rank:
            found = self._one_by_one(states_KD, logits_KV, tokens[-1], generator)
        else:
            found = independent_proposal(logits_KV, self.sampling, self.draft.target, generator)
        return found._replace(operations=self.drafter.operations)

    def _one_by_one(
        self, states_KD: Tensor, logits_KV: Tensor, token: int, generator: torch.Generator
    ) -> Proposal:
        """Each token drawn given the one before it, up to the end of the text or to one that is hardly accepted."""
        drafted, rows = list[int](), list[Tensor]()
        for state_D, logits_V in zip(states_KD, logits_KV, strict=False):
            before_1 = torch.tensor([token], device=logits_V.device)
            if self.draft.confidence is not None:
                if float(self.drafter.accepted(state_D[None], before_1).sigmoid()) < self.draft.confidence:
                    break
            logits_1V = logits_V + self.drafter.markov_head(before_1)
            token, row_1V = draw_next(logits_1V, self.sampling, self.size, generator)
            drafted.append(token)
            rows += [] if row_1V is None else [row_1V]
            if token in self.draft.target.eos_ids:
                break
        return Proposal(drafted, torch.cat(rows) if rows else None)

    @torch.inference_mode()
    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        self._logits_KV = self.drafter.project(self._block(tokens)[:levels])
        self._depths = []
        return self._after([0], [tokens[-1]], self.drafter.operations)

    @torch.inference_mode()
    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """Of DFlash the same after every node of a depth; of DSpark they depend on the node's token."""
        first = len(self._depths)
        for parent in parents:
            self._depths.append(1 if parent == ROOT else self._depths[parent] + 1)
        return self._after(self._depths[first:], tokens, 0.0)

    def _after(self, depths: Sequence[int], tokens: Sequence[int], operations: float) -> Continuations:
        if max(depths) >= len(self._logits_KV):
            return Found([()] * len(depths), self.size, self._logits_KV.device)
        logits_NV = self._logits_KV[list(depths)]
        if self.drafter.shape.rank:
            logits_NV = logits_NV + self.drafter.markov_head(torch.tensor(tokens, device=logits_NV.device))
        return Predicted(logits_NV, self.size, self.sampling, operations)

    def follow(self, tokens: Sequence[int]) -> None:
        self._read(tokens[:-1])

    def select(self, path: Sequence[int]) -> None:
        """Nothing: accepted tokens are read with the target's states."""

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    @torch.inference_mode()
    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        self._read(tokens[:-1])
        ahead = min(most, self.drafter.shape.drafted)
        # Proposals after token number `first` and later: the earliest that reach token number `prefix_length`.
        first, stop = max(0, prefix_length - ahead), len(tokens) - 1
        parts = [
            self.cache.blocks(tokens[start : min(start + SCORED, stop)], start) for start in range(first, stop, SCORED)
        ]
        states_AKD = torch.cat(parts)
        return (self._q_ahead(states_AKD[:, place], tokens, place, len(tokens) - prefix_length) for place in range(ahead))

    @torch.inference_mode()
    def _q_ahead(self, states_AD: Tensor, tokens: Sequence[int], ahead: int, rows: int) -> Tensor:
        """q [rows, V] of token `ahead` of a proposal; zeros where none began so early.

        The last but `ahead` of its states predicts the last token.
        """
        states_LD = states_AD[: max(0, len(states_AD) - ahead)][-rows:]
        logits_LV = self.drafter.project(states_LD)
        if self.drafter.shape.rank and len(states_LD):
            before_L = torch.tensor(tokens[-1 - len(states_LD) : -1], device=logits_LV.device)
            logits_LV = logits_LV + self.drafter.markov_head(before_L)
        return after_zeros(standardise(logits_LV, self.sampling, self.size), rows)

    def _block(self, tokens: Sequence[int]) -> Tensor:
        """The states [K, D] of the block after the last token."""
        self.follow(tokens)
        return self.cache.block(tokens[-1])

    def _read(self, tokens: Sequence[int]) -> None:
        """Read the states of `tokens`; a session of the draft's own reads those that it has not read."""
        if self.session.length < len(tokens):
            self.session.extend(tokens[self.session.length :])
        self._gather(len(tokens))

    def _gather(self, count: int) -> None:
        """Read the target's states of the first `count` tokens."""
        known = self.cache.length
        if known < count:
            states_LF = self.session.tapped(known, count)
            assert states_LF is not None, "the target has read this text in other parts than it is drafted for in"
            with torch.inference_mode():
                self.cache.read(states_LF[:, self.draft.columns])


class BlockBuilder(DraftBuilder[TrainedConfig]):
    """Weights of our own recipes, in a folder or shipped, or a published checkpoint, in a folder or on the hub."""

    needs_states = needs_prompt_states = True

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        super().__init__(request)
        source, pinned = source_of(self.draft)
        require_weights(request, Path(source), f", or {request.key}.hub=OWNER/NAME of a published checkpoint")
        config = shape_of(request.run.target, "target")
        self.published = published_block(source, pinned, request.key, self.draft.kind, config)
        self.taps = self.published.shape.taps

    def load(self, target: EagerModel, say: Say) -> Draft:
        gamma, key = self.request.run.gamma, self.request.key
        drafter = self.published.load(target.network)
        if isinstance(gamma, int) and gamma > drafter.shape.drafted:
            say(f"{key}: its blocks draft {drafter.shape.drafted} tokens a pass at most, not gamma={gamma}")
        return BlockDraft(target, drafter, target.tap_depths, getattr(self.draft, "confidence", None))
