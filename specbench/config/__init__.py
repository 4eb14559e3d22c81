"""The keys of a run: typed schemas, range checks, and the path of `conf/`.

Independent of models, data and Hydra. Each name is imported when it is asked for: a package that adds a draft imports
`specbench.config.draft` before the kinds of draft, its own among them, are listed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specbench.config.beam import BeamConfig, beam_run, check_beam
    from specbench.config.bench import BenchConfig, check_bench
    from specbench.config.certify import CertifyConfig, certify_run, check_certify
    from specbench.config.checks import check
    from specbench.config.choose import ChooseConfig, check_choose
    from specbench.config.draft import DraftConfig
    from specbench.config.model import ModelConfig
    from specbench.config.paths import conf_dir
    from specbench.config.schema import AcceptConfig, RunConfig, SamplingConfig, TaskConfig

MODULES = {
    "AcceptConfig": "schema",
    "BeamConfig": "beam",
    "BenchConfig": "bench",
    "CertifyConfig": "certify",
    "ChooseConfig": "choose",
    "DraftConfig": "draft",
    "ModelConfig": "model",
    "RunConfig": "schema",
    "SamplingConfig": "schema",
    "TaskConfig": "schema",
    "beam_run": "beam",
    "certify_run": "certify",
    "check": "checks",
    "check_beam": "beam",
    "check_bench": "bench",
    "check_certify": "certify",
    "check_choose": "choose",
    "conf_dir": "paths",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)


__all__ = [
    "AcceptConfig",
    "BeamConfig",
    "BenchConfig",
    "CertifyConfig",
    "ChooseConfig",
    "DraftConfig",
    "ModelConfig",
    "RunConfig",
    "SamplingConfig",
    "TaskConfig",
    "beam_run",
    "certify_run",
    "check",
    "check_beam",
    "check_bench",
    "check_certify",
    "check_choose",
    "conf_dir",
]
