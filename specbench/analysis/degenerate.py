"""How many completions of a run loop or copy their prompt, and its speedup without those that loop."""

from collections.abc import Callable, Sequence
from statistics import fmean

from specbench.quality.repetition import loops, repetition
from specbench.records.loops import MOST_LOOPING
from specbench.records.schema import DECODING_MODES, Degenerate, PromptRecord, Speedups

Speed = Callable[[Sequence[PromptRecord]], Speedups]


def degenerate(prompts: Sequence[PromptRecord], speed: Speed | None) -> Degenerate:
    """The columns on degenerate text.

    A prompt counts as looping if its completion with or without the draft loops. `speed` gives the speedups of some
    prompts; None: the run has no speedup.
    """
    alone = [prompt["baseline"] for prompt in prompts]
    scored = [
        repetition(one["tokens"], one["text"], prompt["prompt"]) for one, prompt in zip(alone, prompts, strict=True)
    ]
    looping = [any(map(loops, _texts(prompt))) for prompt in prompts]
    found: Degenerate = {
        "looping": fmean(looping),
        "repeated": fmean(one.repeated for one in scored),
        "compression": fmean(one.compression for one in scored),
        "copied": fmean(one.copied for one in scored),
    }
    others = [prompt for prompt, loop in zip(prompts, looping, strict=True) if not loop]
    if found["looping"] > MOST_LOOPING and speed is not None and others:
        rest = speed(others)
        found["speedup_without_loops"] = rest["speedup_measured"]
        found["speedup_without_loops_low"] = rest["speedup_low"]
        found["speedup_without_loops_high"] = rest["speedup_high"]
    return found


def _texts(prompt: PromptRecord) -> set[tuple[int, ...]]:
    """The completions of a prompt that differ, in tokens."""
    return {tuple(prompt[way]["tokens"]) for way in DECODING_MODES}
