"""How the files in specbench/shipped/data were selected.

    python tools/make_shipped_data.py PAIRS.jsonl.gz --moby-dick FILE --state-of-the-union FILE

PAIRS has en, de and src (rows with src=tatoeba are used); the other two have one text per row.
"""

import argparse
import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from specbench.config.paths import shipped
from specbench.train.networks import load_tokenizer
from specbench.train.passages import lead, sentences
from specbench.train.recipe_rows import HeldOut, Row, read, related_groups

FIELDS = ("en", "de")
SUMMARY = ("article", "highlights")
TOKENS = 25  # a passage ends with the sentence that brings its German to this many tokens, or with its fourth


def held_out_pairs(rows: list[Row], count: int) -> list[Row]:
    """Longer sentences first, no near copies among them, and at most six that begin with the same two words."""
    long = [row for row in rows if len(row["en"].split()) >= 6]
    long += [row for row in rows if len(row["en"].split()) == 5 and len(row["de"].split()) >= 6]
    picked: list[Row] = []
    begun: Counter[str] = Counter()
    seen = HeldOut([], FIELDS)
    for row in long:
        beginning = " ".join(row["en"].lower().split()[:2])
        if begun[beginning] >= 6 or seen.covers(row):
            continue
        begun[beginning] += 1
        picked.append(row)
        seen.add(row)
        if len(picked) == count:
            break
    return picked


def other_pairs(rows: list[Row], held: list[Row], count: int) -> list[Row]:
    """Pairs for n-grams: no near copy of a held-out sentence, no English sentence twice."""
    held_out = HeldOut(held, FIELDS)
    english: set[str] = set()
    picked: list[Row] = []
    for row in rows:
        if row["en"].lower() not in english and not held_out.covers(row) and len(picked) < count:
            english.add(row["en"].lower())
            picked.append(row)
    return picked


def joined_pairs(rows: list[Row]) -> list[Row]:
    """Passages of two to four pairs whose English shares words, each until its German has `TOKENS` tokens."""
    tokenizer = load_tokenizer("shipped:models/t5-mini")
    tokens = [len(tokenizer(row["de"], add_special_tokens=False)["input_ids"]) for row in rows]

    def full(group: Sequence[int]) -> bool:
        return len(group) == 4 or (len(group) > 1 and sum(tokens[index] for index in group) >= TOKENS)

    groups = related_groups([row["en"] for row in rows], full)
    return [{name: " ".join(rows[index][name] for index in group) for name in FIELDS} for group in groups]


def passages(texts: Iterable[str]) -> list[Row]:
    """The beginning of each text, of 120 to 220 words; the highlights are its first sentences, up to 45 words."""
    made: list[Row] = []
    for text in texts:
        left = sentences(text)
        article: list[str] = []
        while left and len(" ".join(article).split()) < 120:
            article.append(left.pop(0))
        highlights = " ".join(lead(article))
        if 120 <= len(" ".join(article).split()) <= 220 and len(highlights.split()) <= 60:
            made.append({"article": " ".join(article), "highlights": highlights})
    return made


def write(name: str, rows: list[Row], fields: tuple[str, ...]) -> None:
    """The same rows give the same bytes: no file name and no time in the gzip header."""
    with (
        Path(shipped("data", name)).open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as out,
    ):
        for row in rows:
            out.write((json.dumps({key: row[key] for key in fields}, ensure_ascii=False) + "\n").encode())
    print(f"{name}: {len(rows)} rows")


def shift(pairs: list[Row], passages: list[Row]) -> list[Row]:
    """Translations, then summaries, as prompts: the domain changes in the middle of a run."""
    translations = [
        {"prompt": f"translate English to German: {row['en']}", "reference": row["de"], "category": "translation"}
        for row in pairs[:90]
    ]
    summaries = [
        {"prompt": f"summarize: {row['article']}", "reference": row["highlights"], "category": "summary"}
        for row in passages
    ]
    return translations + summaries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs")
    parser.add_argument("--moby-dick", required=True)
    parser.add_argument("--state-of-the-union", required=True)
    args = parser.parse_args()
    draw = random.Random(7)
    rows = [row for row in read(args.pairs) if row["src"] == "tatoeba"]
    draw.shuffle(rows)
    held = pairs = held_out_pairs(rows, 300)
    write("ende-mini-sentences.jsonl.gz", held, FIELDS)
    write("ende-mini.jsonl.gz", joined_pairs(held), FIELDS)
    write("ende-mini-train.jsonl.gz", other_pairs(rows, held, 4000), FIELDS)
    novel, speeches = (
        passages(row["text"] for row in read(file)) for file in (args.moby_dick, args.state_of_the_union)
    )
    held = draw.sample(novel, 15) + draw.sample(speeches, 15)
    write("sum-mini.jsonl.gz", held, SUMMARY)
    write("shift-mini.jsonl.gz", shift(pairs, held), ("prompt", "reference", "category"))
    others = [row for row in novel + speeches if row not in held]
    write("sum-mini-train.jsonl.gz", draw.sample(others, min(300, len(others))), SUMMARY)


if __name__ == "__main__":
    main()
