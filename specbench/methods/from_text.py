"""Drafts that are fitted on text: the text as one array, and what was made of it, cached by content.

Shapes: N tokens of the text, the one before each sequence included.
"""

import contextlib
import zipfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench.config.draft import TextDraftConfig
from specbench.files import PRIVATE, is_own, json_digest, own_cache, replacing
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.tasks import Task
from specbench.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Corpus:
    """Sequences end to end, each after one `before` token; `begins_N` marks these."""

    tokens_N: NDArray[np.int32]
    begins_N: NDArray[np.bool_]


def gather(sequences: Iterable[Sequence[int]], before: int) -> Corpus:
    """Collect all `sequences` in one array, each preceded by a token `before`."""
    tokens, begins = array("i"), array("q")
    for sequence in sequences:
        begins.append(len(tokens))
        tokens.append(before)
        tokens.extend(sequence)
    tokens_N = np.frombuffer(tokens, np.int32) if tokens else np.empty(0, np.int32)
    begins_N = np.zeros(len(tokens_N), np.bool_)
    begins_N[np.array(begins, np.int64)] = True
    return Corpus(tokens_N, begins_N)


Arrays = dict[str, Any]  # of name to NDArray


def cached(folder: Path, kind: str, key: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays cached under `key`, one file for each, made at the first call.

    `key` must name the whole content: text, tokenizer and how it was fitted. `kind` begins the file's name. A cache
    that is damaged or cannot be written costs time, not the run.
    """
    file = folder / f"{kind}-{json_digest(key, 20)}.npz"
    ours = folder == own_cache()  # else a folder that the user named, perhaps one that several users fill
    if is_own(file) if ours else file.is_file():
        with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile), np.load(file) as kept:
            return {name: kept[name] for name in kept.files}
    arrays = make()
    with contextlib.suppress(OSError), replacing(file, PRIVATE if ours else 0o666) as opened:
        np.savez(opened, **arrays)
    return arrays


ROWS_BETWEEN_WORDS = 20_000
Fitted = TypeVar("Fitted", bound=TextDraftConfig)


class FromText(DraftBuilder[Fitted]):
    """Builds a draft that is fitted on the task's training text, or on `corpus`, and cached by content."""

    def __init__(self, request: DraftRequest[Fitted]) -> None:
        super().__init__(request)
        task, corpus = request.run.task, self.draft.corpus
        self.task = Task(replace(task, train_path=corpus) if corpus else task)

    def fitted(self, kind: str, settings: str, make: Callable[[Corpus], Arrays], say: Say) -> Arrays:
        """The result of `make` on the text. `settings` are its further inputs."""
        folder = Path(self.draft.cache_dir) if self.draft.cache_dir else own_cache()
        return _fitted(folder, kind, settings, self.task, self.request.vocabulary, make, say)


def _fitted(
    folder: Path,
    kind: str,
    settings: str,
    task: Task,
    vocabulary: Vocabulary,
    make: Callable[[Corpus], Arrays],
    say: Say,
) -> Arrays:
    """The result of `make` on the training text of `task`, cached in `folder`."""

    def sequences() -> Iterator[list[int]]:
        for number, text in enumerate(task.training_text()):
            if number % ROWS_BETWEEN_WORDS == 0:
                read = f": {number:,} rows" if number else ""
                say(f"reading the training text of {task.config.name}{read}")
            yield vocabulary.ids(text)

    key = f"{vocabulary.fingerprint()}/{vocabulary.start}/{task.training_key()}/{settings}"
    return cached(folder, kind, key, lambda: make(gather(sequences(), vocabulary.start)))


def likeliest_tokens(task: Task, vocabulary: Vocabulary, most: int, say: Say) -> list[int]:
    """The tokens that occur most often in the training text of `task`, in order of number; counts are cached."""

    def count(text: Corpus) -> Arrays:
        return {"unigrams_V": np.bincount(text.tokens_N[~text.begins_N], minlength=vocabulary.size)}

    counts_V = _fitted(own_cache(), "tokens", "tokens", task, vocabulary, count, say)["unigrams_V"]
    return sorted(np.argsort(-counts_V, kind="stable")[:most].tolist())
