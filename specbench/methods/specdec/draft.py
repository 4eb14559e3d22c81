"""SpecDec's drafter: all tokens of a proposal in one step of a shallow decoder.

Xia et al. 2023 (arXiv 2203.16487); `methods.specdec.network` has the decoder. It reads the text's tokens, the newest
one included, and the target's keys and values of the source; the target's states are not needed, so that it drafts in
the first pass of a text, too.

Given the text the drafted tokens are drawn independently, each from the row of its own query. That row is its q, and
Algorithm 1 is exact.

Shapes: L positions, K queries, D width, V logits.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft, after_zeros
from specbench.config.draft import TrainedConfig
from specbench.engine.capture.static_sessions import StaticSession
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session, StatefulSession, up_to_end
from specbench.engine.weights.load import shape_of
from specbench.methods.build import DraftRequest
from specbench.methods.decoder_layer import Source
from specbench.methods.heads import HeadsBuilder
from specbench.methods.specdec.captured import ParallelCache, ParallelSession, ReadsQueries, captured
from specbench.methods.specdec.network import ParallelDecoder, require_t5
from specbench.sampling import Sampling, checked, drawn, most_likely, standardise, uniforms


class SpecDecDraft:
    """`decoder`, bound to the network of `target`."""

    def __init__(self, target: Model, decoder: ParallelDecoder) -> None:
        self.target, self.decoder = target, decoder
        self.operations = decoder.operations
        self.captured = captured(decoder, target)

    def start(self, prompt: Prompt, sampling: Sampling) -> "SpecDecSession":
        """On a session of the target's own, which encodes the source."""
        return self.start_on(self.target.start(prompt), prompt, sampling)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "SpecDecSession":
        return SpecDecSession(self, cast(StatefulSession, session), len(prompt.prefix), sampling)


class SpecDecSession:
    """The decoder's state for one sequence; of the target's session it only reads the source."""

    stops_at_end = True

    def __init__(self, draft: SpecDecDraft, session: StatefulSession, prefix: int, sampling: Sampling) -> None:
        """`prefix` is how many tokens the text begins with: no proposal is made before them."""
        self.draft, self.session, self.prefix, self.sampling = draft, session, prefix, sampling
        self.sources = partial(sources_of, session, draft.decoder.layers)  # no cycle: rows of a batch are freed at once
        self.cache: ReadsQueries = ParallelCache(draft.decoder, self.sources)
        if draft.captured is not None and isinstance(session, StaticSession):
            self.cache = ParallelSession(draft.captured, draft.decoder, session)

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        count = min(gamma, self.draft.decoder.queries)
        if count == 0:
            return Proposal([])
        self.cache.rollback(len(tokens) - 1)  # the queries follow a token of this step
        logits_KV = self.cache.step(tokens[self.cache.length :], count)
        target = self.draft.target
        if self.sampling.temperature == 0:
            return Proposal(up_to_end(most_likely(logits_KV, target.vocabulary_size, count), target.eos_ids))
        q_GV = standardise(logits_KV, self.sampling, target.vocabulary_size)
        drawn_G = drawn(q_GV, uniforms(count, generator, q_GV.device))
        drafted = up_to_end(checked(drawn_G.tolist()), target.eos_ids)
        return Proposal(drafted, q_GV[: len(drafted)])

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q of the first token of a proposal, at each position."""
        return next(self.score_ahead(tokens, prefix_length, 1))

    @torch.inference_mode()
    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        decoder, rows = self.draft.decoder, len(tokens) - prefix_length
        ahead = min(most, decoder.queries)
        # Of proposals after token number `first` and later: the earliest that reach token number `prefix_length`.
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


def sources_of(session: StatefulSession, layers: Sequence[int]) -> list[Source]:
    """Return the target's keys and values of the source in these of its decoder layers."""
    found = []
    for layer in layers:
        states = session.source_states(layer)
        assert states is not None, "a T5 has a source"
        found.append(Source(*states))
    return found


# The builder of SpecDec's decoder.


class SpecDecBuilder(HeadsBuilder):
    """SpecDec's decoder; without a folder the weights that ship for the target."""

    needs_states = False  # it reads what the target's layers made of the source
    heads = ParallelDecoder
    counted = "queries"

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        require_t5(shape_of(request.run.target, "target"), f"draft={request.draft.kind}")
        super().__init__(request)

    def draft_on(self, target: EagerModel, rows: int) -> Draft:
        decoder = ParallelDecoder.load(self.folder, target.network, self.request.key)
        return SpecDecDraft(target, decoder.bind(target.network))
