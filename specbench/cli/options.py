"""Options of the verbs that draw: `--name value` or, as elsewhere, `name=value`; one-line errors."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from specbench.errors import UserError
from specbench.records.store import FEWEST_PROMPTS

RUN = "a run: its id, a unique part of it, the path of its record, or 'last'"


class Options(argparse.ArgumentParser):
    """argparse, but a mistake is one line like every other of ours."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} ('{self.prog} --help' tells more)")


def options(verb: str, about: str) -> Options:
    parser = Options(prog=f"specbench {verb}", description=about, allow_abbrev=False)
    parser.add_argument(
        "--results", default="results", metavar="FOLDER", help="where the records are (default results)"
    )
    return parser


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
    print(text, file=sys.stderr)


def dashed(argv: Sequence[str]) -> list[str]:
    """`results=r` as `--results=r`."""
    return [f"--{word}" if re.match(r"[a-z][a-z-]*=", word) else word for word in argv]


def listed(text: str, allowed: Sequence[str], option: str) -> list[str]:
    """A list with commas, each of them `allowed`."""
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in allowed:
            raise UserError(f"{option} {word}: no such format; choose from {', '.join(allowed)}")
    return words
