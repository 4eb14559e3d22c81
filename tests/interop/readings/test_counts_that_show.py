"""What is wrong with a server's draft, from counts alone; sound counts have no finding."""

import json
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.interop.readings import Reading, estimate
from specbench.interop.readings.draft_findings import findings
from specbench.interop.readings.reading import Tally


def names(*requests: Tally) -> list[str]:
    return [one.name for one in findings(estimate(Reading((), requests)))]


def test_counts_that_show_a_cause() -> None:
    assert names(Tally(0, 0, 0, undrafted=400)) == ["idle"]
    assert names(Tally(10, 30, 10, undrafted=400)) == ["idle"]
    assert names(Tally(0, 3000, 1000)) == ["weights"]
    cut_off = Tally(1200, 5000, 1000, 1000, reached_at=(1000, 700, 500, 0, 0), accepted_at=(700, 500, 0, 0, 0))
    assert names(cut_off) == ["cliff"]


def test_sound_counts_have_none() -> None:
    assert names(Tally(700, 3000, 1000)) == [] == names(Tally(1, 30, 10)) == names(Tally(0, 0, 0, undrafted=10))
    assert names(Tally(60, 200, 50, undrafted=400)) == []  # a lookup that seldom finds a match
    assert findings(None) == []


def test_read_prints_findings_of_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"drafts": 1000, "draft_tokens": 3000, "accepted_tokens": 2}
    page = "".join(f'vllm:spec_decode_num_{name}_total{{model_name="m"}} {value}\n' for name, value in counts.items())
    (tmp_path / "metrics").write_text(page)
    assert main(["read", str(tmp_path / "metrics")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "DRAFT: the first draft token was accepted in 2 of 1,000 passes at most" in out
    assert "docs/draft-not-accepted.md" in out
    assert main(["read", str(tmp_path / "metrics"), "--format", "json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert [one["name"] for one in file["findings"]] == ["weights"] and file["findings"][0]["evidence"][
        "passes"
    ] == 1000
