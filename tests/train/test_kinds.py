"""What a recipe trains is its `kind`, and a checkpoint of before recipes had one is still the same training's."""

from dataclasses import replace
from typing import Any

import pytest

from specbench.config.draft import TrainedConfig, named
from specbench.config.drafts import DRAFT_KINDS
from specbench.errors import UserError
from specbench.train.frozen import FrozenTargetLearner
from specbench.train.next_command import next_command
from specbench.train.recipe_checks import CHECK_OF, check
from specbench.train.recipe_schema import PLAN_OF, BlockPlan, DataPlan, DistillPlan, EaglePlan, HeadsPlan, Recipe
from specbench.train.resuming import _of_today, fingerprint

ON_TARGET = Recipe(data=DataPlan(path=["x"]), distill=DistillPlan(target="t"))
# As version 0.1.0 wrote them on 27 November 2026.
FORMER: list[tuple[dict[str, Any], Recipe]] = [
    ({"heads.kind": "medusa", "heads.rank": 4}, Recipe(kind="medusa", heads=HeadsPlan(rank=4))),
    ({"heads.kind": "hydra"}, Recipe(kind="hydra")),
    ({"eagle.steps": 1}, Recipe(kind="eagle")),
    (
        {"eagle.steps": 3, "eagle.fused": True, "eagle.taps": [2, 4, 5]},
        Recipe(kind="eagle3", eagle=EaglePlan(steps=3, taps=[2, 4, 5])),
    ),
    ({"eagle.steps": 2, "eagle.mtp": True}, Recipe(kind="mtp", eagle=EaglePlan(steps=2))),
    (
        {"eagle.steps": 5, "eagle.parallel": True, "eagle.taps": [1], "seed": 2},
        Recipe(kind="peagle", seed=2, eagle=EaglePlan(steps=5, taps=[1])),
    ),
    ({"block.size": 8}, Recipe(kind="dflash")),
    ({"block.size": 7, "block.rank": 64}, Recipe(kind="dspark", block=BlockPlan(size=7, rank=64))),
    ({"blockwise.heads": 5}, Recipe(kind="blockwise")),
    ({"specdec.queries": 5}, Recipe(kind="specdec")),
    ({"look_ahead.number": 4}, Recipe(kind="pass")),
    ({"pard.steps": 5}, Recipe(kind="pard")),
    ({"seed": 3}, Recipe(seed=3)),
    ({}, Recipe()),
]


def test_each_kind_has_a_learner_and_a_check() -> None:
    trained = {kind for kind, config in DRAFT_KINDS.items() if issubclass(config, TrainedConfig)}
    assert {*PLAN_OF} == {"model", *trained}
    assert {*CHECK_OF} == {*filter(None, PLAN_OF.values())}
    for kind in trained:
        config = DRAFT_KINDS[kind]
        assert issubclass(config, TrainedConfig) and issubclass(named(config.learner), FrozenTargetLearner)


@pytest.mark.parametrize(("written", "recipe"), FORMER, ids=lambda one: "" if isinstance(one, dict) else one.kind)
def test_a_fingerprint_from_before_is_that_of_the_same_recipe(written: dict[str, Any], recipe: Recipe) -> None:
    assert _of_today(written) == fingerprint(recipe)
    assert _of_today(fingerprint(recipe)) == fingerprint(recipe)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (replace(ON_TARGET, kind="medusa", eagle=EaglePlan(steps=2)), "eagle.steps: is for kind=eagle or eagle3"),
        (replace(ON_TARGET, kind="model", heads=HeadsPlan(number=2)), "heads.number: is for kind=medusa or hydra"),
        (replace(ON_TARGET, kind="eagel"), "kind is 'eagel': choose one of model"),
        (replace(ON_TARGET, task="lm", kind="dflash", block=BlockPlan(rank=4)), "block.rank=4: is dspark's"),
        (replace(ON_TARGET, task="lm", kind="dspark"), "block.rank is 0: it must be from 1"),
    ],
)
def test_options_of_another_kind_are_refused(recipe: Recipe, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check(recipe)


def test_the_next_command_names_the_kind_of_draft() -> None:
    recipe = replace(ON_TARGET, kind="eagle3", output="out/layer")
    assert next_command(recipe) == "specbench run target=./t draft=eagle3 draft.path=out/layer"
