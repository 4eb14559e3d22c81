"""P-EAGLE as a draft: all tokens of a proposal from one forward pass beside the target's session.

The pass reads the entries of the tokens that the last verification accepted, with the target's own features, and masked
entries after them; see `methods.peagle.network`. Given the text the tokens are independent: each is drawn from its own
row, which is its q, so that Algorithm 1 is exact. In a tree all nodes of a level have the same children.

Shapes: K tokens ahead, V logits.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specbench.algorithm.draft import Draft, FollowsTarget, after_zeros
from specbench.engine.beside.captured import captured, entries_of
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session
from specbench.loading.model_loader import Say
from specbench.methods.at_once import AtOnceSession, all_places
from specbench.methods.eagle.beside import beside
from specbench.methods.eagle.draft import EagleBuilder
from specbench.methods.features import Features, ReadsFeatures, columns_of
from specbench.methods.peagle.entries import PEagleEntries, probe
from specbench.methods.peagle.network import PEagle
from specbench.methods.peagle.published import load_published_peagle
from specbench.sampling import Sampling, standardise


class PEagleDraft(FollowsTarget):
    """`eagle`, bound to the network of `target`, whose sessions hand over its features."""

    def __init__(self, target: Model, network: PEagle, taps: tuple[int, ...] = ()) -> None:
        """`taps`: after how many layers the states are that the target hands over."""
        self.target, self.eagle, self.operations = target, network, network.operations
        self.columns = columns_of(network.shape.taps, taps, network.shape.tapped_width)
        self.beside = beside(network)
        self.captured = captured(self.beside, target, partial(probe, network))

    @property
    def device(self) -> torch.device:
        return self.eagle.fc.weight.device

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "PEagleSession":
        return PEagleSession(self, session, sampling)


class PEagleSession(ReadsFeatures, AtOnceSession):
    """The layers at work beside the target's session."""

    draft: PEagleDraft

    def __init__(self, draft: PEagleDraft, session: Session, sampling: Sampling) -> None:
        self.draft, self.session, self.sampling = draft, session, sampling
        self.entries = PEagleEntries(draft.eagle, entries_of(draft.beside, draft.captured, session))
        self._features = Features(session, True, draft.columns)

    @torch.inference_mode()
    def ahead(self, tokens: Sequence[int], most: int) -> Tensor | None:
        """Logits [K, V] of the next tokens, from the entries of `tokens`, which are read on, and masked ones after.

        Entry j joins the target's feature of token j and token j + 1: a text has one entry fewer than tokens.
        """
        self._features.read(tokens[:-1])
        if len(tokens) < 2 or most == 0:
            return None
        first = min(self.entries.length, len(tokens) - 2)  # the last entry is read again if there is no new one
        self.entries.rollback(first)
        features_LF = self._features.of(first, len(tokens) - 1)
        return RUNS.run(self.entries.draft_rows, features_LF, tokens[first + 1 :], most)

    def rollback(self, length: int) -> None:
        self._features.drop(length)
        self.entries.rollback(length - 1)

    @torch.inference_mode()
    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        self._features.read(tokens[:-1])
        rows, known, network = len(tokens) - prefix_length, len(tokens) - 2, self.draft.eagle
        found = [torch.zeros(rows, self.draft.target.vocabulary_size, device=self.draft.device)] * most
        if known < 1:
            return iter(found)
        embedded_1LD = network.embed(torch.tensor([list(tokens[1:-1])], device=self.draft.device), 1)
        features_1LF = self._features.of(0, known).unsqueeze(0)
        # Proposals that reach one of the tokens: those that began in its place, or up to `most` - 1 before.
        first = max(0, known - rows - most + 1)
        places = all_places(known, min(most, known), self.draft.device, first)
        for depth, states_1LD in enumerate(network.along(features_1LF, embedded_1LD, places)):
            logits_LV = network.logits(states_1LD[0][-rows:])
            found[depth] = after_zeros(standardise(logits_LV, self.sampling, self.draft.target.vocabulary_size), rows)
        return iter(found)


class PEagleBuilder(EagleBuilder):
    """Weights of our own recipe, in a folder or shipped, or a published checkpoint, in a folder or on the hub."""

    network = PEagle

    def load(self, target: EagerModel, say: Say) -> Draft:
        if self.published is not None:
            network = load_published_peagle(self.published, target.network, self.taps)
        else:
            network = PEagle.load(Path(self.source), target.network, self.request.key).bind(target.network)
        return PEagleDraft(target, network, target.tap_depths)
