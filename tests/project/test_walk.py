"""The walk from argv to α is short: in a run of the native engine, which is the default on a CPU.

Guarded are the files of the package on the stack when passes run and when α is shown; the files with a function that
has returned by then; and the functions that the config, the target and the draft are given to.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from omegaconf import DictConfig

import specbench
from specbench.algorithm.draft import Draft
from specbench.cli import main
from specbench.config.schema import RunConfig
from specbench.engine.native.passes import NativePasses
from specbench.engine.session import Model
from specbench.loading import model_loader
from specbench.report import views
from tests.support.calls import small_run

ROOT = Path(specbench.__file__).parent
MOST_FILES = 12
MOST_CLIMBS = {"passes": 8, "alpha": 2}
MOST_RETURNED = 206  # 140 before files of several topics were split, 195 before the last seventeen were
MOST_PLACES = {"config": 45, "target": 20, "draft": 8}

Frame = tuple[str, bool]  # the file of a function, and whether the function has the config


def has_config(value: object) -> bool:
    """Whether `value` is the config of a run, before or after it is typed, or carries it."""
    composed = isinstance(value, DictConfig) and "gamma" in value
    return composed or isinstance(value, RunConfig) or isinstance(getattr(value, "config", None), RunConfig)


def walk() -> list[Frame]:
    """The functions of the package that are being called, the outermost first."""
    found: list[Frame] = []
    frame = sys._getframe(2)
    while frame is not None:
        if (file := Path(frame.f_code.co_filename)).is_relative_to(ROOT):
            climbs = any(map(has_config, frame.f_locals.values()))
            found.append((file.relative_to(ROOT).as_posix(), climbs))
        frame = frame.f_back  # type: ignore[assignment]
    return found[::-1]


def watched(walks: dict[str, list[Frame]], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose first call notes the walk to it."""

    def noted(*given: Any) -> Any:
        walks.setdefault(name, [*walk(), (Path(function.__code__.co_filename).relative_to(ROOT).as_posix(), False)])
        return function(*given)

    return noted


class Watch:
    """The files whose functions have returned, and the functions that are given a config below `decode`, or a target or
    a draft below `speculate`, by their names."""

    def __init__(self) -> None:
        self.returned: set[str] = set()
        self.places: dict[str, set[str]] = defaultdict(set)
        self._below = {"decode": 0, "speculate": 0}
        self._files: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if (file := self._file(frame.f_code)) is None or event not in ("call", "return"):
            return
        name = frame.f_code.co_name
        if f"{file}:{name}" in ("api.py:decode", "algorithm/decoding.py:speculate"):  # a generator is entered again
            self._below[name] += 1 if event == "call" else -1
        if event == "return":
            self.returned.add(file)
            return
        given = frame.f_locals.values()
        kinds = {"config": (self._below["decode"], RunConfig), "target": (self._below["speculate"], Model),
                 "draft": (self._below["speculate"], Draft)}  # fmt: skip
        for kind, (is_below, of) in kinds.items():
            if is_below and any(isinstance(one, of) for one in given):
                self.places[kind].add(f"{file}:{frame.f_code.co_qualname}")

    def _file(self, code: CodeType) -> str | None:
        if code not in self._files:
            file = Path(code.co_filename)
            self._files[code] = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else None
        return self._files[code]


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """But for the loading of models, in which millions of torch's functions are called."""
    watch, load = Watch(), model_loader.load_model

    def unwatched(*given: Any) -> Any:
        sys.setprofile(None)
        made = load(*given)
        sys.setprofile(watch)
        return made

    monkeypatch.setattr(model_loader, "load_model", unwatched)
    sys.setprofile(watch)
    try:
        yield watch
    finally:
        sys.setprofile(None)


@pytest.mark.full
def test_from_argv_to_alpha(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: dict[str, list[Frame]] = {}
    monkeypatch.setattr(NativePasses, "run", watched(walks, "passes", NativePasses.run))
    monkeypatch.setattr(views, "rows", watched(walks, "alpha", views.rows))
    with watching(monkeypatch) as watch:
        code = main(small_run(folders, tmp_path, "engine=native", "limit=1", "warmup=0", "max_new_tokens=4"))
    assert code == 0
    files = {file for frames in walks.values() for file, _ in frames}
    assert {"cli/run.py", "api.py", "experiment/runner.py", "engine/native/passes.py"} <= files
    assert len(files) <= MOST_FILES, "\n".join(sorted(files))
    for name, most in MOST_CLIMBS.items():
        assert sum(climbs for _, climbs in walks[name]) <= most, walks[name]
    agreed = {"experiment/measure.py", "analysis/acceptance/agreement.py", "analysis/summary.py", "records/store.py"}
    assert agreed <= watch.returned and len(watch.returned) <= MOST_RETURNED, sorted(watch.returned)
    for name, most in MOST_PLACES.items():
        assert 0 < len(watch.places[name]) <= most, (name, sorted(watch.places[name]))
