"""SpecDec's decoder as a captured step, beside the target's session, whose keys and values of the source it reads.

Shapes: L new entries, K queries, C slots, V logits.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specbench.errors import UserError, first_line
from specbench.models.cudagraph import CudaGraphModel
from specbench.models.engines import checked
from specbench.models.layout import Layout, chain
from specbench.models.parallel_decoder import ParallelDecoder
from specbench.models.parallel_network import as_t5
from specbench.models.static import StaticModel
from specbench.models.static_session import StaticSession


class ReadsQueries(Protocol):
    """SpecDec's decoder at work on one text."""

    length: int  # tokens read

    def step(self, tokens: Sequence[int], queries: int) -> Tensor:
        """Read `tokens` on, and return what the first `queries` queries after them predict: logits [K, V]."""
        ...

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens at most."""
        ...


def captured(decoder: ParallelDecoder, target: object) -> StaticModel | None:
    """Return `decoder` in the engine of `target`; None where that captures no steps, or CUDA graphs.

    Raises:
        UserError: its captured step differs from the module's own by more than rounding.
    """
    if not isinstance(target, StaticModel) or isinstance(target, CudaGraphModel):
        return None
    packed = None if target.invariant else target.packed
    made = as_t5(decoder, target.network)
    try:
        return checked(type(target), made, target.vocabulary_size, target.eos_ids, packed=packed)
    except RuntimeError as error:
        raise UserError(f"draft=specdec: engine={target.engine}: {first_line(error)}; use engine=eager") from error


class ParallelSession(StaticSession):
    """The captured decoder on the text of the target's session `beside`."""

    def __init__(self, model: StaticModel, decoder: ParallelDecoder, beside: StaticSession) -> None:
        self._begin(model)
        self.first_query = model.network.get_input_embeddings().weight.shape[0] - decoder.queries
        self._sources, self._source_length_1, self._of_source_buffers = beside.of_source(decoder.layers)
        self.reserve(1)

    def _collect(self) -> None:
        self._buffers = [*self._held["self"].layers, *self._of_source_buffers]

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], queries: int) -> Tensor:
        """See `ReadsQueries`."""
        count, step = len(tokens) + queries, self.model.program.several
        self._make_room(self.length + count)
        ids_1L = self._ids([*tokens, *range(self.first_query, self.first_query + queries)], count)
        fixed = self._of_source(step, ids_1L, count)
        key = (id(step), "queries", queries, self.length, count, self._capacity)
        placed = self.model.positions.get(key)
        if placed is None:
            layout = self._with_queries(count, queries)
            inputs = (ids_1L, *layout.tensors, self._source_length_1, *self._buffers)
            placed = self.model.positions.put(key, (*layout.tensors, *step.of_layout(*inputs, *fixed)))
        logits_LV = step.run(ids_1L, *placed[:3], self._source_length_1, *self._buffers, *fixed, *placed[3:])[0]
        self.length += len(tokens)
        return logits_LV[-queries:]

    def _with_queries(self, count: int, queries: int) -> Layout:
        """The newest `count` entries, of which the last are queries that see themselves and no other query."""
        layout = chain(self.length, count, self.model.numbers(self._capacity))
        visible_1LC = layout.visible_BLC.clone()
        first = self.length + count - queries
        itself = torch.eye(queries, dtype=torch.bool, device=visible_1LC.device)
        visible_1LC[:, -queries:, first : first + queries] = itself
        return Layout(layout.slots_BL, layout.positions_BC, visible_1LC)
