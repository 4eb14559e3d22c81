"""Intervals over few prompts cover: of the speedup, α, c and v; and equal prompts count once in each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specbench.analysis.costs import mean_costs as costs
from specbench.analysis.distinct import groups_of
from specbench.analysis.summary import under_lenience
from specbench.stats import Interval, Jackknife, Scale, grouped, over_rows, ratio, ratio_of_ratios
from tests.support.calls import called, small_run

Capture = pytest.CaptureFixture[str]
Folders = dict[str, Path]
Floats = NDArray[np.float64]
SAMPLES = 2500
PROMPTS = (6, 8, 10, 25, 91)
LENGTHS = ("ended by themselves", "cut at 128")


def tokens(draw: np.random.Generator, lengths: str, prompts: int) -> Floats:
    """Tokens of completions: of very different lengths, or many of them as long as the limit."""
    if lengths == LENGTHS[0]:
        return 1.0 + draw.geometric(1 / 30, (SAMPLES, prompts))
    return np.minimum(128.0, 5 + draw.gamma(3, 25, (SAMPLES, prompts)).astype(int))


def spread_out(draw: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Floats:
    """Factors with mean 1 that differ by so much."""
    found: Floats = np.exp(spread * draw.standard_normal(shape) - spread**2 / 2)
    return found


def coverage(columns_SNK: Floats, powers: tuple[int, ...], truth: float, scale: Scale = "ratio") -> float:
    """The share of the samples whose interval holds the truth."""

    def statistic(totals: Floats) -> Floats:
        found: Floats = np.prod(totals ** np.array(powers, float), axis=-1)
        return found

    found = [over_rows(columns_NK, statistic, scale=scale) for columns_NK in columns_SNK]
    assert all(one.low is not None and one.high is not None for one in found)
    return float(np.mean([(one.low or 0) <= truth <= (one.high or 0) for one in found]))


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("prompts", PROMPTS)
def test_intervals_cover(prompts: int, lengths: str) -> None:
    """2,500 samples: a share of 0.93 is known to 0.005, and the shares are 0.937 to 0.965. Percentiles of a bootstrap
    cover the speedup with 0.85 at 8 prompts."""
    draw = np.random.default_rng([prompts, len(lengths)])
    length, shape = tokens(draw, lengths, prompts), (SAMPLES, prompts)
    alone = length * spread_out(draw, 0.05, shape)
    for spread in (0.15, 0.4):
        ours = length / 2 * spread_out(draw, spread, shape)
        assert coverage(np.stack([alone, length, ours, length], axis=-1), (1, -1, -1, 1), 2.0) >= 0.93
        passes = np.ceil(length / 3)  # v of 1.4, c of .1 with 4 tokens per pass
        verifying = 1.4 * passes * spread_out(draw, spread, shape)
        assert coverage(np.stack([verifying, passes, alone, length], -1), costs.POWERS_OF_V, 1.4) >= 0.93
        columns = [0.4 * passes * spread_out(draw, spread, shape), passes, alone, length, 4 * passes, passes]
        assert coverage(np.stack(columns, axis=-1), costs.POWERS_OF_C, 0.1) >= 0.93
    for alpha, alike in ((0.5, 8), (0.8, 6), (0.9, 12)):
        rates = draw.beta(alpha * alike, (1 - alpha) * alike, shape)
        beta = np.clip(
            length * rates + 0.5 * np.sqrt(length * rates * (1 - rates)) * draw.standard_normal(shape), 0, length
        )
        truth = float(beta.sum() / length.sum())
        assert coverage(np.stack([beta, length], axis=-1), (1, -1), truth, "probability") >= 0.93


def test_the_columns_of_a_run_have_the_powers_of_the_simulation(
    tmp_path: Path, folders: Folders, capfd: Capture
) -> None:
    """What the simulation above takes products of is what a run does: c and v are those of its record."""
    code, _, err, record = called(small_run(folders, tmp_path, "limit=3", "max_new_tokens=8"), tmp_path, capfd)
    assert code == 0, err
    prompts, summary = record["prompts"], record["summary"]
    totals = np.sum([costs.columns_of_c(prompt) for prompt in prompts], axis=0)
    assert np.prod(totals ** np.array(costs.POWERS_OF_C, float)) == pytest.approx(summary["c"])
    totals = np.sum([costs.columns_of_part(prompt, "verify_s") for prompt in prompts], axis=0)
    assert np.prod(totals ** np.array(costs.POWERS_OF_V, float)) == pytest.approx(summary["verify_cost"])


def test_the_factors_of_a_run_multiply_to_its_speedup(tmp_path: Path, folders: Folders, capfd: Capture) -> None:
    """c, v and overhead are one definition: with them tokens per pass give the measured speedup, but for time outside
    of steps and passes; and `explain` names the same c and v."""
    words = small_run(folders, tmp_path, "limit=3", "max_new_tokens=8")
    code, out, err, record = called(words, tmp_path, capfd)
    assert code == 0, err
    s = record["summary"]
    spent = s["drafted_per_pass"] * s["c"] + s["verify_cost"] + s["overhead"]
    assert spent == pytest.approx(s["drafting_per_pass"] + s["checking_per_pass"] + s["accepting_per_pass"])
    traces = [[prompt[mode] for prompt in record["prompts"]] for mode in ("baseline", "speculative")]
    timed = sum(sum(one.steps_s) for one in traces[0])
    passes = sum(a.draft_s + a.verify_s + a.accept_s for one in traces[1] for a in one.passes)
    tokens = [sum(len(one.tokens) for one in some) for some in traces]
    assert s["tokens_per_pass"] / spent == pytest.approx(timed / tokens[0] / (passes / tokens[1]))
    assert f"{s['c']:.3f}" in out and f"{s['verify_cost']:.3f}" in out


def prompts_of(texts: list[str]) -> list[Any]:
    """Prompts with these texts, of which equal ones have equal completions."""
    rates = {text: (0.3, 0.6, 0.8, 0.5)[number % 4] for number, text in enumerate(dict.fromkeys(texts))}
    return [
        {"prompt": text, "prompt_tokens": 4, "beta": [rates[text]] * 10, "lenient": {"0.5": 10 * rates[text]},
         "total_variation": {"0.5": 0.0}}
        for text in texts
    ]  # fmt: skip


def test_equal_prompts_count_once_in_an_interval() -> None:
    """Twelve equal prompts are one, and four prompts three times each are four."""
    (alone,) = [one for one in under_lenience(prompts_of(["a"] * 12)) if one["lenience"] == 1]
    assert alone["alpha"] == pytest.approx(0.3) and alone["alpha_low"] is None and alone["alpha_high"] is None
    thrice, once = (under_lenience(prompts_of(texts))[0] for texts in (["a", "b", "c", "d"] * 3, ["a", "b", "c", "d"]))
    for key in ("alpha", "alpha_low", "alpha_high"):
        assert thrice[key] == pytest.approx(once[key])  # type: ignore[literal-required]
    assert groups_of(prompts_of(["a", "b", "a"])) == [0, 1, 0]
    assert grouped([[1, 2], [3, 4], [5, 6]], [0, 1, 0]).tolist() == [[6, 8], [3, 4]]


def test_turns_with_one_question_are_different_prompts() -> None:
    first, second = prompts_of(["more", "more"])
    assert groups_of([first | {"turn": 2}, second | {"turn": 3}]) == [0, 1]
    assert groups_of([first, second | {"prompt_tokens": 9}]) == [0, 1]


def test_bounds_stay_on_their_scale() -> None:
    high = over_rows([(9.9, 10), (10, 10), (3.0, 10)], ratio, scale="probability")
    assert high.low is not None and high.high is not None and 0 < high.low < high.value < high.high < 1
    low = over_rows([(0.1, 10), (9, 10)], ratio)
    assert low.low is not None and low.low > 0
    assert over_rows([(1, 2), (1, 2)], ratio) == Interval(0.5, 0.5, 0.5)
    assert over_rows([(0, 2), (0, 3)], ratio, scale="probability") == Interval(0.0, 0.0, 0.0)
    assert over_rows([(1, 2)], ratio) == Interval(0.5, None, None)
    alone = over_rows([(1.0, 2.0), (0.0, 0.0)], ratio)  # without the first prompt nothing is left
    assert alone == Interval(0.5, None, None)


@pytest.mark.filterwarnings("error")
def test_a_row_that_cannot_be_left_out_is_no_warning_on_the_screen() -> None:
    """A run whose draft proposed something in one of its two prompts alone printed numpy's 'invalid value'."""
    assert over_rows([(1.0, 2.0), (1.0, 0.0)], ratio) == Interval(1.0, None, None)


def test_long_completions_leave_fewer_degrees_of_freedom() -> None:
    even, uneven = Jackknife.of([(1, 2)] * 10), Jackknife.of([(10, 20)] * 2 + [(1, 2)] * 8)
    assert even.freedom == pytest.approx(9) and uneven.freedom == pytest.approx(28**2 / 208 - 1)


def test_the_variance_within_prompts_adds_to_that_between_them() -> None:
    rows = [(10.0, 10, 5.0, 10), (10.0, 10, 6.0, 10), (10.0, 10, 4.5, 10)]
    between, both = over_rows(rows, ratio_of_ratios), over_rows(rows, ratio_of_ratios, [(1.0, 0, 1.0, 0)] * 3)
    assert between.high is not None and both.high is not None and both.high > between.high
