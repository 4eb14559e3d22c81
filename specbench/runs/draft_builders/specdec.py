"""The builder of SpecDec's decoder."""

from specbench.config.draft_kinds import TrainedConfig
from specbench.drafts import Draft, SpecDecDraft
from specbench.models.eager import EagerModel
from specbench.models.load import shape_of
from specbench.models.parallel_decoder import ParallelDecoder, require_t5
from specbench.runs.draft_builders.base import DraftRequest
from specbench.runs.draft_builders.inside_target import HeadsBuilder


class SpecDecBuilder(HeadsBuilder):
    """SpecDec's decoder; without a folder the weights that ship for the target."""

    needs_states = False  # it reads what the target's layers made of the source
    heads = ParallelDecoder
    counted = "queries"

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        require_t5(shape_of(request.run.target, "target"), f"draft={request.draft.kind}")
        super().__init__(request)

    def on(self, target: EagerModel, rows: int) -> Draft:
        decoder = ParallelDecoder.load(self.folder, target.network, self.request.key)
        return SpecDecDraft(target, decoder.bind(target.network))
