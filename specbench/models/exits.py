"""A network that stops early: its first layers, then its own final norm and head, on the very same weights.

It knows how `transformers` names a decoder and nothing of caches or sessions.
"""

import copy
from typing import Any

from torch import nn


def decoder_layers(network: Any) -> int:
    """How many layers the decoder has."""
    return len(_stack(network)[1])


def first_layers(network: Any, layers: int) -> Any:
    """`network` with the first `layers` of its decoder's layers. Nothing is copied but the modules on the way to them,
    without their weights; what changes in `network` afterwards (a device, a dtype) need not change here."""
    decoder = network.get_decoder()
    name, blocks = _stack(network)
    path = next(path for path, module in network.named_modules() if module is decoder)
    made = parent = _alone(network)
    for part in path.split("."):
        parent._modules[part] = parent = _alone(parent._modules[part])
    parent._modules[name] = nn.ModuleList(list(blocks)[:layers])
    return made


def _stack(network: Any) -> tuple[str, nn.ModuleList]:
    """The decoder's list of layers and what the decoder calls it: it is the only list right inside it."""
    lists = [
        (name, module) for name, module in network.get_decoder().named_children() if isinstance(module, nn.ModuleList)
    ]
    if len(lists) != 1:
        raise NotImplementedError(f"{type(network).__name__} has no one list of decoder layers")
    return lists[0]


def _alone(module: Any) -> Any:
    """A copy of `module` itself, with the same weights and the same modules inside, which can be exchanged in it."""
    made = copy.copy(module)
    made.__dict__["_modules"] = dict(module._modules)
    return made
