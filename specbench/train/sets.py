"""What a recipe trains and is measured on: its rows, its tokenizer, and the sets of token ids made of them.

Independent of networks or Trainers; a distilling recipe passes the target in.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.errors import UserError
from specbench.files import write_atomically
from specbench.text.vocabulary import Vocabulary
from specbench.train.networks import load_tokenizer
from specbench.train.rows import Row, joined, load_rows, made_passages, read, without_held_out, without_sentences
from specbench.train.schema import DataPlan, Recipe

Ids = list[int]


def write_outputs(
    target: PreTrainedModel,
    sources: list[Ids],
    *,
    sampled: bool,
    batch_size: int,
    max_new_tokens: int,
    size: int,
    seed: int,
    per_source: float | None = None,
    progress: bool = True,
    purpose: str = "",
) -> list[Ids]:
    """One output per source, without the start token and closed by end-of-sequence if the target ended it.

    Greedy, or sampled at T=1 from the first `size` tokens (no top-k, no top-p). Sources of like length share a batch.
    `per_source` also limits outputs to so many tokens per source token: one output that never ends holds up a batch.
    `purpose` is shown after the name of the progress bar.
    """
    torch.manual_seed(seed)
    outputs: list[Ids] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    bar = tqdm(total=len(order), desc=f"{'sampled' if sampled else 'greedy'} outputs{purpose}", disable=not progress)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        room = max_new_tokens
        if per_source is not None:
            room = min(room, 4 + int(per_source * max(len(sources[index]) for index in chosen)))
        written = _one_batch(target, [sources[index] for index in chosen], sampled, room, size)
        for index, output in zip(chosen, written, strict=True):
            outputs[index] = output
        bar.update(len(chosen))
    bar.close()
    return outputs


def written_tokens(tokenizer: PreTrainedTokenizerFast, *models: Any) -> int:
    """How many tokens a run of these models has: further logits are padding that no draft can read.

    It is the vocabulary of `specbench run`, of the tokenizer's tokens that each model has a row for.
    """
    rows = min(model.config.get_text_config().vocab_size for model in models)
    return Vocabulary(tokenizer, 0, is_encoder_decoder=False, rows=rows).size


def special_ids(target: PreTrainedModel) -> tuple[int, frozenset[int]]:
    """The id that rows are filled up with, and the ids that end an output.

    A decoder-only model may have several that end it, and none for filling up: then an end is taken.
    """
    given, pad = target.config.eos_token_id, target.config.pad_token_id
    ends = frozenset(given if isinstance(given, (list, tuple)) else () if given is None else (given,))
    return (pad if pad is not None else min(ends, default=0)), ends


def padded(rows: list[Ids], pad: int) -> torch.Tensor:
    """The rows as one tensor, filled up with `pad`."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])


def _one_batch(
    target: PreTrainedModel, sources: list[Ids], sampled: bool, max_new_tokens: int, size: int
) -> Iterator[Ids]:
    pad, ends = special_ids(target)
    ids = padded(sources, pad).to(target.device)
    # What comes before the outputs: a start token, or the prompt itself (then all of one length).
    before = 1 if target.config.is_encoder_decoder else ids.shape[1]
    logits: int = target.config.get_text_config().vocab_size
    with torch.inference_mode():
        written = target.generate(
            input_ids=ids,
            attention_mask=padded([[1] * len(source) for source in sources], 0).to(target.device),
            pad_token_id=pad,
            do_sample=sampled,
            num_beams=1,
            temperature=1.0 if sampled else None,
            top_k=0 if sampled else None,
            top_p=1.0 if sampled else None,
            max_new_tokens=max_new_tokens,
            suppress_tokens=list(range(size, logits)) or None,
        )
    for row in written[:, before:].tolist():
        closed = next((place for place, token in enumerate(row) if token in ends), None)
        yield row[: closed + 1] if closed is not None else [token for token in row if token != pad]


def kept_outputs(path: Path, sources: list[Ids], make: Callable[[], list[Ids]]) -> list[Ids]:
    """The outputs in `path` if they are of exactly these sources (a resumed run), else those of `make()`."""
    if path.is_file():
        kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if [row["source"] for row in kept] == sources:
            return [row["output"] for row in kept]
    outputs = make()
    lines = [json.dumps({"source": s, "output": o}) for s, o in zip(sources, outputs, strict=True)]
    write_atomically(path, "\n".join(lines) + "\n", "output")
    return outputs


SHARE_HELD_OUT = 5  # at most one row in so many is held out
PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def fit_unigram(texts: Iterable[str], size: int, closing: bool = True) -> PreTrainedTokenizerFast:
    """A Unigram of exactly `size` pieces: `<pad>`=0, `</s>`=1, `<unk>`=2, and bytes for text that no piece covers.

    Raises UserError if the text does not give that many pieces.
    """
    room = size - len(BYTES)
    if room <= 3:
        raise UserError(f"tokenizer.size is {size}: the bytes and special tokens alone are {len(BYTES) + 3} pieces")
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


def training_rows(recipe: Recipe) -> tuple[list[Row], list[Row]]:
    """All rows to train on (filtered, without excluded rows, with joined rows and passages), and the held-out rows.

    At most a fifth of the rows is held out, whatever `data.hold_out` is.
    """
    plan = recipe.data
    leave_out = without_held_out if recipe.task == "seq2seq" else without_sentences
    rows = leave_out(load_rows(plan, fields(recipe)), plan, fields(recipe))
    held: list[Row] = []
    if plan.hold_out:
        random.Random(recipe.seed).shuffle(rows)
        number = min(plan.hold_out, max(len(rows) // SHARE_HELD_OUT, 1 if len(rows) > 1 else 0))
        if number < plan.hold_out:
            print(f"data.hold_out={plan.hold_out}: {number} of {len(rows)} rows are held out", file=sys.stderr)
        held, rows = rows[:number], rows[number:]
    if recipe.task == "lm":
        return rows, held
    summaries = made_passages(plan.passages, plan.source, plan.target, recipe.seed)
    return rows + joined(rows, plan, recipe.seed) + summaries, held


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


def training_set(
    recipe: Recipe, rows: list[Row], tokenizer: PreTrainedTokenizerFast, target: PreTrainedModel | None, output: Path
) -> Dataset:
    """Token ids to train on: the rows themselves, or the completions of `target` for their sources.

    Raises UserError if the recipe selects neither completions nor references.
    """
    plan, distill = recipe.data, recipe.distill
    if recipe.task == "lm":
        return blocks(rows, plan, tokenizer)
    references = pairs(rows, plan, tokenizer)
    if target is None:
        return references
    prompts: list[Ids] = list(references["input_ids"])
    sources, outputs = (list(prompts), list(references["labels"])) if distill.references else ([], [])
    for share, sampled, name in ((distill.greedy, False, "greedy"), (distill.sampled, True, "sampled")):
        chosen = random.Random(f"{recipe.seed} {name}").sample(prompts, round(share * len(prompts)))
        if chosen:
            write = partial(
                write_outputs,
                target,
                chosen,
                sampled=sampled,
                batch_size=distill.generate_batch,
                max_new_tokens=distill.max_new_tokens,
                size=written_tokens(tokenizer, target),
                per_source=distill.per_source,
                seed=recipe.seed,
                progress=recipe.progress,
            )
            sources += chosen
            outputs += kept_outputs(output / f"target-{name}.jsonl", chosen, write)
    if not sources:
        raise UserError("distill.greedy and distill.sampled are 0 and distill.references is false: nothing to learn on")
    return pairs_of_ids(sources, outputs)


def evaluation_set(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Dataset | None:
    """The features of the recipe's evaluation rows; None where it names none."""
    plan = recipe.data
    if not plan.eval_path:
        return None
    held = load_rows(plan, fields(recipe), plan.eval_path)[: plan.eval_rows]
    return (pairs if recipe.task == "seq2seq" else blocks)(held, plan, tokenizer)


def pairs(rows: list[Row], plan: DataPlan, tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Prefix + source, and target, both closed by the end-of-sequence token. A row may have a `prefix` of its own."""
    texts = [row.get("prefix", plan.prefix) + row[plan.source] for row in rows]
    sources = tokenizer(texts, max_length=plan.max_source, truncation=True)
    targets = tokenizer([row[plan.target] for row in rows], max_length=plan.max_target, truncation=True)
    return pairs_of_ids(sources["input_ids"], targets["input_ids"])


def pairs_of_ids(sources: list[list[int]], targets: list[list[int]]) -> Dataset:
    """Training features from token ids that exist already, such as a target's own outputs."""
    return Dataset.from_dict(
        {
            "input_ids": sources,
            "attention_mask": [[1] * len(ids) for ids in sources],
            "labels": targets,
            "length": [len(source) + len(target) for source, target in zip(sources, targets, strict=True)],
        }
    )


def blocks(rows: list[Row], plan: DataPlan, tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Texts run together and cut into blocks of `max_target` counted tokens.

    Each is closed by the end-of-sequence token, and begins with the token that begins a text where there is another:
    an unconditional completion starts from it (`text.vocabulary.Vocabulary.start`).
    """
    ids = tokenizer([row[plan.text] for row in rows], add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    begin = [] if tokenizer.bos_token_id in (None, end) else [tokenizer.bos_token_id]
    line = list(chain.from_iterable([*begin, *text, end] for text in ids))
    size = min(plan.max_target, len(line))
    parts = [line[start : start + size] for start in range(0, len(line) - size + 1, size)]
    masks, lengths = [[1] * size] * len(parts), [size] * len(parts)
    return Dataset.from_dict({"input_ids": parts, "attention_mask": masks, "labels": parts, "length": lengths})
