"""A thousand greedy completions of a small network, alone, in batches and through trees.

The completions to compare with are the network's own, computed over whole texts, without a cache and outside every
session: so nothing of them depends on what is tested. The draft costs nothing and knows them. It is right seven times
in ten, so that passes accept every number of tokens, where a second random network would be rejected at once.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.batching import together
from specbench.algorithm.continuations import Continuations, Found
from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculate, speculative
from specbench.algorithm.draft import Draft, Stateless
from specbench.algorithm.tree_draft import TreeDraft
from specbench.engine.batch import Batch
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.records.decoded import Trace
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT, TreeShape
from tests.support.decode import spec_of

PROMPTS, NEW, GAMMAS, ROWS, RIGHT = 1000, 12, 5, 16, 0.7
FEW_TIES = 10  # completions whose two best tokens are so near that sums in another order choose the other
SAME = {"chains": 0, "batches": 0, "trees": 0}  # completions that differ
Texts = dict[tuple[int, ...], list[int]]  # of each prompt


def greedy_texts(network: Any, size: int, ends: frozenset[int], longest: int, prompts: int = PROMPTS) -> Texts:
    """Distinct random prompts of 1 to `longest` tokens with the network's own completions, all of a length at once."""
    draws = random.Random(0)
    drawn = set[tuple[int, ...]]()
    while len(drawn) < prompts:
        drawn.add(tuple(draws.choices(range(2, size), k=draws.randint(1, longest))))
    found: Texts = {}
    for length, group in groupby(sorted(drawn, key=lambda one: (len(one), one)), key=len):
        same = list(group)
        texts_NT = torch.tensor(same)
        for _ in range(NEW):
            with torch.inference_mode():
                logits_NTV: Tensor = network(input_ids=texts_NT, use_cache=False).logits
            texts_NT = torch.cat([texts_NT, logits_NTV[:, -1, :size].argmax(-1, keepdim=True)], -1)
        for prompt, text in zip(same, texts_NT[:, length:].tolist(), strict=True):
            end = next((place for place, token in enumerate(text, 1) if token in ends), NEW)
            found[prompt] = text[:end]
    return found


@dataclass(frozen=True)
class Nearly(Draft):
    """Proposes the known completions with mistakes."""

    texts: Texts
    size: int
    operations = 0.0

    def start(self, prompt: Prompt, sampling: Sampling) -> "NearlySession":
        return NearlySession(self, tuple(prompt.prefix))


class NearlySession(Stateless):
    def __init__(self, draft: Nearly, prompt: tuple[int, ...]) -> None:
        self.text, self.size, self.begin = draft.texts[prompt], draft.size, len(prompt)
        self.draws = random.Random(hash(prompt))
        self.root = 0  # of a tree: the place after the text, and after each node, None where it is not in the text
        self.nodes: list[int | None] = []

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        place = len(tokens) - self.begin
        return Proposal([self._after(place + step)[0] for step in range(gamma)])

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        self.root, self.nodes = len(tokens) - self.begin, []
        return self._found([self.root])

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        for token, parent in zip(tokens, parents, strict=True):
            place = self.root if parent == ROOT else self.nodes[parent]
            right = place is not None and place < len(self.text) and self.text[place] == token
            self.nodes.append(place + 1 if right and place is not None else None)
        return self._found(self.nodes[-len(tokens) :])

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        raise NotImplementedError

    def _found(self, places: Sequence[int | None]) -> Continuations:
        ranked = [[(token, 0.5) for token in self._after(place)] for place in places]
        return Found(ranked, self.size, torch.device("cpu"))

    def _after(self, place: int | None) -> list[int]:
        """Two tokens to follow `place`, the text's own first, second or not at all."""
        others = self.draws.sample(range(2, self.size), 2)
        if place is None or place >= len(self.text):
            return others
        own, chance = self.text[place], self.draws.random()
        other = others[0] if others[0] != own else others[1]
        return [own, other] if chance < RIGHT else [other, own] if chance < (1 + RIGHT) / 2 else others


def differing(target: EagerModel, texts: Texts) -> dict[str, int]:
    """How many completions differ by chains, rows of a batch and trees, each of all prompts.

    A completion that is not the network's over whole texts is compared with that of the target alone: few are not, and
    only where two tokens are nearly tied.
    """
    draft, prompts = Nearly(texts, target.vocabulary_size), [Prompt((), prompt) for prompt in texts]
    tree = TreeDraft(draft, TreeShape.of_widths([2, 2]), "fixed", target.eos_ids)
    alone: dict[tuple[int, ...], list[int]] = {}

    def differs(prompt: Prompt, trace: Trace) -> bool:
        key = tuple(prompt.prefix)
        if trace.tokens == texts[key]:
            return False
        if key not in alone:
            alone[key] = autoregressive(target, prompt, spec_of(Sampling(), NEW), torch.Generator()).tokens
        return trace.tokens != alone[key]

    def one_by_one(drafting: Draft, spec: Callable[[int], DecodingSpec]) -> list[Trace]:
        return [
            speculative(target, drafting, prompt, spec(number), torch.Generator())
            for number, prompt in enumerate(prompts)
        ]

    def in_rows() -> list[Trace]:
        batch, spec = Batch.of(target, ROWS), spec_of(Sampling(), NEW, 3)
        return together((speculate(batch, draft, prompt, spec, torch.Generator()) for prompt in prompts), ROWS, batch)

    ways = {"chains": one_by_one(draft, lambda number: spec_of(Sampling(), NEW, 1 + number % GAMMAS))}
    accepted = {one.accepted for trace in ways["chains"] for one in trace.passes}
    assert accepted == set(range(GAMMAS + 1))
    ways["batches"] = in_rows()
    ways["trees"] = one_by_one(tree, lambda number: spec_of(Sampling(), NEW, 2))
    paths = {tuple(one.path or ()) for trace in ways["trees"] for one in trace.passes if one.parents}
    assert len(paths) > 4  # over first and second children
    found = {
        way: sum(differs(prompt, trace) for prompt, trace in zip(prompts, traces, strict=True))
        for way, traces in ways.items()
    }
    assert len(alone) <= FEW_TIES
    return found
