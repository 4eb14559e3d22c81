"""The cache of several depths for one sequence.

Depth k's entry i joins the state of depth k - 1 at entry i (of depth 0: the target's, at token i) and the embedding of
token i + 1 + k. With N entries of depth 0, the text has N + 1 tokens, so the entries of depth k before N - k join only
tokens of the text and are cached. The k entries after them join drafted tokens. They are computed for each drafted path
and not cached, so that a rejection needs no recomputation.

Shapes: L new entries, D width, C slots.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.beside.declared import Prediction
from specbench.engine.beside.eager import LayerCache
from specbench.engine.layout import mask_bias
from specbench.methods.mtp.network import Mtp
from specbench.theory.trees import ROOT

TEXT = -1  # of entries that are of no drafted path


class Node(NamedTuple):
    """A drafted token: those up to it, and its depth's states [k, D] at the last k entries."""

    path: tuple[int, ...]
    states_LD: Tensor


class DepthsCache:
    """Keys and values of the entries of each depth, of which `length` are of the first depth. See `EagleEntries`."""

    def __init__(self, depths: Sequence[Mtp]) -> None:
        self.depths = depths
        self._caches = [
            LayerCache(depth.shape.layer.caches(1), depth.fc.weight, depth.shape.layer.scale) for depth in depths
        ]
        self._known: list[list[Tensor]] = [[] for _ in depths]  # each depth's states of the text's entries, [1, D] each
        self._text: list[int] = []  # the token after each entry of the first depth
        self._nodes: list[Node] = []

    @property
    def length(self) -> int:
        return len(self._text)

    def read(self, features_LD: Tensor, tokens: Sequence[int]) -> Prediction:
        """Read entries of the target's own features and these tokens; what follows the last."""
        self.forget()
        first = self.length
        self._text += tokens
        states_LD = self._run(0, features_LD, tokens, range(first, self.length), [TEXT] * len(tokens))
        self._known[0] += states_LD.split(1)
        return Prediction(states_LD[-1:], self.depths[0].logits(states_LD[-1:]))

    def draft(self, states_1D: Tensor, token: int) -> Prediction:
        """Continue the newest path."""
        return self.draft_nodes(states_1D, [token], [len(self._nodes) - 1 if self._nodes else ROOT])

    def draft_nodes(self, states_LD: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> Prediction:
        """The continuations of these nodes of a tree, numbered on, all of one level; that level's depth reads them.

        `states_LD` are not read: a node's own are held here.
        """
        above = [None if parent == ROOT else self._nodes[parent] for parent in parents]
        paths = [(*(() if node is None else node.path), token) for node, token in zip(above, tokens, strict=True)]
        level = len(paths[0])
        known, before = self._known[level], self._known[level - 1]
        settled = max(0, self.length - level)  # entries that join only tokens of the text
        drafted = self.length - settled  # entries after them, of each path
        new = range(len(known), settled)
        states = before[len(known) : settled]
        joined, places, of = [self._text[entry + level] for entry in new], list(new), [TEXT] * len(new)
        for number, (node, path) in enumerate(zip(above, paths, strict=True)):
            states += [*before[settled : self.length - level + 1], *([] if node is None else [node.states_LD])]
            joined += path[level - drafted :]
            places += range(settled, self.length)
            of += [number] * drafted
        states_LD = self._run(level, torch.cat(states), joined, places, of)
        known += states_LD[: len(new)].split(1)
        of_paths = states_LD[len(new) :].split(drafted)
        self._nodes += [Node(path, states_ED) for path, states_ED in zip(paths, of_paths, strict=True)]
        last_LD = torch.cat([states_ED[-1:] for states_ED in of_paths])
        return Prediction(last_LD, self.depths[level].logits(last_LD))

    def forget(self) -> None:
        """Drop all drafted entries."""
        self._nodes.clear()

    def rollback(self, length: int) -> None:
        """Drop all drafted entries, and all but the first `length` of the first depth."""
        self.forget()
        length = min(self.length, max(0, length))
        del self._text[length:]
        for depth, known in enumerate(self._known):
            del known[max(0, length - depth) :]

    def _run(
        self, level: int, states_LD: Tensor, tokens: Sequence[int], places: Sequence[int], of: Sequence[int]
    ) -> Tensor:
        """The states of a depth at entries that join `states_LD` and `tokens`.

        `places` are their numbers, `of` the path of each, or TEXT. An entry attends to earlier entries of the text and
        of its own path.
        """
        depth, cache, device = self.depths[level], self._caches[level], states_LD.device
        first, end = places[0], places[0] + len(places)
        cache.reserve(end)
        of_C = torch.tensor([TEXT] * first + list(of), device=device)
        slots_C = torch.arange(end, device=device)
        of_L1, slots_L1 = of_C[first:, None], slots_C[first:, None]
        visible_LC = (slots_C <= slots_L1) & ((of_C == TEXT) | (of_C == of_L1))
        bias = None if len(places) == 1 else mask_bias(visible_LC, cache.dtype)[None, None]
        positions_1L = torch.tensor([list(places)], device=device) + level
        embedded_1LD = depth.embed(torch.tensor([list(tokens)], device=device), positions_1L + 1)
        attend = partial(cache.attend, 0, end, bias)
        found_1LD: Tensor = depth(states_LD.unsqueeze(0), embedded_1LD, positions_1L, attend, None)
        return found_1LD[0]
