"""Execute the steps of a GitHub workflow here, as its runner would: expressions, `if`, outputs, environment, summary.

Actions of this repository are executed step by step; other actions are replaced by what they do to files
(`Runner._known`). A `Runner` is a machine with a home and a workspace that outlive a job: its next job finds them.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Step = dict[str, Any]
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[A-Za-z_][\w-]*(?:\.[\w-]+)*|&&|\|\||[!=]=|[!(),]|\d+)")
STATUS = re.compile(r"\b(success|failure|always|cancelled)\(\)")
PYTHON = {"&&": " and ", "||": " or ", "!": " not ", "true": "True", "false": "False", "null": "None"}


def evaluate(expression: str, contexts: Mapping[str, Any], failed: bool = False) -> Any:
    """The value of an expression of a workflow; a name that nothing has is ''."""

    def named(path: str) -> Any:
        value: Any = contexts
        for part in path.split("."):
            value = value.get(part, "") if isinstance(value, Mapping) else ""
        return value

    code, place = "", 0
    while expression[place:].strip():
        found = TOKEN.match(expression, place)
        assert found, f"cannot read {expression[place:]!r}"
        token, place = found[1], found.end()
        if token[0] == "'":
            code += repr(token[1:-1].replace("''", "'"))
        elif token in PYTHON or not token[0].isalpha():
            code += PYTHON.get(token, token)
        elif expression[place : place + 1] == "(":
            code += f"calls[{token!r}]"
        else:
            code += f"named({token!r})"
    calls = {
        "success": lambda: not failed, "failure": lambda: failed, "always": lambda: True, "cancelled": lambda: False,
        "fromJSON": yaml.safe_load, "contains": lambda whole, part: part in whole,
        "startsWith": lambda text, start: text.startswith(start),
    }  # fmt: skip
    return eval(code, {"named": named, "calls": calls})


def filled(value: Any, contexts: Mapping[str, Any]) -> Any:
    """A value of a workflow with its expressions replaced."""
    if isinstance(value, dict):
        return {key: filled(item, contexts) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: said(evaluate(found[1], contexts)), value, flags=re.S)


def said(value: Any) -> str:
    """A value as a workflow writes it into a text."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def applies(condition: str | None, contexts: Mapping[str, Any], failed: bool) -> bool:
    """Whether a step or a job with this `if` runs: without a status function it needs success."""
    condition = re.sub(r"^\$\{\{(.*)\}\}$", r"\1", str(condition if condition is not None else "success()").strip())
    return bool(evaluate(condition, contexts, failed)) and (bool(STATUS.search(condition)) or not failed)


@dataclass
class Job:
    """What a job did: the names or commands of its steps in order with their outcome, its outputs and its summary."""

    ran: list[tuple[str, str]] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    failed: bool = False
    killed: bool = False
    summary: str = ""


class Runner:
    """A machine that executes jobs. `prepare` is called after each checkout, for what the network would bring."""

    def __init__(
        self, folder: Path, prepare: Callable[[Path], None] = lambda workspace: None, path: Path | None = None,
        **environment: str,
    ) -> None:  # fmt: skip
        self.workspace, self.home, self.artifacts = folder / "workspace", folder / "home", folder / "artifacts"
        self._prepare, self._files = prepare, folder / "files"
        self.temporary = folder / "temp"  # which a runner empties before each job
        self.fails: set[str] = set()  # actions of others that fail here
        for made in (self.home, self.artifacts, self._files, self.temporary):
            made.mkdir(parents=True, exist_ok=True)
        paths = [str(path)] if path is not None else []
        self._environment = os.environ | {
            "HOME": str(self.home), "RUNNER_TEMP": str(self.temporary), "CI": "true",
            "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
        } | environment  # fmt: skip
        self._known: dict[str, Callable[[dict[str, Any]], dict[str, str]]] = {
            "actions/checkout": self._checkout,
            "actions/setup-python": lambda given: {},
            "actions/upload-artifact": self._upload,
            "actions/download-artifact": self._download,
        }

    def job(self, job: Mapping[str, Any], kill: Callable[[], bool] = lambda: False, **contexts: Any) -> Job:
        """Execute a job. As soon as `kill()` is true while a command runs, the machine is gone: nothing else runs."""
        done, summary = Job(), self._files / "summary.md"
        summary.unlink(missing_ok=True)
        shutil.rmtree(self.temporary)
        self.temporary.mkdir()
        self._kill, self._env = kill, dict(job.get("env", {}))
        self._steps(job["steps"], {"steps": done.steps, "env": self._env, **contexts}, done, self.workspace)
        done.summary = summary.read_text(encoding="utf-8") if summary.exists() else ""
        return done

    def _steps(self, steps: list[Step], contexts: dict[str, Any], done: Job, action: Path) -> None:
        for step in steps:
            if done.killed:
                return
            if not applies(step.get("if"), contexts, done.failed):
                outcome, outputs = "skipped", {}
            elif "run" in step:
                outcome, outputs = self._command(step, contexts, done, action)
            else:
                outcome, outputs = self._action(step, contexts, done)
            done.ran.append((step.get("name") or step.get("uses") or step["run"], outcome))
            if "id" in step:
                contexts["steps"][step["id"]] = {"outputs": outputs, "outcome": outcome}
            done.failed |= outcome == "failure" and not step.get("continue-on-error")

    def _action(self, step: Step, contexts: dict[str, Any], done: Job) -> tuple[str, dict[str, str]]:
        given = filled(step.get("with", {}), contexts)
        if not step["uses"].startswith("./"):
            name = step["uses"].partition("@")[0]
            return ("failure", {}) if name in self.fails else ("success", self._known[name](given))
        folder = self.workspace / step["uses"]
        action = yaml.safe_load((folder / "action.yml").read_text(encoding="utf-8"))
        inputs = {name: given.get(name, one.get("default", "")) for name, one in action["inputs"].items()}
        assert given.keys() <= inputs.keys()
        inside = contexts | {"inputs": inputs, "steps": {}}
        before = done.failed
        self._steps(action["runs"]["steps"], inside, done, folder)
        outputs = {name: filled(one["value"], inside) for name, one in action.get("outputs", {}).items()}
        return "failure" if done.failed and not before else "success", outputs

    def _command(
        self, step: Step, contexts: dict[str, Any], done: Job, action: Path
    ) -> tuple[str, dict[str, str]]:  # fmt: skip
        files = {name: self._files / name for name in ("GITHUB_OUTPUT", "GITHUB_ENV")}
        for file in files.values():
            file.write_text("")
        script = self._files / "script.sh"
        script.write_text(filled(step["run"], contexts))
        process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)], cwd=self.workspace,
            start_new_session=True, stdin=subprocess.DEVNULL,
            env=self._environment | self._env | _texts(filled(step.get("env", {}), contexts))
            | {name: str(file) for name, file in files.items()}
            | {"GITHUB_STEP_SUMMARY": str(self._files / "summary.md"), "GITHUB_ACTION_PATH": str(action)},
        )  # fmt: skip
        while process.poll() is None:
            if self._kill():
                os.killpg(process.pid, signal.SIGKILL)
                done.killed = True
            time.sleep(0.01)
        self._env |= _pairs(files["GITHUB_ENV"])
        return "success" if process.returncode == 0 else "failure", _pairs(files["GITHUB_OUTPUT"])

    def _checkout(self, given: Mapping[str, Any]) -> dict[str, str]:
        """What the action does to a workspace that exists: changes are undone, and what git does not know goes."""
        subprocess.run(["git", "reset", "--quiet", "--hard"], cwd=self.workspace, check=True)
        subprocess.run(["git", "clean", "-ffdxq"], cwd=self.workspace, check=True)
        self._prepare(self.workspace)
        return {}

    def _upload(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Paths are files and folders; a folder's content lies at the top, as it does for one path."""
        goal = self.artifacts / given["name"]
        shutil.rmtree(goal, ignore_errors=True)
        goal.mkdir()
        for source in map(Path, given["path"].split()):
            source = self.workspace / source
            if source.is_dir():
                shutil.copytree(source, goal, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, goal)
        return {"artifact-url": f"https://example.org/artifacts/{given['name']}"}

    def _download(self, given: Mapping[str, Any]) -> dict[str, str]:
        for artifact in self.artifacts.glob(given["pattern"]):
            shutil.copytree(artifact, self.workspace / given["path"] / artifact.name, dirs_exist_ok=True)
        return {}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: said(value) for key, value in values.items()}


def _pairs(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines() if line)
