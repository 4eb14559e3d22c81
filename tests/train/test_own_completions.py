"""Training on a decoder-only target's own completions of prompts."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.algorithm.decoding import DecodingSpec, autoregressive
from specbench.cli import main
from specbench.engine.session import Prompt
from specbench.errors import MachineError, UserError
from specbench.methods.eagle.train import EagleLearner
from specbench.sampling import Sampling
from specbench.stats import Interval
from specbench.train import target_completions as made
from specbench.train.draft_alpha import Alpha, alpha, target_outputs
from specbench.train.networks import as_target, borrow
from specbench.train.prompt_rows import load_prompts, prompt_ids, without_held_out_prompts
from specbench.train.recipe_schema import DataPlan, DistillPlan, ModelShape, Recipe
from specbench.train.sets import completed, padded_batch
from specbench.train.target_completions import completions, engine_of, kept_completions
from specbench.train.target_texts import outputs_file
from specbench.train.trainers import Clock, by_clock
from tests.support import networks
from tests.support.small_recipes import SMALL

TEMPLATE = "{% for m in messages %}old {{ m['content'] }} . {% endfor %}{% if add_generation_prompt %}the{% endif %}"
SIZE = len(networks.SPECIAL) + len(networks.WORDS)
SOURCES = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14], [15, 16, 17, 18], [19, 20, 21, 22, 23, 24]]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model."""
    folder = networks.save(tmp_path_factory.mktemp("chat") / "smol", "llama", seed=2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def rows_of(tmp_path: Path, rows: list[dict]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def recipe_for(target: Path, file: Path, **distill: object) -> Recipe:
    return Recipe(
        task="lm", kind="eagle", progress=False,
        data=DataPlan(path=[str(file)], completions=True, max_source=32),
        distill=DistillPlan(target=str(target), max_new_tokens=6, **distill),
    )  # fmt: skip


@pytest.mark.full
def test_a_recipe_learns_completions_of_prompts_which_another_recipe_takes_up(
    chat: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    words = [
        f"distill.target={chat}",
        f"data.path=[{prompts}]",
        "distill.max_new_tokens=6",
        f"distill.outputs={shared}",
    ]
    first = ["train", "recipe=eagle", *words, "distill.greedy=0.5", f"output={tmp_path / 'one'}", *SMALL]
    first.append("log_steps=1")
    assert main(first) == 0, capfd.readouterr().err
    said = capfd.readouterr().err
    assert "held-out rows, T=1" in said and "tokens_per_second" in (tmp_path / "one" / "training-log.json").read_text()
    greedy, sampled = (sorted(shared.glob(f"target-{name}-*.jsonl")) for name in ("greedy", "sampled"))
    assert len(greedy) == len(sampled) == 1
    rows = [json.loads(line) for line in greedy[0].read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(chat)
    assert all(tokenizer.decode(row["source"]).startswith("old ") and len(row["output"]) <= 6 for row in rows)
    held = [json.loads(line) for line in (tmp_path / "one" / "held-out.jsonl").read_text().splitlines()]
    assert held and all(row["messages"][0]["role"] == "user" for row in held)
    assert "own completions of these prompts" in (tmp_path / "one" / "README.md").read_text()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("written again")

    monkeypatch.setattr(made, "completions", never)
    second = ["train", "recipe=medusa", *words, "distill.greedy=0.5", f"output={tmp_path / 'two'}", *SMALL]
    assert main(second) == 0, capfd.readouterr().err


def test_completions_in_a_batch_are_those_of_each_prompt_alone(target: Path) -> None:
    engine = engine_of(AutoModelForCausalLM.from_pretrained(target), SIZE)
    for sampled in (False, True):
        spec = DecodingSpec.algorithm_1(Sampling(temperature=float(sampled)), 8)
        together = list(completions(engine, SOURCES, sampled=sampled, max_new_tokens=8, seed=3))
        alone = [
            autoregressive(engine, Prompt((), tuple(source)), spec, torch.Generator().manual_seed(3 + place)).tokens
            for place, source in enumerate(SOURCES)
        ]
        assert together == alone
        (one,) = completions(engine, SOURCES[:1], sampled=sampled, max_new_tokens=8, seed=3)
        assert one == alone[0]  # a single prompt, such as the only row that is held out, has no batch


def test_an_alpha_on_a_single_token_is_said_as_one() -> None:
    assert str(Alpha(Interval(0.628, None, None), 1)) == "0.628 on 1 token"


def test_a_stopped_target_resumes_where_it_was(target: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network = AutoModelForCausalLM.from_pretrained(target)
    asked = {"sampled": True, "max_new_tokens": 5, "size": SIZE, "seed": 1, "progress": False}
    whole = kept_completions(tmp_path / "whole.jsonl", network, SOURCES, **asked)
    lines = (tmp_path / "whole.jsonl").read_text().splitlines()
    assert len(lines) == len(SOURCES)
    stopped = tmp_path / "stopped.jsonl"
    stopped.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9])
    assert kept_completions(stopped, network, SOURCES, **asked) == whole
    assert "line 3 is damaged" in capfd.readouterr().err and stopped.read_text().splitlines() == lines
    assert kept_completions(stopped, network, SOURCES[::-1], **asked) != whole  # of other prompts: written again


def test_what_is_kept_is_on_disk_before_the_target_goes_on(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while the target writes loses nothing that an earlier run kept."""
    network, file = AutoModelForCausalLM.from_pretrained(target), tmp_path / "kept.jsonl"
    asked = {"sampled": False, "max_new_tokens": 4, "size": SIZE, "seed": 1, "progress": False}
    kept_completions(file, network, SOURCES[:3], **asked)
    before, write, seen = file.read_text(), made.completions, []

    def looked(*words, **keys):
        seen.append(file.read_text())
        yield from write(*words, **keys)

    monkeypatch.setattr(made, "completions", looked)
    kept_completions(file, network, SOURCES, **asked)
    assert seen == [before]


def test_the_kept_file_is_of_one_target_setting_and_set_of_prompts(target: Path, chat: Path, tmp_path: Path) -> None:
    recipe = recipe_for(target, tmp_path / "rows.jsonl", outputs=str(tmp_path / "shared"))
    same = outputs_file(recipe, tmp_path, "greedy", SOURCES)
    assert same.parent == tmp_path / "shared" and same == outputs_file(recipe, tmp_path / "x", "greedy", SOURCES)
    longer = replace(recipe, distill=replace(recipe.distill, max_new_tokens=7))
    other = replace(recipe, distill=replace(recipe.distill, target=str(chat)))
    files = [outputs_file(one, tmp_path, "greedy", SOURCES) for one in (recipe, longer, other)]
    files += [outputs_file(recipe, tmp_path, "sampled", SOURCES), outputs_file(recipe, tmp_path, "greedy", SOURCES[1:])]
    assert len({*files}) == 5
    with pytest.raises(MachineError, match="set distill.outputs=FOLDER to another place"):
        outputs_file(replace(recipe, distill=replace(recipe.distill, outputs=__file__)), tmp_path, "greedy", SOURCES)
    own = replace(recipe, distill=replace(recipe.distill, outputs=None))
    assert outputs_file(own, tmp_path, "greedy", SOURCES) == tmp_path / "target-greedy.jsonl"


def test_only_completions_count_and_long_prompts_are_left_out(
    chat: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = ["the dog sees a tree", "a cat " * 40, "the man runs"]
    file = rows_of(tmp_path, [{"prompt": text} for text in said])
    recipe = recipe_for(chat, file, greedy=1.0, sampled=0.0)
    network, tokenizer = AutoModelForCausalLM.from_pretrained(chat), AutoTokenizer.from_pretrained(chat)
    rows = completed(recipe, load_prompts(recipe.data), tokenizer, network, tmp_path)
    assert len(rows) == 2 and "1 of 3 prompts are longer" in capfd.readouterr().err
    for row in rows:
        labels = [label for label in row["labels"] if label != -100]
        assert row["input_ids"][-len(labels) :] == labels and 1 <= len(labels) <= 6
    batch = padded_batch([rows[0], rows[1]], 0)
    assert batch["labels"].shape == batch["input_ids"].shape == batch["attention_mask"].shape
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_prompts_are_read_in_each_form_and_those_held_out_are_left_out(chat: Path, tmp_path: Path) -> None:
    long = "the old man sees a small red house near the green tree ."
    file = rows_of(
        tmp_path,
        [
            {"prompt": "the dog runs"}, {"turns": ["a cat sits", "a dog sits"]}, {"prompt": f"the cat : {long}"},
            {"messages": [{"role": "user", "content": "a man sees"}, {"role": "assistant", "content": "a tree"}]},
        ],
    )  # fmt: skip
    plan = DataPlan(path=[str(file)], completions=True)
    rows = load_prompts(plan)
    assert [row["text"] for row in rows] == ["the dog runs", "a cat sits", f"the cat : {long}", "a man sees"]
    assert [len(row["messages"]) for row in rows] == [1, 1, 1, 1]
    held = tmp_path / "held.jsonl"
    held.write_text(
        json.dumps({"turns": ["runs the dog", "x"]}) + "\n" + json.dumps({"article": f"dog . {long}"}) + "\n"
    )
    left = without_held_out_prompts(rows, replace(plan, exclude=[str(held)]))
    assert [row["text"] for row in left] == ["a cat sits", "a man sees"]
    short = replace(recipe_for(chat, file), data=replace(plan, max_source=2))
    tokenizer = AutoTokenizer.from_pretrained(chat)
    with pytest.raises(UserError, match="no prompt of x has 2 tokens or fewer"):
        prompt_ids(rows, short, tokenizer, "of x")


def test_a_held_out_sentence_is_left_out_whatever_asks_for_its_translation(tmp_path: Path) -> None:
    sentence = "Researchers have found that people who sleep badly also remember names less well."
    others = ["How do I store a tent?", "Say this in German: Our teacher missed the last bus."]
    file = rows_of(tmp_path, [{"prompt": one} for one in (f"Say this in German: {sentence}", *others)])
    plan, held = DataPlan(path=[str(file)], completions=True), tmp_path / "held.jsonl"
    held.write_text(json.dumps({"prompt": f"Give the German translation of this: {sentence}"}) + "\n")
    left = without_held_out_prompts(load_prompts(plan), replace(plan, exclude=[str(held)]))
    assert [row["text"] for row in left] == others


def test_alpha_of_prompts_of_several_lengths_is_that_of_each_alone(target: Path) -> None:
    first, second = (AutoModelForCausalLM.from_pretrained(target) for _ in range(2))
    with torch.no_grad():
        second.model.layers[0].mlp.down_proj.weight.add_(0.5)
    outputs = target_outputs(engine_of(first, SIZE), SOURCES, sampled=True, max_new_tokens=6, seed=3)
    both = alpha(first, second, SOURCES, outputs, sampled=True, size=SIZE)
    each = [alpha(first, second, [s], [o], sampled=True, size=SIZE) for s, o in zip(SOURCES, outputs, strict=True)]
    mean = sum(one.interval.value * one.tokens for one in each) / both.tokens
    assert 0 < both.interval.value < 1 and both.interval.value == pytest.approx(mean, abs=1e-6)


class At(Clock):
    """A clock that shows what it is told."""

    now = 0.0

    def share(self) -> float:
        return self.now


def test_a_schedule_with_a_budget_follows_the_clock_or_the_steps_whichever_is_ahead(tmp_path: Path) -> None:
    clock = At(tmp_path / "seconds.txt", 60)
    rate = by_clock(lambda step: 1 - step / 100, 100, clock)
    assert rate(10) == pytest.approx(0.9)
    clock.now = 0.5
    assert rate(10) == pytest.approx(0.5) and rate(80) == pytest.approx(0.2)
    clock.now = 1.0
    assert rate(10) == pytest.approx(0)


def test_a_budget_is_the_end_of_the_schedule(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "seconds.txt", 60)
    assert clock.share() == 0
    clock.started = 0.0  # long ago
    assert clock.share() == 1


def test_a_model_of_the_targets_own_layers(target: Path) -> None:
    recipe = Recipe(
        task="lm", model=ModelShape(family="own", decoder_layers=1), distill=DistillPlan(target=str(target))
    )
    network, draft = AutoModelForCausalLM.from_pretrained(target), as_target(recipe)
    borrow(draft, network)
    assert len(draft.model.layers) == 1 and type(draft) is type(network)
    for name in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"):
        assert torch.equal(draft.state_dict()[name], network.state_dict()[name])
    with pytest.raises(UserError, match="model.decoder_layers=9: the target has 2 layers"):
        as_target(replace(recipe, model=replace(recipe.model, decoder_layers=9)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "recipe=eagle distill.greedy=0.5 data.completions=false",
            "distill.greedy: is not used here, for running text",
        ),
        (
            "recipe=eagle distill.per_source=2",
            "distill.per_source: is not used here, for distill.target is decoder-only",
        ),
        ("recipe=eagle distill.max_new_tokens=9999", "distill.max_new_tokens=9999: prompt and completion have"),
        ("recipe=distill model.positions=60", "distill.max_new_tokens=96: prompt and completion have 60 positions"),
        ("recipe=gpt-mini data.completions=true", "data.completions=true: needs data.path"),
        ("recipe=eagle data.chat_template=true", "the target's tokenizer has no chat template"),
        ("recipe=t5-mini model.family=own", "model.family=own: is for a decoder-only distill.target"),
    ],
)
def test_a_mistake_is_one_line(
    words: str, said: str, target: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = [] if "mini" in words else [f"distill.target={target}"]
    assert main(["train", *words.split(), *own, f"data.path=[{prompts}]", f"output={tmp_path / 'out'}"]) == 2
    err = capfd.readouterr().err
    assert said in err and "Traceback" not in err


def test_two_recipes_at_once_write_a_shared_file_once(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, file = AutoModelForCausalLM.from_pretrained(target), tmp_path / "shared.jsonl"
    asked = {"sampled": False, "max_new_tokens": 4, "size": SIZE, "seed": 1, "progress": False}
    written, write = [], made.completions

    def counted(*words, **keys):
        written.append(None)
        yield from write(*words, **keys)

    monkeypatch.setattr(made, "completions", counted)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: kept_completions(file, network, SOURCES, **asked), range(2))
    assert first == second and len(written) == 1
    assert len(file.read_text().splitlines()) == len(SOURCES)


def test_eagles_layer_begins_near_the_feature_that_it_reads(target: Path) -> None:
    """In Llamas the layer that it starts from adds to states that are many times as large as normalised features."""
    network = AutoModelForCausalLM.from_pretrained(target)
    with torch.no_grad():
        network.model.layers[-1].mlp.down_proj.weight.mul_(3)
    recipe = Recipe(task="lm", kind="eagle", distill=DistillPlan(target=str(target)))
    learner = EagleLearner(network, recipe, Dataset.from_dict({}))
    ids_BT = torch.tensor([[5, 6, 7, 8, 9, 10]])
    output = learner.read({"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)})
    with torch.no_grad():
        (predicted_BTD,) = learner.steps(output, 1)
    read_BTD = output.features_BTF[:, :-1]
    farther = (predicted_BTD - read_BTD).norm() / read_BTD.norm()
    assert farther < 5  # 30 with the weights of the target's layer as they are


def test_the_kept_file_of_a_target_of_the_hub_is_of_the_commit_that_was_loaded(target: Path, tmp_path: Path) -> None:
    """Another commit of its branch took up the completions of the one before."""
    recipe = recipe_for(target, tmp_path / "rows.jsonl", outputs=str(tmp_path / "shared"))
    recipe = replace(recipe, distill=replace(recipe.distill, target="somebody/model"))
    network = AutoModelForCausalLM.from_pretrained(target)
    files = []
    for commit in ("a" * 40, "b" * 40, None):
        network.config._commit_hash = commit
        files.append(outputs_file(recipe, tmp_path, "greedy", SOURCES, network))
    pinned = replace(recipe, distill=replace(recipe.distill, revision="a" * 40))
    assert len({*files}) == 3 and outputs_file(pinned, tmp_path, "greedy", SOURCES, network) == files[0]
