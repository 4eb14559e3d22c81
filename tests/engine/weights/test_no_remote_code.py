"""Code of a checkpoint never runs, whatever stands on standard input; one file loads what `transformers` loads."""

import ast
import io
import json
import shutil
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.config.paths import shipped
from specbench.errors import UserError
from specbench.train import networks
from tests.support.paths import ROOT

PACKAGE = ROOT / "specbench"
LOADS = {"from_pretrained", "from_config", "_from_config"}
LOADER = PACKAGE / "engine" / "weights" / "pretrained.py"
# The code would be run while it is imported.
EVIL = """
from pathlib import Path
Path(__file__).parent  # transformers copies the file, so the mark is at a fixed place
Path({mark!r}).write_text("ran")
from transformers import {base}, AutoConfig
class EvilModel({base}): pass
class EvilConfig(AutoConfig): pass
"""


def loading_calls(file: Path) -> list[str]:
    """Where `file` uses a loader of `transformers`; torch's `nn.Embedding.from_pretrained` reads no file."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
        owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
        if name in LOADS and owner != "nn.Embedding":
            found.append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    return found


def test_one_file_loads_configs_tokenizers_and_networks() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if file != LOADER]
    assert [place for file in files for place in loading_calls(file)] == []
    assert loading_calls(LOADER)


def test_that_file_lets_no_code_run() -> None:
    """Each call of a loader passes trust_remote_code=False, by name or with the keywords that hold it."""
    calls = [
        node
        for node in ast.walk(ast.parse(LOADER.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADS
    ]
    assert len(calls) >= 6
    for call in calls:
        if ast.unparse(call.func) in ("GenerationConfig.from_pretrained", "PeftConfig.from_pretrained"):  # without code
            continue
        said = [ast.unparse(one.value) for one in call.keywords if one.arg == "trust_remote_code"]
        spread = [ast.unparse(one.value) for one in call.keywords if one.arg is None]
        assert said == ["False"] or "CHECKED" in spread, ast.unparse(call)
    from specbench.engine.weights.pretrained import CHECKED

    assert CHECKED["trust_remote_code"] is False


def evil_folder(folder: Path, model_type: str, auto: str) -> Path:
    """A shipped model as one of a family that `transformers` knows, but has no such network of; its code has one."""
    shutil.copytree(shipped("models", "t5-nano" if auto == "Seq2SeqLM" else "gpt-nano"), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": model_type, "is_encoder_decoder": auto == "Seq2SeqLM"}
    config["auto_map"] = {f"AutoModelFor{auto}": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mark = str(folder.parent / "ran")
    (folder / "evil.py").write_text(EVIL.format(mark=mark, base="PreTrainedModel"), encoding="utf-8")
    return folder


ROWS = '{"prompt": "the old dog", "completion": "sees a cat", "translation": {"en": "a dog", "de": "ein hund"}}\n'
VERBS = {
    "run": "run target.path={folder} draft=lookup limit=2 task={rows} device=cpu dtype=float32 results={results}",
    "run with a probe of the dtype": "run target.path={folder} draft=lookup limit=2 task={rows} device=cpu "
    "dtype=auto results={results}",
    "run with it as the draft": "run target={target} draft={folder} limit=2 device=cpu results={results}",
    "alpha": "alpha target.path={folder} draft=lookup limit=2 task={rows} device=cpu dtype=float32",
    "certify": "certify {rows} target.path={folder} device=cpu dtype=float32",
}  # fmt: skip


@pytest.mark.parametrize(("model_type", "auto"), [("vit", "CausalLM"), ("clip_text_model", "Seq2SeqLM")])
@pytest.mark.parametrize("verb", VERBS)
def test_code_of_a_checkpoint_is_not_run(
    verb: str,
    model_type: str,
    auto: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = evil_folder(tmp_path / "evil", model_type, auto)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROWS * 20, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    target = "t5-mini" if auto == "Seq2SeqLM" else "gpt-mini"
    words = VERBS[verb].format(folder=folder, rows=rows, results=tmp_path / "results", target=target)
    code = main(words.split())
    err = capfd.readouterr().err
    assert not (tmp_path / "ran").exists(), err
    assert code == 2 and "Traceback" not in err, err


@pytest.mark.parametrize(("model_type", "auto"), [("vit", "CausalLM"), ("clip_text_model", "Seq2SeqLM")])
def test_training_runs_no_code_of_its_target(
    model_type: str, auto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target, and what `model.start_from` names, are loaded by the same functions."""
    folder = str(evil_folder(tmp_path / "evil", model_type, auto))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    assert networks.load_tokenizer(folder).eos_token_id is not None
    with pytest.raises(UserError, match="model can be loaded from"):
        networks.load(folder, "t5" if auto == "Seq2SeqLM" else "gpt2")
    assert not (tmp_path / "ran").exists()
