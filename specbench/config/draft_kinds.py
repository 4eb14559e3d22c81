"""The kinds of draft: the keys of each, their ranges, and what tables call it.

A key that several kinds have has one default in all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

from specbench.config.draft import DraftConfig
from specbench.config.extensions import extensions, loaded
from specbench.config.keys import key
from specbench.config.model import ModelConfig, check_model, name_of
from specbench.config.ranges import MAX_GAMMA, require
from specbench.errors import UserError

MATCH = "the longest run of tokens to search for"
MOST_MATCHED = 32

Kind = TypeVar("Kind", bound=DraftConfig)
DRAFT_KINDS: dict[str, type[DraftConfig]] = {}


def draft_kind(config: type[Kind]) -> type[Kind]:
    """Add the dataclass `config` to the kinds, under the default of its `kind`."""
    DRAFT_KINDS[config.kind] = config
    return config


@draft_kind
@dataclass
class ModelDraftConfig(DraftConfig, ModelConfig):
    """A model that shares the target's vocabulary."""

    kind: str = "model"
    confidence: float | None = key(None, "a proposal ends after a token whose own q is below this")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    paper: ClassVar[bool] = True

    def label(self) -> str:
        return name_of(self)

    def confidence_bound(self) -> float | None:
        return self.confidence

    def objection_to_probe(self) -> str | None:
        return None if self.confidence is None else "where draft.confidence ends proposals, give a number or heuristic"

    def check(self, key: str) -> None:
        confidence = self.confidence
        require(
            confidence is None or 0 < confidence <= 1,
            f"{key}.confidence", confidence, "above 0 and at most 1, or null",
        )  # fmt: skip
        check_model(key, self)


@dataclass
class TextDraftConfig(DraftConfig):
    """What is fitted on training text."""

    corpus: str | None = key(None, "own text instead of the task's training text, same fields")

    def check(self, key: str) -> None:
        require(
            self.corpus is None or Path(self.corpus).exists(),
            f"{key}.corpus", self.corpus, "a file or folder; there is none of that name",
        )  # fmt: skip


@draft_kind
@dataclass
class UnigramConfig(TextDraftConfig):
    """Add-one counts of tokens."""

    kind: str = "unigram"
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    paper: ClassVar[bool] = True

    def longest(self) -> int:
        return 1


@dataclass
class DiscountedConfig(TextDraftConfig):
    """N-gram counts with absolute discounting."""

    discount: float = key(0.75, "absolute discount that feeds the backoff")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def longest(self) -> int:
        """Tokens of the longest n-gram."""
        raise NotImplementedError

    def check(self, key: str) -> None:
        super().check(key)
        require(0 < self.discount < 1, f"{key}.discount", self.discount, "between 0 and 1")


@draft_kind
@dataclass
class BigramConfig(DiscountedConfig):
    """Counts of pairs of tokens."""

    kind: str = "bigram"
    paper: ClassVar[bool] = True

    def longest(self) -> int:
        return 2


@draft_kind
@dataclass
class NgramConfig(DiscountedConfig):
    """Counts of runs of any length."""

    kind: str = "ngram"
    order: int = key(3, "tokens of the longest n-gram")

    def label(self) -> str:
        return f"{self.order}-gram"

    def longest(self) -> int:
        return self.order

    def check(self, key: str) -> None:
        super().check(key)
        require(1 <= self.order <= 8, f"{key}.order", self.order, "from 1 to 8")


@draft_kind
@dataclass
class RandomConfig(DraftConfig):
    """Every token equally likely."""

    kind: str = "random"
    paper: ClassVar[bool] = True


@draft_kind
@dataclass
class LookupConfig(DraftConfig):
    """What followed the last tokens where they stood before."""

    kind: str = "lookup"
    match: int = key(3, MATCH)
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    finds: ClassVar[bool] = True

    def check(self, key: str) -> None:
        require(1 <= self.match <= MOST_MATCHED, f"{key}.match", self.match, f"from 1 to {MOST_MATCHED}")


@draft_kind
@dataclass
class RetrievalConfig(TextDraftConfig):
    """What most often followed the last tokens in a corpus."""

    kind: str = "retrieval"
    match: int = key(3, MATCH)
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    finds: ClassVar[bool] = True

    def check(self, key: str) -> None:
        super().check(key)
        require(1 <= self.match <= MOST_MATCHED, f"{key}.match", self.match, f"from 1 to {MOST_MATCHED}")


@draft_kind
@dataclass
class CascadeConfig(DraftConfig):
    """A model that drafts with a cheaper draft."""

    kind: str = "cascade"
    via: DraftConfig | None = key(None, "the model whose tokens the target checks, draft@draft.via=NAME")
    inner: DraftConfig | None = key(None, "the cheaper draft whose tokens `via` checks, draft@draft.inner=NAME")
    inner_gamma: int = key(2, "tokens that the inner draft drafts at a time")
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
            if (objection := part.objection_to_chain()) is not None:
                raise UserError(f"{key}.{name}={part.label()}: {objection}; give another draft")
        assert self.via is not None
        require(self.via.kind == "model", f"{key}.via.kind", self.via.kind, "model: the target checks its distribution")
        bound = self.via.confidence_bound()
        require(bound is None, f"{key}.via.confidence", bound, "null in a cascade")


@draft_kind
@dataclass
class MergedConfig(DraftConfig):
    """Several drafts whose tokens are merged into one tree."""

    kind: str = "merged"
    first: DraftConfig | None = key(None, "the draft of a node's first child, draft@draft.first=NAME")
    second: DraftConfig | None = key(None, "the draft of a node's second child, draft@draft.second=NAME")
    third: DraftConfig | None = key(None, "a third draft, draft@draft.third=NAME; unset: two take turns")
    grows_trees: ClassVar[bool] = True

    def label(self) -> str:
        return "-".join([self.kind, *(part.label() for part in self.parts().values() if part is not None)])

    def parts(self) -> Mapping[str, DraftConfig | None]:
        return {"first": self.first, "second": self.second, "third": self.third}

    @property
    def drafts(self) -> dict[str, DraftConfig]:
        """Those that are set, by their keys."""
        return {name: part for name, part in self.parts().items() if part is not None}

    def objection_to_chain(self) -> str | None:
        return "several drafts make a tree together, and no chain"

    def check(self, key: str) -> None:
        for name in ("first", "second"):
            if name not in self.drafts:
                raise UserError(
                    f"{key}.{name} is not set: at least two drafts are merged; give draft@{key}.{name}=NAME"
                )
        for name, part in self.drafts.items():
            part.check(f"{key}.{name}")
            objection = "merge its drafts here" if part.kind == self.kind else part.objection_to_tree()
            if objection is not None:
                raise UserError(f"{key}.{name}={part.label()}: {objection}; give another draft")
            bound = part.confidence_bound()
            require(bound is None, f"{key}.{name}.confidence", bound, "null in a tree")


@draft_kind
@dataclass
class EarlyExitConfig(DraftConfig):
    """The target's own first layers."""

    kind: str = "early-exit"
    layers: int = key(1, "how many of the target's own first decoder layers draft")
    inside: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        return f"{self.kind}-{self.layers}"

    def check(self, key: str) -> None:
        require(self.layers >= 1, f"{key}.layers", self.layers, "at least 1")


@draft_kind
@dataclass
class BlockwiseConfig(DraftConfig, ModelConfig):
    """Heads on the target's last state."""

    kind: str = "blockwise"
    inside: ClassVar[bool] = True
    falls: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True

    def label(self) -> str:
        if self.path is None:
            return name_of(self)
        own = None if self.name == self.kind else self.name
        return f"{self.kind}-{name_of(replace(self, name=own))}"

    def objection_to_probe(self) -> str | None:
        return (
            "its probe sees the first of the heads alone, and those after it agree less; with draft=blockwise give a "
            "number or heuristic"
        )

    def check(self, key: str) -> None:
        if self.path is None and self.shipped is None:
            raise UserError(f"{key}.path is not set: give the folder that `specbench train recipe=blockwise` wrote")
        check_model(key, self)


for _name in extensions("drafts"):
    _config = loaded("drafts", _name)
    if not (isinstance(_config, type) and issubclass(_config, DraftConfig) and _config.kind == _name):
        raise UserError(f"specbench.drafts: {_name} must be a DraftConfig whose kind is {_name!r}")
    draft_kind(_config)
