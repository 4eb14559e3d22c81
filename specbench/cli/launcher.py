"""The jobs of a sweep that run in this process: ordered so that each model is loaded once, and kept between jobs.

What they need is printed before the first job. Hydra's basic launcher takes jobs as the sweep's lists multiply out, the
last list varying fastest. Other launchers (joblib, SLURM, Ray) run jobs in processes of their own and are not changed.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from omegaconf import open_dict

from specbench.cli import sweep_log
from specbench.cli.hydra_app import Job, to_schema
from specbench.cli.job import shared_models
from specbench.cli.overrides import by_models
from specbench.config.schema import RunConfig
from specbench.errors import UserError


class OrderedLauncher(BasicLauncher):
    """The basic launcher with jobs that need the same models next to each other."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        jobs = by_models(job_overrides)
        if len(jobs) > 1:
            self._announce(jobs)
        with shared_models():
            returned: Sequence[JobReturn] = super().launch(jobs, initial_job_idx)
        return returned

    def _announce(self, jobs: Sequence[Sequence[str]]) -> None:
        """Say how many jobs there are, and the memory and time that they need."""
        from specbench.cli.dry_run import outline, plan

        assert self.config is not None
        experiment = self.config.hydra.runtime.choices.get("experiment")
        for line in outline(plan([self._composed(job) for job in jobs], self.config.results), experiment or ""):
            print(line, file=sys.stderr)

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
def ordered_launcher() -> Iterator[None]:
    """A context in which Hydra's basic launcher is replaced by ours, and its basic sweeper counts the jobs.

    Hydra (1.3) finds plugins of other packages only where they are installed as `hydra_plugins`, so the entry of its
    registry is exchanged. The sweeper's class is changed in place: Hydra imports it anew, so that ours would derive
    from another class of that name.
    """
    registry: dict[str, Any] = Plugins.instance().class_name_to_class
    launcher, sweeper = (f"{plugin.__module__}.{plugin.__qualname__}" for plugin in (BasicLauncher, BasicSweeper))
    split = registry[sweeper].split_arguments

    def counted(*given: Any) -> list[list[list[str]]]:
        batches: list[list[list[str]]] = split(*given)
        sweep_log.expect(sum(map(len, batches)))
        return batches

    registry[launcher], registry[sweeper].split_arguments = OrderedLauncher, staticmethod(counted)
    try:
        yield
    finally:
        registry[launcher], registry[sweeper].split_arguments = BasicLauncher, staticmethod(split)
