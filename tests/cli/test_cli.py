"""The command itself: help without torch, verbs, config."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.cli import GROUPS, VERBS, main

Capture = pytest.CaptureFixture[str]


def without_torch(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where an import of torch, or of what only a model needs, is an error."""
    blocked = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'datasets', 'matplotlib'))\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True)


@pytest.mark.full
def test_help_everywhere_without_torch() -> None:
    argvs = [
        ["--help"],
        ["-h"],
        [],
        *([verb, "--help"] for verb in VERBS),
        ["recommend", "--validate", "--help"],
        ["recommend", "--load", "--help"],
        ["bench", "beam", "--help"],
    ]
    done = without_torch(
        "from specbench.cli import main\n"
        f"for argv in {argvs!r}:\n"
        "    try: code = main(argv)\n"
        "    except SystemExit as end: code = end.code\n"
        "    assert not code and 'pandas' not in sys.modules, argv\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: specbench") >= len(argvs)


@pytest.mark.full
def test_choices_are_listed_without_torch() -> None:
    done = without_torch("from specbench.cli import main; sys.exit(main(['list']))")
    assert done.returncode == 0 and "t5-mini" in done.stdout, done.stderr


@pytest.mark.full
def test_a_prompt_file_is_checked_before_torch_is_imported(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "  "}\n')
    words = ["task=prompts", f"task.path={file}", f"results={tmp_path}"]
    verbs = ["run", "alpha", "recommend", "recommend --validate", "recommend --load", "bench"]
    done = without_torch(
        f"from specbench.cli import main\nfor verb in {verbs!r}: assert main([*verb.split(), *{words!r}]) == 2\n"
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
    names = ("common options", "model", "draft", "decoding", "task", "output")
    titles = [out.index(f"\n{title}:\n") for title in names]
    assert titles == sorted(titles)
    assert out.index("\ncommon options:") < out.index("  gamma=3") < out.index("\nall others")
    assert out.index("\ndecoding:") < out.index("  sampling.top_k=") < out.index("\ntask:")
    assert out.index("\ntask:") < out.index("  task.prefix=") < out.index("\noutput:")


def test_unknown_verbs_and_the_version(capfd: Capture) -> None:
    assert main(["walk"]) == 2
    assert "walk: no such command; choose from run, sweep" in capfd.readouterr().err
    assert main(["tabels"]) == 2
    assert "tabels: no such command; did you mean tables?" in capfd.readouterr().err
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.strip()


def test_verbs_are_grouped_by_purpose(capfd: Capture) -> None:
    assert main(["--help"]) == 0
    out = capfd.readouterr().out
    places = [out.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places) and [*GROUPS] == ["measure", "choose", "look", "other engines", "train"]
    for place, following, verbs in zip(places, [*places[1:], len(out)], GROUPS.values(), strict=True):
        assert all(f"\n  {verb} " in out[place:following] for verb in verbs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("recommend --validate --picture a.svg", "--picture: belongs to a ranking"),
        ("recommend --validate engine=transformers", "engine=transformers: --validate measures our own loop"),
        ("explain RUN --within 2% --for-speedup 2", "--for-speedup, --picture: explain a speedup"),
        ("explain RUN --within 2", "2: must be a share between 0 and 1"),
        ("results RUN", "RUN: no record of that id in"),
        ("results RUN --by length", "--by: applies to all records; leave RUN out, or give --run RUN"),
        ("results --as profile", "--as profile: name the runs"),
        ("results RUN --as profile --by category", "--by: does not go with --as profile"),
        ("results RUN --as profile --format csv", "--format: does not go with --as profile"),
        ("results --output a.json", "--output: requires --as profile"),
        ("compare A", "compare: give two runs"),
        ("compare A B --write", "--write: requires --baseline FILE or --history"),
        ("compare A B --again", "--again: requires --baseline FILE"),
        ("compare A B --output x", "--output: requires --history"),
        ("compare --history --again", "--again: does not go with --history"),
        ("compare --history A", "A: does not go with --history"),
        ("compare --baseline b.jsonl --output x", "--output: requires --history"),
        ("compare --baseline b.jsonl --margin 2", "--margin 2: must be a share"),
        ("compare A B --margin 0.1", "--margin: requires --baseline FILE"),
        ("compare A B --baseline b.json", "A: does not go with --baseline"),
    ],
)
def test_options_of_one_mode_are_not_ignored_by_another(words: str, said: str, capfd: Capture) -> None:
    assert main(words.split()) == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


def test_hydra_switches_keep_working(capfd: Capture) -> None:
    assert main(["run", "--cfg", "job", "gamma=3"]) == 0
    assert "gamma: 3" in capfd.readouterr().out


def test_ctrl_c_ends_in_one_line(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.cli.results.main", interrupt)
    assert main(["results"]) == 130
    assert capfd.readouterr().err == "specbench: interrupted\n"  # it finished nothing


def test_a_closed_output_is_no_traceback() -> None:
    """`specbench list >&-` ended with 'NoneType' object has no attribute 'flush'."""
    command = f"{shlex.quote(sys.executable)} -m specbench"
    for words in ("--version >&-", "--help >&- 2>&-", "walk >&-"):
        done = subprocess.run(["bash", "-c", f"{command} {words}"], capture_output=True, text=True)
        assert done.returncode == (2 if "walk" in words else 0) and "Traceback" not in done.stderr


def test_an_option_before_the_command_is_said_to_come_after_it(capfd: Capture) -> None:
    assert main(["--config-dir", "mine", "run"]) == 2
    assert "--config-dir: options come after the command, as in specbench run --config-dir" in capfd.readouterr().err


def test_a_reader_that_leaves_is_no_line_on_the_screen() -> None:
    """`specbench list | head -1` ended with Python's 'Exception ignored … BrokenPipeError'."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for words, reader, shown in (("list", "head -1", "targets\n"), ("--help", "true", "")):
        line = f"{shlex.quote(sys.executable)} -m specbench {words} | {reader}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=buffered)
        assert (done.stdout, done.stderr) == (shown, "")
