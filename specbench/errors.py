"""The errors that a user sees: a message of one line, and an exit code.

`cli` prints the message and exits with the code; no other room prints errors or exits.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake of the user: the message names the key or file and says what to do. Exit code 2."""

    exit_code = 2


class MachineError(RuntimeError):
    """A failure of the machine (memory, disk, hub): the message says what failed and what to try. Exit code 1."""

    exit_code = 1


def error_line(error: BaseException) -> str:
    """The message of `error` on one line; for an error of another library, preceded by its type."""
    message = " ".join(str(error).split())
    return message if isinstance(error, UserError | MachineError) else f"{type(error).__name__}: {message}"


def alike(value: str, names: Iterable[str]) -> list[str]:
    """Names similar to the unknown name `value`, out of `names`, the most similar first."""
    likeness = {name: difflib.SequenceMatcher(None, value, name).ratio() for name in names}
    return sorted((name for name in likeness if likeness[name] > 0.6), key=lambda name: -likeness[name])


def closest_first(value: str, names: Iterable[str]) -> list[str]:
    """`names`, for a message about the unknown name `value`: the most similar first, the others in order."""
    names = list(names)
    return list(dict.fromkeys([*alike(value, names), *names]))


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of an error of another library, cut to `most` characters; its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:most]
