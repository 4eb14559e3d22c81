"""The grammar of the verbs that Hydra composes: `key=value`, `--key value` and `--key=value` mean the same.

Hydra's own switches keep their spelling and come first, since its parser takes the overrides in one piece.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.cli.formats import checked_format
from specbench.compose.suggestions import no_such_key
from specbench.compose.words import GROUPS, parsed
from specbench.config.keys import keys_of
from specbench.config.places import home
from specbench.errors import UserError

# Hydra's switches by their long name: first those without a value, then those with one.
ALONE = {"--resolve": "--resolve", "--multirun": "--multirun", "-m": "--multirun", "--run": "--run", "-r": "--run"}
VALUED = {
    "--cfg": "--cfg", "-c": "--cfg", "--config-dir": "--config-dir", "-cd": "--config-dir", "--package": "--package",
    "-p": "--package", "--info": "--info", "-i": "--info",
}  # fmt: skip
SHOWN = {
    "--cfg": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}

HORIZONTAL, PLACES = "draft.horizontal", ("first", "second", "third")
# Picked by name or by place.
PICKED_OR_PLACE = re.compile(r"(target|draft|task)(@[\w.]+)?|distill\.target|[\w.]+\.start_from")
PLACES_ALONE = re.compile(r"results|output|([\w.]+\.)?(train_)?path")  # always a place
SWEEPS = re.compile(r"(choice|range|interval|glob|sort|shuffle)\(")  # Hydra's functions
# Keys that are lists, and may also have several values, one per job: these are lists of lists, and need brackets.
VARIED = ("draft.", "tree.")
PARENTS = (".", "..")
QUOTED = re.compile(r"[^\w./~@:$=+\\-]")  # characters that may mean something in Hydra's grammar
TEXTS = re.compile(r"task\.(template|prefix|suffix)|sampling\.regex")  # whose value may hold any characters
TEMPLATE = "prompt.template"
TEMPLATES = {"chat": "task.chat_template=true", "none": "task.chat_template=false"}


@dataclass(frozen=True)
class CommandLine:
    """`switches` are Hydra's, `overrides` are key=value, `options` are the verb's own, by their name without dashes."""

    switches: list[str]
    overrides: list[str]
    options: dict[str, str]

    @property
    def argv(self) -> list[str]:
        """The words for Hydra."""
        return [*self.switches, *self.overrides]

    @property
    def form(self) -> str:
        """The format that rows are printed in."""
        return self.options.get("format", "table")


def read(
    argv: Sequence[str],
    schema: type[Any],
    help_text: Callable[[], str] = str,
    valued: Sequence[str] = (),
    alone: Sequence[str] = (),
) -> CommandLine:
    """Parse the command line of a verb that takes the keys of `schema`, --format, and further options.

    Args:
        argv: the words after the verb.
        schema: the dataclass of the keys.
        help_text: makes what --help prints.
        valued: options with a value.
        alone: options without a value.

    Raises:
        UserError: a word cannot be read.
        SystemExit: --help was given, and printed.
    """
    if {"-h", "--help"} & set(argv):
        print(help_text())
        raise SystemExit(0)
    valued = ("format", *valued)
    flags = {key.name for key in keys_of(schema) if key.default in ("true", "false")}
    found = CommandLine([], [], {})
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        bare = name.lstrip("-").replace("_", "-")
        dashed = name.startswith("-")
        if dashed and name in ALONE and not equals:
            found.switches.append(ALONE[name])
        elif dashed and bare in alone and not equals:
            found.options[bare] = ""
        elif (dashed and name in VALUED) or (equals and bare == "config-dir"):
            switch = VALUED.get(name, "--config-dir")
            found.switches.extend((switch, _checked(switch, home(value) if equals else _next(words, switch))))
        elif bare in valued and (dashed or equals):
            found.options[bare] = home(value) if equals else _next(words, name)
        elif dashed:
            key = name.lstrip("-").replace("-", "_") if name.startswith("--") else name
            if key in flags and not equals:
                value = words.pop(0) if words and words[0] in ("true", "false") else "true"
            found.overrides.append(f"{key}={value if equals or key in flags else _value(words, key, schema)}")
        else:
            found.overrides.append(word)
    lists = {key.name for key in keys_of(schema) if key.listed and not key.name.startswith(VARIED)}
    found.overrides[:] = [_in_brackets(word, lists) for word in _horizontally(list(map(_respelt, found.overrides)))]
    for word in found.overrides:
        if parsed(word) is None:
            raise UserError(
                f"{word.strip() or repr(word)}: cannot be read; write key=value, with quotes around a value that has "
                "brackets or commas: \"key='a (b)'\""
            )
    for switch in ("--resolve", "--package"):
        if switch in found.switches and "--cfg" not in found.switches:
            raise UserError(f"{switch}: belongs to --cfg job, which shows the config; give both")
    checked_format(found.form)
    return found


def _respelt(word: str) -> str:
    """`word` as Hydra reads it: no spaces around '=', places as a shell writes them, `prompt.template` as its key."""
    key, equals, value = word.partition("=")
    key, value = key.strip(), value.strip()
    if equals and not key:
        raise UserError(f"{word}: there is no option before '='; write key=value")
    word = f"{key}={value}" if equals else word
    if TEXTS.fullmatch(key):
        return f"{key}={_text(key, value)}"
    if PICKED_OR_PLACE.fullmatch(key) or PLACES_ALONE.fullmatch(key) or value.startswith("~/"):
        return f"{key}={_places(value, may_be_name=bool(PICKED_OR_PLACE.fullmatch(key)))}"
    if key != TEMPLATE:
        return word
    if value not in TEMPLATES:
        raise UserError(f"{word}: must be {' | '.join(TEMPLATES)}")
    return TEMPLATES[value]


def _text(key: str, value: str) -> str:
    """`value` in quotes if Hydra could not read it, or would take it for a list or a mapping."""
    if not value or value[0] in "\"'" or "${" in value or SWEEPS.match(value):
        return value
    if value[0] not in "[{" and parsed(f"{key}={value}") is not None:
        return value
    escaped = value.replace("'", "\\'")
    return f"'{escaped}'"


def _in_brackets(word: str, lists: Collection[str]) -> str:
    """`gammas=1,2,3` and `gammas=3` as the lists that they mean, for the keys `lists`."""
    key, _, value = word.partition("=")
    if key not in lists or not value or value == "null" or value[0] == "[" or "${" in value:
        return word
    return f"{key}=[{value}]"


def _places(value: str, may_be_name: bool) -> str:
    """`value` with each place in it as Hydra takes it: '~' expanded, no '/' at the end, quoted if it must be.

    A value is a list at its commas, unless a file or folder has that very name. `may_be_name`: a word without '/' is
    the name of a choice.
    """
    if not value or value[0] in "\"'" or "${" in value or SWEEPS.match(value):
        return value
    if not _exists(value):
        if value[0] == "[" and value[-1] == "]":
            return f"[{_places(value[1:-1], may_be_name)}]"
        if "," in value:
            return ",".join(_places(one.strip(), may_be_name) for one in value.split(","))
    elif may_be_name and "/" not in value and value not in PARENTS and not QUOTED.search(value):
        return value
    elif may_be_name and "/" not in value:
        value = f"./{value}"
    place = str(Path(home(value))) if value.startswith("~") else value
    if may_be_name and (place.rstrip("/").rpartition("/")[2] in PARENTS):
        place = str(Path(place).resolve())
    elif len(place) > 1 and place.endswith("/"):
        place = place.rstrip("/") or "/"
        place = f"./{place}" if "/" not in place else place
    has_odd = QUOTED.search(place) or place.startswith("~")  # of nobody: what is not expanded
    if not has_odd or (may_be_name and "/" not in place):
        return place
    escaped = place.replace("'", "\\'")
    return f"'{escaped}'"


def _exists(value: str) -> bool:
    """Whether a file or folder has this name."""
    try:
        return Path(home(value)).exists()
    except (OSError, ValueError):  # too long, a null
        return False


def _horizontally(words: list[str]) -> list[str]:
    """`draft=cascade draft.horizontal=[A,B,C]` as the draft that it means, whose parts are picked by their names."""
    given = [word for word in words if word.partition("=")[0] == HORIZONTAL]
    if not given:
        return words
    names = given[-1].partition("=")[2].strip("[]").split(",")
    if "draft=cascade" not in words or not 2 <= len(names) <= len(PLACES) or not all(names):
        raise UserError(
            f"{given[-1]}: requires draft=cascade and two or three drafts, the cheapest last: [t5-nano,bigram]"
        )
    kept = [word for word in words if word not in (*given, "draft=cascade")]
    return [
        "draft=horizontal",
        *(f"draft@draft.{place}={name}" for place, name in zip(PLACES, names, strict=False)),
        *kept,
    ]


def _next(words: list[str], name: str) -> str:
    if not words:
        raise UserError(f"{name}: give a value, {name} VALUE")
    return words.pop(0)


def _value(words: list[str], key: str, schema: type[Any]) -> str:
    """The value of `--key`, the next word."""
    known = {one.name for one in keys_of(schema)} | {*GROUPS, TEMPLATE}
    if key.startswith("-") or (key not in known and not any(one.startswith(f"{key}.") for one in known)):
        raise UserError(no_such_key(key, schema))
    return _next(words, f"--{key}")


def _checked(switch: str, value: str) -> str:
    if switch in SHOWN and value not in SHOWN[switch]:
        raise UserError(f"{switch} {value}: must be {' | '.join(SHOWN[switch])}")
    return value
