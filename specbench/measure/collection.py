"""Python's garbage collector, kept out of timed steps."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def already_collected() -> Iterator[None]:
    """A context in which the garbage collector does not scan existing objects.

    Torch and the captured graphs consist of so many objects that a scan takes 0.4 s, in the middle of an arbitrary
    step. Objects that the caller froze before remain frozen.
    """
    frozen_before = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()
