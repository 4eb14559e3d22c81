"""PARD: a model that reads mask tokens, whose logits are those of `transformers` over the whole text; its proposals,
trees, scores and batches; what does not fit is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Found
from specbench.algorithm.tree_draft import TreeDraft
from specbench.cli import main
from specbench.conformance import check_draft
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.pard.config import FIELD
from specbench.methods.pard.draft import PardDraft, PardSession
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence, TreeShape
from tests.support import captured, chi
from tests.support.batch_rows import alone, in_rows, same
from tests.support.calls import newest, refusal
from tests.support.decode import autoregressive, spec_of, speculative
from tests.support.networks import network
from tests.support.toy import EOS, VOCABULARY

SIZE, MASK = 40, 50
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
PROMPT = Prompt((), (5, 9, 12, 30))
TEXT = [5, 9, 12, 30, 7, 3, 8, 8, 21, 2, 17, 6]


def made(kind: str = "llama", engine: Any = EagerModel, size: int = SIZE, end: int = 1) -> tuple[Any, PardDraft]:
    """A target, and a draft on another network."""
    target, model = (engine(network(kind, seed), size, frozenset({end})) for seed in (4, 5))
    return target, PardDraft(model, MASK, torch.device("cpu"))


def differences(draft: PardDraft, mask: int = MASK) -> float:
    """The largest difference of logits from `transformers`, in one session whose proposals are partly accepted."""
    own, session, largest = draft.model.network, draft.start(PROMPT, SAMPLED), 0.0  # type: ignore[attr-defined]
    for length, count in ((5, 4), (6, 1), (8, 3), (12, 4)):
        rows_KV = session.ahead(TEXT[:length], count)
        assert rows_KV is not None and len(rows_KV) == count
        whole_LV = own(torch.tensor([[*TEXT[:length], *[mask] * (count - 1)]])).logits[0]
        largest = max(largest, float((rows_KV - whole_LV[-count:])[:, :SIZE].abs().max()))
        session.rollback(length)
    return largest


@pytest.mark.parametrize(
    "engine", [EagerModel, StaticModel, captured.fastest, pytest.param(captured.graphs, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.full)])
@torch.inference_mode()
def test_logits_are_those_of_transformers(kind: str, engine: Any) -> None:
    assert differences(made(kind, engine)[1]) < 2e-5


@torch.inference_mode()
def test_another_mask_token_has_other_logits() -> None:
    assert differences(made()[1], MASK + 1) > 1e-2


@pytest.mark.parametrize("engine", [EagerModel, pytest.param(StaticModel, marks=pytest.mark.full)])
def test_greedy_texts_are_the_targets_own(engine: Any) -> None:
    """As chains, and as trees of fixed and of dynamic shape."""
    target, draft = made(engine=engine)
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
    own = autoregressive(target, PROMPT, **told).tokens
    chain = speculative(target, draft, PROMPT, gamma=4, **told)
    assert chain.tokens == own and max(a_pass.drafted for a_pass in chain.passes) == 4
    for plan in (ByConfidence(8, 3, 3), TreeShape.of_widths([2, 2, 1])):
        trace = speculative(target, TreeDraft(draft, plan, "fixed", target.eos_ids), PROMPT, gamma=plan.depth, **told)
        assert trace.tokens == own and any(a_pass.parents for a_pass in trace.passes)


def test_rows_of_proposals_and_nodes_are_those_of_scoring() -> None:
    """q of each token is that of a fresh session along the text, in parts, too."""
    _, draft = made(end=SIZE)  # no text ends
    for text in ([7, 9], [5, 9, 12, 30, 7, 9, 30]):
        prompt = Prompt((), tuple(text))
        proposal = draft.start(prompt, SAMPLED).propose(text, 3, torch.Generator().manual_seed(3))
        assert proposal.q_GV is not None and len(proposal.tokens) == 3
        whole = [*text, *proposal.tokens]
        rows = list(draft.start(prompt, SAMPLED).score_ahead(whole, len(text), 3))
        parts = draft.start(prompt, SAMPLED)
        halves = [list(parts.score_ahead(whole[:-1], len(text), 3)), list(parts.score_ahead(whole, len(whole) - 1, 3))]
        for place in range(3):
            assert torch.allclose(proposal.q_GV[place], rows[place][place], atol=1e-5)
            assert torch.allclose(rows[place], torch.cat([half[place] for half in halves]), atol=1e-5)
        session = draft.start(prompt, SAMPLED)
        levels: list[Any] = [session.after_text(text, 3), session.after_nodes([4, 22], [-1, -1])]
        levels.append(session.after_nodes([8], [1]))
        for place, level in enumerate(levels):
            q_LV = level._q()
            assert torch.allclose(q_LV, proposal.q_GV[place].expand_as(q_LV), atol=1e-5)
        assert isinstance(session.after_nodes([3], [2]), Found)  # no child


class WrongPlace(PardSession):
    """The planted fault: each token is tested with the q of the token before its own."""

    def proposing(self, tokens: Any, gamma: int, generator: torch.Generator) -> Any:
        proposal = yield from super().proposing(tokens, gamma, generator)
        q_GV = proposal.q_GV
        return proposal if q_GV is None else Proposal(proposal.tokens, torch.cat([q_GV[:1], q_GV[:-1]]))


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [False, pytest.param(True, marks=pytest.mark.full)])
def test_sampled_texts_have_the_targets_distribution(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where q is of a wrong position; first tokens have the q that is reported."""
    target, draft = made(size=VOCABULARY, end=EOS)
    prompt = Prompt((), (0,))
    if wrong:
        monkeypatch.setattr(draft, "start", lambda prompt, sampling: WrongPlace(draft, prompt, sampling))
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, 3, SAMPLED, 4, 400)
    assert (p_value > chi.ALARM) != wrong and 10 < rejected < 390
    if not wrong:
        check_draft(draft, VOCABULARY, prompt, [1, 1, 2])


def test_a_row_of_a_batch_writes_what_it_writes_alone() -> None:
    target, draft = made(end=SIZE)
    prompts = [Prompt((), tuple(TEXT[:length])) for length in (2, 5, 3)]
    spec = spec_of(GREEDY, 10, 3)
    same(in_rows(target, draft, prompts, spec, 2), alone(target, draft, prompts, spec))


def test_the_last_positions_limit_a_proposal() -> None:
    draft = made("gpt2")[1]
    draft.model.longest = len(TEXT) + 1
    session = draft.start(PROMPT, GREEDY)
    assert [len(session.propose(TEXT[:length], 4, torch.Generator()).tokens) for length in (9, 11, 12)] == [4, 3, 2]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no token": ({}, f"has no {FIELD}, the token that stands for those not known yet: it is no PARD checkpoint"),
    "a token past the end": ({FIELD: 64}, "pard_token=64: must be a token of the model, below its vocab_size=64"),
    "a token that is none": ({FIELD: "<mask>"}, "pard_token=<mask>: must be a token"),
    "its second version": ({FIELD: 50, "spd_type": "pard2"}, "spd_type=pard2: only pard is supported"),
}


def checkpoint(folders: dict[str, Path], folder: Path, told: dict[str, Any]) -> list[str]:
    """A run with the draft in `folder`, whose config says `told`, too."""
    folder.mkdir()
    for file in folders["llama-draft"].iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    own = json.loads((folders["llama-draft"] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(own | told))
    return [
        "run", f"target.path={folders['llama']}", "task=ende", f"task.path={folders['rows']}", "draft=pard",
        f"draft.path={folder}", f"results={folder.parent / 'results'}", "dtype=float32", "device=cpu", "engine=eager",
        "max_new_tokens=8", "limit=3",
    ]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_pard_checkpoint_is_refused_by_name(
    case: str, folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told, message = REFUSED[case]
    assert message in refusal(checkpoint(folders, tmp_path / "model", told), capfd)


def test_a_run_reads_the_folder(folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv = checkpoint(folders, tmp_path / "model", {FIELD: 50, "spd_type": "pard"})
    assert "is decoder-only and target=t5 is encoder-decoder" in refusal([*argv, f"target.path={folders['t5']}"], capfd)
    assert main([*argv, "gamma=3"]) == 0
    summary = newest(tmp_path / "results")["summary"]
    assert (summary["draft"], summary["identical"]) == ("pard-model", 1.0) and summary["c_step"] is not None


@pytest.mark.full
def test_a_sampled_run_proves_its_texts(folders: dict[str, Path], tmp_path: Path) -> None:
    argv = checkpoint(folders, tmp_path / "model", {FIELD: 50, "spd_type": "pard"})
    assert main([*argv, "gamma=3", "sampling.temperature=1"]) == 0
    summary = newest(tmp_path / "results")["summary"]
    assert summary["lossless"] and abs(summary["proof_z"]) < 4 and summary["proof_outside"] == 0
