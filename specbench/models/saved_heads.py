"""Heads as files: their weights, their shape, and the target that they were trained on.

Heads on a network's states are worth nothing on another network, so a fingerprint of the network's weights goes with
them and is compared when they are loaded.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from specbench.errors import UserError, first_line

WEIGHTS, FACTS = "heads.safetensors", "config.json"
SAMPLED_TENSORS, SAMPLED_VALUES = 16, 4
NEAR = 0.01  # two roundings of one weight are nearer than this, two trainings are not


class SavedHeads(nn.Module):
    """Heads that are saved with the name and the fingerprint of their target.

    Arguments of the constructor are JSON values, and attributes of the same names.
    """

    KIND: ClassVar[str]  # as `draft=` has it
    RECIPE: ClassVar[str]  # makes such heads
    SHAPE: ClassVar[tuple[str, ...]]  # the constructor's arguments
    CALLED: ClassVar[str] = "heads"

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def save(self, folder: Path, target: str, prints: list[float]) -> None:
        """Write the weights, and what `target` is."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}
        save_file(weights, folder / WEIGHTS)
        (folder / WEIGHTS).chmod(0o644)  # safetensors keeps it from others
        facts = {"kind": self.KIND, **{name: getattr(self, name) for name in self.SHAPE}}
        text = json.dumps(facts | {"target": target, "fingerprint": prints}, indent=1)
        (folder / FACTS).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def facts(cls, folder: Path, key: str) -> dict[str, Any]:
        """The facts of the heads in `folder`: their shape, `target` and `fingerprint`.

        Raises:
            UserError: it has no heads of this kind.
        """
        try:
            facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            has_all = facts.keys() >= {"kind", *cls.SHAPE, "target", "fingerprint"}
            if (folder / WEIGHTS).is_file() and has_all and facts["kind"] == cls.KIND:
                return facts
        except (OSError, ValueError):
            pass
        raise UserError(
            f"{key}.path={folder}: no {cls.KIND} {cls.CALLED} are in this folder ({FACTS}, {WEIGHTS}); "
            f"make them with specbench train recipe={cls.RECIPE} distill.target=TARGET"
        )

    @classmethod
    def load(cls, folder: Path, network: Any, key: str) -> Self:
        """The heads in `folder`, ready for `network`. Raises UserError where they belong to another."""
        facts = cls.facts(folder, key)
        if not same_weights(fingerprint(network), facts["fingerprint"]):
            raise UserError(
                f"{key}: the {cls.CALLED} in {folder.name} were trained on {facts['target']}, and this target's "
                f"weights are others; train some: specbench train recipe={cls.RECIPE} distill.target=TARGET, and give "
                f"{key}.path=FOLDER"
            )
        try:
            heads = cls(*(facts[name] for name in cls.SHAPE))
            heads.load_state_dict(load_file(folder / WEIGHTS))
        except Exception as error:  # SafetensorError, RuntimeError, TypeError: whatever is damaged
            raise UserError(f"{key}: the {cls.CALLED} in {folder} cannot be loaded: {first_line(error)}") from error
        weight = network.get_output_embeddings().weight
        return heads.to(weight.device, weight.dtype).eval().requires_grad_(False)


def same_weights(ours: list[float], theirs: list[float]) -> bool:
    """Whether two fingerprints are of one network, except for rounding."""
    if len(ours) != len(theirs):
        return False
    return all(abs(a - b) <= NEAR * max(abs(a), abs(b)) + 1e-6 for a, b in zip(ours, theirs, strict=True))


def fingerprint(network: Any) -> list[float]:
    """A few weights of a few tensors, which identify a training and are the same in every dtype up to rounding.

    It takes no time and reads no file, whatever the network's size.
    """
    tensors = [weight for _, weight in sorted(network.named_parameters())]
    picked = []
    for tensor in tensors[:: max(1, len(tensors) // SAMPLED_TENSORS)]:
        places = [at * (tensor.numel() - 1) // (SAMPLED_VALUES - 1) for at in range(SAMPLED_VALUES)]
        picked += tensor.detach().flatten()[places].float().tolist()
    return picked
