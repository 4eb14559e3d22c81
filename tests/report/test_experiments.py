"""Every sweep composes and stays within the ranges; every table and figure has its file, its sweep and its twin."""

import pytest
import yaml

from specbench.config.catalogue import choice_names
from specbench.config.checks import GAMMAS, check
from specbench.config.paths import experiments_dir
from specbench.report.figures import FIGURES
from specbench.report.paper import experiment, paper
from specbench.report.tables import TABLES
from tests.support.composed import PARTS, SWEEPS, compose
from tests.support.scripts import loaded

# The twins' common part; part of table3, whose twin covers it; a twin of two tasks in turn.
ALONE = {"check-mini", "processes", "mini", "table3-lm1b", "online-mini", "online-mini-weak", *PARTS}


NUMBERS = (
    "gamma",
    "sampling.temperature",
    "accept.lenience",
    "accept.tau",
    "draft.bits",
    "draft.second.bits",
    "draft.via.bits",
    "draft.layers",
    "draft.lengths",
    "draft.online_lr",
    "task.shuffle",
    "tree.size",
)


@pytest.mark.full
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_composes_and_every_value_is_allowed(name: str) -> None:
    config, params = compose(name)
    if config.target.shipped is None and config.target.path is None:
        check(config)
    for key, values in params.items():
        for value in values.split(","):
            if key in ("target", "task", "draft", "accept", "tree"):
                assert value in choice_names(key)
            elif not (key == "gamma" and value in GAMMAS) and value != "null":
                assert key in NUMBERS
                assert 0 <= float(value.strip("[]")) <= 64


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(SWEEPS) - ALONE))
def test_a_sweep_has_a_twin(name: str) -> None:
    assert name.endswith("-mini") or f"{name}-mini" in SWEEPS
    if name.endswith("-mini"):
        config, _ = compose(name)
        assert (config.target.name, config.task.name, config.limit) == ("t5-mini", "ende-mini", 30)


@pytest.mark.parametrize("name", [*TABLES, *FIGURES])
def test_every_table_and_figure_has_its_file(name: str) -> None:
    plan = experiment(name)
    assert {"title", "place", "shows", "sweep", "silent", "takes"} <= set(plan)
    assert plan["sweep"] in SWEEPS or name == "table1"


def test_the_papers_rows_are_in_the_sweep() -> None:
    config, params = compose("table2")
    assert config.target.name == "t5-xxl"
    for row in paper()["table2"]["rows"]:
        for key, value in (("task", row["task"]), ("draft", row["draft"]), ("gamma", str(row["gamma"])),
                           ("sampling.temperature", str(row["temperature"]))):  # fmt: skip
            assert value in params[key].split(",")


def test_the_command_line_wins_over_an_experiment() -> None:
    config, _ = compose("table2", "limit=3", "draft=t5-base")
    assert (config.limit, config.draft.name) == (3, "t5-base")


def test_files_are_plain_yaml() -> None:
    for file in experiments_dir().glob("*.yaml"):
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


@pytest.mark.parametrize(("drafted", "passes", "predicted"), [(6, 3, 1.0), (None, 3, None), (None, None, None)])
def test_a_draft_that_costs_has_no_prediction_without_counts(
    drafted: int | None, passes: int | None, predicted: float | None
) -> None:
    summary = {
        "engine": "toy 1", "draft": "small", "gamma": 3, "temperature": 0, "tpot_s_baseline": 0.01, "lossless": True,
        "tokens_per_pass": 2.0, "drafted": drafted, "accepted": None, "passes": passes, "tokens": 6, "prompts": 1,
        "verdict": "the target's", "verified": True, "speedup_measured": 1.0, "speedup_low": 0.9, "speedup_high": 1.1,
    }  # fmt: skip
    table = loaded(experiments_dir() / "engines_table.py")
    assert table.row(summary, {"toy:small": 5.0})["predicted"] == predicted
