"""Drafts made of drafts: a model with a draft of its own, drafts in turn, and several drafts in one tree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.draft_kinds.without_weights import RandomConfig
from specbench.config.keys import fresh, key
from specbench.config.ranges import MAX_GAMMA, require
from specbench.errors import UserError

FIRST = "the draft of a node's first child, or of a proposal's first tokens, draft@draft.first=NAME"
SECOND = "the draft of a node's second child, or of the tokens that follow, draft@draft.second=NAME"
THIRD = "a third draft, draft@draft.third=NAME; unset: there are two"


@dataclass
class CascadeConfig(DraftConfig):
    """A model that drafts with a cheaper draft."""

    kind: str = "cascade"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders:CascadeBuilder"
    via: DraftConfig | None = key(None, "the middle model, whose tokens the target verifies: draft@draft.via=NAME")
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
        require(self.via.kind == "model", f"{key}.via.kind", self.via.kind, "model: the target checks its distribution")
        bound = self.via.confidence_bound()
        require(bound is None, f"{key}.via.confidence", bound, "null in a cascade")
        vocabulary = getattr(self.via, "vocabulary", "auto")
        require(vocabulary in ("auto", "same"), f"{key}.via.vocabulary", vocabulary, "same: it verifies, too")


@dataclass
class SeveralConfig(DraftConfig):
    """Two or three drafts that draft together."""

    first: DraftConfig | None = key(None, FIRST)
    second: DraftConfig | None = key(None, SECOND)
    third: DraftConfig | None = key(None, THIRD)

    def parts(self) -> Mapping[str, DraftConfig | None]:
        return {"first": self.first, "second": self.second, "third": self.third}

    @property
    def drafts(self) -> dict[str, DraftConfig]:
        """The drafts that are set, by their keys."""
        return {name: part for name, part in self.parts().items() if part is not None}

    def check_drafts(
        self, key: str, made_of: str, nested: str, objection_to: Callable[[DraftConfig], str | None], bound_in: str
    ) -> None:
        """Check each draft.

        Args:
            key: the key of this config.
            made_of: how many drafts it requires, in words.
            nested: what to do instead of nesting a draft of this kind.
            objection_to: why a draft cannot be a part; None if it can.
            bound_in: what the drafts are part of, for a draft with `confidence`.

        Raises:
            UserError: fewer than two drafts are set, or one of them cannot be a part.
        """
        for name in ("first", "second"):
            if name not in self.drafts:
                raise UserError(f"{key}.{name} is not set: {made_of}; give draft@{key}.{name}=NAME")
        for name, part in self.drafts.items():
            part.check(f"{key}.{name}")
            objection = nested if part.kind == self.kind else objection_to(part)
            if objection is not None:
                raise UserError(f"{key}.{name}={part.label()}: {objection}; give another draft")
            bound = part.confidence_bound()
            require(bound is None, f"{key}.{name}.confidence", bound, f"null in {bound_in}")


@dataclass
class HorizontalConfig(SeveralConfig):
    """Cheaper drafts for later positions."""

    kind: str = "horizontal"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders:HorizontalBuilder"
    lengths: list[int] = fresh(
        lambda: [1], "how many tokens each draft but the last proposes; the last draft proposes the rest of γ"
    )
    falls: ClassVar[bool] = True

    def label(self) -> str:
        own = [part.label() for part in self.drafts.values()]
        named = [f"{name}-{length}" for name, length in zip(own, self.lengths, strict=False)]
        return "-".join([self.kind, *named, *own[len(named) :]])

    def check(self, key: str) -> None:
        made_of = "a horizontal cascade is made of two or three drafts"
        self.check_drafts(key, made_of, "give its drafts here", lambda part: part.objection_to_part(), "a cascade")
        for name, part in [*self.drafts.items()][1:]:
            if part.first_alone:
                raise UserError(
                    f"{key}.{name}={part.label()}: predicts from the target's state after the text, so it can only be "
                    f"{key}.first; give another draft"
                )
        drafts = len(self.drafts)
        if len(self.lengths) != drafts - 1 or min(self.lengths) < 1 or max(self.lengths) > MAX_GAMMA:
            raise UserError(
                f"{key}.lengths={self.lengths}: must be {drafts - 1} numbers from 1 to {MAX_GAMMA}, a number for each "
                f"of the {drafts} drafts but the last"
            )


@dataclass
class MergedConfig(SeveralConfig):
    """Several drafts whose tokens are merged into one tree."""

    kind: str = "merged"
    builder: ClassVar[str | None] = "specbench.runs.draft_builders:MergedBuilder"
    grows_trees: ClassVar[bool] = True

    def label(self) -> str:
        return "-".join([self.kind, *(part.label() for part in self.parts().values() if part is not None)])

    def objection_to_chain(self) -> str | None:
        return "several drafts make a tree together, and no chain"

    def check(self, key: str) -> None:
        made_of = "at least two drafts are merged"
        self.check_drafts(key, made_of, "merge its drafts here", lambda part: part.objection_to_tree(), "a tree")
