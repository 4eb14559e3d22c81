"""The shortcut at T = 0, where argmax tokens stand for one-hot rows: it must say what the rule and a draw say of the
rows themselves."""

import pytest
import torch

from specbench.algorithm.acceptance.base import AcceptanceRule, Proposal, Verification
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.acceptance.verify import target_rows, verify
from specbench.sampling import Sampling, before_argmax, draw, draw_next, standardise

GREEDY = Sampling(0.0)
LOSSLESS = (accept_exact, accept_block, accept_match)
SIZE, PADDED = 9, 12


def logits(seed: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """With ties, and with padding that is higher than any token."""
    values = torch.randint(-3, 4, (rows, PADDED), generator=torch.Generator().manual_seed(seed)).to(dtype)
    values[:, SIZE:] = 9
    return values


@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_at_t_0_the_argmax_tokens_decide_as_the_rows_do(rule: AcceptanceRule, dtype: torch.dtype) -> None:
    verification, accepted = Verification(rule, GREEDY), set()
    for seed in range(60):
        read, count = logits(seed, 8, dtype), seed % 5
        p_GV = standardise(read[-(count + 1) :], GREEDY, SIZE)
        drafted = p_GV[:count].argmax(-1).tolist()
        if count and seed % 3:
            drafted[seed % count] = (drafted[seed % count] + 1) % SIZE
        proposal = Proposal(drafted)
        rows = target_rows(read, proposal, verification, SIZE)
        assert isinstance(rows, list)
        found = verify(rows, proposal, verification, torch.Generator())
        assert found == rule(p_GV, proposal.q(p_GV), drafted, torch.Generator().manual_seed(seed))
        accepted.add(found.accepted)
    assert accepted == {0, 1, 2, 3, 4}


def test_rows_are_made_where_the_rule_needs_them() -> None:
    read = logits(1, 3, torch.float32)
    sampled = Verification(LOSSLESS[0], Sampling(0.7, top_k=3))
    assert torch.equal(
        torch.as_tensor(target_rows(read, Proposal([0]), sampled, SIZE)), standardise(read[-2:], sampled.sampling, SIZE)
    )
    warm = Verification(lenient(0.3, GREEDY), before_argmax(GREEDY))  # compares p before argmax
    rows = target_rows(read, Proposal([0, 0]), warm, SIZE)
    assert isinstance(rows, torch.Tensor) and torch.allclose(rows, read[:, :SIZE].softmax(-1))
    assert warm.lossy is not None and sampled.lossy is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_at_t_0_the_token_is_that_of_a_draw_from_the_row(dtype: torch.dtype) -> None:
    for seed in range(40):
        read = logits(seed, 2, dtype)
        token, row = draw_next(read, GREEDY, SIZE, torch.Generator())
        assert row is None
        assert token == draw(standardise(read[-1:], GREEDY, SIZE)[0], torch.Generator().manual_seed(seed))


def test_above_it_the_row_is_that_of_the_draw() -> None:
    read, warm = logits(3, 2, torch.float32), Sampling(1.3, top_p=0.9)
    token, row = draw_next(read, warm, SIZE, torch.Generator().manual_seed(5))
    assert row is not None and torch.equal(row, standardise(read[-1:], warm, SIZE))
    assert token == draw(row[0], torch.Generator().manual_seed(5))


@pytest.mark.parametrize("rule", LOSSLESS)
def test_what_is_not_finite_is_refused(rule: AcceptanceRule) -> None:
    for sampling in (GREEDY, Sampling(1.0)):
        verification = Verification(rule, sampling)
        with pytest.raises(FloatingPointError, match="not finite"):
            verify(
                target_rows(torch.full((1, PADDED), torch.nan), Proposal([]), verification, SIZE),
                Proposal([]), verification, torch.Generator(),
            )  # fmt: skip
