"""What a trained model is worth on rows it has not seen: BLEU, ROUGE-L beside lead-3, and α of a draft.

It does not train; what it finds goes into the model card.
"""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.errors import UserError
from specbench.quality import quality_interval
from specbench.train.outputs import Ids
from specbench.train.passages import lead_3
from specbench.train.quality import alpha, greedy_texts
from specbench.train.rows import Row, load_rows
from specbench.train.schema import Recipe
from specbench.train.sets import fields

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
        found = _scored("bleu", texts, [row[plan.target] for row in rows])
        measured[f"BLEU, {name} ({len(rows)} rows)"] = found
    for name, path in plan.passages.test.items():
        rows = load_rows(plan, ("article", "highlights"), [path])[: plan.test_rows]
        sources[name] = _ids([plan.passages.prefix + row["article"] for row in rows], recipe, tokenizer)
        texts = greedy_texts(model, tokenizer, sources[name], plan.max_target)
        read = tokenizer.batch_decode(sources[name], skip_special_tokens=True)
        leads = [lead_3(text.removeprefix(plan.passages.prefix.strip())) for text in read]
        wanted = [row["highlights"] for row in rows]
        measured[f"ROUGE-L, {name} ({len(rows)} rows)"] = _scored("rouge", texts, wanted)
        measured[f"ROUGE-L of lead-3, {name}"] = _scored("rouge", leads, wanted)
    if target is not None:
        for name, prompts in sources.items():
            for sampled in (False, True):
                overlap = alpha(
                    target,
                    model,
                    prompts,
                    sampled=sampled,
                    max_new_tokens=plan.max_target,
                    seed=recipe.seed,
                    progress=recipe.progress,
                )
                measured[f"α, {name}, T={int(sampled)}"] = f"{overlap} on {overlap.tokens:,} tokens"
    return measured


def prompts(recipe: Recipe, held: list[Row], tokenizer: PreTrainedTokenizerFast) -> dict[str, list[Ids]]:
    """What a model is given to write from: the rows held out, and each test file of the recipe."""
    return {name: _prompts(rows, recipe, tokenizer, name) for name, rows in _tests(recipe, held).items()}


def _tests(recipe: Recipe, held: list[Row]) -> dict[str, list[Row]]:
    plan = recipe.data
    tests = {HELD: held} if held else {}
    return tests | {name: load_rows(plan, fields(recipe), [path])[: plan.test_rows] for name, path in plan.test.items()}


def _prompts(rows: list[Row], recipe: Recipe, tokenizer: PreTrainedTokenizerFast, name: str) -> list[Ids]:
    plan = recipe.data
    if recipe.task == "lm":
        return _beginnings([row[plan.text] for row in rows], tokenizer, name)
    return _ids([plan.prefix + row[plan.source] for row in rows], recipe, tokenizer)


def _scored(metric: str, texts: list[str], wanted: list[str]) -> str:
    score = quality_interval(metric, texts, wanted)
    return f"{score.value:.1f}" + ("" if score.low is None else f" [{score.low:.1f}, {score.high:.1f}]")


def _ids(texts: list[str], recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> list[Ids]:
    ids: list[Ids] = tokenizer(texts, max_length=recipe.data.max_source, truncation=True)["input_ids"]
    return ids


def _beginnings(texts: list[str], tokenizer: PreTrainedTokenizerFast, name: str) -> list[Ids]:
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    long_enough = [text[:PROMPT_TOKENS] for text in ids if len(text) >= PROMPT_TOKENS]
    if not long_enough:
        key, way_out = ("data.hold_out", "data.hold_out=0") if name == HELD else ("data.test", "longer ones")
        raise UserError(
            f"{key}: no text of {name} has {PROMPT_TOKENS} tokens or more, the prompt that alpha is measured from; "
            f"give {way_out}"
        )
    return long_enough
