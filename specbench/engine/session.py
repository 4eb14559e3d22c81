"""The interface of models to the rest of the project: prompts, models and sessions.

Tokens are counted in one sequence per prompt: `prompt.prefix` followed by the generated tokens. A session has read the
first `length` tokens of it. So the unread tokens are always `tokens[session.length:]`, and an off-by-one error in a
cache cannot be expressed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.engine.experts import Chosen, Experts
from specbench.errors import UserError
from specbench.kernels.rows import ALGORITHM_1, RuleInC
from specbench.sampling import TokenChoice


@dataclass(frozen=True)
class Prompt:
    """One prompt as token ids.

    `source` is read by the encoder; it is empty for decoder-only models. `prefix` is read by the decoder before the
    first generated token: the start token, or the whole prompt of a decoder-only model. It is never empty. `truncated`:
    the text was longer than a prompt may be.
    """

    source: tuple[int, ...]
    prefix: tuple[int, ...]
    truncated: bool = False


Tokens = Sequence[int] | Tensor  # numbers, or [L] on the device of the model that is to read them


def require_readable(tokens: Sequence[int], readable: int) -> None:
    """Raise UserError for a token beyond the first `readable`, which have embeddings.

    Only numbers are checked, in less than a microsecond for the few tokens of a step. Tokens in a tensor were drawn on
    the device from the model's own logits; checking them would wait for the device.
    """
    if tokens and not 0 <= min(tokens) <= max(tokens) < readable:
        token = next(token for token in tokens if not 0 <= token < readable)
        raise UserError(f"token {token} cannot be read: the model has embeddings of the tokens 0 to {readable - 1}")


class Session(ABC):
    """A model's cache of one sequence, and temporarily of a tree of candidate tokens after it.

    Methods with a body are optional. Their default suits a session without their feature.
    """

    batch: Any = None  # the batch that it is a row of

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens of the sequence that have been read; nodes of a tree do not count."""

    @abstractmethod
    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        """Read `tokens`, and return logits [len(tokens), V], row i for what follows token i.

        Without `parents` they follow the first `length` tokens, one after another. With `parents` they are nodes of a
        tree, each of which attends to the sequence, its ancestors and itself: `parents[i]` is the index in `tokens` of
        the parent of token i, or -1 for the sequence's last token that has been read. A parent comes before its
        children. A tree may be read in several calls: its nodes are numbered on, and parents are numbers of nodes.

        Raises UserError if the model cannot read a tree.
        """

    @abstractmethod
    def select(self, path: Sequence[int]) -> None:
        """Append the nodes of `path` to the sequence, and drop the rest of the tree.

        `path` leads from a child of the sequence's last token from parent to child; it may be empty.
        """

    @abstractmethod
    def rollback(self, length: int) -> None:
        """Drop all but the first `length` tokens, and the tree. No effect on a session that has read fewer."""

    def rollout(
        self, tokens: Sequence[int], choice: TokenChoice, steps: int, uniform_G: Tensor | None
    ) -> tuple[Tokens, Tensor | None] | None:
        """Read `tokens`, then each chosen token but the last, without leaving the device; see `Model.rolls_out`.

        `uniform_G` is from `choice.uniforms`.

        Returns:
            The G chosen tokens [G] and the rows [G, V] that they were drawn from, as `TokenChoice.on_device` returns
            them; tokens that are on the host as a list. None, with nothing read, where no such rollout is captured.
        """
        return None

    def states(self, start: int, stop: int) -> Tensor | None:
        """States [stop - start, D] at tokens `start` to `stop` - 1; None if they were not all read in the last run.

        Rolling back removes none of them.
        """
        return None

    def tapped(self, start: int, stop: int) -> Tensor | None:
        """States after the tapped layers (chosen when the model was loaded), concatenated; otherwise as `states`."""
        return None

    def source_states(self, layer: int = -1) -> tuple[Tensor, Tensor] | None:
        """Keys and values [1, heads, S, channels] that a decoder layer's cross-attention makes of the source.

        `layer` is counted from 0; -1 is the last. None for a decoder-only model.
        """
        return None

    def shallow(self, layers: int, skipped: frozenset[str] = frozenset()) -> "Session":
        """A session of the first `layers` layers, without the sublayers `skipped`, over this session's cache.

        It continues after this session's tokens; `engine.eager.network_parts` names sublayers. Its tokens are dropped
        when it reads further. Only one may exist at a time.
        """
        raise NotImplementedError(f"{type(self).__name__} has no layers that read ahead by themselves")


Now = Callable[[], float]
Marking = Callable[[], Any]  # of two marks the difference is seconds; less a number a mark is so much earlier


class Model(ABC):
    """Weights and their vocabulary.

    Methods with a body are optional. Their default suits a model that does not need them.
    """

    vocabulary_size: int  # tokens of the tokenizer; logits beyond it are padding
    eos_ids: frozenset[int]
    longest: int | None  # tokens that the decoder has positions for; None is no limit
    operations: float  # arithmetic operations of one decoding step, for c_hat (Def 3.10)
    now: Now  # the time in seconds, after all work queued on the device is done
    mark: Marking | None = None  # records the time without waiting for that work
    device = torch.device("cpu")
    experts: Experts | None = None  # if its runs choose among experts, and note which
    network: Any = None  # the `transformers` module, of an engine
    beginnings: Any = None  # `engine.beginnings.Beginnings` that sessions copy; None: each reads all of its prompt
    rolls_out = False  # sessions run the steps of a proposal on the device, each on the token chosen in the step before

    @property
    def recurrent_layers(self) -> int:
        """How many layers have a recurrent state."""
        return 0

    @abstractmethod
    def start(self, prompt: Prompt) -> Session:
        """A session that has read all of the prompt but the prefix's last token."""

    def own_prompt(self, prompt: Prompt) -> Prompt:
        """`prompt` as the innermost model reads it."""
        return prompt

    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        """Capture, before timing starts, what decoding up to `tokens` tokens after `prompt` will need."""

    def expect_rollouts(self, choice: TokenChoice, steps: Sequence[int]) -> None:
        """Capture rollouts of up to so many steps by `choice` at the next `get_ready`, instead of earlier requests."""

    def repeat(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`function` of `inputs`, in one launch if the engine has made one of it.

        A later pass's function is equal to an earlier pass's, and hashable. Its attribute `by_row`, if it has one, says
        that a row of the result depends only on the same row of the inputs.
        """
        return function(*inputs)

    def capture_repeated(self) -> None:
        """Capture the functions that `repeat` has run as they are; `get_ready` does it as well."""

    def passes(
        self, session: Session, draft: Session | None, plan: "PassPlan", tokens: list[int]
    ) -> "PassesInCalls | None":
        """Passes with `session`, one of this model, and `draft`, a draft model's; None if it cannot.

        Without `draft`, the target decodes by itself at gamma 0, and otherwise verifies tokens that are drafted
        elsewhere.
        """
        return None

    def shallow(self, layers: int, skipped: frozenset[str] = frozenset()) -> "Model":
        """The first `layers` layers without the sublayers `skipped`, the final norm and the head: the same weights."""
        raise NotImplementedError(f"{type(self).__name__} has no layers that run alone")

    def in_batch(self, rows: int) -> "Model":
        """This model with room for `rows` sequences at a time. Raises UserError if it cannot be batched."""
        raise UserError(f"batch={rows}: {type(self).__name__} reads one sequence at a time; use batch=1")


class WrappedModel(Model):
    """`model`, with something done to what its sessions read or return; its clock, device and size are the same."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.vocabulary_size, self.longest, self.operations = model.vocabulary_size, model.longest, model.operations
        self.now, self.mark, self.device = model.now, model.mark, model.device

    @property
    def eos_ids(self) -> frozenset[int]:
        return self.model.eos_ids

    @eos_ids.setter
    def eos_ids(self, ends: frozenset[int]) -> None:
        self.model.eos_ids = ends

    def own_prompt(self, prompt: Prompt) -> Prompt:
        return self.model.own_prompt(prompt)

    def repeat(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        return self.model.repeat(function, *inputs)

    def capture_repeated(self) -> None:
        self.model.capture_repeated()

    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        self.model.get_ready(prompt, tokens)


def innermost(model: Model) -> Model:
    """The model of an engine, inside those that translate or process its logits."""
    while isinstance(model, WrappedModel):
        model = model.model
    return model


Repeat = Callable[..., Tensor]  # `Model.repeat`


def as_it_is(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """A `Repeat` that calls the function."""
    return function(*inputs)


def warm_up_and_capture(model: Model, prompt: Prompt, tokens: int, steps: Iterable[Callable[[], object]]) -> None:
    """Run each of `steps` of `model` once, untimed, and capture what they asked for, before any of them is timed.

    An engine captures a step only between completions: one of a shape that it has not met runs uncaptured.
    """
    for step in steps:
        step()
    model.get_ready(prompt, tokens)


@dataclass(frozen=True)
class PassPlan:
    """Settings of passes on chains. At gamma 0 a pass is a step of the target alone."""

    gamma: int
    end: int  # maximum number of tokens, the prefix included
    drafting: TokenChoice
    choosing: TokenChoice  # of the target
    least: float = 0.0  # a residual of no more mass is rounding
    rule: RuleInC = ALGORITHM_1


class DonePass(NamedTuple):
    """A pass of Algorithm 1, whoever ran it, and marks of when drafting, verifying and accepting ended.

    `path` are the accepted tokens of `drafted`, by index. `operations` and `parents` are as in a proposal, `experts`
    are the ones that the target's run chose. `draft_ran_s` and `target_ran_s` are the seconds of the forward passes.
    """

    drafted: list[int]
    path: Sequence[int]
    emitted: list[int]
    drafted_at: Any
    verified_at: Any
    over_at: Any
    operations: float | None = None
    parents: Sequence[int] | None = None
    experts: Chosen | None = None
    draft_ran_s: float = 0.0
    target_ran_s: float = 0.0


MOST_UNREAD = 2  # tokens of a text, before one call verifies what follows it


class PassesInCalls(Protocol):
    """Runs passes over one text: whole ones several in one call, or all of one but the drafting.

    Its sessions have then read all but the newest token, or for `verify` all but MOST_UNREAD. Both draw the same
    numbers from `generator` as single passes would, in their order, and raise FloatingPointError if p or q is not
    finite.
    """

    def verify(
        self, tokens: list[int], drafted: list[int], q_GV: Tensor | None, asked: int, generator: torch.Generator
    ) -> DonePass:
        """Verify tokens that were drafted after `tokens`, of `asked` that the draft drew numbers for.

        `q_GV` are the fp32 rows they were drawn from; None if each had all mass. The session then holds the states of
        what it read, as after a run of its own.
        """
        ...

    def p_rows(self, count: int) -> Tensor:
        """The rows [count, V] of p at the first tokens of the last pass that was verified, at T > 0."""
        ...

    def run(self, length: int, generator: torch.Generator) -> list[DonePass]:
        """The next passes after `length` tokens, at least one. The last may end the sequence."""
        ...


def up_to_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """`tokens` up to the first end of sequence, inclusive."""
    for index, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: index + 1]
    return tokens
