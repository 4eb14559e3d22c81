"""Time stamps of a device: `now` synchronises with it, and a mark does not.

Within a pass to synchronise would keep the host from queueing further work, so a mark (an event in the device's stream)
is recorded instead, and its time is read when the completion ends.
"""

import time
from functools import partial
from typing import Any

import torch

from specbench.engine.session import Marking, Model, Now


class CudaMark:
    """The time at which a GPU finished all work queued before, minus `earlier_s` seconds."""

    def __init__(self, event: Any, earlier_s: float = 0.0) -> None:
        self._event, self._earlier_s = event, earlier_s

    @staticmethod
    def record(device: torch.device) -> "CudaMark":
        """A mark of the current time, without synchronising."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return CudaMark(event)

    def __sub__(self, other: Any) -> Any:
        """This time minus a number of seconds; or the seconds since another mark, after waiting for both."""
        if not isinstance(other, CudaMark):
            return CudaMark(self._event, self._earlier_s + other)
        if not self._event.query():
            self._event.synchronize()
        return other._event.elapsed_time(self._event) / 1000 - (self._earlier_s - other._earlier_s)


def clock_of(network: Any) -> tuple[Now, Marking | None]:
    """A function that returns the time after synchronising, and on a single GPU a function that records a mark."""
    device = network.device
    if device.type == "cuda":
        devices = _gpus(network) or {device}
        return partial(_after_gpus, devices), partial(CudaMark.record, device) if len(devices) == 1 else None
    return (_after_mps if device.type == "mps" else time.perf_counter), None


def marking(model: Model) -> Marking:
    """The function that records marks for `model`; its clock if it has none."""
    return model.mark or model.now


def _gpus(network: Any) -> set[torch.device]:
    """The GPUs that hold parts of `network`."""
    places = (getattr(network, "hf_device_map", None) or {}).values()
    numbers = {str(place).removeprefix("cuda:") for place in places}
    return {torch.device("cuda", int(number)) for number in numbers if number.isdigit()}


def _after_gpus(devices: set[torch.device]) -> float:
    for device in devices:
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _after_mps() -> float:
    torch.mps.synchronize()
    return time.perf_counter()
