"""A number, a policy, or the plan by which the draft builds trees, from `gamma=` and `tree=` of a config.

gamma is a number, the best number by a short probe (`auto`), or a policy that adapts to each completion, from the probe
(`adaptive`) or without a probe (`heuristic`). If the draft stops by its own confidence, a number is the maximum of a
pass. The probe decodes a few prompts that are not measured with the target alone, scores the draft on these
completions, and times passes of every candidate. For a tree a probe measures the acceptance by rank, if its shape
requires it.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from time import monotonic
from typing import cast

from specbench.algorithm.acceptance.base import Children
from specbench.algorithm.decoding import autoregressive
from specbench.algorithm.gamma import policy_of
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import Agreement, agreements
from specbench.analysis.acceptance.ranks import MOST_RANKS, RankReader, Ranks, acceptance_vector, acceptance_when_grown
from specbench.analysis.costs.core_time import disturbed_by, least_disturbed, undisturbed
from specbench.analysis.costs.disturbance import MOST_WAITED
from specbench.analysis.costs.probe import STEPS, Candidate, once, probe
from specbench.analysis.forecast.predict import Prediction, Predictions
from specbench.config.schema import RunConfig
from specbench.config.tree import AUTO
from specbench.engine.session import Prompt
from specbench.experiment.measure import generator_for
from specbench.experiment.run_parts import Parts
from specbench.experiment.tree_costs import tree_costs
from specbench.loading.model_loader import Say
from specbench.loading.tensor_parallel import agree
from specbench.records.prediction import DraftingPlan
from specbench.records.timed_rounds import Round
from specbench.records.units import AcceptanceByRank
from specbench.theory import expected_tokens
from specbench.theory.best_tree import best_shape, best_size
from specbench.theory.trees import ByConfidence, Plan, TreeShape

# The target's completions of prompts that are not measured, from which a gamma or a tree is chosen.
TOKENS = 400  # of text to count on, from at least so many prompts, if there are as many
FEWEST_PROMPTS = 8


def own_texts(config: RunConfig, parts: Parts) -> tuple[list[Prompt], list[list[int]]]:
    """Prompts, and the target's completion of each."""
    texts: list[list[int]] = []
    for index, prompt in enumerate(parts.probe_prompts, len(parts.prompts)):
        if len(texts) >= FEWEST_PROMPTS and sum(map(len, texts)) >= TOKENS:
            break
        generator = generator_for(config.seed, index, "baseline", parts.device)
        texts.append(autoregressive(parts.target, prompt, parts.spec, generator).tokens)
    return parts.probe_prompts[: len(texts)], texts


TIMED_SIZE = 32  # of the tree whose levels are timed if the size is chosen


@lru_cache(maxsize=64)  # the choice of a tree and the draft that grows it ask for the same
def _best_shape(acceptance: str, size: int, depth: int) -> TreeShape:
    return best_shape(json.loads(acceptance), size, depth)


def choose_tree(config: RunConfig, parts: Parts, note: Say = lambda line: None) -> DraftingPlan:
    """The tree of a config, with the acceptance by rank that its shape is made from; `note`: as in `with_gamma`."""
    tree = config.tree
    acceptance = tree.acceptance
    if not tree.is_probed:
        return DraftingPlan(tree.label(), None, most=plan_of(config, acceptance).depth, acceptance=acceptance)
    prompts, texts = own_texts(config, parts)
    acceptance = acceptance or measured_acceptance(config, parts, prompts, texts)
    if tree.size != AUTO:
        return DraftingPlan(tree.label(), None, most=plan_of(config, acceptance).depth, acceptance=acceptance)
    assert tree.depth is not None
    grower = _grower(config, parts, best_shape(acceptance, TIMED_SIZE, tree.depth))
    middle = sorted(range(len(texts)), key=lambda index: len(texts[index]))[len(texts) // 2]
    costs, waited = least_disturbed(
        lambda: tree_costs(parts.target, grower, prompts[middle], texts[middle], parts.spec.sampling)
    )
    if waited is not None and waited > MOST_WAITED:
        note(f"tree.size=auto: its probe was contended, so that another size may be better (waited {waited:.0%})")
    size, depth, _ = best_size(acceptance, costs.verify, costs.level, tree.depth)
    shape = best_shape(acceptance, size, depth)
    return DraftingPlan(
        f"{tree.label()}: {shape.size}", None, most=shape.depth, acceptance=acceptance, size=size, verify=costs.verify,
        level=costs.level,
    )  # fmt: skip


def measured_acceptance(
    config: RunConfig, parts: Parts, prompts: Sequence[Prompt], texts: Sequence[Sequence[int]]
) -> AcceptanceByRank:
    """The acceptance by rank of the draft's children along the target's completions of these prompts.

    At each level of the tree, if the draft's acceptance falls with the position.
    """
    if config.draft.scores_children:
        ranks = [
            ranks_along(config, parts, index, prompt, text)
            for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True), len(parts.prompts))
        ]
        return acceptance_vector(ranks, cast(Children, config.tree.children))
    one_level = _grower(config, parts, TreeShape.of_widths([MOST_RANKS]))
    generator = generator_for(config.seed, len(parts.prompts), "ranks", parts.device)
    return acceptance_when_grown(parts.target, one_level, prompts, texts, parts.spec.sampling, generator)


def ranks_along(config: RunConfig, parts: Parts, index: int, prompt: Prompt, text: Sequence[int]) -> Ranks:
    """The ranks of the draft's children along the target's completion of this prompt."""
    levels = config.tree.levels
    reader = RankReader(parts.spec.sampling, generator_for(config.seed, index, "ranks", parts.device), levels=levels)
    agreements(parts.target, [parts.draft], prompt, text, parts.spec.sampling, ahead=levels, readers=[reader])
    return reader.found


def with_tree(config: RunConfig, parts: Parts, choice: DraftingPlan) -> Parts:
    """`parts` whose draft proposes trees."""
    if choice.size is not None:
        config = replace(config, tree=replace(config.tree, size=choice.size, depth=choice.most))
    return replace(parts, draft=_grower(config, parts, plan_of(config, choice.acceptance)))


def _grower(config: RunConfig, parts: Parts, plan: Plan) -> TreeDraft:
    return TreeDraft(parts.draft, plan, cast(Children, config.tree.children), parts.target.eos_ids)


def plan_of(config: RunConfig, acceptance: AcceptanceByRank | None) -> Plan:
    """The plan by which the draft grows trees; `acceptance` is the acceptance by rank, which `sequoia` requires."""
    tree = config.tree
    if tree.shape == "widths":
        assert tree.widths is not None
        shape = TreeShape.of_widths(tree.widths)
        return shape if tree.size is None else shape.truncated(int(tree.size))
    assert isinstance(tree.size, int) and tree.depth is not None
    if tree.shape == "sequoia":
        assert acceptance is not None
        return _best_shape(json.dumps(acceptance), tree.size, tree.depth)
    assert tree.top is not None
    return ByConfidence(tree.size, tree.depth, tree.top)


CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
ROUNDS = (8, 16)  # at least so many, and up to the second of these while they take less than PROBE_S seconds
PROBE_S = 10.0
RESAMPLES = 200


def with_gamma(
    config: RunConfig, parts: Parts, before: DraftingPlan | None, note: Say = lambda line: None
) -> tuple[Parts, DraftingPlan]:
    """`parts` with the policy of the config, and the choice: `before`, or made now.

    `note` receives the signs that other work disturbed the probe, although it was repeated.
    Ranks time their own passes but take the first rank's choice.
    """
    before = agree(before)
    choose = choose_gamma if config.tree.shape == "none" else choose_tree
    choice = agree(choose(config, parts, note)) if before is None else before
    if config.tree.shape != "none":
        parts = with_tree(config, parts, choice)
    return replace(parts, spec=replace(parts.spec, gamma=policy_of(choice))), choice


def choose_gamma(config: RunConfig, parts: Parts, note: Say = lambda line: None) -> DraftingPlan:
    """The gamma of a config: a number as it is given, or from a probe."""
    confidence = config.draft.confidence_bound()
    if isinstance(config.gamma, int) and confidence is None:
        return DraftingPlan(config.gamma, config.gamma)
    if isinstance(config.gamma, int) or config.gamma == "heuristic":
        while_sure = "" if confidence is None else f" while q ≥ {confidence:g}"
        most = config.gamma if isinstance(config.gamma, int) else None
        return DraftingPlan(f"{config.gamma}{while_sure}", None, most)
    ranked = _probe(config, parts, note)
    if not ranked:  # texts of a token or two
        return DraftingPlan(config.gamma, 1, probe=[])
    best, rows = ranked[0], [one.as_row() for one in ranked]
    if config.gamma == "auto":
        return DraftingPlan(config.gamma, best.gamma, probe=rows)
    return DraftingPlan(
        config.gamma, None, alpha=best.alpha.value, prices={one.gamma: _price(one) for one in ranked}, probe=rows
    )


def _price(one: Prediction) -> float:
    """The divisor of Eq. 1 for the estimated speedup: the cost of a pass, corrected for the error of Eq. 1."""
    return expected_tokens(one.alpha.value, one.gamma) / one.estimated.value


def _probe(config: RunConfig, parts: Parts, note: Say) -> list[Prediction]:
    spec = parts.spec
    prompts, texts = own_texts(config, parts)
    name = config.draft.label()
    lossy, alpha = spec.verification.lossy, config.simulate.alpha
    rules = {} if lossy is None else {"rule": lossy}
    if alpha is None:
        found = [
            agreements(parts.target, [parts.draft], prompt, text, spec.sampling, rules, max(CANDIDATES))[0]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        own = "rule" if rules else spec.verification.own_alpha
        found = found if own is None else [one.at(own) for one in found]
    else:
        found = [Agreement([alpha] * len(text), [alpha] * len(text)) for text in texts]
    rounds: list[Round] = []
    began = monotonic()
    # Ranks of one target must make the same passes, whatever their own clocks say.
    while agree(len(rounds) < ROUNDS[0] or (len(rounds) < ROUNDS[1] and monotonic() - began < PROBE_S)):
        rounds += probe(
            parts.target,
            {name: Candidate(parts.draft, spec)},
            CANDIDATES,
            list(zip(prompts, texts, strict=True)),
            rounds=ROUNDS[0] // 2,
            seed=config.seed,
            first=len(rounds),
            timing=once if config.target.tp_plan else undisturbed,  # ranks must make the same passes
            steps=STEPS if config.target.tp_plan else None,
        )
    if (signs := disturbed_by(rounds)) is not None:
        note(f"gamma={config.gamma}: its probe was contended, so that another gamma may be better ({signs})")
    whole = {name} if spec.verification.traits.as_a_whole else set()
    return Predictions({name: found}, rounds, config.max_new_tokens, RESAMPLES, config.seed, whole).ranked
