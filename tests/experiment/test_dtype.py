"""dtype=auto on a CPU: the faster of two by a probe, once a target and machine, printed and recorded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.analysis.costs.core_time import CoreTime
from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig
from specbench.engine.weights import dtype_probe
from specbench.experiment import dtype
from specbench.experiment.identity import identify
from specbench.experiment.run_parts import resolve
from tests.support.calls import called
from tests.support.captured import fastest_on_a_cpu
from tests.support.networks import network

Folders = dict[str, Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setattr(dtype, "_probed", {})
    return tmp_path / "user-cache" / "specbench"


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """What the probes to come will measure, one after another."""
    found: list[tuple[float, float]] = []
    monkeypatch.setattr(dtype, "probe", lambda *_: found.pop(0))
    return found


def config(folders: Folders, kind: str = "t5", name: str = "auto") -> RunConfig:
    return RunConfig(target=ModelConfig(path=str(folders[kind])), dtype=name, device="cpu", engine="static")


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [((2e-3, 1e-3), "float32"), ((1e-3, 2e-3), "bfloat16"), ((1e-3, 0.75e-3), "bfloat16")],
)
def test_the_faster_is_taken_and_near_ties_fall_one_way(
    folders: Folders, times: list[tuple[float, float]], measured: tuple[float, float], chosen: str
) -> None:
    times.append(measured)
    notes: list[str] = []
    assert resolve(config(folders), notes.append).dtype == chosen
    assert notes == [
        f"dtype=auto: {chosen}; linear maps of this shape take {1000 * measured[0]:.2f} ms in bfloat16 and "
        f"{1000 * measured[1]:.2f} in float32 (float32 is taken below {600 * measured[0]:.2f} ms); to pin it: "
        f"dtype={chosen}"
    ]


def test_a_dtype_that_is_given_is_not_probed(folders: Folders, times: list[tuple[float, float]]) -> None:
    notes: list[str] = []
    assert resolve(config(folders, name="bfloat16"), notes.append).dtype == "bfloat16" and not notes


def test_jobs_of_a_sweep_come_to_the_same(
    folders: Folders, times: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """In one process, in another later, and in another at the same time, whatever a probe would measure there."""
    times += [(1e-3, 2e-3), (2e-3, 1e-3)]
    first = resolve(config(folders))
    assert first.dtype == resolve(config(folders)).dtype == "bfloat16" and len(times) == 1
    monkeypatch.setattr(dtype, "_probed", {})
    assert resolve(config(folders)).dtype == "bfloat16" and len(times) == 1
    monkeypatch.setattr(dtype, "_probed", {})
    monkeypatch.setattr(dtype, "_read", one_time_blind(dtype._read))
    assert resolve(config(folders)).dtype == "bfloat16" and not times
    assert len(list(cache.glob("dtype-*"))) == 1
    assert identify(first) == identify(resolve(config(folders, name="bfloat16")))


def test_other_kernels_are_probed_again(
    folders: Folders, times: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    times += [(1.0, 0.1), (0.1, 1.0)]
    found = []
    for name in ("kernels-one", "kernels-two", "kernels-one"):
        monkeypatch.setattr(dtype, "_probed", {})
        monkeypatch.setattr(dtype, "built", lambda name=name: name)
        monkeypatch.setattr(dtype, "_engine", lambda _: "native")
        chosen = dtype.faster_dtype(config(folders))
        assert chosen is not None
        found.append(chosen.dtype)
    assert found == ["float32", "bfloat16", "float32"]


def one_time_blind(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """`read`, which finds nothing at first: the other process has not written yet."""
    seen: list[Path] = []

    def reads(file: Path) -> Any:
        seen.append(file)
        return read(file) if len(seen) > 1 else None

    return reads


def test_a_probe_that_waited_for_a_core_is_repeated_and_not_cached(
    folders: Folders, times: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    waited = [0.5, 0.4, 0.6]
    monkeypatch.setattr("specbench.analysis.costs.core_time.between", lambda *_: CoreTime(1 - waited[0], waited.pop(0)))
    times += [(1e-3, 2e-3), (2e-3, 1e-3), (1e-3, 2e-3)]
    notes: list[str] = []
    assert resolve(config(folders), notes.append).dtype == "float32"  # of the least disturbed
    assert not times and not list(cache.glob("*")) and "CONTENDED: it waited for a core 40% of its time" in notes[0]
    assert resolve(config(folders)).dtype == "float32"  # the same in this process
    monkeypatch.setattr(dtype, "_probed", {})
    waited += [0.5, 0.01]
    times += [(2e-3, 1e-3), (1e-3, 2e-3)]
    assert resolve(config(folders)).dtype == "bfloat16" and len(list(cache.glob("dtype-*"))) == 1


def test_where_no_cache_can_be_written_the_process_remembers(
    folders: Folders, times: list[tuple[float, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    times += [(2e-3, 1e-3), (1e-3, 2e-3)]
    assert [resolve(config(folders)).dtype for _ in range(2)] == ["float32", "float32"]


def test_a_shape_that_cannot_be_read_is_left_to_the_loader(tmp_path: Path, times: list[tuple[float, float]]) -> None:
    missing = RunConfig(target=ModelConfig(path=str(tmp_path)), dtype="auto", device="cpu")
    assert resolve(missing).dtype in ("bfloat16", "float32")


@pytest.mark.parametrize("kind", ["t5", "t5-v1_1", "gpt2", "llama"])
def test_maps_are_those_of_the_decoders_layers(folders: Folders, kind: str) -> None:
    found = dtype_probe.linear_maps(ModelConfig(path=str(folders[kind])), "target")
    decoder = network(kind, seed=5).get_decoder()
    shapes = [
        tuple(module.weight.shape) if type(module).__name__ == "Conv1D" else tuple(module.weight.shape)[::-1]
        for module in decoder.modules()
        if type(module).__name__ in ("Linear", "Conv1D")
    ]
    assert sorted(found) == sorted(shapes)


@pytest.mark.parametrize("engine", ["native", "static", "eager"])
def test_the_probe_times_both_and_leaves_torchs_threads(engine: str) -> None:
    if engine == "native" and fastest_on_a_cpu() != "native":
        pytest.skip("needs a C compiler")
    before = torch.get_num_threads()
    assert all(0 < seconds < 1 for seconds in dtype_probe.probe([(64, 192), (64, 64), (128, 64)], engine, 1))
    assert torch.get_num_threads() == before


@pytest.mark.full
def test_a_run_prints_and_records_what_was_chosen(
    folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str], times: list[tuple[float, float]]
) -> None:
    times.append((3e-3, 1e-3))
    argv = [
        "run", f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "task=ende",
        f"task.path={folders['rows']}", f"task.train_path={folders['rows']}", f"results={tmp_path}", "gamma=3",
        "device=cpu", "max_new_tokens=8", "limit=2",
    ]  # fmt: skip
    code, _, err, record = called(argv, tmp_path, capfd)
    assert code == 0 and "dtype=auto: float32; linear maps of this shape take 3.00 ms in bfloat16" in err
    summary = record["summary"]
    assert (summary["dtype"], summary["dtype_bfloat16_ms"], summary["dtype_float32_ms"]) == ("float32", 3.0, 1.0)
    assert record["config"]["dtype"] == "float32"
    json.dumps(summary, allow_nan=False)
    code, _, _, record = called([*argv, "dtype=bfloat16"], tmp_path, capfd)
    assert code == 0 and record["summary"]["dtype_float32_ms"] is None
