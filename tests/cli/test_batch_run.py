"""`specbench run batch=B`: completions as for single prompts, the record, and errors."""

import json
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.experiment import runner
from tests.support.calls import called, refusal, small_run

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nineteen prompts of very different lengths."""
    words = ("old dog tree small cat house red man dog green tree runs sees sits " * 2).split()
    rows = [{"en": " ".join(words[: 1 + 5 * number % 23]), "de": "der hund ."} for number in range(19)]
    file = tmp_path_factory.mktemp("many") / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return file


def texts(record: dict) -> list[tuple[list[int], list[int]]]:  # type: ignore[type-arg]
    return [(one["baseline"].tokens, one["speculative"].tokens) for one in record["prompts"]]


# Each engine, each kind of model and each temperature; texts at T = 1 differ where a row's logits or its draws do.
@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "engine", "temperature"), [("t5", "static", 1), ("gpt2", "eager", 0), ("llama", "static", 0)]
)
def test_each_row_writes_and_draws_what_it_does_alone(
    folders: Folders, many: Path, tmp_path: Path, capfd: Capture, kind: str, engine: str, temperature: int
) -> None:
    of = (f"task.path={many}", f"engine={engine}", f"sampling.temperature={temperature}")
    alone = called(small_run(folders, tmp_path, *of, kind=kind), tmp_path, capfd)[3]
    code, out, _, record = called(small_run(folders, tmp_path, *of, "batch=2", kind=kind), tmp_path, capfd)
    assert code == 0 and "batch 2" in out and "tokens per second" in out
    assert texts(record) == texts(alone)
    assert record["summary"]["alpha"] == pytest.approx(alone["summary"]["alpha"])
    assert record["summary"]["lossless"] and record["summary"]["batch"] == 2
    assert 1 < record["summary"]["occupancy"] <= 2 and "-b2-" in record["run_id"]


@pytest.mark.full
def test_rows_that_verify_nothing_beside_trees_of_lookahead_tokens_are_lossless(tmp_path: Path, capfd: Capture) -> None:
    """PaSS verifies its look-ahead tokens as a tree. A row's last passes draft nothing and are plain chains, in
    the forward pass of the trees of other rows: their padding must not be written over their own tokens."""
    argv = ["run", "target=gpt-mini", "draft=pass", "gamma=3", "batch=3", "limit=9", "dtype=float32", "device=cpu"]
    argv += ["max_new_tokens=24", "warmup=0", "engine=eager", f"results={tmp_path}"]
    code, out, err, record = called(argv, tmp_path, capfd)
    assert code == 0 and "100.0%" in out, err
    assert record["summary"]["identical"] == 1.0 and record["summary"]["lossless"]
    assert all(alone == speculative for alone, speculative in texts(record)) and len(record["prompts"]) == 9
    passes = [one for prompt in record["prompts"] for one in prompt["speculative"].passes]
    assert {0, 3} <= {one.drafted for one in passes}  # both kinds of rows occur


@pytest.mark.full
def test_time_belongs_to_a_pass_of_the_batch(folders: Folders, many: Path, tmp_path: Path, capfd: Capture) -> None:
    record = called(small_run(folders, tmp_path, f"task.path={many}", "batch=3"), tmp_path, capfd)[3]
    summary, prompts = record["summary"], record["prompts"]
    for way in ("baseline", "speculative"):
        for trace in (prompt[way] for prompt in prompts):
            times = trace.steps_s or [one.draft_s + one.verify_s + one.accept_s for one in trace.passes]
            assert len(trace.rows) == len(times) and set(trace.rows) <= {1, 2, 3}
            shares = [time / rows for time, rows in zip(times, trace.rows, strict=True)]
            assert trace.decode_s == pytest.approx(sum(shares))
    alone_s = sum(prompt["baseline"].decode_s for prompt in prompts)
    assert summary["tokens_per_second_baseline"] == pytest.approx(summary["tokens"] / alone_s)
    assert summary["speedup_measured"] == pytest.approx(
        summary["tokens_per_second"] / summary["tokens_per_second_baseline"]
    )
    assert summary["speedup_measured"] == pytest.approx(
        summary["tokens_per_pass"]
        / (summary["drafting_per_pass"] + summary["checking_per_pass"] + summary["accepting_per_pass"])
    )
    assert summary["prediction"] == "Eq. 1 by row"


@pytest.mark.full
def test_a_batched_run_resumes_with_equal_texts(
    folders: Folders, many: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*small_run(folders, tmp_path, f"task.path={many}"), "batch=2", "sampling.temperature=1"]
    whole = called([*argv, f"results={tmp_path / 'whole'}"], tmp_path / "whole", capfd)[3]
    real, measured = runner.measure_group, list[list[int]]()

    def interrupted(parts, rows, places):  # type: ignore[no-untyped-def]
        if measured:
            raise KeyboardInterrupt
        measured.append(list(places))
        return real(parts, rows, places)

    monkeypatch.setattr(runner, "measure_group", interrupted)
    assert main(argv) == 130
    monkeypatch.setattr(runner, "measure_group", real)
    code, _, err, record = called(argv, tmp_path, capfd)
    assert code == 0 and "resuming after 16 finished prompts" in err
    assert measured == [list(range(16))]
    assert texts(record) == texts(whole) and record["summary"]["processes"] == 2


@pytest.mark.full
def test_a_batch_that_does_not_fit_names_the_largest_that_does(
    folders: Folders, many: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.experiment.runner.free_bytes", lambda device: 2e6)
    assert main(small_run(folders, tmp_path, f"task.path={many}", "batch=500")) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    fits = int(said.rpartition("batch=")[2])
    assert "batch=500: needs" in said and 1 < fits < 500
    assert main(small_run(folders, tmp_path, f"task.path={many}", f"batch={fits}")) == 0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["batch=0"], "batch=0: must be from 1 to 1024"),
        (["batch=4", "gamma=auto"], "gamma=auto: its probe times passes of one prompt"),
        (["batch=4", "gamma=adaptive"], "gamma=adaptive: its probe times passes of one prompt"),
        (["batch=4", "target.device_map=auto"], "batch=4: the target must be on one device"),
    ],
)
def test_what_a_batch_cannot_do_is_refused(
    folders: Folders, tmp_path: Path, capfd: Capture, overrides: list[str], said: str
) -> None:
    assert said in refusal(small_run(folders, tmp_path, *overrides), capfd)


def test_a_draft_in_the_targets_own_cache_cannot_be_batched(capfd: Capture) -> None:
    said = refusal(["run", "draft=early-exit", "draft.layers=1", "batch=4"], capfd)
    assert "draft=early-exit-1: cannot be batched" in said


def test_a_beam_search_has_no_batch(capfd: Capture) -> None:
    assert "batch" in refusal(["bench", "beam", "batch=4"], capfd)


@pytest.mark.full
def test_recommend_ranks_for_each_batch(folders: Folders, many: Path, tmp_path: Path, capfd: Capture) -> None:
    argv = [one for one in small_run(folders, tmp_path, f"task.path={many}", verb="recommend") if one != "gamma=3"]
    assert main([*argv, "batch=1,2", "gammas=[1,2]", "rounds=2", "tokens=60", "verify=1", "--format", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {(row["batch"], row["gamma"]) for row in found["rows"]} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert [one["batch"] for one in found["verified"]] == [1, 2] and "-b2-" in found["verified"][1]["run_id"]
    said = "\n".join(found["reasons"])
    assert "batch=2: " in said and ("no draft pays" in said or "a draft pays at every batch up to 2" in said)
    assert "batch=0: must be from 1" in refusal([*argv, "batch=0,2"], capfd)
