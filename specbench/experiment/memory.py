"""The memory that a batch needs, checked before it is reserved."""

from collections.abc import Sequence
from pathlib import Path

import torch

from specbench.algorithm.draft import models_of
from specbench.engine.batch import bytes_of_row
from specbench.engine.session import Model, Prompt
from specbench.errors import UserError
from specbench.experiment.build import Parts

MEMINFO = Path("/proc/meminfo")
SPARE = 0.9  # of what is free: weights are loaded, but kernels need room of their own


def require_memory(parts: Parts) -> None:
    """Check that the rows of `batch` fit into the free memory.

    Raises:
        UserError: they do not; the message names the largest batch that does.
    """
    free = free_bytes(parts.device)
    if free is None:
        return
    config = parts.config
    row = row_bytes([parts.target, *models_of(parts.draft)], parts.prompts, config.max_new_tokens)
    most = int(SPARE * free / row)
    if config.batch > most:
        raise UserError(
            f"batch={config.batch}: needs {config.batch * row / 1e9:.1f} GB for its caches and logits, and "
            f"{free / 1e9:.1f} GB are free; the largest that fits is batch={max(1, most)}"
        )


def row_bytes(models: Sequence[Model], prompts: Sequence[Prompt], max_new_tokens: int) -> float:
    """The most that a row takes of these models' memory, when the longest of `prompts` is in it."""
    source = max(len(prompt.source) for prompt in prompts)
    tokens = max(len(prompt.prefix) for prompt in prompts) + max_new_tokens
    return sum(bytes_of_row(model, tokens, source) for model in models)


def free_bytes(device: torch.device) -> float | None:
    """The free bytes of `device`; None where the system does not tell."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu" or not MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return 1024.0 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else None
