"""PaSS: the target itself predicts several tokens ahead, from learned embeddings in place of unknown tokens.

Monea et al. 2023, "PaSS: Parallel Speculative Sampling". Look-ahead positions 1, 2, ... follow a token of the text; the
target's prediction at number k is q of the token k after the next, which every pass emits itself. The paper reads them
in a run of its own and verifies in another. Here they are read in the run that verifies: a set of them follows the
text's last token and each token of the proposal, since each of these may turn out to be the last accepted. So a pass is
one run of the target, of (γ + 1)(k + 1) tokens.

A look-ahead position is read beside the proposal (`Proposal.unverified`): no token of the text and none of the proposal
attends to it, the rule does not read its row, and its keys and values are dropped with the rejected tokens. Given the
text the positions are independent of the tokens drafted, and q of a pass comes from the pass before, so Algorithm 1 is
exact. In the first pass of a text nothing has been predicted yet, and nothing is drafted.

Shapes: L positions of a text, K look-ahead positions, G drafted tokens, V logits or tokens of the vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft, ScoresAhead
from specbench.config.draft import TrainedConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.saved_heads import LookAheadEmbeddings
from specbench.engine.session import Model, Prompt, up_to_end
from specbench.errors import UserError
from specbench.methods.at_once import RowsAlong, positions_after, room
from specbench.methods.build import DraftRequest
from specbench.methods.heads import HeadsBuilder
from specbench.sampling import Sampling, draw, most_likely, standardise
from specbench.text.processed import processed
from specbench.theory.trees import ROOT


class ParallelDraft(Draft):
    """`ids` are what `target` reads as look-ahead positions 1, 2, ..."""

    operations = 0.0  # what the positions take is counted in each proposal

    def __init__(self, target: Model, ids: Sequence[int], device: torch.device) -> None:
        self.target, self.ids, self.device = target, list(ids), device

    def start(self, prompt: Prompt, sampling: Sampling) -> "ParallelSession":
        return ParallelSession(self, prompt, sampling)


class ParallelSession(ScoresAhead):
    """The predictions of the look-ahead positions after the last token read, for one sequence."""

    stops_at_end = True

    def __init__(self, draft: ParallelDraft, prompt: Prompt, sampling: Sampling) -> None:
        self.draft, self.prompt, self.sampling = draft, prompt, sampling
        self._ahead_KV: Tensor | None = None  # logits
        self._positions = 0  # that are read after each token of the proposal at work
        self._scored = RowsAlong(draft.target, prompt, draft.ids, draft.device)

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        if gamma == 0:
            self._ahead_KV = None
            return Proposal([])
        drafted, q_GV = self._drafted(gamma, generator)
        nodes = range(ROOT, len(drafted))
        self._positions = room(self.draft.target, self.draft.ids, len(tokens) + len(drafted), gamma)
        self._ahead_KV = None
        if not self._positions:
            return Proposal(drafted, q_GV)
        unverified = positions_after(self.draft.ids[: self._positions], nodes, len(drafted))
        return Proposal(drafted, q_GV, len(unverified.tokens) * self.draft.target.operations, unverified=unverified)

    def _drafted(self, gamma: int, generator: torch.Generator) -> tuple[list[int], Tensor | None]:
        target = self.draft.target
        if self._ahead_KV is None:
            return [], None
        ahead_GV = self._ahead_KV[:gamma]
        if self.sampling.temperature == 0:
            return up_to_end(most_likely(ahead_GV, target.vocabulary_size, len(ahead_GV)), target.eos_ids), None
        q_GV = standardise(ahead_GV, self.sampling, target.vocabulary_size)
        drafted = up_to_end([draw(q_V, generator) for q_V in q_GV], target.eos_ids)
        return drafted, q_GV[: len(drafted)]

    def after_unverified(self, logits_LV: Tensor, path: Sequence[int]) -> None:
        first = len(path) * self._positions
        self._ahead_KV = logits_LV[first : first + self._positions]

    def rollback(self, length: int) -> None:
        """Nothing to do: predictions are those after the remaining tokens."""

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        """The target reads the look-ahead positions after each token of the text, in a session of its own."""
        return self._scored.q_ahead(tokens, prefix_length, most, self.sampling)


class ParallelBuilder(HeadsBuilder):
    """Builds `draft=pass`: look-ahead embeddings, which the target reads."""

    needs_states = False
    heads = LookAheadEmbeddings
    counted, drafting = "number", "look-ahead positions"

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        super().__init__(request)
        target, kind = request.run.target, self.draft.kind
        if target.weights == "random":
            raise UserError(f"target.weights=random: draft={kind} is trained for a target's own weights; use another")
        for name in ("device_map", "tp_plan"):
            if getattr(target, name) is not None:
                raise UserError(f"target.{name}: not together with draft={kind}; leave it out")
        self.lookahead_embeddings = (self.folder,)

    def build_draft(self, target: EagerModel) -> Draft:
        target.require_trees(f"{self.request.key}=pass", "use another draft")
        read = processed(target, self.request.run.sampling, self.request.vocabulary)  # also in scoring
        return ParallelDraft(read, target.lookahead_embeddings[self.folder], self.request.device)
