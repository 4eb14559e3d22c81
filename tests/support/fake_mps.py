"""Tensors that say they are on Apple's GPU and lie in the CPU's memory: fp64 on that GPU, and tensors of two devices in
one operation, raise what torch raises there. Their numbers are those of the CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.support.host_reads import READS, names_cpu

MPS = torch.device("mps")
# A tensor of the CPU may be an index of one on the GPU, or be copied to it.
MIX = (Tensor.__getitem__, Tensor.__setitem__, Tensor.copy_, Tensor.to)


class OnMps(Tensor):
    """A tensor that says it is on Apple's GPU; outside of `fake_mps` one of the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class FakeGenerator(torch.Generator):
    """Draws on Apple's GPU the numbers that the CPU would draw, in fp32."""

    device = MPS


class WithMps(TorchFunctionMode):
    """What torch does for a tensor that says it is on Apple's GPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, on_cpu, is_placed = dict[int, OnMps](), list[Tensor](), False

        def plain(one: Any) -> Any:
            nonlocal is_placed
            if isinstance(one, OnMps):
                made = one.as_subclass(Tensor)
                given[id(made)] = one
                return made
            if isinstance(one, Tensor) and one.dim():
                on_cpu.append(one)
            if isinstance(one, str | torch.device) and str(one) == "mps":
                is_placed = True
                return torch.device("cpu")
            return one

        plain_args, plain_kwargs = _each(plain, args), _each(plain, kwargs)
        if given and function == Tensor.device.__get__:  # type: ignore[attr-defined]
            return MPS
        if given and function == Tensor.is_cpu.__get__:  # type: ignore[attr-defined]
            return False
        if given and on_cpu and function not in MIX:
            raise RuntimeError(f"{function.__name__}: expected all tensors to be on the same device, mps:0 and cpu")
        made = function(*plain_args, **plain_kwargs)
        leaves = function in READS or (function == Tensor.to and names_cpu(args[1:], kwargs))
        if given and not leaves:
            is_placed |= function not in MIX or isinstance(_model(function, args), OnMps)
        return _each(lambda one: _placed(one, given), made) if is_placed else made


def _model(function: Any, args: Any) -> Any:
    """The argument on whose device the result is."""
    return args[1] if function == Tensor.to and isinstance(args[1:] and args[1], Tensor) else args[0]


def _each(change: Callable[[Any], Any], given: Any) -> Any:
    """What Python calls a function with, or gets from it, with a change of each tensor in it."""
    if isinstance(given, dict):
        return {name: _each(change, one) for name, one in given.items()}
    if type(given) in (tuple, list):
        return type(given)(_each(change, one) for one in given)
    if type(given).__module__ == "torch.return_types":  # of max, topk, sort
        return type(given)([_each(change, one) for one in given])
    return change(given)


def _placed(made: Any, given: dict[int, OnMps]) -> Any:
    """A result on the GPU: what was given, where an operation changed it in place."""
    if not isinstance(made, Tensor):
        return made
    if id(made) in given:
        return given[id(made)]
    if made.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    return made.as_subclass(OnMps)


@contextmanager
def fake_mps() -> Iterator[None]:
    with patch.object(torch.mps, "synchronize", lambda: None), WithMps(), torch.no_grad():
        yield


def moved(network: Any) -> Any:
    """`network`, its weights on that GPU. Within `fake_mps`."""
    for module in network.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                module._parameters[name] = nn.Parameter(weight.data.to(MPS), requires_grad=False)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = buffer.to(MPS)
    return network
