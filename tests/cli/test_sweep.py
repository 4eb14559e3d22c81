"""A sweep: a job that fails in whatever way fails alone, and the last lines say what became of all."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from pickle import dumps, loads

import hydra
import pytest
import torch

import specbench.experiment.runner as runner
from specbench.cli import main, sweep_log, sweeping
from specbench.cli.run import job
from specbench.compose.hydra_app import Job
from specbench.compose.hydra_errors import one_line
from specbench.config.schema import RunConfig
from specbench.errors import UserError
from specbench.experiment.run_parts import Parts
from specbench.records import store
from specbench.records.catalog import Catalog

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def argv(folders: Folders, tmp_path: Path) -> Callable[..., list[str]]:
    """The command line of a small run or sweep, with more keys after it."""
    keys = [
        f"target.path={folders['t5']}", "draft=random", "task=ende", f"task.path={folders['rows']}", "limit=1",
        "dtype=float32", "device=cpu", "threads=1", "max_new_tokens=4", "warmup=0", "engine=eager",
        f"results='{tmp_path}'",
    ]  # fmt: skip
    return lambda verb, *more: [verb, *keys, *more]


def failing(monkeypatch: pytest.MonkeyPatch, errors: dict[int, BaseException]) -> None:
    """Make runs of these gammas fail while they decode."""
    real = runner.measure_prompt

    def measure(parts: Parts, index: int) -> object:
        if parts.config.gamma in errors:
            raise errors[parts.config.gamma]  # type: ignore[index]
        return real(parts, index)

    monkeypatch.setattr(runner, "measure_prompt", measure)


def failed(results: Path, gamma: int) -> dict[str, object]:
    (file,) = store.runs_folder(results).glob(f"*-g{gamma}-*.json")
    return store.read(file)


@pytest.mark.full
def test_every_kind_of_failure_is_the_jobs_own(
    argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    memory, slip = torch.OutOfMemoryError("CUDA out of memory"), UserError("target: it has no such token")
    failing(monkeypatch, {2: ZeroDivisionError("no mass\nat all"), 3: memory, 5: slip})
    assert main(argv("sweep", "gamma=1,2,3,4,5")) == 2
    out, err = capfd.readouterr()
    *_, done, first, second, third, where = err.splitlines()
    assert done == "2 of 5 runs done; 'specbench results' shows all records"
    assert first == "failed: ZeroDivisionError: no mass at all (not expected) (gamma=2)"
    assert second.startswith("failed: device=cpu: out of memory; lower gamma,") and second.endswith(" (gamma=3)")
    assert third == "failed: target: it has no such token (gamma=5)"
    assert "Traceback" not in err and "specbench: ZeroDivisionError: no mass at all (not expected)" in err
    assert [row["gamma"] for row in Catalog(tmp_path).rows()] == [1, 4]
    assert out.count("random") == 2 and err.count("(written)") == 2  # the table at the end; a line when each is done

    record = failed(tmp_path, 2)
    assert record["summary"]["error"] == "ZeroDivisionError: no mass at all"
    assert (record["failure"]["type"], record["failure"]["message"]) == ("ZeroDivisionError", "no mass\nat all")
    assert "raise errors[parts.config.gamma]" in record["failure"]["traceback"]
    assert failed(tmp_path, 3)["failure"]["type"] == "MachineError"
    outcomes = [json.loads(line) for line in Path(where.partition(": ")[2]).read_text().splitlines()]
    assert [outcome["code"] for outcome in outcomes] == [0, 1, 1, 0, 2]
    assert "raise errors[parts.config.gamma]" in outcomes[1]["traceback"]

    monkeypatch.undo()
    assert main(argv("sweep", "gamma=1,2,3,4")) == 0
    assert "4 of 4 runs done, 2 of them before; " in capfd.readouterr().err


@pytest.mark.full
def test_outside_a_sweep_a_fault_of_ours_shows_where_it_came_from(
    argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    real, decoded = runner.measure_prompt, []

    def second_fails(*given: object) -> object:
        if decoded:
            raise KeyError("passes")
        decoded.append(1)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "measure_prompt", second_fails)
    assert main(argv("run", "limit=3")) == 1
    err = capfd.readouterr().err
    assert "in second_fails" in err and "KeyError: 'passes'" in err
    assert err.splitlines()[-1].startswith("specbench: this is a fault of specbench: please report it")
    (journal,) = (tmp_path / "journals").glob("*.jsonl")
    assert journal.read_text().count('{"schema_version": 2, "prompt": ') == 1
    monkeypatch.undo()
    assert main(argv("run", "limit=3")) == 0
    assert "resuming after 1 finished prompts" in capfd.readouterr().err


def test_a_fault_in_any_other_verb_is_told_in_the_same_way(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    monkeypatch.setattr("specbench.records.catalog.Catalog.rows", lambda *_, **__: 1 / 0)
    assert main(["results"]) == 1
    err = capfd.readouterr().err
    assert "ZeroDivisionError" in err and "please report it" in err.splitlines()[-1]


@pytest.mark.full
def test_a_failure_does_not_replace_what_was_finished(
    argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(argv("run", "gamma=2")) == 0
    before = failed(tmp_path, 2)
    failing(monkeypatch, {2: torch.OutOfMemoryError("CUDA out of memory")})
    assert main(argv("run", "gamma=2", "force=true")) == 1
    assert failed(tmp_path, 2) == before


def test_a_refused_run_leaves_no_journal(argv: Callable[..., list[str]], tmp_path: Path) -> None:
    assert main(argv("run", "dtype=float16")) == 2
    assert not list((tmp_path / "journals").iterdir())


def test_ctrl_c_stops_all_and_says_what_is_done(
    argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    failing(monkeypatch, {2: KeyboardInterrupt()})
    assert main(argv("sweep", "gamma=1,2,3")) == 130
    assert capfd.readouterr().err.splitlines()[-2:] == [
        "1 run done; 'specbench results' shows all records",
        "specbench: interrupted; finished work is kept",
    ]
    assert [row["gamma"] for row in Catalog(tmp_path).rows()] == [1]


def test_a_lost_worker_is_one_line(
    argv: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    joblib = pytest.importorskip("joblib")

    def killed(*_: object) -> None:
        raise joblib.externals.loky.process_executor.TerminatedWorkerError("a worker was killed")

    monkeypatch.setattr(sweeping, "launch", killed)
    assert main(argv("sweep", "gamma=1,2", "hydra/launcher=joblib")) == 1
    assert capfd.readouterr().err == (
        "specbench: hydra/launcher=joblib: TerminatedWorkerError: a worker was killed; run the same command again\n"
    )


@pytest.mark.full
def test_a_wrong_choice_in_a_list_stops_the_sweep_before_it_begins(
    argv: Callable[..., list[str]], tmp_path: Path, capfd: Capture
) -> None:
    assert main(argv("sweep", "draft=random,bigramm")) == 2
    err = capfd.readouterr().err
    assert err.startswith("specbench: draft=bigramm: no such draft; did you mean bigram, ") and err.count("\n") == 1
    assert not store.runs_folder(tmp_path).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gamma=1,x"], "gamma=x: must be from 1 to 64, or auto"),
        (["gamma=1,99,3"], "gamma=99: must be from 1 to 64, or auto"),
        (["limit=1,0"], "limit=0: must be at least 1"),
        (["gamma=1,2", "accept=block", "tree=sequoia"], "gamma="),
        (["gamma=1,x", "hydra/launcher=joblib"], "gamma=x: must be from 1 to 64, or auto"),
    ],
)
def test_every_value_is_checked_before_the_first_job(
    words: list[str], said: str, argv: Callable[..., list[str]], tmp_path: Path, capfd: Capture
) -> None:
    """The job of `gamma=1` ran, and then `gamma=x` was refused."""
    assert main(argv("sweep", *words)) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {said}") and err.endswith("(of this sweep no job has run)\n")
    assert err.count("\n") == 1 and not store.runs_folder(tmp_path).exists()


def test_a_value_that_goes_with_some_others_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that grows no trees is measured without them."""

    def check(config: RunConfig) -> None:
        if config.gamma == 0:
            raise UserError("gamma=0: no")

    monkeypatch.setattr(sweeping, "check", check)
    chain, tree = RunConfig(), RunConfig(gamma=0)
    words = (["draft=a", "tree=none"], ["draft=a", "tree=b"], ["draft=c", "tree=none"], ["draft=c", "tree=b"])
    sweeping.require_possible([Job(these, tree if these == words[1] else chain) for these in words])
    with pytest.raises(UserError, match=r"gamma=0: no \(of this sweep no job has run\)"):
        sweeping.require_possible([Job(these, tree if "tree=b" in these else chain) for these in words])


def test_a_launcher_that_is_not_installed_names_its_extra() -> None:
    text = "Could not find 'hydra/launcher/ray'\n\nAvailable options in 'hydra/launcher':\n\tbasic\nConfig search path"
    assert one_line(ValueError(text), RunConfig) == (
        "hydra/launcher=ray: is not installed; pip install 'specbench-toolkit[ray]'"
    )


@pytest.mark.full
def test_any_results_folder_will_do(
    argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    odd = tmp_path / "it is, (this) [one]"
    failing(monkeypatch, {2: UserError("target: it has no such token")})
    assert main(argv("sweep", "gamma=1,2", f"results='{odd}'")) == 2
    assert "1 of 2 runs done" in capfd.readouterr().err
    assert len(Catalog(odd).rows()) == 1
    assert {file.name for file in odd.glob("sweeps/*/*")} == {"outcomes.jsonl", "multirun.yaml"}


@pytest.mark.full
def test_each_job_says_which_of_how_many_it_is(argv: Callable[..., list[str]], capfd: Capture) -> None:
    assert main(argv("sweep", "gamma=1,2", "sampling.temperature=0,1", "hydra.sweeper.max_batch_size=3")) == 0
    done = [line for line in capfd.readouterr().err.splitlines() if line.endswith("(written)")]
    assert [line.partition(": ")[0] for line in done] == [f"{number} of 4" for number in (1, 2, 3, 4)]


def test_jobs_of_other_launchers_are_counted_while_they_run(
    argv: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    def elsewhere(task: object, schema: object, words: list[str], verb: str) -> None:
        """As submitit: jobs end in other processes, which write their lines."""
        (log,) = (word.partition("=")[2].strip("'") for word in words if sweep_log.VARIABLE in word)
        sweep_log.expect(3)
        Path(log).parent.mkdir(parents=True)
        Path(log).write_text('{"code": 1, "keys": [], "error": "E"}\n{"code": 2, "keys": [], "error": "E"}\n')

    monkeypatch.setattr(sweeping, "launch", elsewhere)
    assert main(argv("sweep", "gamma=1,2,3", "hydra/launcher=submitit_local")) == 2
    assert "2 of 3 jobs ended, 2 of them failed" in capfd.readouterr().err.splitlines()


def test_a_line_that_a_full_disk_cut_off_is_left_out(tmp_path: Path) -> None:
    sweep_log.begin()
    file = tmp_path / "outcomes.jsonl"
    file.write_text('{"code": 0, "keys": []}\n{"code": 1, "ke')
    assert sweep_log.all_of(file) == [{"code": 0, "keys": []}]


def test_launchers_can_send_a_job_to_other_processes(
    argv: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By plain pickle, which takes no closures."""
    sent: list[bytes] = []
    monkeypatch.setattr(hydra, "main", lambda **_: lambda task: lambda: sent.append(dumps(task)))
    assert main(argv("sweep", "gamma=1,2")) == 0
    assert loads(sent[0]).task is job and loads(sent[0]).schema is RunConfig


def test_two_sweeps_begun_in_one_second_share_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20261130-022506")
    assert len({sweep_log.new_file(str(tmp_path)) for _ in range(20)}) == 20


@pytest.mark.full
def test_a_full_disk_is_one_line_a_job_and_loses_nothing(
    argv: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    real, full = os.fsync, [False]

    def fsync(number: int) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    assert main(argv("sweep", "gamma=1")) == 0
    full[0] = True
    assert main(argv("sweep", "gamma=1,2,3")) == 1
    err = capfd.readouterr().err
    assert "1 of 3 runs done" in err and "No space left on device" in err and "Traceback" not in err
    full[0] = False
    assert main(argv("sweep", "gamma=1,2,3")) == 0
    assert len(list(store.runs_folder(tmp_path).glob("*.json"))) == 3
