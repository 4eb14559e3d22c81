"""Whether an error is a lack of memory, for which torch has a type on some devices only."""

import torch

# Torch's words if it has no type for the error.
SAID = ("DefaultCPUAllocator: ", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory, of the host or of a device, did not suffice."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(said in str(error) for said in SAID)
