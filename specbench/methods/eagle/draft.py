"""EAGLE and EAGLE-3: a small layer that drafts from the target's features and then from its own predictions.

Li et al. 2024 (2401.15077) and 2025 (2503.01840); `methods.eagle.network` has the layer. A pass begins with one step
over all tokens that the last one accepted, with the target's true features, which the run that verified them gave: what
was predicted in their place is forgotten. From there each drafted token is a step of the layer on its own prediction.

Given the tokens so far a token is drawn from the row that the layer gave after the tokens drafted before it, so that
Algorithm 1 is exact whatever that row is. In the first pass of a T5's text no feature is known; then nothing is
drafted. Trees are grown by `algorithm.tree_draft`: with tree=dynamic they are EAGLE-2's (2406.16858).

Shapes: L positions, F numbers of a target's feature, D its width, V logits.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations, Found, Predicted
from specbench.algorithm.draft import Draft, FollowsTarget, ScoresAhead, after_zeros
from specbench.engine.beside.captured import captured, entries_of
from specbench.engine.beside.declared import Prediction, Source
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session
from specbench.engine.weights.load import layers_of, shape_of
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, source_of
from specbench.methods.eagle.beside import beside, probe
from specbench.methods.eagle.config import EagleConfig
from specbench.methods.eagle.entries import EagleEntries
from specbench.methods.eagle.network import Eagle
from specbench.methods.eagle.published import load_published_eagle, published_eagle
from specbench.methods.eagle.unrolled import unrolled
from specbench.methods.features import Features, ReadsFeatures, columns_of
from specbench.methods.heads import require_weights
from specbench.sampling import Sampling, draw_next, standardise
from specbench.theory.trees import ROOT


class FeatureEntries(Protocol):
    """Entries of one text, see `EagleEntries`."""

    @property
    def length(self) -> int: ...

    def read(self, features_LF: Tensor, tokens: Sequence[int], /) -> Prediction: ...

    def draft(self, states_1D: Tensor, token: int) -> Prediction: ...

    def draft_nodes(self, states_LD: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> Prediction: ...

    def rollback(self, length: int) -> None: ...


class EagleDraft(FollowsTarget):
    """`eagle`, bound to the network of `target`, whose sessions hand over its features, also of the prompt."""

    longest: int | None = None  # tokens of a proposal at most

    def __init__(self, target: Model, eagle: Eagle, taps: tuple[int, ...] = (), captures: bool = True) -> None:
        """`taps`: after how many layers the states are that the target hands over.

        `captures`: the layer runs in the target's engine.
        """
        self.target, self.eagle = target, eagle
        self.operations = eagle.operations
        self.columns = columns_of(eagle.shape.taps or taps, taps, eagle.shape.tapped_width)
        self.beside = beside(eagle)
        self.captured = captured(self.beside, target, partial(probe, eagle)) if captures else None

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "EagleSession":
        return EagleSession(self, session, sampling)

    def cache(self, session: Session) -> FeatureEntries:
        """Entries of a text, beside a session of the target."""
        return EagleEntries(self.eagle, entries_of(self.beside, self.captured, session))

    def unrolled(
        self, features_BTF: Tensor, embedded_BTD: Tensor, source: Source | None, steps: int
    ) -> Iterator[Tensor]:
        """The states of each step of a proposal along whole texts, see `network.unrolled`."""
        return unrolled(self.eagle, features_BTF, embedded_BTD, source, steps)


class EagleSession(ReadsFeatures, ScoresAhead):
    """The layer at work beside the target's session."""

    stops_at_end = True

    def __init__(self, draft: EagleDraft, session: Session, sampling: Sampling) -> None:
        self.draft = draft
        self.session = session
        self.sampling = sampling
        self.source = partial(Source.of, session)  # no cycle: rows of a batch are freed at once
        self.cache = draft.cache(session)
        self._nodes: list[Tensor] = []  # predicted features [1, D] of the nodes of a tree
        self._levels: list[int] = []  # of the nodes, 1 for the root's children
        self._root_1D: Tensor | None = None
        self._features = Features(session, bool(draft.eagle.shape.taps), draft.columns)

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        ends, size = self.draft.target.eos_ids, self.draft.target.vocabulary_size
        gamma = min(gamma, self.draft.longest or gamma)
        after = self._after(tokens)
        rows: list[Tensor] = []
        drafted: list[int] = []
        while after is not None and len(drafted) < gamma:
            token, row_1V = draw_next(after.logits_LV, self.sampling, size, generator)
            drafted.append(token)
            if row_1V is not None:
                rows.append(row_1V)
            if token in ends or len(drafted) == gamma:
                break
            after = RUNS.run(self.cache.draft, after.states_LD, token)
        return Proposal(drafted, torch.cat(rows) if rows else None)

    @torch.inference_mode()
    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        after = self._after(tokens)
        self._nodes, self._levels, self._root_1D = [], [], None if after is None else after.states_LD
        if after is None:
            return self._nothing(1)
        return self._predicted(after)

    @torch.inference_mode()
    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        assert self._root_1D is not None  # without a root there are no nodes
        self._levels += [1 if parent == ROOT else self._levels[parent] + 1 for parent in parents]
        if self._levels[-1] >= (self.draft.longest or math.inf):
            return self._nothing(len(parents))
        before = [self._root_1D if parent == ROOT else self._nodes[parent] for parent in parents]
        after = RUNS.run(self.cache.draft_nodes, torch.cat(before), tokens, parents)
        self._nodes += after.states_LD.split(1)
        return self._predicted(after)

    def _nothing(self, rows: int) -> Continuations:
        """No child after each of `rows` nodes."""
        return Found([()] * rows, self.draft.target.vocabulary_size, self.draft.eagle.fc.weight.device)

    def rollback(self, length: int) -> None:
        self._features.drop(length)
        self.cache.rollback(length - 1)

    @torch.inference_mode()
    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        self._features.read(tokens[:-1])
        rows = len(tokens) - prefix_length
        found = [torch.zeros(rows, self.draft.target.vocabulary_size, device=self.draft.eagle.fc.weight.device)] * most
        known = len(tokens) - 2  # entries whose predictions are about one of `tokens`
        if known < 1:
            return iter(found)
        eagle = self.draft.eagle
        embedded_1LD = eagle.embed(torch.tensor([list(tokens[1:-1])], device=eagle.fc.weight.device), 1)
        features_1LF = self._features.of(0, known).unsqueeze(0)
        steps = min(most, known, self.draft.longest or most)
        for ahead, states_1LD in enumerate(self.draft.unrolled(features_1LF, embedded_1LD, self.source(), steps)):
            logits_LV = eagle.logits(states_1LD[0, ahead:][-rows:])
            found[ahead] = after_zeros(standardise(logits_LV, self.sampling, self.draft.target.vocabulary_size), rows)
        return iter(found)

    def _after(self, tokens: Sequence[int]) -> Prediction | None:
        """The prediction after the last token, after reading all of the text; None at the first pass.

        The first pass of an encoder-decoder text has no feature to start from.
        """
        self._features.read(tokens[:-1])
        if len(tokens) < 2:
            return None
        unread = tokens[self.cache.length + 1 :]
        features_LF = self._features.of(self.cache.length, len(tokens) - 1)
        return RUNS.run(self.cache.read, features_LF, unread)

    def _predicted(self, after: Prediction) -> Predicted:
        return Predicted(after.logits_LV, self.draft.target.vocabulary_size, self.sampling)


class EagleBuilder(DraftBuilder[EagleConfig]):
    """Weights of our own recipes, in a folder or shipped, or a published checkpoint, in a folder or on the hub."""

    needs_states = needs_prompt_states = True
    network: ClassVar[type[Eagle]] = Eagle

    def __init__(self, request: DraftRequest[EagleConfig]) -> None:
        super().__init__(request)
        draft, key, target = self.draft, request.key, request.run.target
        self.source, pinned = source_of(draft)
        require_weights(request, Path(self.source), f", or {key}.hub=OWNER/NAME of a published checkpoint")
        self.published = published_eagle(self.source, pinned, key, self.network.FIELD)
        if self.published is None and draft.hub is not None and draft.path is None:
            raise UserError(f"{key}.hub={draft.hub}: its config.json is none of an EAGLE checkpoint")
        if self.published is None:
            shape = self.network.shape_of(self.network.facts(Path(self.source), key, draft.recipe))[0]
            kind, self.taps = shape.kind, shape.taps
        else:
            kind = self.published.kind
        if kind != draft.kind:
            where = f"{key}.path" if draft.path or draft.hub is None else f"{key}.hub"
            raise UserError(f"{where}={self.source}: these weights are of draft={kind}; use that draft")
        if self.published is not None:
            self.published.require_fits(shape_of(target, "target"))
            self.taps = self.published.taps(layers_of(target, "target"))

    def load(self, target: EagerModel, say: Say) -> Draft:
        if self.published is not None:
            eagle = load_published_eagle(self.published, target.network, self.taps)
        else:
            eagle = Eagle.load(Path(self.source), target.network, self.request.key).bind(target.network)
        return EagleDraft(target, eagle, target.tap_depths)
