"""`specbench list engine`: which engines run on this machine, which one `auto` takes, on which device and threads."""

import platform
import shutil
import sys
from dataclasses import dataclass

import torch

from specbench import kernels
from specbench.engine.selection import AUTO, KINDS
from specbench.experiment.threads import default_threads
from specbench.kernels import NotCompiled


@dataclass(frozen=True)
class Fact:
    """A device, an engine or a number of threads: whether it runs here, and why, or why not."""

    what: str
    name: str
    runs: bool
    why: str

    @property
    def line(self) -> str:
        return f"{self.what:<8}{self.name:<12}{'yes' if self.runs else 'no':<5}{self.why}"


def engines_here() -> list[Fact]:
    """The devices and engines of this machine, and the choices of `device=auto` and `engine=auto`."""
    found = kernels.found()
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    device = "cuda" if has_cuda else "cpu"
    usable = {"eager": True, "static": device == "cpu", "native": not isinstance(found, NotCompiled)}
    usable |= {"cudagraph": has_cuda, "compile": any(map(shutil.which, ("c++", "g++", "clang++")))}
    first, threads = next((name for name in AUTO[device] if usable[name]), "eager"), default_threads()
    return [
        Fact("system", sys.platform, True, f"{platform.machine()}, torch {torch.__version__}"),
        Fact("device", "cuda", has_cuda, _gpu() if has_cuda else "torch finds no GPU of NVIDIA or AMD"),
        Fact("device", "mps", has_mps, "device=mps, by engine=eager" if has_mps else "torch finds no GPU of Apple"),
        Fact("device", "cpu", True, "device=auto takes it" if device == "cpu" else "device=cpu"),
        *(Fact("engine", name, usable[name], _why(name, name == first, found, has_cuda)) for name in (*KINDS, "eager")),
        Fact("threads", str(threads.number), True, threads.why),
    ]


def _gpu() -> str:
    kind = "ROCm" if torch.version.hip else "CUDA"
    return f"{torch.cuda.get_device_name(0)} ({kind}): device=auto takes it"


def _why(name: str, is_first: bool, found: object, has_cuda: bool) -> str:
    said = {
        "native": str(found) if isinstance(found, NotCompiled) else "on the CPU: kernels compiled and checked here",
        "static": "on the CPU: torch's kernels",
        "cudagraph": "on the GPU" if has_cuda else "it needs a CUDA device",
        "compile": "torch.compile: needs a C++ compiler",
        "eager": "on every device: the model as transformers runs it",
    }[name]
    return f"{said}; engine=auto takes it" if is_first else said
