"""What of a document is not as its JSON Schema has it."""

import json
from typing import Any

from specbench.recorded import to_json
from specbench.records.json_schema import json_schema
from specbench.records.run_record import RunRecord

KINDS = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None)}


def faults(value: Any, schema: dict[str, Any], definitions: dict[str, Any], at: str = "") -> list[str]:
    """What of `value` is not as the JSON Schema has it; keys that it does not name count too."""
    if "$ref" in schema:
        return faults(value, definitions[schema["$ref"].rpartition("/")[2]], definitions, at)
    if "anyOf" in schema:
        tried = [faults(value, one, definitions, at) for one in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{at}: {value!r} is none of {schema['enum']}"]
    if schema.get("type") in ("object", "array") and not isinstance(value, dict | list):
        return [f"{at}: {value!r} is no {schema['type']}"]
    if "properties" in schema:
        known = schema["properties"]
        found = [f"{at}.{key}: missing" for key in schema["required"] if key not in value]
        found += [f"{at}.{key}: not in the schema" for key in value if key not in known]
        return found + [
            fault
            for key in value
            if key in known
            for fault in faults(value[key], known[key], definitions, f"{at}.{key}")
        ]
    if schema.get("type") == "array":
        return [
            fault for i, one in enumerate(value) for fault in faults(one, schema["items"], definitions, f"{at}[{i}]")
        ]
    if schema.get("type") == "object":
        inner = schema["additionalProperties"]
        return [fault for key in value for fault in faults(value[key], inner, definitions, f"{at}.{key}")]
    kind = schema.get("type")
    right = kind is None or (isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)))
    return [] if right else [f"{at}: {value!r} is no {kind}"]


def faults_of(record: Any) -> list[str]:
    schema = json.loads(json.dumps(json_schema(RunRecord)))
    return faults(to_json(record), schema, schema["$defs"])
