"""Steps and passes that took much longer than the usual one: counted by kind, told where many are, and compared."""

from pathlib import Path
from typing import Any, cast

import pytest

from specbench.analysis.costs.slow import UNUSUAL, differ, slow
from specbench.cli import main
from specbench.records import store
from specbench.records.numbers import Summary
from specbench.report.remarks import uneven
from tests.support.made_passes import made_pass, made_trace
from tests.support.made_records import make


def prompts(passes: list[tuple[int, float]], steps: list[float]) -> Any:
    """One prompt whose passes drafted so many tokens in so many seconds."""
    made = [made_pass(drafted=drafted, draft_s=seconds) for drafted, seconds in passes]
    return [{"baseline": made_trace(steps_s=steps), "speculative": made_trace(passes=made)}]


def test_a_pass_is_slow_beside_passes_that_drafted_as_many_tokens() -> None:
    """Passes over more tokens take longer, and none of them is slow for it; one of ten of each kind is."""
    even = [(3, 1.0)] * 9 + [(3, 1.4)] + [(7, 2.0)] * 9 + [(7, 2.7)]
    assert slow(prompts(even, [1.0] * 19 + [1.31])) == {"slow_steps": 1 / 20, "slow_passes": 2 / 20}
    assert slow(prompts([(3, 1.0)] * 4, [1.0] * 20)) == {"slow_steps": 0.0}  # too few passes to say what is usual


def test_a_run_with_many_slow_passes_says_so() -> None:
    said = uneven(cast(Summary, {"slow_passes": UNUSUAL + 0.05, "slow_steps": 0.02}))
    assert said is not None and said.startswith("uneven: 20% of the passes") and "2% of the target's own steps" in said
    assert uneven(cast(Summary, {"slow_passes": UNUSUAL / 2, "slow_steps": 0.02})) is None
    assert uneven(cast(Summary, {"slow_passes": 1.0, "disturbed": True})) is None  # its own line says more


def test_two_runs_that_differ_in_it_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make(tmp_path, again=1, prompts=6), make(tmp_path, again=2, prompts=6)
    record = store.read(store.record_file(tmp_path, second))
    for prompt in record["prompts"]:
        for number, one in enumerate(prompt["speculative"].passes):
            one.verify_s *= 2.0 if number % 3 == 0 else 1.0
    store.write(tmp_path, record)
    assert main(["compare", first, second, f"--results={tmp_path}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0% of passes of A and " in out and "took more than 1.3 times their median" in out
    assert differ({"slow_passes": 0.02}, {"slow_passes": 0.05}) == []
