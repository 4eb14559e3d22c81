"""Which part of a decoder drafts: its first layers (early exit), without some of their sublayers (layer skipping)."""

import re
from collections.abc import Iterable
from typing import NamedTuple

KINDS = ("attn", "cross", "mlp")  # self-attention, attention to the encoded source, feed-forward
NAMED = re.compile(r"(attn|cross|mlp|layer)(0|[1-9]\d*)")
LAYER = re.compile(r"\d+")
NONE: frozenset[str] = frozenset()


class Part(NamedTuple):
    """The first `layers` decoder layers, without the sublayers `skipped`.

    'attn2' is the self-attention of layer 2, counted from 0.
    """

    layers: int
    skipped: frozenset[str] = NONE

    @property
    def caching(self) -> list[int]:
        """The layers whose self-attention runs, and so caches its tokens."""
        return [layer for layer in range(self.layers) if f"attn{layer}" not in self.skipped]

    @property
    def shared(self) -> int:
        """The first layers of which none of the sublayers is skipped: they compute the states of the whole decoder."""
        return min((int(LAYER.findall(name)[0]) for name in self.skipped), default=self.layers)


def without(layers: int, names: Iterable[str], kinds: Iterable[str]) -> Part:
    """The part of a decoder without the sublayers in `names`.

    The decoder has `layers` layers, each with sublayers of these `kinds`. 'layer2' names all sublayers of layer 2. If
    all sublayers of the last layers are skipped, the part is an early exit.

    Raises:
        ValueError: a name is not a sublayer, or layer 0's attention, whose cache counts the tokens, would be skipped.
    """
    kinds, skipped = tuple(kinds), set[str]()
    for name in names:
        found = NAMED.fullmatch(name)
        if found is None:
            raise ValueError(f"{name} is not a sublayer; give {', '.join(f'{kind}N' for kind in (*kinds, 'layer'))}")
        kind, layer = found[1], int(found[2])
        if layer >= layers:
            raise ValueError(f"{name}: the target has {layers} decoder layers, 0 to {layers - 1}")
        if kind not in (*kinds, "layer"):
            raise ValueError(f"{name}: a layer of the target has {', '.join(kinds)}")
        skipped |= {f"{one}{layer}" for one in (kinds if kind == "layer" else (kind,))}
    if "attn0" in skipped:
        raise ValueError("attn0 cannot be skipped: the first layer's cache counts the tokens that were read")
    while all(f"{kind}{layers - 1}" in skipped for kind in kinds):
        skipped -= {f"{kind}{layers - 1}" for kind in kinds}
        layers -= 1
    return Part(layers, frozenset(skipped))
