"""What a recipe trains and is measured on: its rows, its tokenizer, and the sets of token ids made of them.

Independent of networks or Trainers; a distilling recipe passes the target in.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import chain, islice
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.errors import UserError
from specbench.train import features
from specbench.train.networks import load_tokenizer
from specbench.train.outputs import Ids, kept_outputs, write_outputs
from specbench.train.passages import made_passages, without_sentences
from specbench.train.rows import Row, joined, load_rows, read, without_held_out
from specbench.train.schema import Recipe
from specbench.train.tokenizers import fit_unigram, fit_wordpiece


def fields(recipe: Recipe) -> tuple[str, ...]:
    """The fields of a row that the recipe reads."""
    return (recipe.data.source, recipe.data.target) if recipe.task == "seq2seq" else (recipe.data.text,)


def training_rows(recipe: Recipe) -> tuple[list[Row], list[Row]]:
    """All rows to train on (filtered, without excluded rows, with joined rows and passages), and the held-out rows.

    Raises:
        UserError: data.hold_out leaves no rows.
    """
    plan = recipe.data
    leave_out = without_held_out if recipe.task == "seq2seq" else without_sentences
    rows = leave_out(load_rows(plan, fields(recipe)), plan, fields(recipe))
    held: list[Row] = []
    if plan.hold_out:
        random.Random(recipe.seed).shuffle(rows)
        held, rows = rows[: plan.hold_out], rows[plan.hold_out :]
        if not rows:
            raise UserError(f"data.hold_out is {plan.hold_out}: nothing is left to train on")
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

    Raises:
        UserError: the recipe selects neither completions nor references.
    """
    plan, distill = recipe.data, recipe.distill
    if recipe.task == "lm":
        return features.blocks(rows, plan, tokenizer)
    as_they_are = features.pairs(rows, plan, tokenizer)
    if target is None:
        return as_they_are
    every: list[Ids] = list(as_they_are["input_ids"])
    sources, outputs = (list(every), list(as_they_are["labels"])) if distill.references else ([], [])
    for share, sampled, name in ((distill.greedy, False, "greedy"), (distill.sampled, True, "sampled")):
        chosen = random.Random(f"{recipe.seed} {name}").sample(every, round(share * len(every)))
        if chosen:
            write = partial(
                write_outputs,
                target,
                chosen,
                sampled=sampled,
                batch_size=distill.generate_batch,
                max_new_tokens=distill.max_new_tokens,
                per_source=distill.per_source,
                seed=recipe.seed,
                progress=recipe.progress,
            )
            sources += chosen
            outputs += kept_outputs(output / f"target-{name}.jsonl", chosen, write)
    if not sources:
        raise UserError("distill.greedy and distill.sampled are 0 and distill.references is false: nothing to learn on")
    return features.pairs_of_ids(sources, outputs)


def evaluation_set(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Dataset | None:
    """The rows looked at while training, if the recipe names any."""
    plan = recipe.data
    if not plan.eval_path:
        return None
    held = load_rows(plan, fields(recipe), plan.eval_path)[: plan.eval_rows]
    return (features.pairs if recipe.task == "seq2seq" else features.blocks)(held, plan, tokenizer)
