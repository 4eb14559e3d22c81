"""Retrieval: what the suffix array finds against reading the corpus through, and what is proposed of it."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.session import Prompt
from specbench.methods.from_text import gather
from specbench.methods.retrieval import draft as suffixes
from specbench.methods.retrieval.draft import RetrievalDraft
from specbench.methods.retrieval.suffix_array import GrowingStore, SuffixIndex
from specbench.methods.several.draft import MergedDraft
from specbench.sampling import Sampling
from tests.support import chi
from tests.support.decode import speculative
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, exact, random_table

pytest.importorskip("pydivsufsort", reason="needs pydivsufsort")

CPU = torch.device("cpu")
START = 0
sequences = st.lists(st.lists(st.integers(1, 5), max_size=8), min_size=1, max_size=6)


def index(texts: list[list[int]], size: int = 8) -> SuffixIndex:
    return SuffixIndex(suffixes.build(gather(texts, START), size), size)


def by_reading(texts: list[list[int]], context: list[int], longest: int, size: int) -> tuple[int, int]:
    """The most frequent token (of equals the smallest) after the longest run found, and the run's length."""
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
    assert session.propose([START, 7, 4], 2, generator).tokens == [6, 1]  # 6 is twice after 4
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


@settings(max_examples=60, deadline=None)
@given(sequences, sequences, st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 5))
def test_a_store_that_grew_finds_what_one_corpus_of_all_texts_finds(
    texts: list[list[int]], added: list[list[int]], context: list[int], longest: int
) -> None:
    whole, store = index(texts + added), GrowingStore(index(texts))
    for text in added:
        store.add([[START, *text]], len(text))
    assert store.follower(context, longest) == whole.follower(context, longest)
    assert store.grown == sum(map(len, added)) and list(store.tokens) == whole.tokens.tolist()
    assert list(map(sorted, store.places(context, longest, 64))) == whole.places(context, longest, 64)
    store.clear()
    assert store.follower(context, longest) == index(texts).follower(context, longest) and store.grown == 0


def test_a_draft_takes_in_texts_between_prompts_with_the_end_of_their_prompt() -> None:
    grows = RetrievalDraft(GrowingStore(index([[3, 4, 5]])), 8, CPU, 2)
    assert MergedDraft([grows, draft([[1]])]).stores() == [grows]  # type: ignore[list-item]
    session, generator = grows.start(Prompt((), (START,)), Sampling(1.0)), torch.Generator()
    assert session.propose([6, 2], 3, generator).tokens == []
    grows.add_texts([(Prompt((), (START, 1, 6, 2)), [7, 4])])
    assert session.propose([6, 2], 3, generator).tokens == [7, 4] and grows.grown == 2
    assert session.propose([0, 1], 3, generator).tokens == []  # of a prompt the last `match` tokens alone
    grows.forget_texts()
    assert session.propose([6, 2], 3, generator).tokens == []


@pytest.mark.full
@pytest.mark.statistical
def test_texts_keep_the_targets_law_while_the_store_grows_by_them() -> None:
    """One false alarm in 10,000 seeds. Each text is taken in, so that later ones are drafted from it."""
    target, sampling = ToyModel(random_table(1, zeros=True)), Sampling(1.0)
    grows = RetrievalDraft(GrowingStore(index([[1, 2, 3]], VOCABULARY)), VOCABULARY, CPU, 2)
    drafted = 0

    def decode(generator: torch.Generator) -> list[int]:
        nonlocal drafted
        trace = speculative(
            target, grows, PROMPT, gamma=2, sampling=sampling, max_new_tokens=4, generator=generator
        )  # fmt: skip
        grows.add_texts([(PROMPT, trace.tokens)])
        drafted += sum(one.accepted for one in trace.passes)
        return trace.tokens

    assert chi.p_value(decode, exact(target, sampling, 4), 1000) > chi.ALARM
    assert drafted > 500
