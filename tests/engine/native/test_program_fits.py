"""A native program is compared with what it reads and writes once, when it is built: the kernels check nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.engine.native.fits import DoesNotFit, require_fits
from specbench.engine.native.instructions import Instruction, Value
from specbench.engine.native.whole import WholeStep
from specbench.engine.selection import with_engine
from specbench.kernels.structures import Op
from tests.support.networks import network


@pytest.fixture(scope="module", params=["t5", "llama"])
def run(request: pytest.FixtureRequest) -> Any:
    model: Any = with_engine("native", network(request.param, 1), 40, frozenset({1}))
    step = model.program.several.run
    assert isinstance(step, WholeStep)
    return step.run


def first(program: list[Instruction], op: Op) -> Instruction:
    return next(one for one in program if one.op == op)


def moved(value: Value | None, **to: int) -> Value:
    assert value is not None
    return replace(value, **to)


def plant(op: Op, change: Callable[[Instruction], dict[str, Any]]) -> Callable[[list[Instruction]], list[Instruction]]:
    """Change the first instruction of this kind."""

    def planted(program: list[Instruction]) -> list[Instruction]:
        at = first(program, op)
        return [replace(one, **change(one)) if one is at else one for one in program]

    return planted


FAULTS: dict[str, Callable[[list[Instruction]], list[Instruction]]] = {
    "a table with fewer rows": plant(Op.EMBED, lambda one: {"inner": one.inner + 1}),
    "a weight of fewer inputs": plant(Op.LINEAR, lambda one: {"weight": torch.zeros(3)}),
    "more inputs than the value has": plant(Op.LINEAR, lambda one: {"inner": one.inner + 32}),
    "columns past the value": plant(Op.LINEAR, lambda one: {"x": moved(one.x, column=1)}),
    "a wider value": plant(Op.LINEAR, lambda one: {"x": moved(one.x, width=one.inner + 1)}),
    "a slot that nothing wrote": plant(Op.STORE, lambda one: {"x": moved(one.x, slot=10**6)}),
    "a slot that is written later": plant(Op.LINEAR, lambda one: {"x": moved(one.x, slot=one.out or 0)}),
    "heads of other channels": plant(Op.WRITE, lambda one: {"inner": one.inner + 1}),
    "a tensor that is not given": plant(Op.WRITE, lambda one: {"outside": [99, one.outside[1]]}),
    "a result that is not given": plant(Op.STORE, lambda one: {"outside": [-1]}),
    "a size that is not given": plant(Op.ATTEND, lambda one: {"slots": 99}),
    "a norm of fewer weights": plant(Op.LINEAR, lambda one: {"norm_weight": torch.ones(one.inner - 1)}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_program_that_reads_elsewhere_is_refused(fault: str, run: Any) -> None:
    program, outside = run._program, 1 + max(number for one in run._program for number in one.outside)
    require_fits(program, outside, len(run._sizes_of))
    with pytest.raises(DoesNotFit, match="does not fit"):
        require_fits(FAULTS[fault](program), outside, len(run._sizes_of))


def test_caches_of_another_shape_are_refused(run: Any) -> None:
    write = first(run._program, Op.WRITE)
    count = 1 + max(number for one in run._program for number in one.outside)
    attends = [one for one in run._program if one.op == Op.ATTEND]
    given: list[Any] = [None] * count
    for one in attends:
        for number in one.outside[:2]:
            given[number] = torch.zeros(1, one.key_heads, 8, one.inner)
    run.require_buffers(given)
    for wrong in (torch.zeros(1, write.heads, 8, write.inner + 1), torch.zeros(1, write.heads + 1, 8, write.inner),
                  torch.zeros(1, 8, write.heads, write.inner).transpose(1, 2)):  # fmt: skip
        with pytest.raises(DoesNotFit, match="does not fit"):
            run.require_buffers([wrong if number == write.outside[0] else one for number, one in enumerate(given)])
