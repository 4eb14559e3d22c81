"""A network that stops early: its first layers, then its own final norm and head, on the same weights.

Depends on how `transformers` names a decoder, and not on caches or sessions.
"""

import copy
from typing import Any

from torch import nn


def decoder_layers(network: Any) -> int:
    """How many layers the decoder has."""
    return len(_stack(network)[1])


def first_layers(network: Any, layers: int) -> Any:
    """`network` with the first `layers` of its decoder's layers. Only the modules on the way to them are copied,
    without their weights; a later change of `network` (its device, its dtype) need not show here."""
    decoder = network.get_decoder()
    name, blocks = _stack(network)
    path = next(path for path, module in network.named_modules() if module is decoder)
    made = parent = _shell(network)
    for part in path.split("."):
        parent._modules[part] = parent = _shell(parent._modules[part])
    parent._modules[name] = nn.ModuleList(list(blocks)[:layers])
    return made


def _stack(network: Any) -> tuple[str, nn.ModuleList]:
    """The name and the list of the decoder's layers: the only list among its children."""
    lists = [
        (name, module) for name, module in network.get_decoder().named_children() if isinstance(module, nn.ModuleList)
    ]
    if len(lists) != 1:
        raise NotImplementedError(f"{type(network).__name__} does not have exactly one list of decoder layers")
    return lists[0]


def _shell(module: Any) -> Any:
    """A copy of `module` itself, with the same weights and the same submodules, which can be replaced in the copy."""
    made = copy.copy(module)
    made.__dict__["_modules"] = dict(module._modules)
    return made
