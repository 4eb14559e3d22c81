"""What is to be expressed in an engine's settings, and the settings that express it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.records.choosing import LoadSpan


class NotExpressible(Exception):
    """This engine has no setting for the recommendation; the message is the reason."""


@dataclass(frozen=True)
class Weights:
    """Where an engine finds a model: a repository on the hub, or a folder."""

    place: str
    revision: str | None = None


@dataclass(frozen=True)
class Recommended:
    """One candidate of a recommendation, in plain values.

    kind: of the draft (`config.drafts`); `draft` are its weights if it has some that engines read, `options` its keys.
    rule: the acceptance rule, as tables name it.
    top_k, top_p: None if they are off.
    processing: other changes of logits, as keys of `sampling`; None without any.
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
    processing: str | None = None
    schedule: tuple[LoadSpan, ...] = ()
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
    notes: Sequence[str] = ()
