"""Forced acceptance: what runs say to each program, read back; each one's convention on the target's own token."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.errors import UserError
from specbench.interop.readings import Reading, read
from specbench.interop.readings.forced import Acceptance, from_length
from specbench.interop.readings.forced_from_runs import acceptance, written
from specbench.interop.readings.reading import LENGTH, MARGINAL
from specbench.recorded import to_json
from specbench.records import store
from tests.support.calls import refusal
from tests.support.made_records import make

Capture = pytest.CaptureFixture[str]
FORMS = {
    "vllm": "vllm-forced", "llama.cpp": "llamacpp-forced", "sglang": "sglang-forced", "tensorrt-llm": "tensorrt-forced",
    "speculation-profile": "speculation-profile", "inferencex": "inferencex",
}  # fmt: skip


def passes(*found: tuple[int, int, int]) -> dict[str, Any]:
    """A record of one prompt with passes of (drafted, accepted, emitted)."""
    made = [{"drafted": drafted, "accepted": accepted, "emitted": emitted} for drafted, accepted, emitted in found]
    gamma = max(drafted for drafted, _, _ in found)
    return {"run_id": "r", "summary": {"gamma": gamma}, "prompts": [{"speculative": {"passes": made}}]}


def read_back(text: str, tmp_path: Path) -> tuple[str, Reading]:
    file = tmp_path / "back"
    file.write_text(text)
    form, reading = read(file)
    return form.name, reading


def value(reading: Reading, meaning: str) -> float:
    return next(one.value for one in reading.printed if one.meaning == meaning)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_reads_back_within_a_hundredth(form: str, tmp_path: Path, capfd: Capture) -> None:
    run_id = make(tmp_path, gamma=4, alpha=0.8)
    ours = acceptance(to_json(store.read(store.record_file(tmp_path, run_id))), run_id)
    assert main(["results", run_id, "--as", form, f"results={tmp_path}"]) == 0
    name, reading = read_back(capfd.readouterr().out, tmp_path)
    assert name == FORMS[form]
    assert value(reading, LENGTH) == pytest.approx(ours.length, abs=0.01)
    if form in ("vllm", "llama.cpp", "speculation-profile"):
        for place, rate in enumerate(ours.marginal, 1):
            assert value(reading, MARGINAL.format(place)) == pytest.approx(rate, abs=1e-5)
    assert main(["results", run_id, "--as", form, f"results={tmp_path}", "--output", f"{tmp_path}/file"]) == 0
    assert read(tmp_path / "file")[0].name == name


def test_a_run_of_known_acceptance_is_found_however_its_completions_end() -> None:
    """Positions are independent with .7; ends cut a third of the passes, and count as neither kept nor rejected."""
    draw, found = random.Random(0), []
    for _ in range(30_000):
        accepted = next((place for place in range(3) if draw.random() > 0.7), 3)
        room = draw.choice([3, 3, 3, 3, 1, 2])
        cut = min(accepted, room)
        found.append((3, cut, cut) if cut == room < 3 else (3, accepted, accepted + 1))
    one = acceptance(passes(*found), "r")
    assert one.marginal == pytest.approx([0.7, 0.49, 0.343], abs=0.01)
    assert one.length == pytest.approx((1 - 0.7**4) / 0.3, abs=0.02)
    assert one.conditional == pytest.approx([0.7] * 3, abs=0.01)


RECORD = passes((2, 2, 3), (2, 1, 2), (2, 0, 1), (2, 2, 3))  # three of four accept the first, two the second: 2.25


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("vllm", {"num_speculative_tokens": 2, "rejection_sample_method": "synthetic",
                  "synthetic_acceptance_rates": [0.75, 0.5]}),
        ("llama.cpp", "--spec-draft-n-max 2 --spec-synth-rates 0.75,0.5"),
        ("sglang", "SGLANG_SIMULATE_ACC_LEN=2.2500\nSGLANG_SIMULATE_ACC_METHOD=match-expected\n"
                   "SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token"),
        ("tensorrt-llm", "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=1.2500"),
    ],
)  # fmt: skip
def test_who_counts_the_targets_own_token(form: str, said: object, tmp_path: Path) -> None:
    made = written(form, [RECORD])
    assert made == said
    _, reading = read_back(made if isinstance(made, str) else json.dumps(made), tmp_path)
    assert value(reading, LENGTH) == pytest.approx(2.25) and reading.printed[0].bonus == "with"


def test_a_profile_has_both_conventions_and_its_mean_holds_the_targets_token(tmp_path: Path, capfd: Capture) -> None:
    run_id = make(tmp_path, gamma=3)
    assert main(["results", run_id, "--as", "speculation-profile", f"results={tmp_path}"]) == 0
    profile = json.loads(capfd.readouterr().out)
    marginal, product = profile["marginal_accept_rates"], 1.0
    for rate, here in zip(profile["conditional_accept_rates"], marginal, strict=True):
        product *= rate
        assert here == pytest.approx(product, abs=1e-4)
    assert profile["mean_accept_length"] == pytest.approx(1 + sum(marginal), abs=1e-5)
    assert profile["accept_length_by_k"] == {"3": profile["mean_accept_length"]}
    assert profile["validation"]["mean_consistency"]["passed"] and profile["schema_version"] == "1.0"


def test_lengths_by_gamma(tmp_path: Path, capfd: Capture) -> None:
    ids = [make(tmp_path, gamma=gamma) for gamma in (4, 2)]
    assert main(["results", *ids, "--as", "inferencex", f"results={tmp_path}"]) == 0
    out = capfd.readouterr().out
    assert "draft-model: t5-nano" in out and out.index("    2: ") < out.index("    4: ")
    _, reading = read_back(out, tmp_path)
    assert [one.name for one in reading.printed if one.meaning == LENGTH] == [
        f"t5-mini, thinking_off, {g}" for g in (2, 4)
    ]
    assert "is of one run" in refusal(["results", *ids, "--as", "vllm", f"results={tmp_path}"], capfd)
    other = make(tmp_path, gamma=3, temperature=1.0)
    assert "has another temperature" in refusal(
        ["results", ids[0], other, "--as", "inferencex", f"results={tmp_path}"], capfd
    )


def test_one_length_means_two_things(tmp_path: Path) -> None:
    """vLLM: the first always, the second with .6 (its own test of 2.6 at 3); llama.cpp: one probability for all."""
    assert from_length(2.6, 3).marginal == pytest.approx([1.0, 0.6, 0.0])
    assert from_length(1.0, 3).length == 1 and from_length(4.0, 3).length == 4
    _, vllm = read_back('{"num_speculative_tokens": 3, "synthetic_acceptance_length": 2.6}', tmp_path)
    _, llamacpp = read_back("--spec-draft-n-max 3 --spec-synth-len 2.6", tmp_path)
    for reading in (vllm, llamacpp):
        assert value(reading, LENGTH) == pytest.approx(2.6)
    conditional = [one.value for one in llamacpp.printed if one.meaning.startswith("conditional")]
    assert conditional == pytest.approx([conditional[0]] * 3) and value(vllm, MARGINAL.format(1)) == 1
    assert Acceptance([1.0, 0.6, 0.0, 0.0]).conditional == pytest.approx([1.0, 0.6, 0.0, 0.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.4, 0.8]}',
            "numbers from 0 to 1 that never rise",
        ),
        ('{"num_speculative_tokens": 3, "synthetic_acceptance_rates": [0.4]}', "has 1 rates for γ=3"),
        ("--spec-synth-len 2.6", "without --spec-draft-n-max"),
        ("--spec-synth-rates x", "take numbers"),
        ("--spec-synth-rates 0.5,,0.4", "'' is not a number"),
        ("SGLANG_SIMULATE_ACC_LEN=1.2.3", "'1.2.3' is not a number"),
        ('{"speculative_config": "{}", "synthetic_acceptance_length": 2}', "speculative_config is no object"),
        ('{"measured": false, "conditional_accept_rates": [], "marginal_accept_rates": []}', "nothing was measured"),
        (
            '{"conditional_accept_rates": [0.8, 0.4], "marginal_accept_rates": [0.8, 0.4], "mean_accept_length": 2.2}',
            "contradict each other",
        ),
        ("a:\n  thinking_on: 3\n", "no lengths by model"),
    ],
)
def test_damaged_files_are_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        read_back(text, tmp_path)


def test_trees_and_policies_have_no_such_acceptance() -> None:
    for summary in ({"gamma": None}, {"gamma": 3, "tree": "sequoia"}):
        with pytest.raises(UserError, match="needs a chain with a constant γ"):
            acceptance({"summary": summary, "prompts": []}, "r")
