"""Products of rows with fixed weights in `kernels.c`, one call each: for layers that no step captured.

Shapes: K heads, R rows, I numbers read, O numbers made.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from specbench.engine.capture.lower import PackedWeights
from specbench.engine.native.assemble import laid_out
from specbench.engine.native.compiler import library
from specbench.engine.native.instructions import Instruction, Op, Value, encoded
from specbench.engine.native.segments import LINE, Step


class NativeProducts:
    """`engine.products.Products` in our kernels. Weights are laid out at their first use, and must not change."""

    def __init__(self, packed: PackedWeights) -> None:
        self._packed = packed
        self._made: dict[Any, _Product] = {}

    def linear(self, rows: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """See `Products`."""
        address = weight_OI.data_ptr(), *weight_OI.shape, *weight_OI.stride()
        product = self._made.get(address)
        if product is None:
            product = self._made[address] = _Product(self._packed.of(weight_OI.detach(), laid_out), weight_OI, bias_O)
        made: Tensor = product(rows.reshape(-1, rows.shape[-1])).view(*rows.shape[:-1], weight_OI.shape[0])
        return made

    def matmul(self, rows: Tensor, weight: Tensor) -> Tensor:
        """See `Products`."""
        if weight.dim() == 2:
            return self.linear(rows, weight.t())
        heads = rows if rows.dim() == 3 else [rows] * len(weight)
        return torch.stack([self.linear(own, one.t()) for own, one in zip(heads, weight, strict=True)])


class _Product:
    """A program that loads rows, multiplies them, and stores the result."""

    def __init__(self, laid_out_weight: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self._outputs, self._inner = weight_OI.shape
        self._dtype, self._held = weight_OI.dtype, (laid_out_weight, bias_O)
        read, made = Value(0, 0, self._inner), Value(1, 0, self._outputs)
        program = [
            Instruction(Op.LOAD, self._inner, out=0, outside=[0]),
            Instruction(
                Op.LINEAR, self._outputs, out=1, x=read, inner=self._inner, weight=laid_out_weight, bias=bias_O
            ),
            Instruction(Op.STORE, self._outputs, x=made, outside=[1]),
        ]
        self._raw, self._floats = encoded(program, self._dtype == torch.bfloat16)
        self._sizes, self._addresses = (ctypes.c_int64 * 1)(), (ctypes.c_void_p * 2)()
        self._step = Step(
            ctypes.addressof(self._raw), len(program), ctypes.addressof(self._addresses),
            ctypes.addressof(self._sizes), 0,
        )  # fmt: skip
        self._room = torch.empty(0)

    def __call__(self, rows_RI: Tensor) -> Tensor:
        rows, threads = len(rows_RI), torch.get_num_threads()
        read = rows_RI.to(self._dtype).contiguous()
        made_RO = torch.empty(rows, self._outputs, dtype=self._dtype)
        if rows == 0:
            return made_RO
        self._addresses[0], self._addresses[1] = read.data_ptr(), made_RO.data_ptr()
        self._step.rows = rows
        arena = -(-self._floats * rows // LINE) * LINE
        scratch = -(-(2 * self._inner + 1) * rows // LINE) * LINE
        if self._room.numel() < arena + scratch * threads:
            self._room = torch.empty(arena + scratch * threads)
        start = self._room.data_ptr()
        library().run(ctypes.byref(self._step), start, start + 4 * arena, scratch, threads)
        return made_RO
