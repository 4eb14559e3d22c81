"""A recommendation in the words of other engines: each against a file in `golden/`, and as data that its reader takes.

After a wanted change the files are written anew by `SPECBENCH_GOLDEN=write`.
"""

import copy
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.cli import main
from specbench.cli.formats import settings_text
from specbench.errors import UserError
from specbench.interop.serving.settings import ENGINES, EngineSettings, parse_schedule, settings_for
from tests.support.calls import refusal

GOLDEN = Path(__file__).parent / "golden"
Capture = pytest.CaptureFixture[str]
HUB = {"path": None, "hub": "meta/large", "revision": "abc123", "shipped": None, "name": "large"}
DRAFT = {"kind": "model", "path": "/weights/small", "hub": None, "revision": None, "shipped": None, "name": "small"}
LOOKUP = {"kind": "lookup", "name": None, "match": 3}
EAGLE = {"kind": "eagle3", "path": None, "hub": "meta/large-eagle3", "revision": None, "shipped": None, "name": None}
BIGRAM = {"kind": "bigram", "name": None, "discount": 0.75}


def document(
    *drafts: dict[str, Any], temperature: float = 0.0, rule: str = "exact", gamma: int = 4, **more: Any
) -> dict[str, Any]:
    """The settings for other engines in a recommendation of these drafts, the best first."""
    names = [draft["name"] or draft["kind"] for draft in drafts]
    sampling = {"temperature": temperature, "top_k": 50 if temperature else None, "top_p": None}
    return {
        "rows": [
            {"draft": name, "accept": rule, "candidate": name, "gamma": gamma, "estimated": {"value": value}}
            for value, name in zip((2.0, 1.9), names, strict=False)
        ],
        "alpha_rows": [{"draft": name, "accept": rule} for name in names],
        "configs": [{"target": HUB, "draft": draft, "sampling": sampling} for draft in drafts],
        **more,
    }  # fmt: skip


CASES = {
    "a draft model, T=0": (document(DRAFT), ""),
    "a draft model of the hub, T=0.7": (document({**HUB, "kind": "model", "name": "hub"}, temperature=0.7), ""),
    "prompt lookup": (document(LOOKUP), ""),
    "counts of pairs before a model": (document(BIGRAM, DRAFT), ""),
    "counts of pairs alone": (document(BIGRAM), ""),
    "block verification": (document(DRAFT, rule="block", temperature=1.0), ""),
    "a greedy draft, T=1": (document(DRAFT, rule="onehot", temperature=1.0), ""),
    "strict match, T=1": (document(DRAFT, rule="match", temperature=1.0), ""),
    "a schedule by batch size": (document(DRAFT), "1-8:5,9-32:2"),
    "an EAGLE-3 draft by batch size": (document(EAGLE), "1-8:5,9-32:2,33-:0"),
    "an EAGLE draft that ships": (document({**EAGLE, "kind": "eagle", "hub": None, "shipped": "gpt-mini-eagle"}), ""),
    "an encoder-decoder": (document(DRAFT, encoder_decoder=True), ""),
}


def settings(engine: str, case: str) -> EngineSettings:
    found, spans = CASES[case]
    return settings_for(found, engine, parse_schedule(spans) if spans else ())


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_said_to_an_engine(engine: str) -> None:
    shown = "\n".join(f"### {case}{settings_text(settings(engine, case))}\n" for case in CASES)
    file = GOLDEN / f"{engine}.txt"
    if os.environ.get("SPECBENCH_GOLDEN") == "write":
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_commands_and_files_hold_the_settings(engine: str, case: str) -> None:
    found = settings(engine, case)
    assert json.loads(json.dumps(found)) and (found["gamma"] is None) == (not found["command"])
    if found["gamma"] is None:
        assert found["refused"] and found["settings"] == {}
    elif engine in ("transformers", "openvino"):
        compile(found["command"], engine, "exec")
    else:
        words = shlex.split(found["command"].replace("\\\n", " "))
        if found["file"] is not None:
            content = yaml.safe_load(found["file"]["content"])  # which JSON is, too
            assert found["file"]["name"] in words and (content == found["settings"] or engine == "sglang")
        for flag, value in found["settings"].items():
            if flag == "--speculative-config":
                assert json.loads(words[words.index(flag) + 1]) == value
            elif flag.startswith("--"):
                assert words[words.index(flag) + 1] == str(value)


def test_transformers_takes_the_names() -> None:
    """The installed version has the keys that are printed for it."""
    from transformers import GenerationConfig

    for case in CASES:
        found = settings("transformers", case)["settings"]
        for part in found.values():
            assert not GenerationConfig().update(**{key: value for key, value in part.items() if value is not None})


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ("8:5", "must be spans of batch sizes with their γ"),
        ("2-8:5", "2-8:5 must begin at 1"),
        ("1-8:5,10-:2", "10-:2 must begin at 9"),
        ("1-:5,2-3:1", "2-3:1 must begin at 0"),
        ("1-:0", "drafts at no batch size"),  # "num_speculative_tokens": 0 is no setting
        ("1-8:0,9-:0", "drafts at no batch size"),
    ],
)
def test_a_schedule_with_a_mistake(spans: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_schedule(spans)


def test_a_saved_recommendation_is_said_without_models(tmp_path: Path, capfd: Capture) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"schema_version": 2, **document(DRAFT)}))
    assert main(["recommend", "--for", "vllm,sglang", "--from", str(file)]) == 0
    out = capfd.readouterr().out
    assert "--speculative-config" in out and "--speculative-num-steps 4" in out
    assert main(["recommend", "--for", "vllm", f"--from={file}", "--format", "json", "--schedule", "1-8:5,9-:0"]) == 0
    (found,) = json.loads(capfd.readouterr().out)
    assert found["settings"]["--speculative-config"]["num_speculative_tokens_per_batch_size"][0] == [1, 8, 5]


def test_mistakes_are_one_line(tmp_path: Path, capfd: Capture) -> None:
    file, other = tmp_path / "cut.json", tmp_path / "other.json"
    file.write_text("{")
    other.write_text(json.dumps({"schema_version": 2, "rows": [{"draft": "a"}], "configs": [], "alpha_rows": []}))
    for argv, said in (
        (["--for", "tgi"], "--for tgi: no such engine; choose from transformers, vllm"),
        (["--from", str(file)], "--from: goes with --for ENGINE"),
        (["--for", "vllm", "--from", str(file)], "is not a JSON document"),
        (["--for", "vllm", "--from", str(tmp_path / "none")], "there is no file of that name"),
        (["--for", "vllm", "--from", str(other)], "no document of `specbench recommend`"),
        (["--for", "vllm", "--from", str(file), "limit=3"], "limit=3: --from takes all of the recommendation"),
        (["--for", "vllm", "--schedule", "3"], "--schedule 3: must be spans"),
    ):
        assert said in refusal(["recommend", *argv], capfd)


def test_one_candidate_of_two_rules_is_told_from_the_other() -> None:
    both = copy.deepcopy(document(DRAFT, rule="block", temperature=1.0))
    plain = document(DRAFT, temperature=1.0)
    for key in ("rows", "alpha_rows", "configs"):
        both[key] += plain[key]
    found = settings_for(both, "sglang")
    assert found["refused"] == ["small: SGLang has no accept=block"] and found["gamma"] == 4


@pytest.mark.parametrize(
    ("estimated", "said"),
    [
        ({"value": 1.02, "low": 0.79, "high": 1.33}, "no gain is shown here (1.02×, 95%: 0.79–1.33): serve without"),
        ({"value": 1.6, "low": None, "high": None}, "no gain is shown here (1.60×, one prompt)"),
        ({"value": 1.3, "low": 1.1, "high": 1.5}, None),
    ],
)
def test_settings_of_what_shows_no_gain_say_so(estimated: dict[str, Any], said: str | None) -> None:
    """They stood beside 'no significant gain' without a word."""
    found = document(DRAFT)
    found["rows"][0]["estimated"] = estimated
    text = settings_text(settings_for(found, "vllm"))
    if said is None:
        assert "no gain" not in text
    else:
        assert text.index(said) < text.index("vllm serve")
