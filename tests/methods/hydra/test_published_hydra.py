"""Checkpoints in Hydra's own layout, with and without the layer before the heads: written by these tests with random
weights, read, and what they draft computed a second time by plain code; a checkpoint that does not fit is a one-line
error."""

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
from specbench.methods.hydra.draft import HydraDraft
from specbench.methods.hydra.network import UNUSED, published_hydra
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence
from tests.support import chi, published
from tests.support.calls import newest
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.published import SIZE
from tests.support.toy import EOS, VOCABULARY

GREEDY = Sampling(0.0)
CASES = {"heads": published.hydra(), "two blocks": published.hydra(blocks=2), "prefix": published.hydra(True, blocks=2)}
FILE = "hydra_lm_head.pt"


def made(case: str, folder: Path, size: int = SIZE, seed: int = 4, end: int = 1) -> tuple[EagerModel, HydraDraft]:
    """The target, which hands over its states, and the draft from files."""
    published.write(folder, *CASES[case], FILE)
    own = network("llama", seed)
    width = return_states(own, "target")
    target = EagerModel(own, size, frozenset({end}))
    target.state_width, target.states_of_prompt = width, case == "prefix"
    checkpoint = published_hydra(str(folder), {}, "draft")
    assert checkpoint is not None
    heads = checkpoint.load(own)
    return target, HydraDraft(target, heads)


@pytest.mark.parametrize("case", CASES)
def test_drafts_what_plain_code_computes(case: str, tmp_path: Path) -> None:
    """At the prompt, and after a text that grew in passes and was rolled back in between."""
    told, state = CASES[case]
    target, draft = made(case, tmp_path)
    text, prompt = [5, 9, 12, 30, 7, 3, 8, 8], Prompt((), (5, 9, 12))
    scored = draft.start(prompt, Sampling(1.0)).score(text, 3)
    for at in range(3, len(text)):
        row = published.hydra_drafted(told, state, network("llama", 4), text[:at])[0]
        assert torch.allclose(scored[at - 3, :SIZE], row[:SIZE].softmax(-1), atol=1e-4)
    session = target.start(prompt)
    drafting = draft.start_on(session, prompt, GREEDY)
    for read in (4, 5, 8):
        session.extend([*text[session.length : read - 1], 11, 12])  # read with a proposal, which is rejected
        session.rollback(read - 1)
        drafting.rollback(read - 1)
        rows = published.hydra_drafted(told, state, network("llama", 4), text[:read])
        proposal = drafting.propose(text[:read], 3, torch.Generator())
        assert proposal.tokens == [int(row[:SIZE].argmax()) for row in rows[: len(proposal.tokens)]]
        fresh = draft.start(Prompt((), tuple(text[: read - 1])), Sampling(1.0))
        q = fresh.propose(text[:read], 1, torch.Generator()).q_GV
        assert torch.allclose(q[0, :SIZE], rows[0][:SIZE].softmax(-1), atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_greedy_texts_are_the_targets_own(case: str, tmp_path: Path) -> None:
    target, draft = made(case, tmp_path)
    prompt = Prompt((), (5, 9, 12))
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
    own = autoregressive(EagerModel(network("llama", 4), SIZE, frozenset({1})), prompt, **told).tokens
    chain = speculative(target, draft, prompt, gamma=3, **told)
    tree = TreeDraft(draft, ByConfidence(8, 3, 3), "fixed", target.eos_ids)
    branched = speculative(target, tree, prompt, gamma=3, **told)
    assert chain.tokens == branched.tokens == own
    assert sum(a_pass.drafted for a_pass in chain.passes) > 10 and any(a_pass.parents for a_pass in branched.passes)


@pytest.mark.full
@pytest.mark.statistical
def test_sampled_texts_have_the_targets_distribution(tmp_path: Path) -> None:
    target, draft = made("prefix", tmp_path, size=VOCABULARY, seed=6, end=EOS)
    prompt, sampling = Prompt((), (0,)), Sampling(2.0)
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, 2, sampling, 4, 300)
    assert p_value > chi.ALARM
    assert rejected > 50


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "width": ({}, {}, 48, "are for a target of width 32, not 48"),
    "vocabulary": ({}, {"hydra_lm_head.0.weight": torch.zeros(70, 32)}, 32, "is [70, 32]; this target needs [64, 32]"),
    "fewer heads": ({"hydra_num_heads": 4}, {}, 32, "is missing; this target needs"),
    "more heads": ({"hydra_num_heads": 2}, {}, 32, "its config.json says 2 heads"),
    "architecture": ({"hydra_head_arch": "cross-attn"}, {}, 32, "hydra_head_arch=cross-attn: only mlp and prefix-mlp"),
    "not Hydra": ({"grounded_heads": False}, {}, 32, "grounded_heads=False: only True can be read"),
    "other states": ({"hidden_state_offset": 1}, {}, 32, "hidden_state_offset=1: only 0 can be read"),
    "a tensor": ({}, {"fc.weight": torch.zeros(2)}, 32, "has a tensor fc.weight, which is not Hydra's"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    fields, tensors, width, message = REFUSED[case]
    told, state = CASES["heads"]
    published.write(tmp_path, told | fields, state | tensors, FILE)
    with pytest.raises(UserError) as raised:
        load(tmp_path, network("llama", 4, width=width))
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("case", CASES)
def test_each_tensor_taken_away_is_refused_by_its_name(case: str, tmp_path: Path) -> None:
    told, state = CASES[case]
    own = network("llama", 4)
    needed = {name for name in state if not UNUSED.fullmatch(name)}
    for taken in needed:
        published.write(tmp_path, told, {name: part for name, part in state.items() if name != taken}, FILE)
        with pytest.raises(UserError) as raised:
            load(tmp_path, own)
        assert f"{taken} of " in str(raised.value), (taken, raised.value)


def load(folder: Path, own: Any) -> None:
    checkpoint = published_hydra(str(folder), {}, "draft")
    assert checkpoint is not None
    checkpoint.load(own)


def test_a_run_reads_the_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = published.write(tmp_path / "checkpoint", *CASES["prefix"], FILE)
    argv = [
        "run", f"target.path={folders['llama']}", "task=ende", f"task.path={folders['rows']}", "gamma=3",
        f"results={tmp_path / 'results'}", "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=10",
        "draft=hydra", f"draft.path={folder}", "batch=2",
    ]  # fmt: skip
    assert main(argv) == 0
    summary = newest(tmp_path / "results")["summary"]
    assert (summary["draft"], summary["identical"]) == ("hydra-checkpoint", 1.0)
