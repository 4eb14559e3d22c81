"""Recorded values as JSON: one dataclass for each thing, and one way to JSON and back for all of them.

A recorded class is a plain dataclass whose fields are the keys of its JSON object, in order; `Annotated` gives a field
its unit or meaning, as in the TypedDicts of `records.run_record`, of which it may be a part, and which may be parts of
it. A field that is None by default, or is `LATER` than some records, may be absent from what is read. It is written all
the same, unless it is `OMITTED` and None. Other defaults are for code that makes such an object bit by bit.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Convert = Callable[[Any], Any]


class Mark:
    """A property of a field in `Annotated`, beside its meaning."""


OMITTED = Mark()  # no key of the JSON object if it is None
LATER = Mark()  # older records lack it


@cache
def is_recorded(kind: Any) -> bool:
    """Whether a type is a dataclass."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The type of each key of a TypedDict or a dataclass, in order, with what `Annotated` says of it."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind)} if is_recorded(kind) else hints


@cache
def required_of(kind: Any) -> frozenset[str]:
    """The keys that a JSON object of this TypedDict or dataclass has."""
    if not is_recorded(kind):
        return frozenset(kind.__required_keys__)
    hints = hints_of(kind)
    return frozenset(
        one.name for one in dataclasses.fields(kind) if one.default is not None and not _has(hints[one.name], LATER)
    )


def _has(hint: Any, mark: object) -> bool:
    return mark in getattr(hint, "__metadata__", ())


@cache
def _omitted(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a dataclass, and whether each is omitted if it is None."""
    return tuple((name, _has(hint, OMITTED)) for name, hint in hints_of(kind).items())


def to_json(value: Any) -> Any:
    """`value` as plain JSON: objects for dataclasses, text for keys of objects; anything else is as it is."""
    kind: Any = type(value)
    if is_recorded(kind):
        own = ((name, getattr(value, name), omitted) for name, omitted in _omitted(kind))
        return {name: to_json(item) for name, item, omitted in own if not (omitted and item is None)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def from_json(kind: Any, value: Any) -> Any:
    """A JSON value of the type `kind`, with what `kind` declares as a dataclass made one; the rest is shared.

    The value is of that type already (`border.check`). Keys that a dataclass does not name are left out.
    """
    convert = _convert(kind)
    return value if convert is None else convert(value)


@cache
def _convert(hint: Any) -> Convert | None:
    """A function that makes a JSON value one of this type; None if it is one as it is."""
    if is_recorded(hint):
        return _object(hint)
    if is_typeddict(hint):
        return _dictionary(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Annotated, NotRequired, Required):
        return _convert(arguments[0])
    if origin in (Union, types.UnionType):
        known = [convert for one in arguments if (convert := _convert(one)) is not None]
        if len(known) > 1:
            raise TypeError(f"{hint}: a recorded value is of one class, or of none")
        return _optional(known[0]) if known else None
    if origin is list:
        return _each(_convert(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(int if arguments[0] is int else None, _convert(arguments[1]))
    return None


def _object(kind: Any) -> Convert:
    parts = dict[str, Convert | None]()  # made with the first value, for a class may hold itself

    def make(value: Any) -> Any:
        if not parts:
            parts.update({name: _convert(hint) for name, hint in hints_of(kind).items()})
        known = ((name, value[name], convert) for name, convert in parts.items() if name in value)
        return kind(**{name: item if convert is None else convert(item) for name, item, convert in known})

    return make


def _dictionary(kind: Any) -> Convert | None:
    parts = {name: convert for name, hint in hints_of(kind).items() if (convert := _convert(hint)) is not None}
    if not parts:
        return None

    def make(value: Any) -> Any:
        return value | {name: convert(value[name]) for name, convert in parts.items() if name in value}

    return make


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _each(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: [convert(one) for one in value]


def _mapping(key: Convert | None, item: Convert | None) -> Convert | None:
    if key is None and item is None:
        return None
    return lambda value: {key(name) if key else name: item(one) if item else one for name, one in value.items()}
