"""Tokens after an end, reasons to finish that contradict the tokens, and copies: planted and found."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.analysis.proof.foreign import Foreign
from specbench.analysis.proof.kinds import Side, verdict
from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.engine.session import Prompt
from specbench.engine.weights.load import load_model
from specbench.interop.certify.completion_faults import findings_of, only_drafted
from specbench.interop.certify.outputs import Output, Outputs, read_outputs
from specbench.text.tokenizer import load_tokenizer

Folders = dict[str, Path]
END = 4


def read(folder: Path, tmp_path: Path, *rows: dict[str, Any]) -> Outputs:
    (file := tmp_path / "o.jsonl").write_text("".join(json.dumps({"prompt": "the", **row}) + "\n" for row in rows))
    vocabulary = load_tokenizer(ModelConfig(path=str(folder)), "target")
    return read_outputs(file, vocabulary, frozenset({END}), None, None, "t")


def test_sound_ends_are_no_finding(folders: Folders, tmp_path: Path) -> None:
    sound = read(
        folders["gpt2"], tmp_path,
        {"tokens": [5, 6], "finish_reason": "stop"}, {"tokens": [5, 6, END], "finish_reason": "stop"},
        {"tokens": [5, 6, 7], "finish_reason": "length", "max_tokens": 3}, {"tokens": [5, END]},
        {"text": "old dog", "finish_reason": "length", "max_tokens": 9},
    )  # fmt: skip
    assert findings_of(sound, 0.0) == []
    assert [row.claimed for row in sound.rows] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("row", "name", "said"),
    [
        ({"tokens": [5, END, 7, 8]}, "after end", "tokens follow an end token in 1 of 2 completions"),
        ({"tokens": [5, END], "finish_reason": "length"}, "finish reason", "and the last token is an end"),
        (
            {"tokens": [5, 6], "finish_reason": "length", "max_tokens": 8},
            "finish reason", "finish_reason is length, before the limit of tokens",
        ),
    ],
)  # fmt: skip
def test_an_end_that_contradicts_is_a_finding(
    row: dict[str, Any], name: str, said: str, folders: Folders, tmp_path: Path
) -> None:
    (found,) = findings_of(read(folders["gpt2"], tmp_path, {"tokens": [5, 6]}, row), 0.0)
    assert found.name == name and said in found.line and "line 2" in found.line


def test_ends_that_are_wrong_with_a_draft_alone_are_its_fault(folders: Folders, tmp_path: Path) -> None:
    after = findings_of(read(folders["gpt2"], tmp_path, {"tokens": [5, END, 7]}), 0.0)
    sound = findings_of(read(folders["gpt2"], tmp_path, {"tokens": [5, END]}), 0.0)
    assert only_drafted(after, after) == "" and only_drafted(sound, after) == ""
    from specbench.analysis.proof.certificate import greedy_certificate

    right = Side(greedy_certificate(1000, [], 0.1))
    found = verdict(right, right, 0.1, ends=only_drafted(after, sound))
    assert found.kind == "a fault of speculation" and found.is_faulty and not found.is_verified
    assert "tokens follow an end token" in found.line and "without a draft none" in found.line
    assert "tokens follow an end token" in found.evidence[0], "the first sentence is the cause of the verdict"


@pytest.mark.parametrize(("claimed", "tokens"), [(True, 5), (False, 6)])
def test_an_end_that_the_reason_alone_tells_of_is_no_foreign_token(
    claimed: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's own stop string may have ended the completion where the target hardly ever ends."""
    sampled = import_module("specbench.interop.certify.sampled")
    p_V = torch.full((8,), 1 / 7)
    p_V[END] = 1e-9

    def read(*given: Any, noise: float, seen: Any) -> None:
        written = torch.tensor(given[3])
        for chunk in written.split(2):
            seen(p_V.expand(len(chunk), -1), chunk)

    monkeypatch.setattr(sampled, "evidence", read)
    monkeypatch.setattr(sampled, "prove", lambda rows: None)
    setup: Any = SimpleNamespace(target=None, draft=None, sampling=None)
    row = Output("line 1", Prompt((), (5,)), [5, 6, 7, 5, 6, END], claimed=claimed)
    sampled._proof(setup, [row], foreign=(foreign := Foreign()))
    assert foreign.tokens == tokens and foreign.failed is not claimed


def certified(file: Path, folder: Path, capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["certify", str(file), f"target.path={folder}", "dtype=float32", "device=cpu", "--format", "json", *words])
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


@pytest.mark.full
def test_a_completion_cannot_end_where_the_target_goes_on(
    folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": prompt, "tokens": [5, 6], "finish_reason": "stop"} for prompt in ("the old dog", "a small cat")]
    (file := tmp_path / "o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for temperature, said in ((0.0, None), (0.1, "less often than once in a million")):
        found = certified(file, folders["gpt2"], capfd, f"sampling.temperature={temperature}")
        if said is not None:
            assert [one["name"] for one in found["findings"]] == ["finish reason"] and said in found["findings"][0][
                "line"
            ]


@pytest.mark.full
def test_copies_are_a_finding_of_their_own(folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "the old dog", "tokens": [5, 6, 7, 8, 9, 10]}] * 3
    (file := tmp_path / "o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = certified(file, folders["gpt2"], capfd, "sampling.temperature=1")
    (one,) = found["findings"]
    assert one["name"] == "copies" and "2 of 3 completions are copies" in one["line"] and "own seed" in one["check"]
    assert certified(file, folders["gpt2"], capfd)["findings"] == []  # equal at T=0


@pytest.mark.full
def test_log_probabilities_of_another_model_are_a_finding(
    folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load_model(
        ModelConfig(path=str(folders["gpt2"])), "target", vocabulary := load_tokenizer(
            ModelConfig(path=str(folders["gpt2"])), "target"
        ), torch.float32, torch.device("cpu"),
    )  # fmt: skip
    prompt, tokens = vocabulary.prompt("the old dog", "", 512), [5 + place % 20 for place in range(60)]
    session = model.start(prompt)
    read = [*prompt.prefix, *tokens]
    logits_LV = session.extend(read[session.length : -1])[-len(tokens) :, : vocabulary.size]
    own = logits_LV.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    for logprobs, names in ((own, []), ([one - 0.5 for one in own], ["logprobs"])):
        row = {"prompt": "the old dog", "tokens": tokens, "logprobs": {"token_logprobs": logprobs}}
        (file := tmp_path / "o.jsonl").write_text(json.dumps(row) + "\n")
        found = certified(file, folders["gpt2"], capfd, "sampling.temperature=0.7")
        assert [one["name"] for one in found["findings"]] == names
