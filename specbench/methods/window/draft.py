"""The target's own weights over a window of its cache, as its own draft: no second model, and α near 1.

Self-speculation (MagicDec, Chen et al. 2024; TriForce, Sun et al. 2024, has such a draft in its middle): at long
contexts a step of the target mostly reads its keys and values. A draft that attends to the first tokens and the newest
reads few of them, and these are the target's own, which have seen the whole text. Only drafted tokens have keys and
values of the draft's, until the target verifies them. So q at a position depends on where the proposal began: `score`
is q of a proposal's first token, as in `methods.target_layers`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.algorithm.draft import AnyProposal, Draft, FollowsTarget
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.sessions import NetworkSession
from specbench.engine.reads import Reading
from specbench.engine.session import Model, Prompt, Session
from specbench.engine.window import Window, Windowed
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, require_decoder
from specbench.methods.model.draft import ModelDraftSession
from specbench.methods.window.config import WindowConfig
from specbench.sampling import Sampling, standardise


class WindowDraft(FollowsTarget):
    """`model` is `target` with a window."""

    def __init__(self, target: Model, model: Model) -> None:
        self.target, self.model = target, model
        self.models = (model,)
        self.operations = model.operations

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "WindowSession":
        return WindowSession(self, session, prompt, sampling)

    def in_batch(self, rows: int) -> "WindowDraft":
        return WindowDraft(self.target, self.model.in_batch(rows))


class WindowSession(ModelDraftSession):
    """A session with a window that takes the target's keys and values before each proposal."""

    session: Windowed

    def __init__(self, draft: WindowDraft, session: Session, prompt: Prompt, sampling: Sampling) -> None:
        own = draft.model.start(Prompt((), prompt.prefix[:1]))  # which reads nothing
        super().__init__(draft.model, own, sampling, draft.target.vocabulary_size)
        self._draft, self._prompt, self._whole = draft, prompt, _inner(session)
        self._scoring: Session | None = None

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[AnyProposal]:
        self.session.take(self._whole)
        return (yield from super().proposing(tokens, gamma, generator))

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        whole = self._scoring = self._scoring or self._draft.target.start(self._prompt)
        rows = []
        for end in range(prefix_length, len(tokens)):
            if whole.length < end - 1:
                whole.extend(tokens[whole.length : end - 1])
            self.session.take(_inner(whole))
            rows.append(self.session.extend(tokens[end - 1 : end]))
        return standardise(torch.cat(rows), self.sampling, self.vocabulary_size)


def _inner(session: Any) -> NetworkSession:
    """The session of an engine, inside one that processes its logits."""
    while not isinstance(session, NetworkSession):
        session = session.session
    return session


class WindowBuilder(DraftBuilder[WindowConfig]):
    """Builds `draft=window`."""

    def __init__(self, request: DraftRequest[WindowConfig]) -> None:
        super().__init__(request)
        require_decoder(request.vocabulary, f"{request.key}=window")

    def load(self, target: EagerModel, say: Say) -> Draft:
        model = target.windowed(Window(self.draft.tokens, self.draft.sinks), "draft=window")
        self.models.append(model)
        return WindowDraft(target, model)
