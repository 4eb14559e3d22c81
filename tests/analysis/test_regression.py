"""`specbench compare --baseline` and `--history`: what moved is found, what did not is not, and files are checked."""

import copy
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from specbench.analysis.as_measurement import measurement
from specbench.analysis.baseline import baseline_of, between_processes, compare_with_baseline
from specbench.analysis.changepoints import steps
from specbench.analysis.changes import BETWEEN, FALSE_ALARMS, _normal, _student, adjusted, change
from specbench.analysis.contradictions import computed_again, contradictions
from specbench.cli import main
from specbench.compose.to_schema import config_of_record
from specbench.config.checks import check
from specbench.experiment.identity import identify
from specbench.records import store
from specbench.records.decoded import Pass
from specbench.records.measurements import PER_UNIT, QUANTITIES, Measurement, add_to_history
from tests.support.kept_records import HERE, heads
from tests.support.made_records import make
from tests.support.paths import ROOT

Capture = pytest.CaptureFixture[str]
EARLY, LATE = "2026-01-02T03:04:05+00:00", "2026-02-02T03:04:05+00:00"


# Lines made up: a value, contributions of prompts, and noise of a process.


def line(
    draw: np.random.Generator,
    *,
    factor: float = 1.0,
    name: str = "a",
    prompts: int = 20,
    noise: float = 0.03,
    between: float | None = None,
    created: str = EARLY,
    commit: str = "c0",
    others: str = "p",
) -> Measurement:
    """A measurement whose prompts differ by 30%, the same in each repeat, and by `noise` in each; T = 0, so that α
    never differs. A process differs by `between` (default: what the comparison allows for)."""
    own = np.random.default_rng(7).normal(0, 0.3, prompts)
    apart = draw.normal(0, noise, prompts)
    process = draw.normal(0, BETWEEN["speedup"] if between is None else between)
    speed = 1.5 * factor * float(np.exp(apart.mean() + process))
    shares = [round(PER_UNIT * one) for one in own + apart - (own + apart).mean()]
    return {
        "id": name, "config": f"config of {name}", "run_id": f"run-{name}", "commit": commit, "created": created,
        "hardware": "h", "device": "cpu", "dtype": "float32", "simulated": False, "lossless": True,
        "disturbed_by": None, "prompts": others,
        "quantities": {"alpha": (0.6, 0.5, 0.7), "speedup": (speed, None, None)},
        "by_prompt": {"alpha": [round(PER_UNIT * one) for one in own - own.mean()], "speedup": shares},
    }  # fmt: skip


def test_p_is_that_of_students_t() -> None:
    for freedom in (5, 19, 49):
        for t in (1.0, 2.5, 5.0):
            p = 2 * scipy.stats.norm.sf(_normal(t, freedom))
            assert p == pytest.approx(2 * scipy.stats.t.sf(t, freedom), rel=0.06)
            assert _student(_normal(t, freedom), freedom) == pytest.approx(t)


def test_q_is_that_of_benjamini_and_hochberg() -> None:
    ps = [0.001, 0.6, 0.03, 0.02, 1.0, 1e-6, 0.02]
    assert adjusted(ps) == pytest.approx(list(scipy.stats.false_discovery_control(ps)))
    assert adjusted([]) == []


@pytest.mark.statistical
def test_no_alarm_without_a_change_and_a_loss_of_a_tenth_is_found() -> None:
    """Comparisons of 8 configs each: 300 without a change, of which at most 1% may alarm, so that 9 or more do in less
    than one seed of 200; and 50 with a tenth less speed, of which 9 in 10 must."""
    draw = np.random.default_rng(1)

    def alarms(factor: float, repeats: int) -> int:
        found = 0
        for _ in range(repeats):
            before, after = ([line(draw, name=str(i), factor=f, created=day) for i in range(8)]
                             for f, day in ((1.0, EARLY), (factor, LATE)))  # fmt: skip
            found += compare_with_baseline(before, after).fails
        return found

    assert alarms(1.0, 300) <= 8
    assert alarms(0.9, 50) >= 45


@pytest.mark.statistical
def test_without_the_noise_between_processes_there_would_be_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BETWEEN, "speedup", 0.0)
    draw = np.random.default_rng(2)
    ps = [
        change([line(draw, noise=0.005, between=0.015)], [line(draw, noise=0.005, between=0.015)], "speedup")
        for _ in range(100)
    ]
    assert sum(one is not None and one.p < FALSE_ALARMS for one in ps) > 50


@pytest.mark.parametrize(("step_s", "moves"), [(1e-3, True), (1.03e-3, True), (1.3e-3, False)])
def test_a_speedup_counts_as_changed_only_beyond_the_change_of_the_targets_own_step(step_s: float, moves: bool) -> None:
    """A pass that takes a ninth longer, where the target alone is as fast, 3% or 30% slower than in the baseline."""
    draw = np.random.default_rng(6)
    before, after = line(draw, between=0.0), line(draw, between=0.0, factor=0.9, created=LATE)
    before["step_s"], after["step_s"] = 1e-3, step_s
    found = compare_with_baseline([before], [after])
    assert found.fails is moves
    assert found.tested[-1].change.ratio == pytest.approx(0.9, abs=0.03)  # the change that is shown is the whole one


@pytest.mark.statistical
def test_where_others_use_the_caches_there_are_no_false_alarms() -> None:
    """The target's own step differs by 20% between processes, the speedup by half of that: with steps that are known
    at most 8 of 300 comparisons alarm, without them most do."""
    draw = np.random.default_rng(9)

    def alarms(known: bool) -> int:
        found = 0
        for _ in range(300):
            pair = []
            for created in (EARLY, LATE):
                slower = float(np.exp(draw.normal(0, 0.2)))
                pair.append(line(draw, noise=0.005, factor=slower**0.5, created=created))
                if known:
                    pair[-1]["step_s"] = 1e-3 * slower
            found += compare_with_baseline([pair[0]], [pair[1]]).fails
        return found

    assert alarms(known=True) <= 8
    assert alarms(known=False) > 90


@pytest.mark.statistical
def test_the_noise_between_processes_is_estimated_over_that_of_prompts() -> None:
    """40 repeats know a deviation to 11%: 30% off is less than one seed in 100."""
    draw = np.random.default_rng(8)
    rows = [line(draw, noise=0.05, between=0.03) for _ in range(40)]
    assert between_processes(rows, "speedup") == pytest.approx(0.03, rel=0.3)
    assert between_processes(rows, "alpha") == 0


@pytest.mark.statistical
@pytest.mark.parametrize("others", ["p", "other prompts"])
def test_the_interval_of_a_change_covers_it(others: str) -> None:
    """200 pairs; of a 95% interval 180 or fewer cover with probability 0.2%. Of other prompts the interval is as much
    wider as prompts differ."""
    draw = np.random.default_rng(3)
    found = [change([line(draw)], [line(draw, factor=1.1, others=others)], "speedup") for _ in range(200)]
    assert sum(one is not None and one.low < 1.1 < one.high for one in found) > 180
    widths = [one.high / one.low for one in found if one is not None]
    assert (np.median(widths) > 1.3) == (others != "p")


def test_equal_values_are_no_change_and_a_certain_one_is_found() -> None:
    draw = np.random.default_rng(4)
    a, b = line(draw), line(draw)
    same = change([a], [b], "alpha")
    assert same is not None and same.p == 1 and same.paired == 20
    b["quantities"]["alpha"] = (0.6 * 0.95, 0.5, 0.7)  # each prompt lost the same share
    lost = change([a], [b], "alpha")
    assert lost is not None and lost.p < 1e-9 and lost.ratio == pytest.approx(0.95)


def test_an_alpha_of_nothing_has_a_ratio_only_where_it_fell() -> None:
    draw = np.random.default_rng(4)
    some, none = line(draw), line(draw)
    none["quantities"]["alpha"] = (0.0, None, None)
    found = [change([a], [b], "alpha") for a, b in ((some, none), (none, some), (none, none))]
    assert [(one.ratio, one.p) for one in found if one is not None] == [(0, 0), (float("inf"), 0), (1, 1)]


def test_one_prompt_that_differs_is_no_alarm() -> None:
    """As rounding makes them: one token of one prompt."""
    draw = np.random.default_rng(4)
    a, b = line(draw), line(draw)
    b["by_prompt"]["alpha"] = [*b["by_prompt"]["alpha"]]
    b["by_prompt"]["alpha"][3] += 10
    b["quantities"]["alpha"] = (0.6 * (1 + 0.1 / 20), 0.5, 0.7)
    found = change([a], [b], "alpha")
    assert found is not None and found.p > 0.2


# Kept records, repeated: their own steps and passes drawn again, and the noise of a process.


def repeated(
    record: Any, draw: np.random.Generator, *, rejected: float = 0.0, slower: float = 0.0, created: str = LATE
) -> Any:
    """The record of a run of the same config without a change: the times of its steps and passes drawn again within
    each prompt, times the factors of a process. Simulated. `rejected`: a share of accepted tokens that is rejected;
    `slower`: what passes take longer."""
    step, verify = np.exp(draw.normal(0, BETWEEN["speedup"] / np.sqrt(2), 2))
    drafting = verify * np.exp(draw.normal(0, 0.01))
    prompts = []
    for old in record["prompts"]:
        one = {**old, "baseline": replace(old["baseline"]), "speculative": replace(old["speculative"])}
        alone, ours = one["baseline"], one["speculative"]
        steps_s = np.array(alone.steps_s)
        alone.steps_s = list(draw.choice(steps_s, len(steps_s)) * step)
        alone.decode_s = sum(alone.steps_s)
        passes: list[Pass] = []
        for a_pass in ours.passes:
            alike = [other for other in ours.passes if other.drafted == a_pass.drafted]
            times = alike[draw.integers(len(alike))]
            slow = replace(
                a_pass,
                draft_s=times.draft_s * drafting * (1 + slower),
                verify_s=times.verify_s * verify * (1 + slower),
                accept_s=times.accept_s * verify * (1 + slower),
            )  # fmt: skip
            passes += split(slow, draw, rejected)
        ours.passes = passes
        ours.decode_s = sum(p.draft_s + p.verify_s + p.accept_s for p in passes)
        one["beta"] = list(np.array(old["beta"]) * (draw.random(len(old["beta"])) >= rejected))
        prompts.append(one)
    return {**record, "summary": {**record["summary"], "created": created}, "prompts": prompts}


def split(a_pass: Pass, draw: np.random.Generator, rejected: float) -> list[Pass]:
    """The passes instead of one of which each accepted token is rejected with this probability; the tokens after a
    rejected one are decoded by one pass more."""
    lost = np.flatnonzero(draw.random(a_pass.accepted) < rejected)
    if not len(lost):
        return [a_pass]
    kept = int(lost[0])
    rest = replace(a_pass, accepted=a_pass.accepted - kept - 1, emitted=a_pass.emitted - kept - 1)
    return [replace(a_pass, accepted=kept, emitted=kept + 1), *([rest] if rest.emitted > 0 else [])]


def some_records() -> list[Any]:
    """Four kept records of the shipped pairs: chains with models and without, at T = 0 and T = 1."""
    chains = [head for head in heads() if head.summary.get("tree") is None and head.summary["accept"] == "exact"]
    found = [
        next(h for h in chains if h.summary["draft"] == draft and h.summary["temperature"] == temperature)
        for draft in ("t5-nano", "bigram")
        for temperature in (0, 1)
    ]
    return [store.read(head.file) for head in found]


@HERE
@pytest.mark.full
@pytest.mark.statistical
def test_repeats_of_kept_records() -> None:
    """50 repeats without a change: at most one alarm (each alarms with a probability of 1% at most, so that two do in
    less than one seed of 10). A loss of 5% of α or 10% of speed: found in 9 of 10.

    Each repeat is compared with a draw of its own: one draw for all would make their alarms one event.
    """
    records, draw = some_records(), np.random.default_rng(5)

    def drawn(**options: Any) -> list[Any]:
        return [measurement(repeated(record, draw, **options)) for record in records]

    def found(repeats: int, **planted: float) -> list[set[str]]:
        compared = [compare_with_baseline(drawn(created=EARLY), drawn(**planted)) for _ in range(repeats)]
        return [{one.quantity for one in each.tested if one.fails} for each in compared]

    assert sum(map(bool, found(50))) <= 1
    assert sum({"alpha", "tokens_per_pass"} <= one for one in found(20, rejected=0.05)) >= 18
    assert sum("speedup" in one for one in found(20, slower=1 / 9)) >= 18


@HERE
def test_each_kept_record_is_a_line() -> None:
    lines = {}
    for head in heads():
        if head.summary["draft"] in ("unigram", "t5-nano", "early-exit"):
            lines[head.run_id] = measurement(store.read(head.file))
    assert len({row["id"] for row in lines.values()}) == len(lines) > 10


@pytest.mark.full
@HERE
def test_the_config_of_each_kept_record_runs_again_under_its_id() -> None:
    for head in (head for head in heads() if not head.summary.get("served")):  # of servers: another kind of config
        config = config_of_record(head.config)
        if config.target.path is not None:  # weights that are not ours, in a folder
            continue
        check(config)
        assert identify(config) == head.run_id


def test_a_line_has_the_records_own_numbers(tmp_path: Path) -> None:
    record = store.read(store.record_file(tmp_path, make(tmp_path, temperature=1.0)))
    row, summary = measurement(record), record["summary"]
    columns = {"alpha": "alpha", "tokens_per_pass": "tokens_per_pass", "speedup": "speedup_measured", "c": "c",
               "v": "verify_cost"}  # fmt: skip
    for name, column in columns.items():
        value, low, high = row["quantities"][name]  # type: ignore[index]
        assert value == pytest.approx(summary[column], rel=1e-5)  # type: ignore[literal-required]
        assert low is not None and high is not None and low <= value <= high
        assert len(row["by_prompt"][name]) == summary["prompts"]  # type: ignore[index]
    assert row["quantities"]["speedup"][1] == pytest.approx(summary["speedup_low"], rel=0.1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_real_repeats_and_planted_losses(tmp_path: Path) -> None:
    """The shipped pair in 71 fresh processes; a quiet machine needs some minutes. Fails if more than one repeat alarms,
    or if fewer than 9 of 10 losses are found."""
    command = [sys.executable, str(ROOT / "tools" / "power.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# The command.


@pytest.fixture
def check_against(tmp_path: Path, capfd: Capture) -> Callable[..., tuple[int, str, str]]:
    """A baseline of two records, and the outcome of comparing records with it: exit code, output, errors."""
    file = tmp_path / "baseline.jsonl"
    for gamma in (3, 5):
        make(tmp_path / "old", gamma=gamma)
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path / "old"), "--write"]) == 0
    capfd.readouterr()

    def run(results: str, *words: str) -> tuple[int, str, str]:
        code = main(["compare", "--baseline", str(file), "--results", str(tmp_path / results), *words])
        return code, *capfd.readouterr()

    return run


def changed(folder: Path, run_id: str, results: Path, **summary: Any) -> None:
    """A later record of the same config."""
    record = store.read(store.record_file(folder, run_id))
    store.write(results, {**record, "summary": {**record["summary"], "created": LATE, **summary}})  # type: ignore


def test_a_baseline_has_a_line_for_each_record_and_compares_it(
    check_against: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    rows = [json.loads(one) for one in (tmp_path / "baseline.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and {*rows[0]["quantities"]} == {*QUANTITIES} - {"memory"}
    code, out, err = check_against("old")
    assert code == 0 and "2 records that the baseline was made of" in err
    for run_id in [row["run_id"] for row in rows]:
        changed(tmp_path / "old", run_id, tmp_path / "new")
    code, out, err = check_against("new")
    assert (code, err) == (0, "") and out.startswith("2 records compared, 10 quantities: 0 moved")


def test_what_moved_is_named_with_its_commit(
    check_against: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    one, two = [json.loads(row)["run_id"] for row in (tmp_path / "baseline.jsonl").read_text().splitlines()]
    changed(tmp_path / "old", two, tmp_path / "new")
    record = copy.deepcopy(store.read(store.record_file(tmp_path / "old", one)))
    record["summary"]["created"] = LATE
    for prompt in record["prompts"]:
        prompt["beta"] = [0.9 * beta for beta in prompt["beta"]]
        prompt["speculative"].decode_s /= 0.8
    record["summary"] |= computed_again(record["prompts"])
    store.write(tmp_path / "new", record)
    code, out, _ = check_against("new", "--format", "json")
    found = json.loads(out)
    assert code == 1 and found["fails"] and {row["quantity"] for row in found["moved"]} == {"alpha", "speedup"}
    assert all(row["run_id"] == one and row["q"] <= FALSE_ALARMS for row in found["moved"])
    assert found["moved"][0]["ratio"] == pytest.approx(0.9) and found["moved"][0]["paired"] == 20
    code, out, _ = check_against("new")
    assert "-10.0%" in out and "-20.0%" in out and "no commit 2026-01-02" in out
    assert check_against("new", "--margin", ".15")[1].count(one) == 1
    assert check_against("new", "--margin", ".3")[0] == 0
    code, out, _ = check_against("new", "--format", "csv")
    assert sum(row["moved"] == "True" for row in csv.DictReader(out.splitlines())) == 2


def test_a_gain_of_speed_is_told_and_passes(check_against: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    for file in store.runs_folder(tmp_path / "old").glob("*.json"):
        record = copy.deepcopy(store.read(file))
        record["summary"]["created"] = LATE
        for prompt in record["prompts"]:
            prompt["speculative"].decode_s *= 0.8
        record["summary"] |= computed_again(record["prompts"])
        store.write(tmp_path / "new", record)
    code, out, _ = check_against("new")
    assert code == 0 and out.count("better") == 2 and "+25.0%" in out


@pytest.mark.parametrize(
    ("summary", "code", "said"),
    [
        ({"disturbed": True, "disturbed_by": "it waited"}, 1, "contended, its times are not compared (it waited)"),
        ({"lossless": False, "speedup_measured": None}, 1, "completions are not the target's own"),
        ({"lossless": False, "lossy": True}, 0, ""),
        ({"hardware": "another"}, 0, "1 records of which only α and tokens per pass are compared"),
        ({"device": "cuda:0", "hardware": "a GPU"}, 2, "has none of these 1 records' configs; --write adds them"),
    ],
)
def test_records_that_are_not_compared(
    check_against: Callable[..., tuple[int, str, str]], tmp_path: Path, summary: dict[str, Any], code: int, said: str
) -> None:
    run_id = json.loads((tmp_path / "baseline.jsonl").read_text().splitlines()[0])["run_id"]
    changed(tmp_path / "old", run_id, tmp_path / "new", **summary)
    found, out, err = check_against("new")
    assert found == code and said in err
    # '0 moved, 0 fail' stood above the line of a failure.
    assert (code == 1) == ("0 fail; 1 record fails for another reason" in out)


def more_emitted(record: Any) -> None:
    for prompt in record["prompts"]:
        prompt["speculative"].passes[0].emitted += 1
    record["summary"] |= computed_again(record["prompts"])


def fewer_passes(record: Any) -> None:
    del record["prompts"][0]["speculative"].passes[-1]
    record["summary"] |= computed_again(record["prompts"])


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda record: record["summary"].update(tokens_per_pass=record["summary"]["tokens_per_pass"] + 1),
         "its summary says tokens_per_pass"),
        (lambda record: record["summary"].update(alpha=record["summary"]["alpha"] + 0.01), "its summary says alpha"),
        (lambda record: record["summary"].update(speedup_measured=9.0), "its summary says speedup_measured 9,"),
        (more_emitted, "prompt 0: its passes emitted"),
        (fewer_passes, "prompt 0: its passes emitted"),
    ],
)  # fmt: skip
def test_a_record_that_contradicts_itself_fails_and_is_left_out(
    check_against: Callable[..., tuple[int, str, str]], tmp_path: Path, plant: Callable[[Any], None], said: str
) -> None:
    run_id = json.loads((tmp_path / "baseline.jsonl").read_text().splitlines()[0])["run_id"]
    record = copy.deepcopy(store.read(store.record_file(tmp_path / "old", run_id)))
    assert contradictions(record) == []
    record["summary"]["created"] = LATE
    plant(record)
    store.write(tmp_path / "new", record)
    for more in ((), ("--counted",)):
        code, out, err = check_against("new", *more)
        assert code == 1 and f"failed: {run_id}: {said}" in err
        assert "1 record fails for another reason" in out
    before = (tmp_path / "baseline.jsonl").read_text()
    code, out, err = check_against("new", "--write")
    assert code == 0 and "2 measurements, 0 of them" in out and f"left out: {run_id}: {said}" in err
    assert (tmp_path / "baseline.jsonl").read_text() == before


def test_another_dtype_is_another_measurement_and_other_hardware_is_not_missing() -> None:
    draw = np.random.default_rng(4)
    a, elsewhere, left_out = (line(draw, name=name) for name in "abc")
    elsewhere = {**elsewhere, "config": a["config"], "hardware": "other"}
    now = {**a, "created": LATE}
    found = compare_with_baseline([a, elsewhere, left_out], [now])
    assert (found.missing, found.elsewhere, len(found.compared), found.untimed) == (1, 0, 1, [])
    found = compare_with_baseline([a], [{**now, "id": "d", "dtype": "bfloat16"}])
    assert len(found.unknown) == 1 and not found.tested
    found = compare_with_baseline([a], [{**now, "id": "d", "hardware": "other"}])
    assert len(found.untimed) == 1 and {one.quantity for one in found.tested} == {"alpha"}


def test_write_keeps_other_lines_and_says_what_has_no_times(
    check_against: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    make(tmp_path / "gpu", device="cuda:0", hardware="a GPU", disturbed=True, disturbed_by="it waited")
    code, out, err = check_against("gpu", "--write")
    assert code == 0 and "3 measurements, 1 of them" in out and "contended, only its α" in err
    assert "2 lines of the baseline of another kind of device" in check_against("gpu")[2]
    # A disturbed record does not replace a line that has times.
    rows = [json.loads(one) for one in (tmp_path / "baseline.jsonl").read_text().splitlines()]
    again = baseline_of([{**rows[0], "created": LATE, "disturbed_by": "x", "quantities": {}}], rows)
    assert all(row["quantities"] for row in again)


def test_a_baseline_without_a_speed_fails(tmp_path: Path, capfd: Capture) -> None:
    file, run_id = tmp_path / "b.jsonl", make(tmp_path / "old", disturbed=True, disturbed_by="it waited")
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path / "old"), "--write"]) == 0
    changed(tmp_path / "old", run_id, tmp_path / "new", disturbed=False)
    capfd.readouterr()
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path / "new")]) == 1
    assert "has no speedup of these configs, so that no loss of speed would be found" in capfd.readouterr().err
    make(tmp_path / "other", gamma=5)
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path / "other"), "--write"]) == 0
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path / "new")]) == 1


def test_records_of_one_prompt_are_not_compared(tmp_path: Path, capfd: Capture) -> None:
    file, run_id = tmp_path / "b.jsonl", make(tmp_path / "old", prompts=1)
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path / "old"), "--write"]) == 0
    changed(tmp_path / "old", run_id, tmp_path / "new")
    capfd.readouterr()
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path / "new")]) == 2
    assert "records of one prompt cannot be compared" in capfd.readouterr().err


def test_counts_alone_are_compared_whatever_disturbs_the_machine(tmp_path: Path, capfd: Capture) -> None:
    signs = {"disturbed": True, "disturbed_by": "it waited"}
    file, run_id = tmp_path / "b.jsonl", make(tmp_path / "old")
    given = ["compare", "--baseline", str(file), "--counted", "--results"]
    assert main([*given, str(tmp_path / "old"), "--write"]) == 0
    (row,) = [json.loads(one) for one in file.read_text().splitlines()]
    assert {*row["quantities"]} == {*row["by_prompt"]} == {"alpha", "tokens_per_pass"}
    changed(tmp_path / "old", run_id, tmp_path / "new", **signs)
    assert main([*given, str(tmp_path / "new")]) == 0
    record = copy.deepcopy(store.read(store.record_file(tmp_path / "new", run_id)))
    for prompt in record["prompts"]:
        prompt["beta"] = [0.9 * beta for beta in prompt["beta"]]
    store.write(tmp_path / "new", record)
    assert main([*given, str(tmp_path / "new")]) == 1
    assert main(["compare", "--baseline", str(tmp_path / "c.jsonl"), f"--results={tmp_path}/old", "--write"]) == 0
    capfd.readouterr()
    times = ["compare", "--baseline", str(tmp_path / "c.jsonl"), "--counted", f"--results={tmp_path}/old", "--write"]
    assert main(times) == 2 and "c.jsonl has times, which --write would remove" in capfd.readouterr().err
    assert main(["compare", "a", "b", "--counted"]) == 2 and "--counted: requires" in capfd.readouterr().err


@pytest.mark.full
def test_again_measures_disturbed_records_once_more(tmp_path: Path, capfd: Capture) -> None:
    words = ["target=t5-mini", "draft=random", "limit=2", "max_new_tokens=4", "warmup=0", "dtype=float32"]
    results = tmp_path / "results"
    assert main(["run", *words, f"results={results}"]) == 0
    (file,) = store.runs_folder(results).glob("*.json")
    record = store.read(file)
    store.write(results, {**record, "summary": {**record["summary"], "disturbed": True, "created": EARLY,
                                                "disturbed_by": "it waited"}})  # fmt: skip
    capfd.readouterr()
    assert main(["compare", f"--baseline={tmp_path}/b.jsonl", f"--results={results}", "--write", "--again"]) == 0
    assert f"contended, measured again: {record['run_id']}" in capfd.readouterr().err
    assert store.read(file)["summary"]["created"] != EARLY
    assert len(list(store.runs_folder(results).glob("*.json"))) == 1


@pytest.mark.parametrize(
    "content",
    ["{}", "[1]", "[{}]", "x", '{"id": "a"}', "LINE", "NAN", "LESS", "RUNS"],
    ids=lambda text: text.replace("/", ""),
)
def test_a_file_that_is_no_baseline_is_one_line(
    check_against: Callable[..., tuple[int, str, str]], tmp_path: Path, content: str
) -> None:
    file = tmp_path / "baseline.jsonl"
    row = json.loads(file.read_text().splitlines()[0])
    broken = {
        "LINE": {**row, "quantities": {"alpha": [None, 1, 2]}}, "NAN": {**row, "by_prompt": {"alpha": ["x"]}},
        "LESS": {key: value for key, value in row.items() if key != "prompts"}, "RUNS": {**row, "runs": 0},
    }  # fmt: skip
    file.write_text((json.dumps(broken[content]) if content in broken else content) + "\n")
    code, _, err = check_against("old")
    assert code == 2 and "line 1: is not a measurement" in err and err.count("\n") == 1


def test_no_records_and_no_file(tmp_path: Path, capfd: Capture) -> None:
    for words in ([], ["--write"]):
        assert main(["compare", "--baseline", str(tmp_path / "none"), "--results", str(tmp_path), *words]) == 2
        assert "it has no records" in capfd.readouterr().err
    make(tmp_path)
    assert main(["compare", "--baseline", str(tmp_path / "none"), "--results", str(tmp_path)]) == 2
    err = capfd.readouterr().err
    assert "--write makes it from records" in err and err.count("cannot be read") == 1
    assert main(["compare", "--history", "--results", str(tmp_path)]) == 2
    assert "--history --write adds records" in capfd.readouterr().err


# The history.


def series(draw: np.random.Generator, factors: list[float], name: str = "a") -> list[Measurement]:
    return [
        line(draw, factor=factor, name=name, created=f"2026-01-{day:02d}T00:00:00+00:00", commit=f"c{day}")
        for day, factor in enumerate(factors, 1)
    ]


@pytest.mark.statistical
def test_no_step_without_a_change() -> None:
    """100 histories of 3 configs over 10 commits: at most 1% has a step, so that 5 or more do in less than one seed of
    200."""
    draw = np.random.default_rng(6)
    assert sum(bool(steps([series(draw, [1.0] * 10, name) for name in "abc"], ["speedup"])) for _ in range(100)) <= 4


@pytest.mark.statistical
def test_steps_are_found_where_they_are() -> None:
    """Two steps of a tenth: both found in 9 of 10 histories, at the commit or beside it."""
    draw, found = np.random.default_rng(6), 0
    for _ in range(20):
        rows = series(draw, [1.0] * 5 + [0.88] * 5 + [1.0] * 5)
        places = sorted(
            int(one.first["commit"][1:]) for one in steps([rows, series(draw, [1.0] * 15, "b")], QUANTITIES)
        )  # type: ignore[index]
        found += len(places) == 2 and abs(places[0] - 6) <= 1 and abs(places[1] - 11) <= 1
    assert found >= 18


def test_the_history_is_written_once_and_drawn(tmp_path: Path, capfd: Capture) -> None:
    command = ["compare", "--history", "--results", str(tmp_path)]
    record = store.read(store.record_file(tmp_path, make(tmp_path)))
    for month in range(1, 7):
        record["summary"]["created"] = f"2026-{month:02d}-02T03:04:05+00:00"
        record["environment"]["commit"] = f"{month}abcdef0"
        for prompt in record["prompts"]:
            prompt["speculative"].decode_s /= 0.8 if month == 5 else 1.0
        record["summary"] |= computed_again(record["prompts"])
        store.write(tmp_path, record)
        if month < 6:
            assert add_to_history(tmp_path, [measurement(record)]) == 1
    capfd.readouterr()
    assert main([*command, "--write", "--format", "json"]) == 0
    out, err = capfd.readouterr()
    assert "1 measurements added" in err and add_to_history(tmp_path, [measurement(record)]) == 0
    (step,) = json.loads(out)
    assert step["quantity"] == "speedup" and step["at"] == "5abcdef0" and step["after"] == "4abcdef0"
    assert step["ratio"] == pytest.approx(0.8, rel=1e-4)
    folder = tmp_path / "history"
    assert {file.name for file in folder.iterdir()} == {"history.csv", "history.png", "history.svg"} | {
        f"2026-{month:02d}.jsonl" for month in range(1, 7)
    }
    shutil.rmtree(tmp_path / "runs")
    assert main([*command, f"--output={tmp_path}/drawn"]) == 0
    assert "1 configs, 6 measurements, 6 commits: 1 steps" in capfd.readouterr().out
    assert (tmp_path / "drawn" / "history.svg").is_file()
