"""Rows from files, and what is said of bad ones."""

import gzip
from pathlib import Path

import pytest

from specbench.config.schema import TaskConfig
from specbench.errors import MachineError, UserError
from specbench.tasks import Example, Task, shuffled


def task(path: Path | None = None, **keys: object) -> Task:
    defaults = {"name": "ende", "source_field": "en", "reference_field": "de", "prefix": "translate: "}
    return Task(TaskConfig(**(defaults | {"path": str(path) if path else None} | keys)))


def written(folder: Path, name: str, content: bytes) -> Path:
    file = folder / name
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return file


ROWS = b'{"en": "a dog", "de": "ein Hund"}\n\n{"en": "a cat", "de": "eine Katze"}\n'


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_json_lines_plain_or_gzip(tmp_path: Path, name: str) -> None:
    examples = task(written(tmp_path, name, ROWS)).examples(None)
    assert [(e.index, e.prompt, e.reference) for e in examples] == [
        (0, "translate: a dog", "ein Hund"),
        (1, "translate: a cat", "eine Katze"),
    ]
    assert len(task(tmp_path / name).examples(1)) == 1


def test_rows_can_be_joined_into_longer_prompts(tmp_path: Path) -> None:
    file = written(tmp_path, "rows.jsonl", ROWS + b'{"en": "a tree", "de": "ein Baum"}\n')
    assert [(e.index, e.prompt, e.reference) for e in task(file, rows_per_prompt=2).examples(None)] == [
        (0, "translate: a dog a cat", "ein Hund eine Katze"),
        (1, "translate: a tree", "ein Baum"),
    ]


def test_fields_can_be_renamed(tmp_path: Path) -> None:
    file = written(tmp_path, "rows.jsonl", b'{"src": "a dog", "tgt": "ein Hund"}\n')
    (example,) = task(file, source_field="src", reference_field="tgt").examples(None)
    assert example.reference == "ein Hund"


def test_a_folder_of_text_shards_for_unconditional_text(tmp_path: Path) -> None:
    written(tmp_path, "news-00001", b"third line\n")
    written(tmp_path, "news-00000", b"the first line\nthe second line\n")
    keys = {"name": "lm1b", "source_field": None, "reference_field": "text", "prefix": ""}
    assert [e.prompt for e in task(tmp_path, prompt_words=2, **keys).examples(None)] == [
        "the first", "the second", "third line",
    ]  # fmt: skip
    assert [e.prompt for e in task(tmp_path, prompt_words=0, **keys).examples(2)] == ["", ""]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.jsonl", b'{"en": "a"\n', r"bad\.jsonl, line 1: not a JSON object"),
        ("bad.jsonl", b'{"en": "a", "de": "b"}\n[1]\n', r"bad\.jsonl, line 2: not a JSON object but a list"),
        (
            "bad.jsonl",
            b'{"en": "a", "german": "b"}\n',
            r"bad\.jsonl, line 1: no field 'de' \(it has en, german\); .*"
            r"task\.source_field= and task\.reference_field=; task=prompts takes prompts without references",
        ),
        ("bad.jsonl", b'\n{"en": "a", "de": 5}\n', r"bad\.jsonl, line 2: field 'de' holds the number 5, not text"),
        ("bad.jsonl", b'{"en": null, "de": "b"}\n', "line 1: field 'en' holds null, not text"),
        ("bad.jsonl", b'{"en": true, "de": ["b"]}\n', "line 1: field 'de' holds a list, not text"),
        ("bad.txt", b"a dog\n", r"bad\.txt, line 1: no field 'de' \(it has text\)"),
        ("bad.csv", b"en,german\na,b\n", r"bad\.csv, line 2: no field 'de' \(it has en, german\)"),
        ("bad.csv", b"en,de\na,b,c\n", r"bad\.csv, line 2: 3 values, and line 1 names 2 fields \(en, de\); put text"),
        ("bad.csv", b"en,,\na,b,c\n", r"bad\.csv, line 1: must name the fields, each differently"),
        ("bad.csv", b'en,de\n"a"b,c\n', r"bad\.csv, line 2: not CSV"),
        ("bad.csv", b"", "it has no rows"),
        ("bad.jsonl", b"", "it has no rows"),
        ("bad.jsonl", b'{"en": "\xff\xfe"}\n', "not UTF-8 text"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said):
        task(written(tmp_path, name, content)).examples(None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", b"\xef\xbb\xbf" + ROWS),
        ("rows.jsonl.gz", b"\xef\xbb\xbf" + ROWS),
        ("rows.ndjson", ROWS),
        ("rows.csv", b"en,de\r\na dog,ein Hund\r\n\r\na cat,eine Katze\r\n"),
        ("rows.csv.gz", b'\xef\xbb\xbfen,note,de\n"a dog","1,5",ein Hund\na cat,,eine Katze\n'),
        ("rows.csv", b"en;de\na dog;ein Hund\na cat;eine Katze\n"),
        ("rows.csv", b",en,de\n0,a dog,ein Hund\n1,a cat,eine Katze\n"),
        ("rows.tsv", b"de\ten\nein Hund\ta dog\neine Katze\ta cat\n"),
    ],
)
def test_the_same_rows_in_each_format(tmp_path: Path, name: str, content: bytes) -> None:
    examples = task(written(tmp_path, name, content), prefix="").examples(None)
    assert [(e.prompt, e.reference) for e in examples] == [("a dog", "ein Hund"), ("a cat", "eine Katze")]


def test_a_value_of_a_csv_file_may_hold_lines_and_be_long(tmp_path: Path) -> None:
    long = "word " * 50_000
    content = f'en,de\n"two\nlines",x\n"{long}",y\n"broken\nrow"\n'.encode()
    file = written(tmp_path, "rows.csv", content)
    assert [e.prompt for e in task(file, prefix="").examples(2)] == ["two\nlines", long]
    with pytest.raises(UserError, match=r"rows\.csv, line 6: 1 values"):
        task(file).examples(None)


def test_a_bad_row_of_the_training_text_names_that_file(tmp_path: Path) -> None:
    rows, train = (
        written(tmp_path, "rows.jsonl", ROWS),
        written(tmp_path, "train.jsonl", b'{"en": "a", "german": "b"}\n'),
    )
    with pytest.raises(UserError, match=r"train\.jsonl, line 1: no field 'de' \(it has en, german\)") as error:
        list(task(rows, train_path=str(train)).training_text())
    assert "rows.jsonl" not in str(error.value) and "task.path" not in str(error.value)


def test_a_broken_gzip_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl.gz"
    file.write_bytes(gzip.compress(ROWS * 100)[:-20])
    with pytest.raises(UserError, match=r"bad\.jsonl\.gz: broken gzip file"):
        task(file).examples(None)
    file.write_bytes(b"not gzip at all")
    with pytest.raises(UserError, match="broken gzip file"):
        task(file).examples(None)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder holds no file"):
        task(tmp_path).examples(None)


def test_training_text_and_its_key_follow_the_content(tmp_path: Path) -> None:
    rows, train = written(tmp_path, "rows.jsonl", ROWS), written(tmp_path, "train.jsonl", ROWS)
    made = task(rows, train_path=str(train))
    assert list(made.training_text()) == ["ein Hund", "eine Katze"]
    key = made.training_key()
    assert key == task(rows, train_path=str(train)).training_key()
    assert key != task(rows, train_path=str(train), train_limit=1).training_key()
    train.write_bytes(ROWS + ROWS)
    assert key != made.training_key()


def test_own_rows_need_their_own_training_text(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"task\.train_path is not set: .*draft\.top_tokens .*t5-nano-top1000.*draft=t5-nano\)"
    ):
        list(task(written(tmp_path, "rows.jsonl", ROWS)).training_text())


def test_a_hub_task_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specbench.tasks.hub_is_reachable", lambda: False)
    hub = task(hub="wmt/wmt14", subset="de-en", revision="0" * 40)
    with pytest.raises(MachineError, match="wmt/wmt14 .*no connection.*offline choices"):
        hub.examples(1)


def test_translation_rows_of_the_hub_are_laid_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"translation": {"en": "a dog", "de": "ein Hund"}}]
    monkeypatch.setattr("specbench.tasks.hub_is_reachable", lambda: True)
    asked = {}

    def load_dataset(*names: object, **keys: object) -> list[dict[str, dict[str, str]]]:
        asked.update(keys, names=names)
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (example,) = task(hub="wmt/wmt14", subset="de-en", revision="0" * 40).examples(5)
    assert example.reference == "ein Hund"
    assert asked["names"] == ("wmt/wmt14", "de-en")
    assert asked["revision"] == "0" * 40 and asked["streaming"] is True


def test_an_order_is_drawn_with_a_seed_and_turns_remain_together() -> None:
    turns = [Example(index, "", None, turns=["a", "b"][: index % 2 + 1] if index < 4 else []) for index in range(10)]
    found = [example.index for example in shuffled(turns, 1)]
    assert found == [example.index for example in shuffled(turns, 1)] != [example.index for example in turns]
    assert sorted(found) == list(range(10))
    assert all(found.index(later) == found.index(later - 1) + 1 for later in (1, 3))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"%PDF-1.4 a", "a PDF"),
        (b"PK\x03\x04 a", "a zip archive"),
        (b"GGUF a", "a model in GGUF"),
        (b"BZh91AY&SY", "compressed by bzip2"),
    ],
)
def test_a_file_of_another_kind_is_named_not_read_as_prompts(tmp_path: Path, content: bytes, kind: str) -> None:
    with pytest.raises(UserError, match=rf"rows\.x: is {kind}.*; give \.jsonl"):
        task(written(tmp_path, "rows.x", content)).examples(None)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.txt", "rows.csv"])
def test_rows_that_are_packed_under_a_plain_name_are_told_which_name_to_have(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(ROWS))
    with pytest.raises(UserError, match=r"is compressed by gzip; give it a name that ends in \.gz"):
        task(file).examples(None)


def test_a_line_that_is_no_json_has_one_line_number(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: not a JSON object on one line \(.*, character \d+\)$"):
        task(written(tmp_path, "rows.jsonl", ROWS.splitlines(keepends=True)[0] + b'{"en": "a"\n')).examples(None)
    said = r"\(Invalid control character, character 10\)$"  # not 'character at, character'
    with pytest.raises(UserError, match=said):
        task(written(tmp_path, "rows.jsonl", b'{"en": "a\n')).examples(None)
