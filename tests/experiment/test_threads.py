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


def nodes(root: Path, lists: list[str]) -> None:
    for number, held in enumerate(lists):
        plant(root, {f"sys/devices/system/node/node{number}/cpulist": held})


def test_threads_are_those_of_one_numa_node(tmp_path: Path) -> None:
    """Two sockets of 8 cores with two hyperthreads each, and memory without a processor."""
    cores(tmp_path, 16)
    nodes(tmp_path, ["0-7,16-23", "8-15,24-31", ""])
    said = "physical cores of one of 2 NUMA nodes; numactl --cpunodebind={0} --membind={0} binds to it"
    assert usable_threads(tmp_path, set(range(32))) == Threads(8, said.format(0))
    assert usable_threads(tmp_path, {0, 1, *range(8, 16)}) == Threads(8, said.format(1))
    assert usable_threads(tmp_path, {*range(8, 16), *range(24, 32)}) == Threads(8, "physical cores")  # bound to a node
    assert usable_threads(tmp_path, {*range(8, 16)}).why == "processors that this process may use"
    plant(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "300000 100000"})
    assert usable_threads(tmp_path, set(range(32))) == Threads(3, "a quota of 3 processors (cgroup)")


def test_a_machine_of_one_node_has_all_its_cores(tmp_path: Path) -> None:
    cores(tmp_path, 8)
    nodes(tmp_path, ["0-15"])
    assert usable_threads(tmp_path, set(range(16))) == Threads(8, "physical cores")


def test_threads_are_bound_to_one_node_before_another(tmp_path: Path) -> None:
    """Processors are numbered in turn, as some boards do."""
    cores(tmp_path, 8)
    nodes(tmp_path, ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"])
    assert processors(4, tmp_path, set(range(16))) == [0, 2, 4, 6]
    assert processors(6, tmp_path, set(range(16))) == [0, 1, 2, 3, 4, 6]
    assert processors(3, tmp_path, {1, 3, 5, 6}) == [1, 3, 5]


def test_slow_cores_are_not_waited_for(tmp_path: Path) -> None:
    """Intel's: 4 fast cores of two hyperthreads, and 8 slow ones. Arm's: 4 fast cores of 8."""
    intel, arm = tmp_path / "intel", tmp_path / "arm"
    cores(intel, 4)
    plant(intel, {"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-15"})
    assert usable_threads(intel, set(range(16))) == Threads(4, "physical cores of the fast kind")
    assert usable_threads(intel, set(range(8, 12))) == Threads(4, "processors that this process may use")  # slow alone
    assert processors(6, intel, set(range(16))) == [0, 1, 2, 3, 8, 9]
    for number, capacity in enumerate((400, 400, 400, 400, 980, 980, 1024, 1024)):
        plant(arm, {f"sys/devices/system/cpu/cpu{number}/cpu_capacity": capacity})
    assert usable_threads(arm, set(range(8))) == Threads(4, "physical cores of the fast kind")
    assert processors(5, arm, set(range(8))) == [0, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("said", "threads_why"),
    [
        ({"hw.physicalcpu": 8, "hw.perflevel0.physicalcpu": 4}, Threads(4, "physical cores of the fast kind")),
        ({"hw.physicalcpu": 6}, Threads(6, "physical cores")),  # Intel's, with hyperthreads
        ({}, Threads(12, "processors that this process may use")),
    ],
    ids=["two kinds", "one kind", "no answer"],
)
def test_cores_are_counted_as_macos_says(
    said: dict[str, int], threads_why: Threads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "sysctl"
    answers = "".join(f'  "-n {name}") echo {number};;\n' for name, number in said.items())
    program.write_text(f'#!/bin/sh\ncase "$*" in\n{answers}  *) echo "unknown oid" >&2; exit 1;;\nesac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(threads, "IS_APPLE", True)
    monkeypatch.setattr(threads, "ROOT", tmp_path)
    assert usable_threads(tmp_path, set(range(12))) == threads_why


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
    """The numbers of threads that torch is given from now on, its own first: 16 processors, 8 cores, a quota of 4."""
    numbers = [own]
    monkeypatch.setattr(threads, "_replaced", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(threads, "_allowed", lambda: set(range(16)))
    monkeypatch.setattr(threads, "physical_cores", lambda: 8)
    monkeypatch.setattr(threads, "usable_threads", lambda: Threads(4, "a quota of 4 processors (cgroup)"))
    monkeypatch.delenv("OMP_NUM_THREADS")
    return numbers


@pytest.mark.parametrize(
    ("own", "variable", "wanted", "found"),
    [(16, None, None, 4), (8, None, None, 4), (16, None, 3, 3), (16, "16", None, 16), (5, None, None, 5)],
    ids=["processors", "cores, as MKL counts", "the config's", "OMP_NUM_THREADS", "set in Python"],
)
def test_torchs_own_number_is_lowered_and_a_users_is_not(
    own: int, variable: str | None, wanted: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = of_torch(monkeypatch, own)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    if wanted is None:
        assert threads.default_threads().number == found
    use_default_threads(wanted)
    assert numbers[-1] == found


def test_the_threads_of_a_config_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = of_torch(monkeypatch, 16)
    found = []
    for wanted in (1, 3, None, None, 1, 1, None):
        use_default_threads(wanted)
        found.append(numbers[-1])
    assert found == [1, 3, 4, 4, 1, 1, 4]
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
