"""Apple's GPU, without one: no fp64 reaches it, and `device=auto` says why it takes the CPU."""

import re
from pathlib import Path

import pytest
import torch

import specbench
from specbench.experiment.run_parts import NO_MPS, _device
from specbench.sampling import widest

PACKAGE = Path(specbench.__file__).parent


def test_sums_on_apples_gpu_run_in_fp32() -> None:
    assert widest(torch.device("mps")) == torch.float32
    assert widest(torch.device("cpu")) == widest(torch.device("cuda:0")) == torch.float64


def test_fp64_is_made_of_tensors_on_the_cpu_alone() -> None:
    """On that GPU both raise TypeError. NumPy's numbers are not there, nor are those of `engine.cuda`."""
    allowed = re.compile(r"np\.float64|NDArray|\.cpu\(\)\.double\(\)|mps")
    own = {"engine/capture/program.py": 1, "conformance.py": 1}  # a table, the CPU
    own |= {"engine/operations/triton_products.py": 1, "engine/operations/usable_fused.py": 3}  # of CUDA's kernels
    found: dict[str, int] = {}
    for file in sorted({*PACKAGE.rglob("*.py")} - {*(PACKAGE / "engine" / "cuda").rglob("*.py")}):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not allowed.search(line)]
        if count := sum(bool(re.search(r"torch\.float64|torch\.double|\.double\(\)", line)) for line in lines):
            found[str(file.relative_to(PACKAGE))] = count
    assert found == own


def test_device_auto_says_why_it_takes_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert _device("auto", said.append) == torch.device("cpu") and said == [NO_MPS]
    assert _device("mps", said.append) == torch.device("mps") and said == [NO_MPS]
