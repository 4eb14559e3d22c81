"""The base classes of acceptance rules as configs name them. Each rule is a file in `algorithm.acceptance.rules`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from specbench.config.keys import key

if TYPE_CHECKING:
    from specbench.algorithm.acceptance.base import Verification
    from specbench.config.draft import DraftConfig
    from specbench.config.tree import TreeConfig
    from specbench.sampling import Sampling


@dataclass
class AcceptConfig:
    """The acceptance of draft tokens: a rule, and the keys of all rules (`rules.AcceptKeys`)."""

    rule: str = key("exact", "")


@dataclass
class RuleConfig:
    """One acceptance rule. Its fields are its keys.

    name: its name in `accept=`.
    about: its line in `specbench list accept`.
    lossy: completions no longer have the target's distribution.
    on_trees: it also verifies trees of drafted tokens.
    on_chain: for a rule only for trees, its equivalent on a chain.
    instead_on_trees: for a rule only for chains, the keys that mean the same on a tree.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    lossy: ClassVar[bool] = False
    on_trees: ClassVar[bool] = False
    on_chain: ClassVar[str | None] = None
    instead_on_trees: ClassVar[str | None] = None

    def check(self, temperature: float, tree: TreeConfig, draft: DraftConfig) -> None:
        """Raise UserError at the first value out of range, or if the rule does not go with the rest of the run."""

    def verification(self, sampling: Sampling) -> Verification:
        """The rule, and the p that it reads. Needs torch, which only its file's functions may use."""
        raise NotImplementedError

    @property
    def is_exact(self) -> bool:
        """Whether at these values the rule is Algorithm 1, so that both are one run."""
        return False

    def label(self) -> str:
        """The rule as tables call it, such as 'lenient l=0.3'."""
        return self.name

    def slug(self) -> str:
        """The rule in a file's name; nothing for Algorithm 1."""
        numbers = [f"{getattr(self, one.name):g}" for one in fields(self)]
        return "" if self.name == "exact" else "-" + "-".join([self.name, *numbers])
