"""Measurements of one process, one at a time.

Composing, loading and the kernels hold state of the whole process (Hydra's, torch's, an arena of memory), and two
measurements at once would time each other. A forked child of a process that computed with several threads lacks these
threads, but OpenMP waits for them: it would hang, so it is refused.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from specbench.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


class _Process:
    """The lock, the calls that hold it, the threads that they computed with, and whether a parent had several."""

    def __init__(self, is_fork_of_threads: bool = False) -> None:
        self.lock = threading.RLock()
        self.calls = 0
        self.most_threads = 1
        self.is_fork_of_threads = is_fork_of_threads

    def note_threads(self) -> None:
        """Note the number of torch's threads, if it has been imported."""
        if (torch := sys.modules.get("torch")) is not None:
            self.most_threads = max(self.most_threads, torch.get_num_threads())


_process = _Process()
_ends: list[Callable[[], None]] = []


def when_done(end: Callable[[], None]) -> None:
    """Call `end` after each measurement: what it set for itself ends there."""
    _ends.append(end)


def _before_fork() -> None:
    if _process.calls:
        _process.note_threads()


def _after_fork() -> None:
    global _process
    _process = _Process(_process.is_fork_of_threads or _process.most_threads > 1)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """`function` under the lock of the process: a call from a second thread waits.

    It raises UserError in a child that was forked after its parent had computed with several threads.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        if _process.is_fork_of_threads:
            raise UserError(
                "fork: the parent of this process has computed with several threads, which OpenMP does not survive; "
                "start processes by spawn (multiprocessing.set_start_method('spawn')), or let the parent compute with "
                "threads=1"
            )
        with _process.lock:
            _process.calls += 1
            try:
                return function(*args, **kwargs)
            finally:
                _process.calls -= 1
                _process.note_threads()  # the threads it computed with, not the ones it leaves
                if not _process.calls:
                    for end in _ends:
                        end()

    return alone
