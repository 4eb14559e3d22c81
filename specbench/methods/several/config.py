"""The keys of `draft=horizontal` and `draft=merged`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import SeveralConfig
from specbench.config.keys import MAX_GAMMA, fresh
from specbench.errors import UserError


@dataclass
class HorizontalConfig(SeveralConfig):
    """Cheaper drafts for later positions."""

    kind: str = "horizontal"
    builder: ClassVar[str | None] = "specbench.methods.several.draft:HorizontalBuilder"
    lengths: list[int] = fresh(
        lambda: [1], "how many tokens each draft but the last proposes; the last draft proposes the rest of γ"
    )
    falls_with_position: ClassVar[bool] = True

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
    builder: ClassVar[str | None] = "specbench.methods.several.draft:MergedBuilder"
    grows_trees: ClassVar[bool] = True

    def label(self) -> str:
        return "-".join([self.kind, *(part.label() for part in self.parts().values() if part is not None)])

    def objection_to_chain(self) -> str | None:
        return "several drafts make a tree together, and no chain"

    def check(self, key: str) -> None:
        made_of = "at least two drafts are merged"
        self.check_drafts(key, made_of, "merge its drafts here", lambda part: part.objection_to_tree(), "a tree")
