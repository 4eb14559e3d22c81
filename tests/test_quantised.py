"""The target in fewer bits drafts for itself: the rounding of its weights, and the identity of the text."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from decode import autoregressive, speculative
from networks import network
from torch import nn
from transformers.pytorch_utils import Conv1D

from specbench.choose.recommend import of_simulated_costs
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.model.draft import ModelDraft
from specbench.methods.quantised.config import QuantisedConfig
from specbench.methods.quantised.draft import GROUP, quantise, rounded
from specbench.methods.router.config import RouterConfig
from specbench.sampling import Sampling

SIZE, ENDS = 40, frozenset({1})


@pytest.mark.parametrize(("bits", "group"), [(8, 70), (4, GROUP)])
def test_weights_are_within_half_a_level_and_have_few_levels(bits: int, group: int) -> None:
    weight_NK = torch.randn(5, 70, generator=torch.Generator().manual_seed(1))
    weight_NK[2] = 0.0
    found_NK = rounded(weight_NK, bits)
    for first in range(0, 70, group):
        part_NK, of_part = weight_NK[:, first : first + group], found_NK[:, first : first + group]
        level_N1 = part_NK.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
        assert ((part_NK - of_part).abs() <= level_N1 / 2 + 1e-7).all()
        whole_NK = torch.where(level_N1 > 0, of_part / level_N1.clamp(min=1e-9), 0.0)
        assert (
            torch.allclose(whole_NK, whole_NK.round(), atol=1e-3) and whole_NK.abs().max() <= 2 ** (bits - 1) - 1 + 1e-3
        )
    assert not torch.equal(found_NK, weight_NK)
    assert torch.allclose(rounded(found_NK, bits), found_NK, atol=1e-6)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_every_linear_map_is_rounded_and_the_text_stays_the_targets_own(kind: str) -> None:
    target = EagerModel(network(kind, 4, layers=2), SIZE, ENDS)
    errors = []
    for bits in (8, 4):
        small = network(kind, 4, layers=2)
        quantise(small, bits)
        own, other = dict(target.network.named_modules()), dict(small.named_modules())
        maps = [name for name, module in own.items() if isinstance(module, (nn.Linear, Conv1D))]
        assert maps and all(not torch.equal(own[name].weight, other[name].weight) for name in maps)
        errors.append(sum(float((own[name].weight - other[name].weight).detach().abs().mean()) for name in maps))
        draft = ModelDraft(EagerModel(small, SIZE, ENDS), SIZE)
        source = (5, 9, 12, 30, 1)
        prompt = Prompt(source, (0,)) if kind == "t5" else Prompt((), source[:-1])
        told = {"sampling": Sampling(0.0), "max_new_tokens": 16}
        text = autoregressive(target, prompt, generator=torch.Generator(), **told).tokens  # type: ignore[arg-type]
        trace = speculative(target, draft, prompt, gamma=3, generator=torch.Generator(), **told)  # type: ignore[arg-type]
        assert trace.tokens == text
    assert errors[1] > 4 * errors[0] > 0


def test_its_name_says_that_its_cost_is_simulated() -> None:
    assert QuantisedConfig(bits=4).label() == "quantised-4-simulated-cost"
    with pytest.raises(UserError, match=r"draft.bits=3: must be 4 \| 8"):
        QuantisedConfig(bits=3).check("draft")


def test_a_recommendation_says_that_its_cost_is_simulated_in_a_router_too() -> None:
    drafts = (QuantisedConfig(bits=4), RouterConfig(first=LookupConfig(), second=QuantisedConfig()), LookupConfig())
    candidates = [SimpleNamespace(name=one.label(), config=SimpleNamespace(draft=one)) for one in drafts]
    first, second = of_simulated_costs(cast(Any, candidates))
    assert first.startswith("quantised-4-simulated-cost: its rounded weights are read at full size, so its c")
    assert second.startswith("router-lookup-quantised-8-simulated-cost: ") and "8-bit kernels" in second
