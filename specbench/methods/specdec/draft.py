"""SpecDec's drafter: all tokens of a proposal in one step of a shallow decoder.

Xia et al. 2023 (arXiv 2203.16487); `methods.specdec.network` has the decoder. It reads the text's tokens, the newest
one included, and the target's keys and values of the source; the target's states are not needed, so that it also drafts
in a text's first pass.

Given the text the drafted tokens are drawn independently, each from the row of its own query. That row is its q, and
Algorithm 1 is exact.

Shapes: L positions, K queries, D width, V logits.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft, FollowsTarget, ScoresAhead, after_zeros
from specbench.config.draft import TrainedConfig
from specbench.engine.beside.captured import captured, entries_of
from specbench.engine.beside.declared import Source
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session
from specbench.engine.weights.load import shape_of
from specbench.methods.at_once import independent_proposal
from specbench.methods.build import DraftRequest
from specbench.methods.heads import HeadsBuilder
from specbench.methods.specdec.beside import ParallelEntries, beside, probe
from specbench.methods.specdec.network import ParallelDecoder, require_t5
from specbench.sampling import Sampling, standardise


class SpecDecDraft(FollowsTarget):
    """`decoder`, bound to the network of `target`."""

    def __init__(self, target: Model, decoder: ParallelDecoder) -> None:
        self.target, self.decoder = target, decoder
        self.operations = decoder.operations
        self.beside = beside(decoder)
        self.captured = captured(self.beside, target, partial(probe, decoder))

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "SpecDecSession":
        return SpecDecSession(self, session, len(prompt.prefix), sampling)


class SpecDecSession(ScoresAhead):
    """The decoder's state for one sequence; it reads only the source in the target's session."""

    stops_at_end = True

    def __init__(self, draft: SpecDecDraft, session: Session, prefix: int, sampling: Sampling) -> None:
        """`prefix` is how many tokens the text begins with: no proposal is made before them."""
        self.draft, self.session, self.prefix, self.sampling = draft, session, prefix, sampling
        self.sources = partial(sources_of, session, draft.decoder.layers)  # no cycle: rows of a batch are freed at once
        self.cache = ParallelEntries(draft.decoder, entries_of(draft.beside, draft.captured, session))

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        count = min(gamma, self.draft.decoder.queries)
        if count == 0:
            return Proposal([])
        self.cache.rollback(len(tokens) - 1)  # the queries follow a token of this step
        logits_KV = RUNS.run(self.cache.step, tokens[self.cache.length :], count)
        return independent_proposal(logits_KV, self.sampling, self.draft.target, generator)

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    @torch.inference_mode()
    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        decoder, rows = self.draft.decoder, len(tokens) - prefix_length
        ahead = min(most, decoder.queries)
        # `first` is the first token whose proposals reach token number `prefix_length`.
        first = max(self.prefix - 1, prefix_length - ahead)
        ids_1T = torch.tensor([list(tokens[:-1])], device=decoder.query_KD.device)
        states_TKD = decoder.states_after_each(ids_1T, self.sources(), first)[0]
        return (self._q_ahead(states_TKD[:, place], rows, place) for place in range(ahead))

    @torch.inference_mode()
    def _q_ahead(self, states_TD: Tensor, rows: int, ahead: int) -> Tensor:
        """q [rows, V] of the query `ahead`; zeros where no proposal began so early.

        The last but `ahead` of its states predicts the last token.
        """
        states_LD = states_TD[: max(0, len(states_TD) - ahead)][-rows:]
        size = self.draft.target.vocabulary_size
        q_LV = standardise(self.draft.decoder.project(states_LD), self.sampling, size)
        return after_zeros(q_LV, rows)


def sources_of(session: Session, layers: Sequence[int]) -> list[Source]:
    """The target's keys and values of the source in these of its decoder layers."""
    return [source for layer in layers if (source := Source.of(session, layer)) is not None]


class SpecDecBuilder(HeadsBuilder):
    """SpecDec's decoder; without a folder the weights that ship for the target."""

    needs_states = False  # it reads what the target's layers made of the source
    heads = ParallelDecoder
    counted = drafting = "queries"

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        require_t5(shape_of(request.run.target, "target"), f"draft={request.draft.kind}")
        super().__init__(request)

    def build_draft(self, target: EagerModel) -> Draft:
        decoder = ParallelDecoder.load(self.folder, target.network, self.request.key)
        return SpecDecDraft(target, decoder.bind(target.network))
