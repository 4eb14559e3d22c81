"""Trees among the candidates: each gets its shape from the ranks of its draft's children along the target's sample, and
the passes that the texts need with it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from specbench.acceptance import Children
from specbench.choose.alpha import Scored
from specbench.choose.candidates import LoadedCandidate
from specbench.config import ChooseConfig
from specbench.gamma import GammaChoice
from specbench.measure.agreement import Agreement
from specbench.measure.expected_tree_passes import replayed_passes, tree_passes
from specbench.measure.predict import Grown
from specbench.measure.ranks import Ranks, acceptance_vector
from specbench.run.tree import plan_of, with_tree
from specbench.trees import FixedShape, expected_tokens


def grow(scored: Scored) -> tuple[Scored, dict[str, Grown]]:
    """`scored` whose candidates with a tree draft it, and by their names what is expected of it."""
    candidates, trees = list[LoadedCandidate](), dict[str, Grown]()
    for candidate in scored.candidates:
        if candidate.tree is not None:
            candidate, trees[candidate.name] = _grown(candidate, scored.agreement[candidate.draft], scored.sample.texts)
        candidates.append(candidate)
    return replace(scored, candidates=candidates), trees


def _grown(
    candidate: LoadedCandidate, along: Sequence[Agreement], texts: Sequence[Sequence[int]]
) -> tuple[LoadedCandidate, Grown]:
    config, parts = candidate.config, candidate.parts
    children = cast(Children, config.tree.children)
    ranks = [cast(Ranks, one.ranks) for one in along]
    acceptance = config.tree.acceptance or acceptance_vector(ranks, children)
    plan, most = plan_of(config, acceptance), config.max_new_tokens
    choice = GammaChoice(config.tree.label(), None, most=plan.depth, acceptance=acceptance)
    parts = with_tree(config, parts, choice)
    if isinstance(plan, FixedShape):
        passes = [tree_passes(one.given_for(children), plan.shape, most) for one in ranks]
        tokens = expected_tokens(plan.shape, acceptance)
    else:
        passes = [
            replayed_passes(parts.draft, prompt, text, plan.depth, parts.spec.sampling, most)
            for prompt, text in zip(parts.prompts, texts, strict=False)
        ]
        tokens = sum(map(len, texts)) / float(np.sum(passes))
    grown = Grown(config.tree.label(), plan.size, acceptance, tokens, passes)
    return replace(candidate, parts=parts, levels=plan.depth), grown


def as_shaped(config: ChooseConfig, trees: Mapping[str, Grown], name: str) -> ChooseConfig:
    """`config` with the very tree that was ranked, so that a run of it probes no other."""
    if name not in trees or not config.tree.is_probed:
        return config
    given = [round(share, 4) for share in trees[name].acceptance]
    return replace(config, tree=replace(config.tree, acceptance=given))
