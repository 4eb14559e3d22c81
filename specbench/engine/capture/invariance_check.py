"""Test, bitwise, that a captured model's logits at a position do not depend on the tokens read together with it.

A prompt is continued in single steps, and in blocks of 2, 3, ... tokens, across lengths at which buffers double. Then a
tree is read, each of its paths by itself, and tokens after a selected path. All logits must be bitwise equal. This also
tests the contents of the caches: every block is read from caches that the blocks before it wrote.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from specbench.engine.capture.invariant import SLOTS
from specbench.engine.capture.static import StaticModel
from specbench.engine.capture.static_sessions import MOST_ROWS, StaticSession
from specbench.engine.layout import path_to
from specbench.engine.session import Prompt
from specbench.theory.trees import ROOT

STEPS = 20  # tokens that are read one by one, and then in blocks (where one begins, how many tokens it has):
BLOCKS = ((0, 2), (2, 3), (5, 4), (9, 5), (14, 6), (1, 7), (8, 8), (11, 9), (STEPS - MOST_ROWS, MOST_ROWS))
SOURCE = 21
# Children of one node lie apart, as they do in a tree that is read by levels.
PARENTS = (ROOT, 0, 0, ROOT, 1, 2, 3, 1, 6)
SELECTED = [0, 1, 7]
FEWEST_ROWS = (1, 4, MOST_ROWS)  # of a step, tried in turn
WATCHED = 13  # rows of the step whose operations are looked at: no other size of a model


def make_invariant(model: StaticModel) -> str | None:
    """Find the fewest rows with which all that is tried here is equal to the bit, and let `model` read so many.

    Returns None, or what differs on this machine, whatever the rows.
    """
    reason = None
    for rows in FEWEST_ROWS if model.most_rows else FEWEST_ROWS[:1]:
        if rows >= model.rows:
            model.set_least_rows(rows)
            if (found := first_difference(model)) is None:
                return None
            reason = reason or found
    return reason


def first_difference(model: StaticModel) -> str | None:
    """The rows of `model` that depend on how many are read at once, in words; None if all are equal to the bit.

    The result names the operation at fault if it is found.
    """
    read = STEPS + len(PARENTS)
    # The first buffers end within the blocks, and so does what one sum of attention takes in.
    ends = (model.capacity(1), SLOTS)
    most = max(ends) if model.longest is None else model.longest - read
    for before in sorted({max(1, min(end - STEPS // 2, most)) for end in ends}):
        prompt, tokens = _text(model, before, read)
        alone, together = model.start(prompt), model.start(prompt)
        by_step_LV = torch.cat([alone.extend([token]) for token in tokens[:STEPS]])
        for first, count in BLOCKS:
            together.rollback(before - 1 + first)
            if not torch.equal(together.extend(tokens[first : first + count]), by_step_LV[first : first + count]):
                return f"{differing_operation(model)}: {count} tokens read at once differ from single steps"
        together.rollback(before - 1 + STEPS // 2)
        alone.rollback(before - 1 + STEPS // 2)
        if not model.placement.no_trees and (found := _difference_in_tree(alone, together, tokens[STEPS:])):
            return found
    return None


def _difference_in_tree(alone: StaticSession, together: StaticSession, tokens: list[int]) -> str | None:
    """The first difference between a tree of `tokens` and its paths. Both sessions have read the same text."""
    length = alone.length
    logits_NV = together.extend(tokens, PARENTS)
    for leaf in sorted({*range(len(PARENTS))} - {*PARENTS} - {SELECTED[-1]}) + SELECTED[-1:]:
        alone.rollback(length)
        path = path_to(PARENTS, leaf)
        by_step_LV = torch.cat([alone.extend([tokens[node]]) for node in path])
        if not torch.equal(logits_NV[path], by_step_LV):
            return f"attention: {len(tokens)} nodes of a tree read at once differ from their paths"
    together.select(SELECTED)
    if not torch.equal(together.extend(tokens[:1]), alone.extend(tokens[:1])):
        return "caches: a path selected from a tree differs from the same path as a chain"
    return None


def _text(model: StaticModel, before: int, count: int) -> tuple[Prompt, list[int]]:
    """A prompt of random tokens, and `count` tokens that are read from its last on."""
    generator = torch.Generator().manual_seed(0)
    tokens: list[int] = torch.randint(0, model.vocabulary_size, (before + count,), generator=generator).tolist()
    source = tokens[:SOURCE] if model.is_encoder_decoder else ()
    return Prompt(tuple(source), tuple(tokens[:before])), tokens[before - 1 : before - 1 + count]


def differing_operation(model: StaticModel) -> str:
    """The first operation of a step over `WATCHED` tokens some of whose rows differ from the row computed by itself."""
    prompt, tokens = _text(model, 2, WATCHED)
    run: Any = model.program.several.run
    if model.rows > 1 or not hasattr(run, "__self__"):
        return "a step"
    with torch.inference_mode():
        session = model.start(prompt)
        watching = _Watching(run.__self__)
        watching.run(*session.inputs(model.program.several, model.ids(tokens), WATCHED))
    return watching.found or "a step over one token"


class _Watching(Interpreter):
    """Runs a step and also computes each row of each operation by itself."""

    found: str | None = None

    def run_node(self, node: Node) -> Any:
        computed = super().run_node(node)
        inputs, _ = self.fetch_args_kwargs_from_env(node)
        if self.found is None and node.op == "call_function" and inputs and isinstance(inputs[0], Tensor):
            axis = _axis(computed) if isinstance(computed, Tensor) and computed.is_floating_point() else None
            if axis is not None and not self._rows_equal(node, inputs, computed, axis):
                shapes = " and ".join(str(list(one.shape)) for one in inputs if isinstance(one, Tensor))
                self.found = f"{getattr(node.target, '__name__', node.target)} of {shapes}"
        return computed

    def _rows_equal(self, node: Node, inputs: tuple[Any, ...], computed: Tensor, axis: int) -> bool:
        assert callable(node.target)
        for row in range(WATCHED):
            try:
                alone = node.target(*(_row(one, row) for one in inputs), **node.kwargs)
            except (RuntimeError, IndexError, TypeError):  # an operation on shapes, which computes nothing
                return True
            if not torch.equal(alone, computed.narrow(axis, row, 1)):
                return False
        return True


def _axis(tensor: Tensor) -> int | None:
    """The axis of the new tokens."""
    return next((axis for axis, size in enumerate(tensor.shape) if size == WATCHED), None)


def _row(argument: Any, row: int) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    axis = _axis(argument)
    return argument if axis is None else argument.narrow(axis, row, 1)
