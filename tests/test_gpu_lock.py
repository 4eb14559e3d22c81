"""One run, one GPU: on a machine without any, the same code with a made-up count."""

import threading
from pathlib import Path

import pytest
import torch

from specbench.loading import devices as gpu_lock
from specbench.loading.devices import locked_device


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(gpu_lock, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", PRESENT.append)


PRESENT: list[int] = []  # what torch was told to use


def two() -> int:
    return 2


def test_a_cpu_is_not_claimed() -> None:
    with locked_device("cpu", print) as first, locked_device("cpu", print) as second:
        assert first == second == torch.device("cpu")


def test_runs_side_by_side_take_a_gpu_each() -> None:
    with locked_device("cuda", print, two) as first, locked_device("cuda", print, two) as second:
        assert {first.index, second.index} == {0, 1}
    with locked_device("cuda:1", print, two) as named, locked_device("cuda", print, two) as other:
        assert (named.index, other.index) == (1, 0)


def test_a_run_waits_for_a_free_gpu_and_says_so_once() -> None:
    said: list[str] = []
    taken = []

    def third() -> None:
        with locked_device("cuda", said.append, two) as device:
            taken.append(device.index)

    thread = threading.Thread(target=third)
    with locked_device("cuda", print, two):
        with locked_device("cuda", print, two):
            thread.start()
            thread.join(0.2)
            assert not taken
        thread.join(5)
    assert taken == [1]
    assert len(said) == 1 and "waiting for a GPU" in said[0]


def test_the_physical_gpu_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with locked_device("cuda", print, two):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
        with locked_device("cuda", print, two) as device:
            assert device.index == 0  # shown first, but it is the other one


def test_torch_uses_the_gpu_that_was_taken() -> None:
    """A stream or a capture that names no device is on torch's present one."""
    with locked_device("cuda:1", print, two):
        assert PRESENT[-1] == 1
    with locked_device("cuda", print, two):
        assert PRESENT[-1] == 0
