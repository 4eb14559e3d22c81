"""The types of a recommendation's translation to an engine's settings."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

INDENT = "  "
LOOKUP_DIFFERS = (
    "n-gram matching differs in detail from draft=lookup (which run of which place is copied), so the acceptance may "
    "differ from the recommendation's"
)
ENCODER_DECODER = (
    "the target is an encoder-decoder, and {engine} documents these settings for decoder-only models; its list of "
    "models says what it serves"
)


class NotExpressible(Exception):
    """This engine has no setting for the recommendation; the message is the reason."""


@dataclass(frozen=True)
class Span:
    """Batch sizes `first` to `last` (None: and all above), and the gamma for them; 0 drafts nothing."""

    first: int
    last: int | None
    gamma: int


@dataclass(frozen=True)
class Weights:
    """Where an engine finds a model: a repository on the hub, or a folder."""

    place: str
    revision: str | None = None


@dataclass(frozen=True)
class Recommended:
    """One candidate of a recommendation, in plain values.

    kind: of the draft (`config.drafts`); `draft` are its weights if it is a model, `options` its keys.
    rule: the acceptance rule, as tables name it.
    top_k, top_p: None where they are off.
    schedule: gamma by batch size, if the user gave one; in order, without gaps, from batch size 1.
    """

    target: Weights
    kind: str
    draft: Weights | None
    options: Mapping[str, Any]
    gamma: int
    rule: str
    temperature: float
    top_k: int | None = None
    top_p: float | None = None
    schedule: tuple[Span, ...] = ()
    encoder_decoder: bool = False

    @property
    def longest(self) -> int:
        """The largest gamma that is asked for."""
        return max((span.gamma for span in self.schedule), default=self.gamma)


@dataclass(frozen=True)
class Settings:
    """The settings of an engine.

    Attributes:
        command: the command to run, for a shell or in Python.
        values: the same names as JSON data.
        file: a file that the command reads, by its name, if there is one.
    """

    command: str
    values: Mapping[str, Any]
    file: tuple[str, str] | None = None
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class ServingEngine:
    """An engine, and how a recommendation is said to it.

    checked: the version that the names were checked against. page: its documentation. make: raises `NotExpressible`.
    """

    name: str
    title: str
    checked: str
    page: str
    make: Callable[[Recommended], Settings]


def require_rule(wanted: Recommended, engine: str, known: Sequence[str] = ("exact",)) -> None:
    """Raise NotExpressible for an acceptance rule that `engine` has not."""
    if wanted.rule not in known:
        raise NotExpressible(f"{engine} has no accept={wanted.rule}")


def weights_of_draft(wanted: Recommended, engine: str) -> Weights:
    """The draft's weights. Raises NotExpressible where the draft is no model that `engine` could load."""
    if wanted.kind != "model" or wanted.draft is None:
        raise NotExpressible(f"{engine} has no draft like {wanted.kind}")
    return wanted.draft


def no_schedule(wanted: Recommended, engine: str) -> list[str]:
    """The note that a schedule by batch size was asked for and `engine` has none for these drafts."""
    if not wanted.schedule:
        return []
    return [f"{engine} has no schedule by batch size for such a draft: this is γ={wanted.gamma} at every size"]


def shell(*parts: Sequence[str]) -> str:
    """A shell command: the first of `parts` on the first line, each other on one of its own."""
    return f" \\\n{INDENT}".join(shlex.join(part) for part in parts)


def flags(values: Mapping[str, Any]) -> list[list[str]]:
    """`--name value` of each entry."""
    return [[name, str(value)] for name, value in values.items()]
