"""The types of records as JSON Schema (draft 2020-12), for readers in other languages."""

import types
from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

from specbench.recorded import hints_of, is_recorded, required_of

Schema = dict[str, object]
PLAIN: dict[object, str] = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
}  # fmt: skip


def json_schema(record: type) -> Schema:
    """The schema of a TypedDict or a recorded dataclass.

    Docstrings are descriptions of objects, strings in `Annotated` descriptions of keys.
    """
    definitions: dict[str, Schema] = {}
    schema = _reference(record, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


def _reference(record: type, definitions: dict[str, Schema]) -> Schema:
    name = record.__name__
    if name not in definitions:
        definitions[name] = {}  # a type may hold itself
        definitions[name] = _object(record, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _object(record: Any, definitions: dict[str, Schema]) -> Schema:
    hints, required = hints_of(record), required_of(record)
    return {
        "type": "object",
        "description": " ".join((record.__doc__ or "").split()),
        "properties": {key: _schema(hint, definitions) for key, hint in hints.items()},
        "required": [key for key in hints if key in required],
    }


def _schema(hint: Any, definitions: dict[str, Schema]) -> Schema:
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if is_typeddict(hint) or is_recorded(hint):
        return _reference(hint, definitions)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (NotRequired, Required):
        return _schema(arguments[0], definitions)
    if origin is Annotated:
        return _schema(arguments[0], definitions) | {
            "description": ", ".join(one for one in arguments[1:] if isinstance(one, str))
        }
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions) for one in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    return {}  # anything
