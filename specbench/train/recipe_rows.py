"""Rows of training text: from files or the hub, filtered, and kept apart from what is held out.

Rows are plain dictionaries of strings.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench.config.schema import TaskConfig
from specbench.errors import MachineError, UserError, first_line
from specbench.tasks import hub_rows
from specbench.tasks.row_files import read_rows
from specbench.train.recipe_places import resolve
from specbench.train.recipe_schema import DataPlan

# Words in more than this share of the sentences (and in more than this number) are common: they do not make two
# sentences candidates for one group, since every sentence would then be compared with every other.
COMMON, RARE = 0.05, 10


def words(text: str) -> frozenset[str]:
    """The set of a sentence's words, without case and punctuation."""
    return frozenset(re.findall(r"\w+", text.lower()))


def related_groups(texts: Sequence[str], full: Callable[[Sequence[int]], bool]) -> list[list[int]]:
    """Indices of `texts` in groups, each index once, in the order of first members.

    A group starts with the first text that is left. The text most similar to the group is added until `full(group)`.
    Similarity is the sum of idf over the words shared with any member, divided by the square root of the text's own
    sum. Texts with exactly the words of a member are not candidates: a passage should not say one thing twice. If there
    is no candidate (no text left shares a word that is not common), the next text in order is added.

    Sums are exact (`fsum`), since the order of a set of strings differs from process to process: the groups may not.
    """
    sets = [words(text) for text in texts]
    counts = Counter(word for members in sets for word in members)
    idf = {word: math.log(1 + len(texts) / count) for word, count in counts.items()}
    size = [math.sqrt(math.fsum(idf[word] for word in members)) or 1.0 for members in sets]
    having: dict[str, set[int]] = defaultdict(set)
    for index, members in enumerate(sets):
        for word in members:
            if counts[word] <= max(RARE, COMMON * len(texts)):
                having[word].add(index)
    left = dict.fromkeys(range(len(texts)))  # in order

    def take(index: int) -> int:
        del left[index]
        for word in sets[index]:
            having[word].discard(index)
        return index

    groups: list[list[int]] = []
    while left:
        group = [take(next(iter(left)))]
        while left and not full(group):
            seen = frozenset().union(*(sets[index] for index in group))
            word_sets = {sets[index] for index in group}
            near = {index for word in seen for index in having.get(word, ()) if sets[index] not in word_sets}
            score = {index: math.fsum(idf[word] for word in sets[index] & seen) / size[index] for index in near}
            best = max(score, key=lambda index: (score[index], -index)) if score else next(iter(left))
            group.append(take(best))
        groups.append(group)
    return groups


Row = dict[str, Any]
# Two sentences that share this much of their words are near copies: one may not be tested on, the other trained on.
NEAR_COPY = 0.8


def read(where: str) -> Iterator[Row]:
    """The rows of a file or a folder of shards; a line of plain text is a row with the field `text`."""
    return (row.fields for row in read_rows(Path(resolve(where))))


def load_rows(plan: DataPlan, fields: tuple[str, ...], paths: Iterable[str] | None = None) -> list[Row]:
    """The training rows of `plan`, or all rows of `paths`, each with every one of `fields` as a non-empty string.

    Raises UserError if there are no rows, or a row lacks a field.
    """
    keep = plan.keep if paths is None else {}
    if paths is None and plan.hub and not plan.path:
        rows: Iterable[Row] = _hub_rows(plan)
        where = plan.hub
    else:
        files = list(plan.path if paths is None else paths)
        rows = (row for file in files for row in read(file))
        where = ", ".join(files)
    asked = ("data.text",) if len(fields) == 1 else ("data.source", "data.target")
    kept: list[Row] = []
    seen = 0
    for row in rows:
        seen += 1
        if not is_kept(row, keep):
            continue
        for name in fields:
            if not isinstance(row.get(name), str):
                keys = " ".join(f"{key}=FIELD" for key in asked)
                raise UserError(
                    f"{where}, row {seen}: no text field '{name}' (it has {', '.join(sorted(row))}); "
                    f"name its fields: {keys}"
                )
        if plan.max_words and len(row[fields[0]].split()) > plan.max_words:
            continue
        if all(row[name].strip() for name in fields):
            kept.append(row)
        if plan.max_rows and len(kept) >= plan.max_rows:
            break
    if not kept:
        raise UserError(f"{where}: {_why_none(seen, keep, plan.max_words)}")
    return kept


def _why_none(seen: int, keep: dict[str, Any], max_words: int | None) -> str:
    """What left none of `seen` rows."""
    if not seen:
        return "holds no row"
    limits = [f"data.keep={dict(keep)}"] if keep else []
    limits += [f"data.max_words={max_words}"] if max_words else []
    return f"no row is left of {seen} after {' and '.join(limits)}" if limits else "no row holds text but spaces"


def _hub_rows(plan: DataPlan) -> Iterator[Row]:
    try:
        yield from hub_rows(
            TaskConfig(name="data", hub=plan.hub, subset=plan.subset, revision=plan.revision), plan.split
        )
    except MachineError as error:
        reason = first_line(error.__cause__ or error)
        raise MachineError(
            f"data.hub={plan.hub} cannot be read: {reason}; without the hub, give data.path=[FILE,...]"
        ) from error


def is_kept(row: Row, keep: dict[str, Any]) -> bool:
    """Whether each field that `keep` names has one of its values."""
    lists = {name: values if isinstance(values, (list, tuple)) else [values] for name, values in keep.items()}
    return all(row.get(name) in values for name, values in lists.items())


class HeldOut:
    """Sentences that must not be trained on, and their near copies (Jaccard overlap of words >= NEAR_COPY)."""

    def __init__(self, rows: Iterable[Row], fields: tuple[str, ...]) -> None:
        self.fields = fields
        self._sets: dict[str, list[frozenset[str]]] = {name: [] for name in fields}
        self._by_word: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in fields}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Add `row` to the rows that must not be trained on."""
        for name in self.fields:
            sentence = words(row[name])
            for word in sentence:
                self._by_word[name][word].append(len(self._sets[name]))
            self._sets[name].append(sentence)

    def covers(self, row: Row) -> bool:
        """Whether either side of this row is a held-out sentence or a near copy of it."""
        return any(self._near(name, words(row[name])) for name in self.fields)

    def _near(self, name: str, sentence: frozenset[str]) -> bool:
        shared = Counter(number for word in sentence for number in self._by_word[name].get(word, ()))
        return any(count / len(sentence | self._sets[name][number]) >= NEAR_COPY for number, count in shared.items())


def without_held_out(rows: list[Row], plan: DataPlan, fields: tuple[str, ...]) -> list[Row]:
    """`rows` minus the sentences of `plan.exclude` and their near copies."""
    if not plan.exclude:
        return rows
    held_out = HeldOut((row for file in plan.exclude for row in read(file)), fields)
    return [row for row in rows if not held_out.covers(row)]


def joined(rows: list[Row], plan: DataPlan, seed: int) -> list[Row]:
    """Extra rows: the rows that `plan.join` selects, shuffled and joined in twos to fours.

    With `plan.join_related` each is joined a second time, with rows that share its words. Very short sentences by
    themselves teach a model to stop early; joined, they also make passages.
    """
    if not plan.join:
        return []
    draw = random.Random(seed)
    short = [row for row in rows if is_kept(row, plan.join)]
    draw.shuffle(short)
    groups: list[list[Row]] = []
    start = 0
    while start < len(short):
        groups.append(short[start : start + draw.choice((2, 3, 4))])
        start += len(groups[-1])
    if plan.join_related:
        groups += _related(short, plan.source, draw)
    fields = (plan.source, plan.target)
    return [{name: " ".join(row[name] for row in group) for name in fields} for group in groups]


def _related(rows: list[Row], field: str, draw: random.Random) -> list[list[Row]]:
    """Groups of two to four rows whose `field` shares words."""
    sizes = [draw.choice((2, 3, 4)) for _ in rows]
    groups = related_groups([row[field] for row in rows], lambda group: len(group) == sizes[group[0]])
    return [[rows[index] for index in group] for group in groups]
