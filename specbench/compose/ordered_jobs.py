"""The jobs of a sweep that run in this process: ordered so that each model is loaded once, and kept between jobs.

Hydra's basic launcher takes jobs as the sweep's lists multiply out, the last list fastest. Other launchers (joblib,
SLURM, Ray) run jobs in processes of their own and are not changed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from omegaconf import open_dict

from specbench.compose.hydra_app import Job
from specbench.compose.to_schema import to_schema
from specbench.compose.words import by_models
from specbench.config.schema import RunConfig
from specbench.errors import UserError


@dataclass(frozen=True)
class Around:
    """Callbacks around the jobs of a sweep.

    Attributes:
        count: receives the number of jobs, whichever launcher runs them.
        announce: receives the jobs, the folder of results and the name of the experiment ('' without one) before the
            first of several jobs of this process.
        sharing: a context in which the jobs of this process run.
    """

    count: Callable[[int], None]
    announce: Callable[[list[Job[RunConfig]], str, str], None]
    sharing: Callable[[], AbstractContextManager[None]]


class OrderedLauncher(BasicLauncher):
    """The basic launcher with jobs that need the same models next to each other."""

    around: ClassVar[Around]

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        jobs = by_models(job_overrides)
        if len(jobs) > 1:
            assert self.config is not None
            experiment = self.config.hydra.runtime.choices.get("experiment") or ""
            self.around.announce([self._composed(job) for job in jobs], self.config.results, experiment)
        with self.around.sharing():
            returned: Sequence[JobReturn] = super().launch(jobs, initial_job_idx)
        return returned

    def _composed(self, overrides: Sequence[str]) -> Job[RunConfig]:
        assert self.hydra_context is not None and self.config is not None
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(composed):
            del composed["hydra"]
        try:
            return Job(list(overrides), to_schema(composed, RunConfig, overrides))
        except UserError as error:  # the job itself will say so
            return Job(list(overrides), None, str(error))


@contextmanager
def ordered_launcher(around: Around) -> Iterator[None]:
    """A context in which Hydra's basic launcher is replaced by ours, and its basic sweeper counts the jobs.

    Hydra (1.3) finds plugins of other packages only if they are installed as `hydra_plugins`, so the entry of its
    registry is exchanged. The sweeper's class is changed in place: Hydra imports it anew, so that ours would derive
    from another class of that name.
    """
    registry: dict[str, Any] = Plugins.instance().class_name_to_class
    launcher, sweeper = (f"{plugin.__module__}.{plugin.__qualname__}" for plugin in (BasicLauncher, BasicSweeper))
    split = registry[sweeper].split_arguments

    def counted(*given: Any) -> list[list[list[str]]]:
        batches: list[list[list[str]]] = split(*given)
        around.count(sum(map(len, batches)))
        return batches

    OrderedLauncher.around = around
    registry[launcher], registry[sweeper].split_arguments = OrderedLauncher, staticmethod(counted)
    try:
        yield
    finally:
        registry[launcher], registry[sweeper].split_arguments = BasicLauncher, staticmethod(split)
