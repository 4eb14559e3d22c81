"""A step, or the reading of a source, that is one program: called without its graph."""

import ctypes
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from specbench.engine.native.native_run import BoundCall, NativeRun, Placed


class WholeStep:
    """A step that is one program, from the inputs of a captured step (`engine.capture.program`) to its logits."""

    def __init__(self, run: NativeRun, order: Sequence[int]) -> None:
        """`order`: which of the inputs the program reads."""
        self.run, self._order = run, order

    def __call__(self, *inputs: Tensor) -> Tensor:
        (logits_BLV,) = self.run(*[inputs[index] for index in self._order])
        return logits_BLV

    def call(self, inputs: Sequence[Tensor], moved: Sequence[int]) -> BoundCall:
        """A call on these inputs; those numbered `moved` are placed before each run."""
        outside = [inputs[index] for index in self._order]
        self.run.require_buffers(outside)
        return BoundCall(self.run, outside, self._read(moved), self.ids)

    def set_inputs(self, call: BoundCall, inputs: Mapping[int, Tensor]) -> None:
        """Let `call` read these inputs, by number, instead of others of the same sizes."""
        read = self._read(inputs)
        call.held = [self.run.prepare(at, inputs[self._order[at]]) for at in read]
        for at, tensor in zip(read, call.held, strict=True):
            call.addresses[at] = tensor.data_ptr()

    def placed(self, inputs: Mapping[int, Tensor]) -> "Placed":
        """The `inputs`, by number, that the program reads."""
        held = [self.run.prepare(at, inputs[self._order[at]]) for at in self._read(inputs)]
        addresses = (ctypes.c_void_p * len(held))(*[tensor.data_ptr() for tensor in held])
        return Placed(ctypes.addressof(addresses), addresses, held)

    def _read(self, inputs: Collection[int]) -> list[int]:
        return [at for at, one in enumerate(self._order) if one in inputs]

    @property
    def ids(self) -> int:
        """The index of the tokens' address among all; -1 if the program reads none."""
        return self._order.index(0) if 0 in self._order else -1


class WholeReading:
    """The reading of a source that is one program, from ids [1, S] and biases to the keys and values of all layers.

    It writes them into caches, in fp32.
    """

    MOST_CALLS = 64  # that are kept, each for sources and caches of one size

    def __init__(self, run: NativeRun, order: Sequence[int]) -> None:
        """`order`: which of the inputs the program reads."""
        self._run, self._order = run.writing(len(order)), order
        self._heads = run.heads
        self._calls: dict[tuple[int, int], tuple[Sequence[Tensor], BoundCall]] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Keys and values [1, H, S, D] in turn."""
        tokens = inputs[0].shape[1]
        buffers = [torch.empty(1, heads, tokens, channels) for heads, channels in self._heads]
        self.into(buffers, *inputs)
        return buffers

    def into(self, buffers: Sequence[Tensor], *inputs: Tensor) -> None:
        """Write them into the first S slots of `buffers` [1, H, C, D]."""
        outside, first = [inputs[index] for index in self._order], len(self._order)
        size = inputs[0].shape[1], buffers[0].shape[2]
        biases = [one for one in outside if one is not inputs[0]]
        known, call = self._calls.get(size, ((), None))
        if call is None or any(one is not other for one, other in zip(biases, known, strict=True)):
            if len(self._calls) >= self.MOST_CALLS:
                self._calls.clear()
            self._run.require_buffers(given := [*outside, *buffers, torch.arange(size[0])])
            call = BoundCall(self._run, given)
            del call.held[len(outside) : -1]  # the caches, whose memory the calls of a size must not keep
            self._calls[size] = biases, call
        addresses = call.addresses
        addresses[self._order.index(0)] = inputs[0].data_ptr()
        for number, buffer in enumerate(buffers, first):
            addresses[number] = buffer.data_ptr()
        call.run(())
