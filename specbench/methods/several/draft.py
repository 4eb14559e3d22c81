"""Drafts that are made of several drafts, which propose in turn or whose tokens are merged into one tree.

Horizontal cascade (Chen et al. 2023, "Cascade Speculative Drafting"): cheaper drafts for later positions. Later tokens
of a proposal are worth less, since all tokens before them must be accepted. So the best draft proposes the first
tokens, and a cheaper draft continues. Each token is tested with the q of the draft that drew it, so Algorithm 1 applies
unchanged. A vertical cascade (`methods.cascade.draft`) may be one of the drafts; Algorithm 1 is also exact inside it.
Chen et al. accept inside with lenience, which makes q wrong at T > 0. `theory.horizontal_lengths` says how many tokens
each draft should propose.

Merged (Miao et al. 2024, "SpecInfer", section 3): each draft reads every node of the tree, whichever draft chose it. At
a node the drafts alternate: the first child is the first draft's, the second the second's, and so on. A child is tested
with the q of the draft that chose it (SpecInfer, Theorem 4.2); `algorithm.continuations.Merged` says how distinct
children are drawn.

Shapes: G drafted tokens, L positions, V tokens of the vocabulary.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations, Merged
from specbench.algorithm.draft import (
    Draft,
    DraftSession,
    ProposesByReading,
    ScoresAhead,
    on_host,
    operations_of,
)
from specbench.config.draft import SeveralConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.reads import Reading
from specbench.engine.session import Prompt, Session
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, builder_for, needed_of_target
from specbench.methods.several.config import HorizontalConfig, MergedConfig
from specbench.sampling import Sampling, one_hot

Several = TypeVar("Several", bound=SeveralConfig)


class SeveralBuilder(DraftBuilder[Several]):
    """The drafts that another is made of."""

    def __init__(self, request: DraftRequest[Several]) -> None:
        super().__init__(request)
        caches = self.draft.cache_dir
        self.parts = [
            builder_for(request.part(replace(part, cache_dir=part.cache_dir or caches), name, request.run))
            for name, part in self.draft.drafts.items()
        ]
        needed = needed_of_target(self.parts)
        self.needs_states, self.needs_prompt_states = needed.states, needed.of_prompt
        self.taps, self.lookahead_embeddings = needed.taps, needed.lookahead_embeddings

    def fit(self, say: Say) -> None:
        for part in self.parts:
            part.fit(say)

    def load_parts(self, target: EagerModel, say: Say) -> list[Draft]:
        drafts = [part.load(target, say) for part in self.parts]
        self.models += [model for part in self.parts for model in part.models]
        return drafts

    def require_room(self, prompts: Sequence[Prompt]) -> None:
        for part in self.parts:
            part.require_room(prompts)


class DraftOfDrafts(Draft):
    """`drafts`, each of which starts on every prompt."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = self.parts = drafts
        self.models = [model for draft in drafts for model in draft.models]

    @property
    def starts_on_target(self) -> bool:
        return any(draft.starts_on_target for draft in self.drafts)

    @abstractmethod
    def session(self, sessions: Sequence[DraftSession]) -> DraftSession:
        """The session that combines the drafts' sessions."""

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        for draft in self.drafts:
            draft.expect(sampling, gammas)

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        return self.session([draft.start(prompt, sampling) for draft in self.drafts])

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        return self.session([draft.start_on(session, prompt, sampling) for draft in self.drafts])


class SessionsOfDrafts(DraftSession):
    """The part of a draft session that has `sessions`, of which one or several propose."""

    def __init__(self, sessions: Sequence[DraftSession]) -> None:
        self.sessions = sessions

    def follow(self, tokens: Sequence[int]) -> None:
        for one in self.sessions:
            one.follow(tokens)

    def rollback(self, length: int) -> None:
        for session in self.sessions:
            session.rollback(length)


class MergedDraft(DraftOfDrafts):
    """`drafts`, whose sessions must read trees, the one with the best first choice first."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        super().__init__(drafts)
        self.operations = sum(draft.operations for draft in drafts)

    def session(self, sessions: Sequence[DraftSession]) -> "MergedSession":
        return MergedSession(self, sessions)

    def in_batch(self, rows: int) -> "MergedDraft":
        return MergedDraft([draft.in_batch(rows) for draft in self.drafts])


class MergedSession(DraftSession):
    """The drafts' sessions side by side.

    For chains, and for scores, it is its first draft: a chain has no place for the others, and alpha is of one q.
    """

    def __init__(self, draft: MergedDraft, sessions: Sequence[DraftSession]) -> None:
        self.draft, self.sessions = draft, sessions

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return self.sessions[0].propose(tokens, gamma, generator)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        return self._merged([session.after_text(tokens, levels) for session in self.sessions], 1)

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        return self._merged([session.after_nodes(tokens, parents) for session in self.sessions], len(tokens))

    def _merged(self, parts: Sequence[Continuations], nodes: int) -> Continuations:
        pairs = zip(self.draft.drafts, parts, strict=True)
        return Merged(parts, sum(operations_of(draft, part.operations, nodes) for draft, part in pairs))

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


class HorizontalDraft(DraftOfDrafts):
    """`drafts` in turn: each of all but the last proposes so many tokens as `lengths` says, the last the rest."""

    def __init__(
        self,
        drafts: Sequence[Draft],
        lengths: Sequence[int],
        vocabulary_size: int,
        eos_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        super().__init__(drafts)
        self.lengths = lengths
        self.vocabulary_size, self.eos_ids, self.device = vocabulary_size, eos_ids, device
        # As if each drafted as many tokens. Proposals count what they took.
        self.operations = sum(draft.operations for draft in drafts) / len(drafts)

    def session(self, sessions: Sequence[DraftSession]) -> "HorizontalSession":
        return HorizontalSession(self, sessions)

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        for draft, lengths in zip(self.drafts, [*((length,) for length in self.lengths), gammas], strict=True):
            draft.expect(sampling, lengths)

    def in_batch(self, rows: int) -> "HorizontalDraft":
        drafts = [draft.in_batch(rows) for draft in self.drafts]
        return HorizontalDraft(drafts, self.lengths, self.vocabulary_size, self.eos_ids, self.device)


class HorizontalSession(SessionsOfDrafts, ScoresAhead, ProposesByReading):
    """The drafts' sessions side by side. `score` is of a proposal's first token, which is the first draft's."""

    stops_at_end = True

    def __init__(self, draft: HorizontalDraft, sessions: Sequence[DraftSession]) -> None:
        super().__init__(sessions)
        self.draft = draft

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposal]:
        """A draft that proposes fewer tokens than it may leaves the others to the next."""
        draft, sequence = self.draft, list(tokens)
        proposals, operations = list[Proposal](), 0.0
        lengths = [*draft.lengths, gamma]
        for one, session, length in zip(draft.drafts, self.sessions, lengths, strict=True):
            most = min(length, len(tokens) + gamma - len(sequence))
            if most == 0 or (len(sequence) > len(tokens) and sequence[-1] in draft.eos_ids):
                break
            proposal = on_host((yield from session.proposing(sequence, most, generator)))
            sequence += proposal.tokens
            proposals.append(proposal)
            operations += operations_of(one, proposal.operations, len(proposal.tokens))
        return Proposal(sequence[len(tokens) :], self._rows(proposals), operations)

    def _rows(self, proposals: Sequence[Proposal]) -> Tensor | None:
        """The q [G, V] that each token was drawn from; None if all were certain."""
        if all(one.q_GV is None for one in proposals):
            return None
        return torch.cat([
            one_hot(one.tokens, self.draft.vocabulary_size, self.draft.device) if one.q_GV is None else one.q_GV
            for one in proposals if one.tokens
        ])  # fmt: skip

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        """Each draft reads the text once; a token has the q of the draft that proposes at its position."""
        begin = 0
        for session, length in zip(self.sessions, [*self.draft.lengths, most], strict=True):
            own = min(length, most - begin)
            if own > 0:
                yield from session.score_ahead(tokens, prefix_length, own)
            begin += own


class HorizontalBuilder(SeveralBuilder[HorizontalConfig]):
    """Builds `draft=horizontal` from its parts."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        size, device = self.request.vocabulary.size, self.request.device
        return HorizontalDraft(self.load_parts(target, say), self.draft.lengths, size, target.eos_ids, device)
