"""The target in fewer bits drafts for itself: the rounding of its weights, its kernels, the identity of the text."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

from specbench.choose.rank import of_simulated_costs
from specbench.cli import main
from specbench.conformance import check_draft
from specbench.engine.capture.lower import PackedWeights
from specbench.engine.capture.program import ROUNDING, largest_difference
from specbench.engine.eager.model import EagerModel
from specbench.engine.native.native_model import NativeModel
from specbench.engine.native.prefill import LoweredPrompt
from specbench.engine.selection import MOST_ERROR, checked_capture
from specbench.engine.session import Model, Prompt
from specbench.engine.weights.load import round_weights
from specbench.errors import UserError
from specbench.kernels import is_available, library
from specbench.kernels.levels import GROUP, packed, rounded
from specbench.loading import draft_name
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.model.draft import ModelDraft
from specbench.methods.quantised.config import QuantisedConfig
from specbench.methods.quantised.draft import QuantisedDraft
from specbench.methods.router.config import RouterConfig
from specbench.sampling import Sampling
from tests.support.calls import newest, small
from tests.support.chi import ALARM, speculative_p_value
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.toy import EOS, PROMPT, VOCABULARY

SIZE, ENDS = 40, frozenset({1})
native = pytest.mark.skipif(not is_available(), reason="there are no native kernels")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
def test_weights_are_near_and_have_few_levels_and_rounding_again_changes_nothing(bits: int, dtype: torch.dtype) -> None:
    weight_NK = torch.randn(50, 70, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight_NK[2] = 0.0
    found_NK = rounded(weight_NK, bits)
    assert found_NK.dtype == dtype and torch.equal(rounded(found_NK, bits), found_NK)
    for first in range(0, 70, GROUP):
        part_NK, of_part = weight_NK[:, first : first + GROUP].float(), found_NK[:, first : first + GROUP].float()
        level_N1 = of_part.abs().amax(-1, keepdim=True) / 2 ** (bits - 1)
        whole_NK = of_part / level_N1.clamp(min=1e-9)
        assert torch.allclose(whole_NK, whole_NK.round(), atol=1e-3 if dtype == torch.float32 else 0.5)
        off_NK = (part_NK - of_part).abs() / level_N1.clamp(min=1e-9)
        assert off_NK.median() < 0.35 and (level_N1[2] == 0).all() and (off_NK <= 2.7).all()
    assert not torch.equal(found_NK, weight_NK)


def test_in_4_bits_the_scale_is_searched_for() -> None:
    weight_NK = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    groups = weight_NK.view(64, -1, GROUP)
    covering = groups.abs().amax(-1, keepdim=True) / 7
    plain = ((groups / covering).round() * covering).flatten(1)
    assert (rounded(weight_NK, 4) - weight_NK).square().mean() < 0.85 * (plain - weight_NK).square().mean()


@native
@pytest.mark.covering(most=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_the_native_kernels_multiply_with_the_rounded_weights(kind: str, bits: int, dtype: torch.dtype) -> None:
    small = network(kind, 4, layers=2).to(dtype)
    round_weights(small, bits)
    model = checked_capture(NativeModel, small, SIZE, ENDS, level_bits=bits)  # which compares a few runs
    laid_out = [(weight, held) for weight, held in model.packed.pairs() if held.dtype == torch.uint8]
    assert laid_out and all(held.nbytes < weight.numel() * bits for weight, held in laid_out)
    prompt = Prompt((5, 9, 12), (0,)) if kind == "t5" else Prompt((), (5, 9, 12))
    tokens = [7, 3, 11, 20, 6, 9, 14, 2]
    found, own = (one.start(prompt).extend(tokens).float() for one in (model, EagerModel(small, SIZE, ENDS)))
    wanted = EagerModel(copy.deepcopy(small).float(), SIZE, ENDS).start(prompt).extend(tokens)
    rounding = max(ROUNDING[dtype], MOST_ERROR * largest_difference([own], [wanted]))
    assert largest_difference([found], [wanted]) < (1e-5 if dtype == torch.float32 else rounding)


@native
def test_long_prompts_are_read_from_levels_as_well() -> None:
    """As those of the target are, so that no weights are laid out for torch's operations."""
    small = network("llama", 4, layers=2).bfloat16()
    round_weights(small, 8)
    reading = NativeModel(small, SIZE, ENDS, PackedWeights(8)).program.prompt.run
    whole = NativeModel(network("llama", 4, layers=2).bfloat16(), SIZE, ENDS).program.prompt.run
    assert isinstance(reading, LoweredPrompt) and isinstance(whole, LoweredPrompt)
    assert reading.is_native_for(500) == whole.is_native_for(500)
    assert library().uses_tiles() or reading.is_native_for(500)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_every_linear_map_is_rounded_and_the_text_stays_the_targets_own(kind: str) -> None:
    target = EagerModel(network(kind, 4, layers=2), SIZE, ENDS)
    errors = []
    for bits in (8, 4):
        small = network(kind, 4, layers=2)
        round_weights(small, bits)
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


@native
@pytest.mark.statistical
def test_sampled_texts_have_the_targets_distribution() -> None:
    """And the q that is reported is that of the levels that tokens were drawn from."""
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, initializer_range=0.7,
    )  # fmt: skip
    whole = LlamaForCausalLM(config).eval()
    small, ends = copy.deepcopy(whole), frozenset({EOS})
    round_weights(small, 4)
    draft = QuantisedDraft(checked_capture(NativeModel, small, VOCABULARY, ends, level_bits=4), VOCABULARY)
    target = NativeModel(whole, VOCABULARY, ends)
    p_value, rejected = speculative_p_value(target, draft, PROMPT, 3, Sampling(1.0), 4, 1000)
    assert p_value > ALARM and rejected > 20
    check_draft(draft, VOCABULARY, PROMPT, [1, 1, 2])


@native
@pytest.mark.parametrize("bits", [8, 4])
def test_no_levels_are_lost_where_numbers_fill_no_group_and_no_block(bits: int) -> None:
    weight_NK = rounded(torch.randn(3, 5, generator=torch.Generator().manual_seed(3)), bits)
    assert packed(weight_NK, bits).numel() % (1 + 2 * bits) == 0


def test_its_name_says_that_its_cost_is_simulated_where_it_is() -> None:
    draft = QuantisedConfig(bits=4)
    assert draft.label() == draft_name(draft, None, "native") == "quantised-4"
    assert draft_name(draft, None, "static") == draft_name(draft, None, "native+eager") == "quantised-4-simulated-cost"
    with pytest.raises(UserError, match=r"draft.bits=3: must be 4 \| 8"):
        QuantisedConfig(bits=3).check("draft")


def test_a_recommendation_says_that_its_cost_is_simulated_in_a_router_too() -> None:
    drafts = (QuantisedConfig(bits=4), RouterConfig(first=LookupConfig(), second=QuantisedConfig()), LookupConfig())

    def said(engine: str) -> list[str]:
        candidates = [
            SimpleNamespace(
                name=draft_name(one, None, engine),
                config=SimpleNamespace(draft=one),
                parts=SimpleNamespace(engine=engine),
            )
            for one in drafts
        ]
        return of_simulated_costs(cast(Any, candidates))

    first, second = said("eager")
    assert first.startswith("quantised-4-simulated-cost: its rounded weights are read at full size, so its c")
    assert second.startswith("router-lookup-quantised-8-simulated-cost: ") and "8-bit kernels" in second
    assert said("native") == []


def test_it_is_the_middle_model_of_a_cascade(folders: dict[str, Path], tmp_path: Path) -> None:
    """A copy drafts for the target in fewer bits, which drafts for the target."""
    cascade = ("draft=cascade", "draft@draft.via=quantised", "draft.via.bits=4", "draft@draft.inner=lookup")
    told = ("max_new_tokens=24", "limit=3", "gamma=5", "dtype=float32")
    assert main(["run", *small(folders, tmp_path, *cascade, *told, kind="llama-draft")]) == 0
    summary = newest(tmp_path)["summary"]
    assert (summary["draft"], summary["identical"]) == ("cascade-lookup-quantised-4-simulated-cost", 1.0)
    assert summary["tokens_per_pass"] > 1


NATIVE = pytest.param(("engine=native",), marks=native)
IN_ROWS = pytest.param(("engine=native", "batch=2"), marks=native)
WITH_A_PENALTY = ("engine=eager", "sampling.repetition_penalty=1.2")
OF_A_CASCADE = ("draft=cascade", "draft@draft.via=quantised", "draft@draft.inner=lookup")


@pytest.mark.parametrize("told", [("engine=eager",), NATIVE, IN_ROWS, ("batch=2",), WITH_A_PENALTY, OF_A_CASCADE])
def test_the_target_alone_reads_the_prompt(told: tuple[str, ...], folders: dict[str, Path], tmp_path: Path) -> None:
    told = ("draft=quantised", "limit=3", "gamma=3", "sampling.temperature=1", *told)
    assert main(["run", *small(folders, tmp_path, *told, kind="llama-draft")]) == 0
    for prompt in newest(tmp_path)["prompts"]:
        ours = prompt["speculative"]
        if "batch=2" not in told:
            assert (ours.draft_prompt_read, ours.draft_prompt_copied) == (0, prompt["prompt_tokens"] - 1)


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("kind", [EagerModel, pytest.param(NativeModel, marks=native)])
def test_a_copied_prompt_has_the_targets_keys(kind: type[EagerModel], rows: int | None) -> None:
    """q is that of the small network over the cache of the target's network, in a row of a batch as well."""
    whole = network("llama", 4, layers=2)
    small = copy.deepcopy(whole)
    round_weights(small, 4)
    target: Model = kind(whole, SIZE, ENDS)
    draft = QuantisedDraft(kind(small, SIZE, ENDS), SIZE)
    if rows is not None:
        target, draft = target.in_batch(rows), draft.in_batch(rows)
    prompt = Prompt((), (5, 9, 12, 30, 7, 3))
    session, tokens, warm = target.start(prompt), [*prompt.prefix, 8], Sampling(1.0)
    copied, read = draft.start_on(session, prompt, warm), draft.start(prompt, warm)
    copied_1V, read_1V = copied.score(tokens, 6), read.score(tokens, 6)
    with torch.inference_mode():
        cache = whole(torch.tensor([prompt.prefix[:5]]), use_cache=True).past_key_values
        expected_1V = small(torch.tensor([prompt.prefix[5:]]), past_key_values=cache).logits[0, :, :SIZE].softmax(-1)
    assert torch.allclose(copied_1V, expected_1V, atol=1e-5) and not torch.allclose(read_1V, expected_1V, atol=1e-3)
    session.extend([3])  # what it reads later is its own
    assert target.start(prompt).length == 5 and draft.model.start(Prompt((), (4, 6))).length == 1
