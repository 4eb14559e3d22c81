"""Training something small on a frozen target: shared parts of heads and EAGLE's layer.

Both read what the target computes, learn towards its distribution, are measured instead of a draft, and are saved
with what they belong to. Independent of files or the Trainer.

Shapes: B texts, T tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench.engine.eager.network_parts import Taps
from specbench.engine.saved_heads import fingerprint, reason
from specbench.errors import UserError, first_line
from specbench.train.draft_alpha import AtPlaces, alphas, at_places
from specbench.train.held_out import prompts
from specbench.train.kept_states import KeptStates
from specbench.train.logits import Logits, computed
from specbench.train.recipe_places import short_name
from specbench.train.recipe_rows import Row
from specbench.train.recipe_schema import Recipe


class TargetOutput(Protocol):
    """What the target read and computed; `p_BTV` are its logits."""

    @property
    def p_BTV(self) -> Logits: ...


class Seen(NamedTuple):
    """One run of the target over a batch. Its logits at t are about the token after t."""

    ids_BT: torch.Tensor  # what its decoder read
    head_BTD: torch.Tensor  # what its head read
    taps: list[torch.Tensor]  # [B, T, D] at each of the learner's depths
    p_BTV: Logits
    output: Any  # the rest, None if its states were kept


S = TypeVar("S", bound=TargetOutput)


def earlier_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The state dict of the heads in `folder`. Raises UserError if there are none."""
    files = list(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise UserError(f"distill.start_from={folder}: give a folder with one .safetensors file of such heads")
    try:
        return load_file(files[0])
    except SafetensorError as error:
        raise UserError(f"distill.start_from={folder}: {files[0].name} is damaged: {first_line(error)}") from error


class FrozenTargetLearner(nn.Module, Generic[S]):
    """The trained part, and the frozen target that it learns from, whose weights are not parameters of this module."""

    trained: Any  # the module whose weights are trained; `save` writes it
    measured: int  # tokens of a proposal that the card has an alpha of
    predictor: ClassVar[str]  # what predicts a token, in the model card
    first: ClassVar[int] = 1  # the number that the card gives what predicts the token after the next
    soonest: ClassVar[int] = 1  # the first token of a proposal: 1 is the token after the next, 0 the next

    def __init__(self, target: PreTrainedModel, recipe: Recipe) -> None:
        super().__init__()
        self.kl_weight = recipe.distill.kl_weight
        self._target = (target.eval().requires_grad_(False),)  # in a tuple: not a submodule
        self._last_read: tuple[dict[str, torch.Tensor], S] | None = None
        self.kept: KeptStates | None = None  # of the texts to learn on: then the target does not run

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Weights of a checkpoint; the trained part was called `heads`, `eagle`, ... when some were written."""
        trained = {f"trained.{name.partition('.')[2]}": weight for name, weight in state_dict.items()}
        return super().load_state_dict(trained, strict, assign)

    @property
    def target(self) -> PreTrainedModel:
        return self._target[0]

    @contextmanager
    def head_inputs(self) -> Iterator[list[torch.Tensor]]:
        """The input of the target's head, for each run."""
        states: list[torch.Tensor] = []
        hook = self.target.get_output_embeddings().register_forward_pre_hook(lambda _, read: states.append(read[0]))
        try:
            yield states
        finally:
            hook.remove()

    @property
    def depths(self) -> tuple[int, ...]:
        """After how many of the target's layers states are read."""
        return ()

    def read(self, given: dict[str, torch.Tensor], rows_B: torch.Tensor | None = None) -> S:
        """The target's logits on one batch, and what the loss needs besides.

        `rows_B`: which of the texts to learn on they are, whose states may be kept.
        """
        ids_BT = given.get("decoder_input_ids", given["input_ids"])
        if self.kept is not None and rows_B is not None:
            head_BTD, *states = self.kept.of(rows_B, ids_BT)
            return self.output_of(Seen(ids_BT, head_BTD, states, self.kept.logits(head_BTD), None), given)
        with torch.no_grad(), self.head_inputs() as heads, closing(Taps(self.target, self.depths)) as taps:
            output = self.target(**given, use_cache=self.target.config.is_encoder_decoder)
            seen = Seen(ids_BT, heads[-1], taps.taken(), output.logits, output)
        return self.output_of(seen, given)

    def output_of(self, seen: Seen, given: dict[str, torch.Tensor]) -> S:
        """What the loss reads, from the target's run over the batch `given`; not called by a `read` of its own."""
        raise NotImplementedError

    @abstractmethod
    def loss_of(self, output: S, labels_BT: torch.Tensor) -> torch.Tensor:
        """The loss on one batch.

        Label t belongs to the decoder's row t, or for decoder-only targets to its token t; -100 does not count.
        """

    @abstractmethod
    def logits(self, output: S, ahead: int) -> Logits:
        """[B, T - ahead, V] for the token `ahead` after the next: row t is about label t + ahead."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        decoder_input_ids: torch.Tensor | None = None,
        row: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The loss on one batch, as the Trainer takes it; `row` are the numbers [B] of its texts."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        if decoder_input_ids is not None:
            given["decoder_input_ids"] = decoder_input_ids
        return {"loss": self.loss_of(self.read(given, row), labels)}

    def of_rows(self, labels_BT: torch.Tensor) -> torch.Tensor:
        """Labels of what the target's row t predicts: of a decoder-only target that is token t + 1."""
        if self.target.config.is_encoder_decoder:
            return labels_BT
        return torch.cat([labels_BT[:, 1:], torch.full_like(labels_BT[:, :1], -100)], 1)

    def as_draft(self, ahead: int) -> AtPlaces:
        """What proposes the token `ahead` after the next: its logits stand where that token does, before that zeros."""

        def logits(places_BT: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
            output = self._read_once(given)
            if not (places_BT >= ahead).any():
                return torch.zeros_like(computed(at_places(output.p_BTV, places_BT)))
            found = self.logits(output, ahead)
            q_BTV = computed(at_places(found, (places_BT - ahead).clamp(min=0)))
            return q_BTV.masked_fill((places_BT < ahead).unsqueeze(-1), 0.0)

        return self._as_model(logits)

    def as_target(self) -> AtPlaces:
        """The target, whose run over a batch the drafts `as_draft` then share."""

        def logits(places_BT: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
            return computed(at_places(self._read_once(given).p_BTV, places_BT))

        return self._as_model(logits)

    def _as_model(self, logits: Callable[..., torch.Tensor]) -> AtPlaces:
        made: Any = logits
        made.config, made.device = self.target.config, self.target.device
        found: AtPlaces = made
        return found

    def _read_once(self, given: dict[str, torch.Tensor]) -> S:
        """`read`, or its last result if the batch is the same: the drafts `as_draft` share it."""
        before = self._last_read
        if (
            before is None
            or given.keys() != before[0].keys()
            or not all(map(_same, given.values(), before[0].values()))
        ):
            self._last_read = before = (given, self.read(given))
        return before[1]

    def continue_from(self, folder: Path) -> None:
        """Start from the heads in `folder`, trained for this target before it changed, or for another.

        Raises UserError if there are none, or their kind or shape differs.
        """
        try:
            self.trained.load_state_dict(earlier_weights(folder))
        except RuntimeError as error:
            raise UserError(
                f"distill.start_from={folder}: not weights of the kind and shape that this recipe trains "
                f"({reason(error)})"
            ) from error

    def save(self, recipe: Recipe, folder: Path) -> None:
        """The weights in bf16, with what they belong to."""
        name = short_name(recipe.distill.target or "")
        self.trained.to(torch.bfloat16).save(folder, name, fingerprint(self.target))

    def measure(self, recipe: Recipe, held: list[Row], tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
        """α of the first tokens of a proposal, for the rows held out and each test file of the recipe."""
        self.eval()
        self.trained.to(self.target.dtype)
        places = range(self.soonest, self.soonest + self.measured)
        drafts = {f"α of {self.predictor} {ahead + self.first - 1}": self.as_draft(ahead) for ahead in places}
        sources = prompts(recipe, held, tokenizer)
        found = alphas(recipe, self.target, sources, drafts, tokenizer, self.as_target())
        self._last_read = None
        return found


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or torch.equal(one, other)
