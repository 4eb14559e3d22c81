"""Positions as data: what a chain is, and that a step takes any layout that it is given."""

import pytest
import torch
from torch import Tensor

from specbench.engine.buffers import Buffers
from specbench.engine.capture.nodes import aten
from specbench.engine.capture.program import Program, Step
from specbench.engine.layout import Layout, chain
from tests.support.networks import PADDED, network

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]
CAPACITY = 32
POSITIONAL = (
    aten.gather.default, aten.arange.default, aten.where.ScalarOther, aten.where.self, aten.cos.default,
    aten.index.Tensor,
)  # fmt: skip


def numbers(capacity: int) -> Tensor:
    return torch.arange(capacity).unsqueeze(0)


def test_a_chain_goes_on_where_the_cache_ends() -> None:
    layout = chain(3, 2, numbers(6))
    assert layout.slots_BL.tolist() == layout.new_positions_BL.tolist() == [[3, 4]]
    assert layout.positions_BC.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert layout.visible_BLC.int().tolist() == [[[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]]


def whole(step: Step, *inputs: Tensor) -> Tensor:
    return step.after_sizes(step.of_sizes(*inputs), *inputs)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_rows_of_several_lengths_run_through_the_same_step(kind: str) -> None:
    """A layout by hand: each row continues after its own tokens. Logits are those of the row alone."""
    torch.manual_seed(3)
    own = network(kind, seed=5)
    lengths, count = [4, 11, 7], 3
    texts = torch.randint(2, 40, (len(lengths), CAPACITY))
    program = Program.of(own, torch.float32, one_row=False)
    buffers = {
        part: [torch.zeros(len(lengths), heads, CAPACITY, channels) for heads, channels in shapes]
        for part, shapes in program.shapes.items()
    }
    source = torch.randint(2, 40, (len(lengths), 9))
    if program.encode is not None:
        for buffer, states in zip(buffers["cross"], program.encode(source), strict=True):
            buffer[:, :, :9] = states
    source_lengths = torch.full((len(lengths),), 9)

    def layout(begins: list[int], count: int) -> Layout:
        slots_BL = torch.tensor([[begin + index for index in range(count)] for begin in begins])
        return Layout(slots_BL, numbers(CAPACITY).expand(len(begins), -1), numbers(CAPACITY) <= slots_BL.unsqueeze(-1))

    for begins, fed in (([0] * 3, max(lengths)), (lengths, count), ([length + count for length in lengths], 1)):
        placed = layout(begins, fed)
        ids_BL = torch.stack([texts[row, begin : begin + fed] for row, begin in enumerate(begins)])
        step = program.one if fed == 1 else program.several
        logits_BLV = whole(step, ids_BL, *placed.tensors, source_lengths, *buffers["self"], *buffers["cross"])
    assert logits_BLV.shape == (len(lengths), 1, PADDED)
    for row, length in enumerate(lengths):
        ids = texts[row : row + 1, : length + count + 1]
        if own.config.is_encoder_decoder:
            exact = own(input_ids=source[row : row + 1], decoder_input_ids=ids).logits[0, -1]
        else:
            exact = own(input_ids=ids).logits[0, -1]
        assert (logits_BLV[row, 0] - exact).abs().max() < 1e-3 * exact.abs().max()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_step_proper_computes_no_positions(kind: str) -> None:
    """All that depends on positions is taken out of it, so that a chain can look it up."""
    program = Program.of(network(kind, seed=5), torch.float32)
    for step in (program.one, program.several):
        own = {node.target for node in step.run.__self__.graph.nodes}  # type: ignore[attr-defined]
        assert not own & {
            aten.gather.default,
            aten.arange.default,
            aten.where.ScalarOther,
            aten.where.self,
            aten.cos.default,
        }


def test_buffers_of_one_shape_are_views_of_one_stack() -> None:
    buffers = Buffers.zeros([(2, 4), (2, 4), (2, 3), (2, 4)], 5, torch.float32, torch.device("cpu"))
    assert [layer.shape for layer in buffers.layers] == [(1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 3), (1, 2, 5, 4)]
    for index, layer in enumerate(buffers.layers):
        layer.fill_(index)
    assert [sorted(stack.unique().tolist()) for stack in buffers.stacks] == [[0, 1, 3], [2]]
    first = buffers.first(3)
    assert [len(stack) for stack in first.stacks] == [2, 1]
    larger = Buffers.zeros([(2, 4), (2, 4), (2, 3), (2, 4)], 8, torch.float32, torch.device("cpu"))
    larger.copy_slots(buffers, 2)
    assert [layer[0, 0, :, 0].tolist() for layer in larger.layers] == [[n, n, 0, 0, 0, 0, 0, 0] for n in range(4)]
