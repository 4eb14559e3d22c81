"""Passes counted along the target's own completion: by hand, and compared with decoding at T = 0 and at T = 1, by
Algorithm 1 and by block verification."""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import torch

from specbench.algorithm.acceptance.base import AcceptanceRule
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.analysis.acceptance.agreement import Agreement, agreements
from specbench.analysis.forecast import alphas_of_rows, expected_of_rows, walk
from specbench.analysis.forecast.predict import ratios_ahead
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.records.run_record import PromptRecord
from specbench.sampling import Sampling
from specbench.stats import Interval, over_rows, ratio
from tests.support.decode import autoregressive, speculative
from tests.support.intervals import within_4_errors
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table


class Endless(ToyModel):
    eos_ids: frozenset[int] = frozenset()


def along_and_decoded(
    model: type[ToyModel],
    gamma: int,
    most: int,
    count: int,
    accept: AcceptanceRule = accept_exact,
    greedy_draft: bool = False,
) -> tuple[list[Agreement], Interval]:
    """Agreements along `count` completions of the target at T = 1, and tokens per pass of as many by decoding."""
    target, draft = model(random_table(11)), ModelDraft(model(random_table(12)), VOCABULARY)
    sampling, generator = Sampling(1.0), torch.Generator().manual_seed(1)
    keys: dict[str, Any] = {"sampling": sampling, "max_new_tokens": most, "generator": generator}
    written = [autoregressive(target, PROMPT, **keys).tokens for _ in range(count)]
    found = [agreements(target, [draft], PROMPT, text, sampling)[0] for text in written]
    keys |= {"gamma": gamma, "accept": accept, "greedy_draft": greedy_draft}
    traces = [speculative(target, draft, PROMPT, **keys) for _ in range(count)]
    return found, over_rows([(len(t.tokens), len(t.passes)) for t in traces], ratio)


def test_counting_passes_by_hand() -> None:
    def counted(*given, **keys):  # type: ignore[no-untyped-def]
        return walk(*given, **keys).passes.sum(0)

    assert walk([1, 1, 0, 1, 1, 0], gamma=3).passes.tolist() == [
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ]  # first, others
    assert walk([0.5, 0.5, 0.5], gamma=1, most=4).passes[0].tolist() == [0, 1]
    assert counted([1, 1, 0, 1, 1, 0], gamma=3).tolist() == [0, 0, 0, 2]  # 2 kept + 1, 2 kept + 1
    assert counted([1, 1, 1, 1], gamma=3, most=4).tolist() == [0, 0, 0, 1]
    assert counted([1, 1, 1, 1, 1], gamma=3, most=5).tolist() == [1, 0, 0, 1]  # no room to draft for the last token
    assert counted([1, 1, 1, 1, 1], gamma=3, most=9).tolist() == [0, 1, 0, 1]  # it drafts the end, and stops
    assert counted([0.5, 0.5], gamma=1, most=2).tolist() == pytest.approx([0.5, 1.0])
    assert counted([0, 0, 0], gamma=2, most=9).sum() == 3
    assert counted([1, 1, 1, 1, 1], gamma=3, most=9, stops=None).tolist() == [0, 0, 0, 2]  # it drafts on after the end
    assert counted([0, 0], gamma=3, most=9, stops=0.25).tolist() == pytest.approx([0, 0.5, 0.375, 1.125])
    assert counted([1, 0, 1], gamma=3, most=9, stops=0.25).tolist() == pytest.approx([0, 1, 0.25, 0.75])
    assert counted([0, 1, 1], gamma=2, most=9, silent=[True, False, False]).tolist() == [1, 0, 1]


@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_counted_passes_are_those_of_decoding_at_temperature_zero(gamma: int, seed: int) -> None:
    target = ToyModel(random_table(seed))
    draft = ModelDraft(ToyModel(0.5 * random_table(seed) + 0.5 * random_table(seed + 10)), VOCABULARY)
    greedy, generator = Sampling(0.0), torch.Generator().manual_seed(0)
    for most in (4, 9, 30):
        trace = speculative(
            target, draft, PROMPT, gamma=gamma, sampling=greedy, max_new_tokens=most, generator=generator
        )
        (agreement,) = agreements(target, [draft], PROMPT, trace.tokens, greedy)
        counted = walk(agreement.ratio, gamma, most).passes
        assert counted.sum() == len(trace.passes)


def test_tokens_further_ahead_by_hand() -> None:
    """The second token of a proposal agrees at the last token alone; the third is never proposed."""
    ahead = [[0.0, 0.0, 0.0, 0.0, 1.0], [None] * 5]
    counts = walk([1, 1, 1, 1, 1], gamma=3, most=9, stops=None, ahead=ahead).passes
    # 2 tokens, 2 tokens, and the end as a first token; how long a proposal is after the end the text does not show.
    assert counts.tolist() == [[0, 0, 1, 0], [0, 0, 1, 1]]
    assert walk([1, 1, 1, 1, 1], gamma=3, most=9, stops=None).passes.sum() == 2
    assert walk([1, 1, 1], gamma=3, most=9, stops=None, ahead=[]).passes.sum(0).tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("gamma", [1, 3, 6])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_counted_passes_of_a_look_up_are_those_of_decoding(gamma: int, seed: int) -> None:
    """A copy continues from its match: its later tokens are not those of a new lookup."""
    target, draft = Endless(random_table(seed)), LookupDraft(VOCABULARY, torch.device("cpu"), match=2)
    greedy, generator = Sampling(0.0), torch.Generator().manual_seed(0)
    for most in (9, 40):
        trace = speculative(
            target, draft, PROMPT, gamma=gamma, sampling=greedy, max_new_tokens=most, generator=generator
        )
        (along,) = agreements(target, [draft], PROMPT, trace.tokens, greedy, ahead=gamma)
        counts = walk(along.ratio, gamma, most, along.silent, None, ahead=ratios_ahead(along)).passes.sum(0)
        decoded = np.bincount([a_pass.drafted for a_pass in trace.passes], minlength=gamma + 1)
        assert counts.tolist() == decoded.tolist()


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("gamma", [2, 5])
def test_counted_passes_are_those_of_decoding_at_temperature_one(gamma: int) -> None:
    """Tokens per pass from the target's completion and by decoding agree within 4 standard errors. The same
    count with beta in the place of ratio, as if accepted text were the target's, is off by more than that."""
    most = 12
    found, decoded = along_and_decoded(ToyModel, gamma, most, 1500)
    right, wrong = (
        over_rows([(len(getattr(a, way)), walk(getattr(a, way), gamma, most).passes.sum()) for a in found], ratio)
        for way in ("ratio", "beta")
    )
    assert within_4_errors(right, decoded)
    assert wrong.low > right.high


def test_a_block_makes_up_for_an_unlikely_token_with_a_likely_one() -> None:
    assert walk([2.0, 0.5, 1.0], gamma=2, most=4, whole=True).passes.sum(0).tolist() == [0, 0, 1]
    assert walk([2.0, 0.5, 1.0], gamma=2, most=4).passes.sum(0).tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert walk([0.5, 2.0, 1.0], gamma=2, most=4, whole=True).passes.sum(0).tolist() == pytest.approx([0.0, 0.0, 1.5])


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("gamma", [2, 5])
def test_counted_passes_are_those_of_block_verification(gamma: int) -> None:
    """Tokens per pass from the target's completion and by decoding with accept=block agree within 4 standard errors. As
    Algorithm 1 would have them they are fewer by more than that."""
    most = 30
    found, decoded = along_and_decoded(Endless, gamma, most, 600, accept_block)
    block, alone = (
        over_rows([(most, walk(a.ratio, gamma, most, whole=whole).passes.sum()) for a in found], ratio)
        for whole in (True, False)
    )
    assert within_4_errors(block, decoded)
    assert alone.high < block.low


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("rule", ["match", "onehot"])
def test_counted_passes_are_those_of_strict_match_and_of_a_greedy_draft(rule: str) -> None:
    """As above, each from its own chances; Algorithm 1 has fewer passes by more than the error."""
    gamma, most = 4, 30
    accept = accept_match if rule == "match" else accept_exact
    found, decoded = along_and_decoded(Endless, gamma, most, 600, accept, rule == "onehot")
    own, algorithm_1 = (
        over_rows([(most, walk(a.ratio, gamma, most).passes.sum()) for a in each], ratio)
        for each in ([a.at(rule) for a in found], found)
    )
    assert within_4_errors(own, decoded)
    assert own.high < algorithm_1.low


def _over_truth(alphas: Sequence[float], length: int, gamma: int, raw: bool = False) -> float:
    """Estimated over true tokens per pass of rows with these alphas, tokens accepted or not; mean of 200 draws."""
    drawn = np.random.default_rng(3)
    need = cache(lambda alpha: walk([alpha] * length, gamma, length).passes.sum())
    truth = len(alphas) * length / sum(map(need, alphas))
    found = []
    for _ in range(200):
        betas = [(drawn.random(length) < alpha).astype(float).tolist() for alpha in alphas]
        if raw:
            found.append(len(alphas) * length / sum(need(sum(beta) / length) for beta in betas))
        else:
            prompts = cast(list[PromptRecord], [{"beta": beta} for beta in betas])
            found.append(expected_of_rows(prompts, gamma, length).tokens)
    return float(np.mean(found)) / truth - 1


@pytest.mark.statistical
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_short_rows_do_not_lower_the_expected_tokens_of_a_batch(spread: float) -> None:
    """alpha .75 in the mean, gamma 4, 64 rows of 6 tokens: the raw means of rows are 4% low."""
    alphas = [0.75 - spread, 0.75 + spread] * 32
    assert _over_truth(alphas, 6, 4, raw=True) < -0.035
    assert abs(_over_truth(alphas, 6, 4)) < 0.01


def test_rows_that_truly_differ_keep_their_alphas() -> None:
    """Half the rows accept everything, half nothing; also by a single row, by rows of one token, and by equal rows."""
    assert alphas_of_rows([[1.0] * 6, [0.0] * 6] * 4) == pytest.approx([1.0, 0.0] * 4)
    drawn = np.random.default_rng(0)
    betas = [(drawn.random(40) < alpha).astype(float).tolist() for alpha in [0.5, 0.9] * 30]
    found = np.array(alphas_of_rows(betas))
    assert found[::2].mean() == pytest.approx(0.5, abs=0.03) and found[1::2].mean() == pytest.approx(0.9, abs=0.03)
    assert found.std() == pytest.approx(0.2, abs=0.02)
    assert alphas_of_rows([[1.0, 0.5]]) == [0.75] and alphas_of_rows([[1.0], [0.0]]) == [0.5, 0.5]
    assert alphas_of_rows([[1.0, 0.0, 0.5], [0.5, 0.0, 1.0]]) == [0.5, 0.5]
    assert alphas_of_rows([]) == []
