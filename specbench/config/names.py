"""The names of a run's parts in tables."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specbench.config.drafts import DRAFT_KINDS
from specbench.methods.horizontal.config import HorizontalConfig
from specbench.methods.model.config import ONLINE

METRICS = {
    "bleu": "BLEU", "rouge": "ROUGE-L", "chrf": "chrF", "exact": "exact answers, %", "number": "right numbers, %",
}  # fmt: skip


def task_label(name: str, path: str | None) -> str:
    """The task's name; with rows of the user's own, their file too: 'ende (rows.jsonl)' is not the paper's EnDe."""
    return name if path is None else f"{name} ({Path(path).name})"


def beyond_the_paper(name: str) -> bool:
    """Whether a draft of this label (`DraftConfig.label`) is of a kind that the paper does not measure."""
    kinds = [kind for kind, config in DRAFT_KINDS.items() if not config.paper]
    return name.endswith(("-gram", f"-{ONLINE}")) or _is_of(name, kinds)


def falls_with_position(name: str) -> bool:
    """Whether a draft of this label is accepted less often the further ahead it drafts, so that one α does not do."""
    return _is_of(name, [kind for kind, config in DRAFT_KINDS.items() if config.falls_with_position])


def alpha_is_of(name: str) -> str | None:
    """Whose α a draft of this label has, if it is that of a part: in a horizontal cascade the first draft writes it."""
    return "first draft" if _is_of(name, [HorizontalConfig.kind]) else None


def _is_of(name: str, kinds: Iterable[str]) -> bool:
    """Whether a label is that of a draft of one of these kinds, which it begins with."""
    return any(name == kind or name.startswith(f"{kind}-") for kind in kinds)


def own_weights(config: Mapping[str, Any]) -> str:
    """Those of 'target' and 'draft' in a frozen config whose folder replaces the model that their name stands for.

    `target=t5-xxl target.path=FOLDER` is called t5-xxl, and may be any model. A choice that is a folder by itself, such
    as `gpt-97m`, is not among them.
    """
    parts = {part: config.get(part) or {} for part in ("target", "draft")}
    named = [
        part
        for part, model in parts.items()
        if model.get("path") is not None and (model.get("hub") is not None or model.get("shipped") is not None)
    ]
    return " ".join(named)
