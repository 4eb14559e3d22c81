"""When something happened, on the clock of the device that does it.

`now` waits until the device has done all its work. Within a pass nobody needs to know yet, so there a mark is put into
the device's work, and read when the text is over: waiting would keep the host from preparing what comes next.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


class CudaMark:
    """The moment at which a GPU has done all that was asked of it before, less `earlier_s` seconds."""

    def __init__(self, event: Any, earlier_s: float = 0.0) -> None:
        self._event, self._earlier_s = event, earlier_s

    @staticmethod
    def on(device: torch.device) -> "CudaMark":
        """The present moment, without waiting for it."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return CudaMark(event)

    def __sub__(self, other: Any) -> Any:
        """This moment so many seconds earlier; or the seconds since another mark, waiting for both."""
        if not isinstance(other, CudaMark):
            return CudaMark(self._event, self._earlier_s + other)
        if not self._event.query():
            self._event.synchronize()
        return other._event.elapsed_time(self._event) / 1000 - (self._earlier_s - other._earlier_s)


Now = Callable[[], float]
Marking = Callable[[], Any]  # of two marks the difference is seconds; less a number a mark is so much earlier


def clock_of(network: Any) -> tuple[Now, Marking | None]:
    """What gives the seconds after all work of `network`, and on one GPU what marks a moment without waiting."""
    device = network.device
    if device.type == "cuda":
        devices = _gpus(network) or {device}
        return partial(_after_gpus, devices), partial(CudaMark.on, device) if len(devices) == 1 else None
    return (_after_mps if device.type == "mps" else time.perf_counter), None


def marking(model: Any) -> Marking:
    """What marks moments for `model`: its clock, where that waits for nothing or nothing else can."""
    found: Marking = getattr(model, "mark", None) or model.now
    return found


def _gpus(network: Any) -> set[torch.device]:
    """The GPUs that a loader has put parts of `network` on."""
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
