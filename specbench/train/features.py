"""Rows → token ids, as a `datasets.Dataset` with a length column (so that batches hold little padding).

Independent of the model that reads them.
"""

from __future__ import annotations

from itertools import chain

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from specbench.train.rows import Row
from specbench.train.schema import DataPlan


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
    """Texts run together, each closed by the end-of-sequence token, cut into blocks of `max_target` counted tokens."""
    ids = tokenizer([row[plan.text] for row in rows], add_special_tokens=False)["input_ids"]
    line = list(chain.from_iterable([*text, tokenizer.eos_token_id] for text in ids))
    size = min(plan.max_target, len(line))
    cut = [line[start : start + size] for start in range(0, len(line) - size + 1, size)]
    return Dataset.from_dict(
        {"input_ids": cut, "attention_mask": [[1] * size for _ in cut], "labels": cut, "length": [size] * len(cut)}
    )
