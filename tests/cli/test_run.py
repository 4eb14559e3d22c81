"""`specbench run` from argv to record, on small random networks: each family, draft and refusal."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch

from specbench.cli import main
from specbench.cli.results import COLUMNS
from specbench.config.schema import RunConfig
from specbench.records import store
from specbench.records.catalog import Catalog
from tests.support.calls import called, small

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(folders: Folders, tmp_path: Path, capfd: Capture):  # type: ignore[no-untyped-def]
    """Run with small settings; returns (exit code, stdout, stderr, the newest record or None)."""

    def call(*overrides: str, kind: str = "t5", verb: str = "run"):  # type: ignore[no-untyped-def]
        files = (f"task.train_path={folders['rows']}", f"draft.cache_dir={tmp_path / 'cache'}")
        own = (f"draft.path={folders[f'{kind}-draft']}", *files, "warmup=1")
        return called([verb, *small(folders, tmp_path, *own, *overrides, kind=kind)], tmp_path, capfd)

    return call


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", ["t5", "t5-v1_1", "gpt2", "llama"])
def test_a_run_of_each_family(run, kind: str) -> None:  # type: ignore[no-untyped-def]
    code, out, _, record = run("gamma=3", "engine=auto", kind=kind)
    assert code == 0
    summary = record["summary"]
    # Of lossy rules, of processed logits, of completions many of which loop, and of prompts of a given length.
    elsewhere = {"alpha_rule", "total_variation", "processing", "speedup_without_loops", "context"}
    assert set(COLUMNS) - elsewhere <= {"run_id", *summary}
    assert (summary["target"], summary["draft"], summary["task"]) == (kind, f"{kind}-draft", "ende (rows.jsonl)")
    assert summary["identical"] == 1.0 and summary["lossless"] and summary["simulated"] is False
    assert 0 <= summary["alpha_low"] <= summary["alpha"] <= summary["alpha_high"] <= 1
    assert summary["prompts"] == 3
    assert summary["speedup_low"] <= summary["speedup_measured"] <= summary["speedup_high"]
    assert summary["quality_baseline"] == summary["quality_speculative"]
    for name in ("α", "speedup predicted", "speedup calibrated", "speedup measured", "BLEU", "record:"):
        assert name in out
    assert record["config"]["gamma"] == 3 and record["environment"]["versions"]["torch"]
    prompt = record["prompts"][0]
    assert prompt["baseline"].tokens == prompt["speculative"].tokens
    assert len(prompt["beta"]) == len(prompt["baseline"].tokens) == len(prompt["baseline"].steps_s)


@pytest.mark.full
def test_a_record_of_an_older_version_is_shown_with_the_numbers_of_this_one(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run("gamma=3")
    (file,) = (tmp_path / "runs").glob("*.json")
    record = json.loads(file.read_text())
    new = ("prediction", "operations", "drafting_per_pass", "checking_per_pass", "accepting_per_pass")
    expected = {key: record["summary"].pop(key) for key in new}
    store.write(tmp_path, record)
    _, out, _, _ = run("gamma=3")
    assert "already there" in out and f"{expected['operations']:.2f}×" in out


def test_the_same_config_is_not_run_twice_unless_forced(run) -> None:  # type: ignore[no-untyped-def]
    _, first, _, one = run()
    _, again, _, two = run()
    assert "written" in first and "already there" in again
    assert one["summary"]["created"] == two["summary"]["created"]
    _, forced, _, three = run("force=true")
    assert "written" in forced
    assert three["prompts"][0]["baseline"].tokens == one["prompts"][0]["baseline"].tokens
    code, _, _, other = run("gamma=2")
    assert code == 0 and other["run_id"] != one["run_id"]


@pytest.mark.full
def test_seeds_are_used_and_limits_do_not_change_a_prompt(run) -> None:  # type: ignore[no-untyped-def]
    def texts(*overrides: str) -> list[list[int]]:
        record = run("sampling.temperature=1", "force=true", *overrides)[3]
        return [p[way].tokens for p in record["prompts"] for way in ("baseline", "speculative")]

    first = texts()
    assert first == texts()
    assert first[:2] == texts("limit=1")
    assert first != texts("seed=1")


@pytest.mark.full
def test_a_sweep_runs_all_and_a_failing_job_fails_alone(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, _, err, _ = run("device=cpu,cuda:9", "gamma=1,2", verb="sweep")
    assert code == 2
    assert "device=cuda:9: this machine has " in err and "2 of 4 runs done" in err
    assert any("failed: device=cuda:9" in line for line in err.splitlines())
    assert sorted(row["gamma"] for row in Catalog(tmp_path).rows()) == [1, 2]


@pytest.mark.full
def test_a_failed_run_says_why_in_its_record_and_is_run_again(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture  # type: ignore[no-untyped-def]
) -> None:  # fmt: skip
    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("specbench.experiment.runner.measure_prompt", out_of_memory)
    code, _, err, record = run()
    assert code == 1 and "out of memory; lower gamma, max_new_tokens or task.max_source_tokens" in err
    assert "out of memory" in record["summary"]["error"] and record["config"]["gamma"] == RunConfig().gamma
    assert Catalog(tmp_path).rows() == []
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert "failed: t5-t5-draft-ende" in capfd.readouterr().out
    monkeypatch.undo()
    code, out, _, record = run()
    assert code == 0 and "written" in out and "error" not in record["summary"]


@pytest.mark.full
def test_results_in_every_format(run, tmp_path: Path, capfd: Capture) -> None:  # type: ignore[no-untyped-def]
    run()
    assert main(["results", "--results", str(tmp_path), "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capfd.readouterr().out))
    assert tuple(row)[: len(COLUMNS)] == tuple(COLUMNS)
    assert main(["results", "--results", str(tmp_path), "--format", "json"]) == 0
    (entry,) = json.loads(capfd.readouterr().out)
    assert tuple(entry)[: len(COLUMNS)] == tuple(COLUMNS)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert "t5-draft" in capfd.readouterr().out
    assert main(["results", "--results", str(tmp_path / "empty")]) == 0
    assert "no record in" in capfd.readouterr().out


def test_impossible_pairs_are_refused_before_weights_are_loaded(
    run, folders: Folders, monkeypatch: pytest.MonkeyPatch  # type: ignore[no-untyped-def]
) -> None:  # fmt: skip
    def never(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("specbench.loading.model_loader.load_model", never)
    code, _, err, _ = run(f"draft.path={folders['gpt2-draft']}")
    assert code == 2
    assert "draft=gpt2-draft: is decoder-only and target=t5 is encoder-decoder" in err
    assert "use draft=lookup or draft=early-exit" in err  # they require neither weights nor training text


def test_another_vocabulary_is_named_with_the_first_difference(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from tests.support.networks import WORDS, save

    other = save(tmp_path / "other", "t5", 3, words=[*WORDS[1:], "the"])
    code, _, err, _ = run(f"draft.path={other}", "draft.vocabulary=same")
    assert code == 2
    assert "its vocabulary is not target=t5's" in err and "the first difference is" in err
    assert "draft.vocabulary=auto" in err


@pytest.mark.full
def test_broken_folders_are_one_line(run, folders: Folders, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import shutil

    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, err, _ = run(f"target.path={empty}")
    assert code == 2 and "there is no config.json in this folder" in err
    cut = tmp_path / "cut"
    shutil.copytree(folders["t5"], cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    code, _, err, record = run(f"target.path={cut}")
    assert code == 2 and not record  # a slip is no run
    assert f"target.path={cut}: cannot be loaded" in err and "Traceback" not in err


def test_a_malicious_pickle_is_refused(run, folders: Folders, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import pickle
    import shutil

    class Evil:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (Path.touch, (tmp_path / "owned",))

    folder = tmp_path / "pickled"
    shutil.copytree(folders["t5"], folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"shared.weight": Evil()}))
    code, _, err, _ = run(f"target.path={folder}")
    assert code == 2 and "cannot be loaded" in err
    assert not (tmp_path / "owned").exists()


def test_remote_code_is_never_run(run, folders: Folders, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import shutil

    folder = tmp_path / "remote"
    shutil.copytree(folders["t5"], folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "code.Own", "AutoModelForSeq2SeqLM": "code.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nclass Own: pass\n")
    code, _, err, _ = run(f"target.path={folder}")
    assert code == 2 and f"target.path={folder}: cannot be loaded" in err
    assert not (tmp_path / "owned").exists()


def test_a_missing_tokenizer_is_told(run, folders: Folders, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import shutil

    folder = tmp_path / "mute"
    shutil.copytree(folders["t5"], folder, ignore=shutil.ignore_patterns("tokenizer*", "special*"))
    code, _, err, _ = run(f"target.path={folder}")
    assert code == 2 and "target: no tokenizer beside the weights of mute" in err


def test_a_hub_that_refuses_for_now(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from transformers import AutoConfig

    class Refused(OSError):
        class response:
            status_code = 429

    def refuse(*_: object, **__: object) -> None:
        raise OSError("cannot load") from Refused("Too Many Requests")

    monkeypatch.setattr("specbench.engine.weights.load.hub_is_reachable", lambda: True)
    monkeypatch.setattr(AutoConfig, "from_pretrained", refuse)
    code, _, err, _ = run("target=t5-small", "target.path=null")
    assert code == 1 and "the model hub refused google-t5/t5-small for now (HTTP 429); run it again later" in err


def test_weights_that_are_not_finite_are_told(run, folders: Folders, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    shutil.copytree(folders["gpt2"], folder)
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if "ln_f" in key)
    weights[name].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    code, _, err, _ = run(f"target.path={folder}", kind="gpt2")
    assert code == 1
    assert "dtype=float32: the model's logits are not finite" in err


def test_t5_is_refused_in_fp16(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err, _ = run("dtype=float16")
    assert code == 2 and "dtype=float16: t5 is a T5, which overflows in fp16; use bfloat16 or float32" in err


def test_positions_end_somewhere(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err, _ = run("max_new_tokens=500", kind="gpt2")
    assert code == 2 and "the model has positions for 128" in err


def test_an_empty_prompt_names_its_row(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"en": "a dog", "de": "x"}\n{"en": "  ", "de": "y"}\n')
    code, _, err, _ = run(f"task.path={rows}")
    assert code == 2 and "row 2: the prompt is empty" in err


@pytest.mark.full
def test_unconditional_text_and_its_first_words(run, folders: Folders) -> None:  # type: ignore[no-untyped-def]
    keys = ("task=lm1b", "task.reference_field=en", "sampling.temperature=1")
    record = run(*keys, kind="llama")[3]
    assert [p["prompt"] for p in record["prompts"]] == ["", "", ""]
    assert record["summary"]["quality_metric"] is None
    record = run("task=lm1b", "task.reference_field=en", kind="llama")[3]
    assert record["prompts"][0]["prompt"] == "the old dog sees"
    assert record["config"]["task"]["prompt_words"] == 4


def test_a_hub_name_without_a_network(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("specbench.engine.weights.load.hub_is_reachable", lambda: False)
    code, _, err, _ = run("target=t5-small", "target.path=null")
    assert code == 1
    assert "google-t5/t5-small is not in the local cache and the model hub cannot be reached" in err
    assert "offline choices" in err and err.count("specbench:") == 1


def test_a_results_folder_that_cannot_be_written(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("")
    code, _, err, _ = run(f"results={tmp_path / 'file'}")
    assert code == 1 and "cannot be written" in err and "set results=FOLDER" in err


@pytest.mark.full
def test_interrupted_runs_leave_no_half_record(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.experiment.measure.agreements", interrupt)
    code, _, err, record = run()
    assert code == 130 and record is None and "interrupted" in err
    assert not list(tmp_path.rglob("*.part"))
