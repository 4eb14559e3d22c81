"""Several drafts whose tokens are merged into one tree (Miao et al. 2024, "SpecInfer", section 3).

Each draft reads every node of the tree, whichever draft chose it. At a node the drafts alternate: the first child is
the first draft's, the second the second's, and so on. A child is tested with the q of the draft that chose it
(SpecInfer, Theorem 4.2); `algorithm.continuations.Merged` says how distinct children are drawn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations, Merged
from specbench.algorithm.draft import Draft, DraftSession, ReadsTrees, in_batch, models_of, start_draft
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt, Session
from specbench.loading.model_loader import Say
from specbench.methods.merged.config import MergedConfig
from specbench.methods.several import SeveralBuilder
from specbench.sampling import Sampling


class MergedDraft:
    """`drafts`, whose sessions must be `ReadsTrees`, the one with the best first choice first."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = self.parts = drafts
        self.models = [model for draft in drafts for model in models_of(draft)]
        self.operations = sum(draft.operations for draft in drafts)

    def start(self, prompt: Prompt, sampling: Sampling) -> "MergedSession":
        return MergedSession(self, [draft.start(prompt, sampling) for draft in self.drafts])

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "MergedSession":
        return MergedSession(self, [start_draft(session, draft, prompt, sampling) for draft in self.drafts])

    def in_batch(self, rows: int) -> "MergedDraft":
        return MergedDraft([in_batch(draft, rows) for draft in self.drafts])


class MergedSession:
    """The drafts' sessions side by side.

    For chains, and for scores, it is its first draft: a chain has no place for the others, and alpha is of one q.
    """

    def __init__(self, draft: MergedDraft, sessions: Sequence[DraftSession]) -> None:
        self.draft = draft
        self.sessions: list[ReadsTrees] = []
        for session in sessions:
            assert isinstance(session, ReadsTrees)
            self.sessions.append(session)

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return self.sessions[0].propose(tokens, gamma, generator)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        return self._merged([session.after_text(tokens, levels) for session in self.sessions], 1)

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        return self._merged([session.after_nodes(tokens, parents) for session in self.sessions], len(tokens))

    def _merged(self, parts: Sequence[Continuations], nodes: int) -> Continuations:
        spent = [
            nodes * draft.operations if part.operations is None else part.operations
            for draft, part in zip(self.draft.drafts, parts, strict=True)
        ]
        return Merged(parts, sum(spent))

    def select(self, path: Sequence[int]) -> None:
        for session in self.sessions:
            session.select(path)

    def rollback(self, length: int) -> None:
        for session in self.sessions:
            session.rollback(length)

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return self.sessions[0].score(tokens, prefix_length)


class MergedBuilder(SeveralBuilder[MergedConfig]):
    """Builds `draft=merged` from its parts."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return MergedDraft(self.load_parts(target, say))
