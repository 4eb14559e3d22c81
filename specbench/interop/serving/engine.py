"""An engine that is timed from outside, by three functions: a step, a verification of n tokens, a whole text."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from specbench.analysis.costs.probe import Timed
from specbench.engine.session import Prompt


@dataclass(frozen=True)
class Generated:
    """A completion by an engine: its tokens, its seconds from call to end, and its text in any comparable form."""

    tokens: int
    seconds: float
    text: Hashable


class Engine(Protocol):
    """A target with one draft, as some engine runs them. Times are seconds, on one clock, with all work done."""

    name: str  # with its version
    must_be_equal: bool  # whether there is no speedup where a draft changes a completion: rounding is not told apart

    def time_steps(self, begun: Prompt, tokens: int) -> list[float]:
        """Decode up to `tokens` tokens after `begun` without a draft; the seconds of each step.

        The first begins with the call: it holds the encoder, the prefill and all that is done once a text, at its end
        too.
        """
        ...

    def time_verifications(self, begun: Prompt, gamma: int, tokens: int) -> list[Timed]:
        """Decode up to `tokens` tokens after `begun` with `gamma` drafted tokens a pass; the parts of each pass.

        `draft_s` is all that drafting takes, `verify_s` the target's run over the drafted tokens and one more,
        `accept_s` the rest of the pass. The first begins with the call, as a first step does. An engine that cannot
        watch its own passes returns one, with what it can time of the parts.
        """
        ...

    def generate(self, prompt: Prompt, gamma: int | None, seed: int) -> Generated:
        """The whole text after `prompt`, with `gamma` drafted tokens a pass, or without a draft (None)."""
        ...
