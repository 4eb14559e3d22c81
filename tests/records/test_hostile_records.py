"""A record that someone else wrote stops no command: it is named, and the others are shown."""

import json
import lzma
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.border import Unreadable
from specbench.cli import main
from specbench.interop.readings.document import Document
from specbench.recorded import to_json
from specbench.records import store
from specbench.records.measurements import add_to_history
from specbench.tasks.row_files import read_rows
from tests.support.hostile import as_json, damaged
from tests.support.made_records import make, record

Capture = pytest.CaptureFixture[str]


def bomb(file: Path) -> None:
    with lzma.open(file, "wb", preset=0) as opened:
        for _ in range(600):
            opened.write(b" " * 2**20)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a folder": lambda file: file.mkdir(),
    "a link to nothing": lambda file: file.symlink_to("nowhere"),
    "a link to itself": lambda file: file.symlink_to(file),
    "larger than 512 MiB": lambda file: os.truncate(str(file.write_text("{") and file), 2**30),
}


@pytest.mark.parametrize("kind", [*SPECIAL, "unpacks to more than 512 MiB"])
def test_what_is_no_file_is_named_and_the_others_are_shown(kind: str, tmp_path: Path, capfd: Capture) -> None:
    made = make(tmp_path)
    (tmp_path / "kept").mkdir()
    file = tmp_path / "kept" / "bad.json.xz" if kind.startswith("unpacks") else tmp_path / "runs" / "bad.json"
    (bomb if kind.startswith("unpacks") else SPECIAL[kind])(file)
    with pytest.warns(UserWarning, match=f"{file}: skipped, it is not a record"):
        assert main(["results", "--results", str(tmp_path), "--format", "json"]) == 0
    assert [row["run_id"] for row in json.loads(capfd.readouterr().out)] == [made]
    for read in (store.read, lambda one: [*Document.read(one).lines], lambda one: [*read_rows(one)]):
        if kind != "larger than 512 MiB" and not (kind == "a folder" and read is not store.read):
            with pytest.raises(ValueError, match=r"bad|not a regular file|cannot be read|unpacks"):
                read(file)


def test_a_date_that_is_none_names_no_file(tmp_path: Path, capfd: Capture) -> None:
    results = tmp_path / "a" / "results"
    for created in ("TMP/zz-01-01", "../../x", "2026-01\x00", "2026-01-02T03:04:05+00:00\n../x", ""):
        make(results, created=created)
        with pytest.warns(UserWarning, match="created is .*, not a time in ISO 8601"):
            main(["compare", "--history", "--write", "--results", str(results)])
    row = {"id": "x", "created": "../../x"}
    with pytest.raises(Unreadable, match="not a time"):
        add_to_history(results, [row])  # type: ignore[list-item]
    assert {file.parent for file in tmp_path.rglob("*") if file.is_file()} == {results / "runs"}


@pytest.mark.full
@pytest.mark.parametrize("name", [r"$\frac{1}{0$ a $", "a$b", "${x}$^_$"])
def test_a_name_that_is_no_formula_is_drawn(name: str, tmp_path: Path, capfd: Capture) -> None:
    for gamma in (1, 3, 5):
        make(tmp_path, gamma=gamma, summary_target=name, summary_draft=f"{name} 2", summary_task=name)
    assert main(["figures", "--results", str(tmp_path), "--output", str(tmp_path / "figures")]) == 0
    assert list((tmp_path / "figures").glob("*.svg"))


VERBS = {
    "results": ["results"], "rows": ["results", "--format", "json"], "by": ["results", "--by", "category"],
    "profile": ["results", "--as", "profile", "bad"], "show": ["show", "bad"], "explain": ["explain", "bad"],
    "within": ["explain", "bad", "--within", "10%"], "compare": ["compare", "bad", "GOOD"], "tables": ["tables"],
    "baseline": ["compare", "--baseline", "FILE"], "history": ["compare", "--history", "--write"],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_ends_in_a_traceback(verb: str, tmp_path: Path, capfd: Capture) -> None:
    good = make(tmp_path)
    file = store.record_file(tmp_path, "bad")
    words = [{"GOOD": good, "FILE": str(tmp_path / "b.jsonl")}.get(word, word) for word in VERBS[verb]]
    assert main(["compare", "--baseline", str(tmp_path / "b.jsonl"), "--write", "--results", str(tmp_path)]) == 0
    right = to_json(record(gamma=5, prompts=2)) | {"run_id": "bad", "schema_version": 2}
    for number in range(20):
        draw = random.Random(f"{verb} {number}")
        head = {key: right[key] for key in store.HEAD}
        rest = {key: value for key, value in right.items() if key not in head}
        if draw.random() < 0.5:
            head = damaged(head, draw)
        else:
            rest = damaged(rest, draw)
        rest = rest if isinstance(rest, dict) and rest else {"x": rest}
        content = f"{as_json(head)[:-1]},\n{as_json(rest)[1:-1]},\n".encode(errors="surrogatepass") + store.TAIL
        file.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main([*words, "--results", str(tmp_path)])
        err = capfd.readouterr().err
        assert code in (0, 1, 2) and "fault of specbench" not in err, (number, err)
