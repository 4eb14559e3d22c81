"""`--dry-run`: the models, tokens, memory and time of a command, and nothing run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from specbench.cli.formats import print_rows

if TYPE_CHECKING:
    from specbench.choose.needs import Needs

DRY_RUN = {"--dry-run": "print models, tokens, memory and time, and run nothing"}


def show(form: str, needs: Needs) -> None:
    """Print `needs` in the format `form`."""
    from specbench.choose.needs import lines

    row = asdict(needs)
    print_rows(form, [row], lambda: print("\n".join(lines(needs))), document=row)
