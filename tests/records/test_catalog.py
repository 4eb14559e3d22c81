"""One list of records for every verb, and the names by which a run is found in it."""

import errno
import json
import lzma
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig, TaskConfig
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.experiment.identity import identify
from specbench.records import store
from specbench.records.catalog import Catalog, digest, kept_folder
from specbench.records.frame import Records
from specbench.records.keeping import keep
from tests.support.made_records import make

Capture = pytest.CaptureFixture[str]


def test_a_run_is_found_by_id_beginning_digest_path_and_last(tmp_path: Path) -> None:
    first = make(tmp_path, target="alpha", created="2026-03-01T00:00:00+00:00")
    second = make(tmp_path, target="beta", seed=1, created="2026-02-01T00:00:00+00:00")
    file = store.record_file(tmp_path, second)
    elsewhere = shutil.copy(file, tmp_path / "mine.json")
    for name in (second, "beta-t5-nano", digest(second), str(file), str(elsewhere)):
        assert Catalog(tmp_path).find(name) == second
    assert Catalog(tmp_path).find("last") == first
    assert Catalog(tmp_path / "no such folder").find(str(file)) == second


def test_a_folder_of_records_without_rights_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    """It was said to hold no record, with exit code 0."""
    make(tmp_path)
    closed, (listdir, scandir) = str(tmp_path / "runs"), (os.listdir, os.scandir)  # root may read any folder

    def refused(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(folder: Any = ".") -> Any:
            if os.fspath(folder) == closed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), closed)
            return call(folder)

        return wrapped

    monkeypatch.setattr(os, "listdir", refused(listdir))
    monkeypatch.setattr(os, "scandir", refused(scandir))
    assert main(["results", "--results", str(tmp_path)]) == 1
    assert f"{closed}: cannot be reached (Permission denied)" in capfd.readouterr().err


def test_what_finds_no_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="last: there is no record in .*'specbench run' makes one"):
        Catalog(tmp_path).find("last")
    made = [make(tmp_path, gamma=gamma) for gamma in (1, 3)]
    failed = make(tmp_path, draft="typo", error="UserError: no such folder")
    other = tmp_path / "other.json"
    other.write_text("{}")
    for name, said in {
        "t5": f"the ids of 2 records have this in them .{made[0]}, {made[1]}",
        "nothing": "nothing: no record of that id in .*'specbench results' lists the ids",
        failed: "this run failed .UserError: no such folder.",
        str(store.record_file(tmp_path, failed)): "this run failed",
        str(other): "other.json: is not a record of specbench",
    }.items():
        with pytest.raises(UserError, match=said):
            Catalog(tmp_path).find(name)


def test_results_lists_kept_records_too_with_their_ids(tmp_path: Path, capsys: Capture) -> None:
    run_id = make(tmp_path)
    keep(Records(tmp_path), print)
    shutil.rmtree(store.runs_folder(tmp_path))  # as in a bare clone
    assert main(["results", "--kept", "--results", str(tmp_path)]) == 0
    heading, row = capsys.readouterr().out.splitlines()[:2]
    assert heading.split()[0] == "id" and row.split()[0] == digest(run_id)
    assert main(["show", row.split()[0], f"results={tmp_path}"]) == 0
    assert main(["compare", run_id[:-4], "last", f"results={tmp_path}"]) == 2
    assert f"are one record, {run_id}" in capsys.readouterr().err


@pytest.mark.parametrize("run_id", ["../../x", "/x", "a/b", "..", ".hidden", "a\\b", "a\x00b", "x" * 300, "", 7])
def test_a_record_is_kept_in_its_folder_alone(run_id: object, tmp_path: Path) -> None:
    """The id of a record that someone else wrote names no file elsewhere."""
    results = tmp_path / "deep" / "er" / "results"
    file = store.record_file(results, make(results))
    file.write_text(file.read_text().replace(json.dumps(file.stem), json.dumps(run_id)))
    with pytest.warns(UserWarning, match="is not the name of a file"):
        assert Catalog(results).heads == []
    with warnings.catch_warnings(action="ignore"):
        keep(Records(results), print)
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [file]


def test_the_newer_of_a_run_and_its_copy_is_shown(tmp_path: Path) -> None:
    run_id = make(tmp_path)
    keep(Records(tmp_path), print)
    copy = kept_folder(tmp_path) / f"{run_id}.json.xz"
    text = lzma.decompress(copy.read_bytes()).replace(b"2026-01-02T", b"2026-01-03T")
    copy.write_bytes(lzma.compress(text))
    assert Catalog(tmp_path).head(run_id).file == copy


def test_failed_runs_are_forgotten_and_no_others(tmp_path: Path, capsys: Capture) -> None:
    good = make(tmp_path)
    bad = make(tmp_path, draft="typo", error="UserError: no such folder")
    keep(Records(tmp_path), print)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert f"failed: {bad}: UserError: no such folder" in capsys.readouterr().out
    assert main(["results", "--results", str(tmp_path), "--forget"]) == 0
    assert capsys.readouterr().out == "1 record of failed runs removed\n"
    assert [file.stem for file in store.runs_folder(tmp_path).iterdir()] == [good]
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert "failed" not in capsys.readouterr().out


def test_a_failure_does_not_hide_the_kept_record_of_the_run(tmp_path: Path) -> None:
    run_id = make(tmp_path)
    keep(Records(tmp_path), print)
    file = store.record_file(tmp_path, run_id)
    record = json.loads(file.read_text())
    store.write(tmp_path, record | {"summary": {"task": "ende-mini", store.FAILED: "no memory"}})
    assert Records(tmp_path).paper_runs["run_id"].tolist() == [run_id]
    assert [row.get(store.FAILED) for row in Catalog(tmp_path).rows(failed=True)] == [None, "no memory"]


@pytest.mark.parametrize("spoil", [lambda text: text[:-200], lambda text: text[:40] + bytes(40) + text[80:]])
def test_a_damaged_copy_is_named(spoil: Callable[[bytes], bytes], tmp_path: Path, capsys: Capture) -> None:
    run_id = make(tmp_path)
    keep(Records(tmp_path), print)
    shutil.rmtree(store.runs_folder(tmp_path))
    copy = kept_folder(tmp_path) / f"{run_id}.json.xz"
    copy.write_bytes(spoil(copy.read_bytes()))
    capsys.readouterr()
    with warnings.catch_warnings(record=True) as caught:
        code = main(["show", str(copy), f"results={tmp_path}"])
    err = capsys.readouterr().err
    assert code == 2 and str(copy) in err and "broken xz file" in f"{err}{[str(one.message) for one in caught]}"
    assert "Traceback" not in err


def test_a_policy_is_named_in_the_column_of_gamma(tmp_path: Path, capsys: Capture) -> None:
    make(tmp_path, summary_gamma=None, gamma_requested="adaptive")
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert " adaptive " in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["meta/llama", "../../x", ".hidden", "a\\b", "a\nb", "\x1b[31m", "x" * 300, "ж" * 150, "...", "\udcff"]
)
def test_names_of_a_config_make_an_id_of_one_file(name: str, tmp_path: Path) -> None:
    """A name with a separator wrote a record where no command looks, one of 300 characters was a traceback."""
    ids = {
        identify(RunConfig(target=ModelConfig(hub="a/b", name=target), task=TaskConfig(name=task)))
        for target, task in ((name, "sum"), (name + "2", "sum"), ("t5", name))
    }
    assert len(ids) == 3
    for run_id in ids:
        assert store.is_file_name(run_id)
        store.write(tmp_path, {"run_id": run_id, "summary": {}, "config": {"name": name}})  # type: ignore[typeddict-item]
    assert {file.stem for file in tmp_path.rglob("*.json")} == ids


@pytest.mark.parametrize("names", ["t5-mini", "a b (1), [red]", "ж" * 100, "-x", "x" * 200])
def test_a_name_that_is_safe_remains(names: str) -> None:
    assert file_name(names, "-T0-g3-0a1b2c3d") == f"{names}-T0-g3-0a1b2c3d"


def test_a_link_to_nothing_is_skipped_by_name(tmp_path: Path) -> None:
    run_id = make(tmp_path)
    (store.runs_folder(tmp_path) / "gone.json").symlink_to(tmp_path / "nowhere.json")
    with pytest.warns(UserWarning, match="gone.json: skipped"):
        assert [head.run_id for head in Catalog(tmp_path).heads] == [run_id]


def test_own_records_come_before_kept_copies(tmp_path: Path, capfd: Capture) -> None:
    """A table of 324 kept records hid the one of the user; 'last' and a part of an id meant kept copies too."""
    mine = make(tmp_path, gamma=1, created="2026-02-01T00:00:00+00:00")
    copied = make(tmp_path, gamma=2, created="2026-03-01T00:00:00+00:00")
    keep(Records(tmp_path), print, dirty=True)
    store.record_file(tmp_path, copied).unlink()
    catalog = Catalog(tmp_path)
    assert catalog.own == {mine} and {head.run_id for head in catalog.heads} == {mine, copied}
    assert catalog.find("last") == catalog.find("t5") == mine
    capfd.readouterr()
    for words, shown in (((), [mine]), (("--kept",), [mine, copied])):
        assert main(["results", "--results", str(tmp_path), "--format", "json", *words]) == 0
        out, err = capfd.readouterr()
        assert [row["run_id"] for row in json.loads(out)] == shown
        assert ("1 kept record is not shown: specbench results --kept" in err) == (not words)
    store.record_file(tmp_path, mine).unlink()
    assert main(["results", "--results", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert out.startswith("no record of your own in ") and "2 kept records are not shown" in out
    for words in (["explain"], ["show"], ["explain", "last"]):  # which explained a copy as if it were the last run
        said = f"last: no run of your own in {tmp_path}; this is the kept record {copied}"
        with pytest.warns(UserWarning, match=re.escape(said)):
            assert main([*words, "--results", str(tmp_path)]) == 0


@pytest.mark.parametrize("more", [[], ["--group-by", "gamma"], ["--by", "length"]])
def test_where_no_copy_is_kept_it_is_said(more: list[str], tmp_path: Path, capfd: Capture) -> None:
    """Outside a clone there is no results/kept, and `--kept` showed the same as without it."""
    make(tmp_path)
    assert main(["results", *more, "--kept", "--results", str(tmp_path)]) == 0
    assert f"no kept record in {kept_folder(tmp_path)}: those that ship lie in results/kept" in capfd.readouterr().out
    keep(Records(tmp_path), print, dirty=True)
    capfd.readouterr()
    assert main(["results", *more, "--kept", "--results", str(tmp_path)]) == 0
    assert "no kept record" not in capfd.readouterr().out
