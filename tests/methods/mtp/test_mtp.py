"""Multi-token prediction: heads in a target's own checkpoint, whose logits are those of `transformers`' generator."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

from specbench.algorithm.tree_draft import TreeDraft
from specbench.cli import main
from specbench.conformance import check_draft
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.mtp import depths as depths_cache
from specbench.methods.mtp.draft import MtpDraft
from specbench.methods.mtp.network import Mtp
from specbench.methods.mtp.published import published_mtp
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence, TreeShape
from tests.support import captured, chi
from tests.support import mtp_checkpoints as checkpoints
from tests.support.calls import newest, refusal
from tests.support.decode import autoregressive, speculative
from tests.support.node_rows import nodes_have_the_q_of_their_paths
from tests.support.toy import EOS, VOCABULARY

SIZE = 40
GREEDY = Sampling(0.0)
PROMPT = Prompt((), (5, 9, 12, 30))
CASES = [("glm4_moe", 1), ("glm4_moe", 3), ("deepseek_v3", 1), ("deepseek_v3", 2), ("mellum", 1), ("qwen3_next", 1)]
CPU = torch.device("cpu")


def full(*values: Any) -> Any:
    """An instance of what another covers."""
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a family with so many depths, written once."""
    root = tmp_path_factory.mktemp("mtp")

    def written(family: str, depths: int) -> Path:
        folder = root / f"{family}-{depths}"
        return folder if folder.exists() else checkpoints.write(folder, family, depths)

    return written


def network(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def made(folder: Path, size: int = SIZE, end: int = 1) -> tuple[EagerModel, MtpDraft]:
    """The target in `folder`, which hands over its states, and the draft from the same files."""
    own = network(folder)
    width = return_states(own, "target")
    target = EagerModel(own, size, frozenset({end}))
    target.state_width, target.states_of_prompt = width, True
    return target, MtpDraft(target, read(folder, own))


def read(folder: Path, own: Any) -> list[Mtp]:
    return published_mtp(str(folder), {}, "draft", own.config, CPU).load(own)


def drafted_by_transformers(folder: Path, tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Of each pass of its generator at T = 0: the text before it, and the logits [D, V] of its draft tokens."""
    own, passes = network(folder), []
    patterns = [r"^mtp\."] + [rf"\.layers\.{checkpoints.LAYERS + depth}\." for depth in range(3)]
    if not getattr(own.config, "num_mtp_layers", None):  # transformers does not know that Qwen3-Next has heads
        monkeypatch.setattr(type(own), "_is_stateful", False)  # it is, with its recurrent layers
        own.config.num_mtp_layers, own.config.mtp_layer_types = 1, ["full_attention"]
    own._keys_to_ignore_on_load_unexpected = patterns  # by which the generator finds the tensors
    forward = MtpModel.forward

    def recorded(self: Any, *args: Any, full_input_ids: Any, **told: Any) -> Any:
        found = forward(self, *args, full_input_ids=full_input_ids, **told)
        passes.append((full_input_ids[0].tolist(), found[1][0]))
        return found

    monkeypatch.setattr(MtpModel, "forward", recorded)
    own.generation_config.eos_token_id = None
    own.generate(torch.tensor([PROMPT.prefix]), max_new_tokens=tokens, use_mtp=True, do_sample=False)
    return passes


@pytest.mark.parametrize(("family", "depths"), [CASES[1], *(full(*case) for case in CASES[:1] + CASES[2:])])
@torch.inference_mode()
def test_logits_are_those_of_transformers(
    family: str, depths: int, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each pass of its generator, with what was rejected and accepted before: one session that goes along."""
    folder = checkpoint(family, depths)
    passes = drafted_by_transformers(folder, 14, monkeypatch)
    assert len(passes) > 5
    assert largest_difference(passes, *made(folder, checkpoints.PADDED), depths) < 1e-5


def largest_difference(passes: list[tuple[Any, Any]], target: EagerModel, draft: MtpDraft, depths: int) -> float:
    """Of logits, from those of a session that goes along with the passes."""
    session, largest = target.start(PROMPT), 0.0
    drafting = draft.start_on(session, PROMPT, GREEDY)
    for text, logits_DV in passes:
        session.extend([*text[session.length : -1], 11, 12])  # read with a proposal, which is rejected
        session.rollback(len(text) - 1)
        drafting.rollback(len(text) - 1)
        after = drafting._after(text)
        assert after is not None
        for depth, row_V in enumerate(logits_DV):
            largest = max(largest, float((after.logits_LV[0] - row_V).abs().max()))
            if depth + 1 < depths:
                after = drafting.cache.draft(after.states_LD, int(row_V.argmax()))
    return largest


def sees_all(states: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(states, dtype=dtype)


@pytest.mark.parametrize("fault", ["mask", full("order"), full("norm")])
@torch.inference_mode()
def test_planted_faults_change_the_logits(fault: str, checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later entries are seen; the embedding comes second; the state that is fed back is not normalised."""
    folder = checkpoint("glm4_moe", 3)
    passes = drafted_by_transformers(folder, 8, monkeypatch)
    target, draft = made(folder, checkpoints.PADDED)
    if fault == "mask":
        monkeypatch.setattr(depths_cache, "mask_bias", sees_all)
    if fault == "order":
        for depth in draft.depths:
            depth.enorm, depth.hnorm = depth.hnorm, depth.enorm
    if fault == "norm":
        draft.depths[1].norm = torch.nn.Identity()
    assert largest_difference(passes, target, draft, 3) > 1e-2


@pytest.mark.covering(most=2)
@pytest.mark.parametrize(("family", "depths"), [*CASES, ("qwen3_5_text", 1)])
def test_greedy_texts_are_the_targets_own(family: str, depths: int, checkpoint: Any) -> None:
    """As chains, and as trees of fixed and of dynamic shape; with one depth a proposal is as long as gamma."""
    folder = checkpoint(family, depths)
    target, draft = made(folder)
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 12, "generator": torch.Generator()}
    own = autoregressive(EagerModel(network(folder), SIZE, frozenset({1})), PROMPT, **told).tokens
    chain = speculative(target, draft, PROMPT, gamma=4, **told)
    assert chain.tokens == own
    assert max(a_pass.drafted for a_pass in chain.passes) == (4 if depths == 1 else depths)
    for plan in (ByConfidence(8, 3, 3), TreeShape.of_widths([2, 2, 1])):
        trace = speculative(target, TreeDraft(draft, plan, "fixed", target.eos_ids), PROMPT, gamma=plan.depth, **told)
        assert trace.tokens == own and any(a_pass.parents for a_pass in trace.passes)


@pytest.mark.parametrize(("family", "depths"), [full("glm4_moe", 1), ("glm4_moe", 3)])
def test_rows_of_chains_and_tree_nodes_are_those_of_scoring(family: str, depths: int, checkpoint: Any) -> None:
    """q of a proposal and after each node of a tree, beside its siblings, is that of a fresh session along the text;
    a text shorter than the depths, too."""
    _, draft = made(checkpoint(family, depths), end=SIZE)  # no text ends
    sampling = Sampling(1.0)
    for text in ([7, 9], [5, 9, 12, 30, 7, 9, 30]):
        prompt = Prompt((), tuple(text[:-1]))
        proposal = draft.start(prompt, sampling).propose(text, 3, torch.Generator().manual_seed(3))
        assert proposal.q_GV is not None and len(proposal.tokens) == 3
        rows = list(draft.start(prompt, sampling).score_ahead([*text, *proposal.tokens], len(text), 3))
        for place in range(len(proposal.tokens)):
            assert torch.allclose(proposal.q_GV[place], rows[place][place], atol=1e-4)
        nodes_have_the_q_of_their_paths(draft, prompt, text, sampling, 1e-4)


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize(("family", "depths"), [("glm4_moe", 1), ("deepseek_v3", 2)])
def test_sampled_texts_have_the_targets_distribution(family: str, depths: int, checkpoint: Any) -> None:
    """And first tokens have the q that is reported."""
    target, draft = made(checkpoint(family, depths), VOCABULARY, EOS)
    prompt = Prompt((), (0,))
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, 2, Sampling(2.0), 3, 200)
    assert p_value > chi.ALARM and 10 < rejected < 190
    check_draft(draft, VOCABULARY, prompt, [1, 1, 2])


@pytest.mark.full
@pytest.mark.parametrize("engine", [StaticModel, captured.fastest, captured.graphs])
def test_every_engine_drafts_the_same(engine: Any) -> None:
    """A depth as our recipe starts it, on GPT-2."""
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 14, "generator": torch.Generator()}
    proposals = []
    for kind in (EagerModel, engine):
        target, draft = checkpoints.started(kind, SIZE, 1)
        assert (draft.captured is None) == (kind is EagerModel)
        trace = speculative(target, draft, PROMPT, gamma=3, **told)
        proposals.append([(a_pass.tokens, a_pass.accepted) for a_pass in trace.passes])
    assert proposals[0] == proposals[1]


# What is changed in the folder of glm4_moe with one depth, and what is said of it.
OTHER = "model.layers.2."
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no heads": (dict.fromkeys(["*"]), {}, "no tensor model.layers.2.eh_proj.weight or mtp.fc.weight; use another"),
    "a norm": ({"enorm.weight": None}, {}, "model.safetensors of FOLDER has no tensor model.layers.2.enorm.weight"),
    "a layer": ({"self_attn.q_proj.weight": None}, {}, "has no tensor model.layers.2.self_attn.q_proj.weight"),
    "another tensor": ({"self_attn.r.weight": torch.zeros(2)}, {}, "does not have, model.layers.2.self_attn.r.weight"),
    "a shape": ({"eh_proj.weight": torch.zeros(32, 32)}, {}, "model.layers.2.eh_proj.weight is [32, 32]; this target"),
    "a count": ({}, {"num_nextn_predict_layers": 2}, "config.json of FOLDER: num_nextn_predict_layers=2, but"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case: str, checkpoint: Any, tmp_path: Path) -> None:
    tensors, fields, message = REFUSED[case]
    good = checkpoint("glm4_moe", 1)
    state = load_file(good / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor is None:
            state = {one: kept for one, kept in state.items() if not one.startswith(OTHER + name.rstrip("*"))}
        else:
            state[OTHER + name] = tensor
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    told = json.loads((good / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | fields))
    own = network(good)
    with pytest.raises(UserError) as raised:
        read(tmp_path, own)
    said = str(raised.value)
    assert message.replace("FOLDER", str(tmp_path)) in said and said.startswith("draft: ") and "\n" not in said


def test_a_window_is_refused(checkpoint: Any) -> None:
    told = checkpoints.config("mellum", 1)
    told.layer_types, told.mtp_layer_types = ["full_attention", "sliding_attention"], ["sliding_attention"]
    own = AutoModelForCausalLM.from_config(told)
    with pytest.raises(UserError, match="not supported: MellumDecoderLayer: attention with sliding_window"):
        read(checkpoint("mellum", 1), own)


def argv(target: Path, rows: Path, results: Path) -> list[str]:
    return [
        "run", f"target.path={target}", "draft=mtp", "task=ende", f"task.path={rows}", f"results={results}",
        "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=8", "limit=4",
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_5_text"])
@pytest.mark.parametrize("more", [["gamma=3"], ["tree=widths", "tree.widths=[2,1]", "gamma=tree"]])
def test_a_run_reads_the_targets_own_folder(
    more: list[str], family: str, checkpoint: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    assert main([*argv(checkpoint(family, 1), folders["rows"], tmp_path), *more]) == 0
    summary = newest(tmp_path)["summary"]
    assert (summary["draft"], summary["identical"]) == ("mtp", 1.0)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("t5", "draft: draft=mtp is for decoder-only targets"),
        ("llama", "has no multi-token prediction: no tensor model.layers.2.eh_proj.weight"),
    ],
)
def test_targets_that_it_does_not_support(
    target: str, message: str, folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal([*argv(folders[target], folders["rows"], tmp_path), "gamma=3"], capfd)
