"""Lookahead decoding: n-grams of the target's own guesses are verified beside the window that makes them; the text is
the target's, and a window's token is never taken as verified."""

import sys
from functools import cache
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import Verdict
from specbench.algorithm.acceptance.verify import verify
from specbench.algorithm.batching import together
from specbench.algorithm.decoding import speculate
from specbench.analysis.acceptance.agreement import agreements
from specbench.engine.batch import Batch
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.lookahead.draft import LookaheadDraft, Window
from specbench.sampling import Sampling
from specbench.theory.trees import TreeShape
from tests.support import chi
from tests.support.decode import autoregressive, spec_of, speculative
from tests.support.networks import network
from tests.support.prompts import prompts
from tests.support.toy import PROMPT, ToyModel, random_table

CPU = torch.device("cpu")
VERIFYING = sys.modules["specbench.algorithm.acceptance.verify"]
GREEDY, WARM = Sampling(0.0), Sampling(1.0)
SIZE = 40
KINDS = ("t5", "gpt2", "llama")
TARGET = ToyModel(random_table(1, zeros=True))


@cache
def target_of(kind: str) -> EagerModel:
    return EagerModel(network(kind, 4), SIZE, frozenset({1}))


def trace(target: Any, draft: LookaheadDraft, prompt: Prompt, gamma: int, tokens: int = 40) -> Any:
    return speculative(
        target, draft, prompt, gamma=gamma, sampling=GREEDY, max_new_tokens=tokens, generator=torch.Generator()
    )  # fmt: skip


def own(kind: str, prompt: Prompt, tokens: int = 40) -> list[int]:
    return autoregressive(
        target_of(kind), prompt, sampling=GREEDY, max_new_tokens=tokens, generator=torch.Generator()
    ).tokens


def p_value(samples: int = 3000) -> float:
    return chi.speculative_p_value(TARGET, LookaheadDraft(TARGET, 3, 3, 3, CPU), PROMPT, 2, WARM, 4, samples)[0]


@pytest.mark.parametrize(("window", "ngram", "guesses"), [(1, 2, 1), (4, 3, 2), (5, 4, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str, window: int, ngram: int, guesses: int) -> None:
    draft = LookaheadDraft(target_of(kind), window, ngram, guesses, CPU)
    accepted = 0
    for prompt in prompts(kind):
        for gamma in (1, 3):
            found = trace(target_of(kind), draft, prompt, gamma)
            assert found.tokens == own(kind, prompt)
            assert all(one.drafted <= guesses * min(gamma, ngram - 1) for one in found.passes)
            accepted += sum(one.accepted for one in found.passes)
    assert accepted > 0 or window == 1


@pytest.mark.full
def test_a_captured_step_writes_the_same_text() -> None:
    static = StaticModel(network("t5", 4), SIZE, frozenset({1}))
    for prompt in prompts("t5"):
        assert trace(static, LookaheadDraft(static, 4, 3, 3, CPU), prompt, 2).tokens == own("t5", prompt)


@torch.inference_mode()
def test_rows_of_a_batch_write_what_each_writes_alone() -> None:
    batch, draft = Batch.of(target_of("gpt2"), 2), LookaheadDraft(target_of("gpt2"), 4, 3, 3, CPU)
    spec = spec_of(GREEDY, 30, 2)
    rows = [speculate(batch, draft, prompt, spec, torch.Generator()) for prompt in prompts("gpt2")]
    assert [one.tokens for one in together(rows, 2, batch)] == [own("gpt2", prompt, 30) for prompt in prompts("gpt2")]


@pytest.mark.full
@pytest.mark.statistical
def test_sampled_texts_have_the_targets_distribution() -> None:
    """One false alarm in 10,000 seeds."""
    assert p_value() > chi.ALARM


@pytest.mark.statistical
def test_a_windows_token_taken_as_verified_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no n-gram is accepted the window's guess at the next position is emitted."""

    def taking(rows: Any, proposal: Any, verification: Any, generator: torch.Generator) -> Verdict:
        verdict = verify(rows, proposal, verification, generator)
        return (
            verdict._replace(token=proposal.unverified.tokens[0])
            if proposal.unverified and not verdict.path
            else verdict
        )

    monkeypatch.setattr(VERIFYING, "verify", taking)
    prompt = prompts("gpt2")[0]
    assert trace(target_of("gpt2"), LookaheadDraft(target_of("gpt2"), 4, 3, 3, CPU), prompt, 2).tokens != own(
        "gpt2", prompt
    )
    assert p_value() < chi.ALARM


def test_rows_of_the_window_are_not_those_that_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that reach the verdict are those of the proposal's own nodes, by an uncached reading of each path."""
    target, seen = target_of("gpt2"), 0
    draft, prompt = LookaheadDraft(target, 4, 3, 3, CPU), prompts("gpt2")[0]
    texts = list[list[int]]()

    def checking(rows: Any, proposal: Any, verification: Any, generator: torch.Generator) -> Verdict:
        nonlocal seen
        written = [*prompt.prefix, *texts[-1]] if texts else list(prompt.prefix)
        for node, parent in enumerate([None, *(proposal.parents or [])]):
            path = list[int]()
            at = node - 1
            while at >= 0:
                path.insert(0, proposal.tokens[at])
                at = proposal.parents[at]
            session = target.start(prompt)
            best = int(session.extend([*written, *path][session.length :])[-1, :SIZE].argmax())
            assert rows[node] == best
            seen += parent is not None
        verdict = verify(rows, proposal, verification, generator)
        texts.append([*(texts[-1] if texts else []), *(proposal.tokens[node] for node in verdict.path), verdict.token])
        return verdict

    monkeypatch.setattr(VERIFYING, "verify", checking)
    trace(target, draft, prompt, 2, 20)
    assert seen > 5


def test_the_window_is_a_tree_whose_columns_are_n_grams() -> None:
    window = Window(3, 4, 2, [7, 8, 9])
    assert window.rows == [[8, 9, 7]] * 3
    beside = window.tree()
    assert beside.tokens == [8, 9, 7] * 3 and beside.parents == [-1, 0, 1, 0, 1, 2, 3, 4, 5]
    assert TreeShape(tuple(beside.parents)).depths == [1, 2, 3, 2, 3, 4, 3, 4, 5]  # the position of each after the text
    window.learn([*range(10, 19)])
    assert window.rows == [[8, 9, 7], [8, 9, 7], [16, 17, 18]]
    assert window.pool == {8: [(8, 8, 16)], 9: [(9, 9, 17)], 7: [(7, 7, 18)]}
    window.learn([0] * 9)
    assert window.found(8) == [(8, 16, 0), (8, 8, 16)]  # the newest first
    window.learn([1] * 9)
    assert len(window.pool[8]) == 2  # no more than are verified
    before = [list(row) for row in window.rows]
    window.shift(2)
    assert [row[0] for row in window.rows] == [row[2] for row in before]


def test_scores_are_those_of_a_text_that_grows_by_a_token_a_pass() -> None:
    target, prompt = target_of("gpt2"), prompts("gpt2")[0]
    draft, text = LookaheadDraft(target, 4, 3, 3, CPU), own("gpt2", prompts("gpt2")[0])
    found = agreements(target, [draft], prompt, text, GREEDY, ahead=2)[0]
    assert len(found.beta) == len(text) and sum(found.beta) > 0 and any(found.silent)
    session, tokens, expected = draft.start(prompt, GREEDY), list(prompt.prefix), []
    reading = target.start(prompt)
    for token in text:
        proposal = session.propose(tokens, 2, torch.Generator())
        newest = session.window.found(tokens[-1])
        expected.append(float(bool(newest) and newest[0][0] == token))
        unread = tokens[reading.length :]
        first = len(proposal.tokens)  # the window's nodes are numbered on after the proposal's
        above = [parent if parent < 0 else parent - first for parent in proposal.unverified.parents]  # type: ignore[union-attr]
        parents = [*range(-1, len(unread) - 1), *(len(unread) + parent for parent in above)]
        logits = reading.extend(unread + proposal.unverified.tokens, parents)  # type: ignore[union-attr]
        session.after_unverified(logits[len(unread) :, :SIZE], ())
        reading.select(range(len(unread)))
        tokens.append(token)
    assert found.beta == expected


def test_no_window_is_read_where_the_target_has_no_positions_for_it() -> None:
    target = EagerModel(network("gpt2", 4), SIZE, frozenset())
    prompt = Prompt((), tuple(range(5, 30)))
    told = {"sampling": GREEDY, "max_new_tokens": 128 - 25, "generator": torch.Generator()}
    text = autoregressive(target, prompt, **told).tokens  # type: ignore[arg-type]
    draft = LookaheadDraft(target, 5, 4, 5, CPU)
    assert speculative(target, draft, prompt, gamma=3, **told).tokens == text  # type: ignore[arg-type]
