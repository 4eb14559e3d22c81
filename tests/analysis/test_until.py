"""`until=2%`: the looks of a run, that its interval covers although it looked, and that a resumed run looks again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student_t

from specbench.analysis.looks import FIRST, Looks, sizes_of_looks
from specbench.analysis.summary import resummarised, under_lenience
from specbench.cli import main
from specbench.experiment import runner
from specbench.stats import Interval, over_rows, ratio_of_ratios, student, t_quantile
from tests.support.calls import called, interrupted, refusal, small_run

Capture = pytest.CaptureFixture[str]
RUNS, PROMPTS, SPREAD = 300, 300, 0.3
TRUE = 2 * np.exp(0.05**2 / 2)


def tasks(seed: int) -> Any:
    """Seconds and tokens of the prompts of `RUNS` tasks, whose speedup over endless prompts is `TRUE`."""
    draw = np.random.default_rng(seed)
    for _ in range(RUNS):
        tokens = 1 + draw.geometric(1 / 30, PROMPTS)
        alone = tokens * np.exp(0.05 * draw.standard_normal(PROMPTS))
        ours = tokens / 2 * np.exp(SPREAD * draw.standard_normal(PROMPTS) - SPREAD**2 / 2)
        yield np.stack([alone, tokens, ours, tokens], axis=-1)


class Simulated(Looks):
    """Looks at columns in place of prompts; `plain` is the fault: intervals of 95% at every look."""

    plain = False
    last: Interval

    def _half_width(self, prompts: Any) -> float:
        level = None if self.plain else self.level
        self.last = over_rows(prompts, ratio_of_ratios, level=level)
        assert self.last.low is not None and self.last.high is not None
        return (self.last.high - self.last.low) / (2 * self.last.value)


class Plain(Simulated):
    plain = True


def coverage(kind: type[Simulated]) -> float:
    hits = 0
    for columns in tasks(1):
        looks = kind(0.12, PROMPTS, 1)
        assert looks.see(columns)
        assert looks.last.low is not None and looks.last.high is not None
        hits += looks.last.low <= TRUE <= looks.last.high
    return hits / RUNS


@pytest.mark.statistical
def test_the_interval_at_which_a_run_stops_covers_and_a_plain_one_does_not() -> None:
    """300 runs that stop between 20 and 300 prompts. Bonferroni's level covers with 98.5%, at least 95% are promised:
    below 95% of 300 for less than one seed in 10,000. The plain interval covers with 87%: 93% or more for less than one
    seed in 500."""
    assert coverage(Simulated) >= 0.95
    assert coverage(Plain) < 0.93


def test_looks_are_set_before_the_run() -> None:
    assert sizes_of_looks(100) == [20, 30, 45, 68, 100]
    assert sizes_of_looks(100, 16) == [32, 48, 80, 100]
    assert sizes_of_looks(FIRST) == [FIRST] and sizes_of_looks(7) == [7]
    assert Looks(0.02, 100, 1).level == pytest.approx(1 - 0.05 / 5)
    assert Looks(0.02, 7, 1).level == pytest.approx(0.95)


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 19, 500, 1e5])
def test_the_quantile_of_t(freedom: float) -> None:
    for probability in (0.975, 0.9975):
        assert t_quantile(probability, freedom) == pytest.approx(student_t.ppf(probability, freedom), rel=5e-4)


def test_a_higher_level_is_wider_and_nothing_that_differs_has_no_width() -> None:
    ordinary, wide = student(1.0, [(0.01, 19)]), student(1.0, [(0.01, 19)], level=0.99)
    assert ordinary.low is not None and wide.low is not None and wide.low < ordinary.low < 1
    assert student(1.0, [(0.0, 19)]) == Interval(1.0, 1.0, 1.0)


def test_no_interval_of_a_probability_reaches_beyond_1() -> None:
    prompts: Any = [
        {"beta": [0.6 if number == 0 else 1.0] * 4, "prompt": str(number), "prompt_tokens": 1} for number in range(5)
    ]
    found = under_lenience([one | {"lenient": {}, "total_variation": {}} for one in prompts], level=0.99)
    assert found[0]["alpha"] == pytest.approx(0.92)
    assert found[0]["alpha_high"] is not None and 0.92 < found[0]["alpha_high"] <= 1.0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks after 2 and 3 of 3 prompts."""
    monkeypatch.setattr("specbench.analysis.looks.FIRST", 2)


def test_a_run_stops_and_says_so(
    few: None, folders: dict[str, Path], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looks, "_half_width", lambda self, prompts: 0.5)
    code, out, err, record = called(small_run(folders, tmp_path, "limit=3", "until=99%"), tmp_path, capfd)
    assert code == 0, err
    summary = record["summary"]
    assert (summary["prompts"], summary["looks"], summary["looks_planned"], summary["prompts_offered"]) == (2, 1, 2, 3)
    assert summary["level"] == pytest.approx(1 - 0.05 / 2) and summary["until"] == 0.99
    assert len(record["prompts"]) == 2 and "until=99%: looks after 2, 3 prompts, each at 97.50%" in err
    assert "until=99%: stopped after 2 of 3 prompts" in out and "1 of 2 looks" in out
    again = resummarised(record)["summary"]
    for name in ("speedup_low", "speedup_high", "alpha_low", "verify_cost_high"):
        assert again[name] == summary[name]  # type: ignore[literal-required]
    assert not list((tmp_path / "journals").iterdir())


def test_a_width_that_no_prompts_give_ends_with_the_task(
    few: None, folders: dict[str, Path], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.report.console.SLOW_S", 0)
    code, out, err, record = called(small_run(folders, tmp_path, "limit=3", "until=0.0001%"), tmp_path, capfd)
    assert code == 0, err
    assert (record["summary"]["prompts"], record["summary"]["looks"]) == (3, 2)
    assert "not stopped after 3 of 3 prompts" in out and "speedup ±" in err


def test_an_interrupted_run_takes_the_same_looks(
    few: None, folders: dict[str, Path], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look after 2 of 3 prompts is narrow, and the process ends before its record is written: the next one stops
    there, too, and decodes nothing."""
    argv = small_run(folders, tmp_path, "limit=3", "until=50%")
    monkeypatch.setattr(Looks, "_half_width", lambda self, prompts: {2: 0.4, 3: 0.3}[len(prompts)])
    with interrupted(monkeypatch, 1):
        assert main(argv) == 130

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "make_record", killed)
        assert main(argv) == 130
    monkeypatch.setattr(runner, "measure_prompt", None)
    code, _, err, record = called(argv, tmp_path, capfd)
    assert code == 0, err
    assert (record["summary"]["prompts"], record["summary"]["looks"], record["summary"]["processes"]) == (2, 1, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["until=2"], "until=2: must be a share between 0 and 1, such as 2% or 0.02"),
        (["until=soon"], "until=soon: must be a share between 0 and 1"),
        (["until=2%", "runs=3"], "runs=3: not together with until=2%"),
        (["until=2%", "target.tp_plan=auto"], "until=2%: not together with target.tp_plan"),
        (["runs=0"], "runs=0: must be from 1 to 100"),
    ],
)
def test_refused(words: list[str], said: str, capfd: Capture) -> None:
    assert said in refusal(["run", *words], capfd)
