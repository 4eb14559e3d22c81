"""JSON that others wrote, within limits, and compared with a declared type (`parse`)."""

import functools
import json
import math
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, is_typeddict

from specbench.border.regular_files import Unreadable, decoded
from specbench.recorded import hints_of, is_recorded, required_of

DEEPEST = 64  # levels of lists and objects
LARGEST_INTEGER = 2**63
SHOWN = 60  # characters of a value in a message


def parse(text: str | bytes, kind: Any = object, finite: bool = True) -> Any:
    """The JSON value of `text`, of the type `kind` (`object`: any).

    `kind` is made of TypedDict, dataclass, list, dict, Mapping, tuple, Literal, unions and plain types. Keys that a
    TypedDict or a dataclass does not name are allowed, as another version may have written them. Without `finite`,
    numbers may be NaN or infinite, as Python writes them. Raises Unreadable.
    """
    constant = not_json if finite else None
    try:
        value = json.loads(decoded(text) if isinstance(text, bytes) else text, parse_constant=constant)
    except RecursionError as error:
        raise Unreadable("it nests too deeply") from error
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error
    except Unreadable:
        raise
    except ValueError as error:  # of Python's own limit of digits
        raise Unreadable("an integer of thousands of digits") from error
    check(value, kind, finite)
    return value


def check(value: object, kind: Any = object, finite: bool = True) -> None:
    """Raises Unreadable if a value that JSON may hold is not of the type `kind`, or beyond the limits above."""
    _check(kind, finite)(value, "it", 0)


def not_json(name: str) -> Any:
    """Raises Unreadable for NaN and Infinity, which Python's JSON has."""
    raise Unreadable(f"not JSON: {name}")


Check = Callable[[Any, str, int], None]  # a value, its place for a message, and how deep it lies


@functools.cache
def _check(hint: Any, finite: bool) -> Check:
    """A function that compares a value with a type; built once for each type."""
    plain = PLAIN if finite else PLAIN | {float: _any_number, Any: _anything, object: _anything}
    if hint in plain:
        return plain[hint]
    if is_typeddict(hint) or is_recorded(hint):
        return _keyed(hint, finite)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Annotated, NotRequired, Required):
        return _check(arguments[0], finite)
    if origin in (Union, types.UnionType):
        return _union([_check(one, finite) for one in arguments], type(None) in arguments)
    if origin is Literal:
        return _literal(arguments)
    if origin is list:
        return _list(_check(arguments[0], finite))
    if origin is tuple:
        return _tuple([_check(one, finite) for one in arguments])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_check(arguments[1], finite))
    raise TypeError(f"{hint}: no type of JSON")


def _wrong(value: object, at: str, wanted: str) -> Unreadable:
    return Unreadable(f"{at} is {shown(value)}, not {wanted}")


def shown(value: object) -> str:
    """A JSON value in a message: whole if it is short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        return "an integer beyond 64 bits"
    text = json.dumps(value)  # ASCII, so that half a surrogate pair is shown as it is escaped
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _of_any_kind(number: Check) -> Check:
    """Any value, whose numbers `number` compares."""

    def compare(value: Any, at: str, depth: int) -> None:
        if depth > DEEPEST:
            raise Unreadable(f"it nests more than {DEEPEST} levels deep")
        if isinstance(value, dict):
            for key, item in value.items():
                _string(key, f"a key of {at}", depth)
                compare(item, at, depth + 1)
        elif isinstance(value, list):
            for item in value:
                compare(item, at, depth + 1)
        elif isinstance(value, str):
            _string(value, at, depth)
        elif value is not None and not isinstance(value, bool):
            number(value, at, depth)

    return compare


def _string(value: Any, at: str, depth: int) -> None:
    if not isinstance(value, str):
        raise _wrong(value, at, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Unreadable(f"{at} holds half a surrogate pair, which is no character") from error


def _integer(value: Any, at: str, depth: int) -> None:
    if type(value) is not int or not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise _wrong(value, at, "a whole number of 64 bits")


def _any_number(value: Any, at: str, depth: int) -> None:
    if type(value) is not float:
        if type(value) is not int:
            raise _wrong(value, at, "a number")
        _integer(value, at, depth)


def _number(value: Any, at: str, depth: int) -> None:
    _any_number(value, at, depth)
    if not math.isfinite(value):
        raise Unreadable(f"{at} is too large a number")


def _boolean(value: Any, at: str, depth: int) -> None:
    if not isinstance(value, bool):
        raise _wrong(value, at, "true or false")


def _null(value: Any, at: str, depth: int) -> None:
    if value is not None:
        raise _wrong(value, at, "null")


_finite, _anything = _of_any_kind(_number), _of_any_kind(_any_number)
PLAIN: dict[Any, Check] = {
    Any: _finite, object: _finite, str: _string, int: _integer, float: _number, bool: _boolean, type(None): _null,
}  # fmt: skip


def _keyed(record: Any, finite: bool) -> Check:
    required = required_of(record)
    checks = dict[str, Check]()  # made with the first value, for a type may hold itself
    unnamed = _check(object, finite)

    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, at, "an object")
        if not checks:
            checks.update({key: _check(hint, finite) for key, hint in hints_of(record).items()})
        if lacking := required - value.keys():
            raise Unreadable(f"{at} has no {min(lacking)}")
        for key, item in value.items():
            if (one := checks.get(key, unnamed)) is unnamed:
                _string(key, f"a key of {at}", depth)
            one(item, key if at == "it" else f"{at}.{key}", depth + 1)

    return compare


def _mapping(item: Check) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, at, "an object")
        for key, one in value.items():
            _string(key, f"a key of {at}", depth)
            item(one, at, depth + 1)

    return compare


def _list(item: Check) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list):
            raise _wrong(value, at, "a list")
        for one in value:
            item(one, at, depth + 1)

    return compare


def _tuple(items: list[Check]) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list) or len(value) != len(items):
            raise _wrong(value, at, f"a list of {len(items)}")
        for item, one in zip(items, value, strict=True):
            item(one, at, depth + 1)

    return compare


def _literal(values: tuple[object, ...]) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not any(value == one and type(value) is type(one) for one in values):
            raise _wrong(value, at, " or ".join(map(shown, values)))

    return compare


def _union(parts: list[Check], optional: bool) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if value is None and optional:
            return
        first: Unreadable | None = None
        for part in parts:
            try:
                part(value, at, depth)
                return
            except Unreadable as error:
                first = first or error
        assert first is not None
        raise first

    return compare
