"""A task: examples to decode, and text to fit n-gram drafts on."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.config import TaskConfig
from specbench.config.paths import shipped
from specbench.errors import UserError
from specbench.files import digest
from specbench.tasks.conversation import Message, messages_of, split_answer, transcript
from specbench.tasks.hub import hub_rows
from specbench.tasks.rows import TEXT_FIELD, Row, read_rows


@dataclass(frozen=True)
class Example:
    """One prompt: its text, and what a person wrote in answer to it, if anyone did.

    `messages` are what a chat template makes the prompt of; empty where it is plain text. `shortened`: the task gives
    only the first words of the row (`prompt_words`), and there are more.
    """

    index: int
    prompt: str
    reference: str | None
    messages: Sequence[Message] = ()
    shortened: bool = False


class Task:
    """The examples of a `TaskConfig`, and its training text. `prompt_words` must be resolved."""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config

    def examples(self, limit: int | None) -> list[Example]:
        """The first `limit` examples. Raises UserError where there is no row or a field is missing."""
        examples = list(itertools.islice(self._examples(), limit))
        if not examples:
            raise UserError(f"{self.origin()}: there is no row in it")
        return examples

    def _examples(self) -> Iterator[Example]:
        config = self.config
        rows = self._rows(config.path, config.shipped, config.split)
        for index in itertools.count():
            group = list(itertools.islice(rows, config.rows_per_prompt))
            if not group:
                return
            example = self._conversation(index, group) or self._text(index, group)
            if config.metric is not None and example.reference is None:
                raise UserError(
                    f"{group[0].where}: no reference for task.metric={config.metric}; "
                    "name its field with task.reference_field=, or set task.metric=null"
                )
            yield example

    def _text(self, index: int, group: Sequence[Row]) -> Example:
        config = self.config
        name = config.reference_field
        reference = " ".join(self._field(row, name) for row in group) if name is not None else None
        if config.source_field is None:
            words = [self._field(row, name or TEXT_FIELD).split() for row in group]
            given = config.prompt_words or 0
            sources = [" ".join(text[:given]) for text in words]
            shortened = any(len(text) > given for text in words)
        else:
            sources, shortened = [self._source(row, config.source_field) for row in group], False
        prompt = config.prefix + " ".join(sources)
        messages = [{"role": "user", "content": prompt}] if config.chat_template else []
        return Example(index, prompt, reference, messages, shortened)

    def _conversation(self, index: int, group: Sequence[Row]) -> Example | None:
        """The example that the messages of a row make; None where it holds none."""
        config, row = self.config, group[0]
        messages = messages_of(row, config.source_field) if config.source_field is not None else None
        if messages is None:
            return None
        if config.chat_template is False:
            raise UserError(
                f"{row.where}: messages need a chat template; set task.chat_template=true, or leave it null"
            )
        if len(group) > 1:
            raise UserError(f"task.rows_per_prompt={config.rows_per_prompt}: must be 1 for conversations ({row.where})")
        asked, answer = split_answer(messages)
        if not any(message["content"].strip() for message in asked):
            raise UserError(f"{row.where}: the conversation holds nothing to answer")
        if config.reference_field is not None:
            answer = self._field(row, config.reference_field)
        return Example(index, transcript(asked), answer, asked)

    def training_text(self) -> Iterator[str]:
        """Up to `train_limit` texts as a model should write them."""
        config = self.config
        if config.path is not None and config.train_path is None:
            raise UserError(
                "task.train_path is not set: n-gram drafts are fitted on training text; "
                "with your own task.path name it too: task.train_path=FILE.jsonl[.gz]"
            )
        rows = self._rows(config.train_path, config.train_shipped, config.train_split)
        for row in itertools.islice(rows, config.train_limit):
            yield row.text(self._training_field(), self._training_way_out())

    def training_key(self) -> str:
        """A name for the content of `training_text`: a file's bytes, or a pinned revision."""
        config = self.config
        file = self._file(config.train_path, config.train_shipped)
        if file is None:
            content = f"{config.hub}@{config.revision}/{config.subset}/{config.train_split}"
        else:
            content = digest(file)
        return f"{content}/{self._training_field()}/{config.train_limit}"

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

    def _source(self, row: Row, name: str) -> str:
        """The text in the field `name`; of a task without references a line of plain text is a prompt, too."""
        is_line = name not in row.fields and self.config.reference_field is None and list(row.fields) == [TEXT_FIELD]
        return self._field(row, TEXT_FIELD if is_line else name)

    def _training_field(self) -> str:
        return self.config.reference_field or TEXT_FIELD

    def _training_way_out(self) -> str:
        if self.config.reference_field is None:
            return f"training text is the field '{TEXT_FIELD}' of a row, or a line of plain text"
        return "name the field with task.reference_field="

    def _field(self, row: Row, name: str) -> str:
        task = self.config
        fields = {"task.source_field=": task.source_field, "task.reference_field=": task.reference_field}
        way_out = f"name your own fields with {' and '.join(key for key, field in fields.items() if field is not None)}"
        if task.source_field is not None and name == task.reference_field:
            way_out += "; task=prompts takes prompts without references"
        return row.text(name, way_out)
