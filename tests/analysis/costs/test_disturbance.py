"""A disturbed run is marked, and no verb uses its times."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.analysis.costs.core_time import CoreTime, between, core_times, least_disturbed
from specbench.analysis.costs.disturbance import MOST_UNEVEN, Disturbance, disturbance, impossible, of_steps
from specbench.api import DisturbedWarning, Run
from specbench.choose.reasons import NOT_CONCLUDED
from specbench.cli import main
from specbench.records import store
from specbench.records.catalog import Catalog
from specbench.records.frame import Records
from specbench.records.keeping import drawing_folder, keep
from specbench.report import figures, tables
from specbench.report.remarks import remarks
from specbench.report.summary_text import largest_loss
from tests.support.calls import called, small_run
from tests.support.kept_records import heads
from tests.support.made_passes import made_trace
from tests.support.made_records import make

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
FINE = {"verify_cost": 1.2, "speedup_measured": 1.5, "tokens_per_pass": 2.5}
KEPT = [head.file for head in heads() if not head.summary.get("served")]  # servers tell no steps
SIGNS = "it waited for a core 40% of its time"


def prompts(steps: list[list[float]], load: dict[str, float] | None = None) -> list[dict[str, Any]]:
    return [{"baseline": made_trace(steps_s=one), "load": load} for one in steps]


def even(texts: int = 20, length: int = 12, seed: int = 0) -> list[list[float]]:
    """Steps as a quiet machine takes them: a few percent of noise, a first step of twice the time, prompts that differ
    in length, a cache that grows."""
    draw = np.random.default_rng(seed)
    growth = np.linspace(1, 2, length) * np.where(np.arange(length) == 0, 2, 1)
    return [(0.002 * (1 + text / 10) * growth * draw.lognormal(0, 0.04, length)).tolist() for text in range(texts)]


def test_a_quiet_run_shows_no_sign() -> None:
    found = disturbance(prompts(even(), {"ran_s": 1.9, "waited_s": 0.02}), FINE)
    assert found.signs == [] and found.waited == pytest.approx(0.02 / 1.92)
    assert found.unevenness is not None and 1 < found.unevenness < MOST_UNEVEN
    assert found.columns() == {
        "disturbed": False, "disturbed_by": None, "waited": found.waited, "unevenness": found.unevenness,
    }  # fmt: skip


def test_waiting_for_a_core_is_a_sign() -> None:
    found = disturbance(prompts(even(), {"ran_s": 1.2, "waited_s": 0.8}), FINE)
    assert found.signs == [SIGNS] and found.columns()["disturbed"] is True


def test_steps_that_jump_are_a_sign_also_without_load() -> None:
    """A second process has the core in one time slice of three."""
    draw = np.random.default_rng(1)
    steps = [[step * (3 if draw.random() < 0.3 else 1) for step in text] for text in even()]
    found = disturbance(prompts(steps), FINE)
    assert found.waited is None and found.unevenness is not None and found.unevenness > 2.5
    assert found.signs == [f"one in ten neighbouring steps differs more than {found.unevenness:.1f} times"]


def test_short_steps_are_compared_over_a_millisecond() -> None:
    """A third of the steps interrupted for 75 µs is a machine at rest; a neighbour's slices of 3 ms are found."""
    draw = np.random.default_rng(3)
    at_rest = [[2e-4 + 7.5e-5 * (draw.random() < 1 / 3) for _ in range(60)] for _ in range(20)]
    shared = [[step + 3e-3 * (draw.random() < 0.05) for step in text] for text in at_rest]
    assert of_steps(None, at_rest).signs == []
    found = of_steps(None, shared)
    assert found.unevenness is not None and found.unevenness > 2 and len(found.signs) == 1


def test_a_few_steps_say_nothing() -> None:
    assert disturbance(prompts([[0.1, 0.2, 0.9, 0.1]]), FINE) == Disturbance(None, None, [])
    assert disturbance(prompts([[0.0] * 40]), FINE).unevenness is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verify_cost": 0.85}, None),  # kernels for one row may be slower than those for three
        ({"speedup_measured": 2.8, "verify_cost": 0.85}, None),
        ({"speedup_measured": 2.8, "verify_cost": 0.97}, "a speedup of 2.80 is impossible with 2.50 tokens"),
        ({"speedup_measured": 15.45, "tokens_per_pass": 5.22}, "a speedup of 15.45 is impossible with 5.22 tokens"),
        ({"speedup_measured": 1.28, "tokens_per_pass": 1.0}, "a speedup of 1.28 is impossible with 1.00 tokens"),
        ({"speedup_measured": 1.02, "tokens_per_pass": 1.0}, None),
        ({"speedup_measured": None, "verify_cost": None}, None),
    ],
)
def test_what_cannot_be(changes: dict[str, float | None], said: str | None) -> None:
    found = impossible(FINE | changes)
    assert len(found) == (said is not None) and (said or "") in "".join(found)


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.name.removesuffix(".json.xz"))
def test_no_kept_record_was_disturbed(file: Path) -> None:
    """They hold no load: their own steps decide."""
    record = store.read(file)
    found = disturbance(record["prompts"], record["summary"])
    assert found.signs == [] and found.unevenness is not None


# The system's own word.


def test_the_system_tells_what_threads_waited(tmp_path: Path) -> None:
    def threads(**times: tuple[int, int]) -> None:
        for name, (ran, waited) in times.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "schedstat").write_text(f"{ran} {waited} 7\n")

    threads(a=(1_000_000_000, 0), b=(0, 0))
    before = core_times(tmp_path)
    threads(a=(2_000_000_000, 500_000_000), c=(1_000_000_000, 0))
    assert between(before, core_times(tmp_path)) == pytest.approx(CoreTime(2.0, 0.5))
    assert between(before, before) is None  # a kernel that does not count
    assert core_times(tmp_path / "none") == {} and between({}, before) is None


def test_this_system_is_read() -> None:
    if not Path("/proc/self/task").is_dir():
        pytest.skip("needs Linux")
    before = core_times()
    assert sum(range(2_000_000)) and before
    spent = between(before, core_times())
    assert spent is None or spent.ran_s > 0


# What becomes of it.


@pytest.fixture
def run(folders: Folders, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A run on small random networks beside something else; returns (exit code, stdout, stderr, record)."""
    monkeypatch.setattr("specbench.analysis.summary.disturbance", disturbance)
    monkeypatch.setattr("specbench.experiment.measure.between", lambda *_: CoreTime(1.2, 0.8))

    def call(*overrides: str, verb: str = "run"):  # type: ignore[no-untyped-def]
        return called(small_run(folders, tmp_path, *overrides, verb=verb), tmp_path, capfd)

    return call


@pytest.mark.full
def test_a_disturbed_run_says_so_and_is_in_no_table(run, tmp_path: Path, capfd: Capture) -> None:  # type: ignore[no-untyped-def]
    code, out, _, record = run()
    summary = record["summary"]
    assert code == 0 and f"CONTENDED: {SIGNS}" in out and "force=true" in out
    assert summary["disturbed"] is True and summary["disturbed_by"].startswith(SIGNS)
    assert summary["waited"] == pytest.approx(0.4) and summary["speedup_measured"] is not None
    assert record["prompts"][0]["load"] == {"ran_s": 1.2, "waited_s": 0.8}
    records = Records(tmp_path)
    assert records.paper_runs.empty and records.beyond.empty and records.disturbed == [record["run_id"]]
    assert any("contended while they were timed" in note for note in tables.build(["table2"], records)[0].notes)
    main(["results", "--results", str(tmp_path)])
    out = capfd.readouterr().out
    assert any("  contended" in line for line in out.splitlines()[1:]) and "docs/method.md" in out
    assert "CONTENDED" in run("gamma=1,2", verb="sweep")[2]


@pytest.mark.full
def test_results_by_position_say_why_there_is_no_speedup(run, tmp_path: Path, capfd: Capture) -> None:  # type: ignore[no-untyped-def]
    run()
    main(["results", "--by", "position", "--results", str(tmp_path)])
    assert f"no speedups: the machine was contended ({SIGNS}" in capfd.readouterr().out


def test_a_disturbed_speedup_warns_in_python_too() -> None:
    record = {"summary": {"speedup_measured": 1.5, "disturbed": True, "disturbed_by": SIGNS}}
    found = Run(Path("r.json"), record, reused=False)  # type: ignore[arg-type]
    with pytest.warns(DisturbedWarning, match=SIGNS):
        assert found.speedup == 1.5
    assert found.disturbed_by == SIGNS
    quiet = Run(Path("r.json"), {"summary": {"speedup_measured": 1.5}}, reused=False)  # type: ignore[typeddict-item]
    assert quiet.speedup == 1.5 and quiet.disturbed_by is None


@pytest.mark.full
def test_two_disturbed_runs_are_compared_with_a_warning(run, tmp_path: Path, capfd: Capture) -> None:  # type: ignore[no-untyped-def]
    ids = [run(f"gamma={gamma}")[3]["run_id"] for gamma in (1, 2)]
    main(["compare", *ids, "--results", str(tmp_path)])
    out = capfd.readouterr().out
    assert (
        f"A ran on a contended machine, so its times are unreliable: {SIGNS}" in out
        and "B ran on a contended machine" in out
    )


def test_a_table_takes_the_record_that_was_not_disturbed(tmp_path: Path) -> None:
    undisturbed = make(tmp_path, gamma=3)
    make(tmp_path, gamma=3, seed=1, disturbed=True, disturbed_by=SIGNS, created="2026-02-02T03:04:05+00:00")
    records, said = Records(tmp_path), list[str]()
    assert list(records.paper_runs["run_id"]) == [undisturbed]
    assert len(keep(records, said.append)) == 1 and "not kept, the machine was shared or held back" in said[0]


def test_a_disturbed_record_of_a_run_does_not_hide_its_kept_copy(tmp_path: Path) -> None:
    """Tables stay as they are; `show` and `results` have the newer record."""
    run_id = make(tmp_path, gamma=3)
    keep(Records(tmp_path), list[str]().append)
    file = store.record_file(tmp_path, run_id)
    record = store.read(file)
    disturbed = {"disturbed": True, "disturbed_by": SIGNS, "created": "2026-02-02T03:04:05+00:00"}
    store.write(tmp_path, {**record, "summary": {**record["summary"], **disturbed}})
    records = Records(tmp_path)
    assert list(records.paper_runs["run_id"]) == [run_id] and records.disturbed == []
    assert not records.whole(run_id)["summary"].get("disturbed")
    assert drawing_folder(records, tmp_path / "tables", list[str]().append) == tmp_path / "tables"
    assert [row["disturbed"] for row in Catalog(tmp_path).rows()] == [True]


def test_a_new_disturbed_record_leaves_the_committed_drawings_as_they_are(tmp_path: Path) -> None:
    make(tmp_path, gamma=3)
    keep(Records(tmp_path), list[str]().append)
    make(tmp_path, gamma=5, disturbed=True, disturbed_by=SIGNS)
    found = drawing_folder(Records(tmp_path), tmp_path / "tables", list[str]().append)
    assert found == tmp_path / "local" / "tables"


def test_an_empty_folder_has_no_disturbed_record(tmp_path: Path) -> None:
    assert Records(tmp_path).disturbed == [] and Records(tmp_path).chains.empty


def test_what_was_timed_while_it_waited_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it was quiet, three times at most; then the least disturbed time is used, and its share returned."""
    loads = [CoreTime(1.0, 1.0), CoreTime(0.96, 0.04), CoreTime(3.0, 1.0), CoreTime(1.0, 1.0), CoreTime(1.0, 2.0)]
    monkeypatch.setattr("specbench.analysis.costs.core_time.between", lambda *_: loads.pop(0))
    work = iter(range(9))
    assert least_disturbed(lambda: next(work)) == (1, pytest.approx(0.04)) and len(loads) == 3
    assert least_disturbed(lambda: next(work)) == (2, pytest.approx(0.25)) and not loads
    monkeypatch.setattr("specbench.analysis.costs.core_time.between", lambda *_: None)  # a system that does not tell
    assert least_disturbed(lambda: next(work)) == (5, None)


@pytest.mark.full
@pytest.mark.parametrize("chosen", ["gamma=auto", "gamma=adaptive", "tree=sequoia tree.size=auto gamma=tree"])
def test_a_disturbed_probe_of_a_run_is_repeated_and_named(
    folders: Folders, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch, short_probes: None, chosen: str
) -> None:
    """Before, v of a busy minute chose gamma, and nothing said so."""
    monkeypatch.setattr("specbench.analysis.costs.core_time.of_steps", of_steps)
    monkeypatch.setattr("specbench.analysis.costs.core_time.between", lambda *_: CoreTime(1.2, 0.8))
    argv = small_run(folders, tmp_path, "max_new_tokens=10", "limit=2", *chosen.split(), kind="gpt2")
    code, _, err, _ = called(argv, tmp_path, capfd)
    assert code == 0 and "its probe was contended, so that another" in err, err
    assert "40%" in err


@pytest.mark.full
@pytest.mark.parametrize("verb", ["recommend", "recommend --validate", "alpha"])
def test_times_of_other_verbs_are_marked(
    folders: Folders, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("specbench.analysis.costs.core_time.of_steps", of_steps)
    monkeypatch.setattr("specbench.analysis.costs.core_time.between", lambda *_: CoreTime(1.2, 0.8))
    timed = ["gammas=[1]", "rounds=2"] if verb != "alpha" else ["sampling.temperature=0"]
    argv = [
        *verb.split(), f"target.path={folders['gpt2']}", f"draft.path=[{folders['gpt2-draft']}]", "task=ende",
        f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "max_new_tokens=8",
        "tokens=20", "engine=eager", *timed,
        *(["repeats=1"] if verb == "recommend --validate" else []),
    ]  # fmt: skip
    assert main(argv) == 0
    out = capfd.readouterr().out
    (file,) = (tmp_path / verb.split()[-1].strip("-")).glob("*.json")
    document = json.loads(file.read_text())
    marked = document["settings"][0] if verb == "alpha" else document
    assert marked["disturbed_by"].startswith(SIGNS) and "CONTENDED" in out
    assert verb != "recommend" or (document["reasons"] == [NOT_CONCLUDED] and NOT_CONCLUDED in out)
    assert verb == "alpha" or [one["waited"] for one in document["rounds"]] == [pytest.approx(0.4)] * 2


@pytest.mark.full
def test_recommend_proves_nothing_by_it(folders: Folders, tmp_path: Path, capfd: Capture, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("specbench.analysis.summary.disturbance", disturbance)
    monkeypatch.setattr("specbench.experiment.measure.between", lambda *_: CoreTime(1.2, 0.8))
    argv = [
        "recommend", f"target.path={folders['gpt2']}", f"draft.path=[{folders['gpt2-draft']}]", "task=ende",
        f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "max_new_tokens=8",
        "tokens=20", "rounds=2", "resamples=100", "gammas=[1]", "engine=eager", "--verify", "1",
    ]  # fmt: skip
    assert main(argv) == 0
    out = capfd.readouterr().out
    (file,) = (tmp_path / "recommend").glob("*.json")
    (proof,) = json.loads(file.read_text())["verified"]
    assert proof["off"] is None and proof["disturbed_by"].startswith(SIGNS) and proof["measured"] is not None
    assert "CONTENDED, so its speedup is unreliable" in out


def test_a_step_draws_its_token_and_so_v_is_judged_with_what_accepting_costs() -> None:
    fast = FINE | {"speedup_measured": 2.8, "verify_cost": 0.85}
    assert impossible(fast) == [] and len(impossible(fast | {"overhead": 0.2})) == 1


def test_left_out_runs_are_named_with_the_command_that_repeats_them(tmp_path: Path, capsys: Capture) -> None:
    """In every table and figure, and under groups, with which they would be compared."""
    for gamma in (3, 5):
        make(tmp_path, gamma=gamma)
    contended = make(tmp_path, gamma=7, disturbed=True, disturbed_by=SIGNS)
    said = f"{contended.rpartition('-')[2]}; `specbench results --again`"
    records = Records(tmp_path)
    for table in tables.build([], records):
        assert any(said in note for note in table.notes), table.name
    for drawn in figures.build(["gamma", "beyond", "figure2"], records):
        assert any(said in note for note in drawn.notes), drawn.name
    assert main(["results", "--group-by", "gamma", f"--results={tmp_path}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert said in out and "fastest" in out


def test_contended_records_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    quiet, contended = make(tmp_path), make(tmp_path, gamma=5, disturbed=True, disturbed_by=SIGNS)
    again: list[str] = []
    monkeypatch.setattr("specbench.cli.regression.repeat", lambda catalog, results, names: again.extend(names))
    assert main(["results", "--again", f"--results={tmp_path}"]) == 0
    assert again == [contended] and quiet not in again
    assert f"1 measured again, contended again: {contended.rpartition('-')[2]}" in capsys.readouterr().out


def test_nothing_is_concluded_from_a_contended_run(tmp_path: Path) -> None:
    """A slow run says that it is slower than the target, and what its largest loss is; a contended one does not."""
    for disturbed in (False, True):
        more = {"disturbed": disturbed, "disturbed_by": SIGNS if disturbed else None}
        run_id = make(tmp_path, alpha=0.1, c=0.9, seed=int(disturbed), **more)
        record = store.read(store.record_file(tmp_path, run_id))
        assert (record["summary"]["speedup_measured"] or 1) < 0.9
        lines = remarks(record["summary"])
        assert any(line.startswith("slower than the target alone") for line in lines) != disturbed
        assert any("nothing is concluded" in line for line in lines) == disturbed
        assert (largest_loss({**record, "explanation": {}}) is None) == disturbed  # type: ignore[typeddict-item]
