"""Medusa's heads as a draft, on the target's last state (Cai et al. 2024, "Medusa")."""

from torch import Tensor

from specbench.algorithm.draft import Draft
from specbench.config.ranges import MAX_GAMMA
from specbench.engine.eager.model import EagerModel
from specbench.methods.build import source_of
from specbench.methods.heads import HeadsBuilder, HeadsDraft, LaterHeads
from specbench.methods.medusa.network import MedusaHeads
from specbench.methods.medusa.published import PublishedMedusa, published


class MedusaDraft(HeadsDraft[LaterHeads]):
    """Medusa's heads: given the state, independent of each other."""

    def logits(self, states_ND: Tensor, which: slice) -> Tensor:
        return self.heads.logits(states_ND, which, self.project)


class MedusaBuilder(HeadsBuilder):
    """Our heads, or a checkpoint in Medusa's own layout, from a folder or the hub."""

    heads = MedusaHeads

    def longest(self) -> int:
        self.source, self.pinned = source_of(self.draft)
        self.is_published = published(self.source, self.pinned, self.request.key) is not None
        if self.is_published:
            return MAX_GAMMA  # the weights say how many heads there are
        return super().longest()

    def draft_on(self, target: EagerModel, rows: int) -> Draft:
        key, network = self.request.key, target.network
        heads: LaterHeads
        if self.is_published:
            heads = PublishedMedusa.load(self.source, self.pinned, network, key)
        else:
            heads = MedusaHeads.load(self.folder, network, key)
        return MedusaDraft(target, heads, target.project, rows)
