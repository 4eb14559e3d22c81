"""One run, one GPU: on a machine without any, the same code with a made-up count."""

import os
import threading
from pathlib import Path

import pytest
import torch

from specbench.loading import model_loader as gpu_lock
from specbench.loading.model_loader import locked_device


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


@pytest.mark.parametrize("planted", ["a link", "of another user", "a file"])
def test_a_folder_of_locks_that_another_made_is_not_used(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared place anyone can make the folder, or a link of its name to a folder of this user, first."""
    cache, uid = tmp_path / "cache", os.getuid()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    folder = tmp_path / f"specbench-gpus-{uid}"
    (mine := tmp_path / "mine").mkdir()
    if planted == "a link":
        folder.symlink_to(mine)
    elif planted == "a file":
        folder.touch()
    else:
        folder.mkdir()
    look = os.lstat

    def of_another(path: Path) -> os.stat_result:
        found = look(path)
        theirs = Path(path) == folder
        return os.stat_result([*found[:4], uid + 1, *found[5:]]) if theirs else found

    monkeypatch.setattr(os, "lstat", of_another)
    with locked_device("cuda", print, two) as first, locked_device("cuda", print, two) as second:
        assert {first.index, second.index} == {0, 1}
    assert len(list(cache.rglob("*.lock"))) == 2
    assert [one for place in (mine, folder) if place.is_dir() for one in place.iterdir()] == []


def test_locks_that_others_could_remove_are_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / f"specbench-gpus-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with locked_device("cuda", print, two):
        assert folder.stat().st_mode & 0o777 == 0o755 and list(folder.iterdir())
