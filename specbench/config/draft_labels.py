"""Properties of a draft by its label in tables."""

from collections.abc import Iterable

from specbench.config.drafts import DRAFT_KINDS
from specbench.methods.model.config import ONLINE
from specbench.methods.several.config import HorizontalConfig


def beyond_the_paper(name: str) -> bool:
    """Whether a draft of this label (`DraftConfig.label`) is of a kind that the paper does not measure."""
    kinds = [kind for kind, config in DRAFT_KINDS.items() if not config.paper]
    return name.endswith(("-gram", f"-{ONLINE}")) or _is_of(name, kinds)


def falls_with_position(name: str) -> bool:
    """Whether a draft of this label is accepted less often the further ahead it drafts, so that one α does not do."""
    return _is_of(name, [kind for kind, config in DRAFT_KINDS.items() if config.falls_with_position])


def alpha_is_of(name: str) -> str | None:
    """The part of a draft of this label whose α it has, if any: the first draft of a horizontal cascade writes it."""
    return "first draft" if _is_of(name, [HorizontalConfig.kind]) else None


def _is_of(name: str, kinds: Iterable[str]) -> bool:
    """Whether a label belongs to a draft of one of these kinds, with whose name it begins."""
    return any(name == kind or name.startswith(f"{kind}-") for kind in kinds)
