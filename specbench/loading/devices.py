"""The devices of a run: one free GPU for each run, or several processes on one target."""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as distributed
from filelock import FileLock, Timeout

from specbench.config.schema import RunConfig
from specbench.errors import UserError
from specbench.files import private_folder, user_cache

SECONDS_BETWEEN_LOOKS = 0.5


@contextmanager
def locked_device(
    name: str,
    say: Callable[[str], None],
    count: Callable[[], int] = torch.cuda.device_count,
) -> Iterator[torch.device]:
    """The device called `name` ('cuda' is any free GPU), locked until the end of the block.

    It is torch's current device: streams and captures that name no device use it.
    """
    device = torch.device(name)
    if device.type != "cuda":
        yield device
        return
    wanted = range(count()) if device.index is None else [device.index]
    told = False
    while True:
        for index in wanted:
            lock = FileLock(_lock_file(index))
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            try:
                torch.cuda.set_device(index)
                yield torch.device("cuda", index)
            finally:
                lock.release()
            return
        if not told:
            say("waiting for a GPU: another run is on each of them")
            told = True
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _lock_file(index: int) -> Path:
    """One file per physical GPU: processes may see different GPUs under the same index."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    physical = visible[index].strip() if index < len(visible) and visible[index].strip() else str(index)
    # Anyone may have made the folder in the shared place first; then the locks of this user are in their cache.
    shared = Path(tempfile.gettempdir()) / f"specbench-gpus-{os.getuid()}"
    folder = private_folder(shared, user_cache() / f"gpus-{platform.node()}")
    return folder / f"{physical}.lock"


# Several processes on one target: tensor parallelism under `torchrun`.
#
# Every rank builds the same parts and decodes the same prompts with the same random numbers, since each of its target
# runs needs all ranks. Only rank 0 writes the journal and the record and prints; its decisions from files are sent to
# the others.


T = TypeVar("T")


def rank() -> int:
    """This process's rank; only rank 0 prints."""
    return int(os.environ.get("RANK", "0"))


def ranks() -> int:
    """The number of processes that share this run; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(config: RunConfig) -> None:
    """Join the other ranks, if there are any. Raises UserError if processes and config do not match."""
    parallel = config.target.tp_plan is not None
    if parallel and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "target.tp_plan=auto: needs several processes: torchrun --nproc-per-node N -m specbench run ..."
        )
    if ranks() > 1 and not parallel:
        raise UserError(f"{ranks()} processes of torchrun and no target.tp_plan: set target.tp_plan=auto")
    if ranks() > 1 and not distributed.is_initialized():
        if config.device.startswith("cuda"):
            torch.cuda.set_device(own_device(config))  # before NCCL's first broadcast, which else is on the first GPU
        distributed.init_process_group("nccl" if config.device.startswith("cuda") else "gloo")


def agree(value: T) -> T:
    """Rank 0's `value`, on every rank."""
    if ranks() == 1:
        return value
    held = [value]
    distributed.broadcast_object_list(held, src=0)
    return held[0]


def own_device(config: RunConfig) -> torch.device:
    """The device on which this process feeds a target that is spread over several devices."""
    if config.device.startswith("cuda"):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device(config.device)
