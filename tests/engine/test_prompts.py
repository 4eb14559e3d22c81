"""Prompts of many lengths: the logits and greedy tokens after them are those of the `transformers` module."""

from typing import Any

import pytest
import torch

from specbench.engine.native.native_model import NativeModel
from specbench.engine.selection import MOST_ERROR, in_fp32, with_engine
from specbench.engine.session import Prompt
from tests.support.long_networks import ENDS, SIZE, network

KINDS = ["llama", "mistral", "gpt2", "gpt_oss", "gemma3_text", "gpt_neox", "deepseek_v3"]
LENGTHS = (1, 63, 64, 65, 511)
READ_ON = 5  # tokens after the prompt


def logits_after(network: Any, tokens: list[int], length: int) -> torch.Tensor:
    with torch.inference_mode():
        return network(input_ids=torch.tensor([tokens])).logits[0, length - 1 :].float()


def check(kind: str, engine: str, dtype: torch.dtype, lengths: tuple[int, ...]) -> None:
    made = network(kind, dtype)
    model = with_engine(engine, made, SIZE, ENDS, "auto")
    assert engine == "static" or kind == "deepseek_v3" or model.report.not_invariant is None
    for length in lengths:
        draw = torch.Generator().manual_seed(length)
        tokens = torch.randint(2, SIZE, (length + READ_ON,), generator=draw).tolist()
        session = model.start(Prompt((), tuple(tokens[:length])))
        parts = tokens[length - 1 : length + 1], tokens[length + 1 :]
        found = torch.cat([session.extend(part) for part in parts]).float()
        expected = logits_after(made, tokens, length)
        if dtype == torch.float32:
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
            assert torch.equal(found.argmax(-1), expected.argmax(-1)), length
            continue
        with in_fp32(made):
            exact = logits_after(made, tokens, length)
        # The median row: where two experts score alike, rounding chooses another one, and that row is far off.
        ours, theirs = ((one - exact).abs().mean(-1).median() for one in (found, expected))
        assert ours <= MOST_ERROR * theirs + 1e-3, (length, ours, theirs)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("engine", ["native", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_prompt_of_any_length_logits_are_those_of_transformers(
    kind: str, engine: str, dtype: torch.dtype
) -> None:
    check(kind, engine, dtype, LENGTHS)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("engine", ["native", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_long_prompt_too(kind: str, engine: str, dtype: torch.dtype) -> None:
    check(kind, engine, dtype, (2047, 2048))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "static"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_after_8191_tokens_too(kind: str, engine: str, dtype: torch.dtype) -> None:
    check(kind, engine, dtype, (8191,))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_a_prompt_leaves_what_single_steps_leave(kind: str) -> None:
    """To the bit, where our kernels read prompts of any length: a prompt is then read by the kernels that verify."""
    made = NativeModel(network(kind, torch.bfloat16), SIZE, ENDS, invariant=True)
    if not made.reads_prompts:
        pytest.skip("torch reads long prompts on this machine")
    tokens = torch.randint(2, SIZE, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    at_once, by_step = made.start(Prompt((), tuple(tokens))), made.start(Prompt((), tuple(tokens[:1])))
    for token in tokens[:-1]:
        by_step.extend([token])
    assert torch.equal(at_once.extend(tokens[-1:]), by_step.extend(tokens[-1:]))
