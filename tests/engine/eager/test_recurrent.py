"""Targets with recurrent states: rejections at every place, texts of every family, trees, and what is refused."""

import functools
import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration, RwkvConfig, RwkvForCausalLM

from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.engine.eager import cache
from specbench.engine.eager.model import EagerModel, PrefixBatch
from specbench.engine.eager.recurrence import FAMILIES
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.engine.weights.load import layers_of, load_model
from specbench.errors import UserError
from specbench.text.tokenizer import load_tokenizer
from tests.support import recurrent
from tests.support.recurrent import KINDS
from tests.support.thousand import SAME, differing, greedy_texts

SIZE, ENDS = 40, frozenset({1})
TEXT = torch.randint(2, SIZE, (80,), generator=torch.Generator().manual_seed(5)).tolist()
# Of these, one for each way of scanning, and the layer with both an attention and a state.
FEW = ("qwen3_next", "zamba2", "falcon_mamba", "lfm2")
MOST_ROUNDING = 2e-5  # of logits; `transformers` reads a whole text in chunks, with other sums


@functools.cache
def model(kind: str) -> EagerModel:
    return EagerModel(recurrent.network(kind, 3), SIZE, ENDS)


def uncached(kind: str, text: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(kind).network(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return logits


def is_near(found: torch.Tensor, exact: torch.Tensor) -> bool:
    return float((found - exact).abs().max()) < MOST_ROUNDING


def test_every_family_is_tested() -> None:
    assert sorted(FAMILIES) == KINDS


@pytest.mark.parametrize("prefix", [1, 5, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_rejections_at_every_position(kind: str, prefix: int) -> None:
    """Passes of 1 to 7 tokens of which 0, 1, ... are accepted: what follows is read from the right states."""
    exact, session = uncached(kind, TEXT), model(kind).start(Prompt((), tuple(TEXT[:prefix])))
    at, pairs = prefix - 1, [(drafted, accepted) for drafted in (1, 4, 7) for accepted in range(drafted + 1)]
    for drafted, accepted in pairs:
        if at + accepted + 1 > len(TEXT):
            break
        wrong = [(token + 1) % SIZE for token in TEXT[at + accepted + 1 :][: drafted - accepted]]
        read = TEXT[at : at + accepted + 1] + wrong
        found = session.extend(read)
        assert is_near(found[: accepted + 1], exact[at : at + accepted + 1])
        at += accepted + 1
        session.rollback(at)
    session.rollback(3)  # further back than states are held
    assert session.length == 3 and is_near(session.extend(TEXT[3:9]), exact[3:9])


@pytest.mark.parametrize("kind", FEW)
def test_only_a_text_that_no_state_is_held_of_is_read_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "HELD", 8)
    session, runs = model(kind).start(Prompt((), tuple(TEXT[:5]))), 0

    def count(*_: object) -> None:
        nonlocal runs
        runs += 1

    hook = model(kind).network.register_forward_hook(count)
    try:
        for at in range(4, 40, 4):
            session.extend(TEXT[at : at + 6])
            session.rollback(at + 4)
        assert runs == 9
        session.rollback(20)
        assert runs == 10
    finally:
        hook.remove()
    assert is_near(session.extend(TEXT[20:24]), uncached(kind, TEXT)[20:24])


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_of_a_tree_are_read_from_their_parents(kind: str) -> None:
    exact, session = uncached(kind, TEXT), model(kind).start(Prompt((), tuple(TEXT[:6])))
    model(kind).require_trees()
    a, b, c, d = TEXT[5:9]
    first = session.extend([a, 11, b, 12], [-1, -1, 0, 1])
    nodes = torch.cat([first, session.extend([c, 13, d, 14], [2, 2, 4, 3])])
    assert is_near(nodes[[0, 2, 4, 6]], exact[5:9])
    assert is_near(nodes[[1, 3, 7]], uncached(kind, [*TEXT[:5], 11, 12, 14])[5:])
    session.select([0, 2, 4])
    assert session.length == 8 and is_near(session.extend([d, TEXT[9]]), exact[8:10])
    session.extend([20, 21], [-1, 0])
    session.rollback(9)
    assert is_near(session.extend(TEXT[9:11]), exact[9:11])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_greedy_completions(kind: str) -> None:
    texts = greedy_texts(model(kind).network, SIZE, ENDS, longest=39)
    assert differing(model(kind), texts) == SAME


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of others: keys and values are cut, the state stays."""

    def crop(self: cache.RecurrentStates, tokens: int) -> None:
        if tokens and self.states:
            last = self.states[-1]
            own(self, tokens)
            self.states[-1] = last
        else:
            own(self, tokens)

    own = cache.RecurrentStates.crop
    monkeypatch.setattr(cache.RecurrentStates, "crop", crop)


def test_a_state_that_is_not_rolled_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    with pytest.raises(AssertionError):
        test_rejections_at_every_position("qwen3_next", 5)


@pytest.mark.slow
def test_a_state_that_is_not_rolled_back_changes_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = greedy_texts(model("mamba2").network, SIZE, ENDS, longest=39, prompts=30)
    assert differing(model("mamba2"), texts) == SAME
    planted(monkeypatch)
    with pytest.raises(AssertionError):
        assert differing(model("mamba2"), texts) == SAME


def test_auto_comes_to_eager_and_others_are_refused() -> None:
    reason = "recurrent states, which only engine=eager rolls back"
    own = model("qwen3_next").network
    found = with_engine("auto", own, SIZE, ENDS, "invariant")
    assert (found.engine, found.report.fell_back) == ("eager", reason)
    assert found.report.not_invariant == "engine=eager does not control its kernels"
    for engine in ("static", "native", "compile"):
        with pytest.raises(UserError, match=f"engine={engine}: Qwen3NextForCausalLM has {reason}; use"):
            with_engine(engine, own, SIZE, ENDS)


def test_the_text_model_of_a_checkpoint_that_sees_images(tmp_path: Path) -> None:
    text = {**recurrent.SHAPES["qwen3_5_text"], "vocab_size": recurrent.PADDED, "num_hidden_layers": 2}
    seeing = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32}
    torch.manual_seed(0)
    own = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=seeing))
    own.save_pretrained(tmp_path)
    recurrent.tokenizer(with_end=False).save_pretrained(tmp_path)
    told = ModelConfig(path=str(tmp_path))
    assert layers_of(told, "target") == 2
    found = load_model(told, "target", load_tokenizer(told, "target"), torch.float32, torch.device("cpu"))
    with torch.inference_mode():
        exact = own.eval()(input_ids=torch.tensor([TEXT])).logits[0]
    assert is_near(found.start(Prompt((), tuple(TEXT[:9]))).extend(TEXT[8:20]), exact[8:20])


def test_beam_search_is_refused() -> None:
    with pytest.raises(UserError, match="bench beam: Lfm2ForCausalLM has recurrent states"):
        PrefixBatch(model("lfm2"), Prompt((), (0,)))


def test_states_of_other_families_are_refused() -> None:
    config = {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "vocab_size": 64}
    with pytest.raises(UserError, match="RwkvForCausalLM: the states of rwkv cannot be rolled back here; .* mamba2"):
        EagerModel(RwkvForCausalLM(RwkvConfig(**config)), SIZE, ENDS)


def test_a_run_on_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of every architecture in `test_architectures.py`."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("the dog runs .", "a man sees the cat")))
    target, draft = (recurrent.save(tmp_path / str(seed), "qwen3_5_text", seed) for seed in (3, 4))
    argv = ["run", f"target={target}", f"draft={draft}", "task=prompts", f"task.path={rows}", "max_new_tokens=8",
            "gamma=3", "dtype=float32", "device=cpu", f"results={tmp_path}"]  # fmt: skip
    assert main(argv) == 0
    out = capfd.readouterr()
    assert main(["explain", f"results={tmp_path}"]) == 0
    assert "layers of the target are recurrent" in capfd.readouterr().out
    assert "engine eager" in out.out and "100.0%  of completions equal" in out.out
    assert "(recurrent states, which only engine=eager rolls back)" in out.err + out.out
