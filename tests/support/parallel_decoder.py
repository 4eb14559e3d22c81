"""SpecDec's decoder of random queries on a target."""

from typing import Any

import torch

from specbench.methods.decoder_layer import layer_shape
from specbench.methods.specdec.network import ParallelDecoder
from specbench.methods.specdec.train import borrow_decoder

SIZE, QUERIES = 40, 4


def decoder_on(own: Any) -> ParallelDecoder:
    """The target's own layers and random queries: of another opinion than the target about as often as not."""
    torch.manual_seed(1)
    decoder = ParallelDecoder(QUERIES, [0, 1], vars(layer_shape(own, "target")))
    borrow_decoder(decoder, own)
    return decoder.requires_grad_(False).bind(own)
