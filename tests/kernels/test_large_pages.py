"""Packed weights share memory in large pages: places are apart and aligned, and memory is freed with its tensors."""

import mmap
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.engine.native.weights import laid_out
from specbench.kernels import is_available, large_pages
from specbench.kernels.levels import packed

pytestmark = pytest.mark.skipif(not large_pages.IS_SUPPORTED, reason="only Linux has large pages")
HAS_THEM = Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.fixture(autouse=True)
def no_memory_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_chunk", None)


def mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def test_tensors_are_apart_and_aligned_and_neighbours() -> None:
    sizes = ((3, torch.uint8), (1000, torch.bfloat16), (7, torch.float32))
    made = [large_pages.empty(size, dtype) for size, dtype in sizes]
    for index, tensor in enumerate(made):
        tensor.fill_(index + 1)
    for index, tensor in enumerate(made):
        assert (tensor == index + 1).all() and tensor.data_ptr() % large_pages.ALIGNED == 0
    assert made[0].data_ptr() % large_pages.PAGE == 0
    assert [tensor.data_ptr() - made[0].data_ptr() for tensor in made] == [0, 64, 64 + 2048]


def test_the_next_chunk_begins_where_one_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "CHUNK", 2**22)
    made = [large_pages.empty(2**20, torch.uint8).fill_(number) for number in range(20)]
    assert all((tensor == number).all() for number, tensor in enumerate(made))


def test_memory_is_freed_with_its_last_tensor() -> None:
    kept, before = large_pages.empty(10, torch.uint8), mapped()
    large = large_pages.empty(2**30, torch.uint8)
    beside = large_pages.empty(10, torch.uint8)
    assert mapped() - before >= 2**30
    del large
    assert mapped() - before < 2**29
    assert beside.data_ptr() - kept.data_ptr() == large_pages.ALIGNED


def test_memory_that_is_missing_is_an_error_that_is_told_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **named: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    kept = large_pages.empty(10, torch.uint8)
    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", refused)
        with pytest.raises(MemoryError, match=r"no memory for weights of 1\.07 GB"):
            large_pages.empty(2**30, torch.uint8)
    made = [large_pages.empty(2**25, torch.uint8) for _ in range(3)]
    assert len({kept.data_ptr(), *(tensor.data_ptr() for tensor in made)}) == 4


@pytest.mark.skipif(not (HAS_THEM and is_available()), reason="no large pages, or no kernels")
@pytest.mark.parametrize("layout", [laid_out, lambda weight: packed(weight, 8)], ids=["numbers", "levels"])
def test_packed_weights_lie_in_large_pages_but_copies_do_not(layout: Callable[[Tensor], Tensor]) -> None:
    weight = torch.randn(64, 64)
    assert "hg" in flags_of(layout(weight).data_ptr())
    with large_pages.avoided():
        assert "hg" not in flags_of(layout(weight).data_ptr())


def flags_of(address: int) -> list[str]:
    """What the system notes of the memory at an address."""
    is_here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_here = int(found[1], 16) <= address < int(found[2], 16)
        elif is_here and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []
