"""N-gram counts: against counting by hand, in bounded memory, and kept on disk by content."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.methods.from_text import Arrays, cached, gather
from specbench.methods.ngram import counts as counting
from specbench.methods.ngram.counts import Counts, fit

V, START = 8, 0
sequences = st.lists(st.lists(st.integers(1, V - 1), max_size=6), max_size=8)


@pytest.fixture
def chunk(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    return lambda size: monkeypatch.setattr(counting, "CHUNK", size)


def by_hand(texts: list[list[int]], n: int) -> Counter[tuple[int, ...]]:
    behind_start = [(START, *text) for text in texts]
    return Counter(text[i : i + n] for text in behind_start for i in range(len(text) - n + 1))


@settings(max_examples=100, deadline=None)
@given(sequences, st.sampled_from([1, 3, 1000]), st.sampled_from([2, 3, 4]))
def test_counts_are_what_counting_by_hand_gives(texts: list[list[int]], size: int, order: int) -> None:
    before, counting.CHUNK = counting.CHUNK, size
    try:
        fitted = fit(gather(texts, START), V, order)
    finally:
        counting.CHUNK = before
    counts = Counts.of(fitted.arrays())  # as it comes back from disk
    assert counts.order == order
    assert counts.unigrams_V.tolist() == [sum(text.count(token) for text in texts) for token in range(V)]
    for n in range(2, order + 1):
        seen = by_hand(texts, n)
        assert len(counts.levels[n - 2].tokens_P) == len(seen)
        for context in {gram[:-1] for gram in seen} | {(7,) * (n - 1), (1,) * (n - 1)}:
            row = counts.row(context)
            found = {} if row is None else {int(x): int(times) for x, times in zip(*row, strict=True)}
            assert found == {gram[-1]: times for gram, times in seen.items() if gram[:-1] == context}


def test_runs_of_every_size_add_up(chunk) -> None:  # type: ignore[no-untyped-def]
    texts = [np.random.default_rng(0).integers(1, V, 5000).tolist()]
    whole = fit(gather(texts, START), V, 3).arrays()
    chunk(7)
    parts = fit(gather(texts, START), V, 3).arrays()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_a_fit_stays_within_the_memory_that_it_states(chunk) -> None:  # type: ignore[no-untyped-def]
    """9 bytes a token and 70 an n-gram of the largest level, and what a chunk takes."""
    size, tokens = 5000, 300_000
    text = (np.random.default_rng(0).zipf(1.2, tokens) % size).astype(int).tolist()
    chunk(20_000)
    corpus = gather([text], START)
    del text
    tracemalloc.start()
    counts = fit(corpus, size, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = sum(array.nbytes for array in counts.arrays().values())
    pairs, triples = (len(level.tokens_P) for level in counts.levels)
    assert triples > 100_000
    assert held <= 8 * (size + pairs + triples) + 8 * (size + 1 + pairs + 1)
    assert peak < 4 * tokens + 70 * triples + 100 * counting.CHUNK  # the text itself was there before


def test_what_is_fitted_is_fitted_once_per_content(tmp_path: Path) -> None:
    made = []

    def make() -> Arrays:
        made.append(1)
        return fit(gather([[3, 4]], START), V, 2).arrays()

    first = cached(tmp_path, "ngram", "text a", make)
    again = cached(tmp_path, "ngram", "text a", make)
    cached(tmp_path, "ngram", "text b", make)
    assert len(made) == 2
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not list(tmp_path.glob("*.part"))


def test_a_damaged_or_unwritable_cache_costs_time_not_the_run(tmp_path: Path) -> None:
    def make() -> Arrays:
        return fit(gather([[3, 4]], START), V, 2).arrays()

    cached(tmp_path, "ngram", "text", make)
    (file,) = tmp_path.iterdir()
    for damage in (b"", b"PK\x03\x04 nothing", file.read_bytes()[:200]):
        file.write_bytes(damage)
        assert cached(tmp_path, "ngram", "text", make)["unigrams_V"].sum() == 2
    (tmp_path / "taken").write_text("")
    assert cached(tmp_path / "taken", "ngram", "text", make)["unigrams_V"].sum() == 2
