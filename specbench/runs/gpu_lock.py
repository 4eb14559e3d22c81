"""One GPU per run: concurrent runs each lock a free device, and wait if there is none.

Two runs on one GPU would disturb each other's timing. The lock is a file lock, so that it works between processes of
any launcher and ends with its process.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

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
    folder = Path(tempfile.gettempdir()) / f"specbench-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder / f"{physical}.lock"
