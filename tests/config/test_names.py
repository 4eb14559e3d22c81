"""What a model and a task are called: a name that is given wins, and own rows are no task of the paper."""

from pathlib import Path

import pytest

from specbench.cli import main
from specbench.config.model import name_of
from specbench.config.schema import RunConfig, task_label
from specbench.config.verbs import ChooseConfig
from specbench.errors import UserError

# Keys, and the names of target and draft.
NAMES = {
    "the shipped models": ([], "t5-mini", "t5-nano-top1000"),
    "folders in the place of the defaults": (["target.path=a/mine", "draft.path=b/yours"], "mine", "yours"),
    "a choice that was made": (["target=t5-xxl", "target.path=a/mine"], "t5-xxl", "t5-nano-top1000"),
    "a choice of a draft": (["draft=t5-small", "draft.path=b/yours"], "t5-mini", "t5-small"),
    "a name": (["target.path=a/mine", "target.name=t5-xxl"], "t5-xxl", "t5-nano-top1000"),
    "heads": (["draft=blockwise", "draft.path=b/heads"], "t5-mini", "blockwise-heads"),
    "heads with a name": (["draft=blockwise", "draft.path=b/heads", "draft.name=best"], "t5-mini", "blockwise-best"),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_name_that_is_given_wins(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, target, draft = NAMES[case]
    configs: list[RunConfig] = []
    monkeypatch.setattr("specbench.api.check", lambda _: None)
    monkeypatch.setattr("specbench.experiment.runner.execute", lambda config, *_: configs.append(config))
    assert main(["run", *keys]) == 0
    assert (name_of(configs[0].target), configs[0].draft.label()) == (target, draft)


@pytest.mark.full
def test_each_of_several_drafts_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[ChooseConfig] = []
    monkeypatch.setattr("specbench.api.check_choose", configs.append)
    monkeypatch.setattr("specbench.choose.alpha.measure_alpha", lambda *_: 1 / 0)
    assert main(["alpha", "draft=[t5-small,bigram]", "draft.path=[b/one,b/two]", "sampling.temperature=0"]) == 1
    assert [config.draft.label() for config in configs] == ["t5-small", "bigram", "one", "two"]


def test_own_rows_say_so() -> None:
    assert task_label("ende", None) == "ende"
    assert task_label("ende", str(Path("folder") / "rows.jsonl")) == "ende (rows.jsonl)"


@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle", "eagle3", "mtp", "dflash", "pass", "peagle", "blockwise"])
def test_a_trained_draft_is_found_in_a_folder_of_its_kind(kind: str) -> None:
    """As a model it is refused, with these words as the way out."""
    from specbench.compose.hydra_app import composed_config
    from specbench.config.checks import check
    from specbench.config.paths import shipped
    from specbench.config.schema import RunConfig

    folder = shipped("models", f"gpt-mini-{kind}")
    check(composed_config(RunConfig, ["target=gpt-mini", f"draft={kind}", f"draft.path={folder}"], "run"))
    with pytest.raises(UserError, match="holds a trained draft, not a model: draft="):
        check(composed_config(RunConfig, ["target=gpt-mini", f"draft={folder}"], "run"))
