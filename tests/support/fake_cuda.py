"""Tensors that say they are on a CUDA device and have no content, so that what would fail on a GPU fails on a CPU:
tensors of two devices in one operation, and anything that the host reads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from specbench import deferred
from specbench.engine.beside import captured as beside_captured
from specbench.engine.capture import program
from specbench.engine.capture.nodes import capture
from tests.support.host_reads import READS, names_cpu

CUDA = torch.device("cuda:0")
# All modes are kept. With freed ones, torch 2.13 corrupts memory, and a later test crashes: now and then, and nearly
# always under MALLOC_PERTURB_=165 and PYTHONMALLOC=malloc.
MODES: list[FakeTensorMode] = []
aten: Any = torch.ops.aten


class HostRead(AssertionError):
    """The host reads what is on the device."""


class WithoutCuda(TorchFunctionMode):
    """What torch cannot do for a CUDA tensor where it is built without CUDA: Python's indexing and attention, as the
    operations that they come to."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads = 0  # tensors made of numbers that the host has: each is a copy that the host waits for

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.__getitem__ and args[0].device.type == "cuda":
            return _picked(*args)
        if function is Tensor.__setitem__ and args[0].device.type == "cuda":
            place, value = _picked(*args[:2]), args[2]
            return _copied(place, value) if isinstance(value, Tensor) else place.fill_(value)
        if function is Tensor.copy_:
            return _copied(*args)
        if function in READS or (function is Tensor.to and names_cpu(args[1:], kwargs)):
            raise HostRead(function.__name__)
        if function is Tensor.data_ptr:
            return id(args[0])
        if function is Tensor.contiguous and args[0].device.type == "cuda":
            return aten.contiguous.default(args[0])
        if function is functional.scaled_dot_product_attention and args[0].device.type == "cuda":
            return _attention(*args, **kwargs)
        if function in (functional.rms_norm, torch.rms_norm) and args[0].device.type == "cuda":
            return _normed(*args, **kwargs)
        if function is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            self.uploads += 1
            given = function(*args, dtype=kwargs.get("dtype"))
            return torch.empty(given.shape, dtype=given.dtype, device=CUDA)
        return function(*args, **kwargs)


def _copied(place: Tensor, value: Tensor) -> Tensor:
    if place.device.type == "cpu" and value.device.type == "cuda":
        raise HostRead("copy_")
    copied: Tensor = aten.copy_.default(place, value)
    return copied


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Of the same sizes as softmax attention; where there is no content, nothing has to be masked.

    In memory a token's heads lie side by side, as the fused kernels of a GPU leave them.
    """
    assert not enable_gqa
    scores = torch.matmul(query, key.transpose(-1, -2)) * (scale or 1.0)
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(attn_mask, 0.0) if is_bool else scores + attn_mask
    mixed = torch.matmul(scores.softmax(-1).to(value.dtype), value)
    return aten.contiguous.default(mixed.transpose(1, 2)).transpose(1, 2)


def _normed(states: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    normed = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + (eps or 1e-6))
    return normed if weight is None else normed * weight


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
def fake_cuda(told: Callable[[Tensor], list[Any]] | None = None) -> Iterator[WithoutCuda]:
    """`told` says what the host reads where it asks for a list, the only way that is left open; None: no way is."""
    sizes = ShapeEnv()

    def with_open_sizes(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
        """A capture leaves the sizes of real tensors open by itself."""
        return capture(function, [_open(tensor, sizes, place) for place, tensor in enumerate(inputs)])

    def tolist(tensor: Tensor) -> list[Any]:
        if told is None:
            raise HostRead("tolist")
        return told(tensor)

    with ExitStack() as entered:
        for where, name, stand_in in (
            (program, "capture", with_open_sizes),
            (beside_captured, "capture", with_open_sizes),
            (FakeTensor, "tolist", tolist),
            (deferred.torch, "rand", _drawing(torch.rand)),  # before torch's own, which it holds from now on
            (torch, "rand", _drawing(torch.rand)),
            (torch, "randint", _drawing(torch.randint)),
        ):
            entered.enter_context(patch.object(where, name, stand_in))
        MODES.append(entered.enter_context(FakeTensorMode(shape_env=sizes)))
        yield entered.enter_context(WithoutCuda())


def _drawing(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def drawn(*args: Any, generator: FakeGenerator, device: torch.device, **options: Any) -> Tensor:
        assert generator.device == device, "the generator is elsewhere"
        return function(*args, device=device, **options)

    return drawn


def _open(tensor: Tensor, sizes: ShapeEnv, place: int) -> Tensor:
    shape, *_ = sizes.create_symbolic_sizes_strides_storage_offset(tensor, ConstantSource(f"input_{place}"))
    return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)


def moved(network: Any) -> Any:
    """`network`, its weights in the place of which are such tensors. Within `fake_cuda`."""
    for module in network.modules():
        for tensors, make in ((module._parameters, lambda made: nn.Parameter(made, False)), (module._buffers, None)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)
                    tensors[name] = made if make is None else make(made)
    return network
