"""The model hub: whether it answers, which commit a repository is at, and its client's errors as one line each."""

import errno
import functools
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from specbench.errors import MachineError, UserError, first_line

Kind = Literal["model", "dataset"]
# What a run decodes without a network.
OFFLINE_TASKS = "task=ende-mini | sum-mini | lm-mini, or task.path=FILE.jsonl[.gz] with your own rows"
COMMIT = re.compile(r"[0-9a-f]{40}")


@functools.cache
def hub_is_reachable() -> bool:
    """Whether a connection to the hub can be opened: its client retries for half a minute before it fails.

    With a proxy set this cannot be known, and True is returned.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlsplit(constants.ENDPOINT)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


@functools.cache
def commit_of(repository: str, revision: str | None, key: str, kind: Kind = "model") -> str:
    """The commit of `revision` (None: the newest) of a repository; without the hub, of the copy in the cache.

    `key` is the config's name of the repository, for messages.

    Raises:
        UserError: the hub has no such repository or revision.
        MachineError: neither hub nor cache knows it.
    """
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    if not hub_is_reachable():
        cached = _cached_commit(repository, revision, kind) or (None if revision else only_cached(repository, kind))
        if cached is None and (held := _cached_commits(repository, kind)):
            raise MachineError(
                f"{key}: which commit is {revision or 'the newest'} of {repository} is not known in the cache, and the "
                f"model hub cannot be reached; give {key}.revision={held[0]}"
                + ("" if len(held) == 1 else f", or another cached commit: {', '.join(held[1:])}")
            )
        if cached is None:
            raise not_cached(key, repository, kind)
        return cached
    return str(_repository_info(repository, revision, key, kind).sha)


def _repository_info(repository: str, revision: str | None, key: str, kind: Kind, files: bool = False) -> Any:
    """What the hub says of a repository at a revision; with `files` also the size of each file.

    Raises:
        UserError: there is no such repository or revision.
        MachineError: the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    silence()
    try:
        return HfApi().repo_info(repository, revision=revision, repo_type=kind, files_metadata=files)
    except Exception as error:
        known = hub_failure(error, key, repository, revision)
        raise known or MachineError(f"{key}: the hub does not tell of {repository}: {first_line(error)}") from error


def silence() -> None:
    """Keep the lines off the screen that the hub's client writes at each retry; what fails in the end is one line."""
    from huggingface_hub import logging

    logging.set_verbosity_error()


def _cached_commit(repository: str, revision: str | None, kind: Kind) -> str | None:
    from huggingface_hub import constants

    file = _in_cache(repository, kind) / "refs" / (revision or constants.DEFAULT_REVISION)
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def _cached_commits(repository: str, kind: Kind) -> list[str]:
    """The commits of a repository that files in the cache are of."""
    folders = sorted((_in_cache(repository, kind) / "snapshots").glob("*/"))
    return [folder.name for folder in folders if COMMIT.fullmatch(folder.name) and any(folder.iterdir())]


def only_cached(repository: str, kind: Kind = "model") -> str | None:
    """The commit in the cache if no branch says which: a cache that was filled by commit has no `refs`.

    None if a branch is known, or there is no commit or more than one.
    """
    held = _cached_commits(repository, kind)
    return held[0] if len(held) == 1 and _cached_commit(repository, None, kind) is None else None


def _in_cache(repository: str, kind: Kind) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"{kind}s--{repository.replace('/', '--')}"


def is_not_cached(error: BaseException, repository: str, revision: str | None, file: str = "config.json") -> bool:
    """Whether `error`, of reading a model without the hub, is of a file that the cache lacks: not a damaged one."""
    from huggingface_hub import errors, try_to_load_from_cache

    absent = any(isinstance(one, errors.LocalEntryNotFoundError) for one in _causes(error))
    return absent or not isinstance(try_to_load_from_cache(repository, file, revision=revision), str)


class NotCached(MachineError):
    """A model, or rows, that can be read neither from cache nor hub."""


def not_cached(key: str, repository: str, kind: Kind = "model") -> NotCached:
    """That a model, or rows, can be read neither from cache nor hub, and what can be used without either."""
    own = f"target=t5-mini draft=t5-nano, drafts lookup | early-exit, or {key}=./FOLDER"
    return NotCached(
        f"{key}: {repository} is not in the local cache and the model hub cannot be reached; offline choices: "
        + (OFFLINE_TASKS if kind == "dataset" else own)
    )


def hub_failure(
    error: BaseException, key: str, repository: str, revision: str | None = None
) -> UserError | MachineError | None:
    """The error to raise for a failed request or download; None if `error` is of another kind.

    Libraries wrap the errors of the hub's client, so the causes of `error` are also searched.
    """
    from huggingface_hub import errors

    chain = list(_causes(error))
    if any(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in chain):
        from huggingface_hub.constants import HF_HOME

        return MachineError(
            f"{key}: no space left on the disk for {repository} in {HF_HOME}; free some, or set HF_HOME to another disk"
        )
    mistakes = {
        errors.GatedRepoError: f"{repository} is gated: ask for access on its page on the hub, then log in with "
        "'hf auth login' or set HF_TOKEN",
        errors.RepositoryNotFoundError: f"the hub has no repository {repository}; check its name, or log in with "
        "'hf auth login' if it is private",
        errors.RevisionNotFoundError: f"{repository} has no revision {revision}; leave it out to take the newest "
        "commit",
    }
    for one in chain:
        for kind, message in mistakes.items():
            if isinstance(one, kind):
                return UserError(f"{key}: {message}")
    statuses = (getattr(getattr(one, "response", None), "status_code", None) for one in chain)
    status = next((one for one in statuses if isinstance(one, int)), None)
    if status is not None and (status == 429 or status >= 500):
        return MachineError(f"{key}: the model hub refused {repository} for now (HTTP {status}); run it again later")
    if any(_is_interrupted(one) for one in chain):
        return MachineError(f"{key}: the download of {repository} was cut off; run the same command again")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_interrupted(error: BaseException) -> bool:
    """Whether a connection broke, or a file came shorter than the hub said."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TransportError", "IncompleteRead", "ConnectionError"}) or "Consistency check" in str(error)


class HubFile(NamedTuple):
    """A file of a repository, and its bytes if the hub says them."""

    name: str
    size: int


DESCRIBING = (".json", ".jinja", ".txt", ".model")  # configs, tokenizers and templates
WEIGHTS = (".safetensors", ".bin")  # the first kind that there is


def files_to_fetch(repository: str, revision: str | None, key: str, file: str | None = None) -> list[HubFile]:
    """The files of a model's repository that a run reads, largest first; `file`: the GGUF file that it names.

    Raises:
        UserError: there is no such repository, revision or file.
        MachineError: the hub cannot be reached.
    """
    info = _repository_info(repository, revision, key, "model", files=True)
    found = [HubFile(one.rfilename, one.size or 0) for one in info.siblings or ()]
    if file is not None:
        named = [one for one in found if one.name == file]
        if not named:
            others = ", ".join(one.name for one in found if one.name.endswith(".gguf"))
            raise UserError(f"{key}: {repository} has no file {file} (its GGUF files: {others or 'none'})")
        return named
    here = [one for one in found if "/" not in one.name]
    kind = next((kind for kind in WEIGHTS if any(one.name.endswith(kind) for one in here)), WEIGHTS[0])
    return sorted((one for one in here if one.name.endswith((*DESCRIBING, kind))), key=lambda one: -one.size)


def fetch(repository: str, revision: str | None, key: str, file: HubFile) -> None:
    """Bring a file of a model's repository into the cache, where a run without the hub finds it.

    Raises:
        UserError: it is gated or not there.
        MachineError: the hub, or the disk, does not suffice.
    """
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(repository, file.name, revision=revision)
    except Exception as error:
        known = hub_failure(error, key, repository, revision)
        raise known or MachineError(f"{key}: {file.name} of {repository}: {first_line(error)}") from error
