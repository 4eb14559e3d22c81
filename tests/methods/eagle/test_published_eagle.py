"""Checkpoints in EAGLE's, EAGLE-3's and speculators' layouts: written by these tests with random weights, read, and
their drafts compared with plain code; a checkpoint that does not fit is a one-line error."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.tree_draft import TreeDraft
from specbench.cli import main
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.eagle.draft import EagleDraft
from specbench.methods.eagle.network import OURS, Eagle
from specbench.methods.eagle.published import load_published_eagle, published_eagle
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence
from tests.support import published
from tests.support.calls import newest
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.published import SIZE

GREEDY = Sampling(0.0)
PROMPT = Prompt((), (5, 9, 12, 30))


def copied(told: dict[str, Any], state: dict[str, torch.Tensor]) -> Any:
    """With fields of the target's config that do not fit one layer."""
    more = {"num_hidden_layers": 40, "layer_types": ["full_attention"] * 28, "max_window_layers": 28, "head_dim": None}
    return told | more, state


# Target, layout, states after how many layers, name of the weights.
CASES: dict[str, tuple[str, Any, tuple[int, ...], str]] = {
    "EAGLE for Llama": ("llama", published.eagle(), (), "pytorch_model.bin"),
    "EAGLE for Qwen2": ("qwen2", copied(*published.eagle(bias=True)), (), "model.safetensors"),
    "EAGLE-3 for Llama": ("llama", published.eagle3(), (2, 3, 4), "pytorch_model.bin"),
    "EAGLE-3 for Qwen2": ("qwen2", published.eagle3("layers.0"), (2, 3, 4), "model.safetensors"),
    "speculators, EAGLE": ("llama", published.speculators("eagle"), (), "model.safetensors"),
    "speculators, EAGLE-3": (
        "llama", published.speculators("eagle3", eagle_aux_hidden_state_layer_ids=[1, 4, 6]), (1, 4, 6),
        "model.safetensors",
    ),
}  # fmt: skip


def variant(kind: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A checkpoint that uses what most do not."""
    if kind in ("linear", "llama3"):
        scaled = {"rope_type": kind, "factor": 4.0, **(LLAMA3 if kind == "llama3" else {})}
        told, state = published.eagle3()
        return told | {"rope_scaling": scaled, "rope_theta": 50.0}, state
    if kind == "width":
        told, state = published.eagle3(target=48)
        return told | {"target_hidden_size": 48}, state | {"embed_tokens.weight": torch.randn(64, 32)}
    if kind == "outputs":
        told, state = published.eagle3()
        return told | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}}, state
    if kind == "whole vocabulary":
        told, state = published.eagle3()
        whole = {"lm_head.weight": torch.randn(64, 32), "d2t": torch.zeros(64, dtype=torch.long)}
        return told | {"draft_vocab_size": 64}, {name: own for name, own in state.items() if name != "t2d"} | whole
    norms: dict[str, Any] = {"norm_before_residual": True, "norm_output": True}
    if kind == "norm before fc":
        told, state = published.speculators("eagle3", norm_before_fc=True, **norms)
        return told, state | {"input_norm.weight": torch.rand(96) + 0.5}
    if kind == "norm of each state":
        told, state = published.speculators("eagle3", fc_norm=True, norm_before_residual=True)
        return told, state | {f"fc_norm.{place}.weight": torch.rand(32) + 0.5 for place in range(3)}
    told, state = published.speculators("eagle3", norm_before_residual=False)
    told["transformer_layer_config"] |= {"model_type": "qwen3", "head_dim": 16}
    state |= {f"layers.0.self_attn.{name}_norm.weight": torch.rand(16) + 0.5 for name in "qk"}
    return told, state | published.weights(64, "layers.0", head=16)


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, tuple[int, ...]] = {
    "linear": (2, 3, 4), "llama3": (2, 3, 4), "width": (2, 3, 4), "outputs": (1, 3, 6), "whole vocabulary": (2, 3, 4),
    "norm before fc": (2, 3, 4), "norm of each state": (2, 3, 4), "qwen3": (2, 3, 4),
}  # fmt: skip
CASES |= {name: ("llama", variant(name), taps, "model.safetensors") for name, taps in VARIANTS.items()}
WIDTHS = {"width": 48}  # of the target


def read(folder: Path, own: Any) -> tuple[Eagle, tuple[int, ...]]:
    """The checkpoint in `folder`, on the network `own`, and after how many layers the states are that it reads."""
    checkpoint = published_eagle(str(folder), {}, "draft", OURS)
    assert checkpoint is not None
    checkpoint.require_fits(own.config)
    taps = checkpoint.taps(own.config.num_hidden_layers)
    return load_published_eagle(checkpoint, own, taps), taps


def target_of(case: str) -> Any:
    kind, _, taps, _ = CASES[case]
    return network(kind, 4, layers=7 if taps else 2, width=WIDTHS.get(case, 32))


def made(case: str, folder: Path) -> tuple[EagerModel, EagleDraft]:
    """The target, which hands over what the draft reads, and the draft from files."""
    _, (told, state), taps, file = CASES[case]
    published.write(folder, told, state, file)
    own = target_of(case)
    eagle, found = read(folder, own)
    assert found == taps
    width = return_states(own, "target", taps)
    target = EagerModel(own, SIZE, frozenset({1}))
    target.state_width, target.tap_width = width * (1 + len(taps)), width * len(taps)
    target.tap_depths, target.states_of_prompt = taps, True
    return target, EagleDraft(target, eagle, taps)


@pytest.mark.parametrize("case", CASES)
def test_drafts_what_plain_code_computes(case: str, tmp_path: Path) -> None:
    _, (told, state), taps, _ = CASES[case]
    _, draft = made(case, tmp_path)
    plain = target_of(case)
    for tokens in ([5, 9, 12, 30, 7], [3, 8, 8, 21, 2, 17, 6]):
        rows = published.drafted(told, state, plain, taps, tokens, 4)
        prompt = Prompt((), tuple(tokens[:-1]))
        q = draft.start(prompt, Sampling(1.0)).propose(tokens, 1, torch.Generator()).q_GV
        assert torch.allclose(q[0, :SIZE], rows[0][:SIZE].softmax(-1), atol=1e-4)
        proposal = draft.start(prompt, GREEDY).propose(tokens, 4, torch.Generator())
        assert proposal.tokens == [int(row[:SIZE].argmax()) for row in rows[: len(proposal.tokens)]]


@pytest.mark.parametrize("case", CASES)
def test_greedy_texts_are_the_targets_own(case: str, tmp_path: Path) -> None:
    """As a chain, and as EAGLE-2's tree."""
    target, draft = made(case, tmp_path)
    plain = EagerModel(target_of(case), SIZE, frozenset({1}))
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
    own = autoregressive(plain, PROMPT, **told).tokens
    chain = speculative(target, draft, PROMPT, gamma=3, **told)
    tree = TreeDraft(draft, ByConfidence(8, 3, 3), "fixed", target.eos_ids)
    branched = speculative(target, tree, PROMPT, gamma=3, **told)
    assert chain.tokens == branched.tokens == own
    assert sum(a_pass.drafted for a_pass in chain.passes) > 10 and any(a_pass.parents for a_pass in branched.passes)


@pytest.mark.parametrize("case", CASES)
def test_each_tensor_taken_away_is_refused(case: str, tmp_path: Path) -> None:
    """t2d may be missing, for it repeats what d2t says, and d2t, where the draft vocabulary is all of the target's."""
    _, (told, state), _, file = CASES[case]
    own = target_of(case)
    repeated = {"t2d"} | ({"d2t"} if told.get("draft_vocab_size") == told.get("vocab_size") else set())
    for taken in state.keys() - repeated:
        published.write(tmp_path, told, {name: part for name, part in state.items() if name != taken}, file)
        with pytest.raises(UserError) as refused:
            read(tmp_path, own)
        assert re.search(rf"(?<![\w.]){re.escape(taken)}(?![\w.])", str(refused.value)), (taken, refused.value)
        assert "\n" not in str(refused.value)


def changed(case: str, told: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> Any:
    """A checkpoint with other fields, and other tensors; None takes one out."""
    own, state = CASES[case][1]
    state = state | (tensors or {})
    return own | (told or {}), {name: tensor for name, tensor in state.items() if tensor is not None}


def in_layer(case: str, **told: Any) -> Any:
    return changed(case, {"transformer_layer_config": CASES[case][1][0]["transformer_layer_config"] | told})


ONE, THREE, BY_THEM = "EAGLE for Llama", "EAGLE-3 for Llama", "speculators, EAGLE-3"
REFUSED: dict[str, tuple[Any, str]] = {
    "width": (changed(ONE, {"hidden_size": 48}), "hidden_size=48: made for another target; this target's is 32"),
    "width of the target": (changed(THREE, {"target_hidden_size": 64}), "target_hidden_size=64: made for another"),
    "vocabulary": (changed(ONE, {"vocab_size": 70}), "vocab_size=70: made for another target; this target's is 64"),
    "taps": (
        changed(BY_THEM, {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}),
        "eagle_aux_hidden_state_layer_ids=[2, 16, 29]: made for owner/target; this target has 7 layers",
    ),
    "taps that are no numbers": (
        changed(BY_THEM, {"eagle_aux_hidden_state_layer_ids": ["1", "4", "6"]}), "must be a list of numbers of layers",
    ),
    "a verifier that is a name alone": (
        changed(BY_THEM, {"eagle_aux_hidden_state_layer_ids": [2, 16, 29], "speculators_config": {"verifier": "a/b"}}),
        "made for another target; this target has 7 layers",
    ),
    "fewer taps": (changed(BY_THEM, {"eagle_aux_hidden_state_layer_ids": [1, 2]}), "fc.weight of"),
    "no d2t": (changed(THREE, tensors={"d2t": None}), "draft_vocab_size=24: d2t is missing"),
    "no d2t, and no word on it": (
        changed(THREE, {"draft_vocab_size": None, "architectures": ["LlamaForCausalLMEagle3"]}, {"d2t": None}),
        "has no tensor d2t, though its t2d leaves out",
    ),
    "no word on the bias": (changed(ONE, {"bias": None}), "bias=None: there is no fc.bias"),
    "a bias that the config denies": (changed(ONE, tensors={"fc.bias": torch.zeros(32)}), "has a tensor fc.bias"),
    "d2t past the end": (changed(THREE, tensors={"d2t": torch.full((24,), 60)}), "d2t of"),
    "t2d of others": (changed(THREE, tensors={"t2d": torch.ones(64, dtype=torch.bool)}), "names tokens that t2d does"),
    "t2d of another length": (changed(THREE, tensors={"t2d": torch.ones(70)}), "t2d of"),
    "no EAGLE": (changed(ONE, tensors={"fc.weight": None}), "has no tensor fc.weight: it is no checkpoint of"),
    "two layers": (
        changed(ONE, tensors={"layers.1.mlp.up_proj.weight": torch.zeros(48, 32)}),
        "has a tensor layers.1.mlp.up_proj.weight, which draft=eagle does not support",
    ),
    "another kind": (changed(BY_THEM, {"speculators_model_type": "dflash"}), "speculators_model_type=dflash: only"),
    "another layer": (in_layer(BY_THEM, model_type="gpt2"), "transformer_layer_config.model_type=gpt2"),
    "ids that are none": (
        changed(BY_THEM, {"eagle_aux_hidden_state_layer_ids": "2,3"}),
        "eagle_aux_hidden_state_layer_ids=2,3: must be of the type list",
    ),
    "activation": (changed(ONE, {"hidden_act": "loud"}), "hidden_act=loud: transformers has no such activation"),
    "no layer": (in_layer(BY_THEM, hidden_size="wide"), "describes no decoder layer"),
    "several layers": (in_layer(BY_THEM, num_hidden_layers=2), "num_hidden_layers=2: only one decoder layer"),
    "sliding": (in_layer(BY_THEM, layer_types=["sliding_attention"]), "layer_types=sliding_attention"),
    "part of the channels": (in_layer(BY_THEM, partial_rotary_factor=0.5), "rope_scaling=partial 0.5: only"),
    "rotation": (in_layer(BY_THEM, rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "rope_scaling=dynamic: only"),
    "extra norms": (changed("speculators, EAGLE", {"layernorms": True}), "layernorms=True: which of its norms"),
    "no word on the residual": (
        changed(BY_THEM, {"norm_before_residual": None}), "norm_before_residual=None: speculators reads"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    (told, state), message = REFUSED[case]
    published.write(tmp_path, {name: value for name, value in told.items() if value is not None}, state)
    with pytest.raises(UserError) as raised:
        read(tmp_path, network("llama", 4, layers=7))
    assert message in str(raised.value) and str(raised.value).startswith("draft: ") and "\n" not in str(raised.value)


def test_targets_without_three_depths_or_with_an_encoder_are_refused(tmp_path: Path) -> None:
    published.write(tmp_path, *published.eagle3())
    with pytest.raises(UserError, match="layer_ids=None: without it the target must have 7 layers, and it has 6"):
        read(tmp_path, network("llama", 4, layers=6))
    with pytest.raises(UserError, match="was made for a decoder-only target; this is an encoder-decoder"):
        read(tmp_path, network("t5", 4))


@pytest.mark.full
@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_a_run_reads_the_folder(
    layout: str, folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told, state = published.eagle() if layout == "eagle" else published.speculators(layout)
    told |= {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]} if layout == "eagle3" else {}
    folder = published.write(tmp_path / "checkpoint", told, state)
    argv = [
        "run", f"target.path={folders['llama']}", "task=ende", f"task.path={folders['rows']}",
        f"results={tmp_path / 'results'}", "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=10",
        f"draft.path={folder}",
    ]  # fmt: skip
    assert main([*argv, f"draft={layout}", "tree=dynamic"]) == 0
    summary = newest(tmp_path / "results")["summary"]
    assert (summary["draft"], summary["identical"]) == (f"{layout}-checkpoint", 1.0)
    other = "eagle" if layout == "eagle3" else "eagle3"
    assert main([*argv, f"draft={other}"]) == 2
    assert f"these weights are of draft={layout}; use that draft" in capfd.readouterr().err
