"""Drafts without weights: counts against counting by hand, smoothing that sums to one, and what they propose."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.drafts import LookupDraft, NgramDraft, UniformDraft
from specbench.drafts import counts as counting
from specbench.drafts.counts import cached, fit
from specbench.models import Prompt
from specbench.sampling import Sampling

V, START = 8, 0
CPU = torch.device("cpu")
PROMPT = Prompt((), (START,))
sequences = st.lists(st.lists(st.integers(1, V - 1), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(sequences, st.sampled_from([1, 3, 1000]))
def test_counts_are_what_counting_by_hand_gives(texts: list[list[int]], chunk: int) -> None:
    before, counting.CHUNK = counting.CHUNK, chunk
    try:
        counts = fit(texts, V, START)
    finally:
        counting.CHUNK = before
    pairs = Counter(pair for text in texts for pair in zip([START, *text], text, strict=False))
    for token in range(V):
        followers, times = counts.row(token)
        assert {(token, int(x)): int(n) for x, n in zip(followers, times, strict=True)} == {
            pair: n for pair, n in pairs.items() if pair[0] == token
        }
    assert counts.unigrams_V.tolist() == [sum(text.count(token) for text in texts) for token in range(V)]


@settings(max_examples=50, deadline=None)
@given(sequences, st.sampled_from([1, 2]), st.sampled_from([0.1, 0.75]))
def test_smoothed_rows_are_distributions_without_zeros(texts: list[list[int]], order: int, discount: float) -> None:
    draft = NgramDraft(fit(texts, V, START), order, discount, CPU)
    for token in range(V):
        row = draft.probabilities(token)
        assert row.sum().item() == pytest.approx(1)
        assert (row > 0).all()


def test_absolute_discounting_by_hand() -> None:
    draft = NgramDraft(fit([[3, 4], [3, 5], [3, 4]], V, START), 2, 0.5, CPU)
    unigram = np.array([1, 1, 1, 4, 3, 2, 1, 1]) / 14  # six tokens seen, add one
    expected = 0.5 * 2 / 3 * unigram
    expected[4] += 1.5 / 3
    expected[5] += 0.5 / 3
    assert draft.probabilities(3).numpy() == pytest.approx(expected)
    assert draft.probabilities(7).numpy() == pytest.approx(unigram)  # never seen: back to the unigram


def test_a_proposal_carries_the_rows_it_was_drawn_from() -> None:
    draft = NgramDraft(fit([[3, 4, 5, 6], [3, 4, 5, 6]], V, START), 2, 0.5, CPU)
    for sampling in (Sampling(0.0), Sampling(1.0), Sampling(0.5, top_k=2)):
        session = draft.start(PROMPT, sampling)
        proposal = session.propose([START], 4, torch.Generator().manual_seed(1))
        scored = session.score([START, *proposal.tokens], 1)
        assert torch.equal(proposal.q_GV, scored)
        assert all(row[token] > 0 for row, token in zip(proposal.q_GV, proposal.tokens, strict=True))
    greedy = draft.start(PROMPT, Sampling(0.0)).propose([START], 4, torch.Generator())
    assert greedy.tokens == [3, 4, 5, 6]
    assert greedy.q_GV.max(-1).values.tolist() == [1, 1, 1, 1]


def test_random_is_uniform_at_every_setting() -> None:
    draft = UniformDraft(V, CPU)
    for sampling in (Sampling(0.0), Sampling(1.0, top_k=2)):
        proposal = draft.start(PROMPT, sampling).propose([START], 3, torch.Generator().manual_seed(0))
        assert proposal.q_GV.shape == (3, V)
        assert torch.allclose(proposal.q_GV, torch.full((3, V), 1 / V))


def test_rows_kept_are_bounded() -> None:
    draft = NgramDraft(fit([[3, 4]], V, START), 2, 0.5, CPU)
    draft._most_rows = 3
    for token in range(V):
        draft.row(token, Sampling(1.0))
    assert len(draft._rows) <= 3


def test_counts_are_fitted_once_per_content(tmp_path: Path) -> None:
    made = []

    def make() -> counting.Counts:
        made.append(1)
        return fit([[3, 4]], V, START)

    first = cached(tmp_path, "text a", make)
    again = cached(tmp_path, "text a", make)
    cached(tmp_path, "text b", make)
    assert len(made) == 2
    assert np.array_equal(first.followers_P, again.followers_P)
    assert not list(tmp_path.glob("*.part"))


def test_a_damaged_or_unwritable_cache_costs_time_not_the_run(tmp_path: Path) -> None:
    def make() -> counting.Counts:
        return fit([[3, 4]], V, START)

    cached(tmp_path, "text", make)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    assert cached(tmp_path, "text", make).unigrams_V.sum() == 2
    (tmp_path / "taken").write_text("")
    assert cached(tmp_path / "taken", "text", make).unigrams_V.sum() == 2


def test_lookup_proposes_what_followed_the_longest_and_latest_match() -> None:
    draft = LookupDraft(V, CPU, match=2)
    session = draft.start(Prompt((3, 4, 5, 6, 4, 7), (START,)), Sampling(0.0))
    generator = torch.Generator()
    assert session.propose([START], 3, generator).tokens == []  # never seen before
    assert session.propose([START, 3], 2, generator).tokens == [4, 5]
    assert session.propose([START, 3, 4], 3, generator).tokens == [5, 6, 4]  # "3 4" beats the later "4"
    assert session.propose([START, 3, 4, 2, 4], 2, generator).tokens == [2, 4]  # "4" in its own text is the latest
    proposal = session.propose([START, 3, 4, 2, 4, 5], 1, generator)
    assert proposal.tokens == [6] and proposal.q_GV.tolist() == [[0, 0, 0, 0, 0, 0, 1, 0]]


def test_lookup_scores_what_it_would_have_proposed() -> None:
    prompt, text = Prompt((3, 4, 5, 6), (START,)), [3, 4, 5, 2, 4, 5]
    draft = LookupDraft(V, CPU, match=3)
    rows = draft.start(prompt, Sampling(1.0)).score([START, *text], 1)
    session = draft.start(prompt, Sampling(1.0))
    for position in range(len(text)):
        tokens = session.propose([START, *text[:position]], 1, torch.Generator()).tokens
        assert rows[position].nonzero().flatten().tolist() == tokens
