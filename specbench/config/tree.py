"""The keys of a token tree, and their ranges."""

from dataclasses import dataclass, fields
from typing import Any

from specbench.config.keys import MAX_GAMMA, key, require
from specbench.errors import UserError

BY_TREE = "tree"  # what gamma= is where a tree's depth takes its place
AUTO = "auto"
MAX_SIZE = 256
CHILDREN = ("distinct", "replaced", "fixed")
KEYS_OF = {  # which keys a shape has, and of these which it needs
    "none": ((), ()),
    "widths": (("widths", "size", "children"), ("widths",)),
    "sequoia": (("size", "depth", "children", "acceptance"), ("size", "depth")),
    "dynamic": (("size", "depth", "top"), ("size", "depth", "top")),
}


@dataclass
class TreeConfig:
    """Several continuations verified in one pass of the target.

    Sizes count the sequence's last token, which is read with them: a tree of size 8 costs the target what gamma=7 does.
    """

    shape: str = key("none", "none | widths | sequoia | dynamic; tree=SHAPE picks one with its keys")
    widths: list[int] | None = key(None, "widths: children of the root, children of each of these, and so on")
    size: int | str | None = key(
        None, "the most tokens that the target reads in a pass; sequoia, dynamic: needed; sequoia: auto, with the "
        "depth up to tree.depth the fastest on this machine, from v(n) and c of a probe",
    )  # fmt: skip
    depth: int | None = key(None, "sequoia, dynamic: the most levels")
    children: str = key(
        "distinct", "widths, sequoia: draws from q without replacement (distinct) or with it (replaced), or its "
        "likeliest tokens (fixed), which they always are at T=0",
    )  # fmt: skip
    top: int | None = key(None, "dynamic: nodes expanded in each level, and children of each")
    acceptance: list[Any] | None = key(
        None, "sequoia: the probability that the first, second, ... child is accepted, or a list of them for each "
        "level; unset: from a probe",
    )  # fmt: skip

    @property
    def is_probed(self) -> bool:
        return self.shape == "sequoia" and (self.acceptance is None or self.size == AUTO)

    @property
    def levels(self) -> int:
        """The most tokens on a path; 1 without a tree."""
        return len(self.widths) if self.shape == "widths" and self.widths is not None else self.depth or 1

    def label(self) -> str:
        """The tree's name in tables."""
        if self.shape == "widths" and self.widths is not None:
            cut = "" if self.size is None else f" to {self.size}"
            return f"widths {'×'.join(map(str, self.widths))}{cut}{self._children()}"
        return f"{self.shape} {self.size}{self._children()}"

    def _children(self) -> str:
        return "" if self.shape == "dynamic" or self.children == "distinct" else f" {self.children}"


def check_tree(tree: TreeConfig) -> None:
    """Check the keys of a tree.

    Raises:
        UserError: the first key that is out of range, missing, or not a key of this shape.
    """
    require(tree.shape in KEYS_OF, "tree.shape", tree.shape, " | ".join(KEYS_OF))
    has, needs = KEYS_OF[tree.shape]
    for one in fields(tree):
        value = getattr(tree, one.name)
        if one.name in needs and value is None:
            raise UserError(f"tree.{one.name} is not set: tree={tree.shape} requires it")
        if one.name != "shape" and one.name not in has and value != one.default:
            raise UserError(f"tree.{one.name}={value}: tree={tree.shape} has no such key")
    _check_values(tree)


def _check_values(tree: TreeConfig) -> None:
    require(tree.children in CHILDREN, "tree.children", tree.children, " | ".join(CHILDREN))
    size, depth, top = tree.size, tree.depth, tree.top
    is_auto = size == AUTO and tree.shape == "sequoia"
    fits = size is None or is_auto or (isinstance(size, int) and 2 <= size <= MAX_SIZE)
    require(fits, "tree.size", size, f"from 2 to {MAX_SIZE}" + (f", or {AUTO}" if tree.shape == "sequoia" else ""))
    require(depth is None or 1 <= depth <= MAX_GAMMA, "tree.depth", depth, f"from 1 to {MAX_GAMMA}")
    require(top is None or 1 <= top <= MAX_SIZE, "tree.top", top, f"from 1 to {MAX_SIZE}")
    widths = tree.widths
    if widths is not None:
        right = 0 < len(widths) <= MAX_GAMMA and min(widths) >= 1
        require(right, "tree.widths", widths, f"1 to {MAX_GAMMA} numbers of at least 1")
        nodes, level = 1, 1
        for width in widths:
            level *= width
            nodes += level
        if nodes > MAX_SIZE:
            raise UserError(f"tree.widths={widths}: makes {nodes} nodes, and the most are {MAX_SIZE}; give fewer")
    if (given := tree.acceptance) is not None:
        levels = given if given and isinstance(given[0], list) else [given]
        right = all(isinstance(one, list) and _are_chances(one) for one in levels)
        require(
            right, "tree.acceptance", given, "probabilities whose sum is at most 1, or a list of them for each level"
        )


def _are_chances(given: list[Any]) -> bool:
    numbers = all(isinstance(one, int | float) for one in given)
    return numbers and 0 < len(given) <= MAX_SIZE and min(given) >= 0 and sum(given) <= 1
