"""DFlash and DSpark: logits as `transformers` and plain formulas have them; texts are the target's own."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers.generation as generation

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.tree_draft import TreeDraft
from specbench.cli import main
from specbench.conformance import check_draft
from specbench.engine.beside.captured import CapturedEntries
from specbench.engine.beside.eager import EagerEntries
from specbench.engine.buffers import MOST_STACKED
from specbench.engine.capture.static import StaticModel
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.dflash.draft import BlockSession
from specbench.methods.dflash.entries import BlockEntries
from specbench.methods.dspark.draft import MarkovSession
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence, TreeShape
from tests.support import block_checkpoints as checkpoints
from tests.support import captured as engines
from tests.support import chi
from tests.support.block_checkpoints import BLOCK, MASK
from tests.support.block_drafts import KINDS, SIZE, made, network, published
from tests.support.calls import newest, refusal
from tests.support.decode import autoregressive, speculative
from tests.support.node_rows import nodes_have_the_q_of_their_paths
from tests.support.toy import EOS, VOCABULARY

GREEDY = Sampling(0.0)
PROMPT = Prompt((), (5, 9, 12, 30))
ENGINES: dict[str, Any] = {"static": StaticModel, "native": engines.fastest, "cudagraph": engines.graphs}


def full(*values: Any) -> Any:
    """An instance of what another covers."""
    return pytest.param(*values, marks=pytest.mark.full)


def drafted_by_transformers(folder: Path, tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Of each pass of its generator at T = 0: the text before it, and the logits [K, V] of the block."""
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    own, passes = network(), []
    told, weights = checkpoints.config("dflash"), checkpoints.state("dflash", own)
    checkpoints.write(folder, told, weights)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config = MuseGlimmerAssistantConfig(
        **{name: told[name] for name in (*names, "head_dim", "rms_norm_eps", "layer_types", "block_size")},
        **told["dflash_config"], rope_parameters={"rope_type": "default", "rope_theta": told["rope_theta"]},
    )  # fmt: skip
    assistant = MuseGlimmerAssistantModel(config).eval()
    theirs = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    assistant.load_state_dict({theirs.get(name, name): tensor for name, tensor in weights.items()})
    propose = generation.DFlashTokenCandidateGenerator.get_candidates

    def recorded(self: Any, input_ids: Any, *given: Any, **more: Any) -> Any:
        found = propose(self, input_ids, *given, **more)
        if found[1] is not None:
            passes.append((input_ids[0].tolist(), found[1][0]))
        return found

    monkeypatch.setattr(generation.DFlashTokenCandidateGenerator, "get_candidates", recorded)
    own.generation_config.eos_token_id = None
    text = torch.tensor([PROMPT.prefix])
    own.generate(text, max_new_tokens=tokens, assistant_model=assistant, speculation_type="dflash", do_sample=False)
    return passes


@pytest.mark.skipif(not hasattr(generation, "DFlashTokenCandidateGenerator"), reason="this transformers has no DFlash")
@pytest.mark.parametrize("fault", [None, "causal", "order"])
def test_logits_are_those_of_transformers(fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each pass of its generator, with what was rejected and accepted before: one session that goes along.

    Faults: entries of a block see those before them only; states are joined in another order.
    """
    passes = drafted_by_transformers(tmp_path, 24, monkeypatch)
    assert len(passes) > 5
    target, draft = made(tmp_path, "dflash")
    if fault == "order":
        draft.columns = [*range(checkpoints.WIDTH, 2 * checkpoints.WIDTH), *range(checkpoints.WIDTH)]
    if fault == "causal":
        draft.beside = replace(draft.beside, sight=None)
    session = target.start(PROMPT)
    drafting, largest = draft.start_on(session, PROMPT, GREEDY), 0.0
    for text, logits_KV in passes:
        session.extend([*text[session.length : -1], 11, 12])  # read with a proposal, which is rejected
        session.rollback(len(text) - 1)
        drafting.rollback(len(text) - 1)
        ours_KV = drafting.ahead(text, BLOCK)
        assert ours_KV.shape == logits_KV.shape
        largest = max(largest, float((ours_KV - logits_KV).abs().max()))
    assert largest < 1e-5 if fault is None else largest > 1e-2


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_logits_are_those_of_plain_formulas(kind: str, tmp_path: Path) -> None:
    """Of a block after a text, and of DSpark's tokens one after another, with its predictions of acceptance."""
    _, draft = made(tmp_path, kind, checkpoints.PADDED)
    told, w, own = checkpoints.config(kind), checkpoints.state(kind, network()), network()
    text = [5, 9, 12, 30, 7, 22]
    hidden = own(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    ids = (told.get("dflash_config") or told)["target_layer_ids"]
    features = torch.cat([hidden[number + 1][0] for number in ids], -1)
    embedded = own.get_input_embeddings()(torch.tensor([text[-1], *[MASK] * (BLOCK - 1)]))
    states = checkpoints.plain_states(told, w, features, embedded)[0 if kind == "dspark" else 1 :]
    logits = own.get_output_embeddings()(states)
    session = draft.start(Prompt((), tuple(text[:-1])), GREEDY)
    assert torch.allclose(session.ahead(text, BLOCK), logits, atol=1e-5)
    proposal = session.propose(text, BLOCK, torch.Generator())
    before, drafted = text[-1], list[int]()
    for state, row in zip(states, logits, strict=True):
        if kind == "dspark":
            narrow = w["markov_head.markov_w1.weight"][before]
            row = row + w["markov_head.markov_w2.weight"] @ narrow
            read = torch.cat([state, narrow])
            chance = F.linear(read, w["confidence_head.proj.weight"], w["confidence_head.proj.bias"]).sigmoid()
            ours = draft.drafter.accepted(state[None], torch.tensor([before])).sigmoid()
            assert torch.allclose(ours, chance, atol=1e-6)
        before = int(row.argmax())
        drafted.append(before)
        if before == 1:
            break
    assert proposal.tokens == drafted


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_texts_are_the_targets_own(kind: str, tmp_path: Path) -> None:
    """As chains, and as trees of fixed and of dynamic shape; a proposal has at most the tokens of a block."""
    target, draft = made(tmp_path, kind)
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 14, "generator": torch.Generator()}
    own = autoregressive(EagerModel(network(), SIZE, frozenset({1})), PROMPT, **told).tokens
    chain = speculative(target, draft, PROMPT, gamma=9, **told)
    assert chain.tokens == own
    assert max(a_pass.drafted for a_pass in chain.passes) == draft.drafter.shape.drafted
    for plan in (ByConfidence(8, 3, 3), TreeShape.of_widths([2, 2, 1])):
        trace = speculative(target, TreeDraft(draft, plan, "fixed", target.eos_ids), PROMPT, gamma=plan.depth, **told)
        assert trace.tokens == own and any(a_pass.parents for a_pass in trace.passes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_of_a_proposal_does_not_depend_on_its_length(kind: str, tmp_path: Path) -> None:
    _, draft = made(tmp_path, kind, end=SIZE)
    for gamma in (1, 4):
        proposal = draft.start(PROMPT, GREEDY).propose([*PROMPT.prefix, 7], gamma, torch.Generator())
        assert len(proposal.tokens) == gamma and proposal.operations == draft.drafter.operations


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_chains_and_tree_nodes_are_those_of_scoring(kind: str, tmp_path: Path) -> None:
    """q of a proposal and after each node of a tree is that of scoring along the text, at once and in parts."""
    _, draft = made(tmp_path, kind, end=SIZE)  # no text ends
    sampling = Sampling(1.0)
    for text in ([7, 9], [5, 9, 12, 30, 7, 9, 30]):
        prompt = Prompt((), tuple(text[:-1]))
        proposal = draft.start(prompt, sampling).propose(text, 3, torch.Generator().manual_seed(3))
        assert proposal.q_GV is not None and len(proposal.tokens) == 3
        whole, scoring = [*text, *proposal.tokens], draft.start(prompt, sampling)
        rows = list(draft.start(prompt, sampling).score_ahead(whole, len(text), 3))
        parts = [list(scoring.score_ahead(whole[:stop], stop - 1, 3)) for stop in range(len(text) + 1, len(whole) + 1)]
        for place in range(3):
            assert torch.allclose(proposal.q_GV[place], rows[place][place], atol=1e-5)
            assert torch.allclose(torch.cat([part[place] for part in parts]), rows[place], atol=1e-5)
        nodes_have_the_q_of_their_paths(draft, prompt, text, sampling, 1e-5)


@pytest.mark.statistical
@pytest.mark.covering(most=1)
@pytest.mark.parametrize(("kind", "confidence"), [("dflash", None), ("dspark", None), ("dspark", 0.055)])
def test_sampled_texts_have_the_targets_distribution(
    kind: str, confidence: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And first tokens have the q that is reported.

    The chances that these random weights predict are 0.04 to 0.2 for most tokens: the bound is among them, so that some
    proposals are empty, some shorter and some whole.
    """
    target, draft = made(tmp_path, kind, VOCABULARY, EOS, confidence)
    prompt, lengths, propose = Prompt((), (0,)), set[int](), BlockSession.propose

    def counted(*given: Any) -> Proposal:
        proposal = propose(*given)
        if given[2] > 0:
            lengths.add(len(proposal.tokens))
        return proposal

    monkeypatch.setattr(BlockSession, "propose", counted)
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, 2, Sampling(2.0), 3, 200)
    assert p_value > chi.ALARM and 10 < rejected < 190
    assert lengths == ({1, 2} if confidence is None else {0, 1, 2})
    if confidence is None:
        check_draft(draft, VOCABULARY, prompt, [1, 1, 2])


@pytest.mark.parametrize("fault", [False, True])
def test_a_proposal_ends_whatever_token_would_follow(fault: bool, tmp_path: Path) -> None:
    """Of proposals after one text none is the beginning of another: χ² would need many texts to see that.

    Fault: a token that was drawn and is improbable is taken back.
    """
    _, draft = made(tmp_path, "dspark", confidence=0.09)
    found = set[tuple[int, ...]]()
    for seed in range(60):
        session = draft.start(PROMPT, Sampling(1.0))
        proposal = session.propose([*PROMPT.prefix, 7], BLOCK, torch.Generator().manual_seed(seed))
        tokens = proposal.tokens
        if fault and tokens and proposal.q_GV is not None and proposal.q_GV[len(tokens) - 1, tokens[-1]] < 0.2:
            tokens = tokens[:-1]
        found.add(tuple(tokens))
    assert len(set(map(len, found))) > 1
    begun = {text[:stop] for text in found for stop in range(len(text))}
    assert bool(found & begun) == fault


@pytest.mark.full
@pytest.mark.statistical
def test_another_q_than_that_drawn_from_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DSpark's rows without what the token before adds."""
    target, draft = made(tmp_path, "dspark", VOCABULARY, EOS)
    right = MarkovSession.drafted

    def wrong(self: Any, tokens: Any, gamma: int, generator: Any) -> Any:
        found, sampling = right(self, tokens, gamma, generator), self.sampling
        rows = self.ahead(tokens, len(found.tokens))[:, :VOCABULARY]
        return found._replace(q_GV=(rows / sampling.temperature).softmax(-1))

    monkeypatch.setattr(MarkovSession, "drafted", wrong)
    p_value, _ = chi.speculative_p_value(target, draft, Prompt((), (0,)), 2, Sampling(2.0), 3, 600)
    assert p_value < chi.ALARM


@pytest.mark.parametrize(("kind", "confidence"), [*((kind, None) for kind in KINDS), ("dspark", 0.09)])
@pytest.mark.parametrize("engine", [full("static"), "native", full("cudagraph")])
def test_every_engine_drafts_the_same(engine: str, kind: str, confidence: float | None, tmp_path: Path) -> None:
    """And predicts the same acceptance: it ends proposals at the same places. Graphs are `tests.support.captured`."""
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 20, "generator": torch.Generator()}
    proposals = []
    for one in (EagerModel, ENGINES[engine]):
        target, draft = made(tmp_path, kind, confidence=confidence, engine=one)
        assert (draft.captured is None) == (one is EagerModel)
        trace = speculative(target, draft, PROMPT, gamma=3, **told)
        proposals.append([(a_pass.tokens, a_pass.accepted, a_pass.drafted) for a_pass in trace.passes])
    assert proposals[0] == proposals[1]
    assert confidence is None or {0, 2, 3} == {drafted for _, _, drafted in proposals[0]}


@torch.inference_mode()
def test_a_long_text_has_the_same_blocks(tmp_path: Path) -> None:
    """One that is read in parts, in buffers so large that they grow alone (`Buffers`)."""
    _, draft = made(tmp_path, "dflash", engine=StaticModel)
    ours = draft.cache(draft.target.start(PROMPT))
    own = BlockEntries(draft.drafter, EagerEntries(draft.beside, list))
    assert isinstance(ours.session, CapturedEntries)
    features_LF = torch.randn(300, draft.drafter.fc.in_features, generator=torch.Generator().manual_seed(2))
    for part_LF in features_LF.split([290, 10]):
        for one in (ours, own):
            one.read(part_LF)
        ours.session.reserve(MOST_STACKED + 1)
        found, expected = (one.block(7, 3).logits_LV for one in (ours, own))
        # fp32 sums are ordered by the processor's vectors: 1.2e-5 apart with AVX-512.
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    assert ours.length == own.length == 300


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_graphs_are_captured_between_texts(kind: str, tmp_path: Path) -> None:
    """Steps that a text runs uncaptured are captured before the next one, replayed there, and draft the same; a graph
    reads nothing that is gone."""
    engines.Recording.freed()
    target, draft = made(tmp_path, kind, end=SIZE, engine=partial(CudaGraphModel, capture=engines.Recording))
    assert draft.captured is not None

    def passes(length: int) -> list[list[int]]:
        told: dict[str, Any] = {"gamma": 3, "sampling": GREEDY, "max_new_tokens": 12, "generator": torch.Generator()}
        return [one.tokens for one in speculative(target, draft, Prompt((), PROMPT.prefix[:length]), **told).passes]

    first = passes(4), passes(2)
    assert (passes(4), passes(2)) == first
    captures, uncaptured = target.captures, target.uncaptured  # type: ignore[attr-defined]
    program = draft.captured.program
    steps = {id(step) for step in (*program.one.values(), *program.several.values())}
    assert len(steps & {key[0] for key in target._graphs}) == 3  # type: ignore[attr-defined]
    assert (passes(4), passes(2)) == first
    assert (target.captures, target.uncaptured) == (captures, uncaptured)  # type: ignore[attr-defined]
    assert engines.Recording.freed() == []


# What is changed in a folder, and what is said of it.
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a tensor": ("dflash", {"layers.1.self_attn.q_norm.weight": None}, {}, "has no tensor layers.1.self_attn.q_norm"),
    "another tensor": ("dflash", {"gate.weight": torch.zeros(2)}, {}, "has a tensor gate.weight, which draft=dflash"),
    "a shape": ("dspark", {"fc.weight": torch.zeros(2, 2)}, {}, "fc.weight of FOLDER is [2, 2]; its config.json and"),
    "no mask": ("dspark", {}, {"mask_token_id": None}, "config.json of FOLDER: mask_token_id=None: a checkpoint of"),
    "the other": ("dflash", {}, {"markov_rank": 6}, "the weights in FOLDER are of draft=dspark; use that draft"),
    "a window": ("dflash", {}, {"layer_types": ["sliding_attention"]}, "only full_attention is supported"),
    "a type": ("dflash", {}, {"model_type": "gemma4"}, "model_type=gemma4: only qwen3 and"),
    "a successor": ("dflash", {}, {"conv_kernel_size": 2}, "conv_kernel_size=2: not supported"),
    "another target": ("dflash", {}, {"num_target_layers": 36}, "num_target_layers=36: made for another target; this"),
    "a layer": ("dspark", {}, {"target_layer_ids": [0, 2]}, "target_layer_ids=[0, 2]: must be numbers from -1 to 1"),
    "a head": ("dspark", {}, {"markov_head_type": "rnn"}, "markov_head_type=rnn: only vanilla is supported"),
    "positions": ("dflash", {}, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "describes no layers that are"),
    "a number": ("dflash", {}, {"block_size": "many"}, "describes no layers that are supported"),
    "other weights": ("dflash", {}, {"fingerprint": [1.0], "target": "another"}, "were trained on another, and this"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    kind, tensors, fields, message = REFUSED[case]
    own = network()
    weights = checkpoints.state(kind, own) | tensors
    told = checkpoints.config(kind) | fields
    checkpoints.write(tmp_path, told, {name: tensor for name, tensor in weights.items() if tensor is not None})
    with pytest.raises(UserError) as raised:
        published(tmp_path, kind, own).load(own)
    said = str(raised.value)
    assert message.replace("FOLDER", str(tmp_path)) in said and said.startswith("draft: ") and "\n" not in said


def argv(target: Path, draft: Path, kind: str, rows: Path, results: Path) -> list[str]:
    return [
        "run", f"target.path={target}", f"draft={kind}", f"draft.path={draft}", "task=ende", f"task.path={rows}",
        f"results={results}", "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=8",
        "limit=3",
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "target", "message"), [("dflash", "t5", "is for decoder-only targets")])
def test_targets_that_it_does_not_support(
    kind: str, target: str, message: str, folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoints.write(tmp_path / "own", checkpoints.config(kind), checkpoints.state(kind, network()))
    assert message in refusal([*argv(folders[target], folder, kind, folders["rows"], tmp_path), "gamma=3"], capfd)


@pytest.mark.covering(most=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "more", [["gamma=3"], ["tree=widths", "tree.widths=[2,1]", "gamma=tree"], ["gamma=3", "sampling.temperature=1"]]
)
def test_a_run(kind: str, more: list[str], folders: dict[str, Path], tmp_path: Path) -> None:
    told = checkpoints.config(kind, num_target_layers=2)
    (told.get("dflash_config") or told)["target_layer_ids"] = [-1, 0]
    weights = checkpoints.state(kind, network())
    if kind == "dspark":  # its own embeddings and head
        weights["lm_head.weight"] = weights["lm_head.weight"] * 2
    folder = checkpoints.write(tmp_path / "own", told, weights)
    assert main([*argv(folders["llama"], folder, kind, folders["rows"], tmp_path / "results"), *more]) == 0
    summary = newest(tmp_path / "results")["summary"]
    sampled = more[-1] == "sampling.temperature=1"
    assert (summary["draft"], summary["identical"]) == (f"{kind}-own", None if sampled else 1.0)
    assert summary["c_step"] is not None and summary["lossless"]
    assert not sampled or (abs(summary["proof_z"]) < 4 and summary["proof_outside"] == 0)


@pytest.mark.parametrize("taken", ["model.layers.1.self_attn.q_norm.weight", "encoder.fc.weight"])
def test_a_missing_tensor_has_the_name_that_its_files_would_have(taken: str, tmp_path: Path) -> None:
    own = network()
    theirs = {
        (f"encoder.{name}" if name.startswith("fc.") else f"model.{name}"): tensor
        for name, tensor in checkpoints.state("dflash", own).items()
    } | {"encoder.fc.more": torch.zeros(1)}
    del theirs[taken]
    checkpoints.write(tmp_path, checkpoints.config("dflash"), theirs)
    with pytest.raises(UserError, match=rf"has no tensor {re.escape(taken)}: it is no checkpoint of"):
        published(tmp_path, "dflash", own).load(own)
