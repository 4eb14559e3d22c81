"""The base classes of all kinds of draft. The kinds themselves are in `methods`, one folder each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar

from specbench.config.keys import EXISTS, key, require
from specbench.config.model import ModelConfig, NamedConfig, check_model, name_of
from specbench.errors import UserError


@dataclass
class DraftConfig(NamedConfig):
    """A draft. Each kind is a subclass with the keys that only it reads.

    What is said of a kind as a whole:
    inside_target: it works inside the target, on its layers or states.
    falls_with_position: it is accepted less often the further ahead it drafts, since a whole proposal comes from one
        place, so that one alpha does not describe it.
    at_once: one step of it drafts all tokens of a proposal.
    reads_last_token: it reads the last token of the text before it drafts; heads on the target's last state do not.
    paper: the paper measures such drafts.
    grows_trees: trees of its tokens can be grown (`algorithm.tree_draft`).
    scores_children: and the children of a node come from the row of q that the draft is scored with.
    first_alone: it predicts from the target's state after the text, so that no other draft's tokens can come before its
        own in a proposal.
    own_tree: its proposals are trees, whatever `tree` says, so that only rules for trees verify them.
    found_in_text: its tokens are found in a text, and not drawn.
    matches: its sessions say how many tokens they matched (`algorithm.draft.DraftSession.matched`).
    costs_on: the engine on which its cost is its own; on others it is simulated, and its name in tables says so.
    builder: its `DraftBuilder` as 'module:Class', since building needs torch and this file does not.
    """

    kind: str = key("model", "model, or the name of a draft without weights of its own (specbench list)")
    cache_dir: str | None = key(None, "cache folder of fitted counts and indexes")

    builder: ClassVar[str | None] = None
    inside_target: ClassVar[bool] = False
    falls_with_position: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    reads_last_token: ClassVar[bool] = True
    paper: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = False
    scores_children: ClassVar[bool] = False
    found_in_text: ClassVar[bool] = False
    matches: ClassVar[bool] = False
    own_tree: ClassVar[bool] = False
    first_alone: ClassVar[bool] = False
    costs_on: ClassVar[str | None] = None

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
        """The q of a drafted token below which a proposal ends; None if the draft does not end it."""
        return None

    def objection_to_probe(self) -> str | None:
        """Why its gamma cannot come from a probe (gamma=auto, adaptive); None if it can."""
        return None

    def objection_to_chain(self) -> str | None:
        """Why it cannot propose tokens one after another; None if it can."""
        return None

    def objection_to_part(self) -> str | None:
        """Why it cannot propose tokens for another draft; None if it can."""
        return "its proposals are trees of their own" if self.own_tree else self.objection_to_chain()

    def objection_to_tree(self) -> str | None:
        """Why no trees of its tokens can be grown; None if they can."""
        return None if self.grows_trees else f"{self.label()} makes no trees"

    def check(self, key: str) -> None:
        """Raise UserError at the first value out of range; `key` is what the config calls this draft."""


def named(place: str) -> Any:
    """The class at 'module:Class', by which a config names what only torch can build."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@dataclass
class TrainedConfig(DraftConfig, ModelConfig):
    """Weights trained for one target.

    recipe: the recipe that a caller without weights is shown.
    learner: what trains them, a `train.frozen.FrozenTargetLearner` as 'module:Class'.
    """

    inside_target: ClassVar[bool] = True
    falls_with_position: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    first_alone: ClassVar[bool] = True
    recipe: ClassVar[str]
    learner: ClassVar[str]

    def label(self) -> str:
        own = None if self.name == self.kind else self.name
        if self.path is not None or self.hub is not None:
            return f"{self.kind}-{name_of(replace(self, name=own))}"
        return own or self.kind

    def check(self, key: str) -> None:
        if self.path is None and self.hub is None and self.shipped is None:
            raise UserError(f"{key}.path is not set: give the folder that `specbench train recipe={self.recipe}` wrote")
        check_model(key, self)


@dataclass
class TextDraftConfig(DraftConfig):
    """A draft fitted on training text."""

    corpus: str | None = key(
        None, "a file or folder of text to fit on, with the task's fields; unset: the task's training text", EXISTS
    )


FIRST = "the draft of a node's first child, of a proposal's first tokens, or of a match, draft@draft.first=NAME"
SECOND = "the draft of a node's second child, of the tokens that follow, or without a match, draft@draft.second=NAME"
THIRD = "a third draft, draft@draft.third=NAME; unset: there are two"


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

    @property
    def inside_target(self) -> bool:  # type: ignore[override]
        """Whether one of its drafts works inside the target."""
        return any(part.inside_target for part in self.drafts.values())

    @property
    def first_alone(self) -> bool:  # type: ignore[override]
        """Whether one of its drafts predicts from the target's state after the text."""
        return any(part.first_alone for part in self.drafts.values())

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
