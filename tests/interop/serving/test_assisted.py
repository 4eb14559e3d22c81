"""Another engine timed from outside: assisted generation's passes are those of Algorithm 1, and its parts foretell its
whole texts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.costs.core_time import CoreTime
from specbench.analysis.costs.disturbance import of_steps
from specbench.analysis.forecast.predict import Predictions
from specbench.cli import main
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.interop.serving.assisted import AssistedGeneration
from specbench.interop.serving.engine import Generated, prove, time_engine
from specbench.methods.model.draft import ModelDraft
from specbench.records.timed_rounds import Timed
from specbench.sampling import Sampling
from tests.support.calls import small
from tests.support.decode import speculative
from tests.support.networks import network

ENDS = frozenset({1})
SIZE = 64
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", params=["t5", "llama"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any, Prompt]:
    """A target, a draft that agrees with it now and then, and a prompt."""
    kind = request.param
    target, draft = (with_engine("eager", network(kind, seed=5), SIZE, ENDS) for _ in "ab")
    with torch.no_grad():
        for weights in draft.network.parameters():
            weights += 0.02 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))
    prompt = Prompt((5, 9, 12, 30, 1), (0,)) if kind == "t5" else Prompt((), (5, 9, 12, 30))
    return target, draft, prompt


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_its_passes_are_those_of_algorithm_1(pair: tuple[Any, Any, Prompt], gamma: int) -> None:
    """In fp32 token for token, after full acceptance too: there a draft of encoder-decoder models would read its whole
    text again after its cache, if `generate` were not given the decoder's mask."""
    target, draft, prompt = pair
    engine = AssistedGeneration(target.network, draft.network, Sampling(), 24)
    timed = engine.time_verifications(prompt, gamma, 24)
    ours = speculative(
        target, ModelDraft(draft, SIZE), prompt, gamma=gamma, sampling=Sampling(), max_new_tokens=24,
        generator=torch.Generator(),
    )  # fmt: skip
    assert [(one.drafted, one.accepted) for one in timed] == [(one.drafted, one.accepted) for one in ours.passes]
    assert gamma > 3 or any(one.accepted == gamma for one in timed)
    assert any(one.accepted < gamma for one in timed)
    assert [one.first for one in timed] == [True] + [False] * (len(timed) - 1)
    assert all(one.verify_s > 0 and one.accept_s > 0 for one in timed)
    assert all((one.draft_s > 0) == (one.drafted > 0) for one in timed)
    plain, helped = engine.generate(prompt, None, 0), engine.generate(prompt, gamma, 0)
    assert list(plain.text) == ours.tokens == list(helped.text) and plain.tokens == len(ours.tokens)
    assert len(engine.time_steps(prompt, 24)) == plain.tokens


def test_what_it_watched_is_left_as_it_was(pair: tuple[Any, Any, Prompt]) -> None:
    target, draft, prompt = pair
    engine = AssistedGeneration(target.network, draft.network, Sampling(), 8)
    engine.time_verifications(prompt, 2, 8)
    assert "generate" not in vars(draft.network)
    assert not target.network._forward_hooks and not target.network._forward_pre_hooks


def test_sampled_texts_follow_their_seed(pair: tuple[Any, Any, Prompt]) -> None:
    target, draft, prompt = pair
    engine = AssistedGeneration(target.network, draft.network, Sampling(1.0), 16)
    before = torch.random.get_rng_state()
    texts = [engine.generate(prompt, 3, seed).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(before, torch.random.get_rng_state())


class Clockwork:
    """An engine whose steps, passes and texts take times of their own, without noise: `start` once a text, a step 1, a
    drafted token 0.2 and 0.3 a pass for beginning to draft, a verification 1 + 0.05 a drafted token, 0.1 the rest."""

    name = "clockwork"
    start = 0.7

    def __init__(self, target: Any, draft: Any, most: int) -> None:
        self.inner = AssistedGeneration(target.network, draft.network, Sampling(), most)
        self.most = most

    def time_steps(self, begun: Prompt, tokens: int) -> list[float]:
        steps = [1.0] * len(self.inner.time_steps(begun, tokens))
        return [self.start + 1.0, *steps[1:]]

    def time_verifications(self, begun: Prompt, gamma: int, tokens: int) -> list[Timed]:
        return [
            Timed(
                one.asked,
                one.drafted,
                one.accepted,
                one.first,
                self.start * one.first + 0.3 * (one.drafted > 0) + 0.2 * one.drafted,
                1 + 0.05 * one.drafted,
                0.1,
            )
            for one in self.inner.time_verifications(begun, gamma, tokens)
        ]

    def generate(self, prompt: Prompt, gamma: int | None, seed: int) -> Generated:
        found = self.inner.generate(prompt, gamma, seed)
        if gamma is None:
            return Generated(found.tokens, sum(self.time_steps(prompt, self.most)), found.text)
        passes = self.time_verifications(prompt, gamma, self.most)
        return Generated(found.tokens, sum(one.draft_s + one.verify_s + one.accept_s for one in passes), found.text)


@pytest.mark.full
def test_its_parts_foretell_its_whole_texts(pair: tuple[Any, Any, Prompt]) -> None:
    """On a clock without noise, at T=0, within 2% for each gamma."""
    target, draft, prompt = pair
    some = [Prompt(prompt.source and (*prompt.source[:-1], 20 + i, 1), (*prompt.prefix, 40 + i)) for i in range(8)]
    engine, model = Clockwork(target, draft, 24), ModelDraft(draft, SIZE)
    written = [(one, [*engine.inner.generate(one, None, 0).text]) for one in some]  # type: ignore[misc]
    # Where a padding token was written, `generate` of the draft masks it.
    texts = [(one, text) for one, text in written if 0 not in text][:4]
    prompts = [one for one, _ in texts]
    found = [agreements(target, [model], one, text, Sampling())[0] for one, text in texts]
    gammas: Sequence[int] = (1, 2, 4)
    rounds = time_engine({"a": engine}, gammas, texts, 24, 3)
    table = Predictions({"a": found}, rounds, 24, 50, 0)
    proofs = prove({"a": engine}, [("a", gamma) for gamma in gammas], prompts)
    assert len(prompts) > 2
    for one in table.ranked:
        assert proofs["a", one.gamma].equal_share == 1.0
        assert one.estimated.value == pytest.approx(proofs["a", one.gamma].speedup.value, rel=0.02), one.gamma


@pytest.fixture
def argv(folders: dict[str, Path], tmp_path: Path) -> list[str]:
    own = ("resamples=100", "gammas=[1,3]", "rounds=2", "engine=transformers")
    return ["recommend", *small(folders, tmp_path, *own)]


@pytest.mark.full
def test_recommend_times_and_proves_assisted_generation(
    argv: list[str], folders: dict[str, Path], tmp_path: Path, capfd: Capture
) -> None:
    model = f"draft.path={folders['t5-draft']}"
    assert main([*argv, model, "--verify", "2", "--for", "transformers", "--format", "json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["for"][0]["engine"] == "transformers" and shown["for"][0]["gamma"] == shown["rows"][0]["gamma"]
    (file,) = (tmp_path / "recommend").glob("*.json")
    record = json.loads(file.read_text())
    assert record["engine"].startswith("transformers ") and record["encoder_decoder"]
    assert [one["gamma"] for one in record["verified"]] == [row["gamma"] for row in record["rows"]]
    for proof, row in zip(record["verified"], record["rows"], strict=True):
        assert proof["run_id"] is None and 0 <= proof["alike"] <= 1
        assert proof["off"] == pytest.approx(row["estimated"]["value"] / proof["measured"] - 1)
    assert not (tmp_path / "runs").exists()
    assert main([*argv, model, "--verify", "2", "--for", "transformers"]) == 0
    assert "measured before with the same keys" in capfd.readouterr().err
    assert main([*argv, model]) == 0
    assert "engine transformers" in capfd.readouterr().out
    assert main([*argv, model, "engine=eager"]) == 0  # the last of two engines counts, as of any key
    assert "engine eager" in capfd.readouterr().out


@pytest.mark.full
def test_a_disturbed_proof_of_another_engine_is_marked_and_not_used_again(
    argv: list[str], folders: dict[str, Path], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.analysis.costs.core_time.of_steps", of_steps)
    monkeypatch.setattr("specbench.analysis.costs.core_time.between", lambda *_: CoreTime(1.2, 0.8))
    command = [*argv, f"draft.path={folders['t5-draft']}", "--verify", "1"]
    assert main(command) == 0
    assert "CONTENDED" in capfd.readouterr().out
    (file,) = (tmp_path / "recommend").glob("*.json")
    (proof,) = json.loads(file.read_text())["verified"]
    assert proof["off"] is None and proof["disturbed_by"].startswith("it waited for a core 40%")
    assert main(command) == 0
    assert "measured before" not in capfd.readouterr().err


@pytest.mark.full
def test_what_assisted_generation_cannot_do_is_one_line(
    argv: list[str], folders: dict[str, Path], capfd: Capture
) -> None:
    model = f"draft.path={folders['t5-draft']}"
    for overrides, said in (
        (["draft=random"], "draft=random: engine=transformers is timed with drafts that are models"),
        ([model, "accept=block"], "accept=block: transformers accepts by Algorithm 1"),
        ([model, "engine=tgi"], "engine=tgi: must be"),
        ([model, "engine=openai"], "engine=openai: recommend cannot time a server"),
    ):
        assert main([*argv, *overrides]) == 2
        assert said in capfd.readouterr().err
