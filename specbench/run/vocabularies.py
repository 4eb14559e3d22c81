"""How a model drafts for a target of another vocabulary: `draft.vocabulary`, resolved."""

from dataclasses import dataclass

from specbench.config import RunConfig
from specbench.config.draft_kinds import ModelDraftConfig
from specbench.config.model import name_of
from specbench.errors import UserError
from specbench.models import Translation, Vocabulary, require_same_vocabulary

ASKED = "as asked for"
SAME = "both vocabularies have the same tokens"


@dataclass(frozen=True)
class VocabularyChoice:
    """`how` is same, tli or slem, for this `reason`; `translation` is of vocabularies that differ."""

    how: str
    reason: str
    translation: Translation | None = None

    def line(self, target: str, draft: str) -> str:
        """What a reader must know of vocabularies that differ."""
        assert self.translation is not None
        overlap = self.translation.overlap
        return (
            f"draft {draft}: its vocabulary differs from that of {target}; they share {overlap.shared:,} tokens, "
            f"{overlap.of_target:.0%} of the target's and {overlap.of_draft:.0%} of the draft's: "
            f"{self.how} ({self.reason})"
        )


def choose_vocabulary(
    run: RunConfig, draft: ModelDraftConfig, key: str, target: Vocabulary, own: Vocabulary
) -> VocabularyChoice:
    """How `draft`, which the config calls `key` and whose vocabulary is `own`, drafts for `target`.

    Raises UserError where vocabularies differ that must not, or share nothing.
    """
    wanted = draft.vocabulary
    if target.tokens == own.tokens:
        return VocabularyChoice("same", SAME)
    if wanted == "same":
        require_same_vocabulary(target, own, name_of(run.target), name_of(draft), key)
    translation = Translation(target, own, key)
    if not translation.shared:
        raise UserError(f"{key}={name_of(draft)}: its vocabulary shares no token with that of {name_of(run.target)}")
    reason = ASKED if wanted != "auto" else "q of the shared tokens is known"
    return VocabularyChoice("tli", reason, translation)
