"""Token ids that a model has no embedding for: one line where it is loaded or the prompt is made, and never a read
outside its table."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.cli import main
from specbench.config.paths import shipped
from specbench.engine.batch import Batch
from specbench.engine.eager.model import EagerModel
from specbench.engine.native.native_sessions import NativeSession
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.errors import UserError
from tests.support.networks import PADDED, network

TOO_FAR = (PADDED, 10**9, -1, -5)


def changed(folder: Path, name: str, file: str, change: Any) -> Path:
    """A copy of a shipped model whose JSON `file` is as `change` makes it."""
    shutil.copytree(shipped("models", name), folder)
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    (folder / file).write_text(json.dumps(change(content)), encoding="utf-8")
    return folder


def with_token(content: Any, number: int) -> Any:
    """A tokenizer.json with one more token."""
    added = dict(content["added_tokens"][0]) | {"id": number, "content": "<more>", "special": True}
    return content | {"added_tokens": [*content["added_tokens"], added]}


def with_template(content: Any, number: int) -> Any:
    """A tokenizer.json that puts a token of this id after every text."""
    return content | {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [number], "tokens": ["</s>"]}},
        }
    }


ROWS = 8000  # of t5-nano's embeddings
START = "decoder_start_token_id is {}, and the model has tokens 0 to 7999"
MAKES = "the tokenizer makes a prompt with token {}, and the model has tokens 0 to {}"
ENDS = "eos_token_id of its generation config is {!r}: give a token or a list of them"
REFUSED: dict[str, tuple[str, Any, str]] = {
    **{f"start {n}": ("config.json", lambda c, n=n: c | {"decoder_start_token_id": n}, START.format(n))
       for n in (10**9, ROWS, -5)},
    **{f"template {n}": ("tokenizer.json", lambda c, n=n: with_template(c, n), MAKES.format(n, 7999))
       for n in (10**8, ROWS)},
    **{f"ends {n!r}": ("generation_config.json", lambda c, n=n: c | {"eos_token_id": n}, ENDS.format(n))
       for n in ("x", {}, [1, "x"], True)},
}  # fmt: skip


@pytest.mark.parametrize("engine", ["native", "eager"])
@pytest.mark.parametrize("case", REFUSED)
def test_ids_beyond_the_table_are_one_line(
    case: str, engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, change, said = REFUSED[case]
    folder = changed(tmp_path / "model", "t5-nano", file, change)
    argv = ["run", f"target.path={folder}", "draft=lookup", "task=ende-mini", "limit=1", "warmup=0"]
    assert main([*argv, "dtype=float32", "device=cpu", f"engine={engine}", f"results={tmp_path}"]) == 2
    err = capfd.readouterr().err
    assert said in err.splitlines()[-1] and "Traceback" not in err, err


def test_a_tokenizer_longer_than_the_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A token added for padding is none that the model knows: texts without it are decoded, one with it is refused."""
    folder = changed(tmp_path / "model", "gpt-nano", "tokenizer.json", lambda content: with_token(content, 4000))
    rows = tmp_path / "rows.jsonl"
    keys = ["draft=lookup", f"task={rows}", "max_new_tokens=4", "warmup=0", "dtype=float32"]
    argv = ["run", f"target.path={folder}", *keys, "device=cpu", f"results={tmp_path}"]
    rows.write_text('{"prompt": "The minister said"}\n')
    assert main(argv) == 0, capfd.readouterr().err
    rows.write_text('{"prompt": "The minister said <more>"}\n')
    assert main(argv) == 2
    assert MAKES.format(4000, 3999) in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("engine", ["native", "static", "eager"])
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_extend_refuses_them(kind: str, engine: str) -> None:
    model: EagerModel = with_engine(engine, network(kind, 1), 40, frozenset({1}))
    prompt = Prompt((3, 4), (0,)) if kind == "t5" else Prompt((), (3, 4))
    for token in TOO_FAR:
        for tokens in ([token], [5, token, 6]):
            said = f"token {token} cannot be read: the model has embeddings of the tokens 0 to 63"
            with pytest.raises(UserError, match=said):
                model.start(prompt).extend(tokens)
        with pytest.raises(UserError, match="cannot be read"):
            Batch.of(model, 2).start(prompt).extend([token])
        with pytest.raises(UserError, match="cannot be read"):
            model.start(Prompt((3, token), (0,)) if kind == "t5" else Prompt((), (token, 4)))
    assert torch.isfinite(model.start(prompt).extend([PADDED - 1])).all()


@pytest.mark.parametrize(("kind", "prompt"), [("t5", Prompt((3, 4), (0,))), ("llama", Prompt((), (3, 4)))])
def test_the_kernel_reads_nothing_outside_its_table(kind: str, prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the check in Python a row is NaN, which every choice of a token refuses."""
    monkeypatch.setattr("specbench.engine.native.native_sessions.require_readable", lambda tokens, readable: None)
    model = with_engine("native", network(kind, 1), 40, frozenset({1}))
    for token in TOO_FAR:
        session = model.start(prompt)
        assert isinstance(session, NativeSession)
        logits_LV = session.extend([5, token])
        assert torch.isnan(logits_LV[1]).all()
        # Attention that goes through a cache once for all rows multiplies the NaN by the 0 of the rows before it.
        assert kind == "llama" or torch.isfinite(logits_LV[0]).all()
