"""Random blockwise heads on a target of random weights."""

from typing import Any

import torch

from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.methods.blockwise.draft import BlockwiseHeads
from specbench.methods.heads import HeadsDraft
from tests.support.networks import network

SIZE, WIDTH, K = 40, 32, 5


def made(kind: str, engine: type[EagerModel] = EagerModel, size: int = SIZE, seed: int = 4, end: int = 1) -> Any:
    """A target that hands over its states, and a draft of random heads on it."""
    own = network(kind, seed)
    width = return_states(own, "target")
    target = engine(own, size, frozenset({end}))
    target.state_width = width
    return target, HeadsDraft(target, random_heads(width))


def random_heads(width: int) -> BlockwiseHeads:
    torch.manual_seed(1)
    heads = BlockwiseHeads(K, width, 16)
    torch.nn.init.normal_(heads.out_KHD, std=0.3)
    return heads.requires_grad_(False)
