"""Several processes on one target: tensor parallelism under `torchrun`.

Every rank builds the same parts and decodes the same prompts with the same random numbers, since each of its target
runs needs all ranks. Only rank 0 writes the journal and the record and prints; its decisions from files are sent to the
others.
"""

import os
from typing import TypeVar

import torch
import torch.distributed as distributed

from specbench.config.schema import RunConfig
from specbench.errors import UserError

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
            torch.cuda.set_device(own_device(config))  # before NCCL's first broadcast: its default is the first GPU
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
