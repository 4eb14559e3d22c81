"""The command itself: help without torch, verbs, listing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.cli import VERBS, main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("argv", [["--help"], ["-h"], [], *([verb, "--help"] for verb in VERBS)])
def test_help_everywhere_without_torch(argv: list[str]) -> None:
    code = (
        "import sys; from specbench.cli import main\n"
        f"try: code = main({argv!r})\nexcept SystemExit as end: code = end.code\n"
        "assert not code, code\n"
        "loaded = {'torch', 'transformers', 'pandas', 'matplotlib', 'datasets'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "specbench" in done.stdout
    assert time.perf_counter() - began < 5  # half a second on a quiet machine; this one only catches torch


def test_help_of_run_lists_what_can_be_picked(capfd: Capture) -> None:
    assert main(["run", "--help"]) == 0
    out = capfd.readouterr().out
    for word in ("t5-xxl", "gpt2", "unigram", "cnndm", "sampling.temperature", "target.path"):
        assert word in out


def test_unknown_verbs_and_the_version(capfd: Capture) -> None:
    assert main(["walk"]) == 2
    assert "walk: no such verb; choose from run, sweep" in capfd.readouterr().err
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.strip()


def test_list_tells_what_is_usable_offline(capfd: Capture) -> None:
    assert main(["list"]) == 0
    out = capfd.readouterr().out
    for name in ("t5-mini", "t5-xxl", "google-t5/t5-11b", "bigram", "lm1b"):
        assert name in out
    assert main(["list", "task"]) == 0
    out = capfd.readouterr().out
    assert "t5-xxl" not in out and "Short English-German sentences" in out


def test_list_shows_the_task_of_each_target(capfd: Capture) -> None:
    assert main(["list", "target"]) == 0
    rows = {words[0]: words for line in capfd.readouterr().out.splitlines() if (words := line.split())}
    assert rows["target"][1:4] == ["offline", "from", "default"]
    assert "ende" in rows["t5-xxl"] and "lm-mini" in rows["gpt-mini"] and "lm1b" in rows["gpt2"]


def test_brackets_in_a_note_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    (tmp_path / "accept").mkdir()
    (tmp_path / "accept" / "odd.yaml").write_text("# needs pip install 'specbench-toolkit[odd]'\nrule: odd\n")
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "odd.yaml").write_text("name: odd\nkind: lookup\nnote: data.path=[file]\n")
    monkeypatch.setattr("specbench.cli.listing.conf_dir", lambda: tmp_path)
    for group, said in (("accept", "'specbench-toolkit[odd]'"), ("draft", "data.path=[file]")):
        assert main(["list", group]) == 0
        assert said in capfd.readouterr().out


def test_hydra_switches_keep_working(capfd: Capture) -> None:
    assert main(["run", "--cfg", "job", "gamma=3"]) == 0
    assert "gamma: 3" in capfd.readouterr().out


def test_ctrl_c_ends_in_one_line(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.cli.results.main", interrupt)
    assert main(["results"]) == 130
    assert capfd.readouterr().err == "specbench: interrupted; what was finished is kept\n"
