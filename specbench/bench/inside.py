"""A step and a pass taken apart: a step against the time its weights take to be read, a pass into its parts."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from specbench.acceptance import accept_exact
from specbench.bench.clock import medians
from specbench.decoding import speculative
from specbench.drafts import ModelDraft
from specbench.models import Model, Prompt, Session
from specbench.sampling import Sampling, standardise

REPEATS = 100


def stepping(session: Session, tokens: int) -> Callable[[], Any]:
    """One run over `tokens` new tokens, and back, so that it can be done again at the same place."""
    new = [2 + 3 * index for index in range(tokens)]

    def step() -> None:
        before = session.length
        session.extend(new)
        session.rollback(before)

    return step


def weight_bytes(model: Model, dtype: torch.dtype) -> float:
    """Bytes of weights that one decoding step reads."""
    return model.operations / 2 * dtype.itemsize


def bytes_per_second(size: float, device: torch.device, now: Callable[[], float]) -> float:
    """What this device reads and writes in a second when it copies `size` bytes: the weights' size, so that what fits
    a cache may profit from it here as there."""
    source = torch.ones(max(1, int(size)), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / medians({"copy": lambda: target.copy_(source)}, now, 30)["copy"]


@dataclass(frozen=True)
class PassParts:
    """Seconds of one pass over `gamma` drafted tokens, by part; medians."""

    gamma: int
    whole: float  # from the end of one pass to the end of the next, as decoding runs
    target_step: float  # M_p over one token
    draft_step: float  # M_q over one token, the model alone
    drafting: float  # M_q over one token and its token chosen, in a proposal of gamma: what c is made of
    verifying: float  # M_p over gamma + 1 tokens, the model alone
    standardising: float  # p at gamma + 1 positions
    accepting: float  # Algorithm 1's rule and the next token

    @property
    def overhead(self) -> float:
        """What is left of a pass beside gamma draft steps and the target's run, where a step ends with its
        distribution and its token, as it does in c and in v."""
        return self.whole - self.gamma * self.drafting - self.verifying - self.standardising


def take_apart(target: Model, draft: ModelDraft, prompts: list[Prompt], gamma: int, tokens: int) -> PassParts:
    """The parts of a greedy pass. Each is timed alone, in turn with the others, at one place in a text."""
    greedy = Sampling()
    generator = torch.Generator(device=_device(target))
    passes: list[float] = []
    for prompt in prompts:
        trace = speculative(
            target, draft, prompt, gamma=gamma, sampling=greedy, max_new_tokens=tokens, generator=generator
        )
        # Not the first pass, which sets up what later ones reuse.
        passes += [p.draft_s + p.verify_s + p.accept_s for p in trace.passes[1:] if p.drafted == gamma]
    prompt = prompts[0]
    checked, drafted = target.start(prompt), draft.model.start(prompt)
    proposing = draft.start(prompt, greedy)
    fed = [*prompt.prefix, *([5] * 8)]
    for session in (checked, drafted):
        session.extend(fed[session.length :])
    proposing.propose(fed, 1, generator)
    p_GV = standardise(logits := checked.extend([5] * (gamma + 1)), greedy, target.vocabulary_size)
    q_GV, guessed = p_GV[:-1], p_GV[:-1].argmax(-1).tolist()
    checked.rollback(len(fed))

    def propose() -> None:
        proposing.rollback(len(fed) - 1)
        asked = gamma
        while asked:  # a draft stops at an end of sequence, which says nothing here
            asked -= max(1, len(proposing.propose(fed, asked, generator).tokens))
            proposing.rollback(len(fed) - 1)

    found = medians(
        {
            "target_step": stepping(checked, 1),
            "draft_step": stepping(drafted, 1),
            "drafting": propose,
            "verifying": stepping(checked, gamma + 1),
            "standardising": lambda: standardise(logits, greedy, target.vocabulary_size),
            "accepting": lambda: accept_exact(p_GV, q_GV, guessed, generator),
        },
        target.now,
        REPEATS,
    )
    found["drafting"] /= gamma
    return PassParts(gamma=gamma, whole=median(passes), **found)


def _device(model: Model) -> torch.device:
    return getattr(model, "device", torch.device("cpu"))
