"""Findings from the tokens that a draft names along a completion: always one, others by a mapping, those beside it."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from specbench.analysis.findings.finding import MOST_SHIFT, Observed, is_above, mean
from specbench.records.draft_signs import Finding

ALWAYS = 0.8  # share of places at which a draft names one token
SAME = 0.98  # share of places at which a draft repeats: with labels that are not shifted it is less
LEAST = 0.15  # share of places at which a shifted or renamed token is the completion's own
MORE = 0.05  # beyond what the token in its own place, or a bigram, reaches
HALF = 0.5  # share of renamed tokens whose ids differ by one number


def constant(seen: Observed) -> Finding | None:
    """The draft names one token, whatever it reads."""
    named = Counter(token for text in seen.texts for token in text.named if token is not None)
    if not named:
        return None
    ((most, count),) = named.most_common(1)
    rows = [
        [
            (name == most) - (token == most)
            for name, token in zip(text.named, text.tokens, strict=True)
            if name is not None
        ]
        for text in seen.texts
    ]
    share = count / named.total()
    if share < ALWAYS or not is_above(rows, seen.groups, ALWAYS / 2):
        return None
    return Finding(
        "constant",
        f"the draft proposes {seen.piece(most)} {_of_100(share)}, whatever it reads: weights that are zero, or not "
        "loaded",
        "that no tensor of the draft is all zeros (quantisation, a name that differs), its norms and its head first",
        {"share": share, "token": most},
    )


def repeats(seen: Observed) -> Finding | None:
    """The draft names the token that it has just read, always."""
    if mean(seen.hits(-1)) < SAME or not is_above(seen.hits(-1), seen.groups, ALWAYS):
        return None
    return Finding(
        "repeats",
        f"the draft proposes the token that it has just read {_of_100(mean(seen.hits(-1)))}: its layers do nothing",
        "that the weights of its layers are loaded and not zero",
        {"share": mean(seen.hits(-1)), "own": mean(seen.hits())},
    )


def shifted(seen: Observed) -> Finding | None:
    """The draft names the token beside its place more often than the token in its place."""
    own, best = seen.hits(), 0
    shares = {shift: mean(seen.hits(shift)) for shift in range(-MOST_SHIFT, MOST_SHIFT + 1)}
    best = max(shares, key=shares.__getitem__)
    if best == 0 or shares[best] < LEAST or repeats(seen) is not None:
        return None
    more = [[a - b for a, b in zip(*rows, strict=True)] for rows in zip(seen.hits(best), own, strict=True)]
    if not is_above(more, seen.groups, MORE):
        return None
    places = f"{abs(best)} {'place' if abs(best) == 1 else 'places'} {'earlier' if best < 0 else 'later'}"
    if best < 0:
        why = "it predicts what it has read: labels not shifted, too few layers, or a cache without the last token"
    else:
        why = "it skips a token: labels that are shifted twice, or a cache with a token too many"
    return Finding(
        "shifted",
        f"the draft's token is the completion's own {places} {_of_100(shares[best])}, and in its own place "
        f"{_of_100(shares[0])}: {why}",
        "which position the draft's logits belong to, in its training and in its cache",
        {"shift": best, "share": shares[best], "own": shares[0]},
    )


def relabelled(seen: Observed) -> Finding | None:
    """What the draft names is the completion's token under another name, by one rule for all tokens."""
    renamed, by_difference = _renamed(seen), Counter[int]()
    as_named = [
        [name == token for name, token in zip(text.named, text.tokens, strict=True) if name is not None]
        for text in seen.texts
    ]
    share, own = mean(renamed), mean(as_named)
    more = [[a - b for a, b in zip(*rows, strict=True)] for rows in zip(renamed, as_named, strict=True)]
    if share < LEAST or not is_above(more, seen.groups, MORE):
        return None
    # A draft that reads only the last token proposes what a bigram proposes, by some rule: it predicts only elsewhere.
    beyond = [
        [hit for hit, known in zip(hits, _where_named(text.named, bigram), strict=True) if not known]
        for text, hits, bigram in zip(seen.texts, renamed, seen.cheap_named.bigram, strict=True)
    ]
    if not is_above(beyond, seen.groups, LEAST):
        return None
    for text, hits in zip(seen.texts, renamed, strict=True):
        known = [(name, token) for name, token in zip(text.named, text.tokens, strict=True) if name is not None]
        by_difference.update(token - name for (name, token), hit in zip(known, hits, strict=True) if hit)
    ((offset, count),) = by_difference.most_common(1)
    by = f"its ids are {abs(offset)} too {'low' if offset > 0 else 'high'}" if (
        offset and count > HALF * by_difference.total()
    ) else "its tokens have other ids"  # fmt: skip
    return Finding(
        "relabelled",
        f"the draft's token is the completion's own {_of_100(own)}, and after renaming each token by one rule "
        f"{_of_100(share)}: {by}",
        "the rows of its output head, its tokenizer and added tokens, and the table from its vocabulary to the "
        "target's (d2t)",
        {"renamed": share, "own": own, "beyond_bigram": mean(beyond), "offset": offset},
    )


def _where_named(named: Sequence[int | None], hits: Sequence[bool]) -> list[bool]:
    return [hit for name, hit in zip(named, hits, strict=True) if name is not None]


def _renamed(seen: Observed) -> list[list[bool]]:
    """Whether each token is the commonest at the places where the draft named what it names here.

    Counted over texts of other prompts, and over the earlier places of the same text.
    """
    pairs = Counter[tuple[int, int]]()
    by_group: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    both = [
        [(name, token) for name, token in zip(text.named, text.tokens, strict=True) if name is not None]
        for text in seen.texts
    ]
    for known, group in zip(both, seen.groups, strict=True):
        pairs.update(known)
        by_group[group].update(known)
    found = []
    for known, group in zip(both, seen.groups, strict=True):
        counts: dict[int, Counter[int]] = defaultdict(Counter)
        for (name, token), count in pairs.items():
            if left := count - by_group[group][name, token]:
                counts[name][token] = left
        hits = []
        for name, token in known:
            hits.append(bool(counts[name]) and max(counts[name], key=counts[name].__getitem__) == token)
            counts[name][token] += 1
        found.append(hits)
    return found


def _of_100(share: float) -> str:
    return f"at {100 * share:.0f} of 100 places"
