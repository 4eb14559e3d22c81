"""`specbench run` and `alpha` with the drafts that work inside the target, and their errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from specbench.choose.alpha import alpha_folder
from specbench.cli import main
from specbench.engine.saved_heads import WEIGHTS, fingerprint
from specbench.methods.blockwise.draft import BlockwiseHeads
from tests.support.calls import newest, small

Folders = dict[str, Path]
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run with small settings; returns the exit code and what was said."""

    def call(
        draft: str, *overrides: str, verb: str = "run", kind: str = "t5", conf: Path | None = None
    ) -> tuple[int, str]:
        own = (f"draft={draft}", "max_new_tokens=10")
        keys = small(folders, tmp_path / "results", *own, *overrides, kind=kind)
        code = main([verb, *([] if conf is None else ["--config-dir", str(conf)]), *keys])
        told = capfd.readouterr()
        return code, told.out + told.err

    return call


@pytest.fixture
def heads(folders: Folders, tmp_path: Path) -> Path:
    folder = tmp_path / "heads"
    folder.mkdir()
    torch.manual_seed(0)
    target = AutoModelForSeq2SeqLM.from_pretrained(folders["t5"])
    BlockwiseHeads(4, 32, 8).save(folder, "t5", fingerprint(target))
    return folder


@pytest.mark.full
@pytest.mark.parametrize(("kind", "temperature"), [("t5", 0), ("gpt2", 0), ("llama", 1)])
def test_early_exit(run: Run, tmp_path: Path, kind: str, temperature: int) -> None:
    keys = ("draft.layers=1", "gamma=3", f"sampling.temperature={temperature}")
    code, said = run("early-exit", *keys, kind=kind)
    assert code == 0, said
    summary = newest(tmp_path / "results")["summary"]
    assert summary["draft"] == ("early-exit-1")
    assert summary["identical"] == (1.0 if temperature == 0 else None)
    assert 0 < float(str(summary["c_hat"])) < 1


@pytest.mark.full
def test_all_layers_have_an_alpha_of_one_and_more_are_refused(run: Run, tmp_path: Path) -> None:
    assert run("early-exit", "draft.layers=2", "gamma=2")[0] == 0
    assert newest(tmp_path / "results")["summary"]["alpha"] == 1.0
    code, said = run("early-exit", "draft.layers=3")
    assert code == 2 and "draft.layers=3: t5 has 2 decoder layers" in said
    code, said = run("early-exit", "draft.layers=0")
    assert code == 2 and "draft.layers=0: must be at least 1" in said
    code, said = run("early-exit", "target.device_map=auto")
    assert code == 2 and "draft=early-exit: works inside the target, which must be on one device" in said


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0, 1])
def test_blockwise(run: Run, tmp_path: Path, heads: Path, temperature: int) -> None:
    code, said = run("blockwise", f"draft.path={heads}", "gamma=7", f"sampling.temperature={temperature}")
    assert code == 0, said
    assert "its heads draft 3 tokens per pass at most, not gamma=7" in said
    summary = newest(tmp_path / "results")["summary"]
    assert summary["draft"] == "blockwise-heads"
    assert summary["identical"] == (1.0 if temperature == 0 else None)


@pytest.mark.full
@pytest.mark.parametrize("gamma", ["auto", "adaptive"])
def test_heads_take_their_gamma_from_a_probe(run: Run, tmp_path: Path, heads: Path, gamma: str) -> None:
    """It scores each head at the tokens that it would draft."""
    code, said = run("blockwise", f"draft.path={heads}", f"gamma={gamma}")
    assert code == 0, said
    record = newest(tmp_path / "results")
    assert record["gamma"].probe[0]["prediction"] == "by position"
    assert (record["summary"]["gamma"] is None) == (gamma == "adaptive")


@pytest.mark.full
def test_what_blockwise_refuses(run: Run, folders: Folders, heads: Path) -> None:
    code, said = run("blockwise")
    assert code == 2 and "draft.path is not set: no blockwise weights ship for target=t5; train some" in said
    assert f"recipe=blockwise distill.target={folders['t5']} 'data.path=[FILE]'" in said
    code, said = run("blockwise", "draft.shipped=null")
    assert code == 2 and "draft.path is not set: give the folder that `specbench train recipe=blockwise` wrote" in said
    code, said = run("blockwise", f"draft.path={folders['t5']}")
    assert code == 2 and "no blockwise heads are in this folder" in said
    damaged = shutil.copytree(heads, heads.with_name("damaged"))
    (damaged / WEIGHTS).write_bytes(b"x")
    code, said = run("blockwise", f"draft.path={damaged}")
    assert code == 2 and "draft: the heads in" in said and "damaged cannot be loaded" in said
    code, said = run("blockwise", f"draft.path={heads}", verb="bench")
    assert code == 2 and "which generate does not return; use run" in said
    code, said = run("blockwise", f"draft.path={heads}", kind="gpt2")
    assert code == 2 and "were trained on t5, and this target's weights are others" in said


@pytest.mark.full
def test_alpha_of_both_at_once(run: Run, tmp_path: Path, heads: Path) -> None:
    """One session of the target serves its first layers and the heads on its states."""
    own = tmp_path / "conf" / "draft" / "mine.yaml"  # in a list, heads are named by a choice of one's own
    own.parent.mkdir(parents=True)
    own.write_text(f"kind: blockwise\npath: {heads}\n")
    code, said = run("[early-exit,mine]", "draft.layers=2", "tokens=20", verb="alpha", conf=own.parent.parent)
    assert code == 0, said
    (file,) = alpha_folder(tmp_path / "results").glob("*.json")
    alphas = {row["draft"]: row["alpha"] for row in json.loads(file.read_text())["rows"]}
    assert set(alphas) == {"early-exit-2", "blockwise-heads"} and alphas["early-exit-2"] == pytest.approx(1.0)
    assert 0 <= alphas["blockwise-heads"] < 1  # heads that start as head 1, which predicts the token before theirs
