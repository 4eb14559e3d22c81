"""Sessions: cached logits equal uncached ones through any extending and rolling back, in every family."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import T5Config, T5ForConditionalGeneration

from specbench.engine.eager.model import EagerModel
from tests.support.networks import PADDED, network
from tests.support.prompts import SOURCE, prompt

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]


@cache
def network_of(kind: str) -> Any:
    return network(kind, seed=5)


def model(kind: str) -> EagerModel:
    return EagerModel(network_of(kind), vocabulary_size=40, eos_ids=frozenset({1}))


def uncached(kind: str, tokens: list[int]) -> torch.Tensor:
    """Logits of all positions from one pass without a cache."""
    with torch.inference_mode():
        if kind.startswith("t5"):
            inputs = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": torch.tensor([tokens])}
        else:
            inputs = {"input_ids": torch.tensor([tokens])}
        logits: torch.Tensor = network_of(kind)(**inputs, use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_any_walk_of_extending_and_rolling_back(kind: str, walk: list[tuple[int, int]]) -> None:
    session = model(kind).start(prompt(kind))
    tokens = list(prompt(kind).prefix[:-1])
    assert session.length == len(tokens)
    generator = torch.Generator().manual_seed(len(walk))
    for fed, forgotten in walk:
        new = torch.randint(2, 40, (fed,), generator=generator).tolist()
        logits = session.extend(new)
        tokens += new
        assert session.length == len(tokens)
        assert logits.shape == (fed, PADDED)
        exact = uncached(kind, tokens)[-fed:]
        # These weights amplify rounding; a token too many or too few is of the order of the logits themselves.
        assert (logits - exact).abs().max() < 1e-3 * exact.abs().max()
        kept = max(len(prompt(kind).prefix) - 1, len(tokens) - forgotten)
        session.rollback(kept)
        del tokens[kept:]


@pytest.mark.parametrize("kind", KINDS)
def test_rolling_back_to_more_than_was_read_changes_nothing(kind: str) -> None:
    session = model(kind).start(prompt(kind))
    session.extend([7, 8])
    before = session.length
    session.rollback(before + 3)
    assert session.length == before


def test_the_encoder_runs_once_and_the_cross_attention_cache_stays() -> None:
    calls = []
    encoder = network_of("t5").get_encoder()
    handle = encoder.register_forward_hook(lambda *_: calls.append(1))
    try:
        session = model("t5").start(prompt("t5"))
        for _ in range(3):
            session.extend([4, 5, 6])
            session.rollback(1)
    finally:
        handle.remove()
    assert calls == [1]
    cross = session._cache.cross_attention_cache  # type: ignore[attr-defined]
    assert cross.get_seq_length() == len(SOURCE)


def test_operations_count_what_a_decoding_step_multiplies() -> None:
    """Not the keys and values of cross-attention, nor positions, learned (GPT-2) or relative (T5)."""
    t5, tied = network_of("t5-v1_1"), network_of("gpt2")
    decoder = sum(p.numel() for p in t5.get_decoder().parameters()) - t5.shared.weight.numel()
    decoder -= t5.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.numel()
    decoder -= sum(
        linear.weight.numel()
        for block in t5.decoder.block
        for linear in (block.layer[1].EncDecAttention.k, block.layer[1].EncDecAttention.v)
    )
    assert model("t5-v1_1").operations == 2 * (decoder + t5.lm_head.weight.numel())
    weights = sum(p.numel() for p in tied.parameters())
    assert model("gpt2").operations == 2 * (weights - tied.transformer.wpe.weight.numel())


def test_c_hat_of_the_public_t5_pair() -> None:
    """T5-small over T5-11B, T5 1.0: 38,479,360 and 5,670,118,400 weights a step."""

    def operations(**shape: int) -> float:
        with torch.device("meta"):
            network = T5ForConditionalGeneration(T5Config(vocab_size=32128, **shape))
        return EagerModel(network, 32100, frozenset({1})).operations

    small = operations(d_model=512, d_kv=64, d_ff=2048, num_heads=8, num_layers=6)
    large = operations(d_model=1024, d_kv=128, d_ff=65536, num_heads=128, num_layers=24)
    assert small / large == pytest.approx(0.00679, abs=5e-6)
