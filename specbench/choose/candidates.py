"""The candidates of a comparison: drafts, each with an acceptance rule; their names in tables; alpha under each rule.

- `exact` (Algorithm 1): the draft's own agreement.
- `block`: the same agreement, since alpha depends on p and q alone; its accepted tokens depend on the whole
  block, as `analysis.forecast.walk` counts them.
- `match` and `onehot`: lossless, each with an alpha of its own from the same p and q.
- `lenient`, `typical` and `top-beta` (lossy): a `TokenRule`'s formulas on the same p and q, computed along the target's
  own completions. Completions under the rule would soon differ, so this is an estimate.
"""

from dataclasses import dataclass

from specbench.algorithm.acceptance.base import TokenRule
from specbench.analysis.acceptance.agreement import Agreement
from specbench.analysis.costs.probe import Candidate
from specbench.config.rules import rule_of
from specbench.config.verbs import ChooseConfig
from specbench.experiment.build import Parts
from specbench.loading.compatibility import draft_name, vocabulary_facts
from specbench.records.documents import CandidateNames


@dataclass(frozen=True)
class LoadedCandidate:
    """One draft with one rule, resolved and loaded; and of a tree, once its shape is known, its depth."""

    config: ChooseConfig
    parts: Parts
    levels: int | None = None

    @property
    def draft(self) -> str:
        return draft_name(self.config.draft, self.parts.draft_vocabulary)

    @property
    def rule(self) -> str:
        """As tables call it: 'exact', 'lenient l=0.3'."""
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
        said = [self.draft, *([] if self.tree is None else [self.tree])]
        if self.rule != "exact":
            said.append(self.rule + (" (lossy)" if self.lossy is not None else ""))
        return ", ".join(said)

    @property
    def tree(self) -> str | None:
        """As tables call it; None for chains."""
        return None if self.config.tree.shape == "none" else self.config.tree.label()

    @property
    def timed(self) -> Candidate:
        """The candidate for the probe to time."""
        return Candidate(self.parts.draft, self.parts.spec, self.levels)

    @property
    def own_alpha(self) -> str | None:
        """The name under which an agreement has this rule's alpha; None where it is Algorithm 1's."""
        return self.rule if self.lossy is not None else self.parts.spec.verification.own_alpha

    def under_rule(self, agreement: Agreement) -> Agreement:
        """The draft's agreement under this rule."""
        return agreement if self.own_alpha is None else agreement.at(self.own_alpha)

    def names(self) -> CandidateNames:
        """Its name in tables, and the names of draft and rule."""
        names: CandidateNames = {
            "draft": self.draft, "accept": self.rule, "lossy": self.lossy is not None, "candidate": self.name
        }  # fmt: skip
        if (how := vocabulary_facts(self.parts.draft_vocabulary).get("vocabulary")) is not None:
            names["vocabulary"] = how
        return names
