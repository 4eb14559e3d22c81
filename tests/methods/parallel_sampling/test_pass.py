"""PaSS: the target reads look-ahead positions beside the proposal that it verifies; the text is the target's, and what
it computes there is what it would without a cache."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from specbench.algorithm.batching import together
from specbench.algorithm.decoding import speculate
from specbench.engine.batch import Batch
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.sessions import EagerSession
from specbench.engine.layout import tree
from specbench.engine.saved_heads import extend
from specbench.engine.session import Prompt
from specbench.methods.parallel_sampling.draft import ParallelDraft, ParallelSession
from specbench.sampling import Sampling, standardise
from tests.support import chi
from tests.support.decode import autoregressive, spec_of, speculative
from tests.support.networks import network
from tests.support.prompts import prompts
from tests.support.toy import PROMPT, VOCABULARY, ToyModel

CPU = torch.device("cpu")
KINDS = ("t5", "gpt2", "llama")
TREES = sys.modules["specbench.engine.layout"]
GREEDY, WARM = Sampling(0.0), Sampling(1.0)
SIZE, AHEAD = 40, 3


def extended(kind: str, made: Any = EagerModel) -> tuple[Any, ParallelDraft]:
    """A random network that reads random look-ahead embeddings."""
    net = network(kind, 4)
    table_VD = net.get_decoder().get_input_embeddings().weight.detach()
    torch.manual_seed(5)
    ids = extend(net, torch.randn(AHEAD, table_VD.shape[1]) * table_VD.std())
    target = made(net, SIZE, frozenset({1}))
    return target, ParallelDraft(target, ids, CPU)


@cache
def made_of(kind: str) -> tuple[Any, ParallelDraft]:
    return extended(kind)


@cache
def own(kind: str, prompt: Prompt) -> list[int]:
    """What the network writes that has no look-ahead embeddings."""
    plain = EagerModel(network(kind, 4), SIZE, frozenset({1}))
    return autoregressive(plain, prompt, sampling=GREEDY, max_new_tokens=30, generator=torch.Generator()).tokens


def trace(target: Any, draft: ParallelDraft, prompt: Prompt, gamma: int) -> Any:
    return speculative(
        target, draft, prompt, gamma=gamma, sampling=GREEDY, max_new_tokens=30, generator=torch.Generator()
    )  # fmt: skip


@pytest.fixture
def knowing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Prompt], None]:
    """Random embeddings hardly predict a token: have them predict the text, but for every fifth token."""

    def of(kind: str, prompt: Prompt) -> None:
        text = own(kind, prompt)

        def propose(self: Any, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Any:
            self.at = len(tokens) - len(prompt.prefix)
            return asked(self, tokens, gamma, generator)

        def drafted(self: Any, gamma: int, generator: torch.Generator) -> tuple[list[int], None]:
            guessed, _ = guessing(self, gamma, generator)
            known = text[self.at : self.at + len(guessed)]
            return [token if (self.at + place) % 5 else 7 for place, token in enumerate(known)], None

        monkeypatch.setattr(ParallelSession, "propose", propose)
        monkeypatch.setattr(ParallelSession, "_drafted", drafted)

    asked, guessing = ParallelSession.propose, ParallelSession._drafted
    return of


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str, gamma: int, knowing: Callable[[str, Prompt], None]) -> None:
    target, draft = made_of(kind)
    passes = list[Any]()
    for prompt in prompts(kind):
        assert trace(target, draft, prompt, gamma).tokens == own(kind, prompt)
        knowing(kind, prompt)
        found = trace(target, draft, prompt, gamma)
        assert found.tokens == own(kind, prompt) and found.passes[0].drafted == 0
        passes += found.passes
    assert max(one.drafted for one in passes) == max(one.accepted for one in passes) == min(gamma, AHEAD)
    assert any(one.accepted < one.drafted for one in passes)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_captured_step_writes_the_same_text(kind: str, knowing: Callable[[str, Prompt], None]) -> None:
    target, draft = extended(kind, StaticModel)
    for prompt in prompts(kind):
        knowing(kind, prompt)
        assert trace(target, draft, prompt, 3).tokens == own(kind, prompt)


@torch.inference_mode()
def test_rows_of_a_batch_write_what_each_writes_alone() -> None:
    target, draft = made_of("gpt2")
    batch, spec = Batch.of(target, 2), spec_of(GREEDY, 30, 2)
    rows = [speculate(batch, draft, prompt, spec, torch.Generator()) for prompt in prompts("gpt2")]
    assert [one.tokens for one in together(rows, 2, batch)] == [own("gpt2", prompt) for prompt in prompts("gpt2")]


def plain(kind: str, prompt: Prompt, text: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """Logits [V] after `text` and these look-ahead positions, which the network reads as one chain, without a cache."""
    read = torch.tensor([[*prompt.prefix, *text, *ids]])
    given = {"input_ids": torch.tensor([prompt.source]), "decoder_input_ids": read} if kind == "t5" else {
        "input_ids": read
    }  # fmt: skip
    with torch.inference_mode():
        logits: torch.Tensor = made_of(kind)[0].network(**given).logits[0, -1]
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_predicted_is_what_an_uncached_reading_predicts(
    kind: str, knowing: Callable[[str, Prompt], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last accepted token, wherever in the proposal that is; with the rows of another end it is not."""
    target, draft = made_of(kind)
    seen, apart = set[int](), list[bool]()
    taking = ParallelSession.after_unverified

    def after(self: Any, logits_LV: torch.Tensor, path: Sequence[int]) -> None:
        taking(self, logits_LV, path)
        known = own(kind, self.prompt)[: self.at + len(path)]
        for place, ahead_V in enumerate(self._ahead_KV):
            expected = plain(kind, self.prompt, known, draft.ids[: place + 1])
            assert torch.allclose(ahead_V, expected, atol=1e-4)
            if len(logits_LV) > self._positions:
                elsewhere_V = logits_LV.roll(self._positions, 0)[len(path) * self._positions + place]
                apart.append(not torch.allclose(elsewhere_V, expected, atol=1e-2))
        seen.add(len(path))

    monkeypatch.setattr(ParallelSession, "after_unverified", after)
    for prompt in prompts(kind):
        knowing(kind, prompt)
        trace(target, draft, prompt, 2)
    assert seen == {0, 1, 2} and any(apart)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_scores_are_those_of_an_uncached_reading(kind: str) -> None:
    """Also of a text that is scored in parts."""
    draft = made_of(kind)[1]
    prompt = prompts(kind)[0]
    text, first = own(kind, prompt), len(prompt.prefix)
    tokens = [*prompt.prefix, *text]
    rows = list(draft.start(prompt, WARM).score_ahead(tokens, first, 5))
    assert len(rows) == AHEAD and all(len(q_LV) == len(text) for q_LV in rows)
    for ahead, q_LV in enumerate(rows):
        assert not q_LV[: ahead + 1].any()  # nothing was read before
        for place in range(ahead + 1, len(text)):
            logits = plain(kind, prompt, text[: place - 1 - ahead], draft.ids[: ahead + 1])
            assert torch.allclose(q_LV[place], standardise(logits[None], WARM, SIZE)[0], atol=1e-5)
    session = draft.start(prompt, WARM)
    parts = [
        list(session.score_ahead(tokens[:stop], start, 5))
        for start, stop in ((first, first + 3), (first + 3, first + 4), (first + 4, len(tokens)))
    ]
    for ahead, q_LV in enumerate(rows):
        assert torch.allclose(torch.cat([part[ahead] for part in parts]), q_LV, atol=1e-5)


def test_no_position_is_read_that_the_target_does_not_have() -> None:
    net = network("gpt2", 4)
    ids = extend(net, torch.randn(AHEAD, 32))
    target, prompt = EagerModel(net, SIZE, frozenset()), Prompt((), tuple(range(5, 30)))
    told = {"sampling": GREEDY, "max_new_tokens": 128 - 25, "generator": torch.Generator()}
    text = autoregressive(target, prompt, **told).tokens  # type: ignore[arg-type]
    draft = ParallelDraft(target, ids, CPU)
    assert speculative(target, draft, prompt, gamma=3, **told).tokens == text  # type: ignore[arg-type]
    assert [len(q_LV) for q_LV in draft.start(prompt, GREEDY).score_ahead([*prompt.prefix, *text], 25, 3)] == [103] * 3


def test_a_look_ahead_position_that_verified_tokens_see_is_caught(
    knowing: Callable[[str, Prompt], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def visible(length: int, parents: tuple[int, ...], *rest: Any) -> Any:
        made = tree(length, parents, *rest)
        return replace(made, visible_BLC=made.visible_BLC | (made.positions_BC == length + 1).unsqueeze(1))

    prompt = prompts("gpt2")[0]
    knowing("gpt2", prompt)
    monkeypatch.setattr(TREES, "tree", visible)
    assert trace(*made_of("gpt2"), prompt, 2).tokens != own("gpt2", prompt)


def test_a_look_ahead_key_left_in_the_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Any, length: int, nodes: Any, path: Sequence[int], part: Any = None) -> None:
        """The first key after the path remains."""
        surplus = len(nodes) - len(path) - 1
        nodes.select(path)
        for layer in self._caches(part):
            if surplus > 0:
                layer.crop(-surplus)

    monkeypatch.setattr(EagerSession, "_keep_nodes", keep)
    with pytest.raises(RuntimeError, match="must match"):  # the cache is longer than the text that it is of
        trace(*made_of("llama"), prompts("llama")[0], 2)


def p_value(samples: int = 2000) -> float:
    """Of sampled texts of a table whose look-ahead rows are drawn like the others."""
    generator = torch.Generator().manual_seed(3)
    table = torch.rand(VOCABULARY + 2, VOCABULARY + 2, VOCABULARY, generator=generator) ** 2 + 0.01
    table[:VOCABULARY, :VOCABULARY, 2] *= torch.rand(VOCABULARY, VOCABULARY, generator=generator) > 0.3
    target = ToyModel(table / table.sum(-1, keepdim=True))
    draft = ParallelDraft(target, range(VOCABULARY, VOCABULARY + 2), CPU)
    return chi.speculative_p_value(target, draft, PROMPT, 2, WARM, 4, samples)[0]


@pytest.mark.full
@pytest.mark.statistical
def test_sampled_texts_have_the_targets_distribution() -> None:
    """One false alarm in 10,000 seeds."""
    assert p_value() > chi.ALARM


@pytest.mark.statistical
def test_q_of_the_wrong_position_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens drawn at one look-ahead position and tested with the q of another."""

    def drafted(self: ParallelSession, gamma: int, generator: torch.Generator) -> Any:
        tokens, q_GV = drawn(self, gamma, generator)
        return tokens, None if q_GV is None else q_GV.roll(1, 0)

    drawn = ParallelSession._drafted
    monkeypatch.setattr(ParallelSession, "_drafted", drafted)
    assert p_value() < chi.ALARM
