"""Write t5-mini-long's own translations, the best of five beams: the data of `conf/recipe/own-translations.yaml`.

    python tools/own_translations.py PAIRS.jsonl.gz OWN.jsonl.gz --model models/t5-mini-long

PAIRS has en, de and src. OWN has all Tatoeba rows and 12,000 Multi30k rows of PAIRS, without held-out sentences, with
the model's own translation as `de`. A model that learns from its own translations is less undecided between equally
good translations, so a draft can follow it (sequence-level distillation, Kim and Rush 2016). The same command with the
same model writes the same rows.
"""

import argparse
import gzip
import json
import random
from pathlib import Path

import torch
from tqdm.auto import tqdm

from specbench.train.networks import load, load_tokenizer
from specbench.train.recipe_rows import Row, read, without_held_out
from specbench.train.recipe_schema import DataPlan

PREFIX = "translate English to German: "
HELD_OUT = DataPlan(exclude=["shipped:data/ende-mini-sentences.jsonl.gz"])


def chosen(pairs: str, captions: int, seed: int) -> list[Row]:
    """All Tatoeba sentences and `captions` Multi30k captions (all if there are fewer), without held-out sentences."""
    rows = list(read(pairs))
    sentences = [row for row in rows if row["src"] == "tatoeba"]
    every = [row for row in rows if row["src"] == "multi30k"]
    drawn = random.Random(seed).sample(every, min(captions, len(every)))
    return without_held_out(sentences + drawn, HELD_OUT, ("en", "de"))


def translate(rows: list[Row], model_name: str, beams: int, batch: int) -> list[Row]:
    """The rows with the model's own translation in place of the reference. Sources of similar length share a batch."""
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
    parser.add_argument("--model", default="models/t5-mini-long", help="folder of the model (default: %(default)s)")
    parser.add_argument("--captions", type=int, default=12000, help="Multi30k rows, drawn by the seed")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="sources translated at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="translate only the first rows, for a trial")
    args = parser.parse_args()
    rows = chosen(args.pairs, args.captions, args.seed)[: args.only]
    with gzip.open(Path(args.own), "wt", encoding="utf-8") as file:
        for row in translate(rows, args.model, args.beams, args.batch):
            file.write(json.dumps({key: row[key] for key in ("en", "de", "src")}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
