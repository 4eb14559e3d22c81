"""The experts of a mixture-of-experts network: their size, and which of them its runs read.

A run over several tokens reads more experts than a step, since each token chooses its own.

Shapes: T tokens, K experts chosen for each, X experts of a layer.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig

Chosen = tuple[Tensor, ...]  # the experts [T, K] that runs chose, layer by layer
GROUPED_BYTES = 16  # rows of all matrices of a grouped product are a multiple of this
HELD_RUNS = 8  # of all layers, until somebody asks for them


class ExpertReads:
    """The experts that the latest runs chose: `chosen` [T, K] of each layer, run after run."""

    def __init__(self) -> None:
        self.chosen: deque[Tensor] = deque()

    def reserve(self, layers: int) -> None:
        """Hold the choices of a few runs over so many layers, and drop older ones."""
        self.chosen = deque(self.chosen, maxlen=HELD_RUNS * max(layers, 1))


@dataclass(frozen=True)
class Experts:
    """A network's layers of experts: the same number, size and choice in each."""

    layers: int
    number: int  # of a layer
    per_token: int
    weights: int  # of one expert
    reads: ExpertReads

    @staticmethod
    def of(network: Any, reads: ExpertReads | None = None) -> "Experts | None":
        """The experts of `network`, whose runs write to `reads`; None if it has none."""
        modules = expert_modules(network)
        if not modules:
            return None
        config = network.config.get_text_config()
        number, per_token = len(modules[0].down_proj), getattr(config, "num_experts_per_tok", None)
        weights = sum(parameter.numel() for parameter in modules[0].parameters()) // number
        reads = reads or ExpertReads()
        reads.reserve(len(modules))
        return Experts(len(modules), number, per_token or number, weights, reads)

    @staticmethod
    def noted(network: Any) -> "Experts | None":
        """The experts of `network`, which itself notes the experts that it reads as it runs."""
        made = Experts.of(network)
        for module in expert_modules(network):
            assert made is not None
            module.register_forward_pre_hook(_Noting(made.reads))
        return made

    def begin(self) -> None:
        """Forget what was read before."""
        self.reads.chosen.clear()

    def taken(self) -> tuple[Tensor, ...]:
        """The experts that were read since `begin`; `distinct` counts them, once nothing is timed."""
        return tuple(self.reads.chosen)

    def distinct(self, chosen: Sequence[Tensor]) -> list[int]:
        """How many experts of each layer the runs read that chose these."""
        found = [len(one.unique()) for one in chosen]
        return [sum(found[layer :: self.layers]) for layer in range(self.layers)]

    @property
    def of_a_token(self) -> int:
        """Weights of experts that a step over one token reads."""
        return self.layers * self.per_token * self.weights

    @property
    def unread(self) -> int:
        """Weights of experts that a step over one token does not read."""
        return self.layers * (self.number - self.per_token) * self.weights


class Counting:
    """The experts that one completion's runs of a model read: between `begin` and `end` lies one run, or several."""

    def __init__(self, experts: Experts | None) -> None:
        self._experts = experts
        self._taken: list[tuple[Tensor, ...] | None] = []

    def begin(self) -> None:
        if self._experts is not None:
            self._experts.begin()

    def end(self) -> "Chosen | None":
        """The experts that were read since `begin`; None for a model without experts."""
        taken = None if self._experts is None else self._experts.taken()
        self._taken.append(taken)
        return taken

    def counts(self) -> list[list[int] | None]:
        """Distinct experts by layer, run by run; None for a model without experts."""
        experts = self._experts
        return [None if experts is None or one is None else experts.distinct(one) for one in self._taken]


class _Noting:
    """A hook that notes which experts a layer of a network that runs as it is was given."""

    def __init__(self, reads: ExpertReads) -> None:
        self._reads = reads

    def __call__(self, _: nn.Module, args: Sequence[Tensor]) -> None:
        self._reads.chosen.append(args[1])


def expert_modules(network: nn.Module) -> list[Any]:
    """The modules of `network` that hold the weights of a layer's experts, each in one tensor."""
    held = (getattr(module, "down_proj", None) for module in network.modules())
    return [
        module
        for module, one in zip(network.modules(), held, strict=True)
        if isinstance(one, nn.Parameter) and one.dim() == 3
    ]


def use_experts_of_any_shape(network: Any) -> None:
    """Let `network` run its experts one after another if `torch.nn.functional.grouped_mm` cannot take their shape.

    It requires rows of a multiple of 16 bytes; `transformers` calls it by default and does not check.
    """
    weights = [one for module in expert_modules(network) for one in module.parameters() if one.dim() == 3]
    if any(size * one.element_size() % GROUPED_BYTES for one in weights for size in one.shape[1:]):
        configs = (getattr(module, "config", None) for module in network.modules())
        for config in {id(config): config for config in configs if isinstance(config, PretrainedConfig)}.values():
            config._experts_implementation = "eager"
