"""The cache of SpecDec's decoder for one sequence: keys and values of its tokens, layer by layer.

The queries of a step are written after them and dropped. Inside another draft, the cache may be ahead of the verified
sequence; `rollback` shortens it.

Shapes: L new entries, K queries, C slots, D width, V logits.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from specbench.models.buffers import Buffers
from specbench.models.eagle_layer import Source
from specbench.models.graph.kernels import attend
from specbench.models.parallel_decoder import ParallelDecoder, entries

FIRST_CAPACITY = 64


class ParallelCache:
    """What `decoder` has read of one text."""

    def __init__(self, decoder: ParallelDecoder, sources: Callable[[], Sequence[Source]]) -> None:
        """`sources` has for each layer the keys and values of the source."""
        self.decoder, self.sources = decoder, sources
        self.length = 0
        weight = decoder.query_KD
        # As elsewhere: on CPU attention over bf16 is slower than over fp32, which is also the more exact.
        on_cpu = weight.device.type == "cpu"
        self._dtype = torch.promote_types(weight.dtype, torch.float32) if on_cpu else weight.dtype
        self._buffers = self._zeros(FIRST_CAPACITY)

    def step(self, tokens: Sequence[int], queries: int) -> Tensor:
        """Read `tokens` on, and return what the first `queries` queries after them predict: logits [K, V]."""
        decoder, device = self.decoder, self.decoder.query_KD.device
        end = self.length + len(tokens)
        self._reserve(end + queries)
        distance, visible = entries(end, end - 1, queries, device)
        new = slice(self.length, None)  # rows of the new tokens and of the queries
        states_LD = torch.cat([decoder.embed(torch.tensor(tokens, device=device)), decoder.query_KD[:queries]])
        attends = [partial(self._attend, block, distance[new], visible[new]) for block in range(len(decoder.layers))]
        after_1LD = decoder(states_LD.unsqueeze(0), self.sources(), attends)
        self.length = end
        logits_KV: Tensor = decoder.project(after_1LD[0, len(tokens) :])
        return logits_KV

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens at most."""
        self.length = min(self.length, length)

    def _attend(
        self, block: int, distance_LC: Tensor, visible_LC: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        end = distance_LC.shape[1]
        keys, values = self._buffers.pair(block)
        for buffer, states in ((keys, key), (values, value)):
            buffer[:, :, end - states.shape[2] : end] = states
        bias = self.decoder.bias(block, distance_LC, visible_LC).to(self._dtype)
        return attend(query, keys[:, :, :end], values[:, :, :end], bias[None], self.decoder.shape.scale)

    def _reserve(self, needed: int) -> None:
        if needed > self._buffers.slots:
            old = self._buffers
            self._buffers = self._zeros(1 << (needed - 1).bit_length())
            self._buffers.copy_slots(old, old.slots)

    def _zeros(self, slots: int) -> Buffers:
        shape, weight = self.decoder.shape, self.decoder.query_KD
        kinds = [(shape.key_heads, shape.head_width)] * (2 * len(self.decoder.layers))
        return Buffers.zeros(kinds, slots, self._dtype, weight.device)
