"""A draft that is a model of its own."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key
from specbench.config.model import ModelConfig, check_model, name_of
from specbench.config.ranges import require
from specbench.errors import UserError

VOCABULARIES = ("auto", "same", "tli", "slem")


@dataclass
class ModelDraftConfig(DraftConfig, ModelConfig):
    """A model, whose vocabulary may differ from the target's."""

    kind: str = "model"
    confidence: float | None = key(None, "a proposal ends after a token whose own q is below this")
    vocabulary: str = key(
        "auto",
        "same | tli (draft only tokens that both vocabularies share) | slem (draft text and retokenise it with the "
        "target's tokenizer) | auto: same where they agree, else tli or slem (docs/vocabularies.md)",
    )
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    paper: ClassVar[bool] = True

    def label(self) -> str:
        """The model's name, and how it drafts for another vocabulary where that was chosen."""
        return name_of(self) if self.vocabulary in ("auto", "same") else f"{name_of(self)}-{self.vocabulary}"

    def confidence_bound(self) -> float | None:
        return self.confidence

    def objection_to_probe(self) -> str | None:
        return None if self.confidence is None else "where draft.confidence ends proposals, give a number or heuristic"

    def objection_to_tree(self) -> str | None:
        return "vocabulary=slem drafts one text" if self.vocabulary == "slem" else super().objection_to_tree()

    def check(self, key: str) -> None:
        confidence = self.confidence
        require(
            confidence is None or 0 < confidence <= 1,
            f"{key}.confidence", confidence, "above 0 and at most 1, or null",
        )  # fmt: skip
        require(self.vocabulary in VOCABULARIES, f"{key}.vocabulary", self.vocabulary, " | ".join(VOCABULARIES))
        if self.vocabulary == "slem" and confidence is not None:
            raise UserError(
                f"{key}.confidence={confidence}: not together with {key}.vocabulary=slem, whose q is not known"
            )
        check_model(key, self)
