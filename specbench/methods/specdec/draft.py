"""SpecDec's drafter: all tokens of a proposal in one step of a shallow decoder.

Xia et al. 2023 (arXiv 2203.16487); `methods.specdec.network` has the decoder. It reads the text's tokens, the newest
one included, and the target's keys and values of the source; the target's states are not needed, so that it drafts in
the first pass of a text, too.

Given the text the drafted tokens are drawn independently, each from the row of its own query. That row is its q, and
Algorithm 1 is exact.

Shapes: L positions, K queries, D width, V logits.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import T5ForConditionalGeneration

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft, FollowsTarget, ScoresAhead, after_zeros
from specbench.config.draft import TrainedConfig
from specbench.engine.capture.static import StaticModel
from specbench.engine.capture.static_sessions import StaticSession
from specbench.engine.choice import checked_capture
from specbench.engine.clock import RUNS
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.parts import layer_list, own_head
from specbench.engine.layout import Layout
from specbench.engine.session import Model, Prompt, Session
from specbench.engine.weights.load import shape_of
from specbench.errors import UserError, first_line
from specbench.methods.at_once import independent_proposal
from specbench.methods.build import DraftRequest
from specbench.methods.decoder_layer import LayerCache, Source
from specbench.methods.heads import HeadsBuilder
from specbench.methods.specdec.network import ParallelDecoder, entries, require_t5, t5_pairs
from specbench.sampling import Sampling, standardise


class OwnBias(nn.Module):
    """A T5's self-attention sublayer whose position biases are its own, where a T5's are the first layer's."""

    def __init__(self, sublayer: Any) -> None:
        super().__init__()
        self.sublayer = sublayer

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **more: Any) -> Any:
        return self.sublayer(hidden_states, attention_mask=attention_mask, position_bias=None, **more)


@torch.no_grad()
def as_t5(decoder: ParallelDecoder, target: Any) -> Any:
    """Return a T5 with the weights of `decoder`, which is bound to `target`."""
    config = copy.deepcopy(target.config)
    vocabulary = target.get_input_embeddings().weight
    config.num_decoder_layers, config.num_layers = len(decoder.layers), 1
    config.vocab_size = len(vocabulary) + decoder.queries
    made = T5ForConditionalGeneration(config)
    made.config.tie_word_embeddings = made.config.scale_decoder_outputs = False  # after construction, which ties them
    blocks: list[Any] = list(layer_list(made))
    for ours, its in t5_pairs(decoder, blocks):
        its.copy_(ours)
    theirs: list[Any] = list(layer_list(target))
    layers: Any = zip(blocks, decoder.blocks, decoder.layers, strict=True)
    for block, layer, number in layers:
        own, attention = block.layer[0], block.layer[1].EncDecAttention
        own.SelfAttention.relative_attention_bias = copy.deepcopy(layer.relative_bias)
        own.SelfAttention.has_relative_attention_bias = True
        block.layer[0] = OwnBias(own)
        for name in "kv":
            getattr(attention, name).weight.copy_(getattr(theirs[number].layer[1].EncDecAttention, name).weight)
    made.decoder.final_layer_norm.weight.copy_(decoder.norm.weight)
    made = made.to(vocabulary.device, vocabulary.dtype)
    embeddings = nn.Embedding.from_pretrained(torch.cat([vocabulary, decoder.query_KD.to(vocabulary)]))
    made.shared = embeddings
    made.decoder.set_input_embeddings(embeddings)
    made.encoder = target.encoder
    made.lm_head = own_head(target)
    return made.eval().requires_grad_(False)


def captured(decoder: ParallelDecoder, target: object) -> StaticModel | None:
    """Return `decoder` in the engine of `target`; None where that captures no steps, or CUDA graphs.

    Raises UserError if its captured step differs from the module's own by more than rounding.
    """
    if not isinstance(target, StaticModel) or isinstance(target, CudaGraphModel):
        return None
    packed = None if target.invariant else target.packed
    made = as_t5(decoder, target.network)
    try:
        return checked_capture(type(target), made, target.vocabulary_size, target.eos_ids, packed=packed)
    except RuntimeError as error:
        raise UserError(f"draft=specdec: engine={target.engine}: {first_line(error)}; use engine=eager") from error


class ParallelSession(StaticSession):
    """The captured decoder on the text of the target's session `beside`; see `ParallelCache`."""

    def __init__(self, model: StaticModel, decoder: ParallelDecoder, beside: StaticSession) -> None:
        self._begin(model)
        self._queries = 0  # that end the entries of the step at work
        self.first_query = model.network.get_input_embeddings().weight.shape[0] - decoder.queries
        self._sources, self._source_length_1, self._of_source_buffers = beside.of_source(decoder.layers)
        self.reserve(1)

    def _collect(self) -> None:
        self._buffers = [*self._held["self"].layers, *self._of_source_buffers]

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], queries: int) -> Tensor:
        count, step, self._queries = len(tokens) + queries, self.model.program.several, queries
        self._make_room(self.length + count)
        ids_1L = self._ids([*tokens, *range(self.first_query, self.first_query + queries)], count)
        fixed = self._of_source(step, ids_1L, count)
        key = (id(step), "queries", queries, self.length, count, self._capacity)

        def compute() -> tuple[Tensor, ...]:
            layout = self._layout(count)
            inputs = (ids_1L, *layout.tensors, self._source_length_1, *self._buffers)
            return *layout.tensors, *step.of_layout(*inputs, *fixed)

        placed = self.model.positions.once(key, compute)
        inputs = *placed[:3], self._source_length_1, *self._buffers, *fixed, *placed[3:]
        logits_LV = RUNS.run(step.run, ids_1L, *inputs)[0]
        self.length += len(tokens)
        return logits_LV[-queries:]

    def _layout(self, count: int) -> Layout:
        """The newest `count` entries, of which the last are queries that see themselves and no other query."""
        layout, queries = super()._layout(count), self._queries
        visible_1LC = layout.visible_BLC.clone()
        first = self.length + count - queries
        itself = torch.eye(queries, dtype=torch.bool, device=visible_1LC.device)
        visible_1LC[:, -queries:, first : first + queries] = itself
        return Layout(layout.slots_BL, layout.positions_BC, visible_1LC)


class ParallelCache:
    """The keys and values of the tokens that `decoder` has read of one text, layer by layer.

    The queries of a step are written after them and dropped.
    """

    def __init__(self, decoder: ParallelDecoder, sources: Callable[[], Sequence[Source]]) -> None:
        """`sources` has for each layer the keys and values of the source."""
        self.decoder, self.sources = decoder, sources
        self.length = 0
        self._cache = LayerCache(decoder.shape, len(decoder.layers), decoder.query_KD)

    def step(self, tokens: Sequence[int], queries: int) -> Tensor:
        """Read `tokens` on, and return what the first `queries` queries after them predict: logits [K, V]."""
        decoder, device = self.decoder, self.decoder.query_KD.device
        end = self.length + len(tokens)
        self._cache.reserve(end + queries)
        distance, visible = entries(end, end - 1, queries, device)
        new = slice(self.length, None)  # rows of the new tokens and of the queries
        states_LD = torch.cat([decoder.embed(torch.tensor(tokens, device=device)), decoder.query_KD[:queries]])
        attends = [partial(self._attend, block, distance[new], visible[new]) for block in range(len(decoder.layers))]
        after_1LD = decoder(states_LD.unsqueeze(0), self.sources(), attends)
        self.length = end
        logits_KV: Tensor = decoder.project(after_1LD[0, len(tokens) :])
        return logits_KV

    def rollback(self, length: int) -> None:
        self.length = min(self.length, length)

    def _attend(
        self, block: int, distance_LC: Tensor, visible_LC: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        bias = self.decoder.bias(block, distance_LC, visible_LC).to(self._cache.dtype)
        return self._cache.attend(block, distance_LC.shape[1], bias[None], query, key, value)


class SpecDecDraft(FollowsTarget):
    """`decoder`, bound to the network of `target`."""

    def __init__(self, target: Model, decoder: ParallelDecoder) -> None:
        self.target, self.decoder = target, decoder
        self.operations = decoder.operations
        self.captured = captured(decoder, target)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "SpecDecSession":
        return SpecDecSession(self, session, len(prompt.prefix), sampling)


class SpecDecSession(ScoresAhead):
    """The decoder's state for one sequence; of the target's session it only reads the source."""

    stops_at_end = True

    def __init__(self, draft: SpecDecDraft, session: Session, prefix: int, sampling: Sampling) -> None:
        """`prefix` is how many tokens the text begins with: no proposal is made before them."""
        self.draft, self.session, self.prefix, self.sampling = draft, session, prefix, sampling
        self.sources = partial(sources_of, session, draft.decoder.layers)  # no cycle: rows of a batch are freed at once
        self.cache: ParallelCache | ParallelSession
        if draft.captured is not None and isinstance(session, StaticSession):
            self.cache = ParallelSession(draft.captured, draft.decoder, session)
        else:
            self.cache = ParallelCache(draft.decoder, self.sources)

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
