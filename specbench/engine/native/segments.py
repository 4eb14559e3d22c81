"""Runs of a simplified graph's operations, each replaced by one call of a program for `kernels.c`.

Shapes: L new tokens, W columns, H heads, D channels of a head. One row of texts.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.lower import PackedWeights, direct, named, with_packed_weights
from specbench.engine.capture.nodes import finished, value
from specbench.engine.native.assemble import Assembly
from specbench.engine.native.compiler import library
from specbench.engine.native.instructions import Op, encoded, fused
from specbench.sampling import Choice


def lower_native(module: GraphModule, packed: PackedWeights, one_token: bool) -> Callable[..., Any]:
    """`module` with as much as possible of it in native programs, in place, ready to run. Raises NotCompiled."""
    library()
    finished(named(module, one_token))
    ids = next(node for node in module.graph.nodes if node.op == "placeholder")
    if value(ids).shape[0] == 1 and value(ids).device.type == "cpu":
        _replace_runs(module, packed, one_token, str(value(ids).shape[1]))
        if not any(node.target is _item for node in module.graph.nodes):
            raise NotImplementedError("a step without a linear map that the native kernels know")
        if (whole := _whole(module)) is not None:
            return whole
    return direct(with_packed_weights(module, packed, one_token))


def _replace_runs(module: GraphModule, packed: PackedWeights, one_token: bool, tokens: str) -> None:
    def new() -> Assembly:
        return Assembly(module, packed, one_token, tokens)

    assembly, runs = new(), []
    for node in list(module.graph.nodes):
        if node.op in ("placeholder", "get_attr") or _is_size(node):
            continue
        if node.op != "output" and assembly.add(node):
            continue
        runs.append(assembly)
        assembly = new()
    replaced: dict[Node, Node] = {}
    for run in runs:
        if any(instruction.op == Op.LINEAR for instruction in run.program):
            _replace(module, run, replaced)


def _is_size(node: Node) -> bool:
    return node.op == "call_function" and isinstance(value(node), int | torch.SymInt)


def _replace(module: GraphModule, run: Assembly, replaced: dict[Node, Node]) -> None:
    """`run`'s nodes replaced by one call that returns what others use of them; `replaced` says what became what."""
    own = set(run.nodes)
    given = [node for node in run.nodes if any(user not in own for user in node.users)]
    call = NativeRun(run, given)
    with module.graph.inserting_after(run.nodes[-1]):
        node = module.graph.call_function(call, tuple(replaced.get(one, one) for one in run.outside))
    at = node
    for index, before in enumerate(given):
        with module.graph.inserting_after(at):
            at = module.graph.call_function(_item, (node, index))
        at.meta = dict(before.meta)
        replaced[before] = at
        before.replace_all_uses_with(at, lambda user: user not in own)
    for before in reversed(run.nodes):
        module.graph.erase_node(before)


def _item(results: tuple[Tensor, ...], index: int) -> Tensor:
    return results[index]


class Step(ctypes.Structure):
    """`Step` of kernels.c."""

    _fields_ = [
        ("program", ctypes.c_void_p), ("count", ctypes.c_int64), ("outside", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p), ("rows", ctypes.c_int64),
    ]  # fmt: skip


class NativeRun:
    """A program of `kernels.c` and what its calls need: `run.outside` and the rows of `given`, which it writes."""

    def __init__(self, run: Assembly, given: list[Node]) -> None:
        self._forms = [run.stored(node) for node in given]
        program = fused(run.program)
        self._raw, self.floats = encoded(program, run.dtype == torch.bfloat16)
        self._program, self._count, self.dtype = program, len(program), run.dtype  # which holds the weights
        self.widths = [form.width for form in self._forms]
        self._rows_of, self._prepared, self._sizes_of = run.rows_of, list(run.prepared.items()), run.sizes
        self._inner = max((one.inner for one in program if one.op == Op.LINEAR), default=0)
        self._slots = sorted({one.slots for one in program if one.op == Op.ATTEND})
        self._sizes = (ctypes.c_int64 * max(1, len(self._sizes_of)))()
        self._room = torch.empty(0)
        self.__name__ = "native_run"

    def __call__(self, *outside: Tensor) -> tuple[Tensor, ...]:
        number, axis = self._rows_of
        rows = outside[number].shape[axis]
        results = [torch.empty(1, rows, width, dtype=self.dtype) for width in self.widths]
        step, scratch, *held = self.step(outside, results)
        threads = torch.get_num_threads()
        start, at = self.room(self.floats * rows, scratch * threads)
        library().run(ctypes.byref(step), start, at, scratch, threads)
        del held
        return tuple(form.formed(result) for form, result in zip(self._forms, results, strict=True))

    def step(self, outside: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Any, ...]:
        """The call as `kernels.c` reads it, the floats of scratch that each thread needs, and what must live on."""
        number, axis = self._rows_of
        rows, sizes = outside[number].shape[axis], self._sizes
        tensors = list(outside)
        for number, prepare in self._prepared:
            tensors[number] = prepare(tensors[number])
        for number, (of, axis) in enumerate(self._sizes_of):
            sizes[number] = tensors[of].shape[axis]
        pointers = [tensor.data_ptr() for tensor in tensors] + [tensor.data_ptr() for tensor in results]
        read = (ctypes.c_void_p * len(pointers))(*pointers)
        scratch = max((2 * self._inner + 1) * rows, *(3 * sizes[number] + 2 for number in self._slots), 16)
        step = Step(ctypes.addressof(self._raw), self._count, ctypes.addressof(read), ctypes.addressof(sizes), rows)
        return step, -(-scratch // 16) * 16, read, tensors

    def room(self, arena: int, scratch: int) -> tuple[int, int]:
        """Addresses of room for so many floats each."""
        if self._room.numel() < arena + scratch:
            self._room = torch.empty(arena + scratch)
        return self._room.data_ptr(), self._room.data_ptr() + 4 * arena


class WholeStep:
    """A step that is one program, from the inputs of a captured step (`engine.capture.program`) to its logits."""

    def __init__(self, run: NativeRun, order: Sequence[int]) -> None:
        """`order`: which of the inputs the program reads."""
        self.run, self._order = run, order

    def __call__(self, *inputs: Tensor) -> Tensor:
        (logits_1LV,) = self.run(*self.read_of(inputs))
        return logits_1LV

    def read_of(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the program reads of the inputs."""
        return [inputs[index] for index in self._order]


def _whole(module: GraphModule) -> WholeStep | None:
    """`module` without its graph, if that is one program."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    made = [node for node in module.graph.nodes if node.op in ("call_function", "call_method") and not _is_size(node)]
    (output,) = next(node for node in module.graph.nodes if node.op == "output").args
    if len(made) != 2 or not isinstance(made[0].target, NativeRun) or made[1] is not output:
        return None
    if not set(made[0].args) <= set(placeholders):
        return None
    return WholeStep(made[0].target, [placeholders.index(node) for node in made[0].args])


class _Choice(ctypes.Structure):
    """`Choice` of kernels.c."""

    _fields_ = [
        ("logits", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("short_floats", "stride", "vocabulary")),
        ("temperature", ctypes.c_double), *((name, ctypes.c_void_p) for name in ("uniforms", "rows", "tokens", "ends")),
        ("end_count", ctypes.c_int64),
    ]  # fmt: skip


def rolled_out(
    steps: Sequence[tuple[WholeStep, Sequence[Tensor]]], choice: Choice, uniform_G: Tensor | None, ends_E: Tensor,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The tokens [G] that the steps choose, up to the first of `ends_E`, and the rows [G, V] they were drawn from.

    Each step comes with its inputs; those of the second and later have one token, which this function writes. A token
    is NOT_DRAWN where its row is not finite, and the last.
    """
    first = steps[0][0].run
    tokens_G = torch.empty(len(steps), dtype=torch.long)
    rows_GV = torch.empty(len(steps), choice.vocabulary_size) if choice.draws else None
    made, held, scratch, arena = (Step * len(steps))(), [], 0, 0
    most = max(inputs[0].shape[1] for _, inputs in steps)
    logits_1LV = torch.empty(1, most, first.widths[0], dtype=first.dtype)
    for index, (step, inputs) in enumerate(steps):
        read = step.read_of([tokens_G[index - 1 : index].unsqueeze(0), *inputs[1:]] if index else inputs)
        made[index], needed, *others = step.run.step(read, [logits_1LV])
        scratch, arena = max(scratch, needed), max(arena, step.run.floats * made[index].rows)
        held.append(others)
    scratch, threads = max(scratch, -(-choice.vocabulary_size // 16) * 16), torch.get_num_threads()
    start, at = first.room(arena, scratch * threads)
    chosen = library().rollout(
        made, len(steps), ctypes.byref(_Choice(
            logits_1LV.data_ptr(), first.dtype == torch.bfloat16, first.widths[0], choice.vocabulary_size,
            choice.sampling.temperature, None if uniform_G is None else uniform_G.data_ptr(),
            None if rows_GV is None else rows_GV.data_ptr(), tokens_G.data_ptr(), ends_E.data_ptr(), len(ends_E),
        )), start, at, scratch, threads,
    )  # fmt: skip
    return tokens_G[:chosen], None if rows_GV is None else rows_GV[:chosen]
