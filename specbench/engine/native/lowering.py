"""Runs of a simplified graph's operations, each replaced by one call of a program for `kernels.c`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.invariant import INVARIANT
from specbench.engine.capture.lower import FAST, Kernels, PackedWeights, direct, named, with_packed_weights
from specbench.engine.capture.nodes import calls, finished, value
from specbench.engine.native.assemble import Assembly
from specbench.engine.native.expert_calls import with_native_experts
from specbench.engine.native.native_run import NativeRun
from specbench.engine.native.values import Sizes
from specbench.engine.native.whole import WholeReading, WholeStep
from specbench.engine.operations import kernels
from specbench.kernels import library
from specbench.kernels.structures import Op


class ShortCaches(NotImplementedError):
    """Raised if torch would read caches in bf16 step by step: it is faster on fp32."""


def lower_native(
    module: GraphModule, packed: PackedWeights, one_token: bool, others: Kernels = FAST
) -> Callable[..., Any]:
    """`module` with as much as possible of it in native programs, in place, ready to run. Raises NotCompiled.

    What is left runs in the kernels `others`.
    """
    library()
    finished(named(module, one_token))
    ids = next(node for node in module.graph.nodes if node.op == "placeholder")
    if value(ids).device.type == "cpu":
        _replace_runs(module, packed, one_token, Sizes.of(value(ids)))
        if not any(node.target is _item for node in module.graph.nodes):
            raise NotImplementedError("a step without a linear map that the native kernels know")
        if (whole := _as_whole_step(module) or _whole_reading(module)) is not None:
            return whole
    with_native_experts(module, packed)
    for node in calls(module, kernels.attend, kernels.attend_alone):
        if value(node.args[1]).dtype == torch.bfloat16 and value(node.args[1]).device.type == "cpu":
            raise ShortCaches("attention that the native kernels lack, over caches in bfloat16")
        node.target = others.attend
    return direct(with_packed_weights(module, packed, one_token, others))


def lower_native_invariant(module: GraphModule, packed: PackedWeights, one_token: bool) -> Callable[..., Any]:
    """`lower_native`; what is left has rows that do not depend on their number, as our kernels' sums run in order."""
    return lower_native(module, packed, one_token, INVARIANT)


def _replace_runs(module: GraphModule, packed: PackedWeights, one_token: bool, rows: Sizes) -> None:
    """Runs over all tokens, and over other numbers of rows."""

    def begun(node: Node) -> Assembly:
        """A run that begins with `node`, if it can; an empty one otherwise."""
        assembly, found = Assembly(module, packed, one_token, rows), value(node)
        if not assembly.add(node) and isinstance(found, Tensor) and found.dim() > 1:
            # Rows of its own: of the last token, of several heads.
            own = Sizes.of(found if found.dim() > 2 else found.unsqueeze(0))
            (alone := Assembly(module, packed, own.tokens == 1, own)).add(node)
            return alone if alone.nodes else assembly
        return assembly

    assembly, runs = Assembly(module, packed, one_token, rows), []
    for node in list(module.graph.nodes):
        if node.op in ("placeholder", "get_attr") or _is_size(node):
            continue
        if node.op != "output" and assembly.add(node):
            continue
        runs.append(assembly)
        if node.op != "output":
            assembly = begun(node)
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


def _as_whole_step(module: GraphModule) -> WholeStep | None:
    """`module` without its graph, if that is one program."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    made = [node for node in module.graph.nodes if node.op in ("call_function", "call_method") and not _is_size(node)]
    (output,) = next(node for node in module.graph.nodes if node.op == "output").args
    if len(made) != 2 or not isinstance(made[0].target, NativeRun) or made[1] is not output:
        return None
    if not set(made[0].args) <= set(placeholders):
        return None
    return WholeStep(made[0].target, [placeholders.index(node) for node in made[0].args])


def _whole_reading(module: GraphModule) -> WholeReading | None:
    """`module` without its graph, if that is one program which returns several heads' rows."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    made = [node for node in module.graph.nodes if node.op in ("call_function", "call_method") and not _is_size(node)]
    (output,) = next(node for node in module.graph.nodes if node.op == "output").args
    if not made or not isinstance(made[0].target, NativeRun) or not isinstance(output, list | tuple):
        return None
    if made[1:] != list(output) or len(made[0].target.heads) < len(output):
        return None
    if placeholders[0] not in made[0].args or not set(made[0].args) <= set(placeholders):
        return None
    return WholeReading(made[0].target, [placeholders.index(node) for node in made[0].args])
