"""Passages to summarise, made of running text: the summary is the passage's own first sentences.

News put first what matters most, and a summary of the first sentences (lead-3) is hard to beat. A small model without
any article to learn from can learn that much from every running text.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence

from specbench.errors import UserError
from specbench.train.recipe_rows import Row, read
from specbench.train.recipe_schema import DataPlan, PassagePlan

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
LEAD_WORDS = 45


def sentences(text: str) -> list[str]:
    """`text` cut after each full stop, question mark and exclamation mark that a space follows."""
    return [sentence for sentence in SENTENCE_END.split(" ".join(text.split())) if sentence]


def lead(passage: Sequence[str], words: int = LEAD_WORDS) -> list[str]:
    """The first sentence, and those after it that fit in `words` with it."""
    taken: list[str] = []
    count = 0
    for sentence in passage:
        count += len(sentence.split())
        if taken and count > words:
            break
        taken.append(sentence)
    return taken


def lead_3(text: str) -> str:
    """The first three sentences: the usual baseline of news summaries."""
    return " ".join(sentences(text)[:3])


def made_passages(plan: PassagePlan, source: str, target: str, seed: int) -> list[Row]:
    """`plan.rows` passages from the texts of `plan.path`, a row each with its own `prefix`.

    None holds a sentence of `plan.exclude`. Begins and lengths are drawn by the seed. Raises UserError if no text is
    long enough.
    """
    if not plan.path:
        return []
    held = _held(plan.exclude)
    runs = [run for file in plan.path for run in _runs(_texts([file]), held)]
    draw = random.Random(seed)
    passages = [passage for run in runs for passage in _passages(run, plan, draw)]
    if plan.scrambled:
        words = sorted({word for run in runs for sentence in run for word in sentence.split()})
        passages = [_scrambled(p, words, draw) if draw.random() < plan.scrambled else p for p in passages]
    made = [{"prefix": plan.prefix, source: " ".join(p), target: " ".join(lead(p))} for p in passages]
    if not made:
        raise UserError(f"data.passages.path: no passage of {plan.words[0]} words or more in {', '.join(plan.path)}")
    draw.shuffle(made)
    return made[: plan.rows]


def without_sentences(rows: list[Row], plan: DataPlan, fields: tuple[str, ...]) -> list[Row]:
    """`rows` of running text, each cut where a sentence of `plan.exclude` stands in it."""
    held = _held(plan.exclude)
    if not held:
        return rows
    (text,) = fields
    return [{text: " ".join(run)} for row in rows for run in _runs([row[text]], held)]


def _held(files: Iterable[str]) -> set[str]:
    return {sentence for text in _texts(files) for sentence in sentences(text)}


def _texts(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        for number, row in enumerate(read(file), 1):
            text = row.get("text", row.get("article"))
            if not isinstance(text, str):
                raise UserError(f"{file}, row {number}: no text field 'text' (it has {', '.join(sorted(row))})")
            yield text


def _runs(texts: Iterable[str], held: set[str]) -> Iterator[list[str]]:
    """Sentences that follow each other, also from one row to the next; a held-out sentence ends a run."""
    run: list[str] = []
    for text in texts:
        for sentence in sentences(text):
            if sentence not in held:
                run.append(sentence)
            elif run:
                yield run
                run = []
    if run:
        yield run


def _passages(run: list[str], plan: PassagePlan, draw: random.Random) -> Iterator[list[str]]:
    """Passages, sentence by sentence, that begin at every few sentences and so overlap, but have different leads.

    Their lengths are spread evenly over orders of magnitude. A short one, also part of a sentence, is its own summary:
    on these a model learns to copy first; on only long passages it did not in the same number of steps.
    """
    start = 0
    least, most = plan.words
    while start < len(run):
        wanted = round(math.exp(draw.uniform(math.log(least), math.log(most))))
        passage = [" ".join(run[start].split()[:wanted])]
        count = len(passage[0].split())
        for sentence in run[start + 1 :]:
            count += len(sentence.split())
            if count > wanted:
                break
            passage.append(sentence)
        if least <= sum(len(sentence.split()) for sentence in passage):
            yield passage
        start += max(1, len(lead(passage)))


def _scrambled(passage: list[str], words: Sequence[str], draw: random.Random) -> list[str]:
    """The passage with other words, each as likely as any other, so mostly rare words: they can be copied, not guessed.

    What ends a sentence still ends it, and nothing else does.
    """

    def drawn(sentence: str) -> str:
        others = (draw.choice(words).rstrip(".!?") or word for word in sentence.split())
        return " ".join(others) + sentence[len(sentence.rstrip(".!?")) :]

    return [drawn(sentence) for sentence in passage]
