"""Files that anyone may have written: a right one with one or more faults, the same for the same number."""

import copy
import gzip
import json
import random
from typing import Any

DEEP = "\x00deep\x00"  # stands in JSON for what json.dumps cannot write
TEXTS = {
    f'"{DEEP}1"': "[" * 100_000, f'"{DEEP}2"': '{"a":' * 100_000, f'"{DEEP}3"': "9" * 5000, f'"{DEEP}4"': '"\\ud800"',
    f'"{DEEP}5"': "1e999", f'"{DEEP}6"': "NaN", f'"{DEEP}7"': "-Infinity", f'"{DEEP}8"': "[" * 200 + "]" * 200,
    f'"{DEEP}9"': "-" + "9" * 400,
}  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, 10**30, 0.5, -2.5, 1e308, "", "x", "../../x", "\x00", "$\\frac{1}{0$ and $",
    "${oc.env:HOME}", "\x1b[31m", [], {}, [None], [[]], {"a": None}, [1, "x"], {"value": None}, "ä" * 300,
    *(f"{DEEP}{number}" for number in range(1, 10)),
]  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every value within a value, by the keys that lead to it; of a list the first two."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [at, *(place for key, item in items for place in _places(item, (*at, key)))]


def damaged(value: Any, draw: random.Random) -> Any:
    """`value` with a part of it replaced, removed or renamed."""
    made = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        *before, last = draw.choice(_places(made)) or (None,)
        if last is None:
            return copy.deepcopy(draw.choice(VALUES))
        inner = made
        for key in before:
            inner = inner[key]
        change = draw.random()
        if change < 0.75:
            inner[last] = copy.deepcopy(draw.choice(VALUES))  # a later fault may change it
        elif change < 0.9 or isinstance(inner, list):
            del inner[last]
        else:
            inner[draw.choice(("x", "error", "schema_version", ""))] = inner.pop(last)
    return made


def as_json(value: Any) -> str:
    """`value` as JSON, with what is no JSON in the places of its stand-ins."""
    text = json.dumps(value)
    for stand_in, found in TEXTS.items():
        text = text.replace(json.dumps(json.loads(stand_in.replace("\x00", "\\u0000"))), found)
    return text


def spoilt(content: bytes, draw: random.Random) -> bytes:
    """A file's bytes: whole, cut short, with bytes changed or repeated, or another file altogether."""
    change = draw.random()
    if change < 0.6 or not content:
        return content
    place = draw.randrange(len(content))
    if change < 0.75:
        return content[:place]
    if change < 0.9:
        return content[:place] + draw.randbytes(draw.choice((1, 1, 8))) + content[place + 1 :]
    return draw.choice((
        b"", b"\n", b"\x00" * 99, b"\xff\xfe" + content, b"\xef\xbb\xbf" + content, b"null", b"[]", b'"x"', b"7",
        content * 2, b"[" * 100_000, b"9" * 5000, b'"\\ud800"', b"\xed\xa0\x80", gzip.compress(content, 1),
        b"\x1f\x8b" + content,
    ))  # fmt: skip
