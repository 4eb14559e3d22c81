"""Runs a command for another process and ends it, with all that it started, when that process is gone.

`python guard.py FD COMMAND …`: FD is the reading end of a pipe that the other process holds open. It ends with any
death of that process, also one that no handler sees. The guard leads a process group of its own, in which the command
runs; if Python has no pipe left to wait for, the group gets SIGTERM, and SIGKILL after `PATIENCE` seconds.

This file knows nothing but the standard library: it starts in a moment.
"""

import os
import select
import signal
import subprocess
import sys
import time

PATIENCE = 10.0  # seconds between SIGTERM and SIGKILL
OFTEN = 0.05  # seconds between two looks at the command


def main(alive: int, command: list[str]) -> int:
    """Run `command` until it ends or `alive` is closed at its other end; the exit code of the command."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # our own group is told below
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_as_usual, close_fds=True)
    while running.poll() is None:
        if select.select([alive], [], [], OFTEN)[0] and not os.read(alive, 1):
            break
    os.killpg(0, signal.SIGTERM)  # a command that ended by itself may have left others
    os.killpg(0, signal.SIGCONT)  # held ones end only now
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends and (running.poll() is None or _group_has_others()):
        time.sleep(OFTEN)
    code = running.poll()
    if code is None or _group_has_others():
        os.killpg(0, signal.SIGKILL)
    return code if code is not None and code >= 0 else 1


def _as_usual() -> None:
    """Give the command the signals of any other command."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _group_has_others() -> bool:
    """Whether other processes are in our process group, by /proc; false without /proc."""
    return any(one != os.getpid() for one in members(os.getpgrp()))


def members(group: int) -> list[int]:
    """The processes of a process group, by /proc; empty without /proc."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as opened:
                state, _, its_group = opened.read().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
