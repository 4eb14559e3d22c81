"""The candidates of a comparison: drafts, each with an acceptance rule; their names in tables; alpha under each rule.

- `exact` (Algorithm 1): the draft's own agreement.
- `block`: the same agreement, since alpha depends only on p and q; its accepted tokens depend on the whole
  block, as `analysis.forecast.walk` counts them.
- `match` and `onehot`: lossless, each with an alpha of its own from the same p and q.
- `lenient`, `typical` and `top-beta` (lossy): a `TokenRule`'s formulas on the same p and q, computed along the target's
  own completions. Completions under the rule would soon differ, so this is an estimate.

The shape of a tree, and the passes that completions need with it, come from the ranks of a draft's children along the
target's sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, cast

import numpy as np

from specbench.algorithm.acceptance.base import Children, TokenRule
from specbench.algorithm.draft import Stores
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.acceptance.ranks import acceptance_vector, k_seq_acceptance
from specbench.analysis.costs.probe import Candidate, WrittenText
from specbench.analysis.distinct import numbers_of
from specbench.analysis.forecast.grown_trees import forecast_passes
from specbench.analysis.forecast.predict import Grown
from specbench.choose.kept import KeptAgreements
from specbench.choose.target_sample import Sample
from specbench.config.keys import bytes_of
from specbench.config.rules import rule_of
from specbench.config.verbs import ChooseConfig
from specbench.errors import UserError
from specbench.experiment.drafting_plan import measured_acceptance, plan_of, with_tree
from specbench.experiment.memory import bytes_by_part, total
from specbench.experiment.run_parts import Parts
from specbench.formatting import size
from specbench.loading import draft_name, vocabulary_facts
from specbench.records.choosing import CandidateNames, OfContext
from specbench.records.prediction import DraftingPlan
from specbench.theory.trees import TreeShape, by_level, expected_tree_tokens, is_same_at_every_level


@dataclass(frozen=True)
class LoadedCandidate:
    """One draft with one rule, resolved and loaded; and of a tree, once its shape is known, its depth."""

    config: ChooseConfig
    parts: Parts
    levels: int | None = None

    @property
    def draft(self) -> str:
        return draft_name(self.config.draft, self.parts.draft_vocabulary, self.parts.engine)

    @property
    def rule(self) -> str:
        """The rule's name in tables: 'exact', 'lenient l=0.3'."""
        return rule_of(self.config.accept).label()

    @property
    def lossy(self) -> TokenRule | None:
        return self.parts.spec.verification.lossy

    @property
    def whole(self) -> bool:
        """Whether the drafted block is tested as a whole."""
        return self.parts.spec.verification.traits.as_a_whole

    @property
    def name(self) -> str:
        """The draft, its tree if it drafts one, and its rule if that is not Algorithm 1; a lossy rule is marked."""
        rule = None if self.rule == "exact" else self.rule + (" (lossy)" if self.lossy is not None else "")
        return ", ".join(part for part in (self.draft, self.tree, rule) if part is not None)

    @property
    def tree(self) -> str | None:
        """The tree's name in tables; None for chains."""
        return None if self.config.tree.shape == "none" else self.config.tree.label()

    @property
    def timed(self) -> Candidate:
        """The candidate for the probe to time."""
        return Candidate(self.parts.draft, self.parts.spec, self.levels)

    @property
    def own_alpha(self) -> str | None:
        """The name under which an agreement has this rule's alpha; None if it is Algorithm 1's."""
        return self.rule if self.lossy is not None else self.parts.spec.verification.own_alpha

    def under_rule(self, agreement: Agreement) -> Agreement:
        """The draft's agreement under this rule."""
        return agreement if self.own_alpha is None else agreement.at(self.own_alpha)

    def memory(self, batch: int = 1) -> dict[str, int]:
        """Bytes by part of target and draft, with room for the longest prompt and its completion in each row."""
        config = self.config
        nodes = config.tree.size if isinstance(config.tree.size, int) else config.tree.levels
        tokens = config.max_new_tokens + max(*config.gammas, nodes) + 1
        return bytes_by_part(replace(self.parts, config=replace(config, batch=batch)), tokens)

    def names(self) -> CandidateNames:
        """The candidate's name in tables, and the names of its draft and rule."""
        names: CandidateNames = {
            "draft": self.draft, "accept": self.rule, "lossy": self.lossy is not None, "candidate": self.name
        }  # fmt: skip
        if (how := vocabulary_facts(self.parts.draft_vocabulary).get("vocabulary")) is not None:
            names["vocabulary"] = how
        return names


def within(memory: str | None, candidates: Sequence[LoadedCandidate]) -> tuple[list[LoadedCandidate], list[str]]:
    """The candidates that fit into `memory` with the target at their largest batch, and a line for each other.

    Raises UserError if none fits.
    """
    limit = None if memory is None else bytes_of(memory)
    if limit is None:
        return list(candidates), []
    batch = max(candidates[0].config.batches)
    needed = [total(one.memory(batch)) for one in candidates]
    at = "" if batch == 1 else f" at batch={batch}"
    lines = [
        f"left out, over memory={memory}: {one.name} needs {size(bytes_)} with the target{at}"
        for one, bytes_ in zip(candidates, needed, strict=True)
        if bytes_ > limit
    ]
    kept = [one for one, bytes_ in zip(candidates, needed, strict=True) if bytes_ <= limit]
    if not kept:
        alone = size(total(candidates[0].memory(batch), "target"))
        raise UserError(
            f"memory={memory}: no candidate fits: the target alone needs {alone}{at}, the smallest with it "
            f"{size(min(needed))}; give more memory, or a smaller target, draft or batch"
        )
    return kept, lines


@dataclass(frozen=True)
class Scored:
    """The candidates of one sampling setting, scored along a sample: `agreement[draft][i]` is of completion i."""

    candidates: list[LoadedCandidate]
    sample: Sample
    agreement: dict[str, list[Agreement]]
    seconds: float  # that all drafts took
    kept: KeptAgreements | None = None  # what to remove when a record holds the agreements

    def forget(self) -> None:
        """Remove what was kept of it while it was not finished: a record holds it now."""
        if self.kept is not None:
            self.kept.remove()

    @property
    def config(self) -> ChooseConfig:
        """The config of the first; all share its keys but draft and rule."""
        return self.candidates[0].config

    @property
    def gammas(self) -> list[int]:
        return sorted(set(self.config.gammas))

    @property
    def texts(self) -> list[WrittenText]:
        """The prompts of the sample, each with the target's completion."""
        return list(zip(self.candidates[0].parts.prompts, self.sample.texts, strict=False))

    @property
    def groups(self) -> list[int]:
        """A number for each completion, the same for equal prompts, which count as one in intervals."""
        return numbers_of((prompt.source, prompt.prefix) for prompt, _ in self.texts)

    @cached_property
    def stores(self) -> Stores:
        """The stores of drafts that grow, filled by these texts."""
        return Stores([one.parts.draft for one in self.candidates], self.texts)

    def at_context(self) -> OfContext:
        """The context of the prompts, for a document; empty if none was set."""
        if (context := self.config.context_tokens) is None:
            return {}
        tokens = [len(prompt.source) + len(prompt.prefix) + len(written) / 2 for prompt, written in self.texts]
        return {"context": context, "context_tokens": fmean(tokens)}

    def agreements_by_candidate(self) -> dict[str, list[Agreement]]:
        """The agreement of each candidate under its rule, by the candidate's name."""
        return {one.name: [one.under_rule(text) for text in self.agreement[one.draft]] for one in self.candidates}


def with_trees(scored: Scored) -> tuple[Scored, dict[str, Grown]]:
    """`scored` whose candidates with a tree draft it, and the expected tokens and passes, by candidate."""
    candidates, trees = list[LoadedCandidate](), dict[str, Grown]()
    for candidate in scored.candidates:
        if candidate.tree is not None:
            candidate, trees[candidate.name] = _with_tree(candidate, scored)
        candidates.append(candidate)
    return replace(scored, candidates=candidates), trees


def _with_tree(candidate: LoadedCandidate, scored: Scored) -> tuple[LoadedCandidate, Grown]:
    config, bare = candidate.config, candidate.parts
    agreements, texts = scored.agreement[candidate.draft], scored.sample.texts
    children, most, sampling = cast(Children, config.tree.children), config.max_new_tokens, bare.spec.sampling
    ranks = [one.ranks for one in agreements if one.ranks is not None]
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
    for place, (prompt, text, one) in enumerate(zip(prompts, texts, agreements, strict=True)):
        scored.stores.before(place)
        counted = forecast_passes(
            parts.target, parts.draft, prompt, text, sampling, most, one.ranks, config.draft.found_in_text, k_seq
        )  # fmt: skip
        if counted is None:
            raise UserError(
                f"tree={config.tree.shape}: what draft={candidate.draft} draws at T>0 is not predicted, for it does "
                "not come from the row of q that it is scored with; use tree=dynamic, or specbench run"
            )
        passes.append(counted)
    scored.stores.before(0)
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
