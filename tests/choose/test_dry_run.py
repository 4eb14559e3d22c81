"""`sweep --dry-run`: every job with its time and memory, and nothing run."""

import json
from pathlib import Path

import pytest

from specbench.choose.needs import COMPARED, most_similar
from specbench.cli import main
from specbench.config.catalogue import choice_names, held
from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig, TaskConfig
from specbench.engine.weights import parameters
from specbench.formatting import duration, size

Capture = pytest.CaptureFixture[str]
Folders = dict[str, Path]


@pytest.mark.full
def test_table2_lists_its_36_jobs_with_their_memory(capfd: Capture, tmp_path: Path) -> None:
    argv = ["sweep", "experiment=table2", "--dry-run", f"results={tmp_path}", "dtype=bfloat16"]
    assert main([*argv, "--format", "json"]) == 0
    out, err = capfd.readouterr()
    jobs = json.loads(out)
    assert len(jobs) == 36
    assert jobs[0]["keys"] == "task=ende draft=t5-small sampling.temperature=0 gamma=3"
    drafts = [job["keys"].split()[1] for job in jobs]  # in the order in which they run: each draft is loaded once
    assert drafts == sorted(drafts, key=drafts.index) and len(set(drafts)) == 3
    assert jobs[0]["prompts"] == 400 and jobs[0]["weights_bytes"] == 2 * (11e9 + 60e6) and jobs[0]["seconds"] is None
    assert "36 jobs, 0 of them done; the largest needs 23.5 GB for its weights" in err
    assert "table2: about 3 hours on one GPU of 48 GB or more (an estimate)" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_times_come_from_the_record_of_the_most_similar_run(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    keys = [
        f"target.path={folders['t5']}", "draft=random", "task=ende", f"task.path={folders['rows']}", "dtype=float32",
        "device=cpu", "threads=1", "max_new_tokens=4", "warmup=0", "engine=eager",
        f"results={tmp_path}",
    ]  # fmt: skip
    assert main(["run", *keys, "gamma=2", "limit=2"]) == 0
    capfd.readouterr()
    assert main(["sweep", *keys, "gamma=2,3,99", "--dry-run", "--format", "json"]) == 2
    same, other, refused = json.loads(capfd.readouterr().out)
    assert (same["prompts"], other["prompts"]) == (3, 3) and same["weights_bytes"] == 4 * parameters_in(folders["t5"])
    assert same["seconds"] == other["seconds"] > 0 and same["estimated_from"] == other["estimated_from"]
    assert refused["keys"] == "gamma=99" and "gamma=99: must be from 1 to 64" in refused["error"]
    assert main(["sweep", *keys, "gamma=2,3", "limit=2", "--dry-run"]) == 0
    out = capfd.readouterr().out
    assert "2 jobs, 1 of them done; the largest needs" in out and "gamma=2" in out
    assert len(list((tmp_path / "runs").iterdir())) == 1 and not (tmp_path / "sweeps").exists()


def test_of_records_equally_alike_the_newest_tells_the_time() -> None:
    config = RunConfig(target=ModelConfig(name="t"), task=TaskConfig(name="ende"), dtype="float32")
    same = {"target": "t", "task": "ende", "dtype": "float32", "hardware": "x"}
    rows = [same | {"run_id": day, "created": day} for day in ("2026-01-01", "2026-01-03", "2026-01-02")]
    found = most_similar(config, "x", dict.fromkeys(COMPARED, "no record has it"), rows)
    assert found is not None and found["run_id"] == "2026-01-03"


def parameters_in(folder: Path) -> int:
    count = parameters(ModelConfig(path=str(folder)))
    assert count is not None
    return count


def test_weights_are_counted_in_the_files(folders: Folders) -> None:
    from transformers import AutoModelForSeq2SeqLM

    network = AutoModelForSeq2SeqLM.from_pretrained(folders["t5"])
    assert parameters_in(folders["t5"]) == sum(weight.numel() for weight in network.parameters())
    assert parameters(ModelConfig(hub="some/model", revision="0")) is None


@pytest.mark.parametrize("name", choice_names("model"))
def test_every_choice_that_is_not_a_folder_states_its_size(name: str) -> None:
    choice = held("model")[name].content
    if choice.get("shipped"):
        return  # its note names the recipe; its files say its size
    if "note" in choice and "path" not in choice:
        assert parameters(ModelConfig(hub="x", note=choice["note"])), choice["note"]


def test_sizes_and_times_for_a_person() -> None:
    assert [size(count) for count in (None, 25_000_000, 22_120_000_000)] == ["?", "25 MB", "22.1 GB"]
    assert [duration(seconds) for seconds in (None, 4.2, 61, 7261)] == ["?", "4 s", "1 min 1 s", "2 h 1 min"]
    assert [duration(hours * 3600) for hours in (47, 50, 16089)] == ["47 h 0 min", "2 days", "670 days"]
