"""How many completions of a run loop or copy their prompt, and its speedup without those that loop."""

from collections.abc import Callable, Sequence
from statistics import fmean

from specbench.quality.repetition import repetition
from specbench.records.loops import MOST_LOOPING
from specbench.records.schema import DECODING_MODES, Degenerate, PromptRecord, Speedups

Speed = Callable[[Sequence[PromptRecord]], Speedups]


def degenerate(prompts: Sequence[PromptRecord], speed: Speed | None) -> Degenerate:
    """The columns on degenerate text.

    A prompt counts as looping if its completion with or without the draft loops. `speed` gives the speedups of some
    prompts; None: the run has no speedup.
    """
    scored = [
        [repetition(prompt[way]["tokens"], prompt[way]["text"], prompt["prompt"]) for way in DECODING_MODES]
        for prompt in prompts
    ]
    loops = [any(one.loops for one in both) for both in scored]
    found: Degenerate = {
        "looping": fmean(loops),
        "repeated": fmean(alone.repeated for alone, _ in scored),
        "compression": fmean(alone.compression for alone, _ in scored),
        "copied": fmean(alone.copied for alone, _ in scored),
    }
    others = [prompt for prompt, loop in zip(prompts, loops, strict=True) if not loop]
    if found["looping"] > MOST_LOOPING and speed is not None and others:
        rest = speed(others)
        found["speedup_without_loops"] = rest["speedup_measured"]
        found["speedup_without_loops_low"] = rest["speedup_low"]
        found["speedup_without_loops_high"] = rest["speedup_high"]
    return found
