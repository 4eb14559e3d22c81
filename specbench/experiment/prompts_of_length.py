"""Prompts of a given length, made from a task's own rows: `context=4k`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from specbench.config.schema import RunConfig, TaskConfig
from specbench.errors import UserError
from specbench.tasks import Example, Task
from specbench.text.vocabulary import Vocabulary

Length = Callable[[Example], int]  # tokens of an example as a prompt
GAP = "\n\n"
FULL = 0.75  # of the tokens asked for, at least


class Passage(NamedTuple):
    """A row as it stands before others, its tokens, and whose row it is; None: of the training set."""

    text: str
    tokens: int
    row: int | None


def in_context(
    config: RunConfig, vocabulary: Vocabulary, examples: Sequence[Example], length: Length
) -> tuple[list[Example], int]:
    """`examples`, each after other rows of its task, and how many were left out as too long by themselves.

    Raises UserError if the task's rows are too few, or each is too long.
    """
    room, task = config.context_tokens, Task(config.task)
    assert room is not None
    spare = [_answers(config, one) for one in examples]
    fitting = [
        (one, room - length(one) - more)
        for one, more in zip(examples, spare, strict=True)
        if length(one) + more <= room
    ]
    if not fitting:
        shortest = min(length(one) + more for one, more in zip(examples, spare, strict=True))
        raise UserError(f"context={config.context}: the shortest prompt of {task.origin()} has {shortest} tokens")
    pool = list(_pool(config, vocabulary, examples, task, max(left for _, left in fitting)))
    return [_lengthened(config, one, left, pool, length) for one, left in fitting], len(examples) - len(fitting)


def _answers(config: RunConfig, example: Example) -> int:
    """Maximum number of tokens in the target's answers to the turns before this one."""
    return config.max_new_tokens * max(0, len(example.turns) - 1)


def _pool(
    config: RunConfig, vocabulary: Vocabulary, examples: Sequence[Example], task: Task, needed: int
) -> Iterator[Passage]:
    """The rows of `examples`, and further ones as far as these make fewer than `needed` tokens beside one of them."""
    first_turns = [one for one in examples if len(one.turns) < 2 and one.turn < 2]
    rows = chain(first_turns, task.beyond(len(examples)))
    texts = ((passage_of(config.task, vocabulary, one), one.index) for one in rows)
    total = longest = 0
    for number, (text, index) in enumerate(chain(texts, ((text, None) for text in task.spare_text()))):
        if number >= len(first_turns) and total - longest >= needed:
            return
        found = Passage(text, len(vocabulary.continuation(text + GAP)), index)
        total, longest = total + found.tokens, max(longest, found.tokens)
        yield found


def passage_of(task: TaskConfig, vocabulary: Vocabulary, example: Example) -> str:
    """A row as it stands before others."""
    if task.source_field is None and task.template is None:
        return example.reference or example.prompt
    if vocabulary.is_encoder_decoder:
        return example.prompt
    return "".join((example.prompt, task.suffix or GAP, example.reference)) if example.reference else example.prompt


def _lengthened(config: RunConfig, example: Example, left: int, pool: Sequence[Passage], length: Length) -> Example:
    index = example.index - max(0, len(example.turns) - 1, example.turn - 1)  # of its row's first turn
    own = next((place for place, one in enumerate(pool) if one.row == index), -1)
    picked: list[Passage] = []
    for one in (*pool[own + 1 :], *pool[: max(0, own)]):
        if one.tokens <= left:
            picked.append(one)
            left -= one.tokens
    room = config.context_tokens or 0
    if room - left < FULL * room:
        unused = len(pool) - (own >= 0) > len(picked)
        raise UserError(
            f"context={config.context}: whole rows of task={config.task.name} and its training text make {room - left} "
            f"tokens of it ({'the others are longer than what is left' if unused else 'there are no more'}); give "
            f"{'a longer' if unused else 'a shorter'} context, or other rows with task.path=FILE.jsonl"
        )
    while True:
        made = _after([one.text for one in picked], example)
        # A joined text may have more tokens than its parts.
        if not picked or length(made) + _answers(config, example) <= room:
            return made
        del picked[0]


def _after(texts: Sequence[str], example: Example) -> Example:
    """`example` with `texts` before its prompt, or before the first words of the user."""
    before = "".join(text + GAP for text in texts)
    turns = [before + example.turns[0], *example.turns[1:]] if example.turns else []
    first = next((number for number, one in enumerate(example.messages) if one["role"] == "user"), None)
    messages = [
        one | {"content": before + one["content"]} if number == first else one
        for number, one in enumerate(example.messages)
    ]
    return replace(example, prompt=turns[-1] if turns else before + example.prompt, turns=turns, messages=messages)
