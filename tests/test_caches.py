"""Caches hold what this user put there: a folder or a file of another's is neither read nor written."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specbench.engine.capture import saved_captures as captures
from specbench.experiment import dtype
from specbench.experiment.dtype import DtypeProbe
from specbench.files import own_cache, user_cache
from specbench.methods import from_text

PROBE = DtypeProbe("bfloat16", 1.0, 2.0)
PLANTED = '{"dtype": "float32", "bfloat16_ms": 3, "float32_ms": 4}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "specbench"


def others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` another user's, as far as this process can see."""
    real, there = os.stat_result, os.stat(path).st_ino

    def of_others(found: os.stat_result) -> os.stat_result:
        return real((*found[:4], found.st_uid + 1, *found[5:])) if found.st_ino == there else found

    stat, lstat, to_path = os.stat, os.lstat, Path.stat
    monkeypatch.setattr(os, "stat", lambda *given, **named: of_others(stat(*given, **named)))
    monkeypatch.setattr(os, "lstat", lambda *given, **named: of_others(lstat(*given, **named)))
    monkeypatch.setattr(Path, "stat", lambda *given, **named: of_others(to_path(*given, **named)))


def written(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def fill(place: str) -> None:
    """Write and read each kind of cached file."""
    dtype._written(own_cache() / "dtype-x.json", PROBE)
    captures._write(own_cache() / "capture-x.json", "{}")
    from_text.cached(own_cache(), "counts", place, lambda: {"a": np.ones(1)})


@pytest.mark.parametrize("kind", ["another's", "a link", "open to all"])
def test_a_folder_of_others_is_neither_read_nor_written(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "dtype-x.json").write_text(PLANTED)
    if kind == "open to all":
        theirs.rename(folder)
        folder.chmod(0o777)
        (folder / "dtype-x.json").chmod(0o666)  # as another could have left it
        assert own_cache() == folder and not folder.stat().st_mode & 0o022
        assert dtype._read(folder / "dtype-x.json") is None
        assert dtype._written(folder / "dtype-x.json", PROBE) == PROBE == dtype._read(folder / "dtype-x.json")
        return
    if kind == "a link":
        folder.symlink_to(theirs)
    else:
        theirs.rename(folder)
    others(theirs if kind == "a link" else folder, monkeypatch)
    before = written(tmp_path)
    assert own_cache() not in (folder, theirs)
    fill("x")
    assert dtype._read(own_cache() / "dtype-x.json") == PROBE
    assert written(tmp_path) == before


def test_files_are_read_back_whatever_the_umask_is(folder: Path) -> None:
    before = os.umask(0)
    try:
        fill("y")
    finally:
        os.umask(before)
    assert dtype._read(folder / "dtype-x.json") == PROBE
    made = from_text.cached(own_cache(), "counts", "y", lambda: pytest.fail("made again"))
    assert list(made) == ["a"]


def test_a_damaged_probe_is_measured_again_and_replaced(folder: Path) -> None:
    file = own_cache() / "dtype-x.json"
    for text in ('{"dtype": []}', "[" * 100_000, '{"dtype": "int8", "bfloat16_ms": 1, "float32_ms": 1}'):
        file.write_text(text)
        assert dtype._read(file) is None
        assert dtype._written(file, PROBE) == PROBE == dtype._read(file)


def test_a_folder_that_the_user_named_may_be_shared(tmp_path: Path, folder: Path) -> None:
    shared = tmp_path / "shared"
    from_text.cached(shared, "counts", "z", lambda: {"a": np.ones(1)})
    next(shared.iterdir()).chmod(0o666)
    assert list(from_text.cached(shared, "counts", "z", lambda: pytest.fail("made again"))) == ["a"]


FALLS_BACK = """
import os, sys
from specbench.files import own_cache
print(own_cache())
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.exit()
if sys.argv[1] == "fork":
    os.wait()
    assert own_cache().is_dir()
"""


@pytest.mark.parametrize("way", ["alone", "fork"])
def test_the_folder_of_a_process_ends_with_it(way: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FALLS_BACK, way], env=os.environ | places, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent == tmp_path and user_cache().name == "specbench"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("make", [lambda file: os.mkfifo(file), lambda file: file.mkdir()])
def test_what_is_no_file_is_no_cache(make: Callable[[Path], None], folder: Path) -> None:
    own_cache()
    make(folder / "dtype-x.json")
    assert dtype._read(folder / "dtype-x.json") is None
