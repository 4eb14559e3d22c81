"""Rotary angles as a `transformers` config describes them."""

from typing import Any

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ROTATIONS = ("default", "linear", "llama3")


def rotation(config: Any) -> tuple[float, tuple[float, ...]]:
    """The base of the angles, and where a rule scales them the angles by which a position turns each pair of channels.

    Raises ValueError, with the rule's name, for a rule other than `ROTATIONS`.
    """
    rope = config.rope_parameters
    kind, part = str(rope.get("rope_type")), rope.get("partial_rotary_factor", 1.0)
    if kind not in ROTATIONS or part != 1.0:
        raise ValueError(kind if part == 1.0 else f"partial {part}")
    theta = float(rope["rope_theta"])
    if kind == "default":
        return theta, ()
    angles, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    return theta, tuple(angles.tolist())
