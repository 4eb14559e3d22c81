"""The rows that `experiments/beyond.yaml` promises are what its sweeps make, each run once; its commands compose."""

import json
import shlex
from dataclasses import asdict
from itertools import product
from typing import Any

import hydra
import pytest
import yaml
from omegaconf import OmegaConf

from specbench.compose.to_schema import to_schema
from specbench.compose.unnamed import conf_of_hydra
from specbench.config.checks import check
from specbench.config.paths import shipped
from specbench.config.rules import rule_of
from specbench.config.schema import RunConfig
from specbench.experiment.drafting_plan import choose_gamma
from specbench.report.paper import experiment
from specbench.report.tables.beyond import planned
from tests.support.composed import PARTS, compose


def jobs(sweep: str) -> list[RunConfig]:
    """What `specbench sweep experiment=SWEEP` runs. Choices are composed, numbers put in: composing is slow."""
    _, params = compose(sweep)
    listed = {key: [f"{key}={value}" for value in values.split(",")] for key, values in params.items()}
    groups = [listed.pop(key) for key in ("draft", "accept") if key in listed]
    found = []
    for choices in product(*groups):
        with conf_of_hydra():
            chosen = hydra.compose("run", overrides=[f"experiment={sweep}", *choices])
        for numbers in product(*listed.values()):
            one = chosen.copy()
            for key, value in (number.split("=") for number in numbers):
                OmegaConf.update(one, key, yaml.safe_load(value))
            found.append(to_schema(one, RunConfig))
    return found


def row(config: RunConfig) -> tuple[Any, ...]:
    gamma = config.gamma if config.gamma == "adaptive" else choose_gamma(config, None).requested  # type: ignore[arg-type]
    names = (config.target.name, config.draft.label(), config.task.name, config.sampling.temperature)
    return (*names, "exact" if (rule := rule_of(config.accept)).is_exact else rule.label(), str(gamma))


@pytest.mark.full
def test_the_sweeps_make_the_planned_rows_and_no_run_twice() -> None:
    made: dict[str, set[tuple[Any, ...]]] = {}
    runs = []
    for sweep in ("beyond-mini", *sorted(name for name in PARTS if name.startswith("beyond-mini-"))):
        configs = jobs(sweep)
        for config in configs:
            check(config)
        made[f"specbench sweep experiment={sweep}"] = {row(config) for config in configs}
        runs += [json.dumps(asdict(config), sort_keys=True) for config in configs]
    promised: dict[str, set[tuple[Any, ...]]] = {}
    for p in planned():
        key = (p["target"], p["draft"], p["task"], p["temperature"], p["accept"], p["gamma_said"])
        promised.setdefault(p["command"], set()).add(key)
    assert made == promised
    assert len(set(runs)) == len(runs) == sum(map(len, made.values()))


@pytest.mark.full
def test_the_commands_for_models_of_ones_own_compose() -> None:
    for command in experiment("beyond")["own"]:
        verb, *overrides = shlex.split(command)[1:]
        keys = dict(word.split("=", 1) for word in overrides)
        assert verb == "sweep"
        choices = [f"{key}={value.split(',')[0]}" for key, value in keys.items() if key != "experiment"]
        config, _ = compose(keys["experiment"], *choices)
        assert (config.target.path or config.draft.path) is not None


def test_the_heads_that_ship_draft_as_many_as_the_plan_asks_for() -> None:
    facts = json.loads((shipped("models", "t5-mini-blockwise") / "config.json").read_text())
    assert facts["heads"] - 1 == max(int(p["gamma_said"]) for p in planned() if p["draft"] == "blockwise")
