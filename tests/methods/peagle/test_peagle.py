"""P-EAGLE: checkpoints in published layouts, written with random weights, whose logits are those of plain code; its
proposals, trees and scores; what does not fit is refused in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.continuations import Found
from specbench.algorithm.tree_draft import TreeDraft
from specbench.cli import main
from specbench.conformance import check_draft
from specbench.engine.beside import eager as beside_eager
from specbench.engine.beside.captured import CapturedEntries
from specbench.engine.beside.eager import EagerEntries
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.peagle.draft import PEagleDraft
from specbench.methods.peagle.entries import PEagleEntries
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence, TreeShape
from tests.support import captured, chi, published
from tests.support.calls import newest, refusal
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.peagle_files import CASES, made, read
from tests.support.published import ROWS, SIZE
from tests.support.toy import EOS, VOCABULARY

GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
PROMPT = Prompt((), (5, 9, 12, 30))


def differences(case: str, draft: PEagleDraft) -> float:
    """The largest difference of logits from plain code, in one session whose proposals are partly accepted."""
    (told, state), taps = CASES[case]
    text, largest = [5, 9, 12, 30, 7, 3, 8, 8, 21, 2, 17, 6], 0.0
    plain, session = network("llama", 4, layers=7), draft.target.start(PROMPT)
    drafting = draft.start_on(session, PROMPT, SAMPLED)
    for length, count in ((5, 4), (6, 1), (8, 3), (12, 4)):
        session.extend([*text[session.length : length - 1], 11, 12])  # read with a proposal, which is rejected
        session.rollback(length - 1)
        drafting.rollback(length - 1)
        rows_KV = drafting.ahead(text[:length], count)
        assert rows_KV is not None
        wanted_KV = torch.stack(published.drafted_at_once(told, state, plain, taps, text[:length], count))
        known = wanted_KV.isfinite()
        assert torch.equal(rows_KV.isfinite(), known) and rows_KV.shape == (count, ROWS)
        largest = max(largest, float((rows_KV - wanted_KV)[known].abs().max()))
    return largest


@pytest.mark.parametrize(("case", "most"), [*((case, None) for case in CASES), ("speculators", 20)])
@torch.inference_mode()
def test_logits_are_those_of_plain_code(
    case: str, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a long prompt is read in parts, too."""
    if most is not None:
        monkeypatch.setattr(beside_eager, "tokens_at_once", lambda slots: max(1, most // slots))
    assert differences(case, made(case, tmp_path)[1]) < 1e-5


@pytest.mark.parametrize(
    "engine",
    [
        StaticModel,
        pytest.param(captured.fastest, marks=pytest.mark.full),
        pytest.param(captured.graphs, marks=pytest.mark.full),
    ],
)
@torch.inference_mode()
def test_compiled_steps_predict_what_the_layers_do(engine: Any, tmp_path: Path) -> None:
    """After a prompt whose rows are not computed, too, in a text that outgrows its first buffers."""
    target, draft = made("speculators", tmp_path, engine=engine)
    assert draft.captured is not None
    sessions = CapturedEntries(draft.captured, []), EagerEntries(draft.beside, list)
    ours, own = (PEagleEntries(draft.eagle, session) for session in sessions)
    features_LF = torch.randn(100, draft.eagle.shape.feature_width, generator=torch.Generator().manual_seed(5))
    for begin, end, rows in ((0, 40, 4), (40, 41, 1), (39, 44, 3), (44, 45, 4), (45, 90, 2)):
        for one in (ours, own):
            one.rollback(begin)
        tokens = [(7 * place) % SIZE for place in range(begin, end)]
        found_KV, wanted_KV = (one.draft_rows(features_LF[begin:end], tokens, rows) for one in (ours, own))
        known = wanted_KV.isfinite()
        assert torch.equal(found_KV[:, :ROWS].isfinite(), known) and ours.length == own.length == end
        assert (found_KV[:, :ROWS] - wanted_KV)[known].abs().max() < 1e-5
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 12, "generator": torch.Generator()}
    passes = [
        [one.tokens for one in speculative(*pair, PROMPT, gamma=3, **told).passes]
        for pair in ((target, draft), made("speculators", tmp_path))
    ]
    assert passes[0] == passes[1]


@pytest.mark.parametrize("fault", ["state", "token", "place"])
@torch.inference_mode()
def test_planted_faults_change_the_logits(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another learned state; another token; masked entries that stand one position later."""
    _, draft = made("speculators", tmp_path)
    if fault == "state":
        draft.eagle.mask_hidden.zero_()
    if fault == "token":
        object.__setattr__(draft.eagle.shape, "mask", 3)
    if fault == "place":
        own = draft.eagle.through

        def later(states: Any, embedded: Any, positions: Any, attends: Any) -> Any:
            count = positions.shape[1]
            return own(states, embedded, positions + (torch.arange(count) > 0) * (count > 1), attends)

        monkeypatch.setattr(draft.eagle, "through", later)
    assert differences("speculators", draft) > 1e-3


def fresh(draft: PEagleDraft, prompt: Prompt) -> Any:
    return draft.start(prompt, SAMPLED)


@pytest.mark.parametrize("case", ["speculators", pytest.param("EAGLE-3's own", marks=pytest.mark.full)])
def test_greedy_texts_are_the_targets_own(case: str, tmp_path: Path) -> None:
    """As chains, and as trees of fixed and of dynamic shape."""
    target, draft = made(case, tmp_path)
    plain = EagerModel(network("llama", 4, layers=7), SIZE, frozenset({1}))
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
    own = autoregressive(plain, PROMPT, **told).tokens
    chain = speculative(target, draft, PROMPT, gamma=4, **told)
    assert chain.tokens == own and max(a_pass.drafted for a_pass in chain.passes) == 4
    for plan in (ByConfidence(8, 3, 3), TreeShape.of_widths([2, 2, 1])):
        trace = speculative(target, TreeDraft(draft, plan, "fixed", target.eos_ids), PROMPT, gamma=plan.depth, **told)
        assert trace.tokens == own and any(a_pass.parents for a_pass in trace.passes)


def test_rows_of_proposals_and_nodes_are_those_of_scoring(tmp_path: Path) -> None:
    """q of each token is that of a fresh session along the text, in parts, too; also of a text shorter than a
    proposal."""
    _, draft = made("speculators", tmp_path, end=SIZE)  # no text ends
    for text in ([7, 9], [5, 9, 12, 30, 7, 9, 30]):
        prompt = Prompt((), tuple(text[:-1]))
        proposal = draft.start(prompt, SAMPLED).propose(text, 3, torch.Generator().manual_seed(3))
        assert proposal.q_GV is not None and len(proposal.tokens) == 3
        whole = [*text, *proposal.tokens]
        rows = list(fresh(draft, prompt).score_ahead(whole, len(text), 3))
        parts = fresh(draft, prompt)
        halves = [list(parts.score_ahead(whole[:-1], len(text), 3)), list(parts.score_ahead(whole, len(whole) - 1, 3))]
        for place in range(3):
            assert torch.allclose(proposal.q_GV[place], rows[place][place], atol=1e-5)
            assert torch.allclose(rows[place], torch.cat([half[place] for half in halves]), atol=1e-5)
        session = fresh(draft, prompt)
        levels = [session.after_text(text, 3)._q(), session.after_nodes([4, 22], [-1, -1])._q()]
        levels.append(session.after_nodes([8], [1])._q())
        for place, q_LV in enumerate(levels):
            assert torch.allclose(q_LV, proposal.q_GV[place].expand_as(q_LV), atol=1e-5)
        assert isinstance(session.after_nodes([3], [2]), Found)  # no child


@pytest.mark.statistical
def test_sampled_texts_have_the_targets_distribution(tmp_path: Path) -> None:
    """And first tokens have the q that is reported."""
    target, draft = made("EAGLE-3's own", tmp_path, VOCABULARY, EOS)
    draft.eagle.draft_vocabulary.copy_(torch.arange(len(draft.eagle.draft_vocabulary)))
    prompt = Prompt((), (0,))
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, 2, Sampling(2.0), 3, 200)
    assert p_value > chi.ALARM and 10 < rejected < 190
    check_draft(draft, VOCABULARY, prompt, [1, 1, 2])


def changed(told: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None, own: bool = False) -> Any:
    """A checkpoint with other fields, and other tensors; None takes one out."""
    config, state = CASES["EAGLE-3's own" if own else "speculators"][0]
    state = state | (tensors or {})
    kept = {name: value for name, value in (config | (told or {})).items() if value is not None}
    return kept, {name: tensor for name, tensor in state.items() if tensor is not None}


REFUSED: dict[str, tuple[Any, str]] = {
    "no token": (changed({"mask_token_id": None}), "mask_token_id=None: P-EAGLE's token for tokens not known yet must"),
    "a token past the end": (changed({"ptd_token_id": 64}, own=True), "ptd_token_id=64: P-EAGLE's token"),
    "no state": (changed(tensors={"mask_hidden": None}), "has no tensor mask_hidden: it is no checkpoint of draft=pea"),
    "a state of another size": (changed(tensors={"mask_hidden": torch.zeros(1, 1, 64)}), "mask_hidden of"),
    "no second layer": (
        changed(tensors={"layers.1.mlp.up_proj.weight": None}),
        "has no tensor layers.1.mlp.up_proj.weight: it is",
    ),
    "a fourth layer": (
        changed(tensors={"layers.3.mlp.up_proj.weight": torch.zeros(48, 32)}),
        "has a tensor layers.3.mlp.up_proj.weight, which",
    ),
    "no word on the residual": (
        changed({"norm_before_residual": None}),
        "norm_before_residual=None: speculators reads",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    (told, state), message = REFUSED[case]
    published.write(tmp_path, told, state)
    with pytest.raises(UserError) as raised:
        read(tmp_path, network("llama", 4, layers=7))
    assert message in str(raised.value) and str(raised.value).startswith("draft: ") and "\n" not in str(raised.value)


def test_a_run_reads_the_folder(folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told, state = published.speculators("peagle", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    folder = published.write(tmp_path / "checkpoint", told, state)
    argv = [
        "run", f"target.path={folders['llama']}", "task=ende", f"task.path={folders['rows']}",
        f"results={tmp_path / 'results'}", "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=8",
        f"draft.path={folder}", "limit=3",
    ]  # fmt: skip
    assert "these weights are of draft=peagle; use that draft" in refusal([*argv, "draft=eagle3"], capfd)
    assert main([*argv, "draft=peagle", "gamma=3"]) == 0
    summary = newest(tmp_path / "results")["summary"]
    assert (summary["draft"], summary["identical"]) == ("peagle-checkpoint", 1.0) and summary["c_step"] is not None
