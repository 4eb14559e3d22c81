"""Decoding on tensors that say they are on Apple's GPU: no fp64, no operation on two devices, and the CPU's tokens."""

import pytest
import torch

from specbench.algorithm.acceptance.base import AcceptanceRule
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.acceptance.rules.top_beta import TopBeta
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.engine.selection import with_engine
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support.decode import autoregressive, speculative
from tests.support.fake_mps import MPS, FakeGenerator, fake_mps, moved
from tests.support.networks import network
from tests.support.prompts import prompts

SIZE, ENDS = 40, frozenset({1})
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(0.8, top_k=20, top_p=0.9)
RULES: list[tuple[AcceptanceRule, Sampling]] = [
    (accept_exact, GREEDY), (accept_exact, SAMPLED), (accept_block, SAMPLED), (lenient(0.5, SAMPLED), SAMPLED),
    (AcceptByChance(0.6), SAMPLED), (Typical(0.3, 0.3), SAMPLED), (accept_match, SAMPLED), (TopBeta(3, 1.0), SAMPLED),
]  # fmt: skip


def test_fp64_and_two_devices_raise_and_numbers_come_back() -> None:
    with fake_mps():
        x = torch.arange(6.0, device="mps").view(2, 3)
        assert x.device == MPS and (x + 1).device == MPS and not x.is_cpu and x.cpu().device.type == "cpu"
        assert x[:, 1].tolist() == [1.0, 4.0] and x.cpu().double().dtype == torch.float64
        for wrong in (
            x.double,
            lambda: x.sum(dtype=torch.float64),
            lambda: torch.zeros(2, dtype=torch.double, device=MPS),
        ):
            with pytest.raises(TypeError, match="float64"):
                wrong()
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(3)
        assert x.add_(1) is x and x[0, 0].item() == 1.0


@pytest.mark.parametrize("kind", [pytest.param("t5", marks=pytest.mark.full), "llama"])
def test_completions_on_apples_gpu(kind: str) -> None:
    (prompt, *_) = prompts(kind)
    of_cpu = autoregressive(
        with_engine("eager", network(kind, 5), SIZE, ENDS), prompt,
        sampling=GREEDY, max_new_tokens=8, generator=torch.Generator(),
    )  # fmt: skip
    with fake_mps():
        target, small = (with_engine("auto", moved(network(kind, seed)), SIZE, ENDS) for seed in (5, 6))
        assert target.engine == "eager" and target.device == MPS
        generator = FakeGenerator().manual_seed(1)
        for how in (GREEDY, SAMPLED):
            alone = autoregressive(target, prompt, sampling=how, max_new_tokens=8, generator=generator)
            assert how is SAMPLED or alone.tokens == of_cpu.tokens
        for rule, how in RULES:
            for draft in (ModelDraft(small, SIZE), LookupDraft(SIZE, MPS, 2)):
                found = speculative(
                    target, draft, prompt, gamma=3, sampling=how, max_new_tokens=8, generator=generator, accept=rule
                )
                assert how is SAMPLED or found.tokens == of_cpu.tokens


def test_a_sum_in_fp64_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.sampling.widest", lambda device: torch.float64)
    with fake_mps():
        target = with_engine("auto", moved(network("llama", 5)), SIZE, ENDS)
        with pytest.raises(TypeError, match="float64"):
            autoregressive(
                target, prompts("llama")[0], sampling=SAMPLED, max_new_tokens=4,
                generator=FakeGenerator(),
            )  # fmt: skip
