"""The interface of a draft.

Shapes: L positions, V tokens of the vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import PendingProposal, Proposal, UnverifiedTokens, Verdict
from specbench.algorithm.continuations import Continuations
from specbench.engine.session import (
    Model,
    Prompt,
    Read,
    Reading,
    Session,
    answered,
    is_a,
    up_to_end,
)
from specbench.sampling import Choice, Sampling
from specbench.theory.trees import ROOT

Proposed = Proposal | PendingProposal
NONE_UNVERIFIED = UnverifiedTokens([], [])


class DraftSession(Protocol):
    """The state of a draft for one sequence."""

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """Propose up to `gamma` tokens after `tokens` (prefix and all tokens generated so far)."""

    def rollback(self, length: int) -> None:
        """Drop all but the first `length` tokens read."""

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q [L, V] for each of the L tokens after the prefix, by teacher forcing.

        The session must be new, or have scored the tokens before `prefix_length`: long sequences are scored in parts.
        """


class Stateless:
    """The part of a draft session that has read nothing by itself: there is nothing to accept and nothing to drop."""

    def select(self, path: Sequence[int]) -> None:
        """Nothing to do."""

    def rollback(self, length: int) -> None:
        """Nothing to do."""


@runtime_checkable
class ProposesByReading(DraftSession, Protocol):
    """A draft session that needs runs of a model to propose, which its driver may answer for a batch at once."""

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposed]:
        """As `propose`, which answers each read at once; tokens may still be on the device."""

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return on_host(answered(self.proposing(tokens, gamma, generator)))


def on_host(proposal: Proposed) -> Proposal:
    """`proposal`, in one copy if it is on the device. Raises FloatingPointError if its q is not finite."""
    return proposal.brought() if isinstance(proposal, PendingProposal) else proposal


def proposing(drafting: DraftSession) -> Callable[[Sequence[int], int, torch.Generator], Reading[Proposed]]:
    """How `drafting` proposes, as reads for a driver to answer; no reads if it needs no model."""
    if is_a(drafting, ProposesByReading):
        return drafting.proposing

    def at_once(tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposed]:
        return drafting.propose(tokens, gamma, generator)
        yield

    return at_once


def read_of(session: Session, unread: list[int], proposal: Proposed) -> Read:
    """The target's read of one pass: unread tokens of the sequence, the proposal, and tokens read with it, in one run.

    Unread tokens before a tree are read as the stem of the tree, which every path goes through; a chain with tokens
    beside it is read as a tree, too.
    """
    if isinstance(proposal, PendingProposal):
        before = [proposal.tokens_G.new_full((1,), token) for token in unread]
        return Read(session, torch.cat([*before, proposal.read_G]))
    unverified = proposal.unverified or NONE_UNVERIFIED
    if proposal.parents is None and not unverified.tokens:
        return Read(session, unread + proposal.tokens)
    stem, own = len(unread), range(ROOT, len(proposal.tokens) - 1) if proposal.parents is None else proposal.parents
    parents = [*range(ROOT, stem - 1), *(stem + parent for parent in (*own, *unverified.parents))]
    return Read(session, unread + proposal.tokens + unverified.tokens, parents)


@runtime_checkable
class ScoresAhead(Protocol):
    """A draft session whose q depends on where the proposal began.

    Heads that predict several tokens at once, or copies that continue from one place. `score` only scores the
    first token of a proposal; later tokens are accepted less often.
    """

    stops_at_end: bool  # whether a proposal ends with a token that ends the text

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q of the first token of a proposal, at each position; zeros where nothing is proposed."""
        return next(self.score_ahead(tokens, prefix_length, 1))

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        """q [L, V] as by `score`, for the first, second, ... token of a proposal, of up to `most`.

        The g-th tensor has for each token the q of proposals that began g tokens before it (the 0-th is that of
        `score`), and zeros where no proposal is so long.
        """


def after_zeros(q_LV: Tensor, rows: int) -> Tensor:
    """[rows, V]: `q_LV` is that of the last L positions; no proposal reached those before."""
    return torch.cat([q_LV.new_zeros(rows - len(q_LV), q_LV.shape[-1]), q_LV])


@runtime_checkable
class ReadsTrees(DraftSession, Protocol):
    """A draft session that can propose the children of each node of a tree."""

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        """The continuations of `tokens`, the root of a new tree of at most `levels` levels."""

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """The continuations of each of L more nodes of the tree.

        Nodes are numbered in the order in which they are read, from 0; `parents` are such numbers, or -1 for the root.
        """

    def select(self, path: Sequence[int]) -> None:
        """Accept the nodes of `path` into the sequence, and drop the rest of the tree."""


@runtime_checkable
class ProposesTrees(DraftSession, Protocol):
    """A draft session whose proposals are trees."""

    def select(self, path: Sequence[int]) -> None:
        """Accept the nodes of the last proposal at the indices `path` into the sequence. `rollback` follows."""


@runtime_checkable
class ReadsUnverified(DraftSession, Protocol):
    """A draft session that lets the target read further tokens with its proposals (`Proposal.unverified`)."""

    def after_unverified(self, logits_LV: Tensor, path: Sequence[int]) -> None:
        """Receive the target's logits [L, V] after each token that was read beside the last proposal.

        The tokens of that proposal at the indices `path` were accepted.
        """


@runtime_checkable
class Follows(DraftSession, Protocol):
    """A draft session that needs what the target returned in each pass, those with another draft's proposal too."""

    def follow(self, tokens: Sequence[int]) -> None:
        """Read `tokens`, after which another draft may propose: the target's next run replaces its last."""


@runtime_checkable
class SeesVerification(DraftSession, Protocol):
    """A draft session, of chains, that records the target's logits."""

    def after_verification(self, position: int, logits_LV: Tensor, rejected: bool) -> None:
        """Record the tokens that a pass emits, from `position` of the sequence on.

        `logits_LV` are the target's own for each of them; they are overwritten after this call. `rejected`: the last of
        these tokens replaces a draft token that the target rejected.
        """


@runtime_checkable
class OfOneModel(DraftSession, Protocol):
    """A draft session whose proposals are chains that one model's session chooses."""

    @property
    def chooses(self) -> tuple[Session, Choice] | None:
        """That session and the choice; None if anything else decides, such as a confidence."""


class Draft(Protocol):
    """A draft, ready to start on prompts."""

    @property
    def operations(self) -> float:
        """Arithmetic operations per token, for c_hat (Def 3.10)."""

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """A session that has read the prompt."""


def operations_of(draft: Draft, counted: float | None, tokens: int) -> float:
    """Operations that drafting took: those `counted`, or of `tokens` tokens where they do not depend on the draws."""
    return tokens * draft.operations if counted is None else counted


@runtime_checkable
class ReadsTarget(Protocol):
    """A draft that uses the target's own session. Started without a session, it opens one of its own."""

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """A draft session that follows `session`, the target's own.

        The caller extends and rolls back that session first.
        """


class FollowsTarget(ABC):
    """A draft that follows the session of `target`, or one of its own, in which it reads the text itself."""

    target: Model

    @abstractmethod
    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """See `ReadsTarget`."""

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        return self.start_on(self.target.start(prompt), prompt, sampling)


@runtime_checkable
class UsesModels(Protocol):
    """A draft that runs models of its own."""

    @property
    def models(self) -> Sequence[Model]:
        """All models, including those of its parts."""


def models_of(draft: Draft) -> Sequence[Model]:
    """The models that `draft` runs, without the target."""
    return draft.models if is_a(draft, UsesModels) else ()


@runtime_checkable
class RollsOutProposals(Protocol):
    """A draft whose models can run all steps of a proposal at once."""

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        """Capture what proposals of so many tokens need when the models are prepared next."""


def expect(draft: Draft, sampling: Sampling, gammas: Sequence[int]) -> None:
    """Announce, before the models of `draft` are prepared, how many tokens will be requested."""
    if is_a(draft, RollsOutProposals):
        draft.expect(sampling, gammas)


@runtime_checkable
class Batchable(Protocol):
    """A draft that runs models of its own, other than the target."""

    def in_batch(self, rows: int) -> Draft:
        """The same draft, its models with room for `rows` sequences at a time.

        Raises UserError if one of them cannot be batched.
        """


@runtime_checkable
class Grows(Protocol):
    """A draft whose store can grow by decoded completions, which are added between prompts."""

    @property
    def grown(self) -> int | None:
        """Tokens of completions in its store; None if it does not grow."""

    def add_texts(self, decoded: Sequence[tuple[Prompt, Sequence[int]]]) -> None:
        """Add the completions of these prompts to the store."""

    def forget_texts(self) -> None:
        """Remove all added completions."""


@dataclass(frozen=True)
class Lesson:
    """The record of a draft's learning after a prompt."""

    rejected: int  # drafted tokens of this prompt that were rejected, each at a position to learn from
    positions: int = 0  # of this and earlier prompts that were learnt from now
    steps: int = 0  # of the optimiser
    loss: float | None = None  # KL(p || q) before the first of them, mean over the positions; None where there are none


@runtime_checkable
class Learns(Protocol):
    """A draft whose weights may change between prompts."""

    def learn(self, prompt: Prompt, completion: Sequence[int]) -> Lesson:
        """Store the draft's rejections in `completion`, the last to be decoded, and update the weights when due."""


@runtime_checkable
class MadeOfDrafts(Protocol):
    """A draft that is made of other drafts."""

    @property
    def parts(self) -> Sequence[Draft]: ...


def growing(draft: Draft) -> list[Grows]:
    """`draft` and its parts, as far as they can grow."""
    own = [draft] if isinstance(draft, Grows) and draft.grown is not None else []
    return own + [one for part in (draft.parts if isinstance(draft, MadeOfDrafts) else ()) for one in growing(part)]


class Stores:
    """The stores of drafts that grow, as full as they are before each of `texts` in a run."""

    def __init__(self, drafts: Iterable[Draft], texts: Sequence[tuple[Prompt, Sequence[int]]]) -> None:
        self._stores = list({id(one): one for draft in drafts for one in growing(draft)}.values())
        self._texts = texts
        self._added: int | None = None  # what the stores hold before the first call is not known

    def before(self, place: int) -> None:
        """Hold the texts before `place`, and no others."""
        if self._added is None or place < self._added:
            for store in self._stores:
                store.forget_texts()
            self._added = 0
        for store in self._stores:
            store.add_texts(self._texts[self._added : place])
        self._added = place


def in_batch(draft: Draft, rows: int) -> Draft:
    """`draft` for `rows` sequences at a time."""
    return draft.in_batch(rows) if isinstance(draft, Batchable) else draft


def start_draft(session: Session, draft: Draft, prompt: Prompt, sampling: Sampling) -> DraftSession:
    """Start `draft` on `prompt`; `session` is the target's session on the same prompt."""
    return draft.start_on(session, prompt, sampling) if is_a(draft, ReadsTarget) else draft.start(prompt, sampling)


class Drafting:
    """A draft at work beside the target's session on one sequence."""

    def __init__(
        self, target: Session, draft: Draft, prompt: Prompt, sampling: Sampling, eos_ids: frozenset[int]
    ) -> None:
        """`target` is the target's session on the same prompt, and `eos_ids` are the tokens that end a completion."""
        self.target, self.eos_ids = target, eos_ids
        self.own = start_draft(target, draft, prompt, sampling)
        self.propose = proposing(self.own)
        self.chooses = self.own.chooses if is_a(self.own, OfOneModel) else None
        self._unread = self._size = 0  # of the pass's run of the target: tokens before the proposal, and of it
        # Asked once a completion, not in each pass.
        self._watching = self.own if is_a(self.own, SeesVerification) else None
        self._on_trees = self.own if is_a(self.own, ProposesTrees) else None
        self._with_unverified = self.own if is_a(self.own, ReadsUnverified) else None
        # Of the target's runs: its session, its logits, or what it read.
        self.needs_target = is_a(draft, ReadsTarget) or self._watching is not None or is_a(self.own, Follows)

    def read(self, tokens: list[int], proposal: Proposed) -> Read:
        """The target's run that verifies `proposal` after `tokens`."""
        unread = tokens[self.target.length :]
        self._unread, self._size = len(unread), proposal.size
        return read_of(self.target, unread, proposal)

    def commit(self, tokens: list[int], proposal: Proposal, verdict: Verdict, logits_LV: Tensor) -> int:
        """Append what a pass emits to `tokens`, up to an end, and bring the target and the draft there.

        Both keep all but the newest token, which neither has read, and drop what was rejected or read beside.
        `logits_LV` are those of the target's run. Returns the number of tokens emitted.
        """
        path, token = verdict
        emitted_tokens = up_to_end([*(proposal.tokens[node] for node in path), token], self.eos_ids)
        tokens += emitted_tokens
        emitted = len(emitted_tokens)
        accepted, unverified = path[: emitted - 1], proposal.unverified
        end = len(logits_LV) - (0 if unverified is None else len(unverified.tokens))
        if self._watching is not None:
            own_LV = logits_LV[end - self._size - 1 : end][:emitted]
            rejected = emitted == len(path) + 1 <= len(proposal.tokens)
            self._watching.after_verification(len(tokens) - emitted, own_LV, rejected)
        if proposal.parents is not None or unverified is not None:
            self.target.select([*range(self._unread), *(self._unread + node for node in accepted)])
        if proposal.parents is not None:
            assert self._on_trees is not None
            self._on_trees.select(accepted)
        if unverified is not None:
            assert self._with_unverified is not None
            self._with_unverified.after_unverified(logits_LV[end:], accepted)
        self.target.rollback(len(tokens) - 1)
        self.own.rollback(len(tokens) - 1)
        return emitted
