"""The origin of a record: versions, commit, hardware."""

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NotRequired, TypedDict

from specbench.errors import UserError

LAID_OUT = "COMMIT"  # the file of a tree that is no checkout
CHANGES = "+changes"  # after a commit from which tracked files differ
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "hydra-core", "numpy", "sacrebleu", "rouge_score")


class Environment(TypedDict):
    """Where a record was made."""

    specbench: str
    commit: str | None
    python: str
    versions: dict[str, str | None]
    platform: NotRequired[str]
    cpu: str
    cores: int | None
    threads: int
    memory_bytes: int
    gpus: list[str]
    cuda: str | None


def environment() -> Environment:
    """Versions, the commit of this code (None outside a checkout), and the hardware that torch computes on."""
    import torch

    from specbench import __version__

    return {
        "specbench": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
    }


def code() -> str:
    """The commit of this code, or its version outside a checkout."""
    from specbench import __version__

    return commit() or __version__


def commit_of(codes: Iterable[str]) -> str | None:
    """The commit of a record that `codes` made, with '+changes' if one is not this code's; None outside a checkout."""
    own = commit()
    return own if own is None or {*codes} <= {own} else own.removesuffix(CHANGES) + CHANGES


def time_stamp() -> str:
    """The time now, as records have it: UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def require_cpus(threads: int | None) -> None:
    """Check that each of `threads` has a CPU. Raises UserError if not: threads that wait slow down the others."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is not None and threads > cpus:
        raise UserError(f"threads={threads}: must be at most {cpus}, the CPUs that this process may use")


def hardware(surroundings: Environment, device: str) -> str:
    """The GPU, or the CPU and its number of threads, in a few words."""
    if device.startswith("cuda") and surroundings["gpus"]:
        return surroundings["gpus"][int(device.partition(":")[2] or 0)]
    return f"{surroundings['cpu']}, {surroundings['threads']} threads"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """The commit, with '+changes' if tracked files differ from it; no run reads a page, so pages do not count.

    Of a tree that `tools/gpu_tree.py` has laid out, and which is no checkout, its file says it.
    """
    here = Path(__file__).resolve().parent
    if not (here.parent / ".git").exists():
        laid_out = here.parent / LAID_OUT
        return laid_out.read_text(encoding="utf-8").strip() if laid_out.is_file() else None
    git = ["git", "-C", str(here.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        compare = [*git, "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)*.md"]
        changed = subprocess.run(compare, capture_output=True, timeout=10).returncode
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + (CHANGES if changed else "")


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
