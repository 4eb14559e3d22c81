"""The command itself: help without torch, verbs, config."""

import subprocess
import sys
import time

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


def test_help_of_run_is_in_groups(capfd: Capture) -> None:
    assert main(["run", "--help"]) == 0
    out = capfd.readouterr().out
    for word in (
        "target=t5-mini",
        "specbench list draft",
        "tree=none",
        "sequoia",
        "sampling.temperature",
        "target.path",
    ):
        assert word in out
    titles = [out.index(f"\n{title}:\n") for title in ("model", "draft", "decoding", "task", "output")]
    assert titles == sorted(titles)
    assert out.index("\ndecoding:") < out.index("  gamma=5") < out.index("\ntask:") < out.index("  task.prefix=")


def test_unknown_verbs_and_the_version(capfd: Capture) -> None:
    assert main(["walk"]) == 2
    assert "walk: no such verb; choose from run, sweep" in capfd.readouterr().err
    assert main(["tabels"]) == 2
    assert "tabels: no such verb; choose from tables, " in capfd.readouterr().err
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.strip()


def test_hydra_switches_keep_working(capfd: Capture) -> None:
    assert main(["run", "--cfg", "job", "gamma=3"]) == 0
    assert "gamma: 3" in capfd.readouterr().out


def test_ctrl_c_ends_in_one_line(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.cli.results.main", interrupt)
    assert main(["results"]) == 130
    assert capfd.readouterr().err == "specbench: interrupted; finished work is kept\n"
