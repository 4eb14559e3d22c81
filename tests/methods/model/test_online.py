"""A draft that learns from its rejected tokens between prompts: completions are the target's, every engine sees the new
weights, and a run says what was learnt."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.cli import main
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.loading.model_loader import ModelLoader
from specbench.methods.model.online import OnlineDraft, OnlineLearner, OnlineSession, VerifiedText
from specbench.records.frame import Records
from specbench.report.figures import build
from specbench.sampling import Sampling
from tests.support import chi
from tests.support.calls import called, interrupted, newest, refusal, small_run
from tests.support.captured import fastest, graphs
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, exact, random_table

Folders = dict[str, Path]
WARM, GREEDY = Sampling(1.0), Sampling(0.0)
SIZE, LENGTH, SAMPLES = 40, 4, 3000
SOURCE = Prompt((5, 6, 7, 8, 1), (0,))
ONLINE = ("draft.online=true", "draft.online_every=1", "draft.online_lr=0.02")


class ChangingToy(ToyModel):
    """A toy that draws with another table after each update."""

    def __init__(self) -> None:
        super().__init__(random_table(2))
        self.updates = 0

    steps = 1

    def learn(self, texts: Sequence[VerifiedText]) -> float:
        assert all(len(text.positions) == len(text.logits_NV) for text in texts)
        self.updates += 1
        self.table_VVV = random_table(100 + self.updates % 7)
        return 0.0

    def weights_changed(self) -> None:
        pass


def p_value() -> tuple[float, int]:
    """Of texts at T=1 between which the draft's weights change, and how often they did."""
    target, model = ToyModel(random_table(1)), ChangingToy()
    draft = OnlineDraft(model, VOCABULARY, model, every=2)  # type: ignore[arg-type]

    def decode(generator: torch.Generator) -> list[int]:
        text = speculative(target, draft, PROMPT, gamma=3, sampling=WARM, max_new_tokens=LENGTH, generator=generator)
        draft.learn(PROMPT, text.tokens)
        return text.tokens

    return chi.p_value(decode, exact(target, WARM, LENGTH), SAMPLES), model.updates


@pytest.mark.full
@pytest.mark.statistical
def test_sampled_texts_have_the_targets_distribution_while_the_draft_learns() -> None:
    """One false alarm in 10,000 seeds."""
    p, updates = p_value()
    assert p > chi.ALARM and updates > 1000


@pytest.mark.statistical
def test_a_token_tested_with_the_q_after_an_update_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft learns between drawing its tokens and their verification, which is given the new q."""
    plain = OnlineSession.proposing

    def learning_too_early(self: Any, tokens: Any, gamma: int, generator: torch.Generator) -> Any:
        proposal = yield from plain(self, tokens, gamma, generator)
        self.model.learn([])
        length = self.session.length
        fresh = self.model.start(PROMPT)
        rows = (
            fresh.extend([*tokens, *proposal.tokens[:-1]]).softmax(-1)[len(tokens) - 1 :] if proposal.tokens else None
        )
        assert self.session.length == length
        return type(proposal)(proposal.tokens, rows, asked=proposal.asked)

    monkeypatch.setattr(OnlineSession, "proposing", learning_too_early)
    assert p_value()[0] < chi.ALARM


def online(model: EagerModel, lr: float = 0.02, every: int = 1, rejected_only: bool = True) -> OnlineDraft:
    learner = OnlineLearner(model.network, lr, 4, "adamw", 1.0)
    return OnlineDraft(model, SIZE, learner, every, rejected_only=rejected_only)


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("engine", [EagerModel, StaticModel, fastest, graphs])
def test_greedy_texts_are_the_targets_and_every_engine_drafts_with_the_new_weights(
    engine: Callable[..., EagerModel],
) -> None:
    target = EagerModel(network("t5", 1), SIZE, frozenset({1}))
    model = engine(network("t5", 2, layers=1), SIZE, frozenset({1}))
    draft, generator = online(model), torch.Generator()
    settings: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": generator}
    own, losses, shares = autoregressive(target, SOURCE, **settings).tokens, [], []
    for _ in range(6):
        text = speculative(target, draft, SOURCE, gamma=3, **settings)
        assert text.tokens == own
        shares.append(sum(one.accepted for one in text.passes) / sum(one.drafted for one in text.passes))
        losses.append(draft.learn(SOURCE, text.tokens).loss)
    assert shares[-1] > shares[0] and all(loss is not None for loss in losses[:2])
    tokens = [0, 3, 4, 5, 9, 2]
    fresh = EagerModel(model.network, SIZE, frozenset({1})).start(SOURCE).extend(tokens)
    torch.testing.assert_close(model.start(SOURCE).extend(tokens), fresh, atol=1e-4, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_decoder_only_drafts_learn(kind: str) -> None:
    target = EagerModel(network(kind, 1), SIZE, frozenset())
    draft, prompt = online(StaticModel(network(kind, 2, layers=1), SIZE, frozenset())), Prompt((), (5, 6, 7))
    losses = []
    for _ in range(4):
        text = speculative(
            target, draft, prompt, gamma=2, sampling=GREEDY, max_new_tokens=20, generator=torch.Generator()
        )
        losses.append(draft.learn(prompt, text.tokens).loss or 0.0)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("rejected_only", [True, False])
def test_what_a_draft_learns_from(rejected_only: bool) -> None:
    """The positions of the rejected tokens, or all, the target's logits there, and nothing of a completion before."""
    target, seen = EagerModel(network("t5", 1), SIZE, frozenset({1})), list[VerifiedText]()
    model = EagerModel(network("t5", 2, layers=1), SIZE, frozenset({1}))
    draft = online(model, every=2, rejected_only=rejected_only)
    draft.learner.learn = lambda texts: seen.extend(texts) or 0.5  # type: ignore[method-assign, func-returns-value]
    for _ in range(2):  # a warm-up round first
        text = speculative(
            target, draft, SOURCE, gamma=3, sampling=GREEDY, max_new_tokens=12, generator=torch.Generator()
        )
    first, second = draft.learn(SOURCE, text.tokens), draft.learn(SOURCE, text.tokens)
    (one,) = seen
    assert one.tokens == [*SOURCE.prefix, *text.tokens] and first.steps == second.rejected == 0
    assert second.positions == len(one.positions) and (second.steps, second.loss) == (4, 0.5)
    drafted = sum(one.accepted < one.drafted for one in text.passes)
    assert 0 < first.rejected <= drafted and (not rejected_only or len(one.positions) == first.rejected)
    assert rejected_only or one.positions == list(range(1, len(one.tokens)))
    rows = target.start(SOURCE).extend(one.tokens)
    for position, logits_V in zip(one.positions, one.logits_NV, strict=True):
        torch.testing.assert_close(logits_V, rows[position - 1, :SIZE], atol=1e-4, rtol=1e-4)
        assert one.tokens[position] == int(logits_V.argmax())


def without_times(record: Any) -> list[Any]:
    """What decoding and learning gave, prompt by prompt."""
    return [
        (
            prompt["beta"], prompt["speculative"].tokens,
            [(one.drafted, one.accepted, one.tokens) for one in prompt["speculative"].passes],
            "online" in prompt and replace(prompt["online"], seconds=0.0, timed=False),
        )
        for prompt in record["prompts"]
    ]  # fmt: skip


@pytest.mark.full
def test_a_run_records_what_was_learnt_and_a_seed_gives_it_again(
    folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = small_run(folders, tmp_path, *ONLINE, "sampling.temperature=1")
    code, out, err, record = called(command, tmp_path, capfd)
    assert code == 0, err
    summary, lessons = record["summary"], [prompt["online"] for prompt in record["prompts"]]
    assert summary["draft"] == "t5-draft-online" and summary["lossless"]
    assert summary["learnt_positions"] == sum(one.rejected for one in lessons) > 0
    assert summary["learnt_steps"] == 4 * sum(one.steps > 0 for one in lessons)
    assert summary["learning_s"] > 0 and not summary["learning_timed"]
    assert "learning" in out + err and "order of the prompts" in out + err
    main([*command, "force=true", "draft.online_timed=true"])
    again = newest(tmp_path)
    assert without_times(again) == without_times(record) and again["summary"]["learning_timed"]
    for prompt in again["prompts"]:
        ours = prompt["speculative"]
        passes = sum(one.draft_s + one.verify_s + one.accept_s for one in ours.passes)
        assert ours.decode_s == pytest.approx(passes + prompt["online"].seconds, abs=1e-3)


@pytest.mark.full
def test_a_learning_rate_of_0_is_the_control_of_a_figure(folders: Folders, tmp_path: Path) -> None:
    """It gives the tokens, passes and α of a run without learning, and the figure has both in each order."""
    rates, orders = "draft.online_lr=0,0.02", "task.shuffle=null,1"
    warm = ("sampling.temperature=1", "engine=static", "max_new_tokens=8")
    assert main(small_run(folders, tmp_path / "plain", *warm)) == 0
    assert main(small_run(folders, tmp_path / "learning", *ONLINE, rates, orders, *warm, verb="sweep")) == 0
    records = Records(tmp_path / "learning")
    control = records.learning.query("learning_rate == 0")
    whole = [records.whole(run_id) for run_id in control["run_id"]]
    (in_order,) = [record for record in whole if record["config"]["task"]["shuffle"] is None]
    plain = [one[:3] for one in without_times(newest(tmp_path / "plain"))]
    assert [one[:3] for one in without_times(in_order)] == plain
    (drawn,) = build(["online"], records)
    points = drawn.points
    assert len(points) == 3 * 4 and set(points["learning_rate"]) == {0, 0.02}
    assert set(points["order"]) == {"as they come", "shuffled"}
    of_control = points[(points["learning_rate"] == 0) & (points["order"] == "as they come")]
    assert list(of_control["alpha"]) == [pytest.approx(sum(beta) / len(beta)) for beta, *_ in plain]
    assert of_control["alpha_window"].iloc[-1] == pytest.approx(in_order["summary"]["alpha"])
    assert len([note for note in drawn.notes if "learnt from" in note]) == 2


@pytest.mark.full
def test_the_weights_that_other_runs_share_do_not_change(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sweep plain runs share a draft; a run that learns loads its own, whose weights change, in memory alone."""
    file = folders["t5-draft"] / "model.safetensors"
    stored = file.read_bytes()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(folders["rows"].read_text() * 2)
    made, load = list[tuple[bool, Any, Any]](), ModelLoader.load

    def noting(self: Any, request: Any, say: Any) -> EagerModel:
        model = load(self, request, say)
        if request.key == "draft":
            made.append((request.changes, model.network, copy.deepcopy(model.network.state_dict())))
        return model

    monkeypatch.setattr(ModelLoader, "load", noting)
    lists = ("draft.online=false,true", f"task.path={rows}", "max_new_tokens=6")
    assert main(small_run(folders, tmp_path, *lists, verb="sweep")) == 0
    same = [all(map(torch.equal, network.state_dict().values(), before.values())) for _, network, before in made]
    assert file.read_bytes() == stored
    assert sorted(learns for learns, *_ in made) == [False, True]
    assert same == [not learns for learns, *_ in made]


@pytest.mark.full
def test_an_interrupted_run_starts_again(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = small_run(folders, tmp_path, *ONLINE)
    with interrupted(monkeypatch, after=2):
        assert main(command) == 130
    code, _, err, record = called(command, tmp_path, capfd)
    assert code == 0 and "the weights learnt from the 2 prompts before the interruption are lost" in err
    assert record["summary"]["processes"] == 1 and len(record["prompts"]) == 3
    main([*command, "force=true"])
    assert without_times(newest(tmp_path)) == without_times(record)


@pytest.mark.full
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["draft.online_lr=0.1"], "draft.online_lr=0.1: is for draft.online=true"),
        (["draft.online=true", "draft.online_lr=-1"], "draft.online_lr=-1.0: must be at least 0"),
        (["draft.online=true", "draft.online_every=0"], "draft.online_every=0: must be at least 1"),
        (["draft.online=true", "draft.online_steps=0"], "draft.online_steps=0: must be at least 1"),
        (["draft.online=true", "draft.online_optimiser=adam"], "draft.online_optimiser=adam: must be adamw | sgd"),
        (["draft.online=true", "draft.online_tokens=all"], "draft.online_tokens=all: must be rejected | verified"),
        (["draft.online=true", "draft.online_temperature=0"], "draft.online_temperature=0.0: must be above 0"),
        (["draft.online=true", "batch=2"], "batch=2: draft.online=true learns from one prompt after another"),
        (["draft.online=true", "simulate.alpha=0.5"], "has nothing to learn from acceptance by chance"),
        (["draft.online=true", "engine=compile"], "engine=compile: freezes the draft's weights"),
        (["draft.online=true", "tree=widths", "gamma=tree"], "it learns from chains"),
        (["draft.online=true", "draft.vocabulary=tli"], "not together with draft.vocabulary=tli"),
        (["draft=bigram", "draft.online=true"], "draft.online=True: draft.kind=bigram has no such option"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    keys: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(["run", "target=t5-mini", "draft=t5-nano", *keys], capfd)


@pytest.mark.full
@pytest.mark.parametrize("verb", ["alpha", "recommend", "bench", "bench beam"])
def test_verbs_that_measure_one_draft_refuse_it(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    said = refusal([*verb.split(), "target=t5-mini", "draft=t5-nano", "draft.online=true"], capfd)
    assert "draft.online=true: is for specbench run and sweep" in said
