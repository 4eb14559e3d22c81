"""The typed recipe: what `specbench train recipe=...` may say, with the ranges checked and the key named.

Independent of where values come from (YAML, command line, a test) and of what is done with them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from specbench.config.keys import fresh, key
from specbench.config.model import place_of
from specbench.config.paths import shipped
from specbench.config.places import SHIPPED, model_at
from specbench.config.recipes import made_by
from specbench.errors import UserError


@dataclass
class ModelShape:
    """The network. `start_from` (a folder or hub name) replaces the shape by a trained model's own."""

    family: str = key("t5", "t5 | gpt2")
    start_from: str | None = key(None, "a trained model, NAME, ./FOLDER or OWNER/NAME, that replaces the shape")
    revision: str | None = key(None, "its commit on the hub")
    d_model: int = key(256, "width of the network")
    d_ff: int = key(512, "width of the feed-forward layers")
    d_kv: int = key(64, "T5: width of a head")
    heads: int = key(4, "attention heads")
    encoder_layers: int = key(8, "T5: layers of the encoder")
    decoder_layers: int = key(8, "layers of the decoder")
    positions: int = key(512, "gpt2: learned positions")
    dropout: float = key(0.1, "share of activations that are dropped")
    tied: bool = key(True, "one matrix for embeddings and head")


@dataclass
class TokenizerPlan:
    """`start_from` takes a trained model's tokenizer; else one is fitted on the data and on `extra` text files."""

    start_from: str | None = key(None, "a model whose tokenizer is taken; unset: one is fitted on the data")
    kind: str = key("unigram", "unigram (T5) | wordpiece (Bert)")
    size: int = key(8000, "pieces, which is also the number of logits")
    extra: list[str] = fresh(list, "more text files to fit it on")
    extra_rows: int = key(20000, "rows of each of them")


@dataclass
class PassagePlan:
    """A second task beside the pairs: passages of running text, whose summaries are their first sentences."""

    path: list[str] = fresh(list, "files with one text a row, in the order of the text")
    rows: int = key(25000, "passages drawn from them")
    words: list[int] = fresh(lambda: [30, 120], "of a passage: [least, most]")
    scrambled: float = key(0.0, "share of the passages whose words are drawn anew, so that only copying helps")
    prefix: str = key("summarize: ", "put before a passage")
    exclude: list[str] = fresh(list, "files whose sentences are not trained on")
    test: dict[str, str] = fresh(dict, "{NAME:FILE} of articles and highlights, for the model card")


@dataclass
class DataPlan:
    """Rows from files (`path`) or, without files, from the hub (`hub`), filtered, without held-out rows (`exclude`)."""

    path: list[str] = fresh(list, "[FILE,...] JSON lines (.jsonl, .jsonl.gz), plain text, or folders of either")
    hub: str | None = key(None, "a data set on the hub, OWNER/NAME, where no path is given")
    subset: str | None = key(None, "its configuration")
    revision: str | None = key(None, "its commit")
    split: str = key("train", "its split")
    keep: dict[str, Any] = fresh(dict, "{FIELD:[VALUE,...]}: only rows whose field has one of these values")
    exclude: list[str] = fresh(list, "[FILE,...] of held-out sentences: they and near copies are not trained on")
    source: str = key("en", "the field to read")
    target: str = key("de", "the field to write")
    text: str = key("text", "the field of a decoder-only model's rows")
    prefix: str = key("translate English to German: ", "put before the source")
    max_rows: int | None = key(None, "rows to read; unset: all")
    max_words: int | None = key(None, "rows with a longer source are left out")
    join: dict[str, Any] = fresh(dict, "{FIELD:[VALUE,...]}: rows that are also joined in twos to fours")
    join_related: bool = key(False, "also join them in groups that share words, which read more like passages")
    max_source: int = key(128, "tokens of a source")
    max_target: int = key(128, "tokens of a target")
    eval_path: list[str] = fresh(list, "[FILE,...] evaluated while training")
    eval_rows: int = key(200, "rows of them")
    hold_out: int | None = key(
        None,
        "rows, drawn by the seed, that are not trained on and measured at the end, at most a fifth of all; unset: 200 "
        "for a decoder-only target without data.test, otherwise 0",
    )
    test: dict[str, str] = fresh(
        dict, "{NAME:FILE} measured at the end (BLEU; alpha of a draft) and written into the model card"
    )
    test_rows: int = key(1000, "rows of each of them")
    passages: PassagePlan = fresh(PassagePlan, "passages to summarise, beside the pairs")


@dataclass
class OptimPlan:
    """AdamW. With `lr_scale: rms` the rate of each tensor is `lr` times its RMS at the start, as in T5's Adafactor."""

    lr: float = key(0.01, "learning rate")
    lr_scale: str = key("rms", "rms: a tensor's rate is lr times its RMS at the start, as in Adafactor | flat")
    max_steps: int = key(1000, "optimiser steps")
    max_minutes: float | None = key(
        None, "training ends after so many minutes, however many steps that were; a larger number resumes it"
    )
    warmup_steps: int = key(300, "of them with a rising rate")
    schedule: str = key("cosine", "a learning rate schedule of transformers")
    batch_size: int = key(128, "rows a device and step")
    accumulate: int = key(1, "batches a step")
    weight_decay: float = key(0.0, "of AdamW")
    beta2: float = key(0.98, "of AdamW")
    clip: float = key(1.0, "the largest norm of a gradient")


@dataclass
class DistillPlan:
    """Train a draft against `target`: on outputs the target wrote, towards its distribution (DistillSpec)."""

    target: str | None = key(
        None,
        "the target a draft learns from, as target= of run: NAME, ./FOLDER or OWNER/NAME; unset: ordinary training",
    )
    revision: str | None = key(None, "its commit on the hub")
    greedy: float = key(1.0, "share of the sources for which the target writes a greedy output to learn from")
    sampled: float = key(1.0, "the same at T=1")
    references: bool = key(False, "learn from the data's own references, too")
    borrow: bool = key(True, "start from the target's embeddings, and layers where they fit")
    start_from: str | None = key(
        None, "heads: a folder of earlier weights of the same kind and shape that training continues from"
    )
    kl_weight: float = key(1.0, "of forward KL(p || q); the rest goes to the cross-entropy of the tokens")
    generate_batch: int = key(128, "sources that the target answers at a time")
    max_new_tokens: int = key(96, "the most tokens of an output")
    per_source: float | None = key(1.5, "and at most so many for each token of the source")


@dataclass
class BlockwisePlan:
    """Train heads on the frozen `distill.target` instead of a model (Stern et al. 2018)."""

    heads: int = key(0, "k, with the target's own; 0: no heads are trained")
    hidden: int | None = key(None, "width of each head's layer; unset: the target's")


@dataclass
class HeadsPlan:
    """Train heads on the frozen `distill.target` instead of a model: all at once, for the tokens after the next.

    Medusa's (Cai et al. 2024), or Hydra's, which also read the tokens before theirs (Ankner et al. 2024).
    """

    kind: str | None = key(None, "medusa | hydra; unset: no such heads are trained")
    number: int = key(4, "of heads: tokens after the next that they predict")
    layers: int = key(1, "medusa: residual blocks of each head")
    narrow: int = key(64, "hydra: numbers that the embedding of a token is narrowed to")
    rank: int = key(16, "of the matrix that each head adds to the target's output projection")
    decay: float = key(0.8, "the loss of head k has the weight decay^k")


@dataclass
class EaglePlan:
    """Train EAGLE's layer on the frozen `distill.target` instead of a model (Li et al. 2024).

    With `taps` that of EAGLE-3 (Li et al. 2025), with `parallel` P-EAGLE's, too. `distill.kl_weight` is of forward KL
    in the loss of tokens.
    """

    steps: int = key(0, "steps that the layer is unrolled on its own predictions in training; 0: no layer is trained")
    mtp: bool = key(False, "mtp: a depth of multi-token prediction in place of EAGLE's layer")
    parallel: bool = key(False, "peagle: the tokens of all steps come from one forward pass (P-EAGLE)")
    layers: int = key(1, "peagle: decoder layers, the first of which is EAGLE-3's")
    mask: int | None = key(None, "peagle: the token that stands for tokens not known yet; unset: that of padding")
    share: float = key(0.7, "peagle: of the places that draft a token in training, those that draft the next, too")
    fused: bool = key(False, "eagle3: the layer reads the target's states at the depths eagle.taps")
    taps: list[int] = fresh(
        list,
        "eagle3: after how many of the target's decoder layers each fused state is taken; unset, with eagle.fused: "
        "2, n/2 and n-3 of its n layers",
    )
    vocabulary: int | None = key(None, "eagle3: the most frequent tokens, which alone are drafted; unset: all tokens")
    own_head: bool = key(False, "eagle3: a head of its own over these tokens; otherwise it reads the target's rows")
    noise: float = key(0.1, "eagle: the most that is added to the features that are read, either way")
    feature_weight: float = key(1.0, "eagle: of the smooth L1 distance to the target's feature")
    token_weight: float = key(0.1, "eagle: of the loss of tokens beside it")
    decay: float = key(0.8, "the loss of step k, from 0, has the weight decay^k")


@dataclass
class SpecDecPlan:
    """Train SpecDec's decoder on the frozen encoder of `distill.target` instead of a model (Xia et al. 2023)."""

    queries: int = key(0, "tokens of a proposal, all predicted at once; 0: no such decoder is trained")
    layers: list[int] = fresh(
        list, "the target's decoder layers that its layers start from and whose view of the source they share, from 0"
    )
    decay: float = key(0.8, "the loss of token k of a proposal, from 0, has the weight decay^k")
    share: float = key(0.5, "of the tokens that the loss of a step counts, drawn for each query: logits take most time")


@dataclass
class BlockPlan:
    """Train a block drafter on the frozen `distill.target` instead of a model (DFlash 2602.06036).

    With `rank` that of DSpark (2607.05147).
    """

    size: int = key(0, "entries of a block, of which DFlash drafts all but the first; 0: no block drafter is trained")
    layers: int = key(2, "decoder layers of the network")
    hidden: int | None = key(None, "width of their feed-forward layers; unset: twice the target's")
    taps: list[int] = fresh(
        list, "after how many of the target's decoder layers the states are that it reads; unset: 2, n/2 and n-3 of n"
    )
    mask: int | None = key(None, "id of the token whose embedding stands for unknown tokens; unset: the padding's")
    rank: int = key(0, "dspark: numbers that a token is narrowed to before it changes the next one's logits; 0: dflash")
    confidence: bool = key(True, "dspark: a head that predicts acceptance")
    places: int = key(16, "places of each text, drawn anew for each batch, where a block begins in training")
    decay: float = key(0.8, "the loss of token k of a block, from 0, has the weight decay^k")


@dataclass
class LookAheadPlan:
    """Train look-ahead embeddings, which the frozen `distill.target` reads, instead of a model (Monea et al.)."""

    number: int = key(0, "of look-ahead embeddings: tokens after the next that they predict; 0: none are trained")
    places: int = key(8, "tokens of each text, drawn anew for each batch, that they follow in training")
    decay: float = key(0.8, "the loss of embedding k has the weight decay^k")


@dataclass
class PardPlan:
    """Train `model.start_from` to draft in one forward pass on the frozen `distill.target` (PARD)."""

    steps: int = key(0, "tokens of a proposal in training; 0: no such model is trained")
    mask: int | None = key(None, "the token that stands for tokens not known yet; unset: that of padding")
    share: float = key(0.7, "of the places that draft a token in training, those that draft the next, too")
    decay: float = key(0.8, "the loss of token k of a proposal, from 0, has the weight decay^k")


@dataclass
class Recipe:
    """One training run, whole: the same recipe, data and seed give the same model on the same machine."""

    conf_file: ClassVar[str] = "train"

    name: str = key("t5-mini", "names the folder and the card")
    takes: str | None = key(None, "a note: how long it takes, and on which hardware")
    task: str = key("seq2seq", "seq2seq | lm")
    model: ModelShape = fresh(ModelShape, "the network")
    tokenizer: TokenizerPlan = fresh(TokenizerPlan, "its tokenizer")
    data: DataPlan = fresh(DataPlan, "the training data")
    optim: OptimPlan = fresh(OptimPlan, "how")
    distill: DistillPlan = fresh(DistillPlan, "a draft: the target it learns from")
    blockwise: BlockwisePlan = fresh(BlockwisePlan, "heads instead of a model")
    heads: HeadsPlan = fresh(HeadsPlan, "Medusa's or Hydra's heads instead of a model")
    eagle: EaglePlan = fresh(EaglePlan, "EAGLE's or EAGLE-3's layer instead of a model")
    specdec: SpecDecPlan = fresh(SpecDecPlan, "SpecDec's parallel decoder instead of a model")
    block: BlockPlan = fresh(BlockPlan, "DFlash's or DSpark's network instead of a model")
    look_ahead: LookAheadPlan = fresh(LookAheadPlan, "PaSS's look-ahead embeddings instead of a model")
    pard: PardPlan = fresh(PardPlan, "PARD's training of a draft in place of another")
    output: str = key("models/${name}", "the folder to write, which target.path= and draft.path= take")
    force: bool = key(False, "start again, and discard the checkpoints of any training in output")
    seed: int = key(1, "of the data's order and of new weights")
    bf16: bool = key(True, "train in bfloat16")
    threads: int | None = key(None, "CPU threads of torch; unset: torch's own choice")
    log_steps: int = key(50, "steps between losses")
    save_steps: int = key(300, "steps between checkpoints")
    eval_steps: int = key(600, "steps between evaluations")
    progress: bool = key(True, "show a progress bar")

    def heads_kind(self) -> str | None:
        """The kind of heads that are trained instead of a model; None where a model is."""
        return next(iter(self.heads_kinds().values()), None)

    def heads_kinds(self) -> dict[str, str]:
        """The same as {key that asks for it: kind}, to find that several are asked for."""
        asked = {
            "eagle.steps": self.eagle.steps
            and ("mtp" if self.eagle.mtp else "peagle" if self.eagle.parallel else "eagle"),
            "specdec.queries": self.specdec.queries and "specdec",
            "pard.steps": self.pard.steps and "pard",
            "block.size": self.block.size and ("dspark" if self.block.rank else "dflash"),
            "look_ahead.number": self.look_ahead.number and "pass",
            "blockwise.heads": self.blockwise.heads and "blockwise",
            "heads.kind": self.heads.kind,
        }
        return {name: str(kind) for name, kind in asked.items() if kind}


AT_LEAST_ONE = (
    "optim.max_steps", "optim.batch_size", "optim.accumulate", "save_steps", "eval_steps", "log_steps",
)  # fmt: skip
CHOICES = {
    "task": ("seq2seq", "lm"), "model.family": ("t5", "gpt2"), "tokenizer.kind": ("unigram", "wordpiece"),
    "optim.lr_scale": ("rms", "flat"),
}  # fmt: skip
SHARES = ("distill.kl_weight", "distill.greedy", "distill.sampled", "data.passages.scrambled")


def check(recipe: Recipe) -> Recipe:
    """Check a recipe before any data is read; returns it.

    Raises UserError for the first value that cannot work; the message names the key.
    """
    if recipe.distill.target == "":  # as a recipe for any target has it
        raise UserError(
            "distill.target is not set: give the model to train for, distill.target=NAME, ./FOLDER or OWNER/NAME"
        )
    _require_range(recipe, AT_LEAST_ONE, 1)
    words = recipe.data.passages.words
    if len(words) != 2 or not 0 < words[0] <= words[1]:
        raise UserError(f"data.passages.words is {list(words)}: it must be [least, most] words of a passage")
    if recipe.optim.max_minutes is not None:
        _require(recipe, "optim.max_minutes", lambda value: value > 0, "above 0, or null")
    for name, allowed in CHOICES.items():
        _require_choice(recipe, name, allowed)
    _require_range(recipe, SHARES, 0, 1)
    plan = recipe.data
    if plan.join_related and not plan.join:
        raise UserError(
            "data.join_related=true: needs data.join, which selects the rows, e.g. data.join={src:[tatoeba]}; or set "
            "data.join_related=false"
        )
    if plan.join and recipe.task != "seq2seq":
        raise UserError(f"data.join: joins pairs of task=seq2seq, but task is '{recipe.task}'; remove data.join")
    if recipe.task == "seq2seq" and recipe.model.decoder_layers > recipe.model.encoder_layers:
        raise UserError(
            f"model.decoder_layers is {recipe.model.decoder_layers}, more than model.encoder_layers "
            f"({recipe.model.encoder_layers}): transformers.generate cannot run such a T5"
        )
    if recipe.blockwise.heads:
        _require_range(recipe, ["blockwise.heads"], 2, 65, ", the target's own included")
    kinds = recipe.heads_kinds()
    if len(kinds) > 1:
        raise UserError(f"{', '.join(kinds)}: one recipe trains one kind of draft; set one of them")
    _check_heads(recipe)
    _check_eagle(recipe)
    _check_specdec(recipe)
    if recipe.pard.steps:
        _require_range(recipe, ["pard.steps"], 1, 64)
        _require_share(recipe, "pard.share")
        _require_share(recipe, "pard.decay")
        if recipe.model.start_from is None:
            raise UserError("model.start_from is not set: pard trains a draft on, e.g. gpt-nano")
    _check_block(recipe)
    if recipe.look_ahead.number:
        _require_range(recipe, ["look_ahead.number"], 1, 16)
        _require_range(recipe, ["look_ahead.places"], 1)
        _require_share(recipe, "look_ahead.decay")
    if recipe.distill.start_from and not recipe.heads_kind():
        raise UserError("distill.start_from: is for heads; a model continues from model.start_from=FOLDER")
    if recipe.heads_kind() and recipe.distill.target is None:
        raise UserError("distill.target is not set: heads are trained on a target, e.g. t5-mini")
    if not recipe.data.path and not recipe.data.hub:
        raise UserError("data.path is empty and data.hub is not set: give JSONL files, e.g. data.path=[pairs.jsonl.gz]")
    return recipe


def _require(recipe: Recipe, name: str, allows: Callable[[Any], bool], allowed: str) -> None:
    """Raise UserError where the value of the key `name` is not `allowed`."""
    if not allows(value := attrgetter(name)(recipe)):
        raise UserError(f"{name} is {value}: it must be {allowed}")


def _require_range(recipe: Recipe, names: Iterable[str], least: int, most: int | None = None, also: str = "") -> None:
    """`also` ends the message."""
    allowed = f"at least {least}{also}" if most is None else f"from {least} to {most}{also}"
    for name in names:
        _require(recipe, name, lambda value: least <= value <= (math.inf if most is None else most), allowed)


def _require_share(recipe: Recipe, name: str) -> None:
    _require(recipe, name, lambda value: 0 < value <= 1, "above 0 and at most 1")


def _require_choice(recipe: Recipe, name: str, allowed: tuple[str, ...]) -> None:
    if (value := attrgetter(name)(recipe)) not in allowed:
        raise UserError(f"{name} is '{value}': choose one of {', '.join(allowed)}")


def _check_heads(recipe: Recipe) -> None:
    if recipe.heads.kind is None:
        return
    _require_choice(recipe, "heads.kind", ("medusa", "hydra"))
    for name, most in (("number", 64), ("layers", 8), ("narrow", 4096), ("rank", 4096)):
        _require_range(recipe, [f"heads.{name}"], 1, most)
    _require_share(recipe, "heads.decay")


def _check_eagle(recipe: Recipe) -> None:
    plan = recipe.eagle
    if not plan.steps:
        return
    _require_range(recipe, ["eagle.steps"], 1, 8)
    if not plan.taps and (plan.vocabulary is not None or plan.own_head):
        raise UserError(
            "eagle.vocabulary, eagle.own_head: are eagle3's; set eagle.taps=[LAYER,LAYER,LAYER], or neither"
        )
    if plan.own_head and plan.vocabulary is None:
        raise UserError("eagle.own_head=true: give eagle.vocabulary, how many tokens the head is over")
    if plan.vocabulary is not None:
        _require_range(recipe, ["eagle.vocabulary"], 2, also=", or null")
    if plan.parallel:
        _require(
            recipe,
            "eagle.taps",
            lambda taps: taps or plan.fused,
            "three depths, or eagle.fused=true, with eagle.parallel",
        )
        _require_range(recipe, ["eagle.layers"], 1, 8)
    _require_share(recipe, "eagle.share")
    _require_share(recipe, "eagle.decay")
    _require_range(recipe, ["eagle.noise", "eagle.feature_weight", "eagle.token_weight"], 0)


def _check_block(recipe: Recipe) -> None:
    if not recipe.block.size:
        return
    if recipe.task != "lm":
        raise UserError(f"task is '{recipe.task}': block.size needs lm, a decoder-only target")
    _require_range(recipe, ["block.size"], 2, 65)
    _require_range(recipe, ["block.layers"], 1, 64)
    _require_range(recipe, ["block.places"], 1)
    _require_range(recipe, ["block.rank"], 0, 4096)
    _require_share(recipe, "block.decay")


def _check_specdec(recipe: Recipe) -> None:
    plan = recipe.specdec
    if not plan.queries:
        return
    _require_range(recipe, ["specdec.queries"], 1, 64)
    if recipe.task != "seq2seq":
        raise UserError(f"task is '{recipe.task}': specdec.queries needs seq2seq, a target with an encoder")
    if not 1 <= len(plan.layers) <= 8 or min(plan.layers) < 0:
        raise UserError(f"specdec.layers is {list(plan.layers)}: give 1 to 8 of the target's decoder layers, from 0")
    _require_share(recipe, "specdec.decay")
    _require_share(recipe, "specdec.share")


# Where a recipe's files and models are: a path, a hub name, or `shipped:models/t5-mini` for what comes with the
# package. A model can also be named as in `specbench run`.


MODELS = {  # the options that name a model, and those of their commits
    "model.start_from": "model.revision", "tokenizer.start_from": None, "distill.target": "distill.revision",
    "distill.start_from": None,
}  # fmt: skip


def with_places(recipe: Recipe, folders: Iterable[Path] = ()) -> Recipe:
    """`recipe` with the place of each model that it names, and its commit; `folders` hold choices as in `conf/`.

    Raises UserError for a name of no model, or of one without weights.
    """
    for name, commit in MODELS.items():
        value = attrgetter(name)(recipe)
        if not value or value.startswith(SHIPPED):
            continue
        model = model_at(value, name, folders)
        place = place_of(model)
        if place is None:
            raise UserError(f"{name}={value}: this model has no weights; name one that has")
        recipe = _with(recipe, name, place)
        if commit is not None and attrgetter(commit)(recipe) is None and model.path is None:
            recipe = _with(recipe, commit, model.revision)
    return recipe


def require_made(recipe: Recipe) -> None:
    """Raise UserError for a model that does not exist yet, which another recipe is to write first."""
    for name in MODELS:
        value = attrgetter(name)(recipe)
        if value and not Path(resolve(value)).exists() and (how := made_by(value)):
            raise UserError(f"{name}={value}: does not exist yet; {how}")


def _with(recipe: Recipe, key: str, value: str | None) -> Recipe:
    part, _, name = key.partition(".")
    return replace(recipe, **{part: replace(getattr(recipe, part), **{name: value})})


def resolve(where: str) -> str:
    """`where` as a path or hub name that libraries take."""
    if where.startswith(SHIPPED):
        return str(shipped(*where[len(SHIPPED) :].split("/")))
    return os.path.expanduser(where)


def short_name(where: str) -> str:
    """`where` without the machine's folders: for model cards, which travel."""
    return where if where.startswith(SHIPPED) or not Path(where).is_absolute() else Path(where).name


def portable(value: Any) -> Any:
    """A recipe as plain values, with file names in place of this machine's folders."""
    if isinstance(value, dict):
        # Words put before or kept in a text may begin with a slash, too.
        return {name: part if name in ("prefix", "keep") else portable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    return short_name(value) if isinstance(value, str) else value
