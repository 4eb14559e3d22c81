"""Multi-token prediction as a draft: EAGLE's session, with the target's own heads in place of EAGLE's layer.

A single depth runs repeatedly on its own predictions, as EAGLE's layer does, so that a proposal has any length. Each of
several depths drafts one token, so that a proposal has at most as many tokens as depths.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from specbench.algorithm.draft import Draft
from specbench.config.model import place_of
from specbench.config.paths import shipped
from specbench.engine.beside.declared import Source
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Session
from specbench.engine.weights.load import shape_of
from specbench.engine.weights.published_checkpoint import read_config
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, source_of
from specbench.methods.eagle.draft import EagleDraft, FeatureEntries
from specbench.methods.mtp.config import MtpConfig
from specbench.methods.mtp.depths import DepthsCache
from specbench.methods.mtp.network import OURS, Mtp, each_depth
from specbench.methods.mtp.published import published_mtp


class MtpDraft(EagleDraft):
    """`depths`, bound to the network of `target`."""

    def __init__(self, target: EagerModel, depths: Sequence[Mtp]) -> None:
        first = depths[0]
        layer = first.shape.layer
        # A captured step has keys and values of one width.
        super().__init__(target, first, captures=len(depths) == 1 and layer.value_width == layer.head_width)
        self.depths = depths
        self.longest = None if len(depths) == 1 else len(depths)

    def cache(self, session: Session) -> FeatureEntries:
        return super().cache(session) if self.longest is None else DepthsCache(self.depths)

    def unrolled(
        self, features_BTF: Tensor, embedded_BTD: Tensor, source: Source | None, steps: int
    ) -> Iterator[Tensor]:
        if self.longest is None:
            return super().unrolled(features_BTF, embedded_BTD, source, steps)
        return each_depth(self.depths, features_BTF, embedded_BTD, steps)


class MtpBuilder(DraftBuilder[MtpConfig]):
    """Depths in the target's own checkpoint, or another's, or weights of our own recipe."""

    needs_states = needs_prompt_states = True

    def __init__(self, request: DraftRequest[MtpConfig]) -> None:
        super().__init__(request)
        draft, key, target = self.draft, request.key, request.run.target
        config = shape_of(target, "target")
        if config.is_encoder_decoder:
            raise UserError(
                f"{key}: draft=mtp is for decoder-only targets; this is an encoder-decoder; use draft=eagle"
            )
        own = draft.path is None and draft.hub is None
        if own and draft.shipped is not None and shipped("models", draft.shipped).is_dir():
            own = False
        if own and place_of(target) is None:
            raise UserError(f"{key}.path is not set, and the target has no checkpoint; give {key}.path=FOLDER")
        self.source, pinned = source_of(target if own else draft)
        self.published = None
        if OURS in read_config(self.source, pinned, key) and (Path(self.source) / Mtp.FILE).is_file():
            Mtp.facts(Path(self.source), key)
        else:
            self.published = published_mtp(self.source, pinned, key, config, request.device)

    def load(self, target: EagerModel, say: Say) -> Draft:
        key, gamma = self.request.key, self.request.run.gamma
        if self.published is None:
            return MtpDraft(target, [Mtp.load(Path(self.source), target.network, key).bind(target.network)])
        draft = MtpDraft(target, self.published.load(target.network))
        if draft.longest is not None and isinstance(gamma, int) and gamma > draft.longest:
            say(f"{key}: its {draft.longest} depths draft {draft.longest} tokens per pass at most, not gamma={gamma}")
        return draft
