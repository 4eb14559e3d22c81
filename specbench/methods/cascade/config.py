"""The keys of `draft=cascade`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import MAX_GAMMA, key, require
from specbench.errors import UserError
from specbench.methods.ngram.config import RandomConfig


@dataclass
class CascadeConfig(DraftConfig):
    """A model that drafts with a cheaper draft."""

    kind: str = "cascade"
    builder: ClassVar[str | None] = "specbench.methods.cascade.draft:CascadeBuilder"
    via: DraftConfig | None = key(
        None,
        "the middle model, whose tokens the target verifies: draft@draft.via=NAME; quantised: the target in fewer bits",
    )
    inner: DraftConfig | None = key(None, "the cheaper draft, whose tokens `via` verifies: draft@draft.inner=NAME")
    inner_gamma: int = key(2, "γ of the inner draft")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        assert self.via is not None and self.inner is not None
        return f"{self.kind}-{self.inner.label()}-{self.via.label()}"

    def parts(self) -> Mapping[str, DraftConfig | None]:
        return {"via": self.via, "inner": self.inner}

    def objection_to_tree(self) -> str | None:
        if isinstance(self.inner, RandomConfig):
            return "the tree is the middle model's, and an inner draft at random guesses none of its nodes"
        return None

    def check(self, key: str) -> None:
        require(1 <= self.inner_gamma <= MAX_GAMMA, f"{key}.inner_gamma", self.inner_gamma, f"from 1 to {MAX_GAMMA}")
        for name, part in self.parts().items():
            if part is None:
                raise UserError(
                    f"{key}.{name} is not set: a cascade is made of two drafts; give draft@{key}.{name}=NAME"
                )
            part.check(f"{key}.{name}")
            if (objection := part.objection_to_part()) is not None:
                raise UserError(f"{key}.{name}={part.label()}: {objection}; give another draft")
        assert self.via is not None
        kinds = ("model", "quantised")
        allowed = f"{' | '.join(kinds)}: the target checks its distribution"
        require(self.via.kind in kinds, f"{key}.via.kind", self.via.kind, allowed)
        bound = self.via.confidence_bound()
        require(bound is None, f"{key}.via.confidence", bound, "null in a cascade")
        vocabulary = getattr(self.via, "vocabulary", "auto")
        require(vocabulary in ("auto", "same"), f"{key}.via.vocabulary", vocabulary, "same: it verifies, too")
