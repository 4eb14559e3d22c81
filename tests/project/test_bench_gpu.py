"""`make bench-gpu`: its parts in order, each a command that specbench understands, kept as soon as it has run."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specbench.cli import main
from tests.support.paths import ROOT
from tests.support.scripts import loaded

SCRIPT = ROOT / "experiments" / "bench_gpu.py"
ORDER = [
    "tests", "kernels", "kernels-late", "pair",
    "ende-t0", "ende-t1", "cnndm-t0", "cnndm-t1", "steps", "generate", "invariant", "llama",
    "llama-batch-1", "llama-batch-4", "llama-batch-16", "llama-context-512", "llama-context-2048", "llama-prompts",
    "experts", "experts-run", "quantised", "train-target", "train-draft", "train-97m", "train-6m", "train-6m-distilled",
    "train-97m-half", "train-6m-half", "train-97m-quarter", "train-6m-quarter", "gpt-t0", "gpt-t1",
    "alpha", "alpha-given", "alpha-distilled", "alpha-half", "alpha-quarter",
    *(f"threads-{count}" for count in (1, 2, 4, 8, 16)),
    *(f"threads-{count}-large" for count in (1, 2, 4, 8, 16)), "tables",
]  # fmt: skip


@pytest.fixture
def script() -> ModuleType:
    return loaded(SCRIPT)


def test_parts_are_listed_in_order_without_any_package() -> None:
    done = subprocess.run([sys.executable, "-S", str(SCRIPT), "--list"], capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ORDER
    assert "device=cuda dtype=bfloat16" in done.stdout


BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def block(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """Every interpreter that is started from now on refuses to import these."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER.replace("{refused}", repr(set(names))))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_imports_that_fail_are_named_before_the_first_part(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    block(monkeypatch, tmp_path / "site", "xxhash", "sortedcontainers")
    monkeypatch.setattr(script, "IMPORTS", ["json", "xxhash"])
    monkeypatch.setattr(script, "run", lambda *_: pytest.fail("a part ran"))
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "tests", "--results", str(tmp_path / "results")])
    with pytest.raises(SystemExit) as ended:
        script.main()
    said = "missing: xxhash, sortedcontainers (for hypothesis): give --wheels FOLDER (make bench-gpu WHEELS=FOLDER)"
    assert str(ended.value).startswith(said) and "\n" not in str(ended.value)
    assert "==" not in capfd.readouterr().out and not (tmp_path / "results" / "parts.json").exists()
    assert script.missing(["pair"], dict(os.environ)) == ["xxhash"]  # which needs none of the tests' packages


def test_every_import_of_the_parts_is_tried(script: ModuleType) -> None:
    """All that the package and these tests import at any place, and all that pyproject.toml requires."""
    helpers = [ROOT / "tests" / "conftest.py", *(ROOT / "tests" / "support").glob("*.py")]
    parts = [ROOT / word for word in script.PARTS["tests"].split() if word.endswith(".py")]
    files = [*(ROOT / "specbench").rglob("*.py"), *helpers, *parts]
    statement = re.compile(r"^ *(?:from ([A-Za-z]\w*)[\w.]* import |import ([A-Za-z]\w*)[\w.]*(?: as \w+)?$)", re.M)
    used = {"".join(names) for file in files for names in statement.findall(file.read_text())}
    own = {"specbench", "tests"}
    tried = {name.partition(".")[0] for name in script.IMPORTS + script.TEST_IMPORTS}
    # Triton comes with torch for CUDA; gguf and peft are extras that no part uses; scipy is imported by a helper of
    # tests that are no part; without pynvml the driver's own command is asked; no part draws a page with plotly.
    assert used - own - set(sys.stdlib_module_names) - tried <= {"triton", "scipy", "pynvml", "gguf", "peft", "plotly"}
    names = {name.replace("_", "-") for name in tried} | {"protobuf", "hydra-core", "rouge-score", "pyyaml"}
    assert {script._name(one) for one in script.requirements()} <= names


class Pip:
    """Stands for subprocess.run: keeps the commands, and writes what `pip download` would."""

    def __init__(self, code: int = 0) -> None:
        self.commands, self.code, self.constraints = list[list[str]](), code, ""

    def __call__(self, command: list[str], check: bool = False) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if "download" in command:
            options = dict(pairwise(command))
            self.constraints = Path(options["--constraint"]).read_text()
            wheels = Path(options["--dest"])
            wheels.mkdir()
            for wheel in ["xxhash-4.1.0-cp312-cp312-manylinux_2_28_x86_64.whl", *os.listdir(options["--find-links"])]:
                (wheels / wheel).touch()
        if check and self.code and "download" in command:
            raise subprocess.CalledProcessError(self.code, command)
        return subprocess.CompletedProcess(command, self.code)


def test_wheels_are_fetched_for_the_interpreter_that_is_named(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip()
    monkeypatch.setattr(subprocess, "run", pip)
    for python, tag in {None: "cp312", "3.13": "cp313"}.items():
        argv = ["--fetch", str(tmp_path / tag), *(["--python", python] if python else [])]
        monkeypatch.setattr(sys, "argv", ["bench_gpu.py", *argv])
        assert script.main() == 0
        command = pip.commands[-1]
        options = dict(pairwise(command))
        assert options["--python-version"] == (python or "3.12") and options["--abi"] == tag
        assert options["--implementation"] == "cp" and "--only-binary=:all:" in command
        assert {"--platform=manylinux_2_28_x86_64", "--platform=manylinux2014_x86_64"} <= set(command)
        asked = {script._name(word) for word in command}
        assert {"sacrebleu", "tabulate", "pydivsufsort", "hypothesis", "pytest", "pytest-timeout"} <= asked
        assert not asked & {"torch", "transformers", "ruff", "mypy"}
        assert re.search(r"^torch==[\d.]+\+machine$", pip.constraints, re.M)
        # Nothing that stands for torch and transformers is left.
        assert os.listdir(tmp_path / tag) == ["xxhash-4.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--python", "312"], "--python 312: must be a version such as 3.12"),
        (["--python", "3.9"], "--python 3.9: must be a version such as 3.12, at least 3.11"),
        (["--has", "no-such-file"], "--has no-such-file: no such file"),
        (["--wheels", "no-such-folder"], "--wheels no-such-folder: no such folder"),
    ],
)
def test_mistakes_are_one_line(
    argv: list[str], said: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", *argv])
    with pytest.raises(SystemExit):
        script.main()
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_only_what_the_machine_lacks_is_fetched(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = tmp_path / "freeze.txt"
    names = [script._name(pin) for pin in script.pins().values()]
    there = [name for name in names if name not in ("hydra-core", "omegaconf", "antlr4-python3-runtime")]
    has.write_text("".join(f"{name}==1.0\n" for name in there) + "# a comment\n-e git+somewhere\n")
    assert [script._name(one) for one in script.lacking(script.listed(has), "3.12")] == [
        "antlr4-python3-runtime", "hydra-core", "omegaconf",
    ]  # fmt: skip
    pip = Pip()
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--fetch", str(tmp_path / "wheels"), "--has", str(has)])
    assert script.main() == 0
    built, downloaded = pip.commands
    assert [script._name(word) for word in built if "==" in word] == ["antlr4-python3-runtime"]
    assert "--no-deps" in downloaded and "torch" not in map(script._name, downloaded)


def test_a_download_that_fails_leaves_nothing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", Pip(code=1))
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--fetch", str(tmp_path / "wheels")])
    with pytest.raises(SystemExit, match="pip download failed: nothing was written"):
        script.main()
    assert not (tmp_path / "wheels").exists()


def test_only_what_is_missing_is_installed_from_the_folder(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wheel in ("pytest-1.0-py3-none-any.whl", "no_such_package-1.0-py3-none-any.whl"):
        (tmp_path / wheel).touch()
    assert script.not_installed(tmp_path) == ["no_such_package==1.0"]
    monkeypatch.setattr(subprocess, "run", Pip(code=1))  # pip finds no wheel for this interpreter
    with pytest.raises(SystemExit, match=r"not for this interpreter: fetch again with --fetch FOLDER --python 3\.\d+"):
        script.environment(tmp_path, tmp_path / "site", ["pair"])


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("part", [name for name in ORDER[3:] if name != "tables"])
def test_each_part_composes(
    script: ModuleType, part: str, small: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    module, name, *argv = script.words(part, small, "results/gpu")
    assert (module, name) == ("-m", "specbench")
    assert main([*argv, "--cfg", "job"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert ("d_model: 4096" in shown) == (part in [*ORDER[4:11]] and not small)


def test_each_kernel_has_a_row_beside_the_operations_that_it_stands_for(script: ModuleType, tmp_path: Path) -> None:
    """In small shapes on a CPU, where both are torch's."""
    for part in ("kernels", "kernels-late"):
        name, *words = script.words(part, False, str(tmp_path))
        assert name == "experiments/bench_kernels.py" and ("--late" in words) == (part == "kernels-late")
    done = subprocess.run(
        [sys.executable, *script.words("kernels", True, str(tmp_path))], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / "kernels.json").read_text())
    new = {"norm_linear", "linear_rows", "head_argmax", "head_drawn", "attend_one", "verdict", "penalties"}
    assert {row["kernel"] for row in rows} == new
    assert all(row["ours_us"] > 0 and row["theirs_us"] > 0 for row in rows)
    assert {row["reason"] for row in rows} == {"no CUDA device", None}


@pytest.mark.full
def test_the_small_twin_trains_a_pair_and_a_distilled_draft_and_measures_its_alpha(tmp_path: Path) -> None:
    parts = ["train-97m", "train-6m-distilled", "alpha-distilled"]
    command = [sys.executable, str(SCRIPT), "--small", "--results", str(tmp_path), *parts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert json.loads((tmp_path / "gpt-97m" / "config.json").read_text())["activation_function"] == "gelu"
    history = json.loads((tmp_path / "gpt-6m-distilled" / "training-log.json").read_text())
    assert all("tokens_per_second" in entry for entry in history if "loss" in entry)
    assert any(0 <= entry.get("alpha", -1) <= 1 for entry in history)
    (scored,) = [json.loads(file.read_text()) for file in (tmp_path / "alpha").glob("*.json")]
    found = {(row["target"], row["draft"], row["temperature"]) for row in scored["rows"]}
    assert found == {("gpt-97m", "gpt-6m-distilled", temperature) for temperature in (0, 1)}
    given = {(config["sampling"]["temperature"], config["task"]["prompt_words"]) for config in scored["configs"]}
    assert given == {(0, 4), (1, 0)}  # at T = 1 nothing, as in the paper


def test_a_part_is_run_once_and_a_failure_is_kept(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "IMPORTS", ["json"])
    monkeypatch.setattr(script, "PARTS", {"good": "a", "bad": "b"})
    monkeypatch.setattr(script, "words", lambda part, *_: ["-c", f"print('{part}'); raise SystemExit({part == 'bad'})"])
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--results", str(tmp_path)])
    assert script.main() == 1
    kept = json.loads((tmp_path / "parts.json").read_text())
    assert {part: one["code"] for part, one in kept.items()} == {"good": 0, "bad": 1}
    assert (tmp_path / "good.log").read_text() == "good\n"
    assert script.main() == 1
    out = capfd.readouterr().out
    assert out.count("== good: has run") == 1 and "exit code 1" in out


TWO_HALVES = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
kept = pathlib.Path(sys.argv[1])
if kept.exists():
    kept.write_text("both halves")
    sys.exit(0)
try:
    kept.with_name("begun").write_text("the first half")
    kept.with_name("begun").rename(kept.with_name("half"))
    time.sleep(600)
except KeyboardInterrupt:
    kept.write_text(kept.with_name("half").read_text())
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("stopped_by", "code"), [(subprocess.TimeoutExpired("part", 1), 124), (KeyboardInterrupt(), 130)]
)
def test_a_part_that_is_stopped_keeps_what_it_has_and_goes_on(
    stopped_by: BaseException,
    code: int,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept, own = tmp_path / "kept", subprocess.Popen.wait

    def stopped(process: Any, timeout: float | None = None) -> int:
        """Stops the part in the middle of its work."""
        if timeout != 60 * script.MINUTES or process.args[-1] != str(kept):
            return own(process, timeout)
        while not kept.with_name("half").is_file() and process.poll() is None:
            time.sleep(0.01)
        raise stopped_by

    handlers: list[object] = []
    monkeypatch.setattr(signal, "signal", lambda *handler: handlers.append(handler))
    monkeypatch.setattr(script, "IMPORTS", ["json"])
    monkeypatch.setattr(script, "SECONDS_TO_END", 300)
    monkeypatch.setattr(script, "PARTS", {"halves": "a", "next": "b"})
    monkeypatch.setattr(script, "words", lambda part, *_: ["-c", TWO_HALVES if part == "halves" else "", str(kept)])
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--results", str(tmp_path)])
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", stopped)
        if code == 130:
            patch.setattr(script, "words", lambda part, *_: ["-c", TWO_HALVES, str(kept)])
            with pytest.raises(SystemExit, match="the same command goes on"):
                script.main()
        else:
            patch.setattr(script, "PARTS", {"halves": "a"})
            assert script.main() == 1
    done = json.loads((tmp_path / "parts.json").read_text())
    assert {part: one["code"] for part, one in done.items()} == {"halves": code}
    assert kept.read_text() == "the first half"
    assert (signal.SIGTERM, signal.default_int_handler) in handlers
    assert script.main() == 0
    assert kept.read_text() == "both halves" and "== halves: was stopped after" in capfd.readouterr().out


def test_a_part_ends_after_its_minutes(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MINUTES", 0.01)
    heeds = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); time.sleep(600)"
    code, seconds = script.run("long", ["-c", heeds], tmp_path / "log", {})
    assert code == 124 and seconds < 300


DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def test_what_a_stopped_part_has_started_ends_with_it(script: ModuleType) -> None:
    """Also where it does not listen and the part itself is over at once: it would hold the GPU."""
    part = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]).wait()"
    process = subprocess.Popen(
        [sys.executable, "-c", part], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == b"deaf\n"
    script._end(process)
    ended, _, _ = select.select([process.stdout], [], [], 50)  # at its end when nobody holds it any more
    assert ended and process.stdout.read() == b""
