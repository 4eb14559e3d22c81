"""The walk from argv to α is short: the frames of the package on the stack when a token is accepted and α is shown."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calls import small_run
from omegaconf import DictConfig

import specbench
from specbench.algorithm import decoding
from specbench.cli import main
from specbench.config.schema import RunConfig
from specbench.report import summary_text

ROOT = Path(specbench.__file__).parent
MOST_FILES = 12
MOST_CLIMBS = {"acceptance": 8, "alpha": 2}

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


@pytest.mark.full
def test_from_argv_to_alpha(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: dict[str, list[Frame]] = {}
    monkeypatch.setattr(decoding, "verdict_on_host", watched(walks, "acceptance", decoding.verdict_on_host))
    monkeypatch.setattr(summary_text, "rows", watched(walks, "alpha", summary_text.rows))
    assert main(small_run(folders, tmp_path, "limit=1", "warmup=0", "max_new_tokens=4")) == 0
    files = {file for frames in walks.values() for file, _ in frames}
    assert {"cli/run.py", "api.py", "experiment/runner.py", "algorithm/acceptance/verify.py"} <= files
    assert len(files) <= MOST_FILES, sorted(files)
    for name, most in MOST_CLIMBS.items():
        assert sum(climbs for _, climbs in walks[name]) <= most, walks[name]
