"""Nodes of a simplified graph to instructions for `kernels.c`, one after another, as long as they are known.

B texts have L new tokens each.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.lower import widened
from specbench.engine.capture.nodes import aten, calls, constant, plain, value
from specbench.engine.native.instructions import OF_ROWS, Instruction, Value
from specbench.engine.native.values import Form, Unknown, Values
from specbench.engine.native.weights import LAYOUTS
from specbench.engine.operations import kernels
from specbench.engine.paged import is_in_file
from specbench.kernels.structures import Op

VIEWS = (aten.view.default, aten.reshape.default, aten.flatten.using_ints)
SPLITS = (aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default)
ONE_BY_ONE: dict[Any, Op] = {aten.relu.default: Op.RELU, aten.silu.default: Op.SILU, aten.tanh.default: Op.TANH}
GELUS = {"none": Op.GELU, "tanh": Op.GELU_TANH}


class Assembly(Values):
    """A run of nodes that became `program`: what each of its operations becomes."""

    def add(self, node: Node) -> bool:
        """Take `node` in; False if it is unknown, and then nothing has changed."""
        before = len(self.program), len(self.outside), len(self.sizes)
        kept = dict(self.prepared), dict(self._values), dict(self._columns)
        known = self._known(node)
        if known is not None:
            try:
                known(node)
                self.nodes.append(node)
                return True
            except (Unknown, IndexError, KeyError, TypeError, ValueError):
                pass
        del self.program[before[0] :], self.outside[before[1] :], self.sizes[before[2] :]
        self.prepared, self._values, self._columns = kept
        return False

    def _known(self, node: Node) -> Callable[[Node], None] | None:
        target: Any = node.target
        if node.op != "call_function":
            return None
        if target in SPLITS:
            return self._split
        if target is operator.getitem:
            return self._item
        if target in VIEWS or target == aten.transpose.int:
            return self._view
        if target in ONE_BY_ONE or target == aten.gelu.default:
            return self._activation
        by_target: dict[Any, Callable[[Node], None]] = {
            aten.embedding.default: self._embedding,
            aten.rms_norm.default: self._rms_norm,
            aten.layer_norm.default: self._layer_norm,
            kernels.wide_norm: self._wide_norm,
            aten.linear.default: self._linear,
            aten.add.Tensor: self._add,
            aten.mul.Tensor: self._mul,
            kernels.write: self._write,
            kernels.attend: self._attend,
            kernels.attend_alone: self._attend,
            aten.pow.Tensor_Scalar: self._power,
            aten.pad.default: self._pad,
            aten.index_select.default: self._pick,
            aten.slice.Tensor: self._slice,
            aten.neg.default: self._negative,
            aten.div.Tensor: self._divide,
            aten.cat.default: self._joined,
            aten.stack.default: self._stacked,
        }
        return by_target.get(target)

    def _view(self, node: Node) -> None:
        source: Any = node.args[0]
        if source.target == aten.stack.default and source in self._columns:
            self._form(node)
            self._columns[node] = self._columns[source]
            return
        if source not in self._values:
            raise Unknown
        before, after = self._form(source), self._form(node)
        if before.width != after.width:
            raise Unknown
        swaps = node.target == aten.transpose.int
        if swaps and (set(node.args[1:]) != {1, 2} or before.heads is None or before.heads_first == after.heads_first):
            raise Unknown
        if not swaps and before.heads_first != after.heads_first and not self._one_token:
            raise Unknown
        self._values[node] = self._values[source]

    def _split(self, node: Node) -> None:
        source: Any = node.args[0]
        axis = node.args[2] if len(node.args) > 2 else 0
        if axis not in (-1, value(source).dim() - 1):
            raise Unknown
        self._value(source)

    def _item(self, node: Node) -> None:
        split: Any
        index: Any
        split, index = node.args
        if split not in self.nodes or split.target not in SPLITS:
            raise Unknown
        source: Any = split.args[0]
        before = sum(_parts(split, self._form(source))[:index])
        if self._form(source).heads:
            self._keep_columns(node, source, _columns(self._form(source).width, value(source), before, value(node)))
            return
        whole = self._values[source]
        self._values[node] = Value(whole.slot, whole.column + before, self._form(node).width)

    def _embedding(self, node: Node) -> None:
        table, ids = node.args[:2]
        form = self._form(node)
        assert isinstance(ids, Node)
        if tuple(map(plain, value(ids).shape)) != self._rows[:2]:
            raise Unknown
        weight = self._weight(table, *constant_shape(self._module, table))
        if weight is None or not weight.is_contiguous():
            raise Unknown
        number = self._number(ids)
        if not self.program:
            self.rows_of = number, 1
        self._has_texts(number)
        op, held = Op.EMBED, weight
        if (
            is_in_file(weight)
            and not self._packed.bits_of(weight)
            and (self._packed.has(weight, LAYOUTS[0]) or self._is_mapped_by(weight))
        ):
            op, held = Op.GATHER, self._packed.of(weight, LAYOUTS[0])  # the head's, so that none of the file is read
        self._write_slot(node, Instruction(op, form.width, inner=len(weight), weight=held, outside=[number]))

    def _is_mapped_by(self, weight: Tensor) -> bool:
        """Whether a linear map of the graph has this weight, as a head that is tied to the embeddings."""
        maps = (constant(self._module, node.args[1]) for node in calls(self._module, aten.linear.default))
        return any(one is not None and (one.data_ptr(), one.shape) == (weight.data_ptr(), weight.shape) for one in maps)

    def _norm(self, node: Node, weight: Any, bias: Any, epsilon: float, centred: bool) -> None:
        form = self._form(node)
        read, heads = self._value(node.args[0]), form.heads or 1
        inner = form.width // heads
        if list(node.args[1]) != [inner]:  # type: ignore[arg-type]
            raise Unknown
        self._write_slot(node, Instruction(
            Op.NORM, form.width, x=read, norm_weight=self._of_norm(weight, inner), norm_bias=self._of_norm(bias, inner),
            epsilon=epsilon, centred=centred, heads=heads, inner=inner,
        ))  # fmt: skip

    def _wide_norm(self, node: Node) -> None:
        weight, epsilon, centred = node.args[2:]
        self._norm(node, weight, None, float(epsilon), bool(centred))  # type: ignore[arg-type]

    def _rms_norm(self, node: Node) -> None:
        given: list[Any] = [*node.args[2:4], *(None, None)][:2]
        epsilon = float(given[1] or torch.finfo(torch.float32).eps)  # in which torch also computes bf16
        self._norm(node, given[0], None, epsilon, False)

    def _layer_norm(self, node: Node) -> None:
        given: list[Any] = [*node.args[2:5], *(None, None, 1e-5)[len(node.args[:5]) - 2 :]]
        self._norm(node, given[0], given[1], float(given[2]), True)

    def _linear(self, node: Node) -> None:
        form, read = self._form(node), self._value(node.args[0])
        if form.heads is not None:
            raise Unknown
        weight = self._weight(node.args[1], form.width, read.width)
        bias = self._weight(node.args[2] if len(node.args) > 2 else None, form.width)
        assert weight is not None
        bits = self._packed.bits_of(weight)
        self._write_slot(node, Instruction(Op.LINEAR, form.width, x=read, inner=read.width, level_bits=bits,
                                           weight=self._packed.of(weight, LAYOUTS[bits]), bias=bias))  # fmt: skip

    def _add(self, node: Node) -> None:
        self._both(node, Op.ADD, Op.SHIFT)

    def _mul(self, node: Node) -> None:
        self._both(node, Op.MUL, Op.SCALE)

    def _pad(self, node: Node) -> None:
        """One more column of minus infinity, which only a pick reads."""
        source, *how = node.args
        readers = {user.target for user in node.users}
        if how != [[0, 1], "constant", -math.inf] or readers != {aten.index_select.default}:
            raise Unknown
        self._value(source)

    def _slice(self, node: Node) -> None:
        source: Any
        first: Any
        source, axis, first, _end, *given = node.args
        step: Any = given[0] if given else 1
        if axis not in (-1, value(node).dim() - 1):
            raise Unknown
        if self._form(source).heads is None and step == 1:
            whole = self._value(source)
            self._values[node] = Value(whole.slot, whole.column + first % whole.width, self._form(node).width)
            return
        width = self._form(source).width
        self._keep_columns(node, source, _columns(width, value(source), first, value(node), step))

    def _negative(self, node: Node) -> None:
        source: Any = node.args[0]
        self._keep_columns(node, source, [~column for column in range(self._form(source).width)])

    def _keep_columns(self, node: Node, source: Any, columns: list[int]) -> None:
        """`node` is columns of `source`, which are copied only where something reads them; ~column: the negated one."""
        if source in self._columns:
            source, before = self._columns[source]
            columns = [before[column] if column >= 0 else ~before[~column] for column in columns]
        else:
            self._value(source)
        self._form(node)
        self._columns[node] = source, columns

    def _joined(self, node: Node) -> None:
        parts: Any = node.args[0]
        form, axis = self._form(node), node.args[1] if len(node.args) > 1 else 0
        found: list[Any] = [self._columns.get(part, (part, range(self._form(part).width))) for part in parts]
        sources = list(dict.fromkeys(source for source, _ in found))
        if axis not in (-1, value(node).dim() - 1) or len(sources) > 2:
            raise Unknown
        first = self._form(sources[0]).width
        found = [
            (source, columns if source is sources[0] else [c + first if c >= 0 else ~(~c + first) for c in columns])
            for source, columns in found
        ]
        widths = [len(columns) // (form.heads or 1) for _, columns in found]
        joined = [
            column
            for head in range(form.heads or 1)
            for (_, columns), width in zip(found, widths, strict=True)
            for column in columns[head * width : (head + 1) * width]
        ]
        if len(sources) == 1:
            self._value(sources[0])
            self._columns[node] = sources[0], joined
            return
        x, y = (self._value(source) for source in sources)
        self._write_slot(node, Instruction(Op.PICK, form.width, x=x, y=y, inner=x.width, weight=torch.tensor(joined)))

    def _stacked(self, node: Node) -> None:
        """Columns of one value in turn, as interleaved rotary angles turn them; only a view joins the two last axes."""
        parts: Any = node.args[0]
        found = [self._columns.get(part) for part in parts]
        (joined,) = node.users
        if node.args[1] not in (-1, value(node).dim() - 1) or joined.target not in VIEWS or None in found:
            raise Unknown
        (source,) = {source for source, _ in found if source is not None}  # type: ignore[misc]
        self._form(joined)
        self._columns[node] = source, [column for turn in zip(*(c for _, c in found), strict=True) for column in turn]  # type: ignore[misc]

    def _pick(self, node: Node) -> None:
        padded, axis, index = node.args
        form, places = self._form(node), constant(self._module, index)
        if padded not in self.nodes or places is None or places.dtype != torch.long or form.heads is not None:
            raise Unknown
        if axis not in (-1, value(node).dim() - 1) or places.shape != (form.width,) or not places.is_contiguous():
            raise Unknown
        read = self._value(padded.args[0])  # type: ignore[union-attr]
        op, which = Op.PICK, places.detach()
        if (which != read.width).sum() * 2 <= form.width and (spread := _spread(which, read.width)) is not None:
            op, which = Op.SPREAD, spread
        self._write_slot(node, Instruction(op, form.width, x=read, inner=read.width, weight=which))

    def _divide(self, node: Node) -> None:
        self._with_number(node, Op.DIVIDE)

    def _power(self, node: Node) -> None:
        self._with_number(node, Op.POWER)

    def _with_number(self, node: Node, op: Op) -> None:
        width, number = self._form(node).width, node.args[1]
        if node.kwargs or not isinstance(number, int | float):
            raise Unknown
        self._write_slot(node, Instruction(op, width, x=self._value(node.args[0]), scale=float(number)))

    def _both(self, node: Node, op: Op, with_number: Op) -> None:
        """Write `op` of two values of one form, or `with_number` of a value and a number.

        The second value may have one head for all of the first's. Raises Unknown for other forms, which torch computes.
        """
        if not isinstance(node.args[1], Node):
            self._with_number(node, with_number)
            return
        form, (first, second) = self._form(node), node.args
        if node.kwargs or self._form(first) != form:  # type: ignore[arg-type]
            raise Unknown
        other = self._form(second)  # type: ignore[arg-type]
        # As rotary angles are.
        repeated = other.heads == 1 and other.heads_first == form.heads_first and form.heads not in (None, 1)
        if other != form and not (repeated and other.width * (form.heads or 1) == form.width):
            raise Unknown
        x, y = self._value(first), self._value(second)
        self._write_slot(node, Instruction(op, form.width, x=x, y=y, period=other.width if repeated else 0))

    def _activation(self, node: Node) -> None:
        form, op = self._form(node), ONE_BY_ONE.get(node.target)
        if op is None:
            op = GELUS[str(node.kwargs.get("approximate", "none"))]
        self._write_slot(node, Instruction(op, form.width, x=self._value(node.args[0])))

    def _write(self, node: Node) -> None:
        buffer, at, states = node.args
        form = self._form(states)  # type: ignore[arg-type]
        self._require_buffers(buffer)
        if not form.heads_first or form.heads is None or value(at).dim() != 1:
            raise Unknown
        read, slots = self._value(states), self._number(at)  # type: ignore[arg-type]
        self.prepared[slots] = Tensor.contiguous
        self.program.append(Instruction(
            Op.WRITE, form.width, x=read, inner=form.width // form.heads, heads=form.heads,
            outside=[self._number(buffer), slots], slots=self._size(buffer, 2),  # type: ignore[arg-type]
            short_cache=_is_short(buffer),
        ))  # fmt: skip

    def _attend(self, node: Node) -> None:
        query, keys, values, bias, scale, *sinks = node.args
        form = self._form(query)  # type: ignore[arg-type]
        if not form.heads_first or form.heads is None or value(keys).shape[-1] != value(values).shape[-1]:
            raise Unknown
        made = Instruction(
            Op.ATTEND, form.width, x=self._value(query), bias=self._of_norm(sinks[0], form.heads) if sinks else None,
            inner=form.width // form.heads, heads=form.heads,
            key_heads=int(value(keys).shape[1]), scale=float(scale),  # type: ignore[arg-type]
        )  # fmt: skip
        if keys in self._values and values in self._values:  # of the new tokens, as when a source is read
            if not all(self._form(one).heads_first for one in (keys, values)):  # type: ignore[arg-type]
                raise Unknown
            made.y, made.z = self._value(keys), self._value(values)
            made.outside, made.slots = [-1, -1], OF_ROWS
        else:
            self._require_buffers(keys, values)
            made.outside = [self._number(keys), self._number(values)]  # type: ignore[arg-type]
            made.slots, made.short_cache = self._size(keys, 2), _is_short(keys)  # type: ignore[arg-type]
        if bias is None:
            made.outside.append(-1)
        else:
            assert isinstance(bias, Node)
            if value(bias).dim() != 4 or value(bias).dtype not in (torch.float32, self.dtype):
                raise Unknown
            made.outside.append(self._number(bias))
            self.prepared[self._number(bias)] = widened
            made.bias_texts, made.bias_heads, made.bias_rows = (self._size(bias, axis) for axis in range(3))
        self._write_slot(node, made)


def _is_short(buffer: Any) -> bool:
    return bool(value(buffer).dtype == torch.bfloat16)


def _parts(split: Node, form: Form) -> list[int]:
    """The sizes of the parts that `split` makes of a value of this form, the last perhaps too large."""
    width, given = form.width // (form.heads or 1), split.args[1]
    if isinstance(given, int):
        size = given if split.target == aten.split.Tensor else -(-width // given)
        return [size] * -(-width // size)
    return list(given)  # type: ignore[arg-type]


def _columns(width: int, source: Tensor, first: Any, part: Tensor, step: int = 1) -> list[int]:
    """The columns of `part` of each head (or of all) of `source`, whose rows have `width` columns."""
    whole, taken = int(source.shape[-1]), int(part.shape[-1])
    return [at + first % whole + step * column for at in range(0, width, whole) for column in range(taken)]


def _spread(places: Tensor, width: int) -> Tensor | None:
    """Where each of `width` columns goes, -1 for nowhere, if none of them is at several of `places`."""
    places, (to,) = places.cpu(), (places.cpu() < width).nonzero(as_tuple=True)
    if len(places[to].unique()) < len(to) or (places < 0).any():
        return None
    return torch.full((width,), -1).index_put((places[to],), to)


def constant_shape(module: GraphModule, node: Any) -> tuple[int, ...]:
    """The shape of the weight that a node fetches. Raises Unknown if it fetches none."""
    found = constant(module, node)
    if found is None:
        raise Unknown
    return tuple(found.shape)
