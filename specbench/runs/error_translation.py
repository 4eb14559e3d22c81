"""Translate errors during decoding into errors that name the key."""

import contextlib
from collections.abc import Iterator

import torch

from specbench.config import RunConfig
from specbench.errors import MachineError

# What torch says of a lack of memory where it has no type for it.
NO_MEMORY = ("DefaultCPUAllocator: ", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@contextlib.contextmanager
def translated_errors(config: RunConfig) -> Iterator[None]:
    """A context that raises MachineError for known errors of the block."""
    try:
        yield
    except FloatingPointError as error:
        raise MachineError(
            f"dtype={config.dtype}: {error}; use dtype=float32, and check that the weights are not damaged"
        ) from error
    except Exception as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not any(t in str(error) for t in NO_MEMORY):
            raise
        raise MachineError(
            f"device={config.device}: out of memory; lower gamma, max_new_tokens or task.max_source_tokens, "
            "or use dtype=bfloat16"
        ) from error
