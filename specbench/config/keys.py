"""Keys and what is said of them, written once: a field's default, the sentence of `--help` and the values allowed."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from omegaconf import MISSING

from specbench.border import LARGEST_INTEGER
from specbench.errors import UserError, closest_first

T = TypeVar("T")
HELP, VERBS, ALLOWED = "help", "verbs", "allowed"  # entries of a field's metadata
MAX_GAMMA = 64
MAX_BATCH = 1024


class Allowed(NamedTuple):
    """The values that a key may have if it is set: a test, and the same in words for an error."""

    holds: Callable[[Any], object]
    words: str


EXISTS = Allowed(lambda path: Path(path).exists(), "a file or folder; there is none of that name")


def at_least(low: float, end: str = "") -> Allowed:
    """Numbers from `low`; `end` is what else the error says, such as ', or null'."""
    return Allowed(lambda value: value >= low, f"at least {low}{end}")


def between(low: float, high: float, end: str = "") -> Allowed:
    """Numbers from `low` to `high`."""
    return Allowed(lambda value: low <= value <= high, f"from {low} to {high}{end}")


def list_between(low: int, high: int) -> Allowed:
    """Lists, not empty, of numbers from `low` to `high`."""
    return Allowed(
        lambda values: bool(values) and all(low <= one <= high for one in values),
        f"a list of numbers from {low} to {high}",
    )


def as_share(text: str) -> float | None:
    """'2%' and '0.02' as a number between 0 and 1; None if it is no such text."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
    return value if 0 < value < 1 else None


SHARE = Allowed(as_share, "a share between 0 and 1, such as 2% or 0.02")


def one_of(names: Iterable[str]) -> Allowed:
    """Words."""
    return Allowed(set(names).__contains__, " | ".join(names))


UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
AMOUNT = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(UNITS)})")


def bytes_of(amount: str) -> int | None:
    """The bytes of '24GB' (10^9 each) or '16GiB' (2^30); None for another text."""
    found = AMOUNT.fullmatch(amount)
    return int(float(found[1]) * UNITS[found[2]]) if found else None


BYTES = Allowed(bytes_of, "a number above 0 with its unit, as in 24GB or 16GiB, or null")


LENGTH = re.compile(r"(\d+)(k?)")


def tokens_of(length: str) -> int | None:
    """The tokens of '4096' and '4k' (1,024 each); None for another text."""
    found = LENGTH.fullmatch(length)
    return int(found[1]) * (1024 if found[2] else 1) if found else None


CONTEXT = Allowed(lambda length: (tokens_of(str(length)) or 0) >= 16, "16 tokens or more, such as 4096 or 4k, or null")


def key(default: T, about: str, allowed: Allowed | None = None, verbs: tuple[str, ...] = ()) -> T:
    """A dataclass field with `default` and its help. `verbs` are those that read the key, if not all do."""
    return field(default=default, metadata={HELP: about, VERBS: verbs, ALLOWED: allowed})


def fresh(make: Callable[[], T], about: str, allowed: Allowed | None = None, verbs: tuple[str, ...] = ()) -> T:
    """A dataclass field whose default `make` builds for each instance: nested keys, a list or a mapping."""
    return field(default_factory=make, metadata={HELP: about, VERBS: verbs, ALLOWED: allowed})


def require(holds: bool, key: str, value: object, allowed: str) -> None:
    """Check that `holds`; `allowed` describes the values that `key` may have.

    Raises UserError if it does not; the message names `key`, its value and `allowed`.
    """
    if not holds:
        names = allowed.split(" | ")
        if len(names) > 1 and all(name.isprintable() and " " not in name for name in names):
            allowed = " | ".join(closest_first(str(value), names))
        raise UserError(f"{key}={value}: must be {allowed}")


def require_allowed(config: Any, before: str = "") -> None:
    """Check the keys of the dataclass `config`, whose names begin with `before`, and of its parts.

    Raises UserError for the first value that its field does not allow.
    """
    for one in fields(config):
        name, value = f"{before}{one.name}", getattr(config, one.name)
        if is_dataclass(value):
            require_allowed(value, f"{name}.")
        elif value is not None:
            if (allowed := one.metadata.get(ALLOWED)) is not None:
                require(bool(allowed.holds(value)), name, value, allowed.words)
            if isinstance(value, int):  # a record with a larger number could not be read back
                require(abs(value) < LARGEST_INTEGER, name, value, "a whole number of 64 bits")


@dataclass(frozen=True)
class Key:
    """One key as a user writes it: its dotted name, its default as text ('' if it is unset) and its help."""

    name: str
    default: str
    about: str
    verbs: tuple[str, ...] = ()
    listed: bool = False  # its value is a list
    allowed: str = ""  # the values that it may have, in words


def keys_of(schema: type[Any], before: str = "") -> Iterator[Key]:
    """All keys of the dataclass `schema`, nested keys under dotted names."""
    hints = get_type_hints(schema)
    for one in fields(schema):
        name = f"{before}{one.name}"
        default = one.default_factory() if callable(one.default_factory) else one.default
        if is_dataclass(default):  # its own type, which may have more keys than the one it is declared as
            yield from keys_of(type(default), f"{name}.")
            continue
        listed = list in (get_origin(part) for part in (hints[one.name], *get_args(hints[one.name])))
        allowed = one.metadata.get(ALLOWED)
        words = "" if allowed is None else allowed.words
        yield Key(name, _text(default), one.metadata.get(HELP, ""), one.metadata.get(VERBS, ()), listed, words)


def _text(default: object) -> str:
    """A default as it is written on the command line."""
    if default is None or default == MISSING or default == {}:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return f"[{','.join(map(_text, default))}]"
    text = f"{default:g}" if isinstance(default, float) else str(default)
    return f"'{text}'" if " " in text else text
