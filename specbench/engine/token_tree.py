"""The tree of tokens that a session has read following its sequence, until one path of it is selected."""

from collections.abc import Sequence

from torch import Tensor

from specbench.engine.layout import Layout, chain, path_to, tree
from specbench.engine.session import Tokens
from specbench.theory.trees import ROOT


class OpenTree:
    """Nodes are numbered as they are read, from 0. Empty once a path is selected."""

    def __init__(self) -> None:
        self.parents: tuple[int, ...] = ()
        self.is_chain = True  # each node but the first is the child of the one before it

    def __len__(self) -> int:
        return len(self.parents)

    def grow(self, tokens: Tokens, parents: Sequence[int] | None) -> None:
        """Read `tokens` as nodes with these parents; None: they continue the sequence itself.

        Raises ValueError where that cannot be, with the tree as it was.
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
        """`path`, and no tree any more. Raises ValueError where it is no path from ROOT."""
        nodes = list(path)
        if nodes != path_to(self.parents, nodes[-1] if nodes else ROOT):
            raise ValueError(f"path {nodes} does not lead from the sequence's last token from parent to child")
        self.close()
        return nodes

    def close(self) -> None:
        self.parents, self.is_chain = (), True
