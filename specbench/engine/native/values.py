"""Nodes of a simplified graph to instructions for `kernels.c`, one after another, as long as they are known.

A value is rows of columns, [B * L, W], whatever the graph's shape of it: [B, L, W], [B * L, W], or split into heads,
[B, L, H, D] or [B, H, L, D], whose rows are [B * L, H * D] in memory here. So views and swaps of heads cost nothing.
B texts have L new tokens each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.lower import PackedWeights, widened
from specbench.engine.capture.nodes import constant, plain, value
from specbench.engine.native.instructions import Instruction, Value
from specbench.engine.paged import is_in_file
from specbench.kernels.structures import Op


def own_fp32(weight: Tensor) -> Tensor:
    """A vector of weights in fp32, in no file."""
    made = widened(weight)
    return made.clone() if is_in_file(made) else made


class Unknown(Exception):
    """Raised at an operation, or a form of one, that the native kernels lack; torch runs it."""


@dataclass(frozen=True)
class Form:
    """How rows [B, L, W] are shaped: as they are, as [B * L, W] (`flat`), or as heads.

    Heads are [B, L, H, D], or with `heads_first` [B, H, L, D].
    """

    width: int
    flat: bool = False
    heads: int | None = None
    heads_first: bool = False

    def formed(self, rows: Tensor) -> Tensor:
        if self.flat:
            return rows.flatten(0, 1)
        if self.heads is None:
            return rows
        split = rows.view(*rows.shape[:2], self.heads, -1)
        return split.transpose(1, 2) if self.heads_first else split

    def rows(self, formed: Tensor) -> Tensor:
        """The rows of a tensor of this form, contiguous."""
        return (formed.transpose(1, 2) if self.heads_first else formed).contiguous()


class Sizes(NamedTuple):
    """How many rows there are, among the sizes of a graph, as numbers, or as text if they are open."""

    texts: int | str
    tokens: int | str  # of each text
    rows: int | str  # of all

    @staticmethod
    def of(tensor: Tensor) -> "Sizes":
        """The sizes of a tensor that begins with its texts and their tokens."""
        texts, tokens = tensor.shape[:2]
        return Sizes(plain(texts), plain(tokens), plain(texts * tokens))


class Values:
    """The values of a run of nodes that became `program`, in a model that computes in `dtype`."""

    def __init__(self, module: GraphModule, packed: PackedWeights, one_token: bool, rows: Sizes) -> None:
        self._module, self._packed, self._one_token, self._rows = module, packed, one_token, rows
        self.nodes: list[Node] = []
        self.program: list[Instruction] = []
        self.outside: list[Node] = []  # nodes that are read
        self.prepared: dict[int, Callable[[Tensor], Tensor]] = {}  # of these numbers
        self.sizes: list[tuple[int, int]] = []  # (number of an outside tensor, axis)
        self.rows_of = (0, 1)  # the number of a tensor that has all rows, and its numbers in each
        self.texts_of: int | None = None  # the number of a tensor whose first axis is the texts
        self.dtype = torch.bfloat16
        self._values: dict[Node, Value] = {}
        self._columns: dict[Node, tuple[Node, list[int]]] = {}  # columns of another node's value, ~ if negated
        self._stored = 0

    def stored(self, node: Node) -> Form:
        """The form of `node`, whose rows are from now on written to one more tensor, after those outside."""
        held, form = self._value(node), self._form(node)
        self.program.append(Instruction(Op.STORE, held.width, x=held, outside=[len(self.outside) + self._stored]))
        self._stored += 1
        return form

    def _form(self, node: Node) -> Form:
        """The form of a node's value. Raises Unknown if it is no tensor in the dtype of the run."""
        tensor = value(node)
        if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.bfloat16, torch.float32):
            raise Unknown
        if self.program and tensor.dtype != self.dtype:
            raise Unknown
        self.dtype = tensor.dtype
        match list(map(plain, tensor.shape)):
            case [self._rows.texts, tokens, int(width)] if tokens == self._rows.tokens or (
                self._one_token and tokens == 1
            ):
                return Form(width)
            case [self._rows.rows, int(width)]:
                return Form(width, flat=True)
            case [self._rows.texts, self._rows.tokens, int(heads), int(channels)]:
                return Form(heads * channels, heads=heads)
            case [self._rows.texts, int(heads), self._rows.tokens, int(channels)]:
                return Form(heads * channels, heads=heads, heads_first=True)
        raise Unknown

    def _value(self, node: Any) -> Value:
        """The value of `node`, loaded if it is from outside."""
        if node in self._columns and node not in self._values:
            form, (source, columns) = self._form(node), self._columns[node]
            read = self._value(source)
            self._write_slot(node, Instruction(Op.PICK, form.width, x=read, inner=read.width,
                                               weight=torch.tensor(columns)))  # fmt: skip
        if node not in self._values:
            form = self._form(node)
            number = self._number(node)
            self.prepared[number] = form.rows
            if not self.program:
                self.rows_of = number, form.width
            if not form.flat:
                self._has_texts(number)
            self._write_slot(node, Instruction(Op.LOAD, form.width, outside=[number]))
        return self._values[node]

    def _number(self, node: Node) -> int:
        if node in self._values or node in self.nodes:
            raise Unknown
        if node not in self.outside:
            self.outside.append(node)
        return self.outside.index(node)

    def _has_texts(self, number: int) -> None:
        if self.texts_of is None:
            self.texts_of = number

    def _size(self, node: Node, axis: int) -> int:
        place = self._number(node), axis
        if place not in self.sizes:
            self.sizes.append(place)
        return self.sizes.index(place)

    def _write_slot(self, node: Node, instruction: Instruction) -> None:
        instruction.out = len(self.program)
        self.program.append(instruction)
        self._values[node] = Value(instruction.out, 0, instruction.width)

    def _weight(self, node: Any, *shape: int) -> Tensor | None:
        """A weight of the model's dtype, of this shape; vectors are contiguous."""
        if node is None:
            return None
        found = constant(self._module, node)
        if found is None or found.dtype != self.dtype or found.shape != shape:
            raise Unknown
        if len(shape) == 1 and not found.is_contiguous():
            raise Unknown
        if len(shape) == 1 and is_in_file(found):  # of which each step would read a page
            return self._packed.of(found.detach(), torch.clone)
        return found.detach()

    def _of_norm(self, node: Any, width: int) -> Tensor | None:
        """A vector of weights in fp32, in which the kernels compute norms."""
        if node is None:
            return None
        found = constant(self._module, node)
        if found is None or found.dtype not in (self.dtype, torch.float32) or found.shape != (width,):
            raise Unknown
        return self._packed.of(found, own_fp32)

    def _require_buffers(self, *buffers: Any) -> None:
        """Caches of these texts, which are inputs of the graph and so contiguous: in fp32, or in the model's bf16."""
        for buffer in buffers:
            if buffer.op != "placeholder" or value(buffer).dtype not in (torch.float32, self.dtype):
                raise Unknown
            if plain(value(buffer).shape[0]) != self._rows.texts:
                raise Unknown
            self._has_texts(self._number(buffer))
