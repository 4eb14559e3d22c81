"""The kinds of draft, and a draft as a user writes it: one class with the keys of all kinds."""

from specbench.config.draft import DraftConfig
from specbench.config.extensions import extensions, loaded
from specbench.errors import UserError
from specbench.methods.blockwise.config import BlockwiseConfig
from specbench.methods.cascade.config import CascadeConfig
from specbench.methods.dflash.config import DflashConfig
from specbench.methods.dspark.config import DsparkConfig
from specbench.methods.eagle.config import Eagle3Config, EagleConfig
from specbench.methods.hydra.config import HydraConfig
from specbench.methods.lookahead.config import LookaheadConfig
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.medusa.config import MedusaConfig
from specbench.methods.model.config import ModelDraftConfig
from specbench.methods.mtp.config import MtpConfig
from specbench.methods.ngram.config import BigramConfig, NgramConfig, RandomConfig, UnigramConfig
from specbench.methods.parallel_sampling.config import ParallelConfig
from specbench.methods.pard.config import PardConfig
from specbench.methods.peagle.config import PEagleConfig
from specbench.methods.quantised.config import QuantisedConfig
from specbench.methods.retrieval.config import RetrievalConfig
from specbench.methods.router.config import RouterConfig
from specbench.methods.several.config import HorizontalConfig, MergedConfig
from specbench.methods.specdec.config import SpecDecConfig
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.target_layers.config import EarlyExitConfig, LayerSkipConfig
from specbench.methods.window.config import WindowConfig

KINDS: tuple[type[DraftConfig], ...] = (
    ModelDraftConfig,
    UnigramConfig,
    BigramConfig,
    NgramConfig,
    RandomConfig,
    LookupConfig,
    RetrievalConfig,
    SuffixConfig,
    CascadeConfig,
    HorizontalConfig,
    MergedConfig,
    RouterConfig,
    EarlyExitConfig,
    LayerSkipConfig,
    WindowConfig,
    QuantisedConfig,
    LookaheadConfig,
    BlockwiseConfig,
    MedusaConfig,
    HydraConfig,
    EagleConfig,
    Eagle3Config,
    MtpConfig,
    PardConfig,
    DflashConfig,
    DsparkConfig,
    PEagleConfig,
    SpecDecConfig,
    ParallelConfig,
)
DRAFT_KINDS: dict[str, type[DraftConfig]] = {config.kind: config for config in KINDS}


for _name in extensions("drafts"):
    _config = loaded("drafts", _name)
    if not (isinstance(_config, type) and issubclass(_config, DraftConfig) and _config.kind == _name):
        raise UserError(f"specbench.drafts: {_name} must be a DraftConfig whose kind is {_name!r}")
    DRAFT_KINDS[_name] = _config
