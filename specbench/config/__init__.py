"""What a run may be told: typed schemas, range checks, and where `conf/` lies.

Knows names, types and ranges. Does not know models, data or Hydra.
"""

from specbench.config.beam import BeamConfig, beam_run, check_beam
from specbench.config.bench import BenchConfig, check_bench
from specbench.config.certify import CertifyConfig, certify_run, check_certify
from specbench.config.checks import check
from specbench.config.choose import ChooseConfig, check_choose
from specbench.config.draft import DraftConfig
from specbench.config.model import ModelConfig
from specbench.config.paths import conf_dir
from specbench.config.schema import AcceptConfig, RunConfig, SamplingConfig, TaskConfig

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
