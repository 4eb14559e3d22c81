"""The parts of training by themselves: sizes, rows, tokenizers, the loss, the errors."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from transformers import Seq2SeqTrainingArguments

from specbench.config.paths import shipped
from specbench.errors import UserError
from specbench.train import networks
from specbench.train.losses import distillation_loss, mean_overlap
from specbench.train.recipe_checks import check
from specbench.train.recipe_rows import HeldOut, joined, load_rows, read, related_groups, without_held_out, words
from specbench.train.recipe_schema import DataPlan, ModelShape, Recipe
from specbench.train.tokenizers import fit_unigram
from specbench.train.trainers import ByteDropout, SizedTrainer, groups_by_size, use_byte_dropout
from tests.support.composed import RECIPES, composed


class Vocabulary:
    """As much of a tokenizer as building a network needs."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 1

    def __init__(self, size: int = 8000) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_composes_and_passes_the_checks(name: str) -> None:
    start = ["model.start_from=x"] if name == "pard" else []  # a draft that has been trained already
    recipe = check(composed(name, "data.path=[x.jsonl]", "distill.target=x", *start))
    assert recipe.name in (name, "distilled")


@pytest.mark.parametrize(("name", "millions"), [("gpt-97m", 97.6), ("gpt-6m", 5.8)])
def test_the_papers_pair_has_the_papers_size(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = networks.build(composed(name).model, Vocabulary(composed("gpt-97m").tokenizer.size))
    count = networks.parameter_count(model) - model.transformer.wpe.weight.numel()  # as the paper counts
    assert round(count / 1e6, 1) == millions
    assert model.config.activation_function == "gelu"
    assert model.lm_head.weight is not model.transformer.wte.weight


def test_the_shipped_models_are_small_and_run_in_transformers() -> None:
    folders = sorted(shipped("models").iterdir())
    assert (
        sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors")) < 59e6
    )  # the pairs 40 MB, heads and layers 18, PARD 1.5
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        if config.get("is_encoder_decoder"):
            assert config["num_decoder_layers"] <= config["num_layers"]  # else generate() cannot run it


def test_rates_follow_the_size_of_each_tensor() -> None:
    model = networks.build(ModelShape(d_model=64, d_ff=64, d_kv=16, encoder_layers=1, decoder_layers=1), Vocabulary())
    rate = {id(weight): group["lr"] for group in groups_by_size(model, 0.01, 0.1) for weight in group["params"]}
    assert len(rate) == len(list(model.parameters()))
    assert rate[id(model.shared.weight)] == pytest.approx(0.01)
    query = model.decoder.block[0].layer[0].SelfAttention.q.weight
    assert rate[id(query)] == pytest.approx(0.01 * 2 ** round(math.log2((64 * 16) ** -0.5)))


def test_a_resumed_training_has_the_groups_of_the_first_start(tmp_path: Path) -> None:
    shape = ModelShape(d_model=64, d_ff=64, d_kv=16, encoder_layers=1, decoder_layers=1)
    sizes = []
    for trained in (False, True):
        model = networks.build(shape, Vocabulary())
        trainer = SizedTrainer(
            model, Seq2SeqTrainingArguments(str(tmp_path), report_to="none", use_cpu=True), lr_by_size=True
        )
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(8.0 if trained and weight.dim() == 1 else 1.0)  # as loading a checkpoint would
        sizes.append([len(group["params"]) for group in trainer.create_optimizer().param_groups])
    assert sizes[0] == sizes[1]


def test_norms_and_embeddings_are_not_decayed() -> None:
    model = networks.build(ModelShape(d_model=64, d_ff=64, d_kv=16, encoder_layers=1, decoder_layers=1), Vocabulary())
    decayed = [w for group in groups_by_size(model, 0.01, 0.1) if group["weight_decay"] for w in group["params"]]
    assert decayed and all(weight.dim() == 2 for weight in decayed)
    assert not any(weight is model.shared.weight for weight in decayed)


def test_near_copies_of_held_out_sentences_are_not_trained_on(jsonl: Callable[..., str]) -> None:
    held = jsonl("held.jsonl.gz", [{"en": "I like milk and bread.", "de": "Ich mag Milch und Brot."}])
    rows = [
        {"en": "I like milk and bread!", "de": "Milch und Brot schmecken mir."},
        {"en": "I do like bread and milk.", "de": "Milch mag ich, und auch Brot."},
        {"en": "Bread, please.", "de": "Ich mag Milch und Brot"},
        {"en": "I like tea and cake.", "de": "Ich mag Tee und Kuchen."},
    ]
    kept = without_held_out(rows, DataPlan(exclude=[held]), ("en", "de"))
    assert kept == rows[3:]
    assert HeldOut([], ("en",)).covers({"en": "anything"}) is False


def test_joined_rows_use_every_picked_sentence_once(rows: list[dict]) -> None:
    made = joined(rows, DataPlan(join={"src": ["toy"]}), seed=3)
    assert sum(row["en"].count(".") for row in made) == len(rows)
    assert made == joined(rows, DataPlan(join={"src": ["toy"]}), seed=3)
    assert joined(rows, DataPlan(join={"src": ["other"]}), seed=3) == []


def test_related_rows_are_joined_once_more_with_rows_that_share_their_words(rows: list[dict]) -> None:
    plan = DataPlan(join={"src": ["toy"]}, join_related=True)
    made = joined(rows, plan, seed=3)
    at_random = joined(rows, DataPlan(join={"src": ["toy"]}), seed=3)
    assert made[: len(at_random)] == at_random and made == joined(rows, plan, seed=3)
    related = made[len(at_random) :]
    sentences = [row["en"].removesuffix(".").split(". ") for row in related]
    assert sorted(chain.from_iterable(sentences)) == sorted(row["en"].removesuffix(".") for row in rows)
    assert {len(group) for group in sentences[:-1]} == {2, 3, 4}
    german = {row["en"].removesuffix("."): row["de"] for row in rows}
    assert [row["de"] for row in related] == [" ".join(german[one] for one in group) for group in sentences]

    def shared(group: list[str]) -> int:
        return len(words(group[0]) & words(group[1]))

    def mean(groups: list[list[str]]) -> float:
        return sum(map(shared, groups)) / len(groups)

    assert mean(sentences) > mean([row["en"].removesuffix(".").split(". ") for row in at_random if ". " in row["en"]])


def test_a_group_takes_the_most_similar_text_first_and_nothing_twice() -> None:
    texts = ["A red car.", "a red car", "Rain again.", "The red fox.", "The fox sleeps.", "No words shared"]
    assert related_groups(texts, lambda group: len(group) == 3) == [[0, 3, 4], [1, 2, 5]]
    assert related_groups(texts, lambda group: True) == [[index] for index in range(len(texts))]
    assert related_groups([], lambda group: True) == []


def test_the_passages_of_ende_mini_have_each_of_its_sentences_once() -> None:
    left = {row["en"]: row["de"] for row in read("shipped:data/ende-mini-sentences.jsonl.gz")}
    for passage in read("shipped:data/ende-mini.jsonl.gz"):
        english, german, number = passage["en"], passage["de"], 0
        while english:
            sentence = next(one for one in left if f"{english} ".startswith(f"{one} "))
            translation = left.pop(sentence)
            assert f"{german} ".startswith(f"{translation} ")
            english, german, number = english[len(sentence) + 1 :], german[len(translation) + 1 :], number + 1
        assert not german and 2 <= number <= 4
    assert not left


@pytest.mark.full
def test_groups_are_the_same_in_every_process() -> None:
    """A resumed training needs the same rows, but the order of a set of strings differs from process to process."""
    code = (
        "from specbench.train.recipe_rows import read, related_groups; "
        "texts = [row['en'] for row in read('shipped:data/ende-mini-train.jsonl.gz')]; "
        "print(related_groups(texts, lambda group: len(group) == 3))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_the_unigram_has_exactly_its_size_and_spells_what_it_has_not_seen(rows: list[dict]) -> None:
    tokenizer = fit_unigram((row["de"] for row in rows), 300)
    assert len(tokenizer) == 300
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    ids = tokenizer("Der  König sieht 你好.")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Der König sieht 你好."
    with pytest.raises(UserError, match="tokenizer.size=5000 is too large for this text"):
        fit_unigram((row["de"] for row in rows), 5000)


def test_the_distillation_loss_is_zero_and_alpha_one_when_the_draft_is_the_target() -> None:
    logits = torch.randn(2, 5, 11)
    labels = torch.randint(0, 11, (2, 5))
    labels[1, 3:] = -100
    assert distillation_loss(logits, logits.clone(), labels, 1.0).item() == pytest.approx(0.0, abs=1e-6)
    assert mean_overlap(logits, logits.clone(), labels).item() == pytest.approx(1.0, abs=1e-6)
    # Padding does not count: changing the logits there changes nothing.
    other = logits.clone()
    other[1, 3:] = 0.0
    assert distillation_loss(logits, other, labels, 1.0).item() == pytest.approx(0.0, abs=1e-6)


def test_kl_and_cross_entropy_are_mixed_by_the_weight() -> None:
    p, q, labels = torch.randn(1, 4, 7), torch.randn(1, 4, 7), torch.randint(0, 7, (1, 4))
    kl = torch.nn.functional.kl_div(q[0].log_softmax(-1), p[0].log_softmax(-1), reduction="batchmean", log_target=True)
    cross = torch.nn.functional.cross_entropy(q[0], labels[0])
    loss = distillation_loss(p, q, labels, 0.25)
    assert loss.item() == pytest.approx(0.25 * kl.item() + 0.75 * cross.item(), rel=1e-5)


def test_borrowed_embeddings_keep_the_targets_neighbourhoods_and_the_drafts_size() -> None:
    target = networks.build(ModelShape(d_model=64, d_ff=64, d_kv=16, encoder_layers=1, decoder_layers=1), Vocabulary())
    draft = networks.build(ModelShape(d_model=32, d_ff=64, d_kv=16, encoder_layers=1, decoder_layers=1), Vocabulary())
    with torch.no_grad():
        target.shared.weight[7] = target.shared.weight[8]
    size = draft.shared.weight.pow(2).mean().sqrt().item()
    networks.borrow(draft, target)
    torch.testing.assert_close(draft.shared.weight[7], draft.shared.weight[8])
    assert draft.shared.weight.pow(2).mean().sqrt().item() == pytest.approx(size, rel=1e-3)


def test_byte_dropout_drops_its_share_keeps_the_mean_and_is_off_in_evaluation() -> None:
    torch.manual_seed(0)
    dropout = ByteDropout(0.1)
    x = torch.ones(400, 401, requires_grad=True)
    y = dropout(x)
    assert (y == 0).float().mean().item() == pytest.approx(26 / 256, abs=0.003)
    assert y.mean().item() == pytest.approx(1.0, abs=0.004)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert dropout.eval()(x) is x


def test_every_dropout_module_of_a_network_is_replaced() -> None:
    model = networks.build(ModelShape(d_model=64, d_ff=64, d_kv=16, encoder_layers=1, decoder_layers=1), Vocabulary())
    names = list(model.state_dict())
    use_byte_dropout(model)
    assert not any(type(module) is torch.nn.Dropout for module in model.modules())
    assert list(model.state_dict()) == names


def test_a_draft_of_the_targets_width_starts_from_its_layers_too() -> None:
    shape = {"d_model": 64, "d_ff": 64, "d_kv": 16}
    target = networks.build(ModelShape(**shape, encoder_layers=3, decoder_layers=3), Vocabulary())
    draft = networks.build(ModelShape(**shape, encoder_layers=2, decoder_layers=1), Vocabulary())
    networks.borrow(draft, target)
    torch.testing.assert_close(draft.shared.weight, target.shared.weight)
    for ours, theirs in (
        (draft.encoder.block[1], target.encoder.block[2]),
        (draft.decoder.block[0], target.decoder.block[0]),
    ):
        for name, weight in ours.state_dict().items():
            torch.testing.assert_close(weight, theirs.state_dict()[name])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"en": "a", "de": "b"}\n{"en": ', r"line 2: not a JSON object"),
        ('["a", "b"]\n', r"row 1: not a JSON object but a string"),
        ('{"en": "a"}\n', r"row 1: no text field 'de' \(it has en\)"),
        ('{"en": "a", "de": "b", "src": "x"}\n', r"no row is left of 1 after data.keep=\{'src': \['y'\]\}$"),
        ("", "bad.jsonl: holds no row$"),
        ('{"en": " ", "de": "b"}\n', "bad.jsonl: no row holds text but spaces$"),
    ],
)
def test_a_bad_data_file_is_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    keep = {"src": ["y"]} if "src" in content else {}
    with pytest.raises(UserError, match=message) as caught:
        load_rows(DataPlan(path=[str(path)], keep=keep), ("en", "de"))
    assert "bad.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_data_file_and_one_that_is_not_gzip_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing.jsonl: cannot be read"):
        load_rows(DataPlan(path=[str(tmp_path / "missing.jsonl")]), ("en",))
    (tmp_path / "not.jsonl.gz").write_text("plain")
    with pytest.raises(UserError, match="not.jsonl.gz: broken gzip file"):
        load_rows(DataPlan(path=[str(tmp_path / "not.jsonl.gz")]), ("en",))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.max_steps=0", "optim.max_steps is 0: it must be at least 1"),
        ("model.decoder_layers=9", "more than model.encoder_layers"),
        ("optim.lr_scale=big", "optim.lr_scale is 'big': choose one of rms, flat"),
        ("~data.join.src", "data.join_related=true: needs data.join"),
        ("data.path=[]", "data.path is empty and data.hub is not set"),
        ("distill.kl_weight=2", "distill.kl_weight is 2.0: it must be from 0 to 1"),
        ("seed=-1", "seed is -1: it must be from 0 to 4294967295"),
        ("seed=4294967296", "seed is 4294967296: it must be from 0 to 4294967295"),
        ("optim.schedule=cosin", "optim.schedule is 'cosin': choose one of cosine, linear"),
        ("optim.lr=nan", "optim.lr is nan: it must be at least 0, and finite"),
        ("optim.lr=-1", "optim.lr is -1.0: it must be at least 0"),
        ("optim.warmup_steps=-1", "optim.warmup_steps is -1: it must be at least 0"),
        ("optim.beta2=1", "optim.beta2 is 1.0: it must be at least 0 and below 1"),
        ("model.dropout=1.5", "model.dropout is 1.5: it must be at least 0 and below 1"),
        ("model.d_model=0", "model.d_model is 0: it must be at least 1"),
        ("model.heads=0", "model.heads is 0: it must be at least 1"),
        ("tokenizer.size=-5", "tokenizer.size is -5: it must be at least 1"),
        ("data.max_source=0", "data.max_source is 0: it must be at least 1"),
        ("data.max_rows=0", "data.max_rows is 0: it must be at least 1, or null"),
        ("data.hold_out=-1", "data.hold_out is -1: it must be at least 0, or null"),
        ("distill.generate_batch=0", "distill.generate_batch is 0: it must be at least 1"),
        ("threads=0", "threads is 0: it must be at least 1, or null"),
    ],
)
def test_what_cannot_work_is_refused_by_key(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(composed("t5-mini", "data.path=[x.jsonl]", override))


def test_the_heads_of_a_gpt2_divide_its_width() -> None:
    shape = ModelShape(family="gpt2", d_model=100, heads=3)
    with pytest.raises(UserError, match=r"model.d_model is 100: it must be a multiple of model.heads \(3\)"):
        check(Recipe(task="lm", model=shape, data=DataPlan(path=["x.jsonl"])))


def test_rows_of_a_decoder_only_model_are_not_joined() -> None:
    plan = DataPlan(path=["x.jsonl"], join={"src": ["toy"]})
    with pytest.raises(UserError, match="data.join: joins pairs of task=seq2seq, but task is 'lm'; remove data.join"):
        check(Recipe(task="lm", data=plan))


@pytest.mark.full
def test_the_training_text_holds_no_near_copy_of_the_shipped_sentences(shared: Path) -> None:
    data = f"data.path=[{shared}/data/ende/train.jsonl.gz]"
    plan = composed("t5-mini", data, "data.keep={src:[tatoeba]}").data
    rows = load_rows(plan, ("en", "de"))
    kept = without_held_out(rows, plan, ("en", "de"))
    held = HeldOut(load_rows(plan, ("en", "de"), plan.exclude), ("en", "de"))
    assert len(rows) - 2000 < len(kept) < len(rows)
    assert not any(held.covers(row) for row in kept[::5])
