"""The keys of `draft=mtp`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import TrainedConfig
from specbench.config.model import check_model


@dataclass
class MtpConfig(TrainedConfig):
    """Multi-token prediction: a decoder layer in the target's own checkpoint that predicts the token after the next."""

    kind: str = "mtp"
    builder: ClassVar[str | None] = "specbench.methods.mtp.draft:MtpBuilder"
    learner: ClassVar[str] = "specbench.methods.mtp.train:MtpLearner"
    recipe: ClassVar[str] = "mtp"

    def check(self, key: str) -> None:
        """Without a source of its own the heads are the target's."""
        if self.path is not None or self.hub is not None:
            check_model(key, self)
