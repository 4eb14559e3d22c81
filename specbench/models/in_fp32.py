"""Run a 16-bit network temporarily in fp32, with the weights of one block in fp32 at a time.

An fp32 copy of the whole network would take twice the memory of a model that just fits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def in_fp32(network: nn.Module) -> Iterator[None]:
    """A context in which every block of `network` has its weights in fp32 while it runs, and so returns fp32 states.

    A block is an entry of a list of layers, or a module outside of these.
    """
    short: dict[nn.Module, dict[nn.Parameter, Tensor]] = {}

    def widen(block: nn.Module, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        held = short[block] = {weight: weight.data for weight in block.parameters() if weight.is_floating_point()}
        for weight, values in held.items():
            weight.data = values.float()
        return tuple(_wide(one) for one in args), {name: _wide(one) for name, one in keywords.items()}

    def restore(block: nn.Module, *_: Any) -> None:
        for weight, values in short.pop(block, {}).items():
            weight.data = values

    hooks = []
    for block in dict.fromkeys(_blocks(network)):  # embeddings may stand in several places
        hooks.append(block.register_forward_pre_hook(widen, with_kwargs=True))
        hooks.append(block.register_forward_hook(restore, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of `module` that are widened whole: layers, and modules that have weights of their own."""
    if next(module.parameters(recurse=False), None) is not None:
        yield module
        return
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
