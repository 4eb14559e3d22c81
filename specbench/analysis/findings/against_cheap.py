"""Findings against what drafts that cost nothing reach on the same tokens."""

from collections.abc import Sequence

from specbench.analysis.findings.finding import Observed, falls, is_above, mean
from specbench.records.draft_signs import Finding

HARDLY = 0.9  # of what a unigram reaches: an alpha from which a draft is no draft
FAR_LESS = 1 / 3  # of what a bigram reaches, likewise
COPIED = 0.3  # the least alpha on copied tokens that is a finding of them
ELSEWHERE = 0.15  # of that: the most alpha on all others


def weights(seen: Observed) -> Finding | None:
    """The draft is accepted less often than the commonest token of the other completions, or far less than a bigram.

    Heads that do not read the last token are not compared with a bigram, which does: if completions repeat
    themselves, sound heads stay far below it.
    """
    alpha, unigram, bigram = mean(seen.betas), mean(seen.cheap.unigram), mean(seen.cheap.bigram)
    if alpha <= HARDLY * unigram and _beats(seen, seen.cheap.unigram):
        better = f"a unigram draft is accepted {_in_100(unigram)}"
    elif seen.reads_last and alpha <= FAR_LESS * bigram and _beats(seen, seen.cheap.bigram):
        better = f"a bigram draft, which reads one token, is accepted {_in_100(bigram)}"
    else:
        return None
    said = f"α is {alpha:.3f}"
    if seen.drafted:
        said = f"accepted {seen.accepted:,} of {seen.drafted:,} draft tokens (α {alpha:.3f})"
    what = "reads other states than it was trained on, or its weights are not loaded" if seen.inside else (
        "is probably loaded wrongly, or hardly trained"
    )  # fmt: skip
    check = (
        "the layers whose states the draft reads, the target that it was trained for, and that each of its weights is "
        "loaded" if seen.inside else "that each weight of the draft is loaded under its name, and its tokenizer"
    )  # fmt: skip
    return Finding(
        "weights",
        f"{said}; {better} on the same tokens: the draft {what}",
        check,
        {"alpha": alpha, "unigram": unigram, "bigram": bigram},
    )


def _beats(seen: Observed, cheap: Sequence[Sequence[bool]]) -> bool:
    """Whether a draft that costs nothing is accepted more often than the draft, beyond chance."""
    more = [
        [named - beta for named, beta in zip(hits, text.beta, strict=True)]
        for hits, text in zip(cheap, seen.texts, strict=True)
    ]
    return is_above(more, seen.groups)


def copies(seen: Observed) -> Finding | None:
    """The draft is accepted on tokens that a lookup copies, and hardly elsewhere."""
    copied, others = (
        [
            [beta for beta, hit in zip(text.beta, hits, strict=True) if hit == wanted]
            for text, hits in zip(seen.texts, seen.cheap.lookup, strict=True)
        ]
        for wanted in (True, False)
    )
    on_copied, elsewhere = mean(copied), mean(others)
    if on_copied < COPIED or elsewhere > ELSEWHERE * on_copied or not falls(copied, others, seen.groups):
        return None
    return Finding(
        "copies",
        f"α is {on_copied:.2f} on tokens that a lookup copies from the completion and {elsewhere:.2f} on all others: "
        "the draft repeats what it reads and predicts nothing else",
        "whether its upper layers and its head are loaded, and that it was trained for this target",
        {"copied": on_copied, "others": elsewhere},
    )


def _in_100(share: float) -> str:
    times = 100 * share
    return f"{times:.0f} times in 100" if times >= 1.5 else f"{times:.1f} times in 100"
