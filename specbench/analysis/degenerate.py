"""How many completions of a run loop or copy their prompt, and its speedup without those that loop.

On degenerate text any draft looks good: what comes next has been written before. Plain numbers, from the tokens of a
record, so that records of any age have them.

A completion loops if a phrase follows itself at once, at least COPIES times, over a large part of it. N-grams that
occur again elsewhere are no loop: sentences of one pattern share most of them (`repeated` is 0.7 of some references
of task ende-mini).
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from specbench.records.looping import MOST_LOOPING
from specbench.records.numbers import Degenerate, Speedups
from specbench.records.run_record import DECODING_MODES, PromptRecord

NGRAM = 4  # tokens: shorter ones repeat in every text
WORDS = 4  # the same of words copied from the prompt
COPIES = 3  # of a phrase in a row, the fewest that are a loop
LONGEST = 64  # tokens of such a phrase
LOOPS = 0.25  # share of tokens inside loops, from which a completion is marked
FEWEST = 8  # tokens of a completion that is marked


@dataclass(frozen=True)
class Repetition:
    """How much a completion repeats.

    Attributes:
        repeated: the share of its tokens that are inside an n-gram (of NGRAM tokens) that it has more than once.
        compression: its tokens as bytes, over the same compressed by zlib; loops have high values.
        copied: the share of its words that are inside WORDS consecutive words of the prompt.
    """

    repeated: float
    compression: float
    copied: float


def loops(tokens: Sequence[int]) -> bool:
    """Whether a completion repeats itself so much that its speedup says little of other texts."""
    return len(tokens) >= FEWEST and looped(tokens) >= LOOPS


def repetition(tokens: Sequence[int], text: str, prompt: str) -> Repetition:
    """The repetition of a completion in `tokens`, whose `text` follows `prompt`."""
    return Repetition(repeated(tokens), compression(tokens), copied(text, prompt))


def looped(tokens: Sequence[int]) -> float:
    """The share of tokens inside a phrase of at most LONGEST tokens that stands COPIES times in a row or more."""
    inside = set[int]()
    for period in range(1, min(LONGEST, len(tokens) // COPIES) + 1):
        start = period  # of a stretch in which each token equals the one a period before
        for place in range(period, len(tokens) + 1):
            if place < len(tokens) and tokens[place] == tokens[place - period]:
                continue
            if place - start >= (COPIES - 1) * period:
                inside.update(range(start - period, place))
            start = place + 1
    return len(inside) / len(tokens) if tokens else 0.0


def repeated(tokens: Sequence[int]) -> float:
    """The share of tokens inside an n-gram that occurs more than once."""
    grams = _grams(tokens, NGRAM)
    counts = Counter(grams)
    return _covered((counts[gram] > 1 for gram in grams), len(tokens), NGRAM)


def copied(text: str, prompt: str) -> float:
    """The share of the words of `text` inside WORDS consecutive words of `prompt`."""
    own, there = text.casefold().split(), set(_grams(prompt.casefold().split(), WORDS))
    return _covered((gram in there for gram in _grams(own, WORDS)), len(own), WORDS)


def compression(tokens: Sequence[int]) -> float:
    """Bytes of the tokens, four each, over the bytes that zlib makes of them; 1 without tokens."""
    written = b"".join(token.to_bytes(4, "little") for token in tokens)
    return len(written) / len(zlib.compress(written, 9)) if written else 1.0


def _grams(items: Sequence[object], width: int) -> list[tuple[object, ...]]:
    return [tuple(items[start : start + width]) for start in range(len(items) - width + 1)]


def _covered(marked: Iterable[bool], size: int, width: int) -> float:
    """The share of `size` places that are inside one of the marked stretches of `width` places; 0 without places."""
    places = {start + step for start, mark in enumerate(marked) if mark for step in range(width)}
    return len(places) / size if size else 0.0


Speed = Callable[[Sequence[PromptRecord]], Speedups]


def degenerate(prompts: Sequence[PromptRecord], speed: Speed | None) -> Degenerate:
    """The columns on degenerate text.

    A prompt counts as looping if its completion with or without the draft loops. `speed` gives the speedups of some
    prompts; None: the run has no speedup.
    """
    alone = [prompt["baseline"] for prompt in prompts]
    scored = [repetition(one.tokens, one.text, prompt["prompt"]) for one, prompt in zip(alone, prompts, strict=True)]
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
    return {tuple(prompt[way].tokens) for way in DECODING_MODES}
