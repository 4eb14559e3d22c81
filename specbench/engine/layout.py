"""Where the new tokens of a step are written, which positions they have, and which cached tokens each attends to.

A step takes these three tensors as inputs and computes none of them itself, so that every arrangement of tokens (a
chain, a tree, rows of several lengths) is defined here and runs through the same step. `OpenTree` is the tree that a
session has read after its sequence.

Shapes: B rows, L new tokens per row, C slots of the cache, N nodes of a tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.engine.session import Tokens
from specbench.theory.trees import ROOT


@dataclass(frozen=True)
class Layout:
    """One step's arrangement.

    A slot's position is the number of the token in its own sequence: what rotary angles, learned positions, relative
    biases and sliding windows are computed from. `visible_BLC` says what a token may attend to, itself included; a
    model's own window narrows it further.
    """

    slots_BL: Tensor  # where the keys and values of the new tokens are written
    positions_BC: Tensor  # of every slot's token, including this step's
    visible_BLC: Tensor  # bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs of a step."""
        return self.slots_BL, self.positions_BC, self.visible_BLC

    @property
    def new_positions_BL(self) -> Tensor:
        """Positions of the new tokens."""
        return self.positions_BC.gather(1, self.slots_BL)

    def bias(self, near_HC: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The bias of attention scores [B, 1 or H, L, C], the lowest number of `dtype` for hidden slots.

        `near_HC`: what is added by distance, of one row. Elsewhere 0.
        """
        visible = self.visible_BLC.unsqueeze(1)
        if near_HC is None:
            return mask_bias(visible, dtype)
        distance_LC = self.new_positions_BL[0, :, None] - self.positions_BC
        by_entry = near_HC.to(dtype)[:, distance_LC.clamp(min=0)].unsqueeze(0)
        return torch.where(visible, by_entry, torch.finfo(dtype).min)

    @staticmethod
    def of_rows(rows: Sequence["Layout"]) -> "Layout":
        """One layout of several, each of one row, over equally many slots and new tokens."""
        return Layout(*(torch.cat(tensors) for tensors in zip(*(row.tensors for row in rows), strict=True)))

    def of_row(self, row: int) -> "Layout":
        """The layout of one row of the batch."""
        return Layout(*(tensor[row : row + 1] for tensor in self.tensors))

    def of_tokens(self, part: slice) -> "Layout":
        """The layout of some of the new tokens, which do not attend to later ones."""
        return Layout(self.slots_BL[:, part], self.positions_BC, self.visible_BLC[:, part])

    def filled(self, rows: int) -> "Layout":
        """This layout padded by repeating the newest token in its own slot, up to a number of tokens."""
        more = rows - self.slots_BL.shape[1]
        if more <= 0:
            return self
        return Layout(
            torch.cat([self.slots_BL, self.slots_BL[:, -1:].expand(-1, more)], 1),
            self.positions_BC,
            torch.cat([self.visible_BLC, self.visible_BLC[:, -1:].expand(-1, more, -1)], 1),
        )


def mask_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias of attention scores: 0 if `visible`, otherwise the lowest number of `dtype`."""
    none = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, none, torch.finfo(dtype).min)


# What the new tokens of a layout see of each other: from the layout of a chain after so many tokens to another.
Sight = Callable[[Layout, int], Layout]


def together(layout: Layout, length: int) -> Layout:
    """The new tokens see each other, also later ones."""
    count = layout.slots_BL.shape[1]
    visible_1LC = (layout.positions_BC < length + count).unsqueeze(1).expand(-1, count, -1)
    return Layout(layout.slots_BL, layout.positions_BC, visible_1LC.contiguous())


@dataclass(frozen=True)
class Apart:
    """The last `count` new tokens see themselves and no other of these."""

    count: int

    def __call__(self, layout: Layout, length: int) -> Layout:
        visible_1LC = layout.visible_BLC.clone()
        first = length + layout.slots_BL.shape[1] - self.count
        itself = torch.eye(self.count, dtype=torch.bool, device=visible_1LC.device)
        visible_1LC[:, -self.count :, first : first + self.count] = itself
        return Layout(layout.slots_BL, layout.positions_BC, visible_1LC)


def chain(length: int, count: int, numbers_1C: Tensor) -> Layout:
    """The layout of `count` tokens in a row after the `length` cached tokens: slot, position and number are equal.

    `numbers_1C` is 0 ... C - 1.
    """
    slots_1L = numbers_1C[:, length : length + count]
    return Layout(slots_1L, numbers_1C, numbers_1C <= slots_1L.unsqueeze(-1))


def ragged(begins_B: Tensor, count: int, numbers_1C: Tensor, positions_1C: Tensor) -> Layout:
    """Chains of `count` tokens, each after the `begins_B` tokens of its own row.

    `positions_1C` are the positions of the slots `numbers_1C`: the same numbers, as far as the network knows them.
    """
    slots_BL = begins_B.unsqueeze(-1) + numbers_1C[:, :count]
    return Layout(slots_BL, positions_1C.expand(len(begins_B), -1), numbers_1C <= slots_BL.unsqueeze(-1))


def padded(layout: Layout, end: int, count: int) -> Layout:
    """`layout`, of one row with `end` slots, padded to `count` new tokens.

    Padding tokens are written to the slots from `end` on, which no token reads.
    """
    missing = count - layout.slots_BL.shape[1]
    if not missing:
        return layout
    numbers_1C = torch.arange(layout.positions_BC.shape[1], device=layout.slots_BL.device).unsqueeze(0)
    more = chain(end, missing, numbers_1C)
    return Layout(
        torch.cat([layout.slots_BL, more.slots_BL], 1),
        layout.positions_BC,
        torch.cat([layout.visible_BLC, more.visible_BLC], 1),
    )


def tree(length: int, parents: tuple[int, ...], numbers_1C: Tensor, first: int = 0) -> Layout:
    """The nodes from number `first` of a tree that follows `length` cached tokens; earlier nodes are also cached.

    `parents[i]` is the number of node i's parent, which is lower than i, or ROOT: the last of the `length` tokens. Node
    i is written to slot `length + i`, its position is `length` plus the number of nodes that are its ancestors, and it
    attends to the sequence, its ancestors and itself.
    """
    depths_N, ancestors_NN = _lineage(parents)
    end, capacity, device = length + len(parents), numbers_1C.shape[1], numbers_1C.device
    positions_C = np.arange(capacity)
    positions_C[length:end] = depths_N + length
    visible_LC = np.zeros((len(parents) - first, capacity), dtype=bool)
    visible_LC[:, :length] = True
    visible_LC[:, length:end] = ancestors_NN[first:]
    return Layout(
        numbers_1C[:, length + first : end],
        torch.from_numpy(positions_C).to(device).unsqueeze(0),
        torch.from_numpy(visible_LC).to(device).unsqueeze(0),
    )


@lru_cache(maxsize=256)
def _lineage(parents: tuple[int, ...]) -> tuple[Any, Any]:
    """Depths [N] of a tree's nodes, 0 for children of ROOT, and bool [N, N]: the nodes on each path, with itself."""
    depths: list[int] = []
    paths: list[int] = []  # each as the bits of a number, which is many times faster than a row of an array
    for node, parent in enumerate(parents):
        depths.append(0 if parent == ROOT else depths[parent] + 1)
        paths.append((0 if parent == ROOT else paths[parent]) | 1 << node)
    width = -(-len(parents) // 8)
    packed = np.frombuffer(b"".join(path.to_bytes(width, "little") for path in paths), dtype=np.uint8)
    bits_NN = np.unpackbits(packed.reshape(-1, width), axis=1, count=len(parents), bitorder="little")
    return np.array(depths), bits_NN.astype(bool)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the first to `node`, each the next one's parent; none for ROOT."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


class OpenTree:
    """The tree of tokens that a session has read after its sequence, until one path of it is selected.

    Nodes are numbered as they are read, from 0. Empty once a path is selected.
    """

    def __init__(self) -> None:
        self.parents: tuple[int, ...] = ()
        self.is_chain = True  # each node but the first is the child of the one before it

    def __len__(self) -> int:
        return len(self.parents)

    def grow(self, tokens: Tokens, parents: Sequence[int] | None) -> None:
        """Read `tokens` as nodes with these parents; None: they continue the sequence itself.

        Raises ValueError if that cannot be, with the tree as it was.
        """
        if parents is None:
            if self.parents:
                raise ValueError("a tree has been read: select a path of it before the sequence continues")
            return
        if len(parents) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens and {len(parents)} parents")
        for node, parent in enumerate(parents, len(self)):
            if not ROOT <= parent < node:
                raise ValueError(f"parent {parent} of node {node}: must be an earlier node, or {ROOT}")
        self.is_chain &= all(parent == node - 1 for node, parent in enumerate(parents, len(self)))
        self.parents += tuple(parents)

    def layout(self, length: int, count: int, numbers_1C: Tensor) -> Layout:
        """The layout of the newest `count` nodes (without nodes: tokens of the sequence) after `length` tokens."""
        first = max(0, len(self) - count)
        if self.is_chain:
            return chain(length + first, count, numbers_1C)
        return tree(length, self.parents, numbers_1C, first)

    def select(self, path: Sequence[int]) -> list[int]:
        """Return `path` and close the tree. Raises ValueError if it is no path from ROOT."""
        nodes = list(path)
        if nodes != path_to(self.parents, nodes[-1] if nodes else ROOT):
            raise ValueError(f"path {nodes} does not lead from the sequence's last token from parent to child")
        self.close()
        return nodes

    def close(self) -> None:
        self.parents, self.is_chain = (), True
