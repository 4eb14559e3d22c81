"""The kinds of draft: the keys of each, their ranges, and what tables call it.

A key that several kinds have has one default in all of them. A new kind is a class in one of these files, and its entry
in DRAFT_KINDS.
"""

from specbench.config.draft import DraftConfig
from specbench.config.draft_kinds.combined import CascadeConfig, HorizontalConfig, MergedConfig, SeveralConfig
from specbench.config.draft_kinds.inside_target import EarlyExitConfig, LayerSkipConfig, LookaheadConfig
from specbench.config.draft_kinds.model import ModelDraftConfig
from specbench.config.draft_kinds.trained import (
    BlockwiseConfig,
    Eagle3Config,
    EagleConfig,
    HydraConfig,
    MedusaConfig,
    ParallelConfig,
    SpecDecConfig,
    TrainedConfig,
)
from specbench.config.draft_kinds.without_weights import (
    BigramConfig,
    DiscountedConfig,
    LookupConfig,
    NgramConfig,
    RandomConfig,
    RetrievalConfig,
    TextDraftConfig,
    UnigramConfig,
)
from specbench.config.extensions import extensions, loaded
from specbench.errors import UserError

__all__ = [
    "DRAFT_KINDS",
    "BigramConfig",
    "BlockwiseConfig",
    "CascadeConfig",
    "DiscountedConfig",
    "Eagle3Config",
    "EagleConfig",
    "EarlyExitConfig",
    "HorizontalConfig",
    "HydraConfig",
    "LayerSkipConfig",
    "LookaheadConfig",
    "LookupConfig",
    "MedusaConfig",
    "MergedConfig",
    "ModelDraftConfig",
    "NgramConfig",
    "ParallelConfig",
    "RandomConfig",
    "RetrievalConfig",
    "SeveralConfig",
    "SpecDecConfig",
    "TextDraftConfig",
    "TrainedConfig",
    "UnigramConfig",
]

KINDS: tuple[type[DraftConfig], ...] = (
    ModelDraftConfig,
    UnigramConfig,
    BigramConfig,
    NgramConfig,
    RandomConfig,
    LookupConfig,
    RetrievalConfig,
    CascadeConfig,
    HorizontalConfig,
    MergedConfig,
    EarlyExitConfig,
    LayerSkipConfig,
    LookaheadConfig,
    BlockwiseConfig,
    MedusaConfig,
    HydraConfig,
    EagleConfig,
    Eagle3Config,
    SpecDecConfig,
    ParallelConfig,
)
DRAFT_KINDS: dict[str, type[DraftConfig]] = {config.kind: config for config in KINDS}


for _name in extensions("drafts"):
    _config = loaded("drafts", _name)
    if not (isinstance(_config, type) and issubclass(_config, DraftConfig) and _config.kind == _name):
        raise UserError(f"specbench.drafts: {_name} must be a DraftConfig whose kind is {_name!r}")
    DRAFT_KINDS[_name] = _config
