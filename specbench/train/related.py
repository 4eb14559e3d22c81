"""Groups of sentences that share words, so that passages can be joined from single sentences.

Independent of languages, tokenizers or files.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

# Words in more than this share of the sentences (and in more than this number) are common: they do not make two
# sentences candidates for one group, since every sentence would then be compared with every other.
COMMON, RARE = 0.05, 10


def words(text: str) -> frozenset[str]:
    """The set of a sentence's words, without case and punctuation."""
    return frozenset(re.findall(r"\w+", text.lower()))


def related_groups(texts: Sequence[str], full: Callable[[Sequence[int]], bool]) -> list[list[int]]:
    """Indices of `texts` in groups, each index once, in the order of first members.

    A group starts with the first text that is left. The text most similar to the group is added until `full(group)`.
    Similarity is the sum of idf over the words shared with any member, divided by the square root of the text's own
    sum. Texts with exactly the words of a member are not candidates: a passage should not say one thing twice. If there
    is no candidate (no text left shares a word that is not common), the next text in order is added.

    Sums are exact (`fsum`), since the order of a set of strings differs from process to process: the groups may not.
    """
    sets = [words(text) for text in texts]
    counts = Counter(word for members in sets for word in members)
    idf = {word: math.log(1 + len(texts) / count) for word, count in counts.items()}
    size = [math.sqrt(math.fsum(idf[word] for word in members)) or 1.0 for members in sets]
    having: dict[str, set[int]] = defaultdict(set)
    for index, members in enumerate(sets):
        for word in members:
            if counts[word] <= max(RARE, COMMON * len(texts)):
                having[word].add(index)
    left = dict.fromkeys(range(len(texts)))  # in order

    def take(index: int) -> int:
        del left[index]
        for word in sets[index]:
            having[word].discard(index)
        return index

    groups: list[list[int]] = []
    while left:
        group = [take(next(iter(left)))]
        while left and not full(group):
            seen = frozenset().union(*(sets[index] for index in group))
            said = {sets[index] for index in group}
            near = {index for word in seen for index in having.get(word, ()) if sets[index] not in said}
            score = {index: math.fsum(idf[word] for word in sets[index] & seen) / size[index] for index in near}
            best = max(score, key=lambda index: (score[index], -index)) if score else next(iter(left))
            group.append(take(best))
        groups.append(group)
    return groups
