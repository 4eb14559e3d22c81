"""A disk that is full, also where standard output goes to it, is one line, and nothing is lost."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.errors import MachineError
from specbench.records.journal import Journal
from tests.support.made_records import make, record

PROMPT = record(prompts=1)["prompts"][0]


def specbench(*words: str, out: str) -> subprocess.CompletedProcess[str]:
    with open(out, "w") as stdout:
        return subprocess.run(
            [sys.executable, "-m", "specbench", *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["results"], ["results", "--format", "json"], ["--help"], ["results", "--schema"]])
def test_standard_output_on_a_full_disk(words: list[str], tmp_path: Path) -> None:
    make(tmp_path)
    more = ["--results", str(tmp_path)] if words == ["results"] else []
    done = specbench(*words, *more, out="/dev/full")
    assert done.returncode == 1
    assert done.stderr == ("specbench: standard output or a file cannot be written (No space left on device)\n")


def test_a_reader_that_ends_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "specbench", "results", "--schema"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def fill(results: Path) -> None:
    with Journal(results, "run") as journal:
        for number in range(1, 20):
            journal.add(PROMPT | {"index": number, "prompt": "x" * 1000})


@pytest.mark.parametrize("room", [0, 1, 100, 5000])
def test_a_journal_on_a_full_disk_is_one_line_and_is_whole(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes a part of a line and then no more, in the middle of the prompt and when the file is closed."""
    pytest.importorskip("resource")
    import resource
    import signal

    with Journal(tmp_path, "run") as journal:
        journal.add(PROMPT)
    size = journal.file.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, before[1]))
        said = f"cannot be written .{os.strerror(errno.EFBIG)}.; finished work is kept"
        with pytest.raises(MachineError, match=said):
            fill(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    content = journal.file.read_bytes()
    assert content.endswith(b"\n") and len(content) <= size + room
    with Journal(tmp_path, "run") as again:
        assert sorted(again.prompts) == list(range(content.count(b"\n")))
