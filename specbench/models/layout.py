"""Where the new tokens of a step are written, at which position each stands, and which cached tokens each attends to.

Steps take these three tensors as data and compute nothing of the kind themselves, so that every arrangement of tokens
(a chain, a tree, rows of several lengths) is made here and runs through the same step.

Shapes: B rows, L new tokens a row, C slots of the cache.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """One step's arrangement.

    A slot's position is the number of the token in its own sequence: what rotary angles, learned positions, relative
    biases and sliding windows are computed from. `visible_BLC` says what a token may attend to, itself included; a
    model's own window narrows it further.
    """

    slots_BL: Tensor  # where the keys and values of the new tokens are written
    positions_BC: Tensor  # of every slot's token, those of this step included
    visible_BLC: Tensor  # bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs of a step."""
        return self.slots_BL, self.positions_BC, self.visible_BLC

    @property
    def new_positions_BL(self) -> Tensor:
        """Positions of the new tokens."""
        return self.positions_BC.gather(1, self.slots_BL)


def chain(length: int, count: int, numbers_1C: Tensor) -> Layout:
    """`count` tokens one after another, following the `length` tokens that are cached: slot, position and number in the
    sequence are the same. `numbers_1C` is 0 ... C - 1."""
    slots_1L = numbers_1C[:, length : length + count]
    return Layout(slots_1L, numbers_1C, numbers_1C <= slots_1L.unsqueeze(-1))
