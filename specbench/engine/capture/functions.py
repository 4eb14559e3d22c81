"""A function of rows, such as a draft's heads, captured and made ready to run as a model's step is."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture.capture import capture, example_sizes
from specbench.engine.capture.lower import Lowering, PackedWeights
from specbench.engine.capture.nodes import add_constant, constant, finished, has_effect, replace
from specbench.engine.capture.rewrite import with_merged_weights, without_repetition
from specbench.engine.capture.rows_check import ROUNDING
from specbench.engine.capture.specialise import for_one_token

SMALL = 0.02
Rows = Callable[..., Tensor]  # of tensors [1, N, ...], with weights that do not change


def made_ready(function: Rows, widths: Sequence[int], like: Tensor, lowering: Lowering, packed: PackedWeights) -> Rows:
    """`function` of tensors [1, N, W], one of each of `widths`, on the device and in the dtype of `like`.

    Raises whatever its code raises where it cannot be captured; RuntimeError where the capture differs from it.
    """
    (rows,) = example_sizes({*widths, *like.shape}, 1)
    # Small numbers, as T5's last states are: there an epsilon shows.
    noise = torch.Generator().manual_seed(0)
    examples = [(SMALL * torch.randn(1, rows, width, generator=noise)).to(like) for width in widths]
    graph = with_merged_weights(_folded(without_repetition(capture(function, examples))))
    one, several = lowering(for_one_token(graph), packed, True), lowering(graph, packed, False)
    for made, count in ((one, 1), (several, rows)):
        given = [example[:, :count] for example in examples]
        found, own = made(*given), function(*given)
        difference = float((found.float() - own.float()).abs().max() / own.float().abs().max().clamp(min=1e-30))
        if not difference <= ROUNDING[like.dtype]:
            raise RuntimeError(f"the captured function differs by {difference:.2g} of its largest number")
    return lambda *inputs: (one if inputs[0].shape[1] == 1 else several)(*inputs)


def _folded(module: GraphModule) -> GraphModule:
    """`module` with what depends on nothing but weights computed once, in place."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or has_effect(node) or not node.all_input_nodes:
            continue
        given: dict[Node, Tensor] = {}
        for one in node.all_input_nodes:
            if (found := constant(module, one)) is not None:
                given[one] = found
        if len(given) == len(node.all_input_nodes):
            target: Any = node.target
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
            with torch.no_grad():
                made = target(*args, **kwargs)
            if isinstance(made, Tensor):
                with module.graph.inserting_before(node):
                    held = add_constant(module, made.detach())
                replace(node, held)
    return finished(module)
