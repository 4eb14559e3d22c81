"""Heads on the target's last state, as drafts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from specbench.algorithm.draft import Draft, FollowsTarget, Stateless, after_zeros
from specbench.config.draft import TrainedConfig
from specbench.config.model import name_of, place_of
from specbench.config.paths import shipped
from specbench.config.recipes import training_command
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import own_head
from specbench.engine.saved_heads import SavedHeads
from specbench.engine.session import Prompt, Session
from specbench.engine.weights.mapped_files import find_file
from specbench.engine.weights.published_checkpoint import read_tensors
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.at_once import AtOnceSession
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.sampling import Sampling, standardise

Project = Callable[[Tensor], Tensor]  # the target's output projection, [..., D] to [..., V]


class DraftHeads(Protocol):
    """Heads on states, each for a later token: ours, or published."""

    @property
    def later(self) -> int:
        """Tokens after the next that they predict."""
        ...

    @property
    def device(self) -> torch.device: ...

    def operations(self, rows: int) -> float:
        """Arithmetic operations of one head at one position; `rows` is how many logits the target's projection has."""
        ...

    def logits(self, states_ND: Tensor, which: Any, project: Project, /) -> Tensor:
        """[heads, N, V] of the heads `which`, a slice; head 0 predicts the token after the next."""
        ...


class TrainedHeads(SavedHeads):
    """Heads of our own recipes, each of which ends with the target's output projection."""

    heads: int
    width: int

    @property
    def later(self) -> int:
        """Tokens after the next that they predict."""
        return self.heads

    def operations(self, rows: int) -> float:
        """Arithmetic operations of one head at one position, the mean over heads; `rows` logits each."""
        return 2.0 * (sum(weight.numel() for weight in self.parameters()) / self.later + rows * self.width)


class HeadsDraft(FollowsTarget):
    """`heads` on the states that sessions of `target` return."""

    target: EagerModel

    def __init__(self, target: EagerModel, heads: DraftHeads) -> None:
        self.target, self.heads = target, heads
        self.operations = heads.operations(own_head(target.network).weight.shape[0])
        self._ready: dict[tuple[int, int], Callable[..., Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return self.heads.device

    @property
    def width(self) -> int:
        """Numbers of a state."""
        width: int = own_head(self.target.network).weight.shape[1]
        return width

    def logits(self, states_ND: Tensor, which: slice) -> Tensor:
        """[heads, N, V] of the heads `which`; head 0 predicts the token after the next."""
        return self.heads.logits(states_ND, which, self.target.project)

    def read(self, states_ND: Tensor, first: int, stop: int) -> Tensor:
        """Logits of heads `first` to `stop` in the target's engine, [heads x N, V]: all rows of a head together.

        A proposal that the text's end makes short has the heads of a longer one, so that none is made ready for it.
        """
        end = min((end for begin, end in self._ready if begin == first and end >= stop), default=stop)
        self._make_ready(first, end, states_ND.shape[1])
        rows = RUNS.run(self._ready[first, end], states_ND.unsqueeze(0))
        return rows[: (stop - first) * len(states_ND)]

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        """Make ready the heads of proposals of so many tokens; see `Draft.expect`."""
        for count in {min(gamma, self.heads.later) for gamma in gammas} - {0}:
            self._make_ready(0, count, self.width)

    def _make_ready(self, first: int, stop: int, width: int) -> None:
        if (first, stop) not in self._ready:

            def function(states_1ND: Tensor) -> Tensor:
                return self.logits(states_1ND[0], slice(first, stop)).flatten(0, 1)

            self._ready[first, stop] = self.target.ready(function, [width])

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "HeadsSession":
        return HeadsSession(self, session, sampling)


class HeadsSession(Stateless, AtOnceSession):
    """A view of the target's session, which selects and rolls back itself, without state of its own."""

    draft: HeadsDraft

    def __init__(self, draft: HeadsDraft, session: Session, sampling: Sampling) -> None:
        self.draft = draft
        self.session = session
        self.sampling = sampling
        # States of the latest tokens read, from which scoring of the next part continues.
        self._before_ND = session.states(session.length - 1, session.length) if session.length else None

    def ahead(self, tokens: Sequence[int], most: int) -> Tensor | None:
        """Logits of heads 2, 3, ...; None if nothing is predicted."""
        state_1D, count = self._state(tokens), min(most, self.draft.heads.later)
        return None if state_1D is None or count == 0 else self._logits(state_1D, 0, count)

    def follow(self, tokens: Sequence[int]) -> None:
        self._state(tokens)

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        """q of heads 2, 3, ...; zeros in rows without a state."""
        self._read(tokens[:-1])
        states_LD = self.session.states(prefix_length - 1, len(tokens) - 1)
        assert states_LD is not None, "the target has read this text in other parts than it is scored in"
        before_ND = states_LD[:0] if self._before_ND is None else self._before_ND
        self._before_ND = torch.cat([before_ND, states_LD])[-most:]
        heads = min(most, self.draft.heads.later)
        known_ND, length = torch.cat([before_ND, states_LD[:-1]]), len(states_LD)
        return (self._q_ahead(known_ND, length, ahead, tokens) for ahead in range(heads))

    def _q_ahead(self, states_ND: Tensor, length: int, ahead: int, tokens: Sequence[int]) -> Tensor:
        """q [length, V] of head `ahead` + 2 for the last of `tokens`; zeros in rows without a state.

        It is computed from the states `ahead` tokens before the states of head 2, whose last is the last of
        `states_ND`.
        """
        known_ND = states_ND[: max(0, len(states_ND) - ahead)][-length:]
        if not len(known_ND):
            return torch.zeros(length, self.draft.target.vocabulary_size, device=states_ND.device)
        return after_zeros(self._q_in_text(known_ND, ahead, tokens), length)

    def _q_in_text(self, states_ND: Tensor, ahead: int, tokens: Sequence[int]) -> Tensor:
        """q [N, V] of head `ahead` + 2 for the last N of `tokens`."""
        return standardise(self._logits(states_ND, ahead, ahead + 1), self.sampling, self.draft.target.vocabulary_size)

    def _state(self, tokens: Sequence[int]) -> Tensor | None:
        """[1, D] of the last token read, after reading all but the newest; None if no token was read before."""
        read = len(tokens) - 1  # the newest token has not been read: its own head drew it
        self._read(tokens[:read])
        return self.session.states(read - 1, read) if read else None

    def _read(self, tokens: Sequence[int]) -> None:
        if self.session.length < len(tokens):
            self.session.extend(tokens[self.session.length :])

    def _logits(self, states_ND: Tensor, first: int, stop: int) -> Tensor:
        with torch.inference_mode():
            return self.draft.read(states_ND, first, stop)


def require_weights(request: DraftRequest[Any], shipped_folder: Path, also: str = "") -> None:
    """Raise UserError, which `also` ends, if no weights are given and none ship for the target."""
    draft, target, key = request.draft, request.run.target, request.key
    if draft.path is None and draft.hub is None and not shipped_folder.is_dir():
        raise UserError(
            f"{key}.path is not set: no {draft.kind} weights ship for target={name_of(target)}; train some: "
            f"{training_command(draft.recipe, place_of(target))}, and give {key}.path=FOLDER{also}"
        )


def published_heads(
    source: str, pinned: Mapping[str, Any], names: Sequence[str], device: torch.device, key: str
) -> tuple[str, dict[str, Tensor]]:
    """The first file of these names in the folder or repository `source`: its name, and its tensors on `device`.

    Raises UserError if there is none or it is damaged.
    """
    files = [file for name in names if (file := find_file(source, name, pinned, key)) is not None][:1]
    if not files:
        raise UserError(f"{key}: {source} has no {' or '.join(names)}")
    return files[0].name, read_tensors(files, source, device, key)


class HeadsBuilder(DraftBuilder[TrainedConfig]):
    """Heads on the target's last state, from a folder."""

    needs_states = True
    heads: ClassVar[type[SavedHeads]]
    counted: ClassVar[str] = "heads"  # the fact that says how many tokens are drafted
    drafting: ClassVar[str] = "heads"  # what drafts them, in words

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        super().__init__(request)
        draft = self.draft
        self.folder = Path(draft.path) if draft.path else shipped("models", draft.shipped or "")
        require_weights(request, self.folder)
        self.most = self.longest()

    def longest(self) -> int:
        """Tokens that the heads draft in a pass. Raises UserError if the folder has none."""
        hub, key = self.draft.hub, self.request.key
        if self.draft.path is None and hub is not None:
            raise UserError(f"{key}.hub={hub}: no published {self.draft.kind} heads that can be read; give {key}.path")
        number: int = self.heads.facts(self.folder, self.request.key)[self.counted]
        return number

    def load(self, target: EagerModel, say: Say) -> Draft:
        gamma, key = self.request.run.gamma, self.request.key
        if isinstance(gamma, int) and gamma > self.most:
            say(f"{key}: its {self.drafting} draft {self.most} tokens per pass at most, not gamma={gamma}")
        return self.build_draft(target)

    def build_draft(self, target: EagerModel) -> Draft:
        """The draft, which `load` returns."""
        raise NotImplementedError
