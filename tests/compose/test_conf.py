"""Every shipped choice composes against the schema, and says what is wrong with a bad one in one line."""

import re
from dataclasses import replace

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

from specbench.cli import main
from specbench.compose.hydra_app import composed_config
from specbench.compose.to_schema import to_schema
from specbench.compose.unnamed import conf_of_hydra
from specbench.config.catalogue import choice_names
from specbench.config.checks import check
from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig
from specbench.config.tree import TreeConfig
from specbench.methods.model.config import ModelDraftConfig

GROUPS = ("target", "draft", "task", "accept", "tree")
CHOICES = [(group, name) for group in GROUPS for name in choice_names(group)]


@pytest.mark.covering("group")
@pytest.mark.parametrize(("group", "choice"), sorted(CHOICES))
def test_every_choice_composes(group: str, choice: str) -> None:
    ConfigStore.instance().store(name="run_schema", node=RunConfig)
    with conf_of_hydra():
        composed = hydra.compose("run", overrides=[f"{group}={choice}"])
    config = to_schema(composed, RunConfig)
    picked = getattr(config, group)
    if group == "tree":
        assert picked.shape == choice and (choice == "none") == (config.gamma != "tree")
        check(config)
        return
    if group == "accept":
        assert picked.rule == choice
        tree = TreeConfig("widths", [2], children="replaced")
        check(replace(config, tree=tree, gamma="tree") if choice in ("traversal", "k-seq", "multi-path") else config)
        return
    if choice != "hub":
        assert choice in (picked.name, picked.label() if isinstance(picked, ModelDraftConfig) else None)
    if isinstance(picked, ModelConfig) and picked.hub:
        # Those that the paper's tables are made with are pinned; of others the newest commit is recorded.
        pinned = choice.startswith(("t5", "flan", "gpt", "distilgpt2"))
        assert re.fullmatch(r"[0-9a-f]{40}", picked.revision) if pinned else picked.revision is None
        assert picked.note


def test_defaults_are_within_their_ranges() -> None:
    ConfigStore.instance().store(name="run_schema", node=RunConfig)
    with conf_of_hydra():
        check(to_schema(hydra.compose("run"), RunConfig))


@pytest.mark.parametrize(
    ("words", "name", "top_tokens"),
    [
        ((), "t5-nano", 1000),
        (("draft.path=.",), None, None),  # another model, of which all tokens are drafted
        (("draft.hub=google-t5/t5-small",), None, None),
        (("draft.path=.", "draft.top_tokens=500"), None, 500),
        (("draft.online=true",), "t5-nano", None),  # it learns all tokens
        (("draft.weights=random",), "t5-nano", None),
        (("draft.confidence=0.5",), "t5-nano", 1000),
        (("task=prompts", "task.path=p.txt"), "t5-nano", None),  # there is no text in which tokens are counted
        (("task=./p.txt",), "t5-nano", None),
        (("task=./p.txt", "task.train_path=t.txt"), "t5-nano", 1000),
        (("task=./p.txt", "draft=t5-nano-top1000"), "t5-nano", 1000),
        (("task=./p.txt", "draft.top_tokens=500"), "t5-nano", 500),
        (("draft=t5-nano-top1000", "draft.online=true"), "t5-nano", 1000),  # asked for by name: refused, not changed
    ],
)
def test_what_replaces_the_default_draft_keeps_nothing_of_it(
    words: tuple[str, ...], name: str | None, top_tokens: int | None
) -> None:
    draft = composed_config(RunConfig, words, "run").draft
    assert isinstance(draft, ModelDraftConfig)
    assert (draft.name, draft.top_tokens) == (name, top_tokens)


WRONG = {
    "gama=3": "gama: no such option; did you mean gamma?",
    "sampling.temprature=1": "sampling.temprature: no such option; did you mean sampling.temperature",
    "+nonsense=1": "nonsense: no such option; the options are accept, batch, context, device, draft",
    "gamma=x": "gamma=x: must be from 1 to 64, or auto | adaptive",
    "gamma=0": "gamma=0: must be from 1 to 64",
    "gamma=1000": "gamma=1000: must be from 1 to 64",
    "gamma": "gamma: cannot be read; write key=value",
    "sampling=1": "sampling=1: is a group of options; set each by its name, such as sampling.temperature=VALUE",
    "target=t5-foo": "target=t5-foo: no such target; did you mean t5-",
    "draft=unigramm": "draft=unigramm: no such draft; did you mean unigram, ... 'specbench list draft' shows all",
    "draft=bigrm": "draft=bigrm: no such draft; did you mean bigram, ",
    "T=1": "T: no such option; did you mean sampling.temperature?",
    "top_p=0.9": "top_p: no such option; did you mean sampling.top_p?",
    "--nonsense": "nonsense: no such option; the options are accept, batch, context, device, draft",
    "--gamma": "--gamma: give a value",
    "--resolve": "--resolve: belongs to --cfg job",
    "--cfg=task": "--cfg task: must be job | hydra | all",
    "--format=xml": "--format xml: no such format; choose from table, csv, json",
    "target=/no/such": "target.path=/no/such: must be a folder; there is none of that name",
    "draft=./mine": "draft.path=mine: must be a folder; there is none of that name",
    "draft=eagle draft.path=owner/name@main": "draft.path=owner/name@main: must be a folder; there is none of that "
    "name; of the hub: draft.hub=owner/name draft.revision=main",
    "task=/no/rows.jsonl": "task.path=/no/rows.jsonl: must be a file or folder; there is none of that name",
    "accept=Qwen/X": "accept=Qwen/X: is picked by its name; 'specbench list accept' shows them",
    "draft=[unigram,bigram]": "draft=[unigram,bigram]: a run takes one draft; use specbench sweep draft=unigram,bigram",
    "draft=unigram,bigram": "draft=unigram,bigram: a run takes one draft; use specbench sweep draft=unigram,bigram",
    "accept=[exact,block]": "accept=[exact,block]: a run takes one accept; use specbench sweep accept=exact,block",
    "target=[gpt-mini,gpt2]": "target=[gpt-mini,gpt2]: a run takes one target; use specbench sweep target=",
    "gamma=[1,3]": "gamma=[1,3]: a run takes one gamma; use specbench sweep gamma=1,3",
    "gamma=1,3": "gamma=1,3: a run takes one gamma; use specbench sweep gamma=1,3",
    "task=wmd": "task=wmd: no such task; did you mean wmt?",
    "target.path=/no/such/folder": "target.path=/no/such/folder: must be a folder",
    "task.path=/no/such/file": "task.path=/no/such/file: must be a file or folder",
    "target=gpt-97m": "target.path=models/gpt-97m: does not exist yet; specbench train recipe=gpt-97m (about 8 hours",
    "draft=gpt-6m": "draft.path=models/gpt-6m: does not exist yet; specbench train recipe=gpt-6m ... after specbench "
    "train recipe=gpt-97m (",
    "target=hub": "target: names no model; give target=OWNER/NAME",
    "dtype=float8": "dtype=float8: must be float32 | float16 | bfloat16 | auto",
    "device=tpu": "device=tpu: must be cpu | auto",
    "device=cuda:9": "device=cuda:9: this machine has ... CUDA devices; use device=cpu",
    "sampling.temperature=-1": "sampling.temperature=-1.0: must be 0 (argmax), or from 1e-06 to 100",
    "sampling.temperature=1e-40": "sampling.temperature=1e-40: must be 0 (argmax), or from 1e-06 to 100",
    "sampling.top_k=0": "sampling.top_k=0: must be at least 1",
    "sampling.top_p=1.5": "sampling.top_p=1.5: must be above 0 and at most 1",
    "max_new_tokens=0": "max_new_tokens=0: must be at least 1",
    "limit=0": "limit=0: must be at least 1",
    "draft=bigram draft.discount=1.0": "draft.discount=1.0: must be between 0 and 1",
    "draft.discount=0.75": "draft.discount=0.75: draft.kind=model has no such option; kinds that have it: bigram",
    "draft=lookup draft.path=/tmp": "draft.path=/tmp: draft.kind=lookup has no such option; kinds that have it: model",
    "draft=cascade draft.inner.match=2": "draft.inner.match=2: draft.inner.kind=bigram has no such option",
    "draft=lookup draft.mach=2": "draft.mach: no such option; did you mean draft.match",
    "tree=widths tree.widths=[4,0]": "tree.widths=[4, 0]: must be 1 to 64 numbers of at least 1",
    "tree=widths tree.widths=[9,9,9]": "tree.widths=[9, 9, 9]: makes 820 nodes, and the most are 256; give fewer",
    "tree=sequoia tree.size=1": "tree.size=1: must be from 2 to 256",
    "tree=sequoia max_new_tokens=8": "tree=sequoia: its 8 levels have no room in max_new_tokens=8",
    "tree=sequoia tree.acceptance=[0.9,0.2]": "tree.acceptance=[0.9, 0.2]: must be probabilities whose",
    "tree=dynamic tree.top=null": "tree.top is not set: tree=dynamic requires it",
    "tree=dynamic tree.children=fixed": "tree.children=fixed: tree=dynamic has no such option",
    "tree.size=16": "tree.size=16: tree=none has no such option",
    "tree=widths gamma=3": "gamma=3: not together with tree=widths, whose depth takes its place",
    "gamma=tree": "gamma=tree: requires a tree, such as tree=sequoia",
    "tree=widths draft=random": "tree=widths: draft=random: random makes no trees; use tree=none, or model | unigram",
    "tree=widths draft=lookup tree.children=replaced": "tree.children=replaced: draft=lookup does not draw its tokens",
    "tree=widths draft=cascade draft@draft.inner=random": "tree=widths: draft=cascade-random-t5-nano: the tree is the",
    "draft=merged": "draft=merged: several drafts make a tree together, and no chain; pick one, such as tree=widths",
    "draft=cascade draft@draft.inner=null": "draft@draft.inner=null: is picked by its name; 'specbench list draft'",
    "tree=widths draft=merged draft.second=null": "draft.second is not set: at least two drafts are merged; give",
    "tree=widths draft=merged draft@draft.second=random": "draft.second=random: random makes no trees; give",
    "tree=widths draft=merged draft@draft.third=merged": "draft.third=merged-t5-nano-bigram: merge its drafts",
    "tree=widths draft=merged draft.first.confidence=0.5": "draft.first.confidence=0.5: must be null in a tree",
    "draft=cascade draft@draft.inner=merged": "draft.inner=merged-t5-nano-bigram: several drafts make a tree together",
    "accept=k-seq": "accept=k-seq: requires a tree, such as tree=widths; or use accept=exact",
    "accept=k-seq tree=sequoia tree.children=replaced": "accept=k-seq: not together with tree=sequoia",
    "accept=k-seq tree=widths": "accept=k-seq: not together with tree=widths, tree.children=distinct: its children are",
    "accept=k-seq tree=widths tree.children=replaced draft=merged": "accept=k-seq: not together with draft=merged-t5-"
    "nano-bigram: its children are draws from one q; use accept=exact",
    "accept=multi-path tree=widths tree.widths=[2,2] tree.children=replaced": "accept=multi-path: not together with "
    "tree=widths 2×2 replaced, draft=t5-nano-top1000: its paths are independent draws from one q; use tree=widths",
    "tree=widths draft.confidence=0.5": "draft.confidence=0.5: not together with tree=widths",
    "tree=widths simulate.alpha=0.5": "simulate.alpha=0.5: not together with tree=widths",
    "tree=widths accept=block": "accept.rule=block: must be exact | k-seq | multi-path | traversal | typical with tree",
    "accept=traversal": "accept=traversal: requires a tree, such as tree=widths; or use accept=block",
    "tree=sequoa": "tree=sequoa: no such tree; did you mean sequoia?",
    "task.template=plain": "task.template=plain: must be text with {field} for a field of a row",
    "prompt.template=maybe": "prompt.template=maybe: must be chat | none",
    "task.metric=meteor": "task.metric=meteor: must be bleu | rouge | chrf | exact | number",
}


@pytest.mark.covering(most=24)
@pytest.mark.parametrize("override", WRONG)
def test_one_line_that_names_the_key_the_value_and_the_way_out(
    override: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *override.split()]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    start, *rest = WRONG[override].split(" ... ")
    assert err.startswith(f"specbench: {start}")
    assert all(part in err for part in rest), err


@pytest.mark.full
def test_a_model_of_the_hub_needs_the_hub_or_a_copy(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["target=some/model"], ["target=hub", "target.hub=some/model"]):
        assert main(["run", *words]) == 1
        assert (
            "target: some/model is not in the local cache and the model hub cannot be reached" in capfd.readouterr().err
        )


@pytest.mark.parametrize("key", ["steps", "training.steps"])
def test_steps_of_training_are_those_of_the_optimiser(key: str) -> None:
    from specbench.compose.suggestions import no_such_key
    from specbench.train.recipe_schema import Recipe

    assert no_such_key(key, Recipe).partition("did you mean ")[2].startswith("optim.max_steps")


def test_a_config_that_is_shown_leaves_nothing_in_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    """What `--cfg` composed counted as the running job's overrides of configs that were composed later."""
    assert main(["run", "draft=t5-nano", "draft.path=none", "--cfg", "job"]) == 0
    assert "path: none" in capsys.readouterr().out and not HydraConfig.initialized()
