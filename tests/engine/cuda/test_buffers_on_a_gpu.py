"""Invariant numerics on a GPU: attention over larger buffers gives the same bits, whatever torch's kernel does there.

Buffers of CUDA graphs grow from 256 slots to 1,024. A token read alone before that, and with others after it, attends
to the same tokens among four times as many slots, for which torch may choose another kernel.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specbench.engine.capture import invariant
from specbench.engine.capture.invariance_check import first_difference
from specbench.engine.capture.lower import Kernels
from specbench.engine.capture.static_sessions import MOST_ROWS
from specbench.engine.cuda.graphs import FIRST_CAPACITY
from specbench.engine.operations import kernels
from tests.support.captured import graphs
from tests.support.networks import network


def by_number_of_slots(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Any, scale: float = 1.0, **options: Any
) -> Tensor:
    """Softmax attention that adds up more slots than the first buffers have in another order."""
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, 1).float() for tensor in (key, value))
    weights = (query.float() @ key.mT * scale + (0.0 if mask is None else mask.float())).softmax(-1)
    parts = [weights[..., first::2] @ value[..., first::2, :] for first in (0, 1)]
    mixed = parts[0] + parts[1] if value.shape[2] > FIRST_CAPACITY else weights @ value
    return mixed.to(query.dtype)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of invariant numerics there, over torch's attention as it may be there."""
    one_by_one = invariant.attend_one_by_one
    monkeypatch.setattr(functional, "scaled_dot_product_attention", by_number_of_slots)
    monkeypatch.setattr(invariant, "attend", one_by_one)
    chosen = Kernels(one_by_one, one_by_one, invariant.linear_of_rows, large_fp32=(0, 0))
    monkeypatch.setattr(invariant, "INVARIANT", chosen)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["t5", "t5-v1_1"])
def test_growing_buffers_change_no_bit(kind: str, dtype: torch.dtype, as_on_a_gpu: None) -> None:
    made = graphs(network(kind, seed=5).to(dtype), 40, frozenset({1}), invariant=True)
    made.set_least_rows(MOST_ROWS)
    assert first_difference(made) is None


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_slots_that_are_not_seen_change_no_bit(key_heads: int, sinks: bool) -> None:
    query, (key, value) = torch.randn(5, 4, 1, 16), torch.randn(2, 5, key_heads, 1024, 16)
    bias = torch.where(torch.arange(1024) < 200, torch.randn(5, 4, 1, 1024), torch.finfo(torch.float32).min)
    sinks_H = torch.randn(4) if sinks else None
    found = [
        invariant.attend_in_blocks(query, key[:, :, :slots], value[:, :, :slots], bias[..., :slots], 0.3, sinks_H)
        for slots in (208, 256, 1024)
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    wide = kernels.attend(query, key, value, bias, 0.3, sinks_H)
    assert torch.allclose(found[0], wide, atol=1e-5)
