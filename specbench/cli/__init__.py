"""The command line: verbs to functions. The only owner of argv and of the screen.

This module imports nothing heavy: `specbench --help` must not wait for torch.
"""

import contextlib
import errno
import gc
import importlib
import io
import os
import sys
import traceback
import warnings

from specbench.escaping import printable

# The verbs by purpose: verb -> (its function, one line of help). The function takes the words after the verb and
# returns the exit code. It raises UserError for a word that cannot be read or a file that is not what the verb reads.
GROUPS = {
    "measure": {
        "run": (
            "specbench.cli.run:main",
            "decode with and without a draft, side by side; measure alpha, c and the speedup",
        ),
        "sweep": ("specbench.cli.run:main_sweep", "the same over lists of values: gamma=1,3,5 draft=unigram,bigram"),
        "alpha": (
            "specbench.cli.measure_alpha:main",
            "alpha of many drafts at once, by teacher forcing on the target's completions",
        ),
        "bench": (
            "specbench.cli.bench:main",
            "time our decoding against transformers' own, and the parts of a pass; bench beam: beam search",
        ),
    },
    "choose": {
        "recommend": (
            "specbench.cli.recommend:main",
            "which draft, which gamma: a ranking with reasons, checked by real runs; --validate tests the estimates",
        ),
        "explain": (
            "specbench.cli.explain:main",
            "why a run is as fast as it is, the largest cause first; --within 2%: how many prompts that takes",
        ),
    },
    "look": {
        "list": ("specbench.cli.listing:main", "targets, drafts and tasks, and what is usable offline now"),
        "results": ("specbench.cli.results:main", "all records as one table; --as profile: JSON for other programs"),
        "show": ("specbench.cli.show:main", "a completion pass by pass: accepted, rejected and corrected tokens"),
        "compare": (
            "specbench.cli.compare:main",
            "two runs prompt by prompt; --baseline FILE: exit code 1 if a number moved; --history: over commits",
        ),
        "fetch": (
            "specbench.cli.fetch:main",
            "fill the local cache with a run's models and rows, for a machine without a network; prints sizes first",
        ),
        "tables": ("specbench.cli.drawing:tables", "the paper's tables with our numbers"),
        "figures": ("specbench.cli.drawing:figures", "the paper's figures with our measured points"),
        "report": ("specbench.cli.drawing:report", "all tables and figures as one HTML page"),
    },
    "other engines": {
        "server": (
            "specbench.cli.server:main",
            "measure any OpenAI-compatible server with a draft against one without: speedup, times, alpha, verdict",
        ),
        "read": (
            "specbench.cli.read:main",
            "explain the acceptance numbers that engines print, and estimate α from them",
        ),
        "certify": (
            "specbench.cli.certify:main",
            "test whether a server's completions are the target's; exit code 0, 1 or 2 (cannot tell)",
        ),
    },
    "train": {"train": ("specbench.cli.train:main", "train a target or a draft by a recipe")},
}
VERBS = {verb: entry for group in GROUPS.values() for verb, entry in group.items()}

HELP = """specbench: measure speculative decoding on your models and prompts

usage: specbench COMMAND [option=value ...]

{verbs}

`specbench COMMAND --help` lists the options. Without options, `specbench run` measures a small pair that ships.
"""


HELPS = ("-h", "--help", "help")
FULL = (errno.ENOSPC, errno.EDQUOT)
# What a file or folder that somebody names may be: closed to this user, too long a name, a ring of links, a dead disk.
OUT_OF_REACH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE)
MOST_SHOWN = 120  # characters of its name
RARELY = (100_000, 20, 100)  # garbage is collected: the libraries are a million objects, which each collection looks at


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 success, 1 failure of the machine, 2 a mistake of the user."""
    from specbench.files import kept, note_finished

    code = 0
    note_finished(False)
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head -1`
        return _unprinted(code)
    except OSError as error:
        return _unprinted(fail(f"standard output or a file cannot be written ({error.strerror}){kept()}", 1))
    return code


def _run(argv: list[str] | None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # α and γ on a terminal without them are \u03b1 and \u03b3
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")
    if len(argv) > 1 and argv[0] in HELPS and not argv[1].startswith("-"):
        argv = [*argv[1:], "--help"]  # `specbench help run`
    if not argv or argv[0] in HELPS:
        print(HELP.format(verbs="\n\n".join(f"{title}:\n{_listed(verbs)}" for title, verbs in GROUPS.items())))
        return 0
    if argv[0] == "--version":
        from specbench import __version__

        print(__version__)
        return 0
    verb, *rest = argv
    from specbench.errors import MachineError, UserError
    from specbench.files import kept

    if verb.startswith("-"):
        return fail(f"{verb}: options come after the command, as in specbench run {verb}; see specbench --help", 2)
    if verb not in VERBS:
        return fail(f"{verb}: no such command; {_meant(verb)}", 2)

    warnings.formatwarning = _plain
    gc.set_threshold(*RARELY)
    try:
        module, _, function = VERBS[verb][0].partition(":")
        return int(getattr(importlib.import_module(module), function)(rest))
    except SystemExit as end:  # after --help
        return int(end.code or 0)
    except (UserError, MachineError) as error:
        return fail(str(error), error.exit_code)
    except KeyboardInterrupt as end:
        return fail(str(end) or f"interrupted{kept()}", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) or getattr(error, "errno", None) in FULL:
            raise  # most likely what `print` raised: a record or journal that cannot be written is a MachineError
        return unexpected(error)


def _unprinted(code: int) -> int:
    """`code`, after what could not be printed was given up: Python would try once more at its end, and say so."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return code


def _meant(verb: str) -> str:
    """The command that the unknown word `verb` may mean, or all of them."""
    from specbench.errors import alike

    if close := alike(verb.lower(), VERBS):
        return f"did you mean {close[0]}? 'specbench --help' lists all"
    return f"choose from {', '.join(VERBS)}"


def _listed(verbs: dict[str, tuple[str, str]]) -> str:
    """A line of help for each of `verbs`."""
    return "\n".join(f"  {verb:<10} {text}" for verb, (_, text) in verbs.items())


def fail(message: str, code: int) -> int:
    """Print an error as one line on stderr; returns `code`."""
    with contextlib.suppress(OSError):  # a full disk takes no message either
        print(f"specbench: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


_formatted = warnings.formatwarning


def _plain(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Format our own warnings as one line; leave other packages' as they are."""
    ours = category.__module__.partition(".")[0] == __package__.partition(".")[0]
    return f"specbench: {message}\n" if ours else _formatted(message, category, filename, lineno, line)


def unexpected(error: Exception) -> int:
    """Print the traceback of an error that is neither a `UserError` nor a `MachineError`; returns its exit code.

    One line names a file or folder that this user cannot reach: its option matters, not the code that reads it.
    """
    from specbench.files import kept

    if isinstance(error, OSError) and error.filename is not None and error.errno in OUT_OF_REACH:
        name = str(error.filename)
        name = name if len(name) <= MOST_SHOWN else f"{name[:MOST_SHOWN]}…"
        way_out = f"give a file or folder that this user can read{kept()}"
        return fail(f"{name}: cannot be reached ({error.strerror}); {way_out}", 1)
    traceback.print_exception(error)
    return fail(f"this is a fault of specbench: please report it with the lines above{kept()}", 1)
