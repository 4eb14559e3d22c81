"""The interface of a draft.

Shapes: L positions, V tokens of the vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import PendingProposal, Proposal, UnverifiedTokens
from specbench.algorithm.continuations import Continuations
from specbench.engine.reads import Read, Reading, answered
from specbench.engine.session import Model, Prompt, Session
from specbench.errors import UserError
from specbench.records.prompt_sums import Lesson
from specbench.sampling import Sampling, TokenChoice
from specbench.theory.trees import ROOT

AnyProposal = Proposal | PendingProposal
NONE_UNVERIFIED = UnverifiedTokens([], [])


class DraftSession(ABC):
    """The state of a draft for one sequence.

    Methods with a body are optional. Their default suits a draft that does not need them.
    """

    stops_at_end = True  # whether a proposal ends with a token that ends the text

    @abstractmethod
    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """Propose up to `gamma` tokens after `tokens` (prefix and all tokens generated so far)."""

    @abstractmethod
    def rollback(self, length: int) -> None:
        """Drop all but the first `length` tokens read."""

    @abstractmethod
    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q [L, V] for each of the L tokens after the prefix, by teacher forcing.

        If q depends on where the proposal began, it is the q of a proposal's first token, and zeros at positions
        without a proposal. The session must be new, or have scored the tokens before `prefix_length`: long sequences
        are scored in parts.
        """

    # Of drafts that run a model, whose reads of a batch are answered at once.

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[AnyProposal]:
        """Propose by reads that a driver answers (`ProposesByReading`); tokens may still be on the device."""
        return self.propose(tokens, gamma, generator)
        yield

    @property
    def chooses(self) -> tuple[Session, TokenChoice] | None:
        """The one model's session that chooses the tokens of its chains, and how, so that an engine may do it.

        None if anything else decides, such as a confidence.
        """
        return None

    # Of drafts whose q depends on where the proposal began.

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        """q [L, V] as by `score`, for the first, second, ... token of a proposal, of up to `most`. See `ScoresAhead`.

        The g-th tensor has for each token the q of proposals that began g tokens before it, and zeros where no proposal
        is so long. The 0-th is the result of `score`.
        """
        return repeat(self.score(tokens, prefix_length), most)

    # Of drafts whose config `grows_trees`.

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        """The continuations of `tokens`, the root of a new tree of at most `levels` levels."""
        raise NotImplementedError(f"{type(self).__name__} proposes only chains")

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """The continuations of L more nodes of the tree.

        Nodes are numbered in the order in which they are read, from 0; `parents` are such numbers, or -1 for the root.
        """
        raise NotImplementedError(f"{type(self).__name__} proposes only chains")

    def select(self, path: Sequence[int]) -> None:
        """Accept the nodes of `path` into the sequence, and drop the rest of the tree. `rollback` follows.

        Of a draft that proposes whole trees `path` are indices into its last proposal.
        """
        raise NotImplementedError(f"{type(self).__name__} proposes only chains")

    # Of drafts that use the target's runs.

    def follow(self, tokens: Sequence[int]) -> None:
        """Read `tokens`, after which another draft may propose: the target's next run replaces its last."""

    def after_unverified(self, logits_LV: Tensor, path: Sequence[int]) -> None:
        """Receive the target's logits [L, V] after each token that was read beside the proposal (its `unverified`).

        The tokens of that proposal at the indices `path` were accepted.
        """

    def after_verification(self, position: int, logits_LV: Tensor, rejected: bool) -> None:
        """Record the tokens of a chain that a pass emits, from `position` of the sequence on.

        `logits_LV` are the target's own for each of them; they are overwritten after this call. `rejected`: the last of
        these tokens replaces a draft token that the target rejected.
        """

    @property
    def watches(self) -> bool:
        """Whether it wants `after_verification`, so that no engine may run passes in calls."""
        return overrides(self, DraftSession.after_verification)

    # Of drafts whose config `matches`.

    def matched(self, tokens: Sequence[int]) -> int:
        """How many of the last tokens of `tokens` a proposal after them would continue; 0 if there is none."""
        return 0


def overrides(one: object, method: Callable[..., Any]) -> bool:
    """Whether the class of `one` has its own `method`, an optional one of a base class."""
    return getattr(type(one), method.__name__) is not method


def require_base(one: object, base: type, key: str) -> None:
    """Raise UserError if the class of `one`, which another package may have written, does not extend `base`."""
    if not isinstance(one, base):
        raise UserError(
            f"{key}: {type(one).__name__} must extend {base.__module__}.{base.__name__}, which has the defaults of "
            "methods that it does not define"
        )


class Stateless(DraftSession):
    """A draft session that has read nothing by itself: there is nothing to accept and nothing to drop."""

    def select(self, path: Sequence[int]) -> None:
        """Nothing to do."""

    def rollback(self, length: int) -> None:
        """Nothing to do."""


class ProposesByReading(DraftSession):
    """A draft session that needs runs of a model to propose, which its driver may answer for a batch at once."""

    @abstractmethod
    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[AnyProposal]:
        """Propose by reads that a driver answers; `propose` answers each at once. Tokens may still be on the device."""

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return on_host(answered(self.proposing(tokens, gamma, generator)))


class ScoresAhead(DraftSession):
    """A draft session whose q depends on where the proposal began.

    Heads that predict several tokens at once, or copies that continue from one place. `score` only scores the
    first token of a proposal; later tokens are accepted less often.
    """

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return next(self.score_ahead(tokens, prefix_length, 1))

    @abstractmethod
    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]: ...


def on_host(proposal: AnyProposal) -> Proposal:
    """`proposal`, in one copy if it is on the device. Raises FloatingPointError if its q is not finite."""
    return proposal.brought() if isinstance(proposal, PendingProposal) else proposal


def read_of(session: Session, unread: list[int], proposal: AnyProposal) -> Read:
    """The target's read of one pass: unread tokens of the sequence, the proposal, and tokens read with it, in one run.

    Unread tokens before a tree are read as the stem of the tree, which every path goes through. A chain with tokens
    beside it is also read as a tree.
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


def after_zeros(q_LV: Tensor, rows: int) -> Tensor:
    """[rows, V]: `q_LV` at the last L positions, zeros at earlier ones, which no proposal reached."""
    return torch.cat([q_LV.new_zeros(rows - len(q_LV), q_LV.shape[-1]), q_LV])


class Draft(ABC):
    """A draft, ready to start on prompts.

    Methods with a body are optional. Their default suits a draft that does not need them.
    """

    operations: float  # arithmetic operations per token, for c_hat (Def 3.10)
    models: Sequence[Model] = ()  # those that it runs, its parts' included, without the target
    parts: Sequence["Draft"] = ()  # the drafts that it is made of

    @abstractmethod
    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """A session that has read the prompt."""

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """Start a draft that uses `session`, the target's own on the same prompt. See `FollowsTarget`.

        The caller extends and rolls back that session first.
        """
        return self.start(prompt, sampling)

    @property
    def starts_on_target(self) -> bool:
        """Whether it uses the target's own session."""
        return overrides(self, Draft.start_on)

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        """Prepare for proposals of so many tokens, before the models are made ready (`Model.get_ready`)."""

    def in_batch(self, rows: int) -> "Draft":
        """This draft, its models with room for `rows` sequences at a time.

        Raises UserError if one of them cannot be batched.
        """
        return self

    @property
    def grown(self) -> int | None:
        """Tokens of completions in its store, which are added between prompts; None if it has no store that grows."""
        return None

    def add_texts(self, decoded: Sequence[tuple[Prompt, Sequence[int]]]) -> None:
        """Add the completions of these prompts to the store."""

    def forget_texts(self) -> None:
        """Remove all added completions."""

    def stores(self) -> list["Draft"]:
        """This draft and its parts, as far as they have a store that grows."""
        return [*([] if self.grown is None else [self]), *(one for part in self.parts for one in part.stores())]

    def learn(self, prompt: Prompt, completion: Sequence[int]) -> Lesson | None:
        """Store the draft's rejections in `completion`, the last to be decoded, and update the weights when due.

        None for a draft that does not learn.
        """
        return None


def operations_of(draft: Draft, counted: float | None, tokens: int) -> float:
    """Operations that drafting took: `counted`, or those for `tokens` tokens if they do not depend on the draws."""
    return tokens * draft.operations if counted is None else counted


class FollowsTarget(Draft):
    """A draft that follows the session of `target`, or one of its own, in which it reads the text itself."""

    target: Model

    @abstractmethod
    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """Start on the target's own session, as in `Draft.start_on`, whose cache and states it then finds there."""

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        return self.start_on(self.target.start(prompt), prompt, sampling)


class Stores:
    """The stores of drafts that grow, as full as they are before each of `texts` in a run."""

    def __init__(self, drafts: Iterable[Draft], texts: Sequence[tuple[Prompt, Sequence[int]]]) -> None:
        self._stores = list({id(one): one for draft in drafts for one in draft.stores()}.values())
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
