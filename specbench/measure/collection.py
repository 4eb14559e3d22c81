"""Python's garbage collector, kept out of timed steps."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def already_collected() -> Iterator[None]:
    """Within, the collector does not look through what was there before.

    Torch and the captured graphs are so many objects that one look at them takes 0.4 s, and it comes in the middle of
    whatever step makes the next object.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
