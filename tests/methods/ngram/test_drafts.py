"""Drafts without weights: smoothing that sums to one, and what they propose."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from specbench.engine.session import Prompt
from specbench.methods.from_text import gather
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.ngram.counts import Counts, fit
from specbench.methods.ngram.draft import NgramDraft, UniformDraft
from specbench.sampling import Sampling

V, START = 8, 0
CPU = torch.device("cpu")
PROMPT = Prompt((), (START,))
sequences = st.lists(st.lists(st.integers(1, V - 1), min_size=1, max_size=6), min_size=1, max_size=8)


def counts(texts: list[list[int]], order: int = 4) -> Counts:
    return fit(gather(texts, START), V, order)


@settings(max_examples=50, deadline=None)
@given(sequences, st.sampled_from([1, 2, 3, 4]), st.sampled_from([0.1, 0.75]))
def test_smoothed_rows_are_distributions_without_zeros(texts: list[list[int]], order: int, discount: float) -> None:
    draft = NgramDraft(counts(texts), order, discount, CPU)
    for text in texts:
        for end in range(len(text) + 1):
            row = draft.probabilities([START, *text][:end])
            assert torch.equal(draft.row([START, *text][:end], Sampling(1.0)), row.float().unsqueeze(0))
            assert row.sum().item() == pytest.approx(1)
            assert (row > 0).all()


@settings(max_examples=50, deadline=None)
@given(sequences, st.sampled_from([1, 2, 3, 4]), st.sampled_from([0.1, 0.75]))
def test_at_temperature_zero_the_token_is_the_likeliest(texts: list[list[int]], order: int, discount: float) -> None:
    draft = NgramDraft(counts(texts), order, discount, CPU)
    read = [[START, *text][:end] for text in texts for end in range(len(text) + 2)]
    for before in (*read, *([START, token] for token in range(V))):  # and contexts that the text lacks
        row = draft.probabilities(before)
        assert row[draft.best(before)].item() == pytest.approx(row.max().item(), rel=1e-12)


def test_absolute_discounting_by_hand() -> None:
    fitted = counts([[3, 4], [3, 5], [3, 4]])
    draft = NgramDraft(fitted, 2, 0.5, CPU)
    unigram = np.array([1, 1, 1, 4, 3, 2, 1, 1]) / 14  # six tokens seen, add one
    bigram = 0.5 * 2 / 3 * unigram
    bigram[4] += 1.5 / 3
    bigram[5] += 0.5 / 3
    assert draft.probabilities([3]).numpy() == pytest.approx(bigram)
    assert draft.probabilities([7]).numpy() == pytest.approx(unigram)  # never seen: back to the unigram
    trigram = 0.5 * 2 / 3 * bigram
    trigram[4] += 1.5 / 3
    trigram[5] += 0.5 / 3
    draft = NgramDraft(fitted, 3, 0.5, CPU)
    assert draft.probabilities([START, 3]).numpy() == pytest.approx(trigram)
    assert draft.probabilities([7, 3]).numpy() == pytest.approx(bigram)  # never seen: back to the bigram
    assert draft.probabilities([3]).numpy() == pytest.approx(bigram)  # nothing more is known yet


@pytest.mark.parametrize("order", [1, 2, 3])
def test_an_order_alone_is_that_order_of_a_longer_count(order: int) -> None:
    texts = [[3, 4, 5, 4], [4, 5, 6], [3, 4, 6]]
    alone, part = (NgramDraft(counts(texts, most), order, 0.75, CPU) for most in (max(2, order), 4))
    for context in ([START], [START, 3], [START, 3, 4], [4, 5]):
        assert torch.equal(alone.probabilities(context), part.probabilities(context))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_proposal_carries_the_rows_it_was_drawn_from(order: int) -> None:
    draft = NgramDraft(counts([[3, 4, 5, 6], [3, 4, 5, 6], [4, 4, 3, 6, 5]]), order, 0.5, CPU)
    for sampling in (Sampling(0.0), Sampling(1.0), Sampling(0.5, top_k=2)):
        session = draft.start(PROMPT, sampling)
        proposal = session.propose([START], 4, torch.Generator().manual_seed(1))
        scored = session.score([START, *proposal.tokens], 1)
        q_GV = proposal.q(scored)
        assert torch.equal(q_GV, scored)
        assert all(row[token] > 0 for row, token in zip(q_GV, proposal.tokens, strict=True))
    greedy = draft.start(PROMPT, Sampling(0.0)).propose([START], 4, torch.Generator())
    assert greedy.tokens == ([4] * 4 if order == 1 else [3, 4, 5, 6])


def test_tokens_are_drawn_from_the_smoothed_row() -> None:
    draft = NgramDraft(counts([[3, 4, 5], [3, 4, 6], [7, 4, 5]]), 3, 0.75, CPU)
    session, generator = draft.start(PROMPT, Sampling(1.0)), torch.Generator().manual_seed(0)
    drawn = Counter(session.propose([START, 3, 4], 1, generator).tokens[0] for _ in range(4000))
    expected = draft.probabilities([3, 4]).numpy()
    assert chisquare([drawn[token] for token in range(V)], 4000 * expected / expected.sum()).pvalue > 1e-4


def test_random_is_uniform_at_every_setting() -> None:
    draft = UniformDraft(V, CPU)
    for sampling in (Sampling(0.0), Sampling(1.0, top_k=2)):
        proposal = draft.start(PROMPT, sampling).propose([START], 3, torch.Generator().manual_seed(0))
        assert proposal.q_GV.shape == (3, V)
        assert torch.allclose(proposal.q_GV, torch.full((3, V), 1 / V))


def test_rows_kept_are_bounded() -> None:
    draft = NgramDraft(counts([[3, 4]]), 2, 0.5, CPU)
    draft._most_rows = 3
    for token in range(V):
        draft.row([token], Sampling(1.0))
    assert len(draft._rows) <= 3


def test_lookup_proposes_what_followed_the_longest_and_latest_match() -> None:
    draft = LookupDraft(V, CPU, match=2)
    session = draft.start(Prompt((3, 4, 5, 6, 4, 7), (START,)), Sampling(0.0))
    generator = torch.Generator()
    assert session.propose([START], 3, generator).tokens == []  # never seen before
    assert session.propose([START, 3], 2, generator).tokens == [4, 5]
    assert session.propose([START, 3, 4], 3, generator).tokens == [5, 6, 4]  # "3 4" beats the later "4"
    assert session.propose([START, 3, 4, 2, 4], 2, generator).tokens == [2, 4]  # "4" in its own text is the latest
    proposal = session.propose([START, 3, 4, 2, 4, 5], 1, generator)
    assert proposal.tokens == [6] and proposal.q(torch.empty(1, V)).tolist() == [[0, 0, 0, 0, 0, 0, 1, 0]]


def test_lookup_scores_what_it_would_have_proposed() -> None:
    prompt, text = Prompt((3, 4, 5, 6), (START,)), [3, 4, 5, 2, 4, 5]
    draft = LookupDraft(V, CPU, match=3)
    rows = draft.start(prompt, Sampling(1.0)).score([START, *text], 1)
    session = draft.start(prompt, Sampling(1.0))
    for position in range(len(text)):
        tokens = session.propose([START, *text[:position]], 1, torch.Generator()).tokens
        assert rows[position].nonzero().flatten().tolist() == tokens


def test_lookup_forgets_what_is_rolled_back() -> None:
    """As inside a cascade, where it reads what the middle model wrote and the target then rejects."""
    draft, prompt, generator = LookupDraft(V, CPU, match=3), Prompt((2, 3, 4), (START,)), torch.Generator()
    session = draft.start(prompt, Sampling(0.0))
    kept = [START, 5, 6, 5]
    for rejected in ([6, 7, 6, 7], [2], [5, 5, 5]):
        session.propose([*kept, *rejected], 4, generator)
        session.rollback(len(kept))
        for more in ([], [6], [2, 3]):
            fresh = draft.start(prompt, Sampling(0.0)).propose([*kept, *more], 4, generator)
            assert session.propose([*kept, *more], 4, generator) == fresh, (rejected, more)
            session.rollback(len(kept))


def test_lookup_looks_up_no_more_in_a_long_text_than_in_a_short_one() -> None:
    """Entries made by a token, and looked at by a proposal: at most `match` of each, after 1,000 tokens too."""
    article = torch.randint(2, 30_000, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    session = LookupDraft(30_000, CPU, match=3).start(Prompt((), (*article, START)), Sampling(0.0))
    made = len(session._ends)
    assert made <= 3 * 1000  # the prompt, before the first pass
    looked: list[int] = []

    class Table(dict[tuple[int, ...], int]):
        def get(self, key, default=None):  # type: ignore[no-untyped-def]
            looked.append(1)
            return super().get(key, default)

    session._ends = Table(session._ends)
    tokens = [*article, START]
    for _ in range(20):
        proposal = session.propose(tokens, 7, torch.Generator())
        tokens.append(proposal.tokens[0] if proposal.tokens else article[500])
    assert len(session._ends) - made <= 3 * 20
    assert len(looked) <= 3 * 20
    assert tokens[-10:] == article[article.index(tokens[-10]) :][:10]  # it copies
