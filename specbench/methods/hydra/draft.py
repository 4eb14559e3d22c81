"""Hydra's heads as a draft: each also reads the tokens drafted before its own (Ankner et al. 2024, "Hydra")."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Continuations, Found, Predicted
from specbench.algorithm.draft import Draft
from specbench.engine.beside.eager import LayerCache
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.layout import mask_bias
from specbench.engine.session import Prompt, Session, Tokens
from specbench.methods.build import source_of
from specbench.methods.heads import DraftHeads, HeadsBuilder, HeadsDraft, HeadsSession
from specbench.methods.hydra.network import HydraHeads, PrefixLayer, published_hydra
from specbench.sampling import Sampling, draw_next, standardise

NARROWING = (-1, -1)  # stands for no head


class ReadingHeads(DraftHeads, Protocol):
    """Heads on a state and the tokens after it: head J reads the J tokens [N, J, M] after each state."""

    @property
    def prefix(self) -> PrefixLayer | None:
        """The layer that the target's states go through first."""
        ...


class HydraDraft(HeadsDraft):
    """Hydra's heads, which also read the target's embeddings of tokens."""

    heads: ReadingHeads

    def __init__(self, target: EagerModel, heads: ReadingHeads) -> None:
        super().__init__(target, heads)
        self._embed = target.network.get_input_embeddings()

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "HydraSession":
        if self.heads.prefix is not None:
            session = PrefixedSession(session, self.heads.prefix)
        return HydraSession(self, session, sampling)

    def narrowed(self, tokens: Sequence[int]) -> Tensor:
        """[N, M]: what heads read of `tokens`."""
        with torch.inference_mode():
            embedded_ND = self._embed(torch.tensor(list(tokens), device=self.heads.device))
            heads = self.heads
            if not isinstance(heads, HydraHeads):  # published heads read embeddings as they are
                return cast(Tensor, embedded_ND)
            ready = self._ready.get(NARROWING)
            if ready is None:
                ready = self.target.ready(lambda embedded_1ND: heads.narrowed(embedded_1ND[0]), [self.width])
                self._ready[NARROWING] = ready
            return RUNS.run(ready, embedded_ND.unsqueeze(0))

    def after(self, states_ND: Tensor, read_NJM: Tensor) -> Tensor:
        """Logits [N, V] of head J."""
        head = read_NJM.shape[1] - 1
        self._make_head_ready(head, read_NJM.shape[2])
        with torch.inference_mode():
            ready = self._ready[head, head + 1]
            return RUNS.run(ready, states_ND.unsqueeze(0), read_NJM.flatten(1).unsqueeze(0))

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        for head in range(min(max(gammas, default=0), self.heads.later)):
            self._make_head_ready(head, self.narrowed([0]).shape[1])

    def _make_head_ready(self, head: int, narrow: int) -> None:
        """`narrow` numbers are read of each token."""
        if (head, head + 1) not in self._ready:

            def function(states_1ND: Tensor, read_1NE: Tensor) -> Tensor:
                read_NJM = read_1NE[0].unflatten(-1, (head + 1, narrow))
                return self.heads.logits(states_1ND[0], read_NJM, self.target.project)

            self._ready[head, head + 1] = self.target.ready(function, [self.width, (head + 1) * narrow])


class PrefixedSession(Session):
    """The target's session, whose states are those after a layer more over all of the text."""

    def __init__(self, session: Session, layer: PrefixLayer) -> None:
        self._session, self._layer = session, layer
        self._cache = LayerCache(layer.shape.caches(1), layer.norm.weight, layer.shape.scale)
        self._out_LD = torch.empty(0)  # of the layer, for each token
        self._catch_up(session.length)  # the prompt, before the target reads on

    @property
    def length(self) -> int:
        return self._session.length

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        return self._session.extend(tokens, parents)

    def select(self, path: Sequence[int]) -> None:
        self._session.select(path)

    def rollback(self, length: int) -> None:
        self._session.rollback(length)
        self.forget(length)

    def states(self, start: int, stop: int) -> Tensor:
        self._catch_up(stop)
        return self._out_LD[start:stop]

    def forget(self, length: int) -> None:
        """Keep the states of the first `length` tokens."""
        self._out_LD = self._out_LD[:length]

    @torch.inference_mode()
    def _catch_up(self, count: int) -> None:
        """Run the layer on the target's states of the tokens up to `count` that it has not read."""
        if (known := len(self._out_LD)) >= count:
            return
        states_LD = self._session.states(known, count)
        assert states_LD is not None, "the target has read this text in other parts than it is drafted for in"
        self._cache.reserve(count)
        numbers_C = torch.arange(count, device=states_LD.device)
        bias = mask_bias(numbers_C <= numbers_C[known:, None], self._cache.dtype)[None, None]
        attend = partial(self._cache.attend, 0, count, bias)
        out_LD = RUNS.run(self._layer, states_LD.unsqueeze(0), numbers_C[None, known:], attend)[0]
        self._out_LD = torch.cat([self._out_LD, out_LD]) if known else out_LD


class HydraSession(HeadsSession):
    """The view of the target's session, and while a tree is grown the heads' input on the path to each node."""

    draft: HydraDraft

    def __init__(self, draft: HydraDraft, session: Session, sampling: Sampling) -> None:
        super().__init__(draft, session, sampling)
        self._state_1D: Tensor | None = None
        self._levels = 0
        self._root_1JM: Tensor | None = None
        self._paths_1JM: list[Tensor] = []  # of each node read, the newest token of the text first

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        state_1D, count = self._state(tokens), min(gamma, self.draft.heads.later)
        if state_1D is None or count == 0:
            return Proposal([])
        read_1JM = self.draft.narrowed(tokens[-1:])[None]
        drafted, rows, size = list[int](), list[Tensor](), self.draft.target.vocabulary_size
        while len(drafted) < count and not (drafted and drafted[-1] in self.draft.target.eos_ids):
            if drafted:
                read_1JM = torch.cat([read_1JM, self.draft.narrowed(drafted[-1:])[None]], 1)
            token, row_1V = draw_next(self.draft.after(state_1D, read_1JM), self.sampling, size, generator)
            drafted.append(token)
            if row_1V is not None:
                rows.append(row_1V)
        return Proposal(drafted, torch.cat(rows) if rows else None)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        self._state_1D, self._levels = self._state(tokens), min(levels, self.draft.heads.later)
        self._root_1JM, self._paths_1JM = self.draft.narrowed(tokens[-1:])[None], []
        return self._after([self._root_1JM])

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        first, narrowed_LM = len(self._paths_1JM), self.draft.narrowed(tokens)
        for parent, own_M in zip(parents, narrowed_LM, strict=True):
            above_1JM = self._root_1JM if parent < 0 else self._paths_1JM[parent]
            assert above_1JM is not None
            self._paths_1JM.append(torch.cat([above_1JM, own_M[None, None]], 1))
        return self._after(self._paths_1JM[first:])

    def rollback(self, length: int) -> None:
        if isinstance(self.session, PrefixedSession):
            self.session.forget(length)

    def _after(self, paths_1JM: Sequence[Tensor]) -> Continuations:  # type: ignore[override]
        """Nothing beyond the last head, or without a state; nodes of one depth are read together."""
        size, state_1D = self.draft.target.vocabulary_size, self._state_1D
        depths = [path_1JM.shape[1] for path_1JM in paths_1JM]
        if state_1D is None or max(depths) > self._levels:
            return Found([()] * len(depths), size, self.draft.heads.device)
        rows: dict[int, Tensor] = {}
        for depth in sorted(set(depths)):
            nodes = [node for node, own in enumerate(depths) if own == depth]
            read_NJM = torch.cat([paths_1JM[node] for node in nodes])
            logits_NV = self.draft.after(state_1D.expand(len(nodes), -1), read_NJM)
            rows |= dict(zip(nodes, logits_NV, strict=True))
        return Predicted(torch.stack([rows[node] for node in range(len(depths))]), size, self.sampling)

    def _q_in_text(self, states_ND: Tensor, ahead: int, tokens: Sequence[int]) -> Tensor:
        """q of a head that reads the text's own tokens: a token is reached only if they were accepted."""
        narrowed_LM = self.draft.narrowed(tokens[:-1][-(len(states_ND) + ahead) :])
        read_NJM = narrowed_LM.unfold(0, ahead + 1, 1).transpose(1, 2)
        return standardise(self.draft.after(states_ND, read_NJM), self.sampling, self.draft.target.vocabulary_size)


class HydraBuilder(HeadsBuilder):
    """Our heads, or a checkpoint in Hydra's own layout, from a folder or the hub."""

    heads = HydraHeads

    def longest(self) -> int:
        self.published = published_hydra(*source_of(self.draft), self.request.key)
        if self.published is None:
            return super().longest()
        self.needs_prompt_states = self.published.has_prefix
        return self.published.heads

    def build_draft(self, target: EagerModel) -> Draft:
        if self.published is not None:
            return HydraDraft(target, self.published.load(target.network))
        return HydraDraft(target, HydraHeads.load(self.folder, target.network, self.request.key))
