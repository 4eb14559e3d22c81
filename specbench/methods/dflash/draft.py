"""DFlash (2602.06036): a block of tokens in one forward pass of a small network, as a draft.

`methods.dflash.network` has the network. A pass reads the target's states of the tokens that the last one accepted,
which the run that verified them gave, and then a whole block, however many of its tokens are proposed: q does not
depend on gamma, and neither does the time.

Given the text the tokens are drawn independently, each from its own row, which is its q: Algorithm 1 is exact.

Shapes: A places in a text, L positions, K drafted tokens, F numbers of the target's tapped states, D width, V logits.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft, FollowsTarget, after_zeros
from specbench.config.draft import TrainedConfig
from specbench.engine.beside.captured import captured, entries_of
from specbench.engine.beside.declared import Prediction
from specbench.engine.beside.eager import EagerEntries
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session
from specbench.engine.weights.load import shape_of
from specbench.loading.model_loader import Say
from specbench.methods.at_once import AtOnceSession
from specbench.methods.build import DraftBuilder, DraftRequest, source_of
from specbench.methods.dflash.beside import beside, probe
from specbench.methods.dflash.entries import BlockEntries, ScoredBlocks
from specbench.methods.dflash.network import BlockDrafter
from specbench.methods.dflash.published import published_block
from specbench.methods.features import Features, ReadsFeatures, columns_of
from specbench.methods.heads import require_weights
from specbench.sampling import Sampling, standardise

SCORED = 32  # blocks of one run along a text


class BlockDraft(FollowsTarget):
    """`drafter`, bound to the network of `target`, whose sessions hand over their tapped states, also of the prompt."""

    def __init__(self, target: Model, drafter: BlockDrafter, taps: tuple[int, ...]) -> None:
        """`taps`: after how many layers the states are that the target hands over."""
        self.target, self.drafter = target, drafter
        self.device, self.operations_of_block = drafter.device, drafter.operations
        self.operations = self.operations_of_block / drafter.shape.drafted
        self.columns = columns_of(drafter.shape.taps, taps, drafter.shape.layer.width)
        self.beside = beside(drafter)
        self.captured = captured(self.beside, target, partial(probe, drafter))

    def cache(self, session: Session) -> BlockEntries:
        """The context of a text, beside a session of the target."""
        return BlockEntries(self.drafter, entries_of(self.beside, self.captured, session))

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "BlockSession":
        return BlockSession(self, session, sampling)


class BlockSession(ReadsFeatures, AtOnceSession):
    """The network at work beside the target's session."""

    draft: BlockDraft

    def __init__(self, draft: BlockDraft, session: Session, sampling: Sampling) -> None:
        self.draft, self.session, self.sampling = draft, session, sampling
        self.cache = draft.cache(session)
        self._scored: ScoredBlocks | None = None  # what is scored along the text
        self._features = Features(session, True, draft.columns)

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        if gamma == 0:
            self.follow(tokens)
            return Proposal([])
        return self.drafted(tokens, gamma, generator)

    def drafted(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """A proposal of at least a token."""
        return super().propose(tokens, gamma, generator)._replace(operations=self.draft.operations_of_block)

    @torch.inference_mode()
    def ahead(self, tokens: Sequence[int], most: int) -> Tensor:
        return self.block(tokens, most).logits_LV

    @torch.inference_mode()
    def block(self, tokens: Sequence[int], most: int) -> Prediction:
        """The first `most` tokens of the block that begins with the last token."""
        self.follow(tokens)
        self._read(self.cache)
        return RUNS.run(self.cache.block, tokens[-1], most)

    def _read(self, cache: BlockEntries) -> None:
        """Read the context on."""
        if cache.length < len(self._features):
            RUNS.run(cache.read, self._features.of(cache.length, len(self._features)))

    def rollback(self, length: int) -> None:
        self._features.drop(length)
        self.cache.rollback(length)

    @torch.inference_mode()
    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        self.follow(tokens)
        draft = self.draft
        cache = self._scored = self._scored or ScoredBlocks(draft.drafter, EagerEntries(draft.beside, list))
        self._read(cache)
        ahead = min(most, self.draft.drafter.shape.drafted)
        # Proposals after token number `first` and later: the earliest that reach token number `prefix_length`.
        first, stop = max(0, prefix_length - ahead), len(tokens) - 1
        parts = [cache.blocks(tokens[start:stop][:SCORED], start) for start in range(first, stop, SCORED)]
        states_AKD = torch.cat(parts)
        return (
            self._q_ahead(states_AKD[:, place], tokens, place, len(tokens) - prefix_length) for place in range(ahead)
        )

    @torch.inference_mode()
    def _q_ahead(self, states_AD: Tensor, tokens: Sequence[int], ahead: int, rows: int) -> Tensor:
        """q [rows, V] of token `ahead` of a proposal, from 0; zeros where none began so early.

        The last but `ahead` of its states predicts the last token.
        """
        states_LD = states_AD[: max(0, len(states_AD) - ahead)][-rows:]
        logits_LV = self.logits_along(states_LD, tokens[len(tokens) - 1 - len(states_LD) : -1])
        return after_zeros(standardise(logits_LV, self.sampling, self.draft.target.vocabulary_size), rows)

    def logits_along(self, states_LD: Tensor, before: Sequence[int]) -> Tensor:
        """Logits [L, V] of drafted tokens, from their states and the tokens before them."""
        return self.draft.drafter.project(states_LD)


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
            say(f"{key}: its blocks draft {drafter.shape.drafted} tokens per pass at most, not gamma={gamma}")
        return self.build_draft(target, drafter)

    def build_draft(self, target: EagerModel, drafter: BlockDrafter) -> Draft:
        """The draft, which `load` returns."""
        return BlockDraft(target, drafter, target.tap_depths)
