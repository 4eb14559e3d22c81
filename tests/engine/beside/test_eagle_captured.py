"""EAGLE's layer as captured steps: what it predicts is what the layer's own modules predict, whatever was read, drafted
and rolled back before."""

import hashlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.engine.beside import captured as beside_captured
from specbench.engine.beside import eager as beside_eager
from specbench.engine.beside.captured import CapturedBeside, CapturedEntries
from specbench.engine.beside.declared import Prediction
from specbench.engine.beside.eager import EagerEntries
from specbench.engine.buffers import MOST_STACKED
from specbench.engine.capture import marking, saved_captures
from specbench.engine.capture.saved_captures import cached_capture
from specbench.engine.capture.static import StaticModel
from specbench.methods.eagle.beside import beside, probe
from specbench.methods.eagle.entries import EagleEntries
from specbench.methods.eagle.network import Eagle
from specbench.sampling import Sampling
from tests.support import captured
from tests.support.batch_rows import alone, in_rows, prompts_of
from tests.support.batch_rows import same as same_texts
from tests.support.decode import spec_of, speculative
from tests.support.eagle_layer import SIZE, TAPS, made, random_eagle
from tests.support.networks import network
from tests.support.prompts import prompts

ENGINES: dict[str, Any] = {"static": StaticModel, "native": captured.fastest, "cudagraph": captured.graphs}
SOURCE = 5
GREEDY = Sampling(0.0)
SPEC = spec_of(GREEDY, 12, 3)


def layer(kind: str, taps: tuple[int, ...] = (), engine: Any = StaticModel) -> tuple[Eagle, StaticModel]:
    own = network(kind, 4, layers=1)
    return random_eagle(own, taps, 30), engine(own, SIZE, frozenset({1}))


def captured_eagle(eagle: Eagle, target: StaticModel) -> CapturedBeside | None:
    return beside_captured.captured(beside(eagle), target, partial(probe, eagle))


def required(eagle: Eagle, target: StaticModel) -> CapturedBeside:
    found = captured_eagle(eagle, target)
    assert found is not None
    return found


def sessions(eagle: Eagle, model: CapturedBeside) -> tuple[EagleEntries, EagleEntries]:
    """A captured session and an eager one, of the same source."""
    shape = eagle.shape.layer
    keys = torch.randn(2, 1, shape.heads, SOURCE, shape.head_width, generator=torch.Generator().manual_seed(3))
    states = [(keys[0], keys[1])] if shape.crosses else []
    both = CapturedEntries(model, states), EagerEntries(model.beside, states.copy)
    return EagleEntries(eagle, both[0]), EagleEntries(eagle, both[1])


def same(ours: Prediction, own: Prediction) -> None:
    for found, expected in zip(ours, own, strict=True):
        drafted = expected.isfinite()  # the rest is not in the draft vocabulary
        found = found[:, : expected.shape[1]]
        assert torch.equal(found.isfinite(), drafted)
        assert (found - expected)[drafted].abs().max() < 3e-4 * expected[drafted].abs().max()


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("t5", "static"), ("t5", "native"), ("t5", "cudagraph"), ("t5-v1_1", "static"), ("gpt2", "native"),
     ("gpt2", "cudagraph"), ("llama", "static")],
)  # fmt: skip
@torch.inference_mode()
def test_a_captured_step_predicts_what_the_layer_does(kind: str, engine: str) -> None:
    """EAGLE and EAGLE-3: chains, trees and rejections, in a text that outgrows its first buffers."""
    for taps in ((), TAPS):
        eagle, target = layer(kind, taps, ENGINES[engine])
        ours, own = sessions(eagle, required(eagle, target))
        features = torch.randn(400, eagle.shape.feature_width, generator=torch.Generator().manual_seed(5))
        for read, kept in ((5, 5), (1, 4), (3, 7), (55, 62), (2, 64), (1, 65), (200, 260)):
            begin = ours.length
            tokens = [(7 * begin + index) % SIZE for index in range(read)]
            after = [one.read(features[begin : begin + read], tokens) for one in (ours, own)]
            same(*after)
            state_1D = after[1].states_LD
            for token in (9, 22, 4):
                chain = [one.draft(state_1D, token) for one in (ours, own)]
                same(*chain)
                state_1D = chain[1].states_LD
            for one in (ours, own):
                one.forget()
            before = after[1].states_LD.expand(2, -1)
            nodes = [one.draft_nodes(before, [7, 8], [-1, -1]) for one in (ours, own)]
            same(*nodes)
            before = nodes[1].states_LD[[1, 0, 0]]
            same(*(one.draft_nodes(before, [3, 8, 5], [1, 0, 0]) for one in (ours, own)))
            for one in (ours, own):
                one.rollback(kept)
            assert ours.length == own.length


@torch.inference_mode()
def test_large_buffers_grow_alone() -> None:
    """From the size at which they are no longer stacked on, see `Buffers`."""
    eagle, target = layer("llama", TAPS, ENGINES["static"])
    ours, own = sessions(eagle, required(eagle, target))
    features = torch.randn(9, eagle.shape.feature_width, generator=torch.Generator().manual_seed(5))
    for begin, end in ((0, 5), (5, 9)):
        after = [one.read(features[begin:end], range(begin, end)) for one in (ours, own)]
        same(*after)
        assert isinstance(ours.session, CapturedEntries)
        ours.session.reserve(MOST_STACKED + 1)
        before = after[1].states_LD.expand(3, -1)
        same(*(one.draft_nodes(before, [7, 8, 9], [-1, -1, -1]) for one in (ours, own)))
        for one in (ours, own):
            one.rollback(end)


@pytest.mark.parametrize("module", [beside_captured, beside_eager])
@torch.inference_mode()
def test_a_long_prompt_is_read_in_parts(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its mask is small; here in parts of 3 and of 10 tokens, by one of the two."""
    monkeypatch.setattr(module, "tokens_at_once", lambda slots: max(1, 200 // slots))
    eagle, target = layer("llama", TAPS)
    both = sessions(eagle, required(eagle, target))
    features = torch.randn(31, eagle.shape.feature_width, generator=torch.Generator().manual_seed(5))
    for begin, end in ((0, 20), (20, 30), (30, 31)):
        same(*(one.read(features[begin:end], range(begin, end)) for one in both))
        assert {one.length for one in both} == {end}


@pytest.mark.full
def test_graphs_are_captured_between_texts() -> None:
    """Steps that a text runs uncaptured are captured before the next one, replayed there, and draft the same."""
    target, draft = made("gpt2", (), captured.graphs_before_the_clock)
    target.eos_ids = frozenset()

    def passes() -> list[list[int]]:
        told: dict[str, Any] = {"gamma": 3, "sampling": GREEDY, "max_new_tokens": 12, "generator": torch.Generator()}
        return [one.tokens for one in speculative(target, draft, prompts("gpt2")[0], **told).passes]

    first = passes()
    assert passes() == first
    captures, uncaptured = target.captures, target.uncaptured
    assert passes() == first and (target.captures, target.uncaptured) == (captures, uncaptured)


def seeing_the_next(query: Any, keys: Any, values: Any, bias: Any, scale: float) -> torch.Tensor:
    found: torch.Tensor = attend(query, keys, values, bias * 0, scale)
    return found


attend = marking.attend


@pytest.mark.full
def test_a_capture_that_computes_anything_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = SimpleNamespace(attend=seeing_the_next, write=marking.write)
    monkeypatch.setattr(beside_captured, "marking", faulty)
    with pytest.warns(UserWarning, match=r"cannot be captured: the compiled step differs .* it runs eagerly"):
        assert captured_eagle(*layer("gpt2")) is None


@pytest.mark.full
def test_a_second_start_reads_the_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where weights are others. A file that holds another capture is found out, and removed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(saved_captures, "cached_capture", cached_capture)
    eagle, target = layer("t5")
    assert not required(eagle, target).program.cached
    again = required(eagle, target)
    assert len(set(again.program.cached)) == 2  # reading and drafting
    ours, own = sessions(eagle, again)
    with torch.inference_mode():
        features = torch.randn(3, eagle.shape.feature_width)
        same(ours.read(features, [4, 5, 6]), own.read(features, [4, 5, 6]))
    content = again.program.cached[0].read_text().partition("\n")[2].replace("1e-06", "5.0")
    again.program.cached[0].write_text(f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}")
    assert not required(eagle, target).program.cached
    eagle.fc.weight.add_(1.0)
    assert not required(eagle, target).program.cached


@pytest.mark.full
@torch.inference_mode()
def test_a_row_of_a_batch_writes_what_it_writes_alone() -> None:
    """Each row has captured entries of its own, on its own source."""
    target, draft = made("t5", (), StaticModel, size=43)
    assert draft.captured is not None
    rows = in_rows(target, draft, prompts_of("t5", (1, 17, 3, 8)), SPEC, 2)
    same_texts(rows, alone(target, draft, prompts_of("t5", (1, 17, 3, 8)), SPEC))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@torch.inference_mode()
def test_what_the_graphs_of_a_layer_read_lives_as_long_as_they_do(kind: str) -> None:
    captured.Recording.freed()
    eagle, target = layer(kind, (), partial(captured.graphs, capture=captured.Recording))
    ours, _ = sessions(eagle, required(eagle, target))
    features = torch.randn(40, eagle.shape.feature_width, generator=torch.Generator().manual_seed(5))
    for begin, read in ((0, 5), (5, 1), (6, 3)):
        ours.read(features[begin : begin + read], [7] * read)
    assert captured.Recording.captures
    assert captured.Recording.freed() == []
