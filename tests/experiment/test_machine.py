"""A record names its machine, and a machine that was held back or shared is seen."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from specbench import environment
from specbench.analysis.costs.disturbance import of_states
from specbench.analysis.summary import energy
from specbench.cli import main
from specbench.config.keys import bytes_of
from specbench.engine.buffers import BufferPool
from specbench.engine.capture.lower import PackedWeights
from specbench.engine.capture.static import StaticModel
from specbench.experiment import machine as machines
from specbench.experiment.gpu_state import Nvml, Smi, reasons_in
from specbench.experiment.machine import Machine, memory_speed
from specbench.experiment.memory import bytes_held
from specbench.experiment.meter import Meter, spent, zones
from specbench.records import store
from specbench.records.decoded import Trace
from specbench.records.frame import Records
from specbench.records.keeping import keep
from tests.support.calls import called, refusal, small_run
from tests.support.made_records import make
from tests.support.schema_faults import faults_of

Capture = pytest.CaptureFixture[str]
CPU = torch.device("cpu")
CUDA = torch.device("cuda")
CPUINFO = """processor\t: 0
model name\t: A Processor
microcode\t: 0x2b
flags\t\t: fpu sse2 avx2 avx512f amx_bf16

processor\t: 1
model name\t: Another
"""


def plant(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content) if isinstance(content, bytes) else file.write_text(f"{content}\n")


def planted_system(root: Path, cap: int = 3600000) -> None:
    """Two cores of two threads, with one frequency policy and three caches."""
    cpus = "sys/devices/system/cpu"
    plant(root, {"proc/cpuinfo": CPUINFO, "proc/meminfo": "MemTotal:   1000 kB\nMemFree: 1 kB"})
    for number in range(4):
        plant(root, {f"{cpus}/cpu{number}/topology/thread_siblings_list": f"{number % 2},{number % 2 + 2}"})
    for index, cache in enumerate(((1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1M"))):
        for name, value in zip(("level", "type", "size"), cache, strict=True):
            plant(root, {f"{cpus}/cpu0/cache/index{index}/{name}": value})
    policy = f"{cpus}/cpufreq/policy0"
    plant(root, {f"{policy}/cpuinfo_max_freq": 3600000, f"{policy}/cpuinfo_min_freq": 800000})
    plant(root, {f"{policy}/scaling_max_freq": cap, f"{policy}/scaling_governor": "powersave"})
    plant(root, {f"{cpus}/cpu{number}/thermal_throttle/core_throttle_count": number for number in range(4)})


def test_the_system_tells_what_the_machine_is(tmp_path: Path) -> None:
    planted_system(tmp_path)
    assert Machine(CPU, tmp_path).record() == {
        "processor": "A Processor", "cores": 2, "threads": 4, "caches": {"L1d": 32768, "L1i": 65536, "L2": 1048576},
        "vectors": ["amx_bf16", "avx512f", "avx2"], "memory_bytes": 1024000, "memory_mts": None,
        "governor": "powersave", "least_mhz": 800.0, "most_mhz": 3600.0, "microcode": "0x2b",
    }  # fmt: skip
    assert Machine(CPU, tmp_path).state() == {"cap": 1.0, "overheated": 6}


def test_a_system_that_tells_nothing_leaves_gaps(tmp_path: Path) -> None:
    found = Machine(CPU, tmp_path)
    assert found.state() is None and not any(found.record().values())


def test_a_frequency_cap_is_read(tmp_path: Path) -> None:
    planted_system(tmp_path, cap=1800000)
    assert (Machine(CPU, tmp_path).state() or {}).get("cap") == 0.5


def test_memory_speed_is_read_from_smbios(tmp_path: Path) -> None:
    """The slowest module counts; a structure of another type, an empty slot, and strings between them do not."""

    def structure(kind: int, length: int, speed: int = 0, strings: bytes = b"\0") -> bytes:
        body = bytearray(length)
        body[0], body[1] = kind, length
        if length > 0x21:
            body[0x20:0x22] = speed.to_bytes(2, "little")
        return bytes(body) + strings + b"\0"

    table = structure(16, 23, strings=b"a name\0") + structure(17, 40, 4800, b"DIMM\0maker\0")
    plant(tmp_path, {"DMI": table + structure(17, 40, 0) + structure(17, 40, 4400) + structure(127, 4)})
    assert memory_speed(tmp_path / "DMI") == 4400
    plant(tmp_path, {"cut": table[:60], "odd": b"\x11\x00\x00\x00" + b"\0" * 60})
    assert memory_speed(tmp_path / "cut") is None and memory_speed(tmp_path / "odd") is None
    assert memory_speed(tmp_path / "none") is None


# A GPU.


class Error(Exception):
    pass


class FakeNvml:
    """What `pynvml` answers; an answer that is missing is an error of the library."""

    NVMLError = Error

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)
        answer = self.answers[name]

        def call(*_: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def test_nvml_is_asked_and_an_answer_may_be_missing() -> None:
    full = Nvml(
        FakeNvml(
            nvmlDeviceGetName=b"NVIDIA H100", nvmlSystemGetDriverVersion="550.1", nvmlDeviceGetMaxClockInfo=1980,
            nvmlDeviceGetEnforcedPowerLimit=700000, nvmlDeviceGetTemperatureThreshold=87, nvmlDeviceGetClockInfo=1755,
            nvmlDeviceGetTemperature=61, nvmlDeviceGetPowerUsage=312500,
            nvmlDeviceGetComputeRunningProcesses=[1, 2, 3], nvmlDeviceGetCurrentClocksThrottleReasons=0x45,
            nvmlDeviceGetTotalEnergyConsumption=5000,
        ), None,
    )  # fmt: skip
    assert full.record() == {
        "name": "NVIDIA H100", "driver": "550.1", "most_clock_mhz": 1980.0, "most_memory_clock_mhz": 1980.0,
        "power_limit_w": 700.0, "slowdown_c": 87.0,
    }  # fmt: skip
    assert full.state() == {
        "clock_mhz": 1755.0, "memory_clock_mhz": 1755.0, "temperature_c": 61.0, "power_w": 312.5,
        "throttled": ["power limit", "heat (hardware)"], "others": 2,
    }  # fmt: skip
    assert full.joules() == 5.0 and full.no_energy is None
    empty = Nvml(FakeNvml(nvmlDeviceGetName=Error("not supported")), None)
    assert not any(empty.record().values()) and empty.no_energy == "this GPU counts no energy"
    state = empty.state()
    assert state is not None and state["others"] is None and state["throttled"] == []


def test_idle_and_chosen_clocks_are_no_throttling() -> None:
    assert reasons_in(0x1 | 0x2 | 0x10 | 0x100) == [] and reasons_in(0x20) == ["heat"]


def test_nvidia_smi_is_asked_where_nvml_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:
        assert "--id=GPU-7" in command
        asked = next(word for word in command if word.startswith("--query"))
        if asked.startswith("--query-compute-apps"):
            return SimpleNamespace(stdout="12\n34\n")
        values = {"name": "A GPU", "clocks_throttle_reasons.active": "0x0000000000000004", "power.draw": "[N/A]"}
        return SimpleNamespace(stdout=", ".join(values.get(one, "5") for one in asked.split("=")[1].split(",")) + "\n")

    monkeypatch.setattr("specbench.experiment.gpu_state.subprocess.run", run)
    one = Smi("GPU-7")
    state = one.state()
    assert one.record()["name"] == "A GPU" and one.joules() is None and state is not None
    assert (state["clock_mhz"], state["power_w"], state["throttled"], state["others"]) == (
        5.0,
        None,
        ["power limit"],
        1,
    )
    monkeypatch.setattr(
        "specbench.experiment.gpu_state.subprocess.run", lambda *_, **__: (_ for _ in ()).throw(OSError)
    )
    assert Smi("GPU-7").state() is None and Smi("GPU-7").record()["name"] is None


def test_a_slow_source_is_read_rarely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]

    class Slow:
        is_slow = True

        def state(self) -> dict[str, object]:
            now[0] += 0.1
            return {"others": 0}

    monkeypatch.setattr(machines, "gpu_of", lambda _: Slow())
    monkeypatch.setattr(machines.time, "perf_counter", lambda: now[0])
    machine, read = Machine(CUDA, tmp_path), 0
    while now[0] < 20:
        read += machine.state() is not None
        now[0] += 0.05
    assert 0.03 < read * 0.1 / now[0] < 0.06


# Energy and the peak.


def test_a_counter_that_begins_again_is_read_right() -> None:
    assert spent([900.0, 5.0], [100.0, 25.0], [1000, 1000]) == pytest.approx((200 + 20) / 1e6)
    assert spent([2.0], [5.5], []) == 3.5


def test_energy_and_the_peak_are_read_around_a_decoding(tmp_path: Path) -> None:
    powercap = "sys/class/powercap"
    for zone, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:1", "psys")):
        plant(tmp_path, {f"{powercap}/{zone}/name": name, f"{powercap}/{zone}/energy_uj": 900})
        plant(tmp_path, {f"{powercap}/{zone}/max_energy_range_uj": 1000})
    plant(tmp_path, {"proc/self/status": "Name: x\nVmHWM:\t 2048 kB", "proc/self/clear_refs": ""})
    assert [zone.counter.parent.name for zone in zones(tmp_path / powercap)] == ["intel-rapl:0"]
    meter = Meter(CPU, None, tmp_path)
    assert meter.no_energy is None

    def work() -> str:
        plant(tmp_path, {f"{powercap}/intel-rapl:0/energy_uj": 400})
        return "done"

    result, used = meter.measured(work)
    assert result == "done" and used == {"joules": pytest.approx(500e-6), "peak_bytes": 2048 * 1024}
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"
    (tmp_path / powercap / "intel-rapl:0/energy_uj").unlink()
    locked = Meter(CPU, None, tmp_path)
    assert "may not be read" in str(locked.no_energy) and "joules" not in locked.measured(work)[1]


def test_energy_of_a_token_needs_every_prompt() -> None:
    def prompt(joules: float | None) -> Any:
        used = {} if joules is None else {"used": {way: {"joules": joules} for way in ("baseline", "speculative")}}
        return {"baseline": Trace([1, 2], 0.1, 0.1), "speculative": Trace([1, 2, 3, 4], 0.1, 0.1)} | used

    assert energy([prompt(2.0), prompt(4.0)]) == {"joules_per_token": 0.75, "joules_per_token_baseline": 1.5}
    assert energy([prompt(2.0), prompt(None)]) == {"joules_per_token": None, "joules_per_token_baseline": None}


# What disturbs: planted cases are marked in 95% at least, clean ones in 1% at most.


def gpu_state(draw: np.random.Generator, **planted: Any) -> dict[str, Any]:
    """A GPU that nothing disturbs: its clock within 3%, a reason for lower clocks in one reading of 500."""
    blip = ["power limit"] if draw.random() < 0.002 else []
    return {
        "clock_mhz": float(1980 * (1 - 0.03 * draw.random())), "memory_clock_mhz": 2619.0,
        "temperature_c": float(draw.uniform(40, 70)), "power_w": 300.0, "throttled": blip, "others": 0,
    } | planted  # fmt: skip


def planted_states(draw: np.random.Generator, fault: str | None) -> list[list[dict[str, Any]]]:
    """The states beside 20 prompts; a fault lasts for a fifth of them or more, from some prompt on."""
    lasting = int(draw.integers(4, 21))
    first = int(draw.integers(0, 21 - lasting))
    states, count = [], int(draw.integers(0, 1000))
    for number in range(20):
        now, both = fault if first <= number < first + lasting else None, []
        for _ in range(2):
            state: dict[str, Any] = {"cap": 1.0, "overheated": count, "gpu": gpu_state(draw)}
            if now == "heat":
                state["gpu"] = gpu_state(draw, throttled=["heat"], temperature_c=88.0)
            elif now == "clock":
                state["gpu"] = gpu_state(draw, clock_mhz=float(1980 * draw.uniform(0.3, 0.78)))
            elif now == "neighbour":
                state["gpu"] = gpu_state(draw, others=int(draw.integers(1, 4)))
            elif now == "cap":
                state["cap"] = float(draw.uniform(0.2, 0.88))
            elif now == "overheated":
                count += int(draw.integers(1, 5))
                state["overheated"] = count
            both.append(state)
        states.append(both)
    return states


@pytest.mark.statistical
@pytest.mark.parametrize("fault", [None, "heat", "clock", "neighbour", "cap", "overheated"])
def test_planted_disturbances_are_marked_and_clean_runs_are_not(fault: str | None) -> None:
    """Seeded; of 400 runs each."""
    draw = np.random.default_rng(39)
    marked = sum(bool(of_states(planted_states(draw, fault))) for _ in range(400))  # type: ignore[arg-type]
    assert marked <= 4 if fault is None else marked >= 380


def test_the_signs_say_what_happened() -> None:
    draw = np.random.default_rng(0)
    hot = [[{"gpu": gpu_state(draw, throttled=["heat"], temperature_c=88.0, others=2), "cap": 0.5}]]
    assert of_states(hot) == [  # type: ignore[arg-type]
        "the processor was held to 50% of its frequency", "the GPU lowered its clocks (heat; up to 88 °C)",
        "2 other processes computed on the GPU",
    ]  # fmt: skip
    assert of_states([[], []]) == []


def test_a_clock_is_compared_after_prompts_alone() -> None:
    """A source that is read rarely may give the reading before a prompt only, when the GPU idled."""
    draw = np.random.default_rng(0)
    busy = [{"gpu": gpu_state(draw)}, {"gpu": gpu_state(draw)}]
    idle = [{"gpu": gpu_state(draw, clock_mhz=345.0)}]
    assert of_states([busy, idle, busy, idle]) == []  # type: ignore[list-item]


# Memory.


class OfDraft:
    """As a draft: what it holds are its attributes."""

    def __init__(self, **held: object) -> None:
        vars(self).update(held)


OfDraft.__module__ = "specbench.methods.of_tests"


def model_of(network: nn.Module) -> Any:
    made = StaticModel.__new__(StaticModel)  # as much of one as holds memory
    vars(made).update(network=network, packed=PackedWeights())
    return made


def test_every_storage_counts_once_and_for_the_target_first() -> None:
    """Heads that the target's engine runs, whose layouts lie among the target's, count for the draft."""
    shared, heads = nn.Linear(8, 4, bias=False), nn.Linear(8, 16, bias=False)
    target, model = model_of(shared), model_of(nn.Linear(2, 2, bias=False))
    for weight in (shared.weight, heads.weight, torch.zeros(5)):
        target.packed.of(weight, lambda one: one.clone())
    inner = OfDraft(table=np.zeros(10)[:2], target=target)
    draft = OfDraft(model=model, parts=[inner], heads=heads, view=shared.weight[:2], cached={1: torch.zeros(99)})
    weights, tables = bytes_held(target, [model], draft)
    assert weights == {"target": 2 * 8 * 4 * 4, "draft": 2 * 2 * 4 + 2 * 8 * 16 * 4 + 5 * 4} and tables == 10 * 8


def test_a_pool_says_what_it_holds_for_no_session() -> None:
    pool = BufferPool({"self": [(2, 4)] * 2}, torch.float32, CPU)
    taken = pool.take("self", 8)
    assert pool.free_bytes == 0
    pool.give_back({"self": taken})
    assert pool.free_bytes == 2 * 2 * 4 * 8 * 4


def weights_in(folder: Path) -> int:
    from safetensors.torch import load_file

    return sum(tensor.nbytes for file in folder.glob("*.safetensors") for tensor in load_file(file).values())


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_a_run_says_its_machine_and_memory(
    engine: str, folders: dict[str, Path], tmp_path: Path, capfd: Capture
) -> None:
    argv = small_run(folders, tmp_path, f"engine={engine}", "limit=2", kind="gpt2")
    code, out, _, record = called(argv, tmp_path, capfd)
    summary = record["summary"]
    parts = summary["memory_parts"]
    assert code == 0 and faults_of(record) == [] and record["machine"].keys() >= {"processor", "caches"}
    whole, alone = sum(parts.values()), sum(value for name, value in parts.items() if name.startswith("target"))
    assert (summary["memory_bytes"], summary["memory_baseline_bytes"]) == (whole, alone)
    assert summary["memory_ratio"] == whole / alone > 1 and "memory" in out
    if engine == "eager":
        config = json.loads((folders["gpt2"] / "config.json").read_text())
        longest = max(one["prompt_tokens"] + len(one["speculative"].tokens) for one in record["prompts"])
        a_token = 2 * config["n_layer"] * config["n_embd"] * 4
        assert parts["target_weights"] >= weights_in(folders["gpt2"]) and parts["draft_tables"] == 0
        assert 0 <= parts["target_caches"] - longest * a_token <= 8 * a_token  # and what a pass reads beyond the end
    assert main(["results", record["run_id"], "--results", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "\nversions: specbench" in out and "\nprocessor: " in out and "\nmemory: " in out
    assert main(["results", "last", "--results", str(tmp_path), "--format", "json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert row["machine"] == record["machine"] and row["memory_ratio"] == summary["memory_ratio"]


def test_an_older_record_is_shown_without_its_machine(tmp_path: Path, capfd: Capture) -> None:
    assert main(["results", make(tmp_path), "--results", str(tmp_path)]) == 0
    assert "\nmachine: a CPU, 2 threads; older records hold no more of it" in capfd.readouterr().out


def test_memory_leaves_candidates_out_of_a_ranking(folders: dict[str, Path], tmp_path: Path, capfd: Capture) -> None:
    argv = [
        "recommend", f"target.path={folders['gpt2']}", f"draft.path=[{folders['gpt2-draft']},{folders['gpt2']}]",
        "task=ende", f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu",
        "max_new_tokens=8", "tokens=20", "rounds=2", "resamples=100", "gammas=[1]", "engine=eager",
    ]  # fmt: skip
    assert main([*argv, "--format", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    needed = {row["candidate"]: row["memory_bytes"] for row in document["rows"]}
    small, large = sorted(needed, key=lambda name: needed[name])
    assert needed[small] < needed[large] and all(row["memory_ratio"] > 1 for row in document["rows"])
    limit = f"{(needed[large] - 1) / 1000:.3f}kB"
    assert main([*argv, f"memory={limit}"]) == 0
    out = capfd.readouterr().out
    assert f"left out, over memory={limit}: {large} needs" in out
    assert "memory=1kB: no candidate fits" in refusal_after_loading([*argv, "memory=1kB"], capfd)
    said = refusal([*argv, "memory=24"], capfd)
    assert "memory=24: must be a number above 0 with its unit, as in 24GB or 16GiB, or null" in said


def refusal_after_loading(argv: list[str], capture: Capture) -> str:
    assert main(argv) == 2
    return capture.readouterr().err.splitlines()[-1]


def test_amounts_of_memory() -> None:
    assert (bytes_of("24GB"), bytes_of("1.5 GiB"), bytes_of("16"), bytes_of("GB")) == (
        24 * 10**9,
        1610612736,
        None,
        None,
    )


# Records that anyone can trust.


def of_commit(results: Path, commit: str | None, **keys: Any) -> str:
    run_id = make(results, **keys)
    file = store.record_file(results, run_id)
    record: Any = store.read(file)
    store.write(results, {**record, "environment": {**record["environment"], "commit": commit}})
    return run_id


def test_records_of_uncommitted_code_are_kept_only_when_asked(tmp_path: Path, capfd: Capture) -> None:
    clean, dirty = of_commit(tmp_path, "abc", gamma=3), of_commit(tmp_path, "abc+changes", gamma=5)
    said = list[str]()
    assert [file.name for file in keep(Records(tmp_path), said.append)] == [f"{clean}.json.xz"]
    assert said == [
        f"{dirty}: not kept, it comes from code with uncommitted changes; commit them and run it again, or give --dirty"
    ]
    assert len(keep(Records(tmp_path), said.append, dirty=True)) == 2
    store.record_file(tmp_path, dirty).unlink()
    assert len(keep(Records(tmp_path), said.append)) == 2 and len(said) == 1  # a copy stays
    assert main(["report", "--dirty", "--results", str(tmp_path)]) == 2
    assert "--dirty: goes with --keep" in capfd.readouterr().err


@pytest.mark.parametrize("run_id", ["../elsewhere", "a/b", ".hidden", "", "a\nb", 7, None])
def test_an_id_that_is_no_file_name_is_refused(run_id: Any, tmp_path: Path) -> None:
    from specbench.errors import UserError
    from specbench.records.journal import Journal

    for opens in (store.record_file, Journal):
        with pytest.raises(UserError, match="is not the name of a file") as error:
            opens(tmp_path, run_id)
        assert "\n" not in str(error.value)
    file = store.record_file(tmp_path, make(tmp_path))
    content = json.loads(file.read_text()) | {"run_id": run_id}
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is not the name of a file"):
        store.read(file)


@pytest.mark.parametrize("verb", ["run", "alpha", "recommend", "bench", "bench beam", "train"])
def test_threads_without_a_cpu_are_refused(verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`threads=1000` on two cores was accepted without a word, and each pass waited for threads."""
    (rows := tmp_path / "rows.jsonl").write_text('{"text": "a b c"}\n')
    more = ["recipe=gpt-nano", f"data.path=[{rows}]", f"output={tmp_path}"] if verb == "train" else []
    said = refusal([*verb.split(), "threads=1000", *(more or [f"results={tmp_path}"])], capfd)
    assert said.startswith("specbench: threads=1000: must be at most ") and "CPUs" in said


def test_pages_are_no_code_and_other_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of a tree in which only Markdown differs from its commit is of that commit."""
    (tmp_path / "specbench").mkdir()
    page, code = tmp_path / "README.md", tmp_path / "specbench" / "environment.py"
    for file in (page, code):
        file.write_text("a")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(environment, "__file__", str(code))
    said = []
    for file in (page, code):
        file.write_text("b")
        said.append(environment.commit.__wrapped__().endswith("+changes"))
    assert said == [False, True]
