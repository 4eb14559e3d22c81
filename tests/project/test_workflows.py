"""The workflows of .github: who may start them, and their steps executed here as the runner would."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.cli import VERBS, main
from tests.support.actions import Job, Runner, applies, evaluate, filled
from tests.support.paths import ROOT
from tests.support.sweeps import finished_prompts

FOLDER = ROOT / ".github"
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((FOLDER / "workflows").glob("*.yml"))}
ACTION = yaml.safe_load((FOLDER / "actions" / "sweep-check" / "action.yml").read_text())
TESTS, GPU = WORKFLOWS["tests"]["jobs"], WORKFLOWS["gpu-sweep"]["jobs"]
HERE = {"repository": "OWNER/specbench", "ref": "refs/heads/main", "ref_name": "main", "sha": "abc"}
NEEDS_CLONE = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")


def labelled(label: str, head: str) -> dict[str, Any]:
    pull = {"number": 7, "head": {"sha": "f" * 40, "repo": {"full_name": head}}}
    return HERE | {"event_name": "pull_request_target", "event": {"label": {"name": label}, "pull_request": pull}}


# Who may start what.


@pytest.mark.parametrize(
    ("github", "runs"),
    [
        (HERE | {"event_name": "schedule"}, True),
        (HERE | {"event_name": "workflow_dispatch"}, True),
        (labelled("gpu sweep", "OWNER/specbench"), True),
        (labelled("bug", "OWNER/specbench"), False),
        (labelled("gpu sweep", "SOMEBODY/specbench"), False),
        (labelled("gpu sweep", ""), False),  # a fork that was deleted
    ],
)
def test_who_may_use_a_gpu(github: dict[str, Any], runs: bool) -> None:
    """Every job on our own machines follows the job with the condition, and no other job asks for one."""
    assert applies(GPU["matrix"]["if"], {"github": github}, failed=False) is runs
    jobs = {(name, job): of for name, one in WORKFLOWS.items() for job, of in one["jobs"].items()}
    own = {place for place, of in jobs.items() if "self-hosted" in str(of["runs-on"])}
    assert own == {("gpu-sweep", "sweep")}
    assert GPU["sweep"]["needs"] == "matrix" and "if" not in GPU["sweep"]
    assert set(WORKFLOWS["gpu-sweep"][True]) == {"workflow_dispatch", "schedule", "pull_request_target"}


def test_a_pull_requests_code_runs_on_no_machine_that_is_kept() -> None:
    """A home that lasts holds kernels, weights and history of later runs of main."""

    def labels(event: dict[str, Any]) -> set[str]:
        return {filled(one, {"github": event, "matrix": {"gpu": "h100"}}) for one in GPU["sweep"]["runs-on"]}

    pulled, own = labels(labelled("gpu sweep", "OWNER/specbench")), labels(HERE | {"event_name": "schedule"})
    assert pulled == {"self-hosted", "gpu", "h100", "ephemeral"} and own == {"self-hosted", "gpu", "h100", "kept"}
    heads = [job for job, of in GPU.items() for step in of["steps"] if "pull_request" in str(step.get("with"))]
    assert heads == ["sweep"]  # and no other job checks out what a pull request changed


def test_no_job_that_can_write_reads_a_cache() -> None:
    for workflow in WORKFLOWS.values():
        for of in workflow["jobs"].values():
            if "write" in of.get("permissions", workflow["permissions"]).values():
                assert "cache" not in str(of["steps"])


def test_what_ci_installs_by_version_has_one_version() -> None:
    for file in FOLDER.rglob("*.yml"):
        assert not re.findall(r"install [^\n]*(?:==[\d.]*\*|[<>~]=)", file.read_text(encoding="utf-8")), file


def test_a_public_summary_names_no_process() -> None:
    assert "process_name" not in (FOLDER / "actions" / "sweep-check" / "machine.sh").read_text(encoding="utf-8")


def test_no_job_that_runs_a_pull_requests_code_can_write() -> None:
    for workflow in WORKFLOWS.values():
        for job, of in workflow["jobs"].items():
            permissions = of.get("permissions", workflow["permissions"])
            writes = {key for key, value in permissions.items() if value == "write"}
            if writes:
                assert job in ("issue", "publish", "deploy")
    assert WORKFLOWS["docs"][True] == {"push": {"branches": ["main"]}}
    assert not any("secrets." in file.read_text() for file in FOLDER.rglob("*.yml"))
    for jobs in (TESTS, GPU):
        assert jobs["issue"]["permissions"] == {"contents": "read", "issues": "write"}
    pulled = labelled("gpu sweep", "OWNER/specbench")
    assert not applies(GPU["issue"]["if"], {"github": pulled}, failed=True)
    assert applies(GPU["issue"]["if"], {"github": HERE | {"event_name": "schedule"}}, failed=True)
    branch = HERE | {"event_name": "workflow_dispatch", "ref": "refs/heads/x"}
    assert not applies(GPU["issue"]["if"], {"github": branch}, failed=True)
    assert not applies(TESTS["issue"]["if"], {"github": HERE | {"event_name": "pull_request"}}, failed=True)
    assert applies(TESTS["issue"]["if"], {"github": HERE | {"event_name": "push"}}, failed=True)
    assert not applies(WORKFLOWS["release"]["jobs"]["publish"]["if"], {"github": HERE | {"event_name": "push"}}, False)


@pytest.mark.parametrize(("name", "job"), [("docs", "deploy"), ("release", "publish")])
def test_what_publishes_runs_actions_alone_and_what_it_publishes_is_built_from_hashes(name: str, job: str) -> None:
    jobs = WORKFLOWS[name]["jobs"]
    assert not any("run" in step for step in jobs[job]["steps"])
    build = jobs["build"]
    assert build["permissions"] == {"contents": "read"} and "cache" not in str(build)
    installed = [step["run"] for step in build["steps"] if "install" in step.get("run", "")]
    assert installed and all("--require-hashes" in line or "--no-build-isolation" in line for line in installed)
    lock = (ROOT / "locks" / "requirements.lock").read_text(encoding="utf-8")
    assert re.search(r"^hatchling==\S+ \\\n +--hash=sha256:", lock, re.M)


def test_actions_are_pinned_and_checkouts_leave_no_token() -> None:
    for text in (file.read_text() for file in FOLDER.rglob("*.yml")):
        for action in re.findall(r"uses: (\S+.*)", text):
            assert re.fullmatch(r"\./\S+|[\w./-]+@[0-9a-f]{40} # v[\d.]+", action), action
    for workflow in WORKFLOWS.values():
        for step in (step for job in workflow["jobs"].values() for step in job["steps"]):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_nothing_from_outside_is_pasted_into_a_command() -> None:
    """A title or a branch in `${{ }}` of a command would be run: such values reach commands by the environment."""
    steps = [step for one in WORKFLOWS.values() for job in one["jobs"].values() for step in job["steps"]]
    for step in [*steps, *ACTION["runs"]["steps"]]:
        for expression in re.findall(r"\$\{\{ (.*?) \}\}", step.get("run", "")):
            assert expression == "github.ref == 'refs/heads/main' && 'test-all' || 'test'"


def test_both_workflows_run_the_same_steps() -> None:
    for jobs in (TESTS, GPU):
        assert jobs["sweep"]["steps"][-1]["uses"] == "./.github/actions/sweep-check"


def variants(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of its matrix, each of which is a job of its own; those that another job makes are not known here."""
    matrix = job.get("strategy", {}).get("matrix", {})
    if "include" in matrix:
        return [{}]
    return [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]


def missing_of(command: str, targets: set[str]) -> list[str]:
    """What a line of a step names and the repository lacks: targets of the Makefile, files, verbs."""
    found = []
    for words in (part.split() for part in re.split(r"&&|;|\n", command)):
        if words[:1] == ["make"]:
            found += [word for word in words[1:] if "=" not in word and word not in targets]
        if words[:1] == [".venv/bin/specbench"]:
            found += [word for word in words[1:2] if word not in VERBS]
        found += [word for word in words if word.startswith("tools/") and not (ROOT / word).is_file()]
    return found


def test_what_steps_run_is_there() -> None:
    """Of each value of a matrix: targets of the Makefile, verbs, files, actions of this repository, other jobs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([\w-]+):(?!=)", makefile, re.M), ".venv/.ready"}
    assert {"test", "test-arm", "docs"} <= targets and "ARGS" not in targets
    lacking = missing_of((ROOT / ".ci" / "run").read_text(encoding="utf-8"), targets)
    steps = list(ACTION["runs"]["steps"])
    for one in WORKFLOWS.values():
        for of in one["jobs"].values():
            waited = of.get("needs", [])
            lacking += {*([waited] if isinstance(waited, str) else waited)} - {*one["jobs"]}
            for values, ref in itertools.product(variants(of), ("refs/heads/main", "refs/heads/other")):
                contexts = {"github": HERE | {"ref": ref, "event_name": "push"}, "matrix": values}
                steps += [step | {"run": filled(step.get("run", ""), contexts)} for step in of["steps"]]
                assert not isinstance(of["runs-on"], str) or filled(of["runs-on"], contexts), of
    for step in steps:
        lacking += missing_of(step.get("run", ""), targets)
        if step.get("uses", "").startswith("./") and not (ROOT / step["uses"] / "action.yml").is_file():
            lacking.append(step["uses"])
    assert lacking == []


def test_what_is_not_there_is_named() -> None:
    given = "make test && make tests ARGS=--install; tools/none.py --x\n.venv/bin/specbench lists engine"
    assert missing_of(given, {"test"}) == ["tests", "tools/none.py", "lists"]


def test_the_kernels_are_required_where_their_tests_would_be_skipped() -> None:
    commands = [step.get("run", "") for step in TESTS["machines"]["steps"]]
    (required,) = [command for command in commands if "library()" in command]
    assert commands.index(required) < commands.index("make test-kernels")
    command, given = required.replace(".venv/bin/python", sys.executable), os.environ | {"CC": "no-such-compiler"}
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=given, cwd=ROOT)
    assert ran.returncode != 0 and "NotCompiled: CC=no-such-compiler: there is no such program" in ran.stderr


def test_the_emulator_is_required_where_it_is_all_that_a_job_runs() -> None:
    commands = [step["run"] for step in TESTS["arm"]["steps"] if "run" in step]
    assert commands == ["make test-arm ARGS=--require"]


def test_expressions() -> None:
    contexts = {"github": {"ref": "refs/heads/main", "event": {}}}
    assert evaluate("github.ref == 'refs/heads/main' && 'all' || 'some'", contexts) == "all"
    assert evaluate("!(github.event.number != '') || false", contexts) is True
    assert applies("always()", contexts, failed=True) and not applies("github.ref", contexts, failed=True)


# The matrix.


def matrix(*words: str, file: Path = FOLDER / "sweeps.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "sweep_jobs.py"), "--file", str(file), *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_matrix_is_every_sweep_on_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "sweeps.yml"
    file.write_text("sweeps: {a: experiment=a, b: gamma=1 draft=x}\ngpus: [h100, l4]\n")
    jobs = evaluate("fromJSON(o)", {"o": matrix(file=file).stdout.partition("=")[2]})
    assert [job["name"] for job in jobs] == ["a-h100", "a-l4", "b-h100", "b-l4"]
    assert jobs[3] == {"name": "b-l4", "words": "gamma=1 draft=x", "gpu": "l4"}
    one = matrix("--sweep", "b", "--gpu", "l4", file=file).stdout
    assert json.loads(one.partition("=")[2]) == jobs[3:]
    assert matrix("--sweep", "c", file=file).stderr == "sweep=c: sweeps.yml has a, b\n"
    file.write_text("sweeps: {'a b; rm': x}\ngpus: [h100]\n")
    assert "'a b; rm' names files and labels" in matrix(file=file).stderr
    file.write_text("[]\n")
    assert "must have `sweeps`" in matrix(file=file).stderr


def test_the_committed_matrix_names_experiments() -> None:
    jobs = json.loads(matrix("--sweep", "", "--gpu", "").stdout.partition("=")[2])
    assert jobs
    for job in jobs:
        name = re.search(r"experiment=(\S+)", job["words"])
        held = [yaml.safe_load(file.read_text()).get("sweeps", {}) for file in (ROOT / "experiments").glob("*.yaml")]
        assert name is not None and any(name[1] in one for one in held)


# The CPU twin, executed.


def clone(folder: Path) -> Path:
    """A clone of this tree with what is not committed yet, as a commit: what a runner would check out."""
    goal = folder / "workspace"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(goal)], check=True)
    listed = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard", "--deduplicate"]
    changed = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, changed):
        (goal / name).unlink(missing_ok=True)
        if (ROOT / name).exists():
            (goal / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, goal / name)
    commit(goal)
    return goal


def commit(workspace: Path) -> None:
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "add", "--all"], cwd=workspace, check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "tested"], cwd=workspace, check=True)


def script(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/usr/bin/env bash\n{text}\n")
    file.chmod(0o755)


def environment(specbench: str = f'exec {sys.executable} -m specbench "$@"') -> Callable[[Path], None]:
    """Puts this interpreter where `make .venv/.ready` would set one up."""

    def prepare(workspace: Path) -> None:
        bin = workspace / ".venv" / "bin"
        script(bin / "specbench", f'export PYTHONPATH="{workspace}"\n{specbench}')
        script(bin / "python", f'exec {sys.executable} "$@"')
        (workspace / ".venv" / ".ready").touch()

    return prepare


GH = """
printf '%s\\n' "$*" >> "$GH_LOG"
case "$1 $2" in
  "issue list") cat "$GH_OPEN" 2>/dev/null || true;;
  *) while [ $# -gt 0 ]; do [ "$1" = --body-file ] && cat "$2" >> "$GH_LOG"; shift; done;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Runner]:
    """Makes a runner on a clone, with a `gh` that only writes down what it is asked."""

    def made(*specbench: str, **variables: str) -> Runner:
        script(tmp_path / "bin" / "gh", GH)
        clone(tmp_path)
        known = {"GITHUB_EVENT_NAME": "push", "GITHUB_REF": "refs/heads/main"} | variables
        return Runner(
            tmp_path, environment(*specbench), tmp_path / "bin", GH_LOG=str(tmp_path / "gh.log"),
            GH_OPEN=str(tmp_path / "open"), GITHUB_SERVER_URL="https://example.org",
            GITHUB_REPOSITORY="OWNER/specbench", GITHUB_RUN_ID="1", OMP_NUM_THREADS="1",
            **known,
        )  # fmt: skip

    return made


def twin(runner: Runner, kill: Callable[[], bool] = lambda: False) -> Job:
    """The job `sweep` of tests.yml, then, as on main, the job `issue`."""
    github = HERE | {"event_name": "push"}
    done = runner.job(TESTS["sweep"], kill, github=github)
    if not done.killed and applies(TESTS["issue"]["if"], {"github": github}, done.failed):
        issue = runner.job(TESTS["issue"], github=github | {"token": "secret"})
        assert not issue.failed, issue.ran
    return done


ROW = {
    "run_id": "t5-mini-x-1234", "quantity": "alpha", "moved": True, "fails": True, "baseline": 0.8, "now": 0.7,
    "ratio": 0.875, "low": 0.85, "high": 0.9, "q": 1e-5, "paired": 6, "since": "1" * 40, "commit": "2" * 40,
}  # fmt: skip
LINE = {"id": "a", "run_id": ROW["run_id"], "commit": "1" * 40, "created": "2026", "quantities": {"alpha": [0.8, 0, 1]}}


STUB = """
echo "$*" >> "LOG"
case "$*" in
  sweep*) results=${3#results=}; SWEEP; mkdir -p "$results/runs"; touch "$results/runs/r.json";;
  *--baseline*) echo 'SAID'; echo "4 remarks" >&2; exit CODE;;
  *--history*) echo 'LINE' > "$5/history/2026-01.jsonl";;
esac
"""


def stubbed(tmp_path: Path, code: int, moved: list[dict[str, Any]] | None, sweep: str = "true") -> str:
    """A specbench that measures nothing and says that these rows moved; nothing if it cannot compare."""
    said = "" if moved is None else json.dumps({"fails": bool(moved), "compared": 4, "wrong": [], "moved": moved})
    filled = {"LOG": str(tmp_path / "log"), "SWEEP": sweep, "SAID": said, "CODE": str(code), "LINE": json.dumps(LINE)}
    return re.sub("LOG|SWEEP|SAID|CODE|LINE", lambda found: filled[found[0]], STUB)


@NEEDS_CLONE
def test_the_steps_of_a_sweep_without_a_change(machine: Callable[..., Runner], tmp_path: Path) -> None:
    runner = machine(stubbed(tmp_path, 0, []))
    done = twin(runner)
    assert not done.failed and {outcome for _, outcome in done.ran} == {"success"}
    assert "Machine, before the sweep" in done.summary and "Machine, after the sweep" in done.summary
    assert "4 records compared" in done.summary and "Nothing moved." in done.summary
    assert "xychart-beta" in done.summary and "[Records, report and figure of the history](https" in done.summary
    assert (runner.artifacts / "sweep-cpu" / "runs" / "r.json").exists()
    assert not (tmp_path / "gh.log").exists() and not (runner.artifacts / "sweep-cpu" / "issue.md").exists()
    commits = runner.home / "specbench-sweeps" / "cpu" / "commits"
    assert not list(commits.iterdir())  # measured anew when the job is run again
    assert list((runner.home / "specbench-sweeps" / "cpu" / "history").glob("*.jsonl"))
    words = (tmp_path / "log").read_text().splitlines()
    assert words[0].startswith("sweep experiment=check-mini results=") and "--counted" in words[1]


@NEEDS_CLONE
def test_a_row_that_fell_opens_one_issue(machine: Callable[..., Runner], tmp_path: Path) -> None:
    better = ROW | {"quantity": "speedup", "fails": False, "ratio": 1.2}
    from_zero = ROW | {"ratio": None, "low": None, "high": None}  # as JSON has what is infinite
    runner = machine(stubbed(tmp_path, 1, [ROW, better, from_zero]))
    done = twin(runner)
    assert done.failed and "| fails |" in done.summary and "| better |" in done.summary
    said = (tmp_path / "gh.log").read_text()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=runner.workspace, capture_output=True, text=True).stdout
    assert "issue create --title Sweep cpu: a row fell --body-file" in said
    assert f"git bisect start {head.strip()} {'1' * 40}" in said and "git bisect run bash -c '" in said
    assert "-12.5%" in said and "https://example.org/OWNER/specbench/actions/runs/1" in said
    assert "+20.0%" not in said.split("Measured at")[0]  # what is better is no reason for an issue
    (tmp_path / "open").write_text("12")
    twin(runner)
    # A stranger's issue of this title is not commented.
    assert "--app github-actions" in (tmp_path / "gh.log").read_text()
    assert "issue comment 12 --body-file" in (tmp_path / "gh.log").read_text()
    assert (tmp_path / "gh.log").read_text().count("issue create") == 1


@NEEDS_CLONE
def test_a_comparison_that_cannot_be_made_fails_without_an_issue(
    machine: Callable[..., Runner], tmp_path: Path
) -> None:
    done = twin(machine(stubbed(tmp_path, 2, None)))
    assert done.failed and "There is no comparison." in done.summary and not (tmp_path / "gh.log").exists()


@NEEDS_CLONE
def test_a_sweep_that_fails_keeps_its_journals(machine: Callable[..., Runner], tmp_path: Path) -> None:
    runner = machine(stubbed(tmp_path, 0, [], sweep='mkdir -p "$results/journals"; exit 1'))
    done = twin(runner)
    assert done.failed
    outcomes = dict(done.ran)
    assert outcomes["Compare with the baseline"] == outcomes["History and report"] == "skipped"
    assert outcomes["Machine after the sweep"] == "success" and (runner.artifacts / "sweep-cpu").is_dir()
    assert list((runner.home / "specbench-sweeps" / "cpu" / "commits").glob("*/journals"))


@NEEDS_CLONE
def test_a_pull_request_does_not_enter_the_history_and_an_upload_that_fails_loses_no_record(
    machine: Callable[..., Runner], tmp_path: Path
) -> None:
    runner = machine(stubbed(tmp_path, 0, []), GITHUB_EVENT_NAME="pull_request_target")
    assert not twin(runner).failed
    sweeps = runner.home / "specbench-sweeps" / "cpu"
    assert not list((sweeps / "history").iterdir()) and not list((sweeps / "commits").iterdir())
    runner.fails.add("actions/upload-artifact")
    assert twin(runner).failed
    assert list((sweeps / "commits").glob("*/runs/r.json"))


@NEEDS_CLONE
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_killed_sweep_resumes_and_a_row_that_fell_is_an_issue(
    machine: Callable[..., Runner], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the pair that ships. The fall is planted: in the baseline, α of one row is a tenth higher."""
    runner = machine()
    baseline = runner.workspace / "results" / "baseline-cpu.jsonl"
    committed = baseline.read_text()
    rows = [json.loads(line) for line in committed.splitlines()]
    fallen = next(row for row in rows if "bigram" in row["run_id"])
    fallen["quantities"]["alpha"] = [1.1 * value for value in fallen["quantities"]["alpha"]]
    baseline.write_text("".join(json.dumps(row) + "\n" for row in rows))
    commit(runner.workspace)

    commits = runner.home / "specbench-sweeps" / "cpu" / "commits"

    def finished() -> dict[tuple[str, int], str]:
        return {key: text for folder in commits.glob("*") for key, text in finished_prompts(folder).items()}

    assert twin(runner, kill=lambda: len(finished()) >= 8).killed
    seen = finished()
    assert len(seen) >= 8 and not (runner.artifacts / "sweep-cpu").exists()

    done = twin(runner)
    end = finished_prompts(runner.artifacts / "sweep-cpu")
    assert len(end) == 24 and {key: end[key] for key in seen} == seen  # nothing again: times would differ
    assert [name for name, outcome in done.ran if outcome != "success"] == [
        "Link and end",
        TESTS["sweep"]["steps"][-1]["uses"],
    ]
    assert f"| {fallen['run_id']} | α |" in done.summary and done.summary.count("| fails |") == 1
    assert {"history.svg", "report.html", "moved.json"} <= {
        file.name for file in (runner.artifacts / "sweep-cpu").iterdir()
    }
    said = (tmp_path / "gh.log").read_text()
    assert "issue create --title Sweep cpu: a row fell" in said and f" {fallen['commit'].partition('+')[0]}\n" in said

    (tmp_path / "baseline.jsonl").write_text(committed)
    given = ["--baseline", str(tmp_path / "baseline.jsonl"), "--results", str(runner.artifacts / "sweep-cpu")]
    assert main(["compare", *given, "--counted"]) == 0
    capfd.readouterr()
    assert main(["compare", *given]) == 1  # a baseline without times finds no loss of speed, and says so
    assert "has no speedup" in capfd.readouterr().err
