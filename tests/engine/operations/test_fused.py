"""Fused kernels: fewer launches a step, the same logits; and the Triton kernels against torch."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specbench.bench.parts import Budget, budget
from specbench.engine.capture import fusing
from specbench.engine.capture.lower import PackedWeights, lower
from specbench.engine.capture.nodes import capture
from specbench.engine.capture.program import Program
from specbench.engine.capture.rewrite import simplify
from specbench.engine.capture.static import StaticModel
from specbench.engine.operations import fused, kernels, usable_fused
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from tests.support.networks import network


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are fused on a CPU, too, where they are what they stand for."""
    monkeypatch.setattr(usable_fused, "agreeing", lambda device: usable_fused.ALL)


@lru_cache
def made(kind: str, layers: int) -> Any:
    return network(kind, seed=3, layers=layers)


def counted(kind: str, layers: int) -> Budget:
    found = budget([Program.of(made(kind, layers), torch.float32).one.run])
    assert found is not None
    return found


def logits(kind: str) -> Tensor:
    model = with_engine("static", made(kind, 2), 40, frozenset({1}))
    assert isinstance(model, StaticModel)
    session = model.start(Prompt((5, 9, 1), (0,)) if model.is_encoder_decoder else Prompt((), (5, 9)))
    return torch.cat([session.extend([3, 4, 5, 6]), session.extend([7])])


@pytest.mark.full
@pytest.mark.parametrize(("kind", "launches"), [("t5", 8), ("t5-v1_1", 9), ("llama", 8), ("gpt2", None)])
def test_fewer_kernels_and_the_same_logits(kind: str, launches: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 18 kernels of a layer of T5 v1.1 9 remain, if it is small, and of Llama's 23 8.

    Residuals and norms are part of the linear maps that follow, the GELU is part of the gate's product, writing keys
    and values is part of the attention, and a rotation is one kernel.
    """
    before, want = counted(kind, 3).kernels, logits(kind)
    monkeypatch.setattr(usable_fused, "agreeing", lambda device: usable_fused.ALL)
    two, three = counted(kind, 2), counted(kind, 3)
    assert torch.equal(logits(kind), want)
    if launches is not None:
        assert three.kernels - two.kernels == launches
    assert three.kernels < before
    if kind == "t5-v1_1":
        monkeypatch.setattr(fusing, "SMALL_MAP", 0)
        assert counted(kind, 3).kernels - counted(kind, 2).kernels == 12  # a norm and its map are two


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(usable_fused.ALL))
def test_a_kernel_that_disagrees_leaves_its_operations_to_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable_fused, "agreeing", lambda device: usable_fused.ALL - {name})
    monkeypatch.setattr(fused, name, lambda *_: pytest.fail(f"{name} was used"), raising=False)
    if name == "write_pair":
        monkeypatch.setattr(kernels, name, lambda *_: pytest.fail(f"{name} was used"))
    for kind in ("t5-v1_1", "llama"):
        want = logits(kind)
        assert torch.equal(logits(kind), want) and counted(kind, 2).kernels


def test_each_kernel_is_compared_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is wrong and one that fails are left out and named in one warning, the others remain."""

    def compared(name: str, device: torch.device, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        if name == "rotated":
            raise RuntimeError("no such instruction\n\nand how to debug it")
        return [(torch.zeros(2), torch.zeros(2) + 0.1 * (name == "gated"))]

    device, others = torch.device("cuda", 7), usable_fused.ALL - {"rotated", "gated"}
    monkeypatch.setattr(usable_fused, "compared", compared)
    monkeypatch.setattr(usable_fused, "_same_for_any_rows", lambda device: True)
    monkeypatch.setattr(usable_fused, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _forget()
    with pytest.warns(UserWarning, match="left to torch") as warned:
        assert usable_fused.agreeing(device) == usable_fused.agreeing(device) == others
    named = "gated (differs by 0.1 in bfloat16), rotated (no such instruction)"
    assert [str(one.message) for one in warned] == [f"kernels left to torch's operations on cuda:7: {named}"]
    assert not usable_fused.available(device)
    assert usable_fused.in_words(device, frozenset({"write_pair", "add_norm"})) == (
        f"add_norm, write_pair; left to torch: {named}"
    )
    monkeypatch.setattr(usable_fused, "_same_for_any_rows", lambda device: False)
    _forget()
    assert "linear_rows (rows depend on how many are computed together)" in usable_fused.in_words(device, others)
    _forget()


def test_without_triton_or_a_gpu_no_kernel_is_used_and_no_one_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget()
    assert usable_fused.agreeing(torch.device("cpu")) == frozenset()
    assert usable_fused.in_words(torch.device("cpu"), frozenset()) == "none (no CUDA device)"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(usable_fused, "has_triton", lambda: False)
    assert usable_fused.agreeing(torch.device("cuda", 7)) == frozenset()
    assert usable_fused.in_words(torch.device("cuda", 7), frozenset()) == "none (Triton is missing)"
    _forget()


def _forget() -> None:
    usable_fused.agreeing.cache_clear()
    usable_fused.differences.cache_clear()


def test_many_tokens_of_a_gpu_have_their_norm_in_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens than `norm_linear` takes at once, on a GPU: `add_norm`, and torch's linear map."""
    calls = list[int]()
    own = fused.torch_add_norm

    def counted(x: Tensor, *given: Any) -> Any:
        calls.append(x.shape[1])
        return own(x, *given)

    monkeypatch.setattr(fused, "add_norm", counted)
    x, weight = torch.randn(1, fused.MOST_TOKENS + 1, 8), torch.randn(4, 8)
    with fake_gpu():
        fused.norm_linear(x, x, torch.ones(8), 1e-6, weight, None)
    assert calls == [fused.MOST_TOKENS + 1]


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Tensors that say they are on a GPU."""
    with patch.object(Tensor, "is_cuda", True):
        yield


EPILOGUES: list[tuple[Any, list[str]]] = [
    (lambda x, y, made: functional.gelu(made), ["linear_rows"]),
    (lambda x, y, made: made + y, ["linear_rows"]),
    (lambda x, y, made: y + functional.silu(made), ["linear_rows"]),
    (lambda x, y, made: made + y[:, :1], []),  # of another shape
    (lambda x, y, made: made * functional.relu(made), ["gated"]),  # read twice
    (lambda x, y, made: functional.tanh(made), []),  # no activation that the kernel has
]


@pytest.mark.parametrize(("after", "names"), EPILOGUES)
@pytest.mark.parametrize("bias", [True, False])
def test_an_epilogue_is_part_of_its_linear_map(after: Any, names: list[str], bias: bool, everywhere: None) -> None:
    weight, shift = torch.nn.Parameter(torch.rand(12, 8)), torch.nn.Parameter(torch.rand(12)) if bias else None

    def function(x: Tensor, y: Tensor) -> Tensor:
        made: Tensor = after(x, y, functional.linear(x, weight, shift))
        return made

    run = lower(simplify(capture(function, [torch.ones(1, 7, 8), torch.ones(1, 7, 12)])), PackedWeights(), False)
    assert sorted(fusing.used([run])) == names
    for count in (1, 5):
        x, y = torch.randn(1, count, 8), torch.randn(1, count, 12)
        assert torch.allclose(run(x, y), function(x, y), atol=1e-6)


def _mapped_by(weight: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, weight)


def test_a_map_of_long_rows_to_few_outputs_is_cut_into_parts(everywhere: None) -> None:
    """Where nothing follows it, too; one with more outputs than channels is torch's."""
    for outputs, channels, names in ((4, 16, {"linear_rows"}), (16, 4, set())):
        weight = torch.nn.Parameter(torch.rand(outputs, channels))

        graph = capture(partial(_mapped_by, weight), [torch.ones(1, 7, channels)])
        assert fusing.used([lower(simplify(graph), PackedWeights(), False)]) == names


def test_a_sum_that_an_earlier_operation_reads_is_left_alone(everywhere: None) -> None:
    weight = torch.nn.Parameter(torch.rand(16))

    def function(x: Tensor, y: Tensor) -> Tensor:
        both = x + y
        early = torch.relu(both) * y
        return early + torch.rms_norm(both, (16,), weight, 1e-6) + (x + y[:, :1])

    inputs = [torch.ones(1, 7, 16), torch.ones(1, 7, 16)]
    run = lower(simplify(capture(function, inputs)), PackedWeights(), False)
    x, y = torch.randn(1, 5, 16), torch.randn(1, 5, 16)
    assert torch.allclose(run(x, y), function(x, y), atol=1e-6)


INTERPRETED = """
import torch
from specbench.engine.operations import usable_fused, fused
from specbench.engine.capture import fusing
from specbench.engine.operations import kernels
from specbench.engine.operations import triton as triton_kernels, triton_products
for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 0.03)):
    for width in (96, 512, 1100):
        torch.manual_seed(0)
        x, y, weight = (torch.randn(*shape, width).to(dtype) for shape in ((1, 3), (1, 3), ()))
        whole, normed = triton_kernels.add_norm(x, y, weight, 1e-6)
        assert torch.allclose(whole, x + y, rtol=close, atol=close)
        assert torch.allclose(normed, torch.rms_norm(x + y, (width,), weight, 1e-6), rtol=close, atol=close)
        left, right = torch.randn(1, 3, 2 * width).to(dtype).split([width, width], -1)
        for name, activation in fused.ACTIVATIONS.items():
            ours = triton_kernels.gated(name, left, right)
            assert torch.allclose(ours, activation(left) * right, rtol=close, atol=close), name
        matrix, bias = torch.randn(70, width).to(dtype) / 10, torch.randn(70).to(dtype)
        for given in (bias, None):
            x, y = x[:, :1], y[:, :1]
            whole, mapped = triton_kernels.norm_linear(x, y, weight, 1e-6, matrix, given)
            normed = torch.rms_norm(x + y, (width,), weight, 1e-6)
            assert torch.allclose(whole, x + y, rtol=close, atol=close)
            wanted = torch.nn.functional.linear(normed, matrix, given)
            assert torch.allclose(mapped, wanted, rtol=close, atol=close * width**0.5)
    for name in sorted(usable_fused.ALL):
        # On a CPU the functions are torch's operations: here they are the kernels.
        plain = {one: getattr(fused, one) for one in usable_fused.ALL - {"write_pair"}}, kernels.write_pair
        for one in plain[0]:
            setattr(fused, one, getattr(triton_products, one, None) or getattr(triton_kernels, one))
        kernels.write_pair = triton_kernels.write_pair
        with torch.inference_mode():
            pairs = usable_fused.compared(name, torch.device("cpu"), dtype)
            assert name != "linear_rows" or usable_fused._same_for_any_rows(torch.device("cpu"))
        assert pairs and all(torch.allclose(*pair, rtol=close, atol=close) for pair in pairs), (name, dtype)
        for one, function in plain[0].items():
            setattr(fused, one, function)
        kernels.write_pair = plain[1]
# Hidden slots after those that are seen change no bit: larger buffers have more of them.
query, (key, value) = torch.randn(3, 4, 1, 16), torch.randn(2, 3, 2, 200, 16)
bias = torch.where(torch.arange(200) < 50, torch.randn(3, 4, 1, 200), torch.finfo(torch.float32).min)
few, many = (
    triton_kernels.attend_one(query, key[:, :, :slots], value[:, :, :slots], bias[..., :slots], 0.3)
    for slots in (64, 200)
)
assert torch.equal(few, many)
assert torch.allclose(few, kernels.attend(query, key, value, bias, 0.3), atol=1e-5)
# Weights that lie in memory column by column, as GPT-2's do.
x, weight = torch.randn(1, 2, 600), torch.randn(600, 40).t() / 25
assert torch.allclose(triton_products.linear_rows(x, weight, None, None, None), x @ weight.t(), atol=1e-5)
# A row that is not finite, and one that allows one token alone.
head, one = torch.randn(300, 16), torch.full((300,), -torch.inf)
one[170] = 0.0
uniform = torch.tensor([0.5], dtype=torch.float64)
for bias, row, token in ((None, torch.full((1, 1, 16), torch.nan), -1), (one, torch.randn(1, 1, 16), 170)):
    assert triton_products.head_argmax(row, head, bias, 300).tolist() == [token]
    assert triton_products.head_drawn(row, head, bias, 300, 1.0, uniform)[0].tolist() == [token]
print("agree")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which torch for CUDA brings")
def test_the_triton_kernels_agree_with_torch_in_its_interpreter() -> None:
    surroundings = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=surroundings, capture_output=True, text=True)
    assert done.stdout.strip() == "agree", done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernels_are_used_on_a_gpu() -> None:
    assert usable_fused.available(torch.device("cuda", 0))
