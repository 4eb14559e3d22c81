"""Where a recipe's files lie: a path, a hub name, or `shipped:models/t5-mini` for what comes with the package.

It does not open them.
"""

from __future__ import annotations

import os
from pathlib import Path

from specbench.config.paths import shipped

SHIPPED = "shipped:"


def resolve(where: str) -> str:
    """`where` as a path or hub name that libraries take."""
    if where.startswith(SHIPPED):
        return str(shipped(*where[len(SHIPPED) :].split("/")))
    return os.path.expanduser(where)


def short_name(where: str) -> str:
    """`where` without the machine's folders: for model cards, which travel."""
    return where if where.startswith(SHIPPED) or not Path(where).is_absolute() else Path(where).name
