"""How a draft grows a tree in a pass: by a shape that is fixed before the run, or by its own confidence."""

from dataclasses import dataclass

from specbench.trees.shape import Shape


@dataclass(frozen=True)
class FixedShape:
    """The same tree in each pass. Which token a node has is drawn, or the likeliest tokens are taken."""

    shape: Shape

    @property
    def depth(self) -> int:
        return self.shape.depth

    @property
    def size(self) -> int:
        return self.shape.size

    @property
    def most_children(self) -> int:
        return self.shape.most_children


@dataclass(frozen=True)
class ByConfidence:
    """EAGLE-2's trees (Li et al. 2024), which follow the draft's confidence.

    The `top` most valuable nodes of each level have their `top` likeliest tokens as children, down to `depth`; then the
    `size` - 1 most valuable of all nodes remain. A node's value is the product of the draft's probabilities on its
    path.
    """

    size: int
    depth: int
    top: int

    @property
    def most_children(self) -> int:
        return self.top


Plan = FixedShape | ByConfidence
