"""An EAGLE layer of random weights on a target of random weights."""

from typing import Any

import torch

from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.methods.decoder_layer import layer_shape
from specbench.methods.eagle.draft import EagleDraft
from specbench.methods.eagle.network import Eagle, EagleShape
from tests.support.networks import network

SIZE, WIDTH, TAPS = 40, 32, (0, 1, 2)


def made(
    kind: str, taps: tuple[int, ...] = (), engine: Any = EagerModel, size: int = SIZE, seed: int = 4, end: int = 1
) -> Any:
    """A target that hands over its features, and a draft of random weights on it."""
    own = network(kind, seed)
    width = return_states(own, "target", taps)
    target = engine(own, size, frozenset({end}))
    target.state_width, target.tap_width = width * (1 + len(taps)), width * len(taps)
    target.tap_depths, target.states_of_prompt = taps, True
    return target, EagleDraft(target, random_eagle(own, taps, min(30, size - 1)), taps)


def random_eagle(own: Any, taps: tuple[int, ...], most: int) -> Eagle:
    """Sure of itself, and of another opinion than the target about as often as not. With `taps` it drafts `most` tokens
    alone, and not the first."""
    torch.manual_seed(1)
    vocabulary = most if taps else None
    eagle = Eagle(EagleShape(layer_shape(own, "target"), taps, 1.0, vocabulary, bool(taps)))
    for weight in eagle.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    if taps:
        eagle.draft_vocabulary.copy_(torch.arange(most) + 1)
    return eagle.requires_grad_(False).bind(own)
