"""The screen of all tables for people: it shows text as it is, without markup and control characters."""

from collections.abc import Iterable
from functools import cache
from typing import IO, TYPE_CHECKING

from specbench.escaping import printable

if TYPE_CHECKING:
    from rich.console import Console


def terminal(stream: IO[str] | None = None, soft_wrap: bool = True) -> "Console":
    """A console on `stream` (unset: stdout) that shows text as it is.

    Brackets are brackets unless `print` is called with `markup=True`, and control characters are left out, so that a
    name or a completion of a record cannot colour or hide lines or move the cursor.
    """
    return _console_class()(file=stream, highlight=False, soft_wrap=soft_wrap, markup=False)


@cache
def _console_class() -> "type[Console]":
    """The class of `terminal`, made late: rich takes a while to import, and most commands print without it."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                # Control segments are rich's own: they draw the bar.
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return Terminal
