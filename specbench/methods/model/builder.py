"""The builder of drafts that are models, and a model that learns while it drafts."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.algorithm.draft import Draft
from specbench.config.model import name_of
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt
from specbench.engine.window import Window
from specbench.errors import UserError
from specbench.loading import choose_vocabulary, require_a_pair, require_range
from specbench.loading.model_loader import LOGITS_ALONE, ModelRequest, Say, TargetOutputs
from specbench.methods.build import DraftBuilder, DraftRequest, require_decoder
from specbench.methods.from_text import likeliest_tokens
from specbench.methods.model.config import ModelDraftConfig
from specbench.methods.model.draft import ModelDraft, TextDraft
from specbench.methods.model.online import OnlineDraft, OnlineLearner, Optimiser
from specbench.tasks import Task
from specbench.text.processed import processed
from specbench.text.tokenizer import load_tokenizer
from specbench.text.translation import TranslatedModel


class ModelBuilder(DraftBuilder[ModelDraftConfig]):
    """Builds a draft that is a model, also of another vocabulary."""

    kept_tokens: tuple[int, ...] | None = None  # that it drafts; None: all

    def __init__(self, request: DraftRequest[ModelDraftConfig]) -> None:
        super().__init__(request)
        self.own_vocabulary = load_tokenizer(self.draft, request.key)
        pair = (request.run, self.draft, request.key, request.vocabulary, self.own_vocabulary)
        require_a_pair(*pair)
        self.choice = self.vocabulary = choose_vocabulary(*pair)
        if self.draft.online and self.choice.translation is not None:
            raise UserError(
                f"{request.key}.online=true: the vocabulary of {name_of(self.draft)} differs from the target's, whose "
                "distribution is learnt token by token; use a draft with the target's tokenizer"
            )
        if self.draft.window is not None:
            require_decoder(request.vocabulary, f"{request.key}.window={self.draft.window}")
        require_range(request.run, self.own_vocabulary, name_of(self.draft))

    def fit(self, say: Say) -> None:
        """Find the tokens that it drafts, for `draft.top_tokens`."""
        if (most := self.draft.top_tokens) is not None:
            kept = likeliest_tokens(Task(self.request.run.task), self.own_vocabulary, most, say)
            self.kept_tokens = tuple(kept)

    def load(self, target: EagerModel, say: Say) -> Draft:
        loaded = self.load_model(say)
        if self.draft.window is not None:
            window = Window(self.draft.window, self.draft.sinks)
            loaded = loaded.windowed(window, f"{self.request.key}.window={window.tokens}")
        self.models.append(loaded)
        model, translation = self.models[0], self.choice.translation
        if self.draft.online:
            return self._learning(model)
        if translation is None:
            return self._drafting(model)
        translated = TranslatedModel(model, translation)
        return TextDraft(translated) if self.choice.how == "slem" else self._drafting(translated)

    def _drafting(self, model: Model) -> ModelDraft:
        """`model` as a draft, its logits processed as the target's."""
        vocabulary = self.request.vocabulary
        own = processed(model, self.request.run.sampling, vocabulary)
        return ModelDraft(own, vocabulary.size, self.draft.confidence)

    def _learning(self, model: EagerModel) -> Draft:
        draft = self.draft
        optimiser: Optimiser = "sgd" if draft.online_optimiser == "sgd" else "adamw"
        learner = OnlineLearner(model.network, draft.online_lr, draft.online_steps, optimiser, draft.online_temperature)
        size, rejected_only = self.request.vocabulary.size, draft.online_tokens == "rejected"
        return OnlineDraft(model, size, learner, draft.online_every, draft.confidence, rejected_only)

    def require_room(self, prompts: Sequence[Prompt]) -> None:
        translation = self.choice.translation
        super().require_room(prompts if translation is None else [translation.prompt(prompt) for prompt in prompts])

    def load_model(self, say: Say, needed: TargetOutputs = LOGITS_ALONE) -> EagerModel:
        """`needed`: by a draft inside, for which it is the target."""
        request = self.request
        wanted = ModelRequest(
            self.draft, request.key, self.own_vocabulary, request.run, request.device, needed,
            changes=self.draft.online, kept_tokens=self.kept_tokens,
        )  # fmt: skip
        return request.loader.load(wanted, say)
