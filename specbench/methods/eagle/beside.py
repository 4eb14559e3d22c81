"""EAGLE's layer as a network beside the target, and how its captured steps are compared with it."""

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from specbench.engine.beside.declared import Beside, EntrySession, StepOf
from specbench.methods.eagle.entries import EagleEntries
from specbench.methods.eagle.network import Eagle
from specbench.theory.trees import ROOT

PROBED = 4  # entries of a text


def beside(eagle: Eagle) -> Beside:
    """`eagle`, bound to its target, with a step that reads the target's features and one that reads predicted ones."""
    layer = eagle.shape.layer
    return Beside(
        "EAGLE's layer", eagle, eagle.borrowed, eagle.fc.weight, asdict(eagle.shape),
        {kind: StepOf(partial(eagle.step, kind), eagle.width_of(kind)) for kind in ("read", "draft")},
        layer.caches(eagle.layers), [(layer.heads, layer.head_width)] * 2 if layer.crosses else [], (-1,),
    )  # fmt: skip


def probe(eagle: Eagle, session: EntrySession) -> list[Tensor]:
    """Logits [rows, V] of five runs: several entries, one entry, a drafted node, two siblings, a node below each."""
    entries, features_LF = EagleEntries(eagle, session), noise(eagle, PROBED)
    tokens = range(eagle.vocabulary_size // 2, eagle.vocabulary_size // 2 + PROBED + 1)
    several = entries.read(features_LF[:-1], tokens[: PROBED - 1])
    one = entries.read(features_LF[-1:], tokens[PROBED - 1 : PROBED])
    node = entries.draft(one.states_LD, tokens[PROBED])
    entries.rollback(PROBED)
    siblings = entries.draft_nodes(one.states_LD.expand(2, -1), tokens[:2], [ROOT, ROOT])
    below = entries.draft_nodes(siblings.states_LD, tokens[2:4], [1, 0])
    return comparable(each.logits_LV for each in (several, one, node, siblings, below))


def comparable(rows: Iterable[Tensor]) -> list[Tensor]:
    """Logits in fp32, 0 for tokens that are never drafted."""
    return [each.float().masked_fill(each == -torch.inf, 0.0) for each in rows]


def noise(eagle: Eagle, entries: int) -> Tensor:
    """Features to probe with, the same at each call."""
    made = torch.randn(entries, eagle.shape.feature_width, generator=torch.Generator().manual_seed(0))
    return made.to(eagle.fc.weight)
