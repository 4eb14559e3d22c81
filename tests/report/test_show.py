"""A run's text pass by pass: the kept tokens are the text, and the rest is marked."""

from pathlib import Path

import pytest

from specbench.cli import main
from specbench.errors import UserError
from specbench.records.frame import Records
from specbench.report.marked_passes import lines, typical_prompt
from tests.support.made_passes import made_pass, made_trace


def test_the_kept_tokens_are_the_text(records: Records) -> None:
    record = records.whole(records.paper_runs["run_id"].iloc[0])
    for prompt in record["prompts"]:
        rows = lines(record, prompt, width=10_000)
        assert len(rows) == len(prompt["speculative"].passes)
        kept = "".join(piece.text for row in rows for piece in row.pieces if piece.kind != "rejected")
        wanted = "".join(record["pieces"][str(token)] for token in prompt["speculative"].tokens)
        assert kept.strip() == wanted.strip().replace("</s>", "▪")
        for row in rows:
            assert sum(piece.kind != "accepted" for piece in row.pieces) <= 2


def test_nothing_after_the_end_of_a_completion_is_shown() -> None:
    passes = [made_pass(drafted=3, accepted=2, emitted=1, tokens=[1, 1, 5])]
    prompt = {"speculative": made_trace(tokens=[1], passes=passes)}
    (row,) = lines({"run_id": "r", "pieces": {"1": "</s>", "5": "x"}}, prompt)
    assert [(piece.text, piece.kind) for piece in row.pieces] == [("▪", "accepted")]


def test_long_text_is_cut_at_the_front(records: Records) -> None:
    record = records.whole(records.paper_runs["run_id"].iloc[0])
    for row in lines(record, record["prompts"][typical_prompt(record)], width=40):
        assert len(row.before) + sum(len(piece.text) for piece in row.pieces) <= 41


def test_a_record_without_drafted_tokens_says_what_to_do() -> None:
    prompt = {"speculative": made_trace(tokens=[1], passes=[made_pass(drafted=1, accepted=1)])}
    with pytest.raises(UserError, match="run it again with force=true"):
        lines({"run_id": "r", "pieces": {}}, prompt)


def test_the_command_line(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = Records(results).paper_runs["run_id"].iloc[0]
    assert main(["show", run_id, "--prompt", "2", f"results={results}", "--picture", str(tmp_path / "one.svg")]) == 0
    out = capsys.readouterr().out
    assert "prompt 2 of 20" in out
    assert "-drafted and rejected-" in out, "without colour there are other marks"
    assert (tmp_path / "one.svg").is_file()
    assert main(["show", run_id, "--prompt", "21", f"results={results}"]) == 2
    assert "this run has prompts 1 to 20" in capsys.readouterr().err
    assert main(["show", "t5-nano", f"results={results}"]) == 2
    assert "the ids of 8 records have this in them" in capsys.readouterr().err
    assert main(["show", run_id, f"results={results}", "--picture", "x.gif"]) == 2
    assert "must end in .svg, .pdf, .png" in capsys.readouterr().err
