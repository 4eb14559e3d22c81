"""Files as such: written whole or not at all; and digests, of a file's content and of plain values."""

import atexit
import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from specbench.errors import MachineError
from specbench.recorded import is_recorded, to_json


@contextlib.contextmanager
def replacing(file: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A new file to write that takes the place of `file` when the block ends; if it fails, all is as before.

    It lies beside `file` until then, under a name of its own, and is on the disk before it is renamed. It has the
    permissions `mode`, less the umask. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_atomically(file: Path, content: str | bytes, key: str = "results=FOLDER") -> Path:
    """Write `content` to `file`, whole or not at all, creating its folder; returns `file`.

    `key` names the setting that moves the file elsewhere. Raises MachineError if the file cannot be written.
    """
    try:
        with replacing(file) as opened:
            # Half a surrogate pair, from a file's name that is not UTF-8, is written as JSON escapes it.
            opened.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise MachineError(f"{file}: cannot be written ({error.strerror}); set {key} to another place") from error
    return file


_finished = [False]  # whether this process has finished work that the same command takes up again


def files_in(folder: Path, ending: str) -> list[Path]:
    """The files of `folder` whose names have this ending, by name; none if there is no such folder.

    Raises PermissionError for a folder that this user cannot read, which `Path.glob` takes for an empty one.
    """
    try:
        return sorted(file for file in folder.iterdir() if file.name.endswith(ending))
    except (FileNotFoundError, NotADirectoryError):
        return []


def note_finished(finished: bool = True) -> None:
    """Note that work is on the disk which the same command takes up again; False: a command begins."""
    _finished[0] = finished


def kept() -> str:
    """'; finished work is kept' for the last line of a command that ends early; '' if nothing is finished."""
    return "; finished work is kept" if _finished[0] else ""


def again() -> str:
    """'; finished work is kept' if work is finished, and what to do: run the same command again."""
    return f"{kept()}{':' if kept() else ';'} run the same command again"


def unwritable(file: str | Path, error: OSError) -> MachineError:
    """The error that `file` of a results folder cannot be written, and what becomes of the work."""
    what = f"{again()}, or" if kept() else ";"
    return MachineError(f"{file}: cannot be written ({error.strerror}){what} set results=FOLDER elsewhere")


def user_cache() -> Path:
    """The folder for files that can be made again; it need not exist.

    It is `$XDG_CACHE_HOME/specbench` or `~/.cache/specbench`; for a user without a home one in the folder for temporary
    files.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench"
    except RuntimeError:  # neither HOME nor an entry in passwd
        return Path(tempfile.gettempdir()) / f"specbench-{os.getuid()}"


PRIVATE = 0o600  # the mode of a file of a cache, with which `is_own` reads it back whatever the umask is


def is_own(path: Path) -> bool:
    """Whether `path` exists, belongs to this user, through a link of this user at most, and only they can write it."""
    try:
        found = path.stat()
        return os.lstat(path).st_uid == found.st_uid == os.getuid() and not found.st_mode & 0o022
    except OSError:
        return False


def private_folder(*folders: Path) -> Path:
    """The first of `folders` that only this user can write to, created if it is missing; otherwise one of this process.

    A folder in a shared place may be another user's, or a link of theirs, made before ours. A folder of this user that
    others can write to is closed to them; what lies in it is the caller's to check (`is_own`).
    """
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = folder.stat()
            if os.lstat(folder).st_uid == found.st_uid == os.getuid() and found.st_mode & 0o022:
                folder.chmod(found.st_mode & 0o755)
            if folder.is_dir() and is_own(folder) and os.access(folder, os.W_OK):
                return folder
    return _folder_of_process()


@cache
def _folder_of_process() -> Path:
    """A folder of this process, removed when it ends; a forked child leaves it to its parent."""
    folder, owner = Path(tempfile.mkdtemp(prefix="specbench-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def own_cache() -> Path:
    """`user_cache()` if only this user can write to it, created if it is missing; otherwise a folder of this process.

    What lies in it is read back and used, so that nobody else may put anything there.
    """
    return private_folder(user_cache())


def require_writable(folder: str | Path, key: str = "results=FOLDER") -> None:
    """Make `folder` and try to write into it, before work whose result would be lost. Raises MachineError."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MachineError(f"{folder}: cannot be written ({error.strerror}); set {key} to another place") from error


def digest(path: Path) -> str:
    """sha256 over a file's bytes, or over the bytes of all files of a folder, by name."""
    found = hashlib.sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with open(file, "rb") as opened:
            while block := opened.read(2**20):
                found.update(block)
    return found.hexdigest()


def json_digest(value: object, length: int = 8) -> str:
    """The first `length` hexadecimal digits of the sha256 of `value` as JSON, keys sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


def json_text(value: object, indent: int | None = None) -> str:
    """`value` as JSON that every reader takes: a number that is not finite is null."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False, default=to_json)
    except ValueError:
        finite = with_floats(value, lambda number: number if math.isfinite(number) else None)
        return json.dumps(finite, ensure_ascii=False, indent=indent)


def with_floats(value: object, change: Callable[[float], float | None]) -> Any:
    """`value` as plain JSON, with `change` applied to every float in it."""
    kind: Any = type(value)
    if is_recorded(kind):
        value = to_json(value)
    if isinstance(value, float):
        return change(value)
    if isinstance(value, Mapping):
        return {key: with_floats(item, change) for key, item in value.items()}
    return [with_floats(item, change) for item in value] if isinstance(value, list | tuple) else value
