"""The command line called in this process, and the record that it left."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.contradictions import contradictions
from specbench.cli import main
from specbench.records import store

Called = tuple[int, str, str, Any]
Run = Callable[..., Called]


def newest(results: Path) -> Any:
    """The record in `results` that was written last, or None."""
    files = sorted(store.runs_folder(results).glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    return store.read(files[-1]) if files else None


def called(argv: Sequence[str], results: Path, capfd: pytest.CaptureFixture[str]) -> Called:
    """(exit code, stdout, stderr, the newest record in `results` or None), which does not contradict itself."""
    code = main(list(argv))
    out, err = capfd.readouterr()
    record = newest(results)
    assert record is None or "prompts" not in record or contradictions(record) == []
    return code, out, err, record


def small(folders: dict[str, Path], results: Path, *overrides: str, kind: str = "t5") -> list[str]:
    """Keys of a small random target and own rows, without a draft; `overrides` win over them."""
    return [
        f"target.path={folders[kind]}", "task=ende", f"task.path={folders['rows']}", f"results={results}",
        "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=12", *overrides,
    ]  # fmt: skip


def small_run(
    folders: dict[str, Path], results: Path, *overrides: str, verb: str = "run", kind: str = "t5"
) -> list[str]:
    """The command line of a run on small random networks; `overrides` win over its settings."""
    own = (f"draft.path={folders[f'{kind}-draft']}", "gamma=3", "warmup=1")
    return [verb, *small(folders, results, *own, *overrides, kind=kind)]


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """Runs inside are interrupted, as by Ctrl-C, when `after` prompts have been measured."""
    from specbench.experiment import runner
    from specbench.experiment.measure import measure_prompt

    left = iter(range(after))

    def measured(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return measure_prompt(*args)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "measure_prompt", measured)
        yield


def refusal(argv: Sequence[str], capture: pytest.CaptureFixture[str]) -> str:
    """The only line, on stderr, of a command line that is refused as the user's mistake."""
    assert main(list(argv)) == 2
    out, err = capture.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err
