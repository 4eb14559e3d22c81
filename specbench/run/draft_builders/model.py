"""A model as a draft, in the making."""

from specbench.config.draft_kinds import ModelDraftConfig
from specbench.config.model import name_of
from specbench.drafts import Draft, ModelDraft
from specbench.models import load_tokenizer
from specbench.models.eager import EagerModel
from specbench.run.compatibility import require_a_pair, require_range
from specbench.run.draft_builders.base import DraftBuilder, DraftRequest
from specbench.run.model_loader import ModelRequest, Say


class ModelBuilder(DraftBuilder[ModelDraftConfig]):
    def __init__(self, request: DraftRequest[ModelDraftConfig]) -> None:
        super().__init__(request)
        self.own_vocabulary = load_tokenizer(self.draft, request.key)
        require_a_pair(request.run, self.draft, request.key, request.vocabulary, self.own_vocabulary)
        require_range(request.run, self.own_vocabulary, name_of(self.draft))

    def load(self, target: EagerModel, say: Say) -> Draft:
        self.models.append(self.load_model(say))
        return ModelDraft(self.models[0], self.request.vocabulary.size, self.draft.confidence)

    def load_model(self, say: Say, states: bool = False) -> EagerModel:
        request = self.request
        wanted = ModelRequest(self.draft, request.key, self.own_vocabulary, request.run, request.device, states)
        return request.loader.load(wanted, say)
