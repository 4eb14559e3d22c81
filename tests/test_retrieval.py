"""Retrieval: what the suffix array finds against reading the corpus through, and what is proposed of it."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.drafts import RetrievalDraft, suffixes
from specbench.drafts.corpus import gather
from specbench.drafts.suffixes import SuffixIndex
from specbench.models import Prompt
from specbench.sampling import Sampling

pytest.importorskip("pydivsufsort", reason="needs pydivsufsort")

CPU = torch.device("cpu")
START = 0
sequences = st.lists(st.lists(st.integers(1, 5), max_size=8), min_size=1, max_size=6)


def index(texts: list[list[int]], size: int = 8) -> SuffixIndex:
    return SuffixIndex(suffixes.build(gather(texts, START), size), size)


def by_reading(texts: list[list[int]], context: list[int], longest: int, size: int) -> tuple[int, int]:
    """The most frequent token (of equals the smallest) behind the longest run found, and the run's length."""
    for length in range(min(longest, len(context)), 0, -1):
        run = context[-length:]
        followers = Counter(
            text[place + length]
            for text in ([START, *text, size] for text in texts)
            for place in range(len(text) - length)
            if text[place : place + length] == run
        )
        if followers:
            return min(followers, key=lambda token: (-followers[token], token)), length
    return size, 0


@pytest.mark.parametrize("size", [8, 300, 70_000])  # tokens of one byte, two and four
@settings(max_examples=60, deadline=None)
@given(sequences, st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 5))
def test_it_finds_what_reading_the_corpus_through_finds(
    size: int, texts: list[list[int]], context: list[int], longest: int
) -> None:
    large = {5: size - 1}
    texts = [[large.get(token, token) for token in text] for text in texts]
    context = [large.get(token, token) for token in context]
    assert index(texts, size).follower(context, longest) == by_reading(texts, context, longest, size)


def test_of_many_places_a_part_is_counted_in_proportion() -> None:
    texts = [[1, 2]] * 6000 + [[1, 3]] * 5000 + [[1, 4]] * 4000
    assert index(texts).follower([1], 3) == (2, 1)


def draft(texts: list[list[int]], match: int = 3) -> RetrievalDraft:
    return RetrievalDraft(index(texts), 8, CPU, match)


def test_the_most_frequent_continuation_is_proposed_up_to_the_end_of_a_text() -> None:
    texts = [[3, 4, 5, 1], [3, 4, 6, 1], [2, 4, 6, 5, 1]]
    session = draft(texts).start(Prompt((), (START,)), Sampling(1.0))
    generator = torch.Generator()
    assert session.propose([START], 8, generator).tokens == [3, 4, 5, 1]  # "0 3 4" decides; the text ends
    assert session.propose([START, 7, 4], 2, generator).tokens == [6, 1]  # 6 is twice behind 4
    assert session.propose([START, 2, 4], 3, generator).tokens == [6, 5, 1]  # the longer run wins
    assert session.propose([START, 7], 3, generator).tokens == []  # never seen
    assert session.propose([START, 3], 0, generator).tokens == []


@settings(max_examples=60, deadline=None)
@given(sequences, st.lists(st.integers(1, 5), max_size=6), st.integers(1, 4))
def test_it_scores_what_it_proposes(texts: list[list[int]], text: list[int], match: int) -> None:
    session = draft(texts, match).start(Prompt((), (START,)), Sampling(1.0))
    proposal = session.propose([START, *text], 6, torch.Generator())
    assert torch.equal(session.score([START, *text, *proposal.tokens], 1 + len(text)), proposal.q(torch.empty(1, 8)))
    rows = session.score([START, *text], 1)
    ahead = list(session.score_ahead([START, *text], 1, 3))
    for begin in range(len(text)):
        proposed = session.propose([START, *text[:begin]], 3, torch.Generator()).tokens
        for place, end in enumerate(range(begin, min(begin + 3, len(text)))):
            assert ahead[place][end].nonzero().flatten().tolist() == proposed[place : place + 1]
    for place in range(len(text)):
        alone = session.propose([START, *text[:place]], 1, torch.Generator()).tokens
        assert rows[place].nonzero().flatten().tolist() == alone
