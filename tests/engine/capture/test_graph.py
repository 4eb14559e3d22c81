"""Simplifying captured graphs: the same results from fewer operations, and nothing shared that changes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import NewGELUActivation

from specbench.bench.parts import Budget, budget
from specbench.engine.capture.hoist import hoist
from specbench.engine.capture.lower import PackedWeights, lower
from specbench.engine.capture.marking import write
from specbench.engine.capture.nodes import aten, calls, capture, copied, example_sizes
from specbench.engine.capture.program import Program
from specbench.engine.capture.rewrite import for_caches, for_last_row, for_one_token, for_outputs, simplify
from tests.support.networks import network


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


def test_a_gelu_spelt_out_is_one_operation() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        graph = simplify(capture(lambda x: NewGELUActivation()(x), [torch.ones(1, 7, 16, dtype=dtype)]))
        run = lower(graph, PackedWeights(), False)
        (node,) = (node for node in graph.graph.nodes if node.op == "call_function")
        assert node.target == torch.ops.aten.gelu.default and node.kwargs == {"approximate": "tanh"}
        x = torch.randn(1, 5, 16).to(dtype)
        assert torch.allclose(run(x), NewGELUActivation()(x), atol=1e-6 if dtype == torch.float32 else 0.02)


def test_another_function_of_a_tanh_remains_as_it_is() -> None:
    def function(x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.05 * torch.pow(x, 3.0))))

    run = lower(simplify(capture(function, [torch.ones(1, 7, 16)])), PackedWeights(), False)
    x = torch.randn(1, 5, 16)
    assert torch.allclose(run(x), function(x), atol=1e-6)


@pytest.mark.full
def test_the_kernels_of_a_step_are_counted_with_the_weights_it_reads() -> None:
    """A layer of T5 v1.1 has 18 kernels: 6 linear maps (queries, keys and values in one, both of the gate in one), 3
    norms, 3 residuals, 2 attentions, 2 writes into the cache, a GELU and the gate's product."""

    def counted(layers: int) -> Budget:
        program = Program.of(network("t5-v1_1", seed=0, layers=layers), torch.float32)
        found = budget([program.one.run])
        assert found is not None
        return found

    two, three = counted(2), counted(3)
    assert three.kernels - two.kernels == 18
    made = [network("t5-v1_1", seed=0, layers=layers) for layers in (2, 3)]
    decoders = [sum(weight.nbytes for weight in one.decoder.block.parameters()) for one in made]
    attention = made[0].decoder.block[0].layer[1].EncDecAttention
    once = attention.k.weight.nbytes + attention.v.weight.nbytes  # keys and values of the source
    assert three.weight_bytes - two.weight_bytes == decoders[1] - decoders[0] - once
    assert two.seconds(1e9, 1e-6, 500.0) == (two.weight_bytes + 500) / 1e9 + two.kernels * 1e-6
    assert budget([len]) is None


def test_what_depends_on_positions_alone_is_taken_out() -> None:
    def function(x: Tensor, length: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1]) + length
        return x * mask.sin()

    parts = hoist(simplify(capture(function, [torch.ones(1, 7), torch.tensor(3)])), [1], with_constants=True)
    assert parts.count == 1
    x = torch.randn(1, 4)
    kept = parts.hoisted(x, torch.tensor(5))
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


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_a_prompt_is_read_without_what_follows_the_last_values(kind: str) -> None:
    """For which it needs no attention, no feed-forward layer and no head of the last layer."""
    programs: dict[str, Any] = {}

    def kept(module: Any, _packed: Any, one_token: bool) -> Any:
        programs["one" if one_token else "more"] = module
        return lower(copied(module), PackedWeights(), one_token)

    def of_prompt(module: Any, _packed: Any, one_token: bool) -> Any:
        programs.setdefault("prompt", module)  # before that of a source
        return lower(copied(module), PackedWeights(), one_token)

    model = network(kind, seed=1, layers=2)
    Program.of(model, torch.float32, kept, of_prompt=of_prompt)
    whole, prompt = programs["more"], programs["prompt"]
    attends = torch.ops.specbench.attend.default
    one_layer = len(calls(whole, attends)) // 2
    assert one_layer >= 1 and len(calls(prompt, attends)) == one_layer
    writes = torch.ops.specbench.write.default
    assert len(calls(prompt, writes)) == len(calls(whole, writes)) == 4
    maps = aten.linear.default
    assert len(calls(prompt, maps)) < len(calls(whole, maps)) - 2  # of attention, after it, and the head


def test_logits_are_computed_for_the_last_token_if_no_values_have_rows_of_their_own() -> None:
    head = nn.Linear(8, 5, bias=False)

    def function(ids: Tensor, buffer: Tensor) -> Tensor:
        states = torch.stack([ids * 1.0, ids * 2.0], 1).unsqueeze(-1)
        write(buffer, torch.arange(ids.shape[1]), states)
        logits: Tensor = head(states[:, :1, :, 0].transpose(1, 2).expand(1, ids.shape[1], 8))
        return logits

    ids, buffer = torch.tensor([[3, 4, 5]]), torch.zeros(1, 2, 9, 1)
    graph = simplify(capture(function, [torch.zeros(1, 7, dtype=torch.long), torch.zeros(1, 2, 11, 1)]))
    assert torch.allclose(for_caches(graph)(ids, buffer), function(ids, buffer.clone())[:, -1:], atol=1e-6)
    assert buffer[0, 1, :4, 0].tolist() == [6, 8, 10, 0]


def test_some_outputs_alone_need_no_more_than_their_inputs_and_write_nowhere_else() -> None:
    def function(x: Tensor, buffer: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        write(buffer, torch.arange(x.shape[2]), x)
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
