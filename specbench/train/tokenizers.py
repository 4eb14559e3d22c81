"""The tokenizer of a recipe: a trained model's own, or one that is fitted on the recipe's text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from specbench.errors import UserError
from specbench.train.networks import load_tokenizer
from specbench.train.recipe_rows import Row, read
from specbench.train.recipe_schema import Recipe

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def fit_unigram(texts: Iterable[str], size: int, closing: bool = True) -> PreTrainedTokenizerFast:
    """A Unigram of exactly `size` pieces: `<pad>`=0, `</s>`=1, `<unk>`=2, and bytes for text that no piece covers.

    Raises UserError if the text does not give that many pieces.
    """
    room = size - len(BYTES)
    if room <= 3:
        raise UserError(f"tokenizer.size is {size}: bytes and special tokens by themselves are {len(BYTES) + 3} pieces")
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=room, special_tokens=[PAD, EOS, UNK], unk_token=UNK, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    pieces = _pieces(tokenizer)
    if len(pieces) != room:
        raise UserError(
            f"tokenizer.size={size} is too large for this text: only {len(pieces) + len(BYTES)} pieces can be made"
        )
    # Bytes come last and score below every real piece, so that they are a fallback only.
    floor = min(score for _, score in pieces) - 10.0
    whole = pieces + [(byte, floor) for byte in BYTES]
    tokenizer.model = models.Unigram(whole, unk_id=2, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    if closing:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNK)


def _pieces(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    """(piece, log probability) in the order of ids; the library gives them only in its JSON."""
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def fit_wordpiece(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece of exactly `size` pieces ('Bert tokenization'); a text begins with [CLS].

    Raises UserError if the text does not give that many pieces.
    """
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    begin = ("[CLS]", special.index("[CLS]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A $B", special_tokens=[begin]
    )
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size:
        raise UserError(f"tokenizer.size={size} does not fit this text: {tokenizer.get_vocab_size()} pieces were made")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="[CLS]",
        eos_token="[SEP]",
        mask_token="[MASK]",
    )


def fields(recipe: Recipe) -> tuple[str, ...]:
    """The fields of a row that the recipe reads."""
    return (recipe.data.source, recipe.data.target) if recipe.task == "seq2seq" else (recipe.data.text,)


def make_tokenizer(recipe: Recipe, rows: list[Row], output: Path) -> PreTrainedTokenizerFast:
    """The tokenizer the recipe names, the one already fitted for this run, or a new one fitted on its text."""
    plan = recipe.tokenizer
    where = plan.start_from or recipe.model.start_from or recipe.distill.target
    fitted = output / "tokenizer"
    if where or (fitted / "tokenizer.json").is_file():
        return load_tokenizer(where or str(fitted))
    extra = chain.from_iterable(islice(read(file), plan.extra_rows) for file in plan.extra)
    # The prefix is read with every source, so it deserves pieces of its own.
    prefix = [recipe.data.prefix] * len(rows) if recipe.task == "seq2seq" else []
    texts = chain((row[name] for row in rows for name in fields(recipe)), prefix, (row["text"] for row in extra))
    if plan.kind == "unigram":
        tokenizer = fit_unigram(texts, plan.size, closing=recipe.task == "seq2seq")
    else:
        tokenizer = fit_wordpiece(texts, plan.size)
    tokenizer.save_pretrained(fitted)
    return tokenizer
