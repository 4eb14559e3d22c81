"""The base class of all kinds of draft. The kinds themselves are in `draft_kinds`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from specbench.config.keys import key
from specbench.config.model import NamedConfig


@dataclass
class DraftConfig(NamedConfig):
    """A draft. Each kind is a subclass with the keys that it alone reads.

    What is said of a kind as a whole:
    inside: it works inside the target, on its layers or states.
    falls: it is accepted less often the further ahead it drafts, since a whole proposal comes from one place, so that
        one alpha does not describe it.
    at_once: one step of it drafts all tokens of a proposal.
    paper: the paper measures such drafts.
    grows_trees: trees of its tokens can be grown (`drafts.tree`).
    scores_children: and the children of a node come from the row of q that the draft is scored with.
    first_alone: it predicts from the target's state after the text, so that no other draft's tokens can come before its
        own in a proposal.
    own_tree: its proposals are trees, whatever `tree` says, so that only rules for trees verify them.
    finds: its tokens are found in a text, and not drawn.
    builder: its `DraftBuilder` as 'module:Class', since building needs torch and this file does not.
    """

    kind: str = key("model", "model, or the name of a draft without weights of its own (specbench list)")
    cache_dir: str | None = key(None, "cache folder of fitted counts and indexes")

    builder: ClassVar[str | None] = None
    inside: ClassVar[bool] = False
    falls: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    paper: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = False
    scores_children: ClassVar[bool] = False
    finds: ClassVar[bool] = False
    own_tree: ClassVar[bool] = False
    first_alone: ClassVar[bool] = False

    def label(self) -> str:
        """The draft's name in tables."""
        return self.kind

    def parts(self) -> Mapping[str, "DraftConfig | None"]:
        """The drafts that it is made of, by their keys."""
        return {}

    def levels(self) -> Iterator["DraftConfig"]:
        """The draft, and those that it is made of."""
        yield self
        for part in self.parts().values():
            if part is not None:
                yield from part.levels()

    @property
    def learns(self) -> bool:
        """Whether its weights change between prompts."""
        return False

    def confidence_bound(self) -> float | None:
        """The q of a drafted token below which a proposal ends; None where the draft does not end it."""
        return None

    def objection_to_probe(self) -> str | None:
        """Why its gamma cannot come from a probe (gamma=auto, adaptive); None where it can."""
        return None

    def objection_to_chain(self) -> str | None:
        """Why it cannot propose tokens one after another; None where it can."""
        return None

    def objection_to_part(self) -> str | None:
        """Why it cannot propose tokens for another draft; None where it can."""
        return "its proposals are trees of their own" if self.own_tree else self.objection_to_chain()

    def objection_to_tree(self) -> str | None:
        """Why no trees of its tokens can be grown; None where they can."""
        return None if self.grows_trees else f"{self.label()} makes no trees"

    def check(self, key: str) -> None:
        """Raise UserError at the first value out of range; `key` is what the config calls this draft."""


def named(place: str) -> Any:
    """The class at 'module:Class', by which a config names what only torch can build."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
