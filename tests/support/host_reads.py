"""Counts how often a tensor's content comes to the host, on a machine where all tensors are there already."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# What brings content to the host, as torch names it where Python calls it.
READS = (
    Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
    Tensor.__index__, Tensor.__contains__, Tensor.nonzero, torch.nonzero, Tensor.__array__,
)  # fmt: skip
aten: Any = torch.ops.aten
# Where torch itself asks: a condition inside an operator, a size that depends on content.
READING_OPERATIONS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default}


class HostReads(TorchFunctionMode):
    """While it is entered, `counts` by name; a read that another read makes is not counted again."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._inside = 0
        self._operations = _Operations(self)

    @property
    def total(self) -> int:
        return self.counts.total()

    def note(self, name: str) -> None:
        if not self._inside:
            self.counts[name] += 1

    def __enter__(self) -> "HostReads":
        super().__enter__()
        self._operations.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._operations.__exit__(*raised)
        super().__exit__(*raised)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reads = function in READS or (function is Tensor.to and names_cpu(args[1:], kwargs))
        # A row that is picked by a tensor of no dimension is picked by its number, which the host reads.
        reads |= function is Tensor.__getitem__ and any(_is_number(index) for index in _indices(args[1]))
        if not reads:
            return function(*args, **kwargs)
        self.note(function.__name__)
        self._inside += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._inside -= 1


class _Operations(TorchDispatchMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in READING_OPERATIONS:
            self.reads.note(str(function))
        return function(*args, **(kwargs or {}))


def names_cpu(args: Any, kwargs: Any) -> bool:
    return any(str(value) == "cpu" for value in (*args, *kwargs.values()) if isinstance(value, str | torch.device))


def _indices(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_number(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dim() == 0
