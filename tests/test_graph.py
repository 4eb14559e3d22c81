"""Simplifying captured graphs: the same results from fewer operations, and nothing shared that changes."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from specbench.models.graph import (
    PackedWeights,
    capture,
    for_last_row,
    for_one_token,
    for_outputs,
    hoist,
    lower,
    markers,
    simplify,
)
from specbench.models.graph.capture import example_sizes
from specbench.models.graph.nodes import aten, calls


def test_what_a_tensor_was_changed_to_is_not_shared_with_what_it_was() -> None:
    def function(x: Tensor) -> Tensor:
        once, again = x * 2, x * 2
        once += 1
        return once * again

    graph = simplify(capture(function, [torch.ones(1, 7)]))
    x = torch.arange(1.0, 5.0).unsqueeze(0)
    assert torch.equal(graph(x), (2 * x + 1) * 2 * x)
    assert len(calls(graph, aten.mul.Tensor)) == 2  # x * 2 is computed once


def test_changing_a_part_in_place_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0] += 1
        return y

    with pytest.raises(NotImplementedError, match="changes a part of a tensor in place"):
        simplify(capture(function, [torch.ones(1, 7)]))


def test_linear_maps_of_one_input_become_one_and_the_model_keeps_its_weights() -> None:
    torch.manual_seed(0)
    maps = [nn.Linear(8, size, bias=False) for size in (4, 6, 2)]
    before = [one.weight.detach().clone() for one in maps]
    graph = simplify(capture(lambda x: torch.cat([one(x) for one in maps], -1), [torch.ones(1, 7, 8)]))
    assert len(calls(graph, aten.linear.default)) == 1
    for one, weight in zip(maps, before, strict=True):
        assert torch.equal(one.weight, weight)
    x = torch.randn(1, 3, 8)
    assert torch.allclose(graph(x), torch.cat([functional.linear(x, weight) for weight in before], -1), atol=1e-6)


def test_an_rms_norm_spelt_out_is_one_operation() -> None:
    weight = nn.Parameter(torch.rand(16))

    def function(x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return weight * (x * torch.rsqrt(variance + 1e-6)).to(weight.dtype)

    for dtype in (torch.float32, torch.bfloat16):
        weight.data = weight.data.to(dtype)
        graph = simplify(capture(function, [torch.ones(1, 7, 16, dtype=dtype)]))
        run = lower(graph, PackedWeights(), False)
        assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [torch.rms_norm]
        x = torch.randn(1, 5, 16).to(dtype)
        assert torch.allclose(run(x), function(x), atol=1e-6 if dtype == torch.float32 else 0.02)


def test_what_depends_on_positions_alone_is_taken_out() -> None:
    def function(x: Tensor, length: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1]) + length
        return x * mask.sin()

    parts = hoist(simplify(capture(function, [torch.ones(1, 7), torch.tensor(3)])), [1], with_constants=True)
    assert parts.count == 1
    x = torch.randn(1, 4)
    kept = parts.apart(x, torch.tensor(5))
    assert torch.allclose(parts.rest(x, torch.tensor(0), *kept), function(x, torch.tensor(5)))
    assert not calls(parts.rest, aten.sin.default, aten.arange.default)


def test_for_one_token_and_for_the_last_row() -> None:
    torch.manual_seed(0)
    inner, head = nn.Linear(8, 8, bias=False), nn.Linear(8, 5, bias=False)
    table = nn.Embedding(30, 8)

    def function(ids: Tensor) -> Tensor:
        hidden = inner(table(ids)).view(1, ids.shape[1], 2, 4).transpose(1, 2)
        logits: Tensor = head(hidden.transpose(1, 2).reshape(1, ids.shape[1], -1))[0]
        return logits

    graph = simplify(capture(function, [torch.zeros(1, 7, dtype=torch.long)]))
    one = for_one_token(graph)
    assert not calls(one, aten.transpose.int)
    assert torch.allclose(one(torch.tensor([[3]])), function(torch.tensor([[3]])), atol=1e-6)
    ids = torch.tensor([[3, 4, 5]])
    assert torch.allclose(for_last_row(graph)(ids), function(ids)[-1:], atol=1e-6)
    assert torch.allclose(graph(ids), function(ids), atol=1e-6)


def test_some_outputs_alone_need_no_more_than_their_inputs_and_write_nowhere_else() -> None:
    def function(x: Tensor, buffer: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        markers.write(buffer, torch.arange(x.shape[2]), x)
        return buffer * 2, y + 1, y * 3

    graph = simplify(capture(function, [torch.ones(1, 2, 7, 4), torch.zeros(1, 2, 9, 4), torch.ones(1, 11)]))
    step, others = for_outputs(graph, 0, [0, 1]), for_outputs(graph, slice(1, None), [2])
    assert len(calls(step, torch.ops.specbench.write.default)) == 1
    assert not calls(others, torch.ops.specbench.write.default)
    buffer = torch.zeros(1, 2, 5, 4)
    assert step(torch.ones(1, 2, 3, 4), buffer).sum() == 2 * 2 * 3 * 4 and buffer.sum() == 2 * 3 * 4
    plus, times = others(torch.ones(1, 3))
    assert plus.tolist() == [[2.0] * 3] and times.tolist() == [[3.0] * 3]


def test_example_sizes_are_no_others() -> None:
    assert example_sizes({7, 11}, 3) == [9, 13, 15]
