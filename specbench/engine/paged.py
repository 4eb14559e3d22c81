"""Large weights in a temporary file, mapped into memory: weights that kernels lay out anew need memory only once.

A captured step reads weights as its kernels lay them out. The network's own are read again only by what runs eagerly
and by later captures. In a file they need no memory meanwhile: the system reads a page again when it is touched, so
that no user of the network needs to know.
"""

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specbench.files import own_cache

LEAST_BYTES = 2**30  # of a network; smaller ones may be in memory twice
ALIGNED = 64  # bytes
PART_BYTES = 2**24  # of a weight that are written to the file at once
IS_SUPPORTED = hasattr(mmap, "MADV_DONTNEED") and hasattr(os, "posix_fallocate")  # on Linux


class _Mapped(NamedTuple):
    """A mapped file, and the addresses of its bytes."""

    file: "weakref.ref[mmap.mmap]"
    first: int
    end: int


_MAPPED: list[_Mapped] = []


def move(network: nn.Module) -> bool:
    """Move the parameters of `network` to a file if they are large and in the host's memory, and there is room.

    They keep their numbers, and can be changed in place as before. Returns whether they moved.
    """
    weights = _ordered(network)
    size = sum(map(_room, weights))
    if size < LEAST_BYTES or not IS_SUPPORTED or any(one.device.type != "cpu" for one in weights):
        return False
    try:
        mapped = _temporary(size)
    except OSError:  # no room, or nowhere to write
        return False
    whole, at = torch.frombuffer(mapped, dtype=torch.uint8), 0
    _MAPPED[:] = [one for one in _MAPPED if one.file() is not None]
    _MAPPED.append(_Mapped(weakref.ref(mapped), whole.data_ptr(), whole.data_ptr() + size))
    for weight in weights:
        place = whole[at : at + weight.nbytes].view(weight.dtype).view(weight.shape)
        _copy(place, weight)
        weight.data = place
        at += _room(weight)
    mapped.flush()  # now, not while something is timed
    _return_freed()
    return True


@torch.no_grad()
def _copy(place: Tensor, weight: Tensor) -> None:
    """Write `weight` to its `place` in a file, a part at a time: memory holds no more than a part of it twice."""
    place, weight = torch.atleast_1d(place), torch.atleast_1d(weight)
    rows = max(1, PART_BYTES * len(weight) // max(1, weight.nbytes))
    for part, numbers in zip(place.split(rows), weight.split(rows), strict=True):
        part.copy_(numbers)
        release(part)


def release(*weights: Tensor) -> None:
    """Return to the system the memory of the `weights` that lie in a file."""
    for weight in weights:
        address = weight.data_ptr() if weight.device.type == "cpu" and weight.layout is torch.strided else 0
        for one in _MAPPED:
            if one.first <= address < one.end and (file := one.file()) is not None:
                first = (address - one.first) // mmap.PAGESIZE * mmap.PAGESIZE
                file.madvise(mmap.MADV_DONTNEED, first, address - one.first + weight.nbytes - first)


def settle(network: nn.Module) -> None:
    """Return to the system the memory of the weights of `network` that lie in a file, and what is freed by now.

    To capture a step and to lay its weights out frees tens of megabytes, which the C library would hold.
    """
    weights = list(network.parameters())
    if any(map(is_in_file, weights)):
        release(*weights)
        _return_freed()


def is_in_file(weight: Tensor) -> bool:
    """Whether memory need not hold `weight`."""
    return any(one.first <= weight.data_ptr() < one.end and one.file() is not None for one in _MAPPED)


def _ordered(network: nn.Module) -> Iterable[Tensor]:
    """The parameters, with a module's linear maps one after another: maps of one input become one map."""
    found: dict[int, Tensor] = {}
    for module in network.modules():
        maps = [child for child in module.children() if isinstance(child, nn.Linear)]
        for name in ("weight", "bias"):
            found |= {id(one): one for child in maps if (one := getattr(child, name)) is not None}
    return list((found | {id(one): one for one in network.parameters()}).values())


def _room(weight: Tensor) -> int:
    return -(-weight.nbytes // ALIGNED) * ALIGNED


def _temporary(size: int) -> mmap.mmap:
    """A mapped file of so many bytes, which is gone with its map. Raises OSError if there is no room for it."""
    with tempfile.TemporaryFile(dir=own_cache()) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)


def _return_freed() -> None:
    """Return the freed memory that the C library still holds to the system, if it has a call for that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
