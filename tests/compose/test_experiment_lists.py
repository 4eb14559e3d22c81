"""`specbench alpha experiment=NAME`: the drafts, rules and temperatures of an experiment, scored on one sample."""

import shlex

import pytest

from specbench.cli import main
from specbench.config.rules import rule_of
from specbench.config.verbs import ChooseConfig
from specbench.report.paper import fill_twin, fills, paper

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[ChooseConfig]:
    """What `specbench alpha` would score."""
    found: list[ChooseConfig] = []
    monkeypatch.setattr("specbench.cli.measure_alpha.score", lambda form, configs: found.extend(configs))
    return found


@pytest.mark.full
def test_table_3_is_filled_without_decoding_with_each_draft(composed: list[ChooseConfig]) -> None:
    cells = {
        (row["target"], row["task"], row["draft"], temperature)
        for row in paper()["table3"]["rows"] if row.get("public", True) for temperature in (0, 1)
    }  # fmt: skip
    commands = fills("table3")
    assert len(commands) == 3
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    names = [(one.target.name, one.task.name, one.draft.label(), one.sampling.temperature) for one in composed]
    assert set(names) == cells and len(names) == len(cells)
    assert {one.limit for one in composed} == {400}


@pytest.mark.full
def test_its_twin_runs_on_the_models_that_ship(composed: list[ChooseConfig]) -> None:
    assert fill_twin("table3") == "specbench alpha experiment=table3-mini"
    assert main(shlex.split(fill_twin("table3"))[1:]) == 0
    assert {one.target.name for one in composed} == {"t5-mini"} and len(composed) == 8


def test_keys_that_are_given_win(composed: list[ChooseConfig]) -> None:
    assert main(["alpha", "experiment=table3", "task=cnndm", "draft=t5-base", "sampling.temperature=1"]) == 0
    (one,) = composed
    assert (one.draft.name, one.task.name, one.sampling.temperature) == ("t5-base", "cnndm", 1)


@pytest.mark.full
def test_a_rule_with_its_own_list(composed: list[ChooseConfig]) -> None:
    assert main(["alpha", "experiment=table5-mini", "draft=bigram", "sampling.temperature=0"]) == 0
    assert [rule_of(one.accept).label() for one in composed] == [
        f"lenient l={lenience:g}" for lenience in (1, 0.5, 0.3, 0.1)
    ]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["experiment=table3"], "experiment=table3: its tasks are ende, cnndm; name one of them, task=ende"),
        (["experiment=tabl3"], "experiment=tabl3: no such experiment; did you mean table3"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], said: str, composed: list[ChooseConfig], capfd: Capture) -> None:
    assert main(["alpha", *argv]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {said}") and err.count("\n") == 1 and not composed
