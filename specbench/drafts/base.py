"""The interface of a draft.

Shapes: L positions, V tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specbench.acceptance import Beside, PendingProposal, Proposal
from specbench.drafts.continuations import Continuations
from specbench.models import Model, Prompt, Read, Reading, Session
from specbench.sampling import Sampling
from specbench.trees import ROOT

Proposed = Proposal | PendingProposal
NOTHING_BESIDE = Beside([], [])


class DraftSession(Protocol):
    """A draft at work on one sequence."""

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """Up to `gamma` tokens that may follow `tokens` (prefix and all generated so far)."""
        ...

    def rollback(self, length: int) -> None:
        """Drop all but the first `length` tokens read."""
        ...

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q [L, V] for each of the L tokens after the prefix, by teacher forcing.

        For a fresh session, or one that has scored the prefix already: a long text is scored in parts.
        """
        ...


@runtime_checkable
class ProposesByReading(DraftSession, Protocol):
    """A draft session that needs runs of a model to propose, and can leave them to whoever drives it."""

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposed]:
        """As `propose`, which answers each read at once; tokens may still be on the device."""
        ...


def proposing(drafting: DraftSession) -> Callable[[Sequence[int], int, torch.Generator], Reading[Proposed]]:
    """How `drafting` proposes, as reads that somebody else answers; none where it needs no model."""
    if isinstance(drafting, ProposesByReading):
        return drafting.proposing

    def at_once(tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposed]:
        return drafting.propose(tokens, gamma, generator)
        yield

    return at_once


def read_of(session: Session, unread: list[int], proposal: Proposed) -> Read:
    """The target's read of one pass: the unread end of the text, the proposal, and the tokens beside it, in one run.

    Before a tree the end of the text is read as a part of it, a stem that every path goes through; a chain with tokens
    beside it is a tree, too.
    """
    if isinstance(proposal, PendingProposal):
        before = [proposal.tokens_G.new_full((1,), token) for token in unread]
        return Read(session, torch.cat([*before, proposal.read_G]))
    beside = proposal.beside or NOTHING_BESIDE
    if proposal.parents is None and not beside.tokens:
        return Read(session, unread + proposal.tokens)
    stem, own = len(unread), range(ROOT, len(proposal.tokens) - 1) if proposal.parents is None else proposal.parents
    parents = [*range(ROOT, stem - 1), *(stem + parent for parent in (*own, *beside.parents))]
    return Read(session, unread + proposal.tokens + beside.tokens, parents)


@runtime_checkable
class ScoresAhead(Protocol):
    """A draft session whose tokens depend on where their proposal began.

    Heads that predict several tokens at once, or copies that continue from one place. `score` scores the first token of
    a proposal alone; the others are accepted less often the further ahead they are.
    """

    stops_at_end: bool  # whether a proposal ends with a token that ends the text

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        """q [L, V] as by `score`, for the first, second, ... token of a proposal, of up to `most`.

        The g-th tensor has for each token the q of proposals that began g tokens before it (the 0-th is that of
        `score`), and zeros where no proposal is so long.
        """
        ...


def after_zeros(q_LV: Tensor, rows: int) -> Tensor:
    """[rows, V]: `q_LV` is that of the last L positions; no proposal reached those before."""
    return torch.cat([q_LV.new_zeros(rows - len(q_LV), q_LV.shape[-1]), q_LV])


@runtime_checkable
class ReadsTrees(DraftSession, Protocol):
    """A draft session that knows what may follow each node of a tree, so that a tree of its tokens can be grown."""

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        """What follows `tokens`: one node, the root of a new tree of at most `levels` levels below it."""
        ...

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """The continuations of each of L more nodes of the tree.

        Nodes are numbered as they are read, from 0; `parents` are such numbers, or -1 for the end of the text.
        """
        ...

    def select(self, path: Sequence[int]) -> None:
        """The nodes of `path` are part of the text now, and the rest of the tree is forgotten."""
        ...


@runtime_checkable
class ProposesTrees(DraftSession, Protocol):
    """A draft session whose proposals are trees."""

    def select(self, path: Sequence[int]) -> None:
        """The nodes of the last proposal at the indices `path` are part of the text now. `rollback` follows."""
        ...


@runtime_checkable
class ReadsBeside(DraftSession, Protocol):
    """A draft session that has the target read tokens beside its proposals (`Proposal.beside`)."""

    def after_beside(self, logits_LV: Tensor, path: Sequence[int]) -> None:
        """Receive the target's logits [L, V] after each token that was read beside the last proposal.

        The tokens of that proposal at the indices `path` were accepted.
        """
        ...


@runtime_checkable
class SeesVerification(DraftSession, Protocol):
    """A draft session, of chains, that records the target's logits."""

    def after_verification(self, position: int, logits_LV: Tensor, rejected: bool) -> None:
        """Take in the tokens that a pass emits, from `position` of the sequence on.

        `logits_LV` are the target's own for each of them; they are overwritten after this call. `rejected`: the last of
        these tokens replaces a draft token that the target rejected.
        """
        ...


class Draft(Protocol):
    """Something that proposes, ready to start on prompts."""

    @property
    def operations(self) -> float:
        """Arithmetic operations per token, for c_hat (Def 3.10)."""
        ...

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """A session that has read the prompt."""
        ...


@runtime_checkable
class ReadsTarget(Protocol):
    """A draft that works on what the target has read and computed. Started alone, it reads the text itself."""

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """A draft session that follows `session`, the target's own.

        The caller extends and rolls back that session first.
        """
        ...


@runtime_checkable
class UsesModels(Protocol):
    """A draft that runs models of its own."""

    @property
    def models(self) -> Sequence[Model]:
        """All of them, those of drafts inside it too."""
        ...


def models_of(draft: Draft) -> Sequence[Model]:
    """The models that `draft` runs beside the target."""
    return draft.models if isinstance(draft, UsesModels) else ()


@runtime_checkable
class RollsOutProposals(Protocol):
    """A draft whose models can take the steps of a proposal at once."""

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        """Have what proposals of so many tokens need captured when the models are next got ready."""
        ...


def expect(draft: Draft, sampling: Sampling, gammas: Sequence[int]) -> None:
    """Tell `draft`, before its models are got ready for a text, how many tokens it will be asked for."""
    if isinstance(draft, RollsOutProposals):
        draft.expect(sampling, gammas)


@runtime_checkable
class Batchable(Protocol):
    """A draft that runs models of its own, other than the target."""

    def in_batch(self, rows: int) -> Draft:
        """The same draft, its models with room for `rows` sequences at a time.

        Raises:
            UserError: one of them cannot be batched.
        """
        ...


@runtime_checkable
class Grows(Protocol):
    """A draft that may take in the texts that were decoded with it. Whoever decodes hands them over between prompts."""

    @property
    def grown(self) -> int | None:
        """Tokens of texts that it has taken in; None where it takes in none."""
        ...

    def add_texts(self, decoded: Sequence[tuple[Prompt, Sequence[int]]]) -> None:
        """Take in the texts that followed these prompts."""
        ...

    def forget_texts(self) -> None:
        """Forget all of them."""
        ...


@dataclass(frozen=True)
class Lesson:
    """What a draft did after a prompt to learn from its rejected tokens."""

    rejected: int  # drafted tokens of this prompt that were rejected, each at a position to learn from
    positions: int = 0  # of this and earlier prompts that were learnt from now
    steps: int = 0  # of the optimiser
    loss: float | None = None  # KL(p || q) before the first of them, mean over the positions; None where there are none


@runtime_checkable
class Learns(Protocol):
    """A draft whose weights may change between prompts."""

    def learn(self, prompt: Prompt, completion: Sequence[int]) -> Lesson:
        """Take in where the draft was rejected in `completion`, which was decoded last, and learn if it is time to."""
        ...


@runtime_checkable
class MadeOfDrafts(Protocol):
    """A draft that drafts with others."""

    @property
    def parts(self) -> Sequence[Draft]: ...


def growing(draft: Draft) -> list[Grows]:
    """Of `draft` and those that it is made of, those that take in texts."""
    own = [draft] if isinstance(draft, Grows) and draft.grown is not None else []
    return own + [one for part in (draft.parts if isinstance(draft, MadeOfDrafts) else ()) for one in growing(part)]


def in_batch(draft: Draft, rows: int) -> Draft:
    """`draft` for `rows` sequences at a time."""
    return draft.in_batch(rows) if isinstance(draft, Batchable) else draft


def start_beside(session: Session, draft: Draft, prompt: Prompt, sampling: Sampling) -> DraftSession:
    """`draft` at work on `prompt`, beside `session`, in which the target reads the same prompt."""
    return (
        draft.start_on(session, prompt, sampling) if isinstance(draft, ReadsTarget) else draft.start(prompt, sampling)
    )
