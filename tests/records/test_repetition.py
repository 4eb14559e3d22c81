"""Completions that loop are marked, human text is not, and a run says so beside its speedup.

The threshold was chosen on every second shipped reference (the even rows); the rate of false marks is of the odd rows.
"""

import random
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import pytest
from tokenizers import Tokenizer

from specbench.analysis.degenerate import degenerate, looped, loops, repeated, repetition
from specbench.analysis.summary import completed, speedups
from specbench.cli import main
from specbench.config.paths import shipped
from specbench.records import store
from specbench.records.looping import many_loop, why_loops
from specbench.tasks.row_files import read_rows
from tests.support.made_records import make

# Each set of shipped references: its field, and the model that writes such texts.
SETS = MappingProxyType({
    "ende-mini": ("de", "t5-mini"), "ende-mini-sentences": ("de", "t5-mini"), "ende-mini-train": ("de", "t5-mini"),
    "sum-mini": ("highlights", "t5-mini"), "sum-mini-train": ("article", "gpt-mini"),
    "shift-mini": ("reference", "t5-mini"),
})  # fmt: skip
MOST_ROWS, MOST_TOKENS = 2000, 128
FALSE_MARKS = 0.01


def references(name: str, start: int) -> list[list[int]]:
    """Every second reference of a shipped set, in the tokens of the model that writes such texts."""
    field, model = SETS[name]
    tokenizer = Tokenizer.from_file(str(shipped("models", model) / "tokenizer.json"))
    rows = islice(read_rows(shipped("data", f"{name}.jsonl.gz")), start, MOST_ROWS, 2)
    return [tokenizer.encode(row.text(field, "")).ids[:MOST_TOKENS] for row in rows]


@pytest.mark.parametrize("start", [0, 1], ids=["chosen on", "held out"])
@pytest.mark.parametrize("name", SETS)
def test_references_are_not_marked(name: str, start: int) -> None:
    texts = references(name, start)
    assert sum(map(loops, texts)) <= FALSE_MARKS * len(texts)


def test_planted_loops_are_all_marked() -> None:
    """A phrase of 1 to 12 tokens, three times or more, over at least half of a reference."""
    draw = random.Random(0)
    texts = [text for name in ("ende-mini", "sum-mini", "shift-mini") for text in references(name, 1) if len(text) >= 8]
    for text in texts:
        for period in (1, 2, 3, 5, 8, 12):
            before = text[: draw.randrange(len(text))]
            copies = max(3, -(-max(8, len(before)) // period))
            phrase = draw.sample(range(1000), period)
            cut = draw.randrange(period)  # a limit cuts the last copy
            assert loops([*before, *phrase * copies, *phrase[:cut]])


def test_what_is_counted() -> None:
    assert looped([1, 2, 3, 4, 5, 6, 7, 8]) == repeated([1, 2, 3, 4]) == looped([]) == repeated([]) == 0
    assert looped([9, 1, 2, 1, 2, 1, 2, 9]) == 6 / 8  # three copies; the phrase may be cut in
    assert looped([1, 2, 1, 2, 9, 9]) == 0  # two are no loop
    assert looped([5, 5, 5, 8]) == 3 / 4
    assert repeated([1, 2, 3, 4, 9, 1, 2, 3, 4, 8]) == 8 / 10  # again, but not at once
    assert repetition([1], "the red dog ran off", "look, the red dog ran away").copied == 4 / 5
    assert repetition([7] * 64, "", "").compression > 4 > repetition(list(range(64)), "", "").compression
    assert not loops([3, 3, 3])  # too short to tell


def planted(results: Path, looping: int, prompts: int = 20) -> str:
    """A record of which some completions loop, on which the draft is twice as fast."""
    run_id = make(results, prompts=prompts)
    record = store.read(store.record_file(results, run_id))
    for prompt in record["prompts"][:looping]:
        for way in ("baseline", "speculative"):
            prompt[way].tokens = [5] * len(prompt[way].tokens)  # type: ignore[literal-required]
        prompt["speculative"].decode_s /= 2
    for name in [name for name in record["summary"] if name in ("looping", "repeated", "compression", "copied")]:
        del record["summary"][name]  # type: ignore[misc]
    store.write(results, record)
    return run_id


def test_an_older_record_gets_its_columns_and_the_speedup_without_loops(tmp_path: Path) -> None:
    record = store.read(store.record_file(tmp_path, planted(tmp_path, looping=5)))
    assert "looping" not in record["summary"]
    summary = completed(record)["summary"]
    assert summary["looping"] == 0.25 and many_loop(dict(summary))
    without = speedups(record["prompts"][5:])
    assert summary["speedup_without_loops"] == without["speedup_measured"]
    assert "25% of completions loop" in str(why_loops(dict(summary)))


def test_one_in_twenty_is_no_reason_for_a_mark(tmp_path: Path) -> None:
    prompts = store.read(store.record_file(tmp_path, planted(tmp_path, looping=1)))["prompts"]
    found = degenerate(prompts, None)
    assert found["looping"] == 0.05 and why_loops(dict(found)) is None


def test_results_show_the_share_and_the_speedup_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = planted(tmp_path, looping=5)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert "without loops" not in capsys.readouterr().out  # an older record, of which a list reads the summary alone
    assert main(["results", run_id, "--results", str(tmp_path)]) == 0
    assert "LOOPS: 25%" in capsys.readouterr().out
    store.write(tmp_path, completed(store.read(store.record_file(tmp_path, run_id))))
    assert main(["results", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "25%" in said and "without loops" in said
    assert main(["tables", "table2", "--results", str(tmp_path), "--min-prompts", "1"]) == 0


FIELDS = ("de", "highlights", "text")


def test_human_references_are_not_marked(shared: Path) -> None:
    """Of every set there, in words: at most one in a hundred."""
    for file in sorted((shared / "data").rglob("*.jsonl.gz")):
        rows = list(islice(read_rows(file), 500))
        field = next(name for name in FIELDS if name in rows[0].fields)
        numbers: dict[str, int] = {}
        lines = [row.text(field, "").split()[:MOST_TOKENS] for row in rows]
        words = [line for line in lines if line[:1] != ["="]]  # headings of wikitext: "= = = History = = ="
        texts = [[numbers.setdefault(word, len(numbers)) for word in line] for line in words]
        assert sum(map(loops, texts)) <= FALSE_MARKS * len(texts), file.name
