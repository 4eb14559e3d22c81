"""A draft that is a model of its own."""

from dataclasses import dataclass, fields
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.keys import key, require
from specbench.config.model import ModelConfig, check_model, name_of
from specbench.config.window_keys import SINKS, WindowKeys
from specbench.errors import UserError

VOCABULARIES = ("auto", "same", "tli", "slem")
OPTIMISERS = ("adamw", "sgd")
LEARNT_FROM = ("rejected", "verified")
ONLINE = "online"  # what its keys begin with, and its label ends with


@dataclass
class ModelDraftConfig(DraftConfig, ModelConfig, WindowKeys):
    """A model, whose vocabulary may differ from the target's."""

    kind: str = "model"
    builder: ClassVar[str | None] = "specbench.methods.model.builder:ModelBuilder"
    confidence: float | None = key(None, "a proposal ends after the first token whose q is below this")
    vocabulary: str = key(
        "auto",
        "same | tli (draft only tokens that both vocabularies share) | slem (draft a string and retokenise it with the "
        "target's tokenizer) | auto: same where they agree, else tli or slem (docs/models.md#vocabularies)",
    )
    top_tokens: int | None = key(
        None,
        "restrict the draft's head to this many of the most frequent tokens of the task's training text; q = 0 "
        "elsewhere, still lossless (FR-Spec)",
    )
    online: bool = key(
        False,
        "train the draft on verified tokens between prompts; the order of the prompts then matters (docs/online.md)",
    )
    online_every: int = key(4, "online: prompts between updates")
    online_steps: int = key(4, "online: optimiser steps per update, each over all tokens since the last update")
    online_tokens: str = key(
        "rejected", "online: rejected (learn where a draft token was rejected) | verified (from every emitted token)"
    )
    online_lr: float = key(
        0.0001, "online: learning rate; adamw multiplies it by the RMS of each tensor, as in the recipes"
    )
    online_optimiser: str = key("adamw", "online: adamw | sgd; its state persists between updates")
    online_temperature: float = key(1.0, "online: temperature of p and q in the loss KL(p || q)")
    online_timed: bool = key(False, "online: count the time of learning as decoding time in every speedup")
    grows_trees: ClassVar[bool] = True
    scores_children: ClassVar[bool] = True
    paper: ClassVar[bool] = True

    def label(self) -> str:
        """The model's name, the method for another vocabulary if one was chosen, and whether it learns."""
        name = name_of(self) if self.vocabulary in ("auto", "same") else f"{name_of(self)}-{self.vocabulary}"
        name += "" if self.top_tokens is None else f"-top{self.top_tokens}"
        name += "" if self.window is None else f"-window{self.window_label(self.window)}"
        return f"{name.removesuffix(f'-{ONLINE}')}-{ONLINE}" if self.online else name

    @property
    def learns(self) -> bool:
        return self.online

    def objection_to_part(self) -> str | None:
        return "with online=true it learns by itself" if self.online else super().objection_to_part()

    def confidence_bound(self) -> float | None:
        return self.confidence

    def objection_to_probe(self) -> str | None:
        return None if self.confidence is None else "where draft.confidence ends proposals, give a number or heuristic"

    def objection_to_tree(self) -> str | None:
        if self.online:
            return "with online=true it learns from chains"
        return "vocabulary=slem drafts one text" if self.vocabulary == "slem" else super().objection_to_tree()

    def check(self, key: str) -> None:
        confidence, top = self.confidence, self.top_tokens

        def in_range(name: str, holds: bool, allowed: str) -> None:
            require(holds, f"{key}.{name}", getattr(self, name), allowed)

        in_range("confidence", confidence is None or 0 < confidence <= 1, "above 0 and at most 1, or null")
        in_range("vocabulary", self.vocabulary in VOCABULARIES, " | ".join(VOCABULARIES))
        if self.vocabulary == "slem" and confidence is not None:
            raise UserError(
                f"{key}.confidence={confidence}: not together with {key}.vocabulary=slem, whose q is not known"
            )
        in_range("top_tokens", top is None or top >= 2, "at least 2, or null for all")
        if top is not None and self.online:
            raise UserError(f"{key}.top_tokens={top}: not together with {key}.online=true, which learns all tokens")
        self.check_window(key)
        if self.window is None and self.sinks != SINKS:
            raise UserError(f"{key}.sinks={self.sinks}: is for a draft with a window; set {key}.window, too")
        if self.window is not None and self.online:
            raise UserError(f"{key}.window={self.window}: not together with {key}.online=true")
        if top is not None and self.weights == "random":
            raise UserError(f"{key}.top_tokens={top}: random weights have no likeliest tokens; leave it unset")
        for one in fields(self):
            if one.name.startswith(f"{ONLINE}_") and not self.online and getattr(self, one.name) != one.default:
                raise UserError(f"{key}.{one.name}={getattr(self, one.name)}: is for {key}.online=true; set both")
        in_range("online_every", self.online_every >= 1, "at least 1")
        in_range("online_steps", self.online_steps >= 1, "at least 1")
        in_range("online_lr", 0 <= self.online_lr < 1e3, "at least 0 and below 1000")
        in_range("online_temperature", 0 < self.online_temperature <= 100, "above 0 and at most 100")
        in_range("online_tokens", self.online_tokens in LEARNT_FROM, " | ".join(LEARNT_FROM))
        in_range("online_optimiser", self.online_optimiser in OPTIMISERS, " | ".join(OPTIMISERS))
        if self.online and self.vocabulary in ("tli", "slem"):
            raise UserError(
                f"{key}.online=true: not together with {key}.vocabulary={self.vocabulary}: it learns the target's "
                "distribution token by token; use a draft with the target's tokenizer"
            )
        check_model(key, self)
