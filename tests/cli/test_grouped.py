"""`specbench results --group-by`: what is said of a run beside the fastest of its group."""

import pytest

from specbench.cli.groups import _draw_groups

ONE = {"run_id": "a", "alpha": 0.7, "speedup_measured": 1.5, "lossy": False, "gamma": 3, "passes_run": "in C"}
PAIRED = {
    "speedup": {"value": 0.9, "low": None, "high": None},
    "alpha": {"value": 0.0, "low": None, "high": None},
    "prompts": 1,
}


def test_one_prompt_or_none_in_common_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    alone = {**ONE, "run_id": "b", "gamma": 5}
    single = {**ONE, "run_id": "c", "gamma": 7, "against_best": PAIRED}
    _draw_groups([{"group": {"target": "t"}, "rows": [ONE, alone, single]}], "gamma")
    fastest, apart, rough = capsys.readouterr().out.splitlines()[2:]
    assert "fastest" in fastest and "no prompt in common" in apart and "fastest" not in apart
    assert "one prompt tells nothing" in rough
