"""The keys of a token tree, and their ranges."""

from dataclasses import dataclass, fields
from itertools import accumulate
from operator import mul
from typing import Any

from specbench.config.keys import MAX_GAMMA, Allowed, between, key, one_of, require
from specbench.errors import UserError

BY_TREE = "tree"  # what gamma= is if a tree's depth takes its place
AUTO = "auto"
MAX_SIZE = 256
KEYS_OF = {  # which keys a shape has, and of these which it needs
    "none": ((), ()),
    "widths": (("widths", "size", "children"), ("widths",)),
    "sequoia": (("size", "depth", "children", "acceptance"), ("size", "depth")),
    "dynamic": (("size", "depth", "top"), ("size", "depth", "top")),
}


def _are_chances(given: list[Any]) -> bool:
    numbers = all(isinstance(one, int | float) for one in given)
    return numbers and 0 < len(given) <= MAX_SIZE and min(given) >= 0 and sum(given) <= 1


def _are_levels(given: list[Any]) -> bool:
    levels = given if given and isinstance(given[0], list) else [given]
    return all(isinstance(one, list) and _are_chances(one) for one in levels)


@dataclass
class TreeConfig:
    """Several continuations verified in one pass of the target.

    Sizes count the sequence's last token, which is read with them: a tree of size 8 costs the target what gamma=7 does.
    """

    shape: str = key("none", "none | widths | sequoia | dynamic; tree=SHAPE picks one and its options", one_of(KEYS_OF))
    widths: list[int] | None = key(
        None, "widths: children of the root, children of each of these, and so on",
        Allowed(
            lambda widths: 0 < len(widths) <= MAX_GAMMA and min(widths) >= 1,
            f"1 to {MAX_GAMMA} numbers of at least 1",
        ),
    )  # fmt: skip
    size: int | str | None = key(
        None, "maximum number of tokens that the target reads in a pass; sequoia, dynamic: needed; sequoia: auto, with "
        "the depth up to tree.depth the fastest on this machine, from v(n) and c of a probe",
    )  # fmt: skip
    depth: int | None = key(None, "sequoia, dynamic: maximum number of levels", between(1, MAX_GAMMA))
    children: str = key(
        "distinct", "widths, sequoia: draws from q without replacement (distinct) or with it (replaced), or its "
        "likeliest tokens (fixed), which they always are at T=0",
        one_of(("distinct", "replaced", "fixed")),
    )  # fmt: skip
    top: int | None = key(None, "dynamic: nodes expanded in each level, and children of each", between(1, MAX_SIZE))
    acceptance: list[Any] | None = key(
        None, "sequoia: the probability that the first, second, ... child is accepted, or a list of them for each "
        "level; unset: from a probe",
        Allowed(_are_levels, "probabilities whose sum is at most 1, or a list of them for each level"),
    )  # fmt: skip

    @property
    def is_probed(self) -> bool:
        return self.shape == "sequoia" and (self.acceptance is None or self.size == AUTO)

    @property
    def levels(self) -> int:
        """Maximum number of tokens on a path; 1 without a tree."""
        return len(self.widths) if self.shape == "widths" and self.widths is not None else self.depth or 1

    def label(self) -> str:
        """The tree's name in tables."""
        if self.shape == "widths" and self.widths is not None:
            limit = "" if self.size is None else f" to {self.size}"
            return f"widths {'×'.join(map(str, self.widths))}{limit}{self._children()}"
        return f"{self.shape} {self.size}{self._children()}"

    def _children(self) -> str:
        return "" if self.shape == "dynamic" or self.children == "distinct" else f" {self.children}"


def check_tree(tree: TreeConfig) -> None:
    """Check what the keys of a tree may be together.

    Raises UserError for the first key that is missing, not a key of this shape, or out of range for this shape.
    """
    has, needs = KEYS_OF[tree.shape]
    for one in fields(tree):
        value = getattr(tree, one.name)
        if one.name in needs and value is None:
            raise UserError(f"tree.{one.name} is not set: tree={tree.shape} requires it")
        if one.name != "shape" and one.name not in has and value != one.default:
            raise UserError(f"tree.{one.name}={value}: tree={tree.shape} has no such option")
    fits = tree.size is None or (isinstance(tree.size, int) and 2 <= tree.size <= MAX_SIZE)
    may_be_auto = tree.shape == "sequoia"
    require(
        fits or (may_be_auto and tree.size == AUTO),
        "tree.size", tree.size, f"from 2 to {MAX_SIZE}" + (f", or {AUTO}" if may_be_auto else ""),
    )  # fmt: skip
    nodes = 1 + sum(accumulate(tree.widths or (), mul))
    if nodes > MAX_SIZE:
        raise UserError(f"tree.widths={tree.widths}: makes {nodes} nodes, and the most are {MAX_SIZE}; give fewer")
