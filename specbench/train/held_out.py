"""Trained weights measured on rows that they have not seen: BLEU, ROUGE-L beside lead-3, and α of a draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerFast

from specbench.errors import UserError
from specbench.quality import quality, quality_interval
from specbench.train.draft_alpha import alphas, in_words
from specbench.train.passages import lead_3
from specbench.train.prompt_rows import as_task_row, load_prompts, prompt_ids, uses_template
from specbench.train.recipe_rows import Row, load_rows
from specbench.train.recipe_schema import Recipe
from specbench.train.target_texts import Ids, write_outputs, written_tokens
from specbench.train.tokenizers import fields


def bleu_metric(tokenizer: PreTrainedTokenizerFast) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for Seq2SeqTrainer that decodes both sides and returns sacreBLEU."""

    def metric(prediction: EvalPrediction) -> dict[str, float]:
        pad = tokenizer.pad_token_id
        written = np.where(prediction.predictions < 0, pad, prediction.predictions)
        wanted = np.where(prediction.label_ids < 0, pad, prediction.label_ids)
        predictions, references = (tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (written, wanted))
        return {"bleu": quality("bleu", predictions, references) or 0.0}

    return metric


def greedy_texts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sources: list[Ids], max_new_tokens: int
) -> list[str]:
    """The model's greedy output for each source, as text."""
    outputs = write_outputs(
        model,
        sources,
        sampled=False,
        batch_size=100,
        max_new_tokens=max_new_tokens,
        size=written_tokens(tokenizer, model),
        seed=0,
        progress=False,
    )
    texts: list[str] = tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return texts


HELD = "held-out rows"
PROMPT_TOKENS = 8  # of each text, when a decoder-only pair is measured


def measure(
    recipe: Recipe,
    held: list[Row],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    target: PreTrainedModel | None,
) -> dict[str, str]:
    """Name of a figure to its value, for the rows held out and each test file of the recipe."""
    plan = recipe.data
    measured: dict[str, str] = {}
    sources: dict[str, list[Ids]] = {}
    for name, rows in _tests(recipe, held).items():
        sources[name] = _prompts(rows, recipe, tokenizer, name)
        if recipe.task == "lm":
            continue
        texts = greedy_texts(model, tokenizer, sources[name], plan.max_target)
        measured[f"BLEU, {name} ({len(rows)} rows)"] = _scored("bleu", texts, [row[plan.target] for row in rows])
    for name, path in plan.passages.test.items():
        rows = load_rows(plan, ("article", "highlights"), [path])[: plan.test_rows]
        sources[name] = _ids([plan.passages.prefix + row["article"] for row in rows], recipe, tokenizer)
        texts = greedy_texts(model, tokenizer, sources[name], plan.max_target)
        read = tokenizer.batch_decode(sources[name], skip_special_tokens=True)
        leads = [lead_3(text.removeprefix(plan.passages.prefix.strip())) for text in read]
        wanted = [row["highlights"] for row in rows]
        measured[f"ROUGE-L, {name} ({len(rows)} rows)"] = _scored("rouge", texts, wanted)
        measured[f"ROUGE-L of lead-3, {name}"] = _scored("rouge", leads, wanted)
    return measured if target is None else measured | alphas(recipe, target, sources, {"α": model}, tokenizer)


def prompts(recipe: Recipe, held: list[Row], tokenizer: PreTrainedTokenizerFast) -> dict[str, list[Ids]]:
    """The inputs of a model's outputs: the rows held out, and each test file of the recipe."""
    return {name: _prompts(rows, recipe, tokenizer, name) for name, rows in _tests(recipe, held).items()}


def held_out_prompts(recipe: Recipe, held: list[Row], tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """The rows that `specbench run` takes as a task: the held-out prompts, or the first test file's."""
    for name, rows in _tests(recipe, held).items():
        if recipe.data.completions:
            return [as_task_row(row, uses_template(recipe.data, tokenizer)) for row in rows]
        if recipe.task == "lm":
            begun = _beginnings([row[recipe.data.text] for row in rows], tokenizer, name)
            texts: list[str] = tokenizer.batch_decode(begun, skip_special_tokens=True)
            return [{"prompt": text} for text in texts]
        return [{"prompt": recipe.data.prefix + row[recipe.data.source]} for row in rows]
    return []


def _tests(recipe: Recipe, held: list[Row]) -> dict[str, list[Row]]:
    plan = recipe.data
    tests = {HELD: held} if held else {}
    if plan.completions:
        return tests | {name: load_prompts(plan, [path])[: plan.test_rows] for name, path in plan.test.items()}
    return tests | {name: load_rows(plan, fields(recipe), [path])[: plan.test_rows] for name, path in plan.test.items()}


def _prompts(rows: list[Row], recipe: Recipe, tokenizer: PreTrainedTokenizerFast, name: str) -> list[Ids]:
    plan = recipe.data
    if plan.completions:
        return prompt_ids(rows, recipe, tokenizer, f"of {name}")
    if recipe.task == "lm":
        return _beginnings([row[plan.text] for row in rows], tokenizer, name)
    return _ids([plan.prefix + row[plan.source] for row in rows], recipe, tokenizer)


def _scored(metric: str, texts: list[str], wanted: list[str]) -> str:
    return in_words(quality_interval(metric, texts, wanted), 1)


def _ids(texts: list[str], recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> list[Ids]:
    ids: list[Ids] = tokenizer(texts, max_length=recipe.data.max_source, truncation=True)["input_ids"]
    return ids


def _beginnings(texts: list[str], tokenizer: PreTrainedTokenizerFast, name: str) -> list[Ids]:
    ids = tokenizer(texts)["input_ids"]  # begun as a prompt of `specbench run` is, and as little ended
    ids = [text[:-1] if text[-1:] == [tokenizer.eos_token_id] else text for text in ids]
    long_enough = [text[:PROMPT_TOKENS] for text in ids if len(text) >= PROMPT_TOKENS]
    if not long_enough:
        key, way_out = ("data.hold_out", "data.hold_out=0") if name == HELD else ("data.test", "longer ones")
        raise UserError(
            f"{key}: no text of {name} has {PROMPT_TOKENS} tokens or more, the prompt that alpha is measured from; "
            f"give {way_out}"
        )
    return long_enough
