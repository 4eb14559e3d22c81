"""The typed recipe: what `specbench train recipe=...` may say.

Independent of where values come from (YAML, command line, a test) and of what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from specbench.config.keys import fresh, key

# What a recipe may train, and the options of a recipe that each kind reads. What trains it is the `learner` that the
# config of the draft of this name has (`config.drafts.DRAFT_KINDS`); a model is trained by transformers' Trainer.
PLAN_OF: dict[str, str | None] = {
    "model": None, "blockwise": "blockwise", "medusa": "heads", "hydra": "heads", "eagle": "eagle", "eagle3": "eagle",
    "peagle": "eagle", "mtp": "eagle", "specdec": "specdec", "dflash": "block", "dspark": "block", "pass": "look_ahead",
    "pard": "pard",
}  # fmt: skip


@dataclass
class ModelShape:
    """The network. `start_from` (a folder or hub name) replaces the shape by a trained model's own."""

    family: str = key("t5", "t5 | gpt2 | own: distill.target's architecture and widths, of decoder_layers layers")
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
    """`start_from` takes a trained model's tokenizer; otherwise one is fitted on the data and on `extra` text files."""

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
    completions: bool | None = key(
        None,
        "decoder-only: rows are prompts, as task.path= of run takes them, and distill.target's completions of them are "
        "learned; unset: if rows have messages, turns or a prompt, and no text",
    )
    chat_template: bool | None = key(None, "prompts are put into the target's chat template; unset: if it has one")
    prefix: str = key("translate English to German: ", "put before the source")
    max_rows: int | None = key(None, "rows to read; unset: all")
    max_words: int | None = key(None, "rows with a longer source are left out")
    join: dict[str, Any] = fresh(dict, "{FIELD:[VALUE,...]}: rows that are also joined in twos to fours")
    join_related: bool = key(False, "also join them in groups that share words, which read more like passages")
    max_source: int = key(128, "tokens of a source, or of a prompt to complete (longer prompts are left out)")
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
        None,
        "training ends after so many minutes, however many steps that were; its schedule follows the clock; a "
        "larger number resumes it",
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
    greedy: float = key(
        1.0, "share of the sources, or prompts, for which the target writes a greedy output to learn from"
    )
    sampled: float = key(1.0, "the same at T=1")
    references: bool = key(False, "learn from the data's own references, too")
    borrow: bool = key(True, "start from the target's embeddings, and layers that fit")
    start_from: str | None = key(
        None, "heads: a folder of earlier weights of the same kind and shape that training continues from"
    )
    kl_weight: float = key(1.0, "of forward KL(p || q); the rest goes to the cross-entropy of the tokens")
    generate_batch: int = key(128, "sources that an encoder-decoder target answers at a time")
    max_new_tokens: int = key(96, "maximum number of tokens of an output")
    per_source: float | None = key(1.5, "encoder-decoder: and at most so many for each token of the source")
    outputs: str | None = key(
        None,
        "a folder that keeps what the target writes, for all recipes with the same target, prompts and settings; "
        "unset: each keeps its own in its output",
    )
    states: str | None = key(
        None,
        "completions: a folder that keeps the target's states along them, computed once for all recipes with the same "
        "target, texts and depths; unset: the target runs in each step",
    )


@dataclass
class BlockwisePlan:
    """Train heads on the frozen `distill.target` instead of a model (Stern et al. 2018)."""

    heads: int = key(5, "k, with the target's own")
    hidden: int | None = key(None, "width of each head's layer; unset: the target's")


@dataclass
class HeadsPlan:
    """Train heads on the frozen `distill.target` instead of a model: all at once, for the tokens after the next.

    Medusa's (Cai et al. 2024), or Hydra's, which also read the tokens before theirs (Ankner et al. 2024).
    """

    number: int = key(4, "of heads: tokens after the next that they predict")
    layers: int = key(1, "medusa: residual blocks of each head")
    narrow: int = key(64, "hydra: numbers that the embedding of a token is narrowed to")
    rank: int = key(16, "of the matrix that each head adds to the target's output projection")
    decay: float = key(0.8, "the loss of head k has the weight decay^k")


@dataclass
class EaglePlan:
    """Train EAGLE's layer on the frozen `distill.target` instead of a model (Li et al. 2024).

    That of EAGLE-3 (Li et al. 2025), P-EAGLE's layers, or a depth of multi-token prediction. `distill.kl_weight` is of
    forward KL in the loss of tokens.
    """

    steps: int = key(1, "steps that the layer is unrolled on its own predictions in training")
    layers: int = key(1, "peagle: decoder layers, the first of which is EAGLE-3's")
    mask: int | None = key(None, "peagle: the token that stands for tokens not known yet; unset: the padding token")
    share: float = key(0.7, "peagle: of the places that draft a token in training, the share that also drafts the next")
    taps: list[int] = fresh(
        list,
        "eagle3: after how many of the target's decoder layers each fused state is taken; unset: 2, n/2 and n-3 of n",
    )
    vocabulary: int | None = key(None, "eagle3: only these most frequent tokens are drafted; unset: all")
    own_head: bool = key(False, "eagle3: a head of its own over these tokens; otherwise it reads the target's rows")
    noise: float = key(0.1, "eagle: at most so much is added to the features that are read, either way")
    feature_weight: float = key(1.0, "eagle: of the smooth L1 distance to the target's feature")
    token_weight: float = key(0.1, "eagle: of the loss of tokens beside it")
    decay: float = key(0.8, "the loss of step k, from 0, has the weight decay^k")


@dataclass
class SpecDecPlan:
    """Train SpecDec's decoder on the frozen encoder of `distill.target` instead of a model (Xia et al. 2023)."""

    queries: int = key(5, "tokens of a proposal, all predicted at once")
    layers: list[int] = fresh(
        list, "the target's decoder layers that its layers start from and whose view of the source they share, from 0"
    )
    decay: float = key(0.8, "the loss of token k of a proposal, from 0, has the weight decay^k")
    share: float = key(0.5, "of the tokens that the loss of a step counts, drawn for each query: logits take most time")


@dataclass
class BlockPlan:
    """Train a block drafter on the frozen `distill.target`: DFlash's (2602.06036), or DSpark's (2607.05147)."""

    size: int = key(8, "entries of a block, of which DFlash drafts all but the first")
    layers: int = key(2, "decoder layers of the network")
    hidden: int | None = key(None, "width of their feed-forward layers; unset: twice the target's")
    taps: list[int] = fresh(
        list, "after how many of the target's decoder layers the states are that it reads; unset: 2, n/2 and n-3 of n"
    )
    mask: int | None = key(None, "id of the token whose embedding stands for unknown tokens; unset: the padding's")
    rank: int = key(0, "dspark: numbers that a token is narrowed to before it changes the next one's logits")
    confidence: bool = key(True, "dspark: a head that predicts acceptance")
    places: int = key(16, "places of each text, drawn anew for each batch, where a block begins in training")
    decay: float = key(0.8, "the loss of token k of a block, from 0, has the weight decay^k")


@dataclass
class LookAheadPlan:
    """Train look-ahead embeddings, which the frozen `distill.target` reads, instead of a model (Monea et al.)."""

    number: int = key(4, "of look-ahead embeddings: tokens after the next that they predict")
    places: int = key(8, "tokens of each text, drawn anew for each batch, that they follow in training")
    decay: float = key(0.8, "the loss of embedding k has the weight decay^k")


@dataclass
class PardPlan:
    """Train `model.start_from` to draft in one forward pass on the frozen `distill.target` (PARD)."""

    steps: int = key(5, "tokens of a proposal in training")
    mask: int | None = key(None, "the token that stands for tokens not known yet; unset: the padding token")
    share: float = key(0.7, "of the places that draft a token in training, the share that also drafts the next")
    decay: float = key(0.8, "the loss of token k of a proposal, from 0, has the weight decay^k")


@dataclass
class Recipe:
    """One training run, whole: the same recipe, data and seed give the same model on the same machine."""

    conf_file: ClassVar[str] = "train"

    name: str = key("t5-mini", "names the folder and the card")
    takes: str | None = key(None, "a note: how long it takes, and on which hardware")
    task: str = key("seq2seq", "seq2seq | lm")
    kind: str = key("model", f"what is trained: {' | '.join(PLAN_OF)}; all but model on a frozen distill.target")
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
    compile: bool = key(False, "run the network by torch.compile: pays on a GPU, after a minute of compiling")
    threads: int | None = key(None, "CPU threads of torch; unset: torch's own choice")
    log_steps: int = key(50, "steps between losses")
    save_steps: int = key(300, "steps between checkpoints")
    eval_steps: int = key(600, "steps between evaluations")
    progress: bool = key(True, "show a progress bar")

    @property
    def on_frozen_target(self) -> bool:
        """Whether something small is trained on `distill.target`, and no model."""
        return self.kind != "model"
