"""The config and the tokenizer of a checkpoint, read only from its files: no weights, and nothing is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from specbench import border
from specbench.border import Unreadable
from specbench.config.model import ModelConfig, name_of, weights_folder
from specbench.engine.weights.mapped_files import find_file
from specbench.engine.weights.published_checkpoint import read_config, read_object
from specbench.errors import UserError, first_line

TEXT = "text_config"  # of a model that also sees images


@dataclass(frozen=True)
class Checkpoint:
    """The description of a model by the files of its folder or repository.

    Attributes:
        place: the folder or the repository.
        config: `config.json`, of its text model if it has several.
        tokens: ids by token; None without a tokenizer.json.
        added: tokens of the tokenizer that are added to its vocabulary, by id.
        tokenizer: `tokenizer_config.json`.
        generation: `generation_config.json`.
        template: the chat template; None without one.
        revision: the commit of the hub that is asked for; None for a folder, or for the newest.
        tensors: the shapes of its weights by name; None if they are not in one file here.
    """

    name: str
    place: str
    config: Mapping[str, Any]
    tokens: Mapping[str, int] | None = None
    added: Mapping[int, str] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    revision: str | None = None
    tensors: Mapping[str, tuple[int, ...]] | None = None


def read_checkpoint(model: ModelConfig, key: str) -> Checkpoint:
    """The files of `model`, which the config calls `key`, as far as there are any.

    Raises:
        UserError: it has no config.json, or one of its files is damaged.
        MachineError: the hub cannot be reached.
    """
    source = weights_folder(model)
    if source is None:
        raise UserError(f"{key}: has no files to read; give {key}.path=FOLDER or {key}.hub=OWNER/NAME")
    pinned = {} if model.path is not None or model.hub is None else {"revision": model.revision}
    config = read_config(source, pinned, key)
    if not config:
        raise UserError(f"{key}={source}: there is no config.json")

    def content(name: str) -> dict[str, Any]:
        return read_object(source, name, pinned, key)

    spelt, settings = content("tokenizer.json"), content("tokenizer_config.json")
    template = settings.get("chat_template")
    if (file := find_file(source, "chat_template.jinja", pinned)) is not None:
        template = _read(file, key)
    text = config.get(TEXT)
    return Checkpoint(
        name_of(model),
        source,
        {**config, **text} if isinstance(text, dict) else config,
        _tokens(spelt),
        {
            one["id"]: str(one.get("content"))
            for one in _list(spelt.get("added_tokens"))
            if isinstance(one, dict) and isinstance(one.get("id"), int)
        },
        settings,
        content("generation_config.json"),
        template if isinstance(template, str) else None,
        model.revision if pinned else None,
        _shapes(Path(source), key),
    )


def _tokens(spelt: Mapping[str, Any]) -> dict[str, int] | None:
    """The ids by token, from a vocabulary that is a table (BPE, WordPiece) or a list with scores (Unigram)."""
    model = spelt.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        return {token: number for token, number in vocab.items() if isinstance(number, int)}
    if isinstance(vocab, list):
        return {str(entry[0]): number for number, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    return None


def _shapes(folder: Path, key: str) -> dict[str, tuple[int, ...]] | None:
    """The shapes in the head of a folder's one weight file; nothing is fetched for it."""
    if not (file := folder / "model.safetensors").is_file():
        return None
    try:
        with safe_open(file, framework="np") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{key}: {file}: {first_line(error)}") from error


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _read(file: Path, key: str) -> str:
    try:
        return border.read_text(file)
    except Unreadable as error:
        raise UserError(f"{key}: {file}: {error}") from error
