"""Every architecture that people use today, through every engine: greedy identity in fp32, and chi-square at T = 1.

The networks have random weights (`architectures`), whose table says which engine each gets.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.cli import main
from specbench.engine.eager.model import EagerModel
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.kernels import is_available
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support import architectures
from tests.support.architectures import ENCODER_DECODER, ENDS, KINDS, SIZE, greedy, prompts, row_of, table
from tests.support.calls import newest
from tests.support.captured import graphs
from tests.support.chi import ALARM, speculative_p_value
from tests.support.decode import autoregressive, speculative
from tests.support.networks import tokenizer
from tests.support.toy import EOS, START, VOCABULARY

pytestmark = pytest.mark.usefixtures("captured_once")
CAPTURED = [kind for kind in KINDS if kind in table() and not table()[kind]["engine"].startswith("eager")]
SLOW_CHI = [kind for kind in KINDS if kind not in ("gemma3_text", "bart", "qwen3_moe")]


@functools.cache
def network(kind: str) -> Any:
    return architectures.network(kind, seed=4)


@functools.cache
def model(kind: str, engine: str) -> EagerModel:
    if engine == "graphs":  # CUDA graphs, played on a CPU
        return graphs(network(kind))
    return with_engine(engine, network(kind), SIZE, ENDS)


@functools.cache
def draft(kind: str) -> ModelDraft:
    return ModelDraft(EagerModel(architectures.network(kind, seed=2, layers=1), SIZE, ENDS), SIZE)


@functools.cache
def texts(kind: str) -> list[list[int]]:
    return greedy(kind, network(kind), new=20)


@pytest.mark.covering(most=2)
@pytest.mark.skipif(not is_available(), reason="the table is of a machine with a C compiler")
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_says_what_decodes(kind: str) -> None:
    """Why numerics are not invariant may differ from machine to machine."""
    found, written = row_of(kind), table()[kind]
    assert "WRONG" not in found.values() and found["engine"].partition(":")[0] in found["engines"]
    assert {name: cell for name, cell in found.items() if name != "invariance"} == {
        name: cell for name, cell in written.items() if name != "invariance"
    }
    assert found["invariance"].partition(":")[0] == written["invariance"].partition(":")[0]


def test_the_table_has_each_architecture_that_is_tested() -> None:
    assert list(table()) == KINDS


@pytest.mark.covering(most=1)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        *((kind, "eager") for kind in KINDS),
        *((kind, engine) for kind in CAPTURED for engine in ("auto", "native", "graphs")),
    ],
)
def test_greedy_texts_are_those_of_transformers(kind: str, engine: str) -> None:
    target = model(kind, engine)
    settings: dict[str, Any] = {"sampling": Sampling(), "max_new_tokens": 20, "generator": torch.Generator()}
    assert len({token for text in texts(kind) for token in text}) > 4  # a constant text would prove little
    for prompt, text in zip(prompts(kind), texts(kind), strict=True):
        assert autoregressive(target, prompt, **settings).tokens == text
        for gamma in (1, 4, 7):
            for drafting in (draft(kind), ModelDraft(target, SIZE)):
                assert speculative(target, drafting, prompt, gamma=gamma, **settings).tokens == text


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPTURED)
def test_the_compiled_step(kind: str) -> None:
    for prompt, text in zip(prompts(kind), texts(kind), strict=True):
        settings: dict[str, Any] = {"sampling": Sampling(), "max_new_tokens": 20, "generator": torch.Generator()}
        assert autoregressive(model(kind, "compile"), prompt, **settings).tokens == text


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW_CHI else []) for kind in KINDS]
)
def test_sampled_texts_are_drawn_from_the_target(kind: str) -> None:
    """False alarm: one seed in 10,000."""
    toys = [architectures.network(kind, seed, layers, VOCABULARY) for seed, layers in ((6, 2), (7, 1))]
    target, small = (with_engine("auto", toy, VOCABULARY, frozenset({EOS})) for toy in toys)
    prompt = Prompt((2, 1, 3), (START,)) if kind in ENCODER_DECODER else Prompt((), (START,))
    p, rejected = speculative_p_value(target, ModelDraft(small, VOCABULARY), prompt, 2, Sampling(1.0), 3, 600)
    assert p > ALARM and rejected > 50


@pytest.mark.covering(most=2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_a_folder(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`specbench run target=FOLDER` on what `transformers` saves."""
    folders, rows = {"target": tmp_path / "target", "draft": tmp_path / "draft"}, tmp_path / "rows.jsonl"
    for layers, folder in enumerate(reversed(folders.values()), 1):
        architectures.network(kind, layers, layers).save_pretrained(folder)
        tokenizer(with_end=kind in ENCODER_DECODER).save_pretrained(folder)
    rows.write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in ("the dog runs .", "a man sees the cat")))
    words = ["task=prompts", f"task.path={rows}", "max_new_tokens=8", "gamma=3", "dtype=float32", "device=cpu"]
    words += [f"{name}={folder}" for name, folder in folders.items()]
    assert main(["run", *words, "warmup=1", f"results={tmp_path}"]) == 0
    summary = newest(tmp_path)["summary"]
    assert summary["identical"] == 1 and summary["lossless"]
    assert summary["engine"] == table()[kind]["engine"].partition(":")[0]
    capfd.readouterr()


def test_list_target_shows_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "target", "--all"]) == 0
    shown = capfd.readouterr().out
    assert all(kind in shown for kind in KINDS)
