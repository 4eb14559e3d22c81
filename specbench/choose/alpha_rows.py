"""The rows of alpha: of each draft under each rule, of smaller heads, and of routers."""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from typing import cast

import numpy as np

from specbench.algorithm.acceptance.base import Children
from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.acceptance.ranks import acceptance_vector
from specbench.analysis.forecast.hindsight import Option, least_cost
from specbench.analysis.forecast.positions import POSITIONS, accepted_by_position
from specbench.choose.candidates import Scored
from specbench.config.model import name_of, own_weights
from specbench.config.schema import task_label
from specbench.environment import time_stamp
from specbench.errors import UserError
from specbench.loading import vocabulary_facts
from specbench.methods.from_text import likeliest_tokens
from specbench.methods.model.config import ModelDraftConfig
from specbench.methods.router.config import RouterConfig
from specbench.records.alpha_document import AlphaRow, RouterBound
from specbench.stats import Interval, over_rows, ratio
from specbench.tasks import Task
from specbench.text.tokenizer import load_tokenizer

TOP_TOKENS = (500, 1000, 2000, 4000, 8000, 16000, 32000)  # of draft.top_tokens, whose bound on alpha is shown
ROUTERS = 3  # pairs of drafts whose tokens per pass are bounded, and shown


def of_routers(scored: Scored) -> list[RouterBound]:
    """The bounds on a router of each pair of drafts, highest alpha first; the first few also with tokens per pass."""
    routed = {one.draft for one in scored.candidates if isinstance(one.config.draft, RouterConfig)}
    drafts = [name for name in scored.agreement if name not in routed]
    found = list[RouterBound]()
    for pair in combinations(drafts, 2):
        both = list(zip(*(scored.agreement[name] for name in pair), strict=True))
        betas = [max(at) for texts in both for at in zip(*(text.beta for text in texts), strict=True)]
        found.append({"drafts": list(pair), "alpha": sum(betas) / len(betas)})
    found.sort(key=lambda one: -one["alpha"])
    costs, most = np.ones((2, POSITIONS + 1)), scored.config.max_new_tokens
    for one in found[:ROUTERS]:
        texts = [scored.agreement[name] for name in one["drafts"]]
        options = [[Option(text, POSITIONS, costs) for text in both] for both in zip(*texts, strict=True)]
        tokens = sum(len(text.beta) for text in texts[0])
        one["gamma"], one["tokens_per_pass"] = POSITIONS, tokens / sum(least_cost(pair, most) for pair in options)
        one["alone"] = [tokens / sum(least_cost([pair[which]], most) for pair in options) for which in (0, 1)]
    return found


def alpha_rows(scored: Scored, where: str) -> list[AlphaRow]:
    """One row for each draft and rule, with intervals over prompts.

    A row has alpha under Algorithm 1, strict match and a greedy draft; alpha(l) for each lenience; the acceptance
    probability of the row's own rule if it is another; and for a lossy rule its total variation from the target, mean
    over tokens.
    """
    rows, groups = list[AlphaRow](), scored.groups
    for candidate in scored.candidates:
        config, texts = candidate.config, scored.agreement[candidate.draft]
        alpha = _alpha(groups, texts)
        row: AlphaRow = {
            "target": name_of(config.target), "draft": candidate.draft,
            "task": task_label(config.task.name, config.task.path), "own_weights": own_weights(asdict(config)),
            "temperature": config.sampling.temperature, "top_k": config.sampling.top_k, "top_p": config.sampling.top_p,
            "accept": candidate.rule, "lossy": candidate.lossy is not None,
            "prompts": len(texts), "tokens": sum(len(a.beta) for a in texts),
            "alpha": alpha.value, "alpha_low": alpha.low, "alpha_high": alpha.high,
            "lenient": {
                name: _mean(groups, [(sum(a.under[name]), len(a.beta)) for a in texts])
                for name in (f"{one:g}" for one in config.leniences) if name in texts[0].under
            },
            "dtype": config.dtype, "device": config.device, "hardware": where, "simulated": False,
            "created": time_stamp(),
        }  # fmt: skip
        if (different := len(set(groups))) < len(groups):
            row["distinct_prompts"], row["prompt_groups"] = different, groups
        if (processing := config.sampling.processing()) is not None:
            row["processing"] = processing
        if config.context_tokens is not None:
            row["context"] = config.context_tokens
        for rule in ("match", "onehot"):
            row |= _bounded(f"alpha_{rule}", _alpha(groups, [text.at(rule) for text in texts]))
        if candidate.own_alpha is not None:
            row |= _bounded("alpha_rule", _alpha(groups, [candidate.under_rule(text) for text in texts]))
        if candidate.lossy is not None:
            varied = [a.total_variation[candidate.rule] for a in texts]
            row["total_variation"] = sum(map(sum, varied)) / row["tokens"]
        if texts[0].matched:
            row |= cast(AlphaRow, vocabulary_facts(candidate.parts.draft_vocabulary))
            row["shared_mass"] = sum(sum(a.shared) for a in texts) / row["tokens"]
            row |= _bounded("alpha_matched", _mean(groups, [(sum(a.matched), len(a.beta)) for a in texts]))
        row["silent"] = _mean(groups, [(sum(text.silent), len(text.silent)) for text in texts]).value
        row["alpha_by_position"] = _by_position(groups, texts)
        ranks = [text.ranks for text in texts if text.ranks is not None]
        if ranks and ranks[0].ahead:
            row["acceptance_by_level"] = {
                name: cast(list[list[float]], acceptance_vector(ranks, cast(Children, name)))
                for name in ranks[0].accepted
            }
        if ranks:
            row["acceptance_by_rank"] = _means(groups, [one.accepted for one in ranks], [len(a.beta) for a in texts])
        if ranks and ranks[0].of_children:
            counts = [one.places for one in ranks]
            row["acceptance_of_children"] = _means(groups, [one.of_children for one in ranks], counts)
        rows.append(row)
    return rows


def _bounded(name: str, one: Interval) -> AlphaRow:
    """The three keys of a row that hold an interval."""
    return cast(AlphaRow, {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high})


def _by_position(groups: Sequence[int], texts: Sequence[Agreement]) -> list[Interval]:
    """The acceptance at each position that any proposal reaches, with its interval."""
    counts = np.array([accepted_by_position(text) for text in texts])  # [completions, positions, 2]
    reached = [place for place in range(counts.shape[1]) if counts[:, place, 0].any()]
    return [_mean(groups, [(hit, seen) for seen, hit in counts[:, place]]) for place in reached]


def _means(
    groups: Sequence[int], texts: Sequence[dict[str, list[float]]], counts: Sequence[int]
) -> dict[str, list[Interval]]:
    """The mean of each sum over `texts`, with its interval."""
    return {
        name: [
            _mean(groups, [(total, count) for total, count in zip(column, counts, strict=True)])
            for column in zip(*(text[name] for text in texts), strict=True)
        ]
        for name in texts[0]
    }


def _alpha(groups: Sequence[int], texts: Sequence[Agreement]) -> Interval:
    return _mean(groups, [(sum(a.beta), len(a.beta)) for a in texts])


def _mean(groups: Sequence[int], columns: Sequence[tuple[float, int]]) -> Interval:
    return over_rows(columns, ratio, scale="probability", groups=groups)


def of_top_tokens(scored: Scored) -> dict[str, float]:
    """By N: the share of the sample's tokens that are among the N likeliest of the training text.

    What a draft with `draft.top_tokens=N` never proposes is never accepted, so that its alpha is at most this. Empty
    if no draft is a model, or the training text is not on this machine.
    """
    config = scored.config
    are_models = any(isinstance(one.config.draft, ModelDraftConfig) for one in scored.candidates)
    if not are_models or (config.task.shipped is None and config.task.train_path is None):
        return {}
    vocabulary = load_tokenizer(config.target, "target")
    tokens = [token for text in scored.sample.texts for token in text]
    found = dict[str, float]()
    with contextlib.suppress(UserError):  # a task without training text
        for most in (one for one in TOP_TOKENS if one < vocabulary.size):
            kept = set(likeliest_tokens(Task(config.task), vocabulary, most, lambda line: None))
            found[str(most)] = sum(token in kept for token in tokens) / max(1, len(tokens))
    return found
