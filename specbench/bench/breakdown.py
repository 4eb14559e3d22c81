"""A pass taken into its parts.

The parts of a pass are timed where they happen, in the loop that decodes. Alone and again and again at one place they
would be faster, since a cache then holds what in a pass has to be fetched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import median
from typing import Any
from weakref import ref

import torch

from specbench.algorithm.decoding.alone import autoregressive, speculative
from specbench.algorithm.decoding.spec import DecodingSpec, Pass
from specbench.engine.session import Model, Prompt, RollsOut, Session, get_ready
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Choice, Sampling


@dataclass(frozen=True)
class PassParts:
    """Seconds of one pass over `gamma` drafted tokens, by part."""

    whole: float
    drafting: float  # M_q over gamma tokens, one after the other, the model alone
    choosing: float  # the drafted tokens chosen from its logits
    verifying: float  # M_p over gamma + 1 tokens, the model alone
    judging: float  # p, or at T = 0 its best tokens, at gamma + 1 positions
    accepting: float  # the rule, the next token, and both caches rolled back
    overhead: float  # the rest beside the models' steps: choosing tokens for both, accepting


class TooShort(Exception):
    """No completion has a second pass that drafts all of gamma."""


def take_apart(
    target: Model, draft: ModelDraft, prompts: list[Prompt], gamma: int, tokens: int
) -> tuple[PassParts, float]:
    """The parts of a greedy pass, medians over passes, and a step of the target decoding alone: its model's part.

    Raises TooShort.
    """
    generator = torch.Generator(device=getattr(target, "device", torch.device("cpu")))
    spec = DecodingSpec.algorithm_1(Sampling(), tokens, gamma)
    checking, proposing = Watched(target), Watched(draft.model)
    watched_draft = ModelDraft(proposing, draft.vocabulary_size)
    found: list[PassParts] = []
    steps: list[float] = []
    for prompt in prompts:
        checking.runs.clear()
        autoregressive(checking, prompt, spec, generator)
        steps += [seconds for _, seconds in checking.runs]
        checking.runs.clear()
        proposing.runs.clear()
        trace = speculative(checking, watched_draft, prompt, spec, generator)
        # Not the first pass, which prepares tensors that later passes reuse.
        found += [parts for parts, count in _by_pass(trace.passes, checking, proposing)[1:] if count == gamma]
    if not found:
        raise TooShort
    return PassParts(*(median(getattr(one, field.name) for one in found) for field in fields(PassParts))), median(steps)


def _by_pass(passes: Sequence[Pass], checking: "Watched", proposing: "Watched") -> list[tuple[PassParts, int]]:
    """Each pass in parts, with the tokens that it drafted. A pass ends with the target's run."""
    found = []
    ends = [0.0, *(ended for ended, _ in checking.runs)]
    for a_pass, (before, after), (_, verifying) in zip(passes, pairwise(ends), checking.runs, strict=True):
        drafting = sum(seconds for ended, seconds in proposing.runs if before < ended <= after)
        whole = a_pass.draft_s + a_pass.verify_s + a_pass.accept_s
        choosing, judging = a_pass.draft_s - drafting, a_pass.verify_s - verifying
        overhead = whole - drafting - verifying
        parts = PassParts(whole, drafting, choosing, verifying, judging, a_pass.accept_s, overhead)
        found.append((parts, a_pass.drafted))
    return found


class Watched:
    """A model that notes when each run of its sessions ended and how long it took: (seconds on its clock, seconds)."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.vocabulary_size, self.eos_ids = model.vocabulary_size, model.eos_ids
        self.longest, self.operations = model.longest, model.operations
        self.now, self.mark = model.now, getattr(model, "mark", None)
        self.device: torch.device = getattr(model, "device", torch.device("cpu"))
        self.rolls_on_host: bool = getattr(model, "rolls_on_host", False)
        self.runs: list[tuple[float, float]] = []

    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        """See `CapturesSteps`."""
        get_ready(self.model, prompt, tokens)

    def expect_rollouts(self, choice: Choice, steps: Sequence[int]) -> None:
        """See `RollsOut`."""
        if isinstance(self.model, RollsOut):
            self.model.expect_rollouts(choice, steps)

    def start(self, prompt: Prompt) -> Session:
        """The model's own session with `extend` and `rollout` wrapped: timing adds as little as it can to a pass."""
        session = self.model.start(prompt)
        for name in ("extend", "rollout"):
            if hasattr(session, name):
                setattr(session, name, self._watched(session, getattr(type(session), name)))
        return session

    def _watched(self, session: Session, method: Callable[..., Any]) -> Callable[..., Any]:
        now, note = self.now, self.runs.append
        itself = ref(session)  # a session that holds itself would keep its buffers until Python looks for such circles

        def watched(*args: Any) -> Any:
            began = now()
            result = method(itself(), *args)
            ended = now()
            if result is not None:  # no rollout has been captured: the steps follow
                note((ended, ended - began))
            return result

        return watched
