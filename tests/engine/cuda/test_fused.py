"""Fused kernels: fewer launches a step, the same logits; and the Triton kernels against torch."""

import importlib.util
import os
import subprocess
import sys
import warnings
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.bench.parts import Budget, budget
from specbench.engine.capture import kernels
from specbench.engine.capture.program import Program
from specbench.engine.capture.static import StaticModel
from specbench.engine.cuda import fused
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from tests.support.networks import network


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are fused on a CPU, too, where they are what they stand for."""
    monkeypatch.setattr(fused, "agreeing", lambda device: fused.ALL)


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
@pytest.mark.parametrize(("kind", "launches"), [("t5", 9), ("t5-v1_1", 9), ("llama", 8), ("gpt2", None)])
def test_fewer_kernels_and_the_same_logits(kind: str, launches: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 18 kernels of a layer of T5 v1.1 9 remain, if it is small, and of Llama's 23 8.

    Residuals and norms are part of the linear maps that follow, the GELU is part of the gate's product, writing keys
    and values is part of the attention, and a rotation is one kernel.
    """
    before, want = counted(kind, 3).kernels, logits(kind)
    monkeypatch.setattr(fused, "agreeing", lambda device: fused.ALL)
    two, three = counted(kind, 2), counted(kind, 3)
    assert torch.equal(logits(kind), want)
    if launches is not None:
        assert three.kernels - two.kernels == launches
    assert three.kernels < before
    if kind == "t5-v1_1":
        monkeypatch.setattr(fused, "SMALL_MAP", 0)
        assert counted(kind, 3).kernels - counted(kind, 2).kernels == 12  # a norm and its map are two


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(fused.ALL))
def test_a_kernel_that_disagrees_leaves_its_operations_to_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "agreeing", lambda device: fused.ALL - {name})
    monkeypatch.setattr(fused, name, lambda *_: pytest.fail(f"{name} was used"), raising=False)
    if name == "write_pair":
        monkeypatch.setattr(kernels, name, lambda *_: pytest.fail(f"{name} was used"))
    for kind in ("t5-v1_1", "llama"):
        want = logits(kind)
        assert torch.equal(logits(kind), want) and counted(kind, 2).kernels


def test_each_kernel_is_compared_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is wrong and one that fails are left out, the others remain."""

    def compared(name: str, device: torch.device, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        if name == "rotated":
            raise RuntimeError("no such instruction")
        return [(torch.zeros(2), torch.zeros(2) + 0.1 * (name == "gated"))]

    monkeypatch.setattr(fused, "compared", compared)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fused.agreeing.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert fused.agreeing(torch.device("cuda", 7)) == fused.ALL - {"rotated", "gated"}
        assert not fused.available(torch.device("cuda", 7))
    (said,) = [str(one.message) for one in told]  # once, and nothing of a kernel that does not run
    assert said.startswith("the fused kernel gated disagrees with torch on cuda:7")
    fused.agreeing.cache_clear()


def test_a_sum_that_an_earlier_operation_reads_is_left_alone(everywhere: None) -> None:
    from specbench.engine.capture.lower import PackedWeights, lower
    from specbench.engine.capture.nodes import capture
    from specbench.engine.capture.rewrite import simplify

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
from specbench.engine.cuda import fused
from specbench.engine.capture import kernels
from specbench.engine.cuda import triton as triton_kernels
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
    for name in sorted(fused.ALL):
        # On a CPU the functions are torch's operations: here they are the kernels.
        plain = {one: getattr(fused, one) for one in fused.ALL - {"write_pair"}}, kernels.write_pair
        for one in plain[0]:
            setattr(fused, one, getattr(triton_kernels, one))
        kernels.write_pair = triton_kernels.write_pair
        with torch.inference_mode():
            pairs = fused.compared(name, torch.device("cpu"), dtype)
        assert pairs and all(torch.allclose(*pair, rtol=close, atol=close) for pair in pairs), (name, dtype)
        for one, function in plain[0].items():
            setattr(fused, one, function)
        kernels.write_pair = plain[1]
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
    assert fused.available(torch.device("cuda", 0))
