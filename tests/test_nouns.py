"""Counts with their nouns."""

import pytest

from specbench.nouns import with_noun


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "prompt", "1 prompt"), (0, "prompt", "0 prompts"), (10_000, "prompt", "10,000 prompts"),
        (1, "process", "1 process"), (2, "process", "2 processes"), (2, "CPU core", "2 CPU cores"),
        (1, "kept record, is", "1 kept record is"), (3, "kept record, is", "3 kept records are"),
    ],
)  # fmt: skip
def test_one_is_singular(count: int, noun: str, said: str) -> None:
    assert with_noun(count, noun) == said
