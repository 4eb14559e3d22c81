"""The threads of a run whose config names none: hyperthreads, affinity and a container's quota."""

import os
from pathlib import Path

import pytest
import torch

from specbench.experiment import threads
from specbench.experiment.threads import Threads, cpu_quota, processors, usable_threads, use_default_threads


def plant(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")


def cores(root: Path, pairs: int) -> None:
    """`pairs` cores of two hyperthreads, numbered as Linux does."""
    for number in range(2 * pairs):
        place = f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        plant(root, {place: f"{number % pairs},{number % pairs + pairs}"})


def test_hyperthreads_are_one_core_each(tmp_path: Path) -> None:
    cores(tmp_path, 8)
    assert usable_threads(tmp_path, set(range(16))) == Threads(8, "physical cores")
    assert usable_threads(tmp_path, {0, 8, 1}) == Threads(2, "physical cores")
    assert usable_threads(tmp_path, {0, 1, 2}) == Threads(3, "processors that this process may use")


def test_threads_are_bound_to_processors_that_the_process_may_use_one_of_a_core_first(tmp_path: Path) -> None:
    cores(tmp_path, 4)
    assert processors(4, tmp_path, set(range(8))) == [0, 1, 2, 3]
    assert processors(2, tmp_path, {2, 6, 7}) == [2, 7]
    assert processors(3, tmp_path, {2, 6, 7}) == [2, 6, 7]
    assert processors(9, tmp_path, {3, 5}) == [3, 5]


def test_a_machine_that_tells_nothing_has_a_core_for_each_processor(tmp_path: Path) -> None:
    assert usable_threads(tmp_path, {0, 1, 5}).number == 3
    assert usable_threads(tmp_path, set(range(192))) == Threads(64, "more do not pay")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "150000 100000",
          "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 1.5),
        ({"proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n0::/",
          "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": 400000,
          "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": 100000}, 4.0),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/gone", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": 50000,
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000}, 0.5),
        ({"proc/self/cgroup": "3:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "odd"}, None),
        ({}, None),
    ],
    ids=["version 2", "no limit", "a group above", "version 1", "a container's", "1 without one", "odd", "none"],
)  # fmt: skip
def test_a_quota_is_read_from_both_versions(files: dict[str, object], quota: float | None, tmp_path: Path) -> None:
    plant(tmp_path, files)
    assert cpu_quota(tmp_path) == quota
    cores(tmp_path, 8)
    counted = usable_threads(tmp_path, set(range(16)))
    assert counted.number == (8 if quota is None else max(1, -(-quota // 1)))
    assert quota is None or counted.why == f"a quota of {quota:g} processors (cgroup)"


def of_torch(monkeypatch: pytest.MonkeyPatch, own: int) -> list[int]:
    """The numbers of threads that torch is given from now on, its own first, where 16 processors are 8 cores."""
    numbers = [own]
    monkeypatch.setattr(threads, "_replaced", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(threads, "_allowed", lambda: set(range(16)))
    monkeypatch.setattr(threads, "usable_threads", lambda: Threads(8, "physical cores"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return numbers


@pytest.mark.parametrize(
    ("own", "variable", "wanted", "found"),
    [(16, None, None, 8), (16, None, 3, 3), (16, "16", None, 16), (5, None, None, 5)],
    ids=["torch's own", "the config's", "OMP_NUM_THREADS", "set in Python"],
)
def test_torchs_own_number_is_lowered_and_a_users_is_not(
    own: int, variable: str | None, wanted: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = of_torch(monkeypatch, own)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    use_default_threads(wanted)
    assert numbers[-1] == found


def test_the_threads_of_a_config_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = of_torch(monkeypatch, 16)
    found = []
    for wanted in (1, 3, None, None, 1, 1, None):
        use_default_threads(wanted)
        found.append(numbers[-1])
    assert found == [1, 3, 8, 8, 1, 1, 8]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # the user's own number, before a config and after it
    numbers.append(5)
    for wanted in (2, None):
        use_default_threads(wanted)
    assert numbers[-1] == 5
    use_default_threads(2)
    numbers.append(3)  # in Python, while a config's number was set
    use_default_threads(None)
    assert numbers[-1] == 3


def test_this_machine_has_at_least_one() -> None:
    assert 1 <= usable_threads().number <= (os.cpu_count() or 1)
