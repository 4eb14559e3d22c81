"""The data of a recipe's training and measurement: its rows, and the sets of token ids made of them.

Independent of networks or Trainers; a distilling recipe passes the target in.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.errors import UserError
from specbench.train.passages import made_passages, without_sentences
from specbench.train.prompt_rows import load_prompts, prompt_ids, without_held_out_prompts
from specbench.train.recipe_rows import Row, joined, load_rows, without_held_out
from specbench.train.recipe_schema import DataPlan, Recipe
from specbench.train.target_completions import kept_completions
from specbench.train.target_texts import Ids, kept_outputs, outputs_file, padded, write_outputs, written_tokens
from specbench.train.tokenizers import fields

SHARE_HELD_OUT = 5  # at most one row in so many is held out


def training_rows(recipe: Recipe) -> tuple[list[Row], list[Row]]:
    """All rows to train on (filtered, without excluded rows, with joined rows and passages), and the held-out rows.

    At most a fifth of the rows is held out, whatever `data.hold_out` is.
    """
    plan = recipe.data
    if plan.completions:
        rows = without_held_out_prompts(load_prompts(plan), plan)
    else:
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


def training_set(
    recipe: Recipe, rows: list[Row], tokenizer: PreTrainedTokenizerFast, target: PreTrainedModel | None, output: Path
) -> Dataset:
    """Token ids to train on: the rows themselves, or the completions of `target` for their sources.

    Raises UserError if the recipe selects neither completions nor references.
    """
    plan, distill = recipe.data, recipe.distill
    if plan.completions:
        assert target is not None  # `recipe_checks`
        return completed(recipe, rows, tokenizer, target, output)
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
            outputs += kept_outputs(outputs_file(recipe, output, name, chosen, target), chosen, write)
    if not sources:
        raise UserError("distill.greedy and distill.sampled are 0 and distill.references is false: nothing to learn on")
    return pairs_of_ids(sources, outputs)


def completed(
    recipe: Recipe, rows: list[Row], tokenizer: PreTrainedTokenizerFast, target: PreTrainedModel, output: Path
) -> Dataset:
    """Prompts with the target's own completions; only the completions' tokens count."""
    distill = recipe.distill
    prompts = prompt_ids(rows, recipe, tokenizer, "to train on")
    if (longer := len(rows) - len(prompts)) > 0:
        print(
            f"{longer} of {len(rows)} prompts are longer than data.max_source or the positions allow", file=sys.stderr
        )
    whole: list[Ids] = []
    labels: list[Ids] = []
    for share, sampled, name in ((distill.greedy, False, "greedy"), (distill.sampled, True, "sampled")):
        chosen = random.Random(f"{recipe.seed} {name}").sample(prompts, round(share * len(prompts)))
        if not chosen:
            continue
        settings: Any = {"sampled": sampled, "max_new_tokens": distill.max_new_tokens, "seed": recipe.seed}
        file = outputs_file(recipe, output, name, chosen, target)
        made = kept_completions(
            file, target, chosen, size=written_tokens(tokenizer, target), progress=recipe.progress, **settings
        )
        whole += [source + done for source, done in zip(chosen, made, strict=True)]
        labels += [[-100] * len(source) + done for source, done in zip(chosen, made, strict=True)]
    if not whole:
        raise UserError("distill.greedy and distill.sampled are 0: nothing to learn on")
    masks, lengths = [[1] * len(ids) for ids in whole], [len(ids) for ids in whole]
    columns = {"input_ids": whole, "attention_mask": masks, "labels": labels, "length": lengths}
    return Dataset.from_dict(columns | {"row": range(len(whole))})


def padded_batch(rows: Sequence[Mapping[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Rows of `completed` as one batch, filled up with `pad` at the end, where nothing counts."""
    fill = {"input_ids": pad, "attention_mask": 0, "labels": -100}
    batch = {name: padded([list(row[name]) for row in rows], empty) for name, empty in fill.items()}
    return batch | ({"row": torch.tensor([row["row"] for row in rows])} if "row" in rows[0] else {})


def evaluation_set(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Dataset | None:
    """The features of the recipe's evaluation rows; None if it names none."""
    plan = recipe.data
    if not plan.eval_path:
        return None
    if plan.completions:
        raise UserError("data.eval_path: prompts have no text to evaluate on; leave it out")
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

    Each ends with the end-of-sequence token, and begins with the token that begins a text, if it is another:
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
