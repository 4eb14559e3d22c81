"""The models of a run: whether they fit each other, before weights are loaded, and `draft.vocabulary`, resolved."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.config.draft import DraftConfig
from specbench.config.model import ModelConfig, name_of
from specbench.config.schema import RunConfig
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.model.config import ModelDraftConfig
from specbench.records.numbers import Vocabularies
from specbench.text.translation import Translation
from specbench.text.vocabulary import Vocabulary, require_same_vocabulary


def require_a_pair(config: RunConfig, draft: ModelConfig, key: str, target: Vocabulary, own: Vocabulary) -> None:
    """Check that a draft model is of the target's kind (decoder-only or encoder-decoder).

    `key` is the config's name of `draft`, whose vocabulary is `own`. Raises UserError if their kinds differ.
    """
    if target.is_encoder_decoder != own.is_encoder_decoder:
        kinds = {True: "encoder-decoder", False: "decoder-only"}
        raise UserError(
            f"{key}={name_of(draft)}: is {kinds[own.is_encoder_decoder]} and target={name_of(config.target)} "
            f"is {kinds[target.is_encoder_decoder]}: use draft=lookup or "
            "draft=early-exit, which require nothing more, or a draft of the target's kind"
        )


def require_range(config: RunConfig, vocabulary: Vocabulary, name: str) -> None:
    """Check that the dtype holds the model's activations: T5's leave the range of fp16 (transformers#9295).

    Raises UserError for a T5 in float16.
    """
    if config.dtype == "float16" and vocabulary.family in ("t5", "mt5", "umt5"):
        raise UserError(f"dtype=float16: {name} is a T5, which overflows in fp16; use bfloat16 or float32")


def require_room(config: RunConfig, longest: int | None, prompts: Sequence[Prompt]) -> None:
    """Check that no completion runs past the `longest` learned positions of the model (None: no limit).

    Raises UserError if the longest prompt and `max_new_tokens` exceed them.
    """
    needed = max(len(prompt.prefix) for prompt in prompts) + config.max_new_tokens
    if longest is not None and needed > longest:
        lower = "task.max_source_tokens" if config.context is None else f"context={config.context}"
        raise UserError(
            f"max_new_tokens={config.max_new_tokens}: with the longest prompt this makes {needed} tokens, and the "
            f"model has positions for {longest}; lower max_new_tokens or {lower}"
        )


ENOUGH = 0.5  # share of the draft's tokens that the target has


@dataclass(frozen=True)
class VocabularyChoice:
    """`how` is same, tli or slem, for this `reason`; `translation` is of vocabularies that differ."""

    how: str
    reason: str
    translation: Translation | None = None

    def line(self, target: str, draft: str) -> str:
        """A line for the reader on vocabularies that differ."""
        assert self.translation is not None
        overlap = self.translation.overlap
        return (
            f"draft {draft}: its vocabulary differs from {target}'s; they share {overlap.shared:,} tokens, "
            f"{overlap.of_target:.0%} of the target's and {overlap.of_draft:.0%} of the draft's: "
            f"{self.how} ({self.reason})"
        )


def choose_vocabulary(
    run: RunConfig, draft: ModelDraftConfig, key: str, target: Vocabulary, own: Vocabulary
) -> VocabularyChoice:
    """How `draft`, which the config calls `key` and whose vocabulary is `own`, drafts for `target`.

    Raises UserError if vocabularies differ that must not, or share nothing.
    """
    wanted, same = draft.vocabulary, target.tokens == own.tokens
    if same and wanted in ("auto", "same"):
        return VocabularyChoice("same", "both have the same tokens")
    if wanted == "same":
        require_same_vocabulary(target, own, name_of(run.target), name_of(draft), key)
    translation = Translation(target, own, key)
    if not translation.shared:
        raise UserError(f"{key}={name_of(draft)}: its vocabulary shares no token with {name_of(run.target)}'s")
    if wanted != "auto":
        return VocabularyChoice(wanted, f"{key}.vocabulary={wanted}", translation)
    if run.tree.shape != "none" or draft.confidence is not None or key != "draft":
        return VocabularyChoice("tli", "trees, a confidence and drafts of several need q", translation)
    if translation.overlap.of_draft >= ENOUGH:
        return VocabularyChoice(
            "tli", f"q is known, and at least {ENOUGH:.0%} of the draft's tokens are shared", translation
        )
    return VocabularyChoice("slem", f"less than {ENOUGH:.0%} of the draft's tokens are shared", translation)


def draft_name(draft: DraftConfig, choice: VocabularyChoice | None, engine: str) -> str:
    """The name of `draft` in tables: its label, whether `engine` simulates its cost, how it translates."""
    label = draft.label() + ("-simulated-cost" if cost_is_simulated(draft, engine) else "")
    if choice is None or choice.how == "same" or label.endswith(f"-{choice.how}"):
        return label
    return f"{label}-{choice.how}"


def cost_is_simulated(draft: DraftConfig, engine: str) -> bool:
    """Whether some part of `draft` costs something else on `engine` than where it would be used."""
    return any(part.costs_on not in (None, engine) for part in draft.levels())


def vocabulary_facts(choice: VocabularyChoice | None) -> Vocabularies:
    """The fields of a record on vocabularies that differ; none if they agree."""
    if choice is None or choice.translation is None:
        return {}
    overlap = choice.translation.overlap
    return {
        "vocabulary": choice.how,
        "vocabulary_reason": choice.reason,
        "shared_of_target": overlap.of_target,
        "shared_of_draft": overlap.of_draft,
    }
