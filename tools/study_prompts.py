"""Training prompts for heads of a chat model, of the kinds of the tasks chat, code, summaries and translation.

    python tools/study_prompts.py PROMPTS.jsonl --rows 2000 [--texts FILE ...]
    python tools/study_prompts.py TEXTS.jsonl --completions FOLDER --target FOLDER

The first makes prompts: questions, functions to complete and sentences to translate from the templates and words
below, texts to summarise and further sentences to translate from the rows of FILE (field text or article, or plain
text). Equal words give equal prompts; a recipe leaves out those that are near a test prompt (`data.exclude`). The
second writes the completions that a training has kept (`distill.outputs`) as rows of text, which n-gram drafts and
retrieval are fitted on (`task.train_path`).
"""

import argparse
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from specbench.train.networks import load_tokenizer
from specbench.train.passages import sentences
from specbench.train.recipe_rows import read

THINGS = (
    "a bicycle chain", "an apple tree", "a wool sweater", "a wooden floor", "a coffee machine", "a mirror",
    "a leather bag", "rice", "an old clock", "a tent", "a garden pond", "a piano", "a hedge", "a fireplace",
    "a violin", "lentils", "a camera lens", "fresh herbs", "a cast-iron pan", "a winter coat", "a fish tank",
    "a blackboard", "houseplants", "a rain barrel", "a printer", "a sleeping bag",
)  # fmt: skip
TOPICS = (
    "tides", "volcanoes", "inflation", "photosynthesis", "the moon landing", "the bronze age", "glaciers", "bees",
    "batteries", "magnets", "earthquakes", "the silk road", "vitamins", "black holes", "coral reefs", "the alphabet",
    "radio waves", "mushrooms", "taxes", "insulin", "opera", "steam engines", "elections", "migration of birds",
    "the human ear", "fermentation", "the stock market", "rainbows", "cement", "the water cycle", "dialects",
    "satellites", "antibiotics", "perspective in painting", "the postal service", "tea",
)  # fmt: skip
OCCASIONS = (
    "a birthday of a friend who turns fifty", "the first day at a new school", "a picnic with forty guests",
    "a move to another country", "a week without internet", "a power cut in winter", "a visit of my parents",
    "a class reunion", "a long flight with a baby", "a neighbourhood party", "a job interview by video",
    "a weekend in the mountains", "an exam in biology", "a farewell of a colleague", "a marathon in spring",
    "a rainy holiday at the sea", "a flat that is being painted", "a choir concert in a church",
)  # fmt: skip
CHAT = (
    ("How do I clean and store {thing} for the winter?", "thing"),
    ("What should I look for when I buy {thing} second-hand?", "thing"),
    ("Give me five tips for looking after {thing}.", "thing"),
    ("What usually goes wrong with {thing}, and how do I repair it?", "thing"),
    ("Explain {topic} to a child of nine.", "topic"),
    ("What are three common misunderstandings about {topic}?", "topic"),
    ("Write a short dialogue between two neighbours about {topic}.", "topic"),
    ("Why does {topic} matter in everyday life?", "topic"),
    ("Describe the history of {topic} in about a hundred words.", "topic"),
    ("Ask me five quiz questions about {topic} and give the answers below.", "topic"),
    ("Help me plan {occasion}.", "occasion"), ("Write a friendly message about {occasion}.", "occasion"),
    ("Make a list of what I need for {occasion}.", "occasion"),
    ("What could go wrong at {occasion}, and how can I prepare for it?", "occasion"),
)  # fmt: skip
NOUNS = (
    "invoices", "temperatures",
    "players", "recipes", "flights", "students", "messages", "tickets", "songs", "parcels", "sensors", "shifts",
    "employees", "paragraphs", "coordinates", "prices", "stations", "votes", "samples", "colours", "files", "matches",
    "rooms", "pages",
)  # fmt: skip
VERBS = (
    ("sort", "sorted by {field}, the largest first"), ("count", "and how many of them have each {field}"),
    ("filter", "whose {field} is above a limit"), ("group", "grouped by {field}"),
    ("average", "and the mean of their {field}"), ("find", "with the smallest {field}, or None if there are none"),
    ("rename", "with the key {field} renamed to 'label'"),
    ("validate", "after checking that every one has a {field}; raise ValueError otherwise"),
    ("sum", "and the total of their {field}"), ("pair", "in pairs whose {field} is equal"),
)  # fmt: skip
FIELDS = ("size", "date", "name", "score", "weight", "owner", "length", "priority", "country", "age")
TYPES = ("list[dict]", "list[tuple]", "dict[str, dict]", "Iterable[dict]")
ASK_CODE = ("Complete this function.", "Implement this function in Python.", "Write this function.")
ASK_SUMMARY = (
    "Summarise the following text in two sentences.", "Give a short summary of this text.",
    "What is this text about? Be brief.", "Write the three most important points of this text.",
)  # fmt: skip
WHO = (
    "My sister", "The driver", "Our teacher", "The young doctor", "A neighbour", "The mayor", "His uncle",
    "The gardener", "The new cook",
)  # fmt: skip
DID = (
    "forgot the tickets at home", "found a wallet on the bench",
    "painted the kitchen in two days", "missed the last bus", "learned to swim this summer",
    "wrote a long letter to the bank", "sold the old car", "invited everybody to dinner",
    "repaired the roof before the storm", "broke a leg on the stairs", "opened a small shop", "read the report twice",
)  # fmt: skip
WHEN = (
    "because nobody had reminded them", "although it was raining", "before the guests arrived",
    "and did not tell anyone", "so we had to change our plans", "while the children were asleep",
    "for the first time in years", "and was very proud of it",
)  # fmt: skip
LANGUAGES = ("German", "French", "Spanish", "Italian", "Dutch")
ASK_TRANSLATION = (
    "Translate into {language}: {text}",
    "Translate the following text into {language}.\n\n{text}",
    "Say this in {language}: {text}",
)


def chat(draw: random.Random) -> str:
    """A question about a thing, a topic or an occasion."""
    text, kind = draw.choice(CHAT)
    return text.format(**{kind: draw.choice({"thing": THINGS, "topic": TOPICS, "occasion": OCCASIONS}[kind])})


def code(draw: random.Random) -> str:
    """A signature with a docstring, to complete."""
    (verb, what), noun, field, kind = draw.choice(VERBS), draw.choice(NOUNS), draw.choice(FIELDS), draw.choice(TYPES)
    head = f"def {verb}_{noun}_by_{field}({noun}: {kind}):"
    return f'{draw.choice(ASK_CODE)}\n\n```python\n{head}\n    """The {noun}, {what.format(field=field)}."""\n```'


def summary(draw: random.Random, texts: list[str]) -> str:
    """A text of 100 to 350 words to summarise, which begins and ends with a sentence."""
    text = sentences(draw.choice(texts))
    start = draw.randrange(len(text))
    chosen: list[str] = []
    most = draw.randint(100, 350)
    for sentence in text[start:]:
        if chosen and len(" ".join([*chosen, sentence]).split()) > most:
            break
        chosen.append(sentence)
    return f"{draw.choice(ASK_SUMMARY)}\n\n{' '.join(chosen)}" if len(" ".join(chosen).split()) >= 60 else ""


def translation(draw: random.Random, texts: list[str]) -> str:
    """A sentence of the words above, or of a text, to translate."""
    text = f"{draw.choice(WHO)} {draw.choice(DID)} {draw.choice(WHEN)}."
    if texts and draw.random() < 0.5:
        text = draw.choice(sentences(draw.choice(texts)))
    if not 4 <= len(text.split()) <= 60:
        return ""
    return draw.choice(ASK_TRANSLATION).format(language=draw.choice(LANGUAGES), text=text)


def prompts(texts: list[str], seed: int) -> Iterator[dict[str, str]]:
    """Different prompts of the four kinds in turn, without end; summaries only if there are texts."""
    draw, seen = random.Random(seed), set()
    kinds = {"chat": chat, "code": code, "translation": lambda one: translation(one, texts)}
    if texts:
        kinds["summaries"] = lambda one: summary(one, texts)
    failed = 0
    while failed < 10_000:
        for name, make in kinds.items():
            prompt = make(draw)
            if prompt and prompt not in seen:
                seen.add(prompt)
                failed = 0
                yield {"prompt": prompt, "category": name}
            else:
                failed += 1


def joined(files: list[str], words: int = 400) -> list[str]:
    """Texts from the rows of `files`: neighbouring rows are joined until a text has so many words."""
    found: list[str] = []
    for file in files:
        held: list[str] = []
        for row in read(file):
            held.append(str(row.get("text", row.get("article", ""))))
            if len(" ".join(held).split()) >= words:
                found.append(" ".join(held))
                held = []
        found += [" ".join(held)] if held else []
    return [text for text in found if text.strip()]


def completions(folder: str, target: str) -> Iterator[dict[str, str]]:
    """The completions in a folder of `distill.outputs`, as text."""
    tokenizer = load_tokenizer(target)
    for file in sorted(Path(folder).glob("target-*.jsonl")):
        for row in read(str(file)):
            yield {"text": tokenizer.decode(row["output"], skip_special_tokens=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("written")
    parser.add_argument("--rows", type=int, default=2000, help="prompts to write (default: %(default)s)")
    parser.add_argument("--texts", nargs="*", default=[], help="files of texts to summarise and to translate from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--completions", help="write the completions in this folder instead")
    parser.add_argument("--target", help="with --completions: the model that wrote them")
    args = parser.parse_args()
    if args.completions and not args.target:
        parser.error("--completions needs --target")
    rows = completions(args.completions, args.target) if args.completions else prompts(joined(args.texts), args.seed)
    made = list(rows if args.completions else islice(rows, args.rows))
    Path(args.written).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")
    print(f"{args.written}: {len(made)} rows")


if __name__ == "__main__":
    main()
