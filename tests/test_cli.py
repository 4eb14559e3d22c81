"""The command itself: help without torch, verbs, config."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.cli import VERBS, main

Capture = pytest.CaptureFixture[str]


def without_torch(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where an import of torch, or of what only a model needs, is an error."""
    blocked = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'datasets', 'matplotlib'))\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True)


def test_help_everywhere_without_torch() -> None:
    argvs = [["--help"], ["-h"], [], *([verb, "--help"] for verb in VERBS)]
    done = without_torch(
        "from specbench.cli import main\n"
        f"for argv in {argvs!r}:\n"
        "    try: code = main(argv)\n"
        "    except SystemExit as end: code = end.code\n"
        "    assert not code and 'pandas' not in sys.modules, argv\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: specbench") >= len(argvs)


def test_choices_are_listed_without_torch() -> None:
    done = without_torch("from specbench.cli import main; sys.exit(main(['list']))")
    assert done.returncode == 0 and "t5-mini" in done.stdout, done.stderr


def test_a_prompt_file_is_checked_before_torch_is_imported(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "  "}\n')
    words = ["task=prompts", f"task.path={file}", f"results={tmp_path}"]
    verbs = ["run", "alpha", "recommend", "validate", "bench"]
    done = without_torch(
        f"from specbench.cli import main\nfor verb in {verbs!r}: assert main([verb, *{words!r}]) == 2\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["specbench: task=prompts, row 3: the prompt is empty (field 'prompt')"] * len(
        verbs
    )
    assert not list(tmp_path.rglob("*.json")), "a mistake leaves no record"


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
