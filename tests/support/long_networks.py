"""Networks with positions for long prompts."""

from typing import Any

import pytest
import torch

from tests.support import architectures

SIZE, ENDS = 64, frozenset({1})


def network(kind: str, dtype: torch.dtype) -> Any:
    """Positions up to 9000; small weights, so that bf16 is not amplified."""
    shape = dict(architectures.SHAPES[kind])
    longest = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(architectures.SHAPES, kind, shape | {longest: 9000, "initializer_range": 0.2})
        return architectures.network(kind, seed=4).to(dtype)
