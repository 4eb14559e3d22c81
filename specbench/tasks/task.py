"""A task: examples to decode, and text to fit n-gram drafts on."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.config import TaskConfig
from specbench.config.paths import shipped
from specbench.errors import UserError
from specbench.files import digest
from specbench.tasks.hub import hub_rows
from specbench.tasks.rows import read_rows


@dataclass(frozen=True)
class Example:
    """One prompt: its text, and what a person wrote in answer to it."""

    index: int
    prompt: str
    reference: str


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
        rows = enumerate(self._rows(config.path, config.shipped, config.split))
        for index in itertools.count():
            group = list(itertools.islice(rows, config.rows_per_prompt))
            if not group:
                return
            sources = [self._source(row, number) for number, row in group]
            references = [self._field(row, number, config.reference_field) for number, row in group]
            yield Example(index, config.prefix + " ".join(sources), " ".join(references))

    def training_text(self) -> Iterator[str]:
        """Up to `train_limit` texts as a model should write them."""
        config = self.config
        if config.path is not None and config.train_path is None:
            raise UserError(
                "task.train_path is not set: n-gram drafts are fitted on training text; "
                "with your own task.path name it too: task.train_path=FILE.jsonl[.gz]"
            )
        rows = self._rows(config.train_path, config.train_shipped, config.train_split)
        for index, row in enumerate(itertools.islice(rows, config.train_limit)):
            yield self._field(row, index, config.reference_field)

    def training_key(self) -> str:
        """A name for the content of `training_text`: a file's bytes, or a pinned revision."""
        config = self.config
        file = self._file(config.train_path, config.train_shipped)
        if file is None:
            content = f"{config.hub}@{config.revision}/{config.subset}/{config.train_split}"
        else:
            content = digest(file)
        return f"{content}/{config.reference_field}/{config.train_limit}"

    def origin(self) -> str:
        """Where the rows come from, for messages."""
        config = self.config
        file = self._file(config.path, config.shipped)
        return f"task.path={config.path}" if config.path else str(file.name if file else config.hub)

    def _rows(self, path: str | None, ours: str | None, split: str) -> Iterator[dict[str, Any]]:
        file = self._file(path, ours)
        return read_rows(file) if file is not None else hub_rows(self.config, split)

    def _file(self, path: str | None, ours: str | None) -> Path | None:
        if path is not None:
            return Path(path)
        return shipped("data", ours) if ours is not None else None

    def _source(self, row: dict[str, Any], index: int) -> str:
        config = self.config
        if config.source_field is not None:
            return self._field(row, index, config.source_field)
        words = self._field(row, index, config.reference_field).split()
        return " ".join(words[: config.prompt_words or 0])

    def _field(self, row: dict[str, Any], index: int, name: str) -> str:
        value = row.get(name)
        if not isinstance(value, str):
            raise UserError(
                f"{self.origin()}, row {index + 1}: no text in field '{name}' (it has {', '.join(sorted(row))}); "
                "rename with task.source_field= and task.reference_field="
            )
        return value
