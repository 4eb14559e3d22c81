"""tools/own_translations.py: which rows it translates, and that a second run writes the same rows."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest

from specbench.train.recipe_rows import read
from tests.support.paths import ROOT

TOOL = ROOT / "tools" / "own_translations.py"


def write(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_models_own_translations_replace_the_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = next(iter(read("shipped:data/ende-mini-sentences.jsonl.gz")))
    captions = [{"en": f"{n} dogs run.", "de": "eine Vorlage", "src": "multi30k"} for n in ("Two", "Three", "Four")]
    pairs = write(
        tmp_path / "pairs.jsonl",
        [
            {"en": "The baker sells bread in the village.", "de": "eine Vorlage", "src": "tatoeba"},
            held | {"src": "tatoeba"},
            {"en": "a message", "de": "eine Meldung", "src": "software"},
            *captions,
        ],
    )
    files = [tmp_path / "own.jsonl.gz", tmp_path / "again.jsonl.gz"]
    for file in files:
        keys = ["--model", "shipped:models/t5-nano", "--captions", "2", "--beams", "2", "--batch", "2"]
        monkeypatch.setattr(sys, "argv", [str(TOOL), pairs, str(file), *keys])
        runpy.run_path(str(TOOL), run_name="__main__")
    first, again = ([json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()] for file in files)
    assert first == again
    assert [row["src"] for row in first] == ["tatoeba", "multi30k", "multi30k"]
    assert first[0]["en"] == "The baker sells bread in the village." and {row["en"] for row in first[1:]} < {
        row["en"] for row in captions
    }
    assert all(row["de"] and row["de"] != "eine Vorlage" and set(row) == {"en", "de", "src"} for row in first)
