"""Rows by the C kernels against the same in torch, which runs where there is no compiler."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from specbench import kernels
from specbench.algorithm.acceptance.base import ChainRule, Proposal, Verdict
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.lenient import Lenient, NearBest
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.acceptance.rules.top_beta import TopBeta
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.kernels import NotCompiled, is_available
from specbench.kernels import rows as in_c
from specbench.sampling import NOT_DRAWN, Sampling, drawn, standardise, uniforms

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no C compiler")


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A context in which there are no kernels."""

    @contextmanager
    def without() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(in_c, "found", lambda: NotCompiled("not here"))
            patch.setattr(in_c, "is_available", lambda: False)
            yield

    return without


def noise(rows: int, size: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (4 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("size", [2, 7, 64, 1000, 32100])
def test_the_softmax_is_that_of_torch(dtype: torch.dtype, temperature: float, size: int, torch_alone) -> None:  # type: ignore[no-untyped-def]
    logits = noise(5, size + 28, seed=size, dtype=dtype)
    logits[1, size // 2] = -torch.inf
    sampling = Sampling(temperature, top_p=0.9 if temperature == 0.7 else None)
    ours = standardise(logits, sampling, size)
    with torch_alone():
        theirs = standardise(logits, sampling, size)
    if sampling.top_p is None:
        # Torch divides before it subtracts the maximum, and rounds numbers of up to 400 at T = 0.05.
        torch.testing.assert_close(ours, theirs, rtol=5e-5, atol=1e-30)
    else:  # the last token of the nucleus may be another where two sums differ by rounding
        assert (ours - theirs).abs().sum(-1).max() < 1e-3
    # A row does not depend on its neighbours, nor on how far apart rows lie.
    for row in range(5):
        assert standardise(logits[row : row + 1, :size].clone(), sampling, size)[0].equal(ours[row])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [None, 1, 2, 5, 64, 999, 5000])
def test_top_k_keeps_what_torch_keeps(dtype: torch.dtype, temperature: float, top_k: int, torch_alone) -> None:  # type: ignore[no-untyped-def]
    """All that equal the k-th, where many do: half of the rows have few values; those of others differ by rounding."""
    logits = noise(40, 1000, seed=1, dtype=dtype)
    logits[::2] = logits[::2].round()
    logits[1::4] = 7 + torch.arange(1000) % 31 * torch.finfo(dtype).eps  # of which some are equal once divided by T
    logits[3, 100:] = -torch.inf
    logits[4, ::3] = -0.0
    sampling = Sampling(temperature, top_k)
    ours = standardise(logits, sampling, 1000)
    with torch_alone():
        theirs = standardise(logits, sampling, 1000)
    assert (ours > 1e-30).equal(theirs > 1e-30)  # our exp is 0 below 1e-34
    torch.testing.assert_close(ours, theirs, rtol=5e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("top_k", [None, 20])
@pytest.mark.parametrize("top_p", [1e-4, 0.3, 0.9, 0.999, 1.0])
def test_the_nucleus_is_that_of_torch(dtype: torch.dtype, top_k: int | None, top_p: float, torch_alone) -> None:  # type: ignore[no-untyped-def]
    """The same tokens, of equal tokens the first; at most one more or less where sums differ by rounding."""
    logits = noise(60, 1000, seed=2, dtype=dtype)
    logits[::2] = logits[::2].round()
    sampling = Sampling(0.8, top_k, top_p)
    ours = standardise(logits, sampling, 1000)
    with torch_alone():
        theirs = standardise(logits, sampling, 1000)
    differ = (ours > 0) != (theirs > 0)
    assert differ.sum(-1).max() <= 1 and differ.any(-1).sum() <= 1
    same = ~differ.any(-1)
    torch.testing.assert_close(ours[same], theirs[same], rtol=5e-5, atol=1e-30)


def test_where_masses_are_exact_the_nucleus_ends_at_the_same_token(torch_alone) -> None:  # type: ignore[no-untyped-def]
    """Masses are sums of powers of two: top_p is reached exactly, by one of several equal tokens."""
    logits = torch.tensor([[0.0, 2, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [3, 3, 0, 0, -torch.inf, 3]]) * 0.6931471805599453
    for top_k in (None, 2, 3):
        for top_p in (0.1, 0.25, 0.5, 0.75, 0.9):
            ours = standardise(logits[:, :4] if top_k is None else logits, Sampling(1.0, top_k, top_p), 6)
            with torch_alone():
                theirs = standardise(logits[:, :4] if top_k is None else logits, Sampling(1.0, top_k, top_p), 6)
            assert (ours > 0).equal(theirs > 0), (top_k, top_p)
            torch.testing.assert_close(ours, theirs)
    # The same of masses that are exact in decimals only.
    for p, top_p, count in (([0.5, 0.3, 0.1, 0.1], 0.8, 2), ([0.45, 0.35, 0.2], 0.8, 2), ([0.6, 0.3, 0.1], 0.9, 2)):
        row = torch.tensor([p]).log()
        with torch_alone():
            theirs = standardise(row, Sampling(1.0, top_p=top_p), len(p))
        ours = standardise(row, Sampling(1.0, top_p=top_p), len(p))
        assert int((ours > 0).sum()) == int((theirs > 0).sum()) == count, p
    kept = standardise(torch.zeros(1, 8), Sampling(1.0, top_p=0.5), 8)
    assert kept.tolist() == [[0.25] * 4 + [0.0] * 4]


@pytest.mark.parametrize("more", [{}, {"top_k": 2}, {"top_p": 0.9}, {"top_k": 2, "top_p": 0.9}])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite(wrong: float, more: dict[str, float]) -> None:
    logits = torch.tensor([[0.0, wrong, 1.0], [-torch.inf] * 3, [0.0, -torch.inf, 1.0]])
    rows = standardise(logits, Sampling(1.0, **more), 3)  # type: ignore[arg-type]
    assert rows[:2].isnan().all() and rows[2, 1] == 0
    assert drawn(rows, torch.full((3,), 0.5, dtype=torch.float64)).tolist() == [NOT_DRAWN, NOT_DRAWN, 2]


@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 8191])
def test_tokens_are_those_that_torch_draws(size: int, torch_alone) -> None:  # type: ignore[no-untyped-def]
    rows = standardise(noise(200, size, seed=size), Sampling(1.0), size)
    rows[:, ::3] *= (torch.arange(200) % 2).unsqueeze(-1)  # half of the rows with tokens of probability 0
    rows[:, -1] += 1e-6
    uniform = uniforms(200, torch.Generator().manual_seed(0), torch.device("cpu"))
    uniform[:2] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    ours = drawn(rows, uniform)
    with torch_alone():
        assert ours.equal(drawn(rows, uniform))
    assert (rows[range(200), ours] > 0).all()


def verdict(p: Tensor, proposal: Proposal, seed: int, rule: ChainRule) -> tuple[Verdict, float]:
    """The verdict, and the next random number: both ways must take as many."""
    generator = torch.Generator().manual_seed(seed)
    return rule.on_chain(p, proposal, generator), torch.rand(1, generator=generator).item()


RULES: dict[str, ChainRule] = {
    "exact": accept_exact, "block": accept_block, "match": accept_match, "lenient": Lenient(0.5),
    "near best": NearBest(0.3), "top-beta": TopBeta(3, 2.0), "typical": Typical(0.09, 0.3),
    "chance": AcceptByChance(0.7),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("q_is", ["another", "close", "p", "one-hot"])
@pytest.mark.parametrize("missing", [0, 2])
def test_verdicts_are_those_of_the_rule_in_torch(  # type: ignore[no-untyped-def]
    rule: str, gamma: int, q_is: str, missing: int, torch_alone
) -> None:
    seen = set()
    for seed in range(60):
        logits = noise(gamma + 1, 40, seed)
        p = standardise(logits, Sampling(1.0), 40)
        by = {"another": 3.0, "close": 0.3, "p": 0.0, "one-hot": 0.0}[q_is]
        q = standardise(logits[:gamma] + by * noise(gamma, 40, seed + 1000) / 4, Sampling(1.0), 40)
        drafted = drawn(q, uniforms(gamma, torch.Generator().manual_seed(seed), torch.device("cpu"))).tolist()
        proposal = Proposal(drafted, None if q_is == "one-hot" else q, asked=gamma + missing if gamma else 0)
        found = verdict(p, proposal, seed, RULES[rule])
        with torch_alone():
            assert found == verdict(p, proposal, seed, RULES[rule])
        seen.add(found[0].accepted)
    if rule == "exact":
        assert seen == set(range(gamma + 1)) if q_is != "p" else seen == {gamma}
    assert max(seen) > 0 or gamma == 0, "nothing was accepted"


@pytest.mark.parametrize("rule", ["exact", "block", "match", "lenient", "near best", "top-beta", "typical"])
def test_a_verdict_that_is_not_finite(rule: str) -> None:
    p = standardise(noise(3, 10, 0), Sampling(1.0), 10)
    for row in range(2):
        damaged = p.clone()
        damaged[row] = torch.nan
        proposal = Proposal([int(p[0].argmax()), 1], p[:2])
        with pytest.raises(FloatingPointError, match="not finite"):
            RULES[rule].on_chain(damaged, proposal, torch.Generator().manual_seed(1))


def test_a_token_that_the_target_never_writes_is_rejected_and_not_drawn() -> None:
    p = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    q = torch.tensor([[0.9, 0.1, 0.0]])
    for seed in range(50):
        found = accept_exact.on_chain(p, Proposal([0], q), torch.Generator().manual_seed(seed))
        assert found.accepted == 0 and found.token in (1, 2)


def test_a_block_does_not_recover_from_a_token_that_the_target_never_writes() -> None:
    """Not by a next token whose q is so small that p / q is infinite, either."""
    p = torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
    q = torch.tensor([[0.5, 0.5], [1e-42, 1.0]])
    for seed in range(20):
        found = accept_block.on_chain(p, Proposal([0, 0], q), torch.Generator().manual_seed(seed))
        assert found.accepted == 0 and found.token == 1


@pytest.mark.parametrize("drafted", [[1, 2, 3], [1, 10], [-1]])
def test_memory_past_the_rows_is_not_read(drafted: list[int]) -> None:
    p = standardise(noise(3, 10, 0), Sampling(1.0), 10)
    with pytest.raises(ValueError, match="do not fit"):
        accept_exact.on_chain(p, Proposal(drafted), torch.Generator().manual_seed(0))


def test_what_the_kernels_do_not_read_goes_to_torch() -> None:
    """Rows of a graph being captured, with gradients, or of half precision; no kernels is no failure."""
    logits = noise(2, 8, 0)
    assert in_c.standardised(logits.half(), 1.0, None, None, 8) is None
    assert in_c.standardised(logits.clone().requires_grad_(), 1.0, None, None, 8) is None
    assert in_c.standardised(logits.t(), 1.0, None, None, 2) is None
    assert in_c.standardised(logits[0], 1.0, None, None, 8) is None
    assert in_c.drawn(logits.double(), torch.zeros(2, dtype=torch.float64)) is None
    with torch._subclasses.FakeTensorMode() as mode:
        assert in_c.standardised(mode.from_tensor(logits), 1.0, None, None, 8) is None


def test_why_there_are_no_kernels_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row asks; a search of PATH, or a compiler that fails, would take longer than the row."""
    searched = []
    monkeypatch.setattr(kernels.shutil, "which", lambda name: searched.append(name))
    monkeypatch.delenv("CC", raising=False)
    kernels.found.cache_clear()
    try:
        for _ in range(3):
            assert standardise(noise(1, 8, 0), Sampling(1.0), 8).sum().item() == pytest.approx(1)
        assert searched == list(kernels.COMPILERS)
    finally:
        kernels.found.cache_clear()
