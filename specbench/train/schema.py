"""The typed recipe: what `specbench train recipe=...` may say, with the ranges checked and the key named.

It does not know where values come from (YAML, command line, a test) nor what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specbench.errors import UserError


@dataclass
class ModelShape:
    """The network. `start_from` (a folder or hub name) replaces the shape by a trained model's own."""

    family: str = "t5"  # t5 | gpt2
    start_from: str | None = None
    revision: str | None = None
    d_model: int = 256
    d_ff: int = 512
    d_kv: int = 64
    heads: int = 4
    encoder_layers: int = 8
    decoder_layers: int = 8
    positions: int = 512  # gpt2 only
    dropout: float = 0.1
    tied: bool = True


@dataclass
class TokenizerPlan:
    """`start_from` takes a trained model's tokenizer; else one is fitted on the data and on `extra` text files."""

    start_from: str | None = None
    kind: str = "unigram"  # unigram (T5) | wordpiece (Bert)
    size: int = 8000  # pieces, which is also the number of logits
    extra: list[str] = field(default_factory=list)
    extra_rows: int = 20000


@dataclass
class PassagePlan:
    """A second task beside the pairs: passages of running text, whose summaries are their first sentences."""

    path: list[str] = field(default_factory=list)  # files with one text a row, in the order of the text
    rows: int = 25000
    words: list[int] = field(default_factory=lambda: [30, 120])  # of a passage: at least, at most
    scrambled: float = 0.0  # share of the passages whose words are drawn anew, so that only copying helps
    prefix: str = "summarize: "
    exclude: list[str] = field(default_factory=list)  # files whose sentences must not be seen
    test: dict[str, str] = field(default_factory=dict)  # name -> file of articles and highlights, for the model card


@dataclass
class DataPlan:
    """Rows from JSONL files (`path`) or from the hub (`hub`), filtered, minus what is held out (`exclude`)."""

    path: list[str] = field(default_factory=list)
    hub: str | None = None
    subset: str | None = None
    revision: str | None = None
    split: str = "train"
    keep: dict[str, Any] = field(default_factory=dict)  # field -> values allowed
    exclude: list[str] = field(default_factory=list)  # files whose sentences, and near copies, must not be seen
    source: str = "en"
    target: str = "de"
    text: str = "text"  # the field of a decoder-only model's rows
    prefix: str = "translate English to German: "
    max_rows: int | None = None
    max_words: int | None = None  # rows with a longer source are left out
    join: dict[str, Any] = field(default_factory=dict)  # rows that are also joined in twos to fours: field -> values
    max_source: int = 128
    max_target: int = 128
    eval_path: list[str] = field(default_factory=list)  # looked at while training
    eval_rows: int = 200
    hold_out: int = 0  # rows, drawn by the seed, that are not trained on and measured at the end
    test: dict[str, str] = field(default_factory=dict)  # name -> file: measured at the end, for the model card
    test_rows: int = 1000
    passages: PassagePlan = field(default_factory=PassagePlan)


@dataclass
class OptimPlan:
    """AdamW. With `lr_scale: rms` the rate of each tensor is `lr` times its RMS at the start, as in T5's Adafactor."""

    lr: float = 0.01
    lr_scale: str = "rms"  # rms | flat
    max_steps: int = 1000
    warmup_steps: int = 300
    schedule: str = "cosine"
    batch_size: int = 128
    accumulate: int = 1
    weight_decay: float = 0.0
    beta2: float = 0.98
    clip: float = 1.0


@dataclass
class DistillPlan:
    """Train a draft against `target`: on outputs the target wrote, towards its distribution (DistillSpec)."""

    target: str | None = None  # a folder, a hub name or shipped:models/NAME; unset: ordinary training
    revision: str | None = None
    greedy: float = 1.0  # share of the sources for which the target writes a greedy output to learn on,
    sampled: float = 1.0  # the same at T=1,
    references: bool = False  # and whether the data's own references are learned on, too
    borrow: bool = True  # start from the target's embeddings, and layers where they fit
    kl_weight: float = 1.0  # forward KL(p || q); 1 - kl_weight is left for the cross-entropy on the tokens
    generate_batch: int = 128
    max_new_tokens: int = 96
    per_source: float | None = 1.5  # and at most so many tokens per source token


@dataclass
class BlockwisePlan:
    """Train heads on the frozen `distill.target` in the place of a model (Stern et al. 2018)."""

    heads: int = 0  # k, with the target's own; 0: no heads are trained
    hidden: int | None = None  # width of each head's layer; unset: the target's


@dataclass
class Recipe:
    """One training run, whole: the same recipe, data and seed give the same model on the same machine."""

    name: str = "t5-mini"
    task: str = "seq2seq"  # seq2seq | lm
    model: ModelShape = field(default_factory=ModelShape)
    tokenizer: TokenizerPlan = field(default_factory=TokenizerPlan)
    data: DataPlan = field(default_factory=DataPlan)
    optim: OptimPlan = field(default_factory=OptimPlan)
    distill: DistillPlan = field(default_factory=DistillPlan)
    blockwise: BlockwisePlan = field(default_factory=BlockwisePlan)
    output: str = "models/${name}"
    seed: int = 1
    bf16: bool = True
    threads: int | None = None
    log_steps: int = 50
    save_steps: int = 300
    eval_steps: int = 600
    progress: bool = True


def check(recipe: Recipe) -> Recipe:
    """Refuse what cannot work before any data is read; the message names the key."""
    at_least_one = {
        "optim.max_steps": recipe.optim.max_steps,
        "optim.batch_size": recipe.optim.batch_size,
        "optim.accumulate": recipe.optim.accumulate,
        "save_steps": recipe.save_steps,
        "eval_steps": recipe.eval_steps,
        "log_steps": recipe.log_steps,
    }
    for key, number in at_least_one.items():
        if number < 1:
            raise UserError(f"{key} is {number}: it must be at least 1")
    words = recipe.data.passages.words
    if len(words) != 2 or not 0 < words[0] <= words[1]:
        raise UserError(f"data.passages.words is {list(words)}: it must be [least, most] words of a passage")
    choices = {
        "task": (recipe.task, ("seq2seq", "lm")),
        "model.family": (recipe.model.family, ("t5", "gpt2")),
        "tokenizer.kind": (recipe.tokenizer.kind, ("unigram", "wordpiece")),
        "optim.lr_scale": (recipe.optim.lr_scale, ("rms", "flat")),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            raise UserError(f"{key} is '{value}': choose one of {', '.join(allowed)}")
    shares = {
        "distill.kl_weight": recipe.distill.kl_weight,
        "distill.greedy": recipe.distill.greedy,
        "distill.sampled": recipe.distill.sampled,
        "data.passages.scrambled": recipe.data.passages.scrambled,
    }
    for key, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise UserError(f"{key} is {share}: it must be from 0 to 1")
    if recipe.task == "seq2seq" and recipe.model.decoder_layers > recipe.model.encoder_layers:
        raise UserError(
            f"model.decoder_layers is {recipe.model.decoder_layers}, more than model.encoder_layers "
            f"({recipe.model.encoder_layers}): transformers.generate cannot run such a T5"
        )
    if recipe.blockwise.heads and not 2 <= recipe.blockwise.heads <= 65:
        raise UserError(
            f"blockwise.heads is {recipe.blockwise.heads}: it must be from 2 to 65, the target's own included"
        )
    if recipe.blockwise.heads and recipe.distill.target is None:
        raise UserError("distill.target is not set: heads are trained on a target, e.g. shipped:models/t5-mini")
    if not recipe.data.path and not recipe.data.hub:
        raise UserError("data.path is empty and data.hub is not set: give JSONL files, e.g. data.path=[pairs.jsonl.gz]")
    return recipe
