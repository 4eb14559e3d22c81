"""Medusa's and Hydra's heads of random weights on a target of random weights."""

from typing import Any

import torch

from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.methods.heads import HeadsDraft
from specbench.methods.hydra.draft import HydraDraft
from specbench.methods.hydra.network import HydraHeads
from specbench.methods.medusa.draft import MedusaHeads
from tests.support.blockwise_heads import SIZE
from tests.support.networks import network

HEADS, WIDTH, ROWS = 4, 32, 64


def random_heads(kind: str) -> Any:
    torch.manual_seed(1)
    heads = MedusaHeads(HEADS, WIDTH, 2, 4, ROWS) if kind == "medusa" else HydraHeads(HEADS, WIDTH, 8, 4, ROWS)
    for weight in heads.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return heads.requires_grad_(False)


def made(kind: str, family: str, engine: Any = EagerModel, size: int = SIZE, seed: int = 4, end: int = 1) -> Any:
    """A target that hands over its states, and a draft of random heads on it."""
    own = network(family, seed)
    width = return_states(own, "target")  # before steps are captured
    target = engine(own, size, frozenset({end}))
    target.state_width = width
    return target, draft_on(kind, target)


def draft_on(kind: str, target: Any) -> Any:
    heads = random_heads(kind)
    if kind == "medusa":
        return HeadsDraft(target, heads)
    return HydraDraft(target, heads)
