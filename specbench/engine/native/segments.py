"""Runs of a simplified graph's operations, each replaced by one call of a program for `kernels.c`.

Shapes: L new tokens, W columns, H heads, D channels of a head. One row of texts.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.lower import PackedWeights, direct, named, with_packed_weights
from specbench.engine.capture.nodes import finished, value
from specbench.engine.native.assemble import Assembly
from specbench.engine.native.compiler import library
from specbench.engine.native.instructions import Op, encoded, fused


def lower_native(module: GraphModule, packed: PackedWeights, one_token: bool) -> Callable[..., Any]:
    """`module` with as much as possible of it in native programs, in place, ready to run. Raises NotCompiled."""
    library()
    finished(named(module, one_token))
    ids = next(node for node in module.graph.nodes if node.op == "placeholder")
    if value(ids).shape[0] == 1 and value(ids).device.type == "cpu":
        _replace_runs(module, packed, one_token, str(value(ids).shape[1]))
        if not any(node.target is _item for node in module.graph.nodes):
            raise NotImplementedError("a step without a linear map that the native kernels know")
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
    call = _call(run, given)
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


def _call(run: Assembly, given: list[Node]) -> Callable[..., tuple[Tensor, ...]]:
    """A function of the tensors `run.outside` that runs its program."""
    forms = [run.stored(node) for node in given]
    program = fused(run.program)
    raw, floats = encoded(program, run.dtype == torch.bfloat16)
    kernels, count, dtype, widths = library(), len(program), run.dtype, [form.width for form in forms]
    reads, prepared, sizes_read = run.rows_of, list(run.prepared.items()), run.sizes
    inner = max((one.inner for one in program if one.op == Op.LINEAR), default=0)
    slots = sorted({one.slots for one in program if one.op == Op.ATTEND})
    sizes = (ctypes.c_int64 * max(1, len(sizes_read)))()
    held = [program, raw]  # the weights that pointers stand for live as long as this function
    room = torch.empty(0)

    def native_run(*outside: Any) -> tuple[Tensor, ...]:
        nonlocal room
        rows = outside[reads[0]].shape[reads[1]]
        tensors = list(outside)
        for number, prepare in prepared:
            tensors[number] = prepare(tensors[number])
        for number, (of, axis) in enumerate(sizes_read):
            sizes[number] = tensors[of].shape[axis]
        results = [torch.empty(1, rows, width, dtype=dtype) for width in widths]
        pointers = [tensor.data_ptr() for tensor in tensors] + [tensor.data_ptr() for tensor in results]
        threads = torch.get_num_threads()
        scratch = -(-max((2 * inner + 1) * rows, *(sizes[number] for number in slots), 16) // 16) * 16
        needed = floats * rows + scratch * threads
        if room.numel() < needed:
            room = torch.empty(needed)
        start = room.data_ptr()
        kernels.run(
            raw, count, (ctypes.c_void_p * len(pointers))(*pointers), sizes, start, rows,
            start + 4 * floats * rows, scratch, threads,
        )  # fmt: skip
        return tuple(form.formed(result) for form, result in zip(forms, results, strict=True))

    native_run.held = held  # type: ignore[attr-defined]
    return native_run
