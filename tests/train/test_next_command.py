"""A training ends with α by our own engine, and with the command that decodes its held-out prompts as printed."""

import re
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from specbench.cli import main
from specbench.records.catalog import Catalog
from specbench.train import draft_alpha
from specbench.train.draft_alpha import alpha, target_outputs
from specbench.train.target_completions import engine_of
from tests.support.small_recipes import SMALL

Capture = pytest.CaptureFixture[str]
RUN = ["device=cpu", "dtype=float32", "engine=eager", "warmup=0", "threads=1", "max_new_tokens=8"]


@pytest.fixture
def no_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """`transformers`' generate, which is slow for a single prompt, writes nothing here."""
    monkeypatch.setattr("transformers.GenerationMixin.generate", None)


@pytest.mark.full
@pytest.mark.usefixtures("no_generate")
@pytest.mark.parametrize("recipe", ["distill", "medusa"])
def test_the_last_line_runs_the_draft_on_the_held_out_prompts(
    recipe: str, target: Path, prompts: Path, tmp_path: Path, capfd: Capture
) -> None:
    output = tmp_path / "my out"
    shape = ["model.d_model=16", "model.d_ff=16", "model.heads=2", "model.positions=64"] if recipe == "distill" else []
    words = [f"recipe={recipe}", f"distill.target={target}", f"data.path=[{prompts}]", *shape, *SMALL]
    words.append("distill.max_new_tokens=16")
    assert main(["train", *words, f"output={output}"]) == 0, capfd.readouterr().err
    out, err = capfd.readouterr()
    last = out.splitlines()[-1]
    assert last.startswith("specbench run ") and (f"draft={output}" in last.replace("'", "") or "draft=medusa" in last)
    found = re.findall(r"^(α.*, held-out rows, T=[01]): (\d\.\d+) \[.*\] on (\d+) tokens$", err, re.M)
    assert found and {name[-1] for name, _, _ in found} == {"0", "1"}
    card = (output / "README.md").read_text()
    assert all(name in card and value in card for name, value, _ in found)
    rows = (output / "held-out.jsonl").read_text().splitlines()
    assert len(rows) == 12
    again = [*shlex.split(last)[1:], f"results={tmp_path}", *RUN]
    assert main(again) == 0, capfd.readouterr().err
    (run,) = Catalog(tmp_path).rows()
    assert run["prompts"] == 12 and run.get("own_weights", "") == ""
    if recipe == "distill":  # alpha of the card is that of the run, on the same prompts and completions
        assert float(found[0][1]) == pytest.approx(run["alpha"], abs=0.15)


@pytest.mark.usefixtures("no_generate")
def test_completions_to_measure_on_end_at_the_tokens_of_alpha(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForCausalLM.from_pretrained(target)
    sources = [[5, 6, 7, 8 + index] for index in range(10)]
    monkeypatch.setitem(draft_alpha.SCORED, "cpu", 20)
    engine = engine_of(model, 43)
    outputs = target_outputs(engine, sources, sampled=True, max_new_tokens=8)
    assert 2 <= len(outputs) < 10 and sum(map(len, outputs[:-1])) < 20 <= sum(map(len, outputs))
    assert alpha(model, model, sources, outputs, sampled=True, size=43).tokens == sum(map(len, outputs))


@pytest.mark.usefixtures("no_generate")
def test_a_target_alone_is_run_with_a_draft_that_needs_nothing(
    target: Path, prompts: Path, tmp_path: Path, capfd: Capture
) -> None:
    shape = [
        "model.d_model=16",
        "model.d_ff=16",
        "model.heads=2",
        "model.decoder_layers=1",
        f"tokenizer.start_from={target}",
    ]
    words = ["recipe=gpt-mini", f"data.path=[{prompts}]", "data.text=prompt", *shape, *SMALL]
    assert main(["train", *words, f"output={tmp_path / 'out'}"]) == 0, capfd.readouterr().err
    words = shlex.split(capfd.readouterr().out.splitlines()[-1])
    assert words[:4] == ["specbench", "run", f"target={tmp_path / 'out'}", "draft=lookup"]
