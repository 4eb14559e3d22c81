"""Tensors that say they are on a CUDA device and have no content, so that what would fail on a GPU fails on a CPU:
tensors of two devices in one operation, and anything that the host reads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from host_reads import READS, names_cpu
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda:0")
aten: Any = torch.ops.aten


class HostRead(AssertionError):
    """The host reads what is on the device."""


class _WithoutCuda(TorchFunctionMode):
    """What torch cannot do for a CUDA tensor where it is built without CUDA: Python's indexing and attention, as the
    operations that they come to, and a generator on the device. `.tolist()` is answered by `told`."""

    def __init__(self, told: Callable[[Tensor], list[Any]] | None) -> None:
        super().__init__()
        self.told = told

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.__getitem__ and args[0].device.type == "cuda":
            return _picked(*args)
        if function is Tensor.__setitem__ and args[0].device.type == "cuda":
            place, value = _picked(*args[:2]), args[2]
            return place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)
        if function is Tensor.tolist and self.told is not None:
            return self.told(args[0])
        if function in READS or (function is Tensor.to and names_cpu(args[1:], kwargs)):
            raise HostRead(function.__name__)
        if function is Tensor.data_ptr:
            return id(args[0])
        if function is Tensor.contiguous and args[0].device.type == "cuda":
            return aten.contiguous.default(args[0])
        if function is functional.scaled_dot_product_attention and args[0].device.type == "cuda":
            return _attention(*args, **kwargs)
        if function is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            given = function(*args, dtype=kwargs.get("dtype"))
            return torch.empty(given.shape, dtype=given.dtype, device=CUDA)
        if function in (torch.rand, torch.randint):
            generator = kwargs.pop("generator", None)
            assert generator is None or generator.device == torch.device(kwargs["device"]), "a generator elsewhere"
        return function(*args, **kwargs)


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> Tensor:
    scores = torch.matmul(query, key.transpose(-1, -2)) * scale
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    return torch.matmul(scores.softmax(-1).to(value.dtype), value)


def _picked(tensor: Tensor, index: Any) -> Tensor:
    indices = index if isinstance(index, tuple) else (index,)
    named = sum(one is not None and one is not Ellipsis for one in indices)
    place = 0
    for one in indices:
        if one is Ellipsis:
            place += tensor.dim() - named
        elif one is None:
            tensor, place = aten.unsqueeze.default(tensor, place), place + 1
        elif isinstance(one, slice):
            tensor = aten.slice.Tensor(tensor, place, one.start, one.stop, 1 if one.step is None else one.step)
            place += 1
        elif isinstance(one, int | torch.SymInt):
            tensor = aten.select.int(tensor, place, one)
        elif isinstance(one, Tensor) and one.dim() == 0:
            tensor = aten.select.int(tensor, place, one.item())
        else:
            tensor = aten.index.Tensor(tensor, [None] * place + [torch.as_tensor(one, device=tensor.device)])
            place += 1
    return tensor


@dataclass(frozen=True)
class FakeGenerator:
    """Numbers drawn from it are on the device, and have no values."""

    device: torch.device = CUDA


@contextmanager
def fake_cuda(told: Callable[[Tensor], list[Any]] | None = None) -> Iterator[None]:
    """`told` says what the host reads where it asks for a list, the only way that is left open; None: no way is."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    with mode, _WithoutCuda(told):
        yield


def moved(network: Any) -> Any:
    """`network`, its weights in the place of which are such tensors. Within `fake_cuda`."""
    for module in network.modules():
        for tensors, make in ((module._parameters, lambda made: nn.Parameter(made, False)), (module._buffers, None)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)
                    tensors[name] = made if make is None else make(made)
    return network
