"""Options of the verbs that draw: `--name value` or, as elsewhere, `name=value`; one-line errors."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from specbench.cli.formats import FORMATS
from specbench.config.places import home
from specbench.errors import UserError, alike, closest_first
from specbench.escaping import printable
from specbench.records.store import FEWEST_PROMPTS

RUN = "a run: its id, a unique part of it, the path of its record, or 'last'"


class Options(argparse.ArgumentParser):
    """argparse, but a mistake is one line like every other of ours."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} ('{self.prog} --help' tells more)")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options of a command line in which `results=r` and `--results r` mean the same.

        Raises UserError for an option that the verb has not; the message names close ones.
        """
        found, unknown = self.parse_known_args([_dashed(word) for word in argv])
        if name := next((word.partition("=")[0] for word in unknown if word.startswith("-")), None):
            known = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            close = [f"--{one}" for one in alike(name.lstrip("-"), known)]
            meant = f"did you mean {close[0]}?" if close else f"the options are --{', --'.join(known)}"
            self.error(f"{name}: no such option; {meant}")
        if unknown:
            self.error(f"{unknown[0]}: a word too many")
        return found


def options(verb: str, about: str, rows: bool = False) -> Options:
    """The parser of a verb that reads records; `rows`: it prints some, in a format to choose."""
    parser = Options(prog=f"specbench {verb}", description=about, allow_abbrev=False)
    parser.add_argument(
        "--results", default="results", metavar="FOLDER", help="where the records are (default results)"
    )
    parser.add_argument("--config-dir", type=_folder, metavar="DIR", help="your own choices, in folders as in conf/")
    if rows:
        parser.add_argument("--format", default="table", choices=FORMATS, help="default table")
    return parser


def _folder(name: str) -> Path:
    if not Path(name).is_dir():
        raise argparse.ArgumentTypeError(f"{name}: there is no folder of that name")
    return Path(name)


def _dashed(word: str) -> str:
    """`results=r` as `--results=r`, with '~' in front of its value expanded, as the shell does for a single word."""
    name, equals, value = word.partition("=")
    is_option = equals and re.fullmatch(r"(--)?[a-z][a-z_-]*", name)
    return f"--{name.lstrip('-').replace('_', '-')}={home(value)}" if is_option else word


def add_fewest_prompts(parser: Options) -> None:
    """The option of the verbs that draw from records of a certain size."""
    parser.add_argument(
        "--min-prompts",
        type=int,
        default=FEWEST_PROMPTS,
        metavar="N",
        help=f"leave out records of fewer prompts (default {FEWEST_PROMPTS})",
    )


def to_stderr(text: str) -> None:
    """Say something that is no part of the output."""
    print(printable(text), file=sys.stderr)


def listed(text: str, allowed: Sequence[str], option: str) -> list[str]:
    """A list with commas, each of them `allowed`. Raises UserError for another word, or an empty list."""
    words = [word for word in text.split(",") if word]
    if not words:
        raise UserError(f"{option} '{text}': names no format; choose from {', '.join(allowed)}")
    for word in words:
        if word not in allowed:
            raise UserError(f"{option} {word}: no such format; choose from {', '.join(closest_first(word, allowed))}")
    return words
