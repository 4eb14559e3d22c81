"""The keys of `draft=merged`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import SeveralConfig


@dataclass
class MergedConfig(SeveralConfig):
    """Several drafts whose tokens are merged into one tree."""

    kind: str = "merged"
    builder: ClassVar[str | None] = "specbench.methods.merged.draft:MergedBuilder"
    grows_trees: ClassVar[bool] = True

    def label(self) -> str:
        return "-".join([self.kind, *(part.label() for part in self.parts().values() if part is not None)])

    def objection_to_chain(self) -> str | None:
        return "several drafts make a tree together, and no chain"

    def check(self, key: str) -> None:
        made_of = "at least two drafts are merged"
        self.check_drafts(key, made_of, "merge its drafts here", lambda part: part.objection_to_tree(), "a tree")
