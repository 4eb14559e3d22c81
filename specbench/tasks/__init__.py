"""Where prompts and references come from: the hub, your own rows, or the small sets that ship.

A `Task` streams `Example`s and training text. It handles fields and files, and is independent of tokens and models.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.config.paths import shipped
from specbench.config.schema import TaskConfig
from specbench.errors import MachineError, UserError, first_line
from specbench.files import digest
from specbench.hub import OFFLINE_TASKS, hub_failure, hub_is_reachable, silence
from specbench.tasks.row_files import (
    TEXT_FIELD,
    Message,
    Row,
    messages_of,
    prompt_ids_of,
    read_rows,
    split_answer,
    transcript,
)

# Retries of a broken stream, each of which is five of the hub's client; the library's own 20 take minutes.
STREAM_RETRIES = 3


def hub_rows(task: TaskConfig, split: str) -> Iterator[dict[str, object]]:
    """The rows of one split, streamed at the pinned revision; a row's `translation` (WMT's nesting) is flattened.

    Raises:
        UserError: the hub has no such data set or revision.
        MachineError: the hub cannot be read.
    """
    import datasets  # seconds of import, and only needed with the hub

    silence()
    datasets.logging.set_verbosity_error()
    datasets.config.STREAMING_READ_MAX_RETRIES = STREAM_RETRIES
    if not hub_is_reachable():
        datasets.config.HF_HUB_OFFLINE = True  # what is cached is found without asking
    try:
        rows = datasets.load_dataset(task.hub, task.subset, split=split, revision=task.revision, streaming=True)
        for row in rows:
            nested = row.get("translation")
            yield nested if isinstance(nested, dict) else row
    except Exception as error:  # datasets and the hub client raise a dozen kinds
        if hub_is_reachable() and (known := hub_failure(error, f"task={task.name}", task.hub or "", task.revision)):
            raise known from error
        reason = first_line(error) if hub_is_reachable() else "no connection"
        raise MachineError(
            f"task={task.name}: {task.hub} ({split}) cannot be read from the hub: {reason}; "
            f"offline choices: {OFFLINE_TASKS}"
        ) from error


def fetch_rows(task: TaskConfig) -> None:
    """Bring the rows of a task of the hub into the cache of `datasets`, where `hub_rows` finds them without the hub.

    Raises UserError and MachineError as `hub_rows`.
    """
    import datasets

    try:
        datasets.load_dataset(task.hub, task.subset, split=task.split, revision=task.revision)
    except Exception as error:  # datasets and the hub client raise a dozen kinds
        known = hub_failure(error, f"task={task.name}", task.hub or "", task.revision)
        raise known or MachineError(f"task={task.name}: {task.hub} cannot be fetched: {first_line(error)}") from error


@dataclass(frozen=True)
class Example:
    """One prompt: its text, and what a person wrote in answer to it, if anyone did.

    `messages` are the input of a chat template; empty for plain text. `shortened`: the task gives only the first words
    of the row (`prompt_words`), and there are more. `turns` are the user's up to this one, if a row has several: each
    but the first reads the answers to the examples before it. `category` is the row's kind. `token_ids` are the prompt
    if the row gives it as token ids.
    """

    index: int
    prompt: str
    reference: str | None
    messages: Sequence[Message] = ()
    shortened: bool = False
    turns: Sequence[str] = ()
    category: str | None = None
    turn: int = 0  # of a recorded conversation: which of the assistant's messages is the reference, from 1
    token_ids: tuple[int, ...] = ()


def shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    """`examples` in an order drawn with `seed`; the turns of a conversation remain together."""
    rows: list[list[Example]] = []
    for example in examples:
        if len(example.turns) < 2:
            rows.append([])
        rows[-1].append(example)
    random.Random(seed).shuffle(rows)
    return list(itertools.chain.from_iterable(rows))


def require_prompt(config: TaskConfig, example: Example) -> None:
    """Raise UserError if `example` has nothing to answer but the task's prefix."""
    if example.token_ids:
        return
    if config.source_field is not None and not example.prompt.removeprefix(config.prefix).strip():
        where = f"task={config.name}, row {example.index + 1}"
        raise UserError(f"{where}: the prompt is empty (field '{config.source_field}')")


def check_own_rows(config: TaskConfig, limit: int | None, later_turns: bool) -> None:
    """Read the rows of a file of the user's (`task.path`), before anything slow is imported or loaded.

    Raises UserError if the file is missing, or one of its first `limit` rows is no prompt.
    """
    if config.path is None:
        return
    words = config.prompt_words if config.source_field is not None else config.prompt_words or 0
    for example in Task(replace(config, prompt_words=words)).examples(limit, later_turns):
        require_prompt(config, example)


@dataclass(frozen=True)
class Task:
    """The examples of a `TaskConfig`, and text to fit drafts on. `prompt_words` must be resolved."""

    config: TaskConfig

    def examples(self, limit: int | None, later_turns: bool = True) -> list[Example]:
        """The first `limit` examples, each turn of a row by itself; without `later_turns` only the first turns.

        Raises UserError if there is no row, or a field is missing.
        """
        found = (example for example in self._examples() if later_turns or len(example.turns) < 2)
        examples = list(itertools.islice(found, limit))
        if not examples:
            raise UserError(f"{self.origin()}: it has no rows")
        return examples

    def beyond(self, count: int) -> Iterator[Example]:
        """The examples after the first `count`, of each row its first turn."""
        rest = itertools.islice(self._examples(), count, None)
        return (one for one in rest if len(one.turns) < 2 and one.turn < 2)

    def spare_text(self) -> Iterator[str]:
        """The training text if it is in a file, otherwise none."""
        return self.training_text() if self.config.train_path or self.config.train_shipped else iter(())

    def _examples(self) -> Iterator[Example]:
        config = self.config
        rows = self._rows(config.path, config.shipped, config.split)
        index = 0
        while group := list(itertools.islice(rows, config.rows_per_prompt)):
            for example in self._of_rows(index, group):
                if config.metric is not None and example.reference is None and len(example.turns) < 2:
                    raise UserError(
                        f"{group[0].where}: no reference for task.metric={config.metric}; "
                        "name its field with task.reference_field=, or set task.metric=null"
                    )
                yield example
                index += 1

    def _of_rows(self, index: int, group: Sequence[Row]) -> Iterator[Example]:
        """The examples of one prompt's rows: one for each turn."""
        config = self.config
        example = self._token_ids(index, group) or self._conversation(index, group) or self._text(index, group)
        category = group[0].fields.get(config.category_field or "")
        example = replace(example, category=None if category is None else str(category))
        if config.each_turn:
            yield from self._recorded(example, group[0])
            return
        if not example.turns:
            yield example
        for number in range(1, len(example.turns) + 1):
            turns = [config.prefix + example.turns[0], *example.turns[1:number]]
            yield replace(example, index=index + number - 1, prompt=turns[-1], turns=turns)

    def _recorded(self, example: Example, row: Row) -> Iterator[Example]:
        """A prompt for each message of the assistant in a conversation, after the messages before it."""
        if not example.messages and self.config.chat_template is not False:
            raise UserError(f"{row.where}: task.each_turn=true needs messages; this row has text")
        messages = messages_of(row, self.config.source_field or "") or []
        places = [place for place, one in enumerate(messages) if place and one["role"] == "assistant"]
        if not places:
            raise UserError(f"{row.where}: task.each_turn=true: no message is the assistant's")
        for number, place in enumerate(places):
            before = messages[:place]
            as_text = self.config.chat_template is False
            yield replace(
                example, index=example.index + number, turn=number + 1, reference=messages[place]["content"],
                prompt=transcript(before) + (f"\n{ANSWERING}" if as_text else ""), messages=() if as_text else before,
            )  # fmt: skip

    def _token_ids(self, index: int, group: Sequence[Row]) -> Example | None:
        """The example of a row that gives its prompt as token ids; None if it gives text."""
        config, row = self.config, group[0]
        if config.source_field is None or config.template is not None or (ids := prompt_ids_of(row)) is None:
            return None
        if not ids:
            raise UserError(f"{row.where}: the prompt has no token")
        if len(group) > 1:
            raise UserError(f"task.rows_per_prompt={len(group)}: must be 1 for prompts of token ids ({row.where})")
        if config.prefix or config.suffix or config.chat_template:
            given = "prefix=" if config.prefix else "suffix=" if config.suffix else "chat_template=null"
            raise UserError(f"{row.where}: a prompt of token ids is read as it is; set task.{given}")
        name = config.reference_field
        text = row.fields.get("prompt")
        return Example(
            index, text if isinstance(text, str) else "", None if name is None else self._field(row, name),
            token_ids=tuple(ids),
        )  # fmt: skip

    def _text(self, index: int, group: Sequence[Row]) -> Example:
        config = self.config
        name = config.reference_field
        reference = " ".join(self._field(row, name) for row in group) if name is not None else None
        turns: list[str] = []
        shortened = False
        if config.source_field is None and config.template is None:
            words = [self._field(row, name or TEXT_FIELD).split() for row in group]
            given = config.prompt_words or 0
            sources = [" ".join(text[:given]) for text in words]
            shortened = any(len(text) > given for text in words)
        else:
            asked = [self._turns(row) for row in group]
            sources = [" ".join(one) for one in asked]
            if len(asked[0]) > 1:
                self._require_one_row(group)
                turns = asked[0]
        prompt = config.prefix + " ".join(sources)
        messages = [{"role": "user", "content": prompt}] if config.chat_template and not turns else []
        return Example(index, prompt, reference, messages, shortened, turns)

    def _turns(self, row: Row) -> list[str]:
        source, reference = self.config.source_field, self.config.reference_field
        if self.config.template is not None:
            return [filled(self.config.template, row)]
        assert source is not None
        return turns_of(row, source, reference is None, WAY_OUT if reference is None else self._way_out(source))

    def _require_one_row(self, group: Sequence[Row]) -> None:
        if len(group) > 1:
            rows = self.config.rows_per_prompt
            raise UserError(f"task.rows_per_prompt={rows}: must be 1 for conversations ({group[0].where})")

    def _conversation(self, index: int, group: Sequence[Row]) -> Example | None:
        """The example that the messages of a row make; None if it holds none."""
        config, row = self.config, group[0]
        if config.source_field is None or config.template is not None:
            return None
        messages = messages_of(row, config.source_field)
        if messages is None:
            return None
        if config.chat_template is False and not config.each_turn:
            raise UserError(
                f"{row.where}: messages need a chat template; set task.chat_template=true, or leave it null"
            )
        self._require_one_row(group)
        asked, answer = split_answer(messages)
        if not any(message["content"].strip() for message in asked):
            raise UserError(f"{row.where}: the conversation holds nothing to answer")
        if config.reference_field is not None:
            answer = self._field(row, config.reference_field)
        return Example(index, transcript(asked), answer, asked)

    def training_text(self) -> Iterator[str]:
        """Up to `train_limit` texts to fit a draft on, in the language that the target writes.

        Raises UserError if the task has prompts of the user's but no training text, or a row lacks the field.
        """
        config = self.config
        if config.path is not None and config.train_path is None:
            raise UserError(
                "task.train_path is not set: n-gram drafts are fitted on training text, and draft.top_tokens "
                "(1000 in draft=t5-nano-top1000) counts its tokens; with your own task.path also name "
                "it: task.train_path=FILE.jsonl[.gz]; draft=lookup and draft=early-exit require none, nor do "
                "models without top_tokens (draft=t5-nano)"
            )
        way_out = "name the field with task.reference_field="
        if config.reference_field is None:
            way_out = f"training text is the field '{TEXT_FIELD}' of a row, or a line of plain text"
        rows = self._rows(config.train_path, config.train_shipped, config.train_split)
        for row in itertools.islice(rows, config.train_limit):
            yield row.text(config.reference_field or TEXT_FIELD, way_out)

    def training_key(self) -> str:
        """A name for the content of `training_text`: a file's bytes, or a pinned revision."""
        config = self.config
        file = self._file(config.train_path, config.train_shipped)
        pinned = f"{config.hub}@{config.revision}/{config.subset}/{config.train_split}"
        content = pinned if file is None else digest(file)
        return f"{content}/{config.reference_field or TEXT_FIELD}/{config.train_limit}"

    def origin(self) -> str:
        """Where the rows come from, for messages."""
        config = self.config
        file = self._file(config.path, config.shipped)
        return f"task.path={config.path}" if config.path else str(file.name if file else config.hub)

    def _rows(self, path: str | None, ours: str | None, split: str) -> Iterator[Row]:
        file = self._file(path, ours)
        if file is not None:
            yield from read_rows(file)
            return
        for number, fields in enumerate(hub_rows(self.config, split), start=1):
            yield Row(f"{self.config.hub} ({split}), row {number}", fields)

    def _file(self, path: str | None, ours: str | None) -> Path | None:
        if path is not None:
            return Path(path)
        return shipped("data", ours) if ours is not None else None

    def _field(self, row: Row, name: str) -> str:
        return row.text(name, self._way_out(name))

    def _way_out(self, name: str) -> str:
        task = self.config
        fields = {"task.source_field=": task.source_field, "task.reference_field=": task.reference_field}
        way_out = f"name your own fields with {' and '.join(key for key, field in fields.items() if field is not None)}"
        if task.source_field is not None and name == task.reference_field:
            way_out += "; task=prompts takes prompts without references"
        return way_out


# The forms of prompts in files: `prompt`, `turns`, `instruction` with `input`, or fields that a template joins.
FIELDS = ("prompt", "turns", "instruction")  # each is read if the field that a task names is another of these
INPUT = "input"  # what an instruction is about, in rows like Alpaca's
PLACE = re.compile(r"\{(\w+)\}")
ANSWERING = "assistant:"  # ends the transcript of a conversation for a model without a chat template
WAY_OUT = "name the field with task.source_field=NAME, or put several together with task.template='… {NAME} …'"


def turns_of(row: Row, name: str, is_line_a_prompt: bool, way_out: str) -> list[str]:
    """The user's turns in a row: the field `name`, or another of FIELDS if it is one of these.

    Most files have a single turn. `is_line_a_prompt`: a line of plain text is a prompt. Raises UserError if no field
    fits; the message names the row's fields.
    """
    if name not in row.fields and name in FIELDS:
        name = next((field for field in FIELDS if field in row.fields), name)
    if name not in row.fields and is_line_a_prompt and list(row.fields) == [TEXT_FIELD]:
        name = TEXT_FIELD
    value = row.fields.get(name)
    if isinstance(value, list) and value and all(isinstance(turn, str) for turn in value):
        return list(value)
    text = row.text(name, way_out)
    about = row.fields.get(INPUT) if name == "instruction" else None
    return [f"{text}\n\n{about}" if isinstance(about, str) and about.strip() else text]


def filled(template: str, row: Row) -> str:
    """`template` with the row's text for each `{field}`; other braces are unchanged.

    Raises UserError if the row lacks a field.
    """

    def text(found: re.Match[str]) -> str:
        value = row.fields.get(found[1])
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        return row.text(found[1], "task.template names it")

    return PLACE.sub(text, template)
