"""Trees among the candidates: their shapes and the passes that completions need with them.

Both come from the ranks of a draft's children along the target's sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from specbench.algorithm.acceptance.base import Children
from specbench.algorithm.gamma import DraftingPlan
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.acceptance.ranks import acceptance_vector, k_seq_acceptance
from specbench.analysis.forecast.predict import Grown
from specbench.analysis.forecast.trees import forecast_passes
from specbench.choose.alpha import Scored
from specbench.choose.candidates import LoadedCandidate
from specbench.config.verbs import ChooseConfig
from specbench.errors import UserError
from specbench.experiment.gamma import measured_acceptance, plan_of, with_tree
from specbench.theory.trees import TreeShape, by_level, expected_tree_tokens, is_same_at_every_level


def grow(scored: Scored) -> tuple[Scored, dict[str, Grown]]:
    """`scored` whose candidates with a tree draft it, and the expected tokens and passes, by candidate."""
    candidates, trees = list[LoadedCandidate](), dict[str, Grown]()
    for candidate in scored.candidates:
        if candidate.tree is not None:
            candidate, trees[candidate.name] = _grown(candidate, scored.agreement[candidate.draft], scored.sample.texts)
        candidates.append(candidate)
    return replace(scored, candidates=candidates), trees


def _grown(
    candidate: LoadedCandidate, along: Sequence[Agreement], texts: Sequence[Sequence[int]]
) -> tuple[LoadedCandidate, Grown]:
    config, bare = candidate.config, candidate.parts
    children, most, sampling = cast(Children, config.tree.children), config.max_new_tokens, bare.spec.sampling
    ranks = [one.ranks for one in along if one.ranks is not None]
    prompts = bare.prompts[: len(texts)]
    k_seq, widths = bare.spec.verification.traits.k_sequential, config.tree.widths
    acceptance = config.tree.acceptance
    if k_seq and ranks and widths is not None:
        acceptance = k_seq_acceptance(ranks, widths)
    elif acceptance is None:
        acceptance = acceptance_vector(ranks, children) if ranks else measured_acceptance(config, bare, prompts, texts)
    plan = plan_of(config, acceptance)
    choice = DraftingPlan(config.tree.label(), None, most=plan.depth, acceptance=acceptance)
    parts = with_tree(config, bare, choice)
    assert isinstance(parts.draft, TreeDraft)
    passes = []
    for prompt, text, one in zip(prompts, texts, along, strict=True):
        counted = forecast_passes(
            parts.target, parts.draft, prompt, text, sampling, most, one.ranks, config.draft.found_in_text, k_seq
        )  # fmt: skip
        if counted is None:
            raise UserError(
                f"tree={config.tree.shape}: what draft={candidate.draft} draws at T>0 is not predicted, for it does "
                "not come from the row of q that it is scored with; use tree=dynamic, or specbench run"
            )
        passes.append(counted)
    # A shape cut to a size has nodes of one level with different numbers of children, on which K-SEQ's ranks depend.
    one_acceptance_per_rank = not (k_seq and config.tree.size is not None)
    if isinstance(plan, TreeShape) and ranks and one_acceptance_per_rank:
        tokens = expected_tree_tokens(plan, acceptance)
    else:
        tokens = sum(map(len, texts)) / float(np.sum(passes))
    grown = Grown(config.tree.label(), plan.size, acceptance, tokens, passes)
    return replace(candidate, parts=parts, levels=plan.depth), grown


def as_shaped(config: ChooseConfig, trees: Mapping[str, Grown], name: str) -> ChooseConfig:
    """`config` with the very tree that was ranked, so that a run of it probes no other."""
    if name not in trees or not config.tree.is_probed:
        return config
    acceptance = trees[name].acceptance
    levels = by_level(acceptance, len(acceptance))
    rounded: list[Any] = [[round(share, 4) for share in ranks] for ranks in levels]
    return replace(
        config, tree=replace(config.tree, acceptance=rounded[0] if is_same_at_every_level(acceptance) else rounded)
    )
