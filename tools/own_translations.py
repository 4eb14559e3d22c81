"""Translations by t5-mini itself, the best of its beams: what recipe t5-mini-own learns from.

    python tools/own_translations.py PAIRS.jsonl.gz OWN.jsonl.gz --captions 12000

PAIRS has en, de and src; OWN has the same rows of Tatoeba and Multi30k with the model's own translation as `de`. A model
that learns from its own translations is less undecided between equally good ones, so a draft can follow it
(sequence-level distillation, Kim and Rush 2016). The same command with the same model writes the same file.
"""

import argparse
import gzip
import json
import random
from pathlib import Path

import torch
from tqdm.auto import tqdm

from specbench.train.networks import load, load_tokenizer
from specbench.train.rows import Row, read, without_held_out
from specbench.train.schema import DataPlan

PREFIX = "translate English to German: "
HELD_OUT = DataPlan(exclude=["shipped:data/ende-mini-sentences.jsonl.gz"])


def chosen(pairs: str, captions: int, seed: int) -> list[Row]:
    """All Tatoeba sentences, and as many captions, drawn by the seed; without held-out sentences."""
    rows = list(read(pairs))
    sentences = [row for row in rows if row["src"] == "tatoeba"]
    drawn = random.Random(seed).sample([row for row in rows if row["src"] == "multi30k"], captions)
    return without_held_out(sentences + drawn, HELD_OUT, ("en", "de"))


def translate(rows: list[Row], model_name: str, beams: int, batch: int) -> list[Row]:
    """The rows with the model's own translation in place of the reference. Sources of like length share a batch."""
    model, tokenizer = load(model_name, "t5", torch.float32).eval(), load_tokenizer(model_name)
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]["en"]))
    written: dict[int, str] = {}
    for start in tqdm(range(0, len(order), batch), desc="batches"):
        group = order[start : start + batch]
        sources = tokenizer([PREFIX + rows[index]["en"] for index in group], padding=True, return_tensors="pt")
        room = 8 + int(1.5 * sources["input_ids"].shape[1])
        with torch.inference_mode():
            outputs = model.generate(
                input_ids=sources["input_ids"], attention_mask=sources["attention_mask"],
                num_beams=beams, do_sample=False, max_new_tokens=room,
            )  # fmt: skip
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        written |= dict(zip(group, texts, strict=True))
    return [row | {"de": written[index]} for index, row in enumerate(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs")
    parser.add_argument("own")
    parser.add_argument("--model", default="shipped:models/t5-mini")
    parser.add_argument("--captions", type=int, default=12000)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the first rows alone, to try it")
    args = parser.parse_args()
    rows = chosen(args.pairs, args.captions, args.seed)[: args.only]
    with gzip.open(Path(args.own), "wt", encoding="utf-8") as file:
        for row in translate(rows, args.model, args.beams, args.batch):
            file.write(json.dumps({key: row[key] for key in ("en", "de", "src")}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
