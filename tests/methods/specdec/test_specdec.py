"""SpecDec's parallel decoder: the text is the target's, each drafted token comes from the text alone and is tested with
its own query's q, and what is drafted beside a cache is what a reading of the whole text gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from specbench.algorithm.acceptance.base import Proposal
from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.forecast import walk
from specbench.analysis.forecast.predict import ratios_ahead
from specbench.engine.beside.captured import CapturedEntries
from specbench.engine.beside.eager import EagerEntries
from specbench.engine.cache_names import cache_of
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.layout import Apart, Layout
from specbench.engine.saved_heads import fingerprint
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.specdec import beside as parallel_entries
from specbench.methods.specdec.beside import ParallelEntries, beside
from specbench.methods.specdec.draft import SpecDecDraft, SpecDecSession
from specbench.methods.specdec.network import ParallelDecoder
from specbench.sampling import Sampling
from tests.support import chi
from tests.support.batch_rows import alone, in_rows, prompts_of, same
from tests.support.calls import called, refusal, small_run
from tests.support.captured import fastest, graphs
from tests.support.decode import autoregressive, spec_of, speculative
from tests.support.networks import network
from tests.support.parallel_decoder import QUERIES, SIZE, decoder_on
from tests.support.toy import EOS, VOCABULARY

Capture = pytest.CaptureFixture[str]
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
PROMPTS = [Prompt((5, 9, 12, 30, 1), (0,)), Prompt((17, 3, 22, 1), (0,))]
TEXT = [7, 9, 30, 4, 22, 8, 5]


def made(kind: str = "t5", engine: Any = EagerModel, size: int = SIZE, seed: int = 4, end: int = 1) -> Any:
    own = network(kind, seed)
    target = engine(own, size, frozenset({end}))
    return target, SpecDecDraft(target, decoder_on(own))


@pytest.mark.covering(most=2)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("t5", EagerModel), ("t5", StaticModel), ("t5", fastest), ("t5", graphs), ("t5-v1_1", EagerModel)],
)
def test_the_greedy_text_is_the_targets_own(kind: str, engine: Any) -> None:
    """And it drafts in every pass that has room, the first one too."""
    plain = EagerModel(network(kind, 4), SIZE, frozenset({1}))
    target, draft = made(kind, engine)
    for prompt in PROMPTS:
        told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
        own = autoregressive(plain, prompt, **told).tokens
        for gamma in (1, 3, 6):
            trace = speculative(target, draft, prompt, gamma=gamma, **told)
            assert trace.tokens == own and all(
                0 < a_pass.drafted <= min(gamma, QUERIES) for a_pass in trace.passes[:-1]
            )


@pytest.mark.full
@pytest.mark.parametrize("engine", [EagerModel, fastest])
def test_what_is_drafted_beside_a_cache_is_what_an_uncached_reading_gives(engine: Any) -> None:
    target, draft = made(engine=engine)
    session = target.start(PROMPTS[0])
    drafting = draft.start_on(session, PROMPTS[0], SAMPLED)
    tokens = [0, *TEXT, *TEXT[::-1], *TEXT * 12]  # past the first capacity
    with torch.inference_mode():
        along_TKD = draft.decoder.states_after_each(torch.tensor([tokens]), drafting.sources())[0]
        expected_TKV = draft.decoder.project(along_TKD)
        cache = drafting.cache
        assert isinstance(cache.session, EagerEntries if engine is EagerModel else CapturedEntries)
        for begin, end in ((0, 1), (1, 2), (2, 9), (5, 7), (7, 8), (8, 80), (80, len(tokens))):
            cache.rollback(begin)
            found_KV = cache.step(tokens[begin:end], 3)
            assert torch.allclose(found_KV, expected_TKV[end - 1, :3], atol=1e-4)
            # No later entry than the new tokens was read from: the queries of the step before are forgotten.
    session.extend([0])  # the source's keys and values are the same once the target has read
    assert torch.allclose(drafting.sources()[1].keys, draft.start(PROMPTS[0], SAMPLED).sources()[1].keys, atol=1e-5)


def first_row(gamma: int) -> torch.Tensor:
    """log q [V] of the first of `gamma` tokens, where attention is even."""
    _, draft = made()
    for block in draft.decoder.blocks:
        block.self_attn.q_proj.weight.zero_()
    q_GV = draft.start(PROMPTS[0], SAMPLED).propose([0, *TEXT], gamma, torch.Generator()).q_GV
    assert q_GV is not None
    return q_GV[0].log()


def test_a_query_sees_the_text_and_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's q is the same however many are drafted after it; a query that sees the next is caught."""
    alone_V = first_row(1)
    assert torch.allclose(first_row(4), alone_V, atol=1e-3)

    def seeing_the_next(queries: int) -> Any:
        def seen(layout: Layout, length: int) -> Layout:
            own, count = Apart(queries)(layout, length), layout.slots_BL.shape[1]
            numbers = torch.arange(count - queries, count - 1)
            own.visible_BLC[0, numbers, length + numbers + 1] = True
            return own

        return seen

    monkeypatch.setattr(parallel_entries, "Apart", seeing_the_next)
    assert not torch.allclose(first_row(4), alone_V, atol=1e-2)


def test_scores_further_ahead_are_those_of_the_tokens_that_are_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one part, and in parts of 3 tokens."""
    target, draft = made()
    tokens = [0, *TEXT]
    ahead = list(draft.start(PROMPTS[0], SAMPLED).score_ahead(tokens, 1, 9))
    assert len(ahead) == QUERIES
    for at in range(1, len(tokens)):
        proposal = draft.start(PROMPTS[0], SAMPLED).propose(tokens[:at], QUERIES, torch.Generator())
        for place in range(min(proposal.size, len(tokens) - at)):
            assert torch.allclose(ahead[place][at - 1 + place], proposal.q_GV[place], atol=1e-5)
    assert not any(ahead[place][:place].any() for place in range(QUERIES))
    (whole,) = agreements(target, [draft], PROMPTS[0], TEXT, SAMPLED, ahead=9)
    monkeypatch.setattr("specbench.analysis.acceptance.agreement.CHUNK", 3)
    (parts,) = agreements(target, [draft], PROMPTS[0], TEXT, SAMPLED, ahead=9)
    for one, other in zip([whole, *whole.ahead], [parts, *parts.ahead], strict=True):
        assert one.beta == pytest.approx(other.beta, abs=1e-4) and one.silent == other.silent


def test_counted_passes_are_those_of_decoding() -> None:
    """Exact at T = 0."""
    target, draft = made(size=VOCABULARY, seed=6, end=EOS)
    for begin in range(0, VOCABULARY - 1, 2):
        prompt = Prompt((5, 9, begin + 2, 1), (0,))
        trace = speculative(
            target, draft, prompt, gamma=3, sampling=GREEDY, max_new_tokens=24, generator=torch.Generator()
        )
        (along,) = agreements(target, [draft], prompt, trace.tokens, GREEDY, ahead=3)
        assert walk(along.ratio, 3, 24, along.silent, ahead=ratios_ahead(along)).passes.sum() == len(trace.passes)


@pytest.mark.full
@torch.inference_mode()
def test_a_row_of_a_batch_writes_what_it_writes_alone() -> None:
    target, draft = made(engine=StaticModel, size=43)
    spec, prompts = spec_of(GREEDY, 12, 3), prompts_of("t5", (1, 17, 3, 8))
    same(in_rows(target, draft, prompts, spec, 2), alone(target, draft, prompts, spec))


class WrongPlace(SpecDecSession):
    """The planted fault: each token is tested with the q of the query before its own."""

    def propose(self, tokens: Any, gamma: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(tokens, gamma, generator)
        q_GV = proposal.q_GV
        return proposal if q_GV is None else Proposal(proposal.tokens, torch.cat([q_GV[:1], q_GV[:-1]]))


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [False, True])
def test_sampled_texts_have_the_targets_distribution(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where q is of a wrong position."""
    target, draft = made(size=VOCABULARY, seed=6, end=EOS)
    if wrong:
        monkeypatch.setattr("specbench.methods.specdec.draft.SpecDecSession", WrongPlace)
    p_value, rejected = chi.speculative_p_value(
        target, draft, Prompt((5, 9, 1), (0,)), 3, Sampling(2.0), 4, 500 if wrong else 400
    )
    assert (p_value < chi.ALARM) == wrong and rejected > 50


def test_weights_are_kept_with_their_target_and_refused_for_another(tmp_path: Path) -> None:
    own = network("t5", 4)
    decoder = decoder_on(own)
    decoder.save(tmp_path, "mine", fingerprint(own))
    again = ParallelDecoder.load(tmp_path, own, "draft")
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), decoder.parameters(), strict=True))
    with pytest.raises(UserError, match="were trained on mine, and this target's weights are others"):
        ParallelDecoder.load(tmp_path, network("t5", 5), "draft")


def test_borrowed_layers_compute_what_the_targets_do() -> None:
    """Each layer of the decoder, read alone, is the target's layer: weights, position biases, source."""
    own = network("t5", 4)
    decoder, prompt = decoder_on(own), PROMPTS[0]
    with torch.inference_mode():
        read = own(
            input_ids=torch.tensor([prompt.source]), decoder_input_ids=torch.tensor([[0, *TEXT]]), use_cache=True
        )
        cross = cache_of(read).cross_attention_cache.layers
        hidden = own(
            input_ids=torch.tensor([prompt.source]), decoder_input_ids=torch.tensor([[0, *TEXT]]),
            output_hidden_states=True,
        ).decoder_hidden_states  # fmt: skip
        of_source = [(layer.keys, layer.values) for layer in cross]
        cache = ParallelEntries(decoder, EagerEntries(beside(decoder), of_source.copy))
        states = []
        hook = decoder.blocks[-1].register_forward_hook(lambda *given: states.append(given[-1]))
        cache.step([0, *TEXT], 1)
        hook.remove()
        found = decoder.norm(states[0][:, : len(TEXT) + 1])
        scale = 32**-0.5
    assert torch.allclose(found, hidden[-1] * scale, atol=1e-4)


@pytest.fixture
def saved(folders: dict[str, Path], tmp_path: Path) -> Path:
    own = AutoModelForSeq2SeqLM.from_pretrained(folders["t5"])
    (tmp_path / "queries").mkdir()
    decoder_on(own).save(tmp_path / "queries", "t5", fingerprint(own))
    return tmp_path / "queries"


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_run(temperature: int, folders: dict[str, Path], saved: Path, tmp_path: Path, capfd: Capture) -> None:
    """At T = 1 it proves its text by martingales."""
    keys = ("draft=specdec", f"draft.path={saved}", "gamma=7", f"sampling.temperature={temperature}", "limit=4")
    code, out, err, record = called(small_run(folders, tmp_path, *keys), tmp_path, capfd)
    assert code == 0 and record is not None, err
    summary = record["summary"]
    assert "its queries draft 4 tokens per pass at most, not gamma=7" in out + err
    assert summary["draft"] == "specdec-queries" and summary["lossless"] and summary["c_hat"] > 0
    assert all(one.drafted <= 4 for prompt in record["prompts"] for one in prompt["speculative"].passes)
    if temperature:
        assert abs(summary["proof_z"]) < 4 and summary["proof_p"] > 6e-5
    else:
        assert summary["identical"] == 1.0


REFUSED = {
    "": "draft.path is not set: no specdec weights ship for target=t5; train some: specbench train recipe=spec",
    "draft.path=NONE": "no specdec heads are in this folder",
    "tree=widths gamma=tree": "tree=widths: draft=specdec: specdec makes no trees; use tree=none, or model",
}


@pytest.mark.parametrize("keys", REFUSED)
def test_a_mistake_is_one_line(keys: str, folders: dict[str, Path], tmp_path: Path, capfd: Capture) -> None:
    given = keys.replace("NONE", str(tmp_path)).split()
    assert REFUSED[keys] in refusal(small_run(folders, tmp_path, "draft=specdec", "draft.path=null", *given), capfd)


def test_a_decoder_only_target_is_refused_in_one_line(folders: dict[str, Path], tmp_path: Path, capfd: Capture) -> None:
    argv = small_run(folders, tmp_path, "draft=specdec", "draft.path=null", kind="gpt2")
    assert "draft=specdec: SpecDec's decoder reads the encoder of a T5, and the target is gpt2" in refusal(argv, capfd)
