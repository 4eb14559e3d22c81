"""The commands as functions, for notebooks and scripts: `specbench.run`, `specbench.alpha`, `specbench.recommend`.

They take the keys of the command line, write the same records to `results/`, and display the same tables. The command
line calls `decode`, `score`, `rank` and `validate`, which take composed configs in place of keys.

    run = specbench.run(target="t5-mini", draft="bigram", gamma=3, sampling={"temperature": 1}, limit=20)
    run.speedup, run.alpha, run.to_frame()

They raise `UserError` for mistakes of the caller and `MachineError` for failures of the machine. Calls from several
threads run one after another (`one_at_a_time`).
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from specbench.alone import one_at_a_time
from specbench.compose.grid import as_text, compose_grid
from specbench.compose.hydra_app import composed_config
from specbench.compose.words import GROUPS
from specbench.config.checks import check
from specbench.config.schema import RunConfig
from specbench.config.verbs import ChooseConfig, LoadConfig, check_choose, check_load
from specbench.errors import UserError
from specbench.files import require_writable
from specbench.recorded import to_json
from specbench.records.alpha_document import AlphaDocument
from specbench.records.choosing import LoadDocument, RankedRow, RecommendDocument, ValidateDocument
from specbench.records.marks import why_unproved
from specbench.records.numbers import Summary
from specbench.records.run_record import RunRecord
from specbench.records.store import Result
from specbench.report.alpha_tables import draw as draw_alphas
from specbench.report.ranking import draw as draw_ranking
from specbench.tasks import check_own_rows

if TYPE_CHECKING:
    import pandas as pd

    from specbench.loading.model_loader import ModelLoader
    from specbench.report.console import Screen

BOTH_TEMPERATURES = {"sampling.temperature": ["0", "1"]}  # α at T is defined along completions sampled at T
Key = str | int | float | bool | None | Path | Sequence[Any] | Mapping[str, Any]


class DisturbedWarning(UserWarning):
    """A time was measured while another process used the machine."""


class UnprovedWarning(UserWarning):
    """A speedup of sampled completions that nothing shows to be the target's own."""


class _Shown:
    """Displays itself as the table that the command line prints."""

    def _print(self) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            self._print()
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


@dataclass(frozen=True, repr=False)
class Run(_Shown):
    """A finished run: its record, and the file that holds it. `reused`: the record existed before."""

    file: Path
    record: RunRecord
    reused: bool

    @property
    def summary(self) -> Summary:
        """All numbers of the run; `specbench results --schema run` describes each, with its unit."""
        return self.record["summary"]

    @property
    def alpha(self) -> float | None:
        """Acceptance probability α: the mean of Σ min(p, q) (Corollary 3.6)."""
        return self.summary["alpha"]

    @property
    def c(self) -> float | None:
        """The time of a draft step, divided by the time of a target step."""
        return self.summary["c"]

    @property
    def speedup(self) -> float | None:
        """Measured time per token of the target alone, divided by speculative decoding's; None if the proof failed.

        Warns with `DisturbedWarning` if the machine was contended, and with `UnprovedWarning` if nothing shows that
        sampled completions are the target's own.
        """
        if self.unproved is not None:
            warnings.warn(f"the speedup is {self.unproved}", UnprovedWarning, stacklevel=2)
        if (signs := self.disturbed_by) is not None:
            warnings.warn(f"the speedup is unreliable: {signs}", DisturbedWarning, stacklevel=2)
        return self.summary["speedup_measured"]

    @property
    def disturbed_by(self) -> str | None:
        """The signs, in words, that the machine was contended, so that c, v and its speedups are unreliable."""
        return self.summary.get("disturbed_by")

    @property
    def unproved(self) -> str | None:
        """Why nothing shows that sampled completions are the target's, and the prompts that would; None: proved."""
        return why_unproved(dict(self.summary))

    @property
    def predicted(self) -> float | None:
        """The speedup by Theorem 3.8, from this run's α and c."""
        return self.summary["speedup_predicted"]

    def to_frame(self) -> pd.DataFrame:
        """One row: the run's id and its summary."""
        return _frame([{"run_id": self.record["run_id"], **self.summary}])

    def _print(self) -> None:
        from specbench.report.console import Screen

        Screen(sys.stderr).show(Result(self.file, self.record, self.reused))


@dataclass(frozen=True, repr=False)
class Alphas(_Shown):
    """α of every draft under every rule and temperature: `to_frame()` has a row for each."""

    file: Path
    record: AlphaDocument

    def to_frame(self) -> pd.DataFrame:
        """A row for each draft, rule and temperature; `specbench results --schema alpha` says what each column is."""
        return _frame(self.record["rows"])

    def _print(self) -> None:
        draw_alphas(self.record)


@dataclass(frozen=True, repr=False)
class Ranking(_Shown):
    """Every (draft, γ) by its calibrated speedup, the best first, with the reasons."""

    file: Path
    record: RecommendDocument

    @property
    def best(self) -> RankedRow:
        """The best candidate."""
        return self.record["rows"][0]

    def to_frame(self) -> pd.DataFrame:
        """A row for each draft and γ, the best first; intervals and costs as columns of their own."""
        import pandas as pd

        return pd.json_normalize(to_json(self.record["rows"]), sep="_")

    def _print(self) -> None:
        draw_ranking(self.record)


@one_at_a_time
def run(*, quiet: bool = False, **keys: Key) -> Run:
    """Decode the prompts of a task with the target alone and with target and draft: `specbench run`.

    Args:
        quiet: no progress on stderr.
        **keys: the options of `specbench run --help`, e.g. `target="t5-mini"`, `draft="bigram"`, `gamma=3`. A key with
            a dot is a mapping: `sampling={"temperature": 1}`. Without keys, the small pair that ships is measured.

    Returns:
        The run, which is also a record in `results/runs/`.

    Raises:
        UserError: an invalid key or value; the message names it and says what to do.
        MachineError: out of memory, disk full, hub unreachable.
    """
    words = overrides(keys)
    config = composed_config(RunConfig, words, "run")
    with _progress_stream(quiet) as stream:
        result = decode(config, stream)
    if result is None:
        raise UserError("rank: this process only lends its device; the first rank has the result")
    return Run(result.file, result.record, result.reused)


@one_at_a_time
def alpha(*, quiet: bool = False, **keys: Key) -> Alphas:
    """α of many drafts at once, by teacher forcing on the target's own completions: `specbench alpha`.

    Args:
        quiet: without progress on stderr.
        **keys: the options of `specbench alpha --help`; `draft`, `accept` and the temperature may be lists:
            `draft=["t5-nano", "bigram"]`, `sampling={"temperature": [0, 1]}` (the default).

    Returns:
        α of each, also in `results/alpha/`.

    Raises:
        UserError, MachineError: as `run`.
    """
    configs = compose_grid(overrides(keys), ChooseConfig, "alpha", BOTH_TEMPERATURES)
    with _progress_stream(quiet) as stream:
        return score(configs, stream)


@one_at_a_time
def recommend(*, quiet: bool = False, **keys: Key) -> Ranking:
    """Rank drafts and γ by their calibrated speedup: `specbench recommend`.

    Args:
        quiet: without progress on stderr.
        **keys: the options of `specbench recommend --help`; `draft`, `accept` and `gammas` may be lists. `verify=2`
            checks the best two by real runs.

    Returns:
        The ranking, also in `results/recommend/`.

    Raises:
        UserError, MachineError: as `run`.
    """
    configs = compose_grid(overrides(keys), ChooseConfig, "recommend")
    with _progress_stream(quiet) as stream:
        return rank(configs, stream)


@one_at_a_time
def decode(config: RunConfig, stream: IO[str] | None = None, loader: ModelLoader | None = None) -> Result | None:
    """Check a config and run it.

    Args:
        config: of the run.
        stream: receives the progress; default: stderr.
        loader: loads the models: a sweep's hands them from one run to the next.

    Returns:
        The result; None in a process that only lends its device.

    Raises:
        UserError, MachineError: as `run`.
    """
    check(config)
    check_own_rows(config.task, config.limit, later_turns=config.batch == 1)
    from specbench.experiment.processes import execute_in_processes  # torch is imported only from here on
    from specbench.experiment.runner import execute, follow
    from specbench.loading.tensor_parallel import rank as place_among_ranks
    from specbench.report.console import Screen

    if place_among_ranks() > 0:
        with open(os.devnull, "w") as nowhere, Screen(nowhere) as silent:
            follow(config, silent, loader)
        return None
    with Screen(stream or sys.stderr) as screen:
        measure = execute if config.runs == 1 else execute_in_processes
        return measure(config, screen, loader)


@one_at_a_time
def score(configs: Sequence[ChooseConfig], stream: IO[str] | None = None) -> Alphas:
    """α of the drafts of `configs`, which differ in draft, rule and temperature, with the progress on `stream`.

    Raises:
        UserError, MachineError: as `alpha`.
    """
    with _comparing(configs, stream) as screen:
        from specbench.choose.alpha import measure_alpha

        return Alphas(*measure_alpha(configs, screen))


@one_at_a_time
def rank(configs: Sequence[ChooseConfig], stream: IO[str] | None = None, engine: str | None = None) -> Ranking:
    """The ranking of the drafts of `configs`, with the progress on `stream`; `engine`: another engine to rank for.

    Raises:
        UserError, MachineError: as `recommend`.
    """
    with _comparing(configs, stream) as screen:
        from specbench.choose.rank import assisted_generation
        from specbench.choose.rank import recommend as ranked

        found = ranked(configs, screen, None if engine is None else assisted_generation)
    return Ranking(found.file, found.record)


@one_at_a_time
def rank_under_load(configs: Sequence[LoadConfig], stream: IO[str] | None = None) -> tuple[Path, LoadDocument]:
    """Goodput at each load of the drafts of `configs`, with the progress on `stream`.

    Returns:
        The record's file, and the record.

    Raises:
        UserError, MachineError: as `recommend`.
    """
    for config in configs:
        check_load(config)
    with _comparing(configs, stream) as screen:
        from specbench.choose.under_load import recommend_load

        return recommend_load(configs, screen)


@one_at_a_time
def validate(configs: Sequence[ChooseConfig], stream: IO[str] | None = None) -> tuple[Path, ValidateDocument]:
    """Compare the estimates of `recommend` with measurements, with the progress on `stream`.

    Returns:
        The record's file, and the record.

    Raises:
        UserError, MachineError: as `recommend`.
    """
    with _comparing(configs, stream) as screen:
        from specbench.choose.prediction_error import prediction_error

        return prediction_error(configs, screen)


@contextlib.contextmanager
def _comparing(configs: Sequence[ChooseConfig], stream: IO[str] | None) -> Iterator[Screen]:
    """The progress of a comparison of `configs`, which are checked first.

    Raises:
        UserError: a config cannot be measured.
        MachineError: the folder of results cannot be written.
    """
    for config in configs:
        check_choose(config)
    require_writable(configs[0].results)
    for task, limit in {repr(config.task): (config.task, config.limit) for config in configs}.values():
        check_own_rows(task, limit, later_turns=False)
    from specbench.report.console import BARE, Screen

    with Screen(stream or sys.stderr, "working", BARE) as screen:
        yield screen


def overrides(keys: Mapping[str, Key], before: str = "") -> list[str]:
    """`keys` as the command line spells them: mappings with dots, True as true, None as null, lists in brackets."""
    words: list[str] = []
    for name, value in keys.items():
        if isinstance(value, Mapping):
            words += overrides(value, f"{before}{name}.")
        else:
            words.append(f"{before}{name}={_spelt(f'{before}{name}', value)}")
    return words


def _spelt(key: str, value: Any) -> str:
    """`value` of `key` as the command line spells it. Raises UserError if it can be no value of a key."""
    if value is None:
        return "null"
    if isinstance(value, bool) and key not in GROUPS:
        return str(value).lower()
    if key == "task" and not isinstance(value, str | Path | Real):
        raise UserError(
            f"task: a {type(value).__name__} is no task; give its name, or a file of prompts, "
            'task="./prompts.jsonl", each line of which is {"prompt": "…"}'
        )
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return f"[{','.join(_spelt(key, one) for one in value)}]"
    if isinstance(value, Real) and key in GROUPS:
        raise UserError(f"{key}={value}: is picked by its name, which is text; 'specbench list {key}' shows them")
    if isinstance(value, str | Path | Real):
        return as_text(value)
    own = f", and {key}s of your own have names, too (docs/extending.md)" if key in ("draft", "target") else ""
    raise UserError(
        f"{key}: a {type(value).__name__} is no value; give text, a number, True or False, None, a list or a dict{own}"
    )


def _progress_stream(quiet: bool) -> contextlib.AbstractContextManager[IO[str]]:
    return open(os.devnull, "w") if quiet else contextlib.nullcontext(sys.stderr)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(to_json(rows))
