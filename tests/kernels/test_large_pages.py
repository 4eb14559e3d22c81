"""Packed weights share memory in large pages: places are apart and aligned, and memory is freed with its tensors."""

import mmap
from pathlib import Path

import pytest
import torch

from specbench.kernels import large_pages

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has large pages")


@pytest.fixture(autouse=True)
def no_memory_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_memory", None)


def test_tensors_are_apart_and_aligned_and_neighbours() -> None:
    made = [
        large_pages.empty(size, dtype) for size, dtype in ((3, torch.uint8), (1000, torch.bfloat16), (7, torch.float32))
    ]
    for index, tensor in enumerate(made):
        tensor.fill_(index + 1)
    for index, tensor in enumerate(made):
        assert (tensor == index + 1).all() and tensor.data_ptr() % large_pages.ALIGNED == 0
    assert made[0].data_ptr() % large_pages.PAGE == 0
    assert [tensor.data_ptr() - made[0].data_ptr() for tensor in made] == [0, 64, 64 + 2048]


def test_what_is_larger_than_the_rest_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "CHUNK", 4096)
    first, large, last = (large_pages.empty(size, torch.uint8) for size in (100, 3 * 2**21, 100))
    for tensor, number in ((first, 1), (large, 2), (last, 3)):
        tensor.fill_(number)
    assert (first == 1).all() and (large == 2).all() and (last == 3).all()


def test_memory_is_freed_with_its_last_tensor() -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    kept, before = large_pages.empty(10, torch.uint8), mapped()
    dropped = large_pages.empty(2**30, torch.uint8)
    assert mapped() - before >= 2**30
    del dropped
    assert mapped() - before < 2**29
    assert large_pages.empty(10, torch.uint8).data_ptr() != kept.data_ptr()


def test_memory_that_is_missing_is_an_error_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **named: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(MemoryError, match=r"no memory for weights of 1\.07 GB"):
        large_pages.empty(2**30, torch.uint8)
