"""What `tree=` of a config comes to: a plan by which the draft grows trees, from the acceptance by rank that a probe
measures where the shape needs it."""

from dataclasses import replace
from typing import cast

from specbench.acceptance import Children
from specbench.config import RunConfig
from specbench.drafts import TreeDraft
from specbench.gamma import GammaChoice
from specbench.measure.ranks import acceptance_vector
from specbench.run.build import Parts
from specbench.run.measure_prompt import generator_for
from specbench.run.probe_texts import own_texts
from specbench.trees import ByConfidence, FixedShape, Plan, Shape, best_shape

MOST_RANKS = 8  # children of a node that are tried


def choose_tree(config: RunConfig, parts: Parts) -> GammaChoice:
    """The tree of a config, with the acceptance by rank that its shape is made from."""
    tree = config.tree
    acceptance = tree.acceptance
    if tree.is_probed:
        prompts, texts = own_texts(config, parts)
        generator = generator_for(config.seed, len(parts.prompts), "ranks", parts.device)
        acceptance = acceptance_vector(
            parts.target, parts.draft, prompts, texts, parts.spec.sampling, cast(Children, tree.children), MOST_RANKS,
            generator,
        )  # fmt: skip
    return GammaChoice(tree.label(), None, most=plan_of(config, acceptance).depth, acceptance=acceptance)


def with_tree(config: RunConfig, parts: Parts, choice: GammaChoice) -> Parts:
    """`parts` whose draft proposes trees."""
    children = cast(Children, config.tree.children)
    size, ends = parts.target.vocabulary_size, parts.target.eos_ids
    return replace(parts, draft=TreeDraft(parts.draft, plan_of(config, choice.acceptance), children, size, ends))


def plan_of(config: RunConfig, acceptance: list[float] | None) -> Plan:
    tree = config.tree
    if tree.shape == "widths":
        assert tree.widths is not None
        shape = Shape.of_widths(tree.widths)
        return FixedShape(shape if tree.size is None else shape.cut(tree.size))
    assert tree.size is not None and tree.depth is not None
    if tree.shape == "sequoia":
        assert acceptance is not None
        return FixedShape(best_shape(acceptance, tree.size, tree.depth))
    assert tree.top is not None
    return ByConfidence(tree.size, tree.depth, tree.top)
