"""Every architecture that people use today, through every engine: greedy identity in fp32, and chi-square at T = 1.

The networks have random weights (`architectures`). `docs/models.md` says which engine each gets; so does ENGINES here.
"""

import functools
from typing import Any

import architectures
import pytest
import torch
from architectures import ENCODER_DECODER, KINDS
from captured import graphs
from chi import ALARM, speculative_p_value
from decode import autoregressive, speculative
from toy import EOS, START, VOCABULARY

from specbench.config.paths import PACKAGE
from specbench.engine.choice import with_engine
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.kernels import is_available
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling

SIZE, ENDS = 40, frozenset({1})
SOURCES = [(5, 9, 12, 30, 1), (17, 3, 22, 1)]
# What engine=auto comes to on a CPU.
ENGINES = dict.fromkeys(KINDS, "native" if is_available() else "static") | {"gemma2": "eager"}
NO_TREES = ("bart", "marian")
CAPTURED = [kind for kind in KINDS if ENGINES[kind] != "eager"]
SLOW_CHI = [kind for kind in KINDS if kind not in ("gemma3_text", "bart")]


def prompts(kind: str) -> list[Prompt]:
    return [Prompt(one, (0,)) if kind in ENCODER_DECODER else Prompt((), one[:-1]) for one in SOURCES]


@functools.cache
def network(kind: str) -> Any:
    return architectures.network(kind, seed=4)


@functools.cache
def model(kind: str, engine: str) -> EagerModel:
    if engine == "graphs":  # CUDA graphs, played on a CPU
        return graphs(network(kind))
    return with_engine(engine, network(kind), SIZE, ENDS)


@functools.cache
def draft(kind: str) -> ModelDraft:
    return ModelDraft(EagerModel(architectures.network(kind, seed=2, layers=1), SIZE, ENDS), SIZE)


@functools.cache
def greedy(kind: str) -> list[list[int]]:
    """The texts of `transformers`' own greedy search."""
    found, own = [], network(kind)  # made before inference mode: in it, its weights would be inference tensors
    for prompt in prompts(kind):
        ids = prompt.source or prompt.prefix
        with torch.inference_mode():
            text = own.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=20,
                do_sample=False, suppress_tokens=list(range(SIZE, 64)), eos_token_id=1,
            )[0]  # fmt: skip
        found.append(text[1 if prompt.source else len(ids) :].tolist())
    return found


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_what_auto_comes_to(kind: str) -> None:
    found = model(kind, "auto")
    assert found.engine == ENGINES[kind]
    assert (found.fell_back is None) == (found.engine == "native")


@pytest.mark.covering(most=1)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        *((kind, "eager") for kind in KINDS),
        *((kind, engine) for kind in CAPTURED for engine in ("auto", "native", "graphs")),
    ],
)
def test_greedy_texts_are_those_of_transformers(kind: str, engine: str) -> None:
    target = model(kind, engine)
    settings: dict[str, Any] = {"sampling": Sampling(), "max_new_tokens": 20, "generator": torch.Generator()}
    assert len({token for text in greedy(kind) for token in text}) > 4  # a constant text would prove little
    for prompt, text in zip(prompts(kind), greedy(kind), strict=True):
        assert autoregressive(target, prompt, **settings).tokens == text
        for gamma in (1, 4, 7):
            for drafting in (draft(kind), ModelDraft(target, SIZE)):
                assert speculative(target, drafting, prompt, gamma=gamma, **settings).tokens == text


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPTURED)
def test_the_compiled_step(kind: str) -> None:
    for prompt, text in zip(prompts(kind), greedy(kind), strict=True):
        settings: dict[str, Any] = {"sampling": Sampling(), "max_new_tokens": 20, "generator": torch.Generator()}
        assert autoregressive(model(kind, "compile"), prompt, **settings).tokens == text


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW_CHI else []) for kind in KINDS]
)
def test_sampled_texts_are_drawn_from_the_target(kind: str) -> None:
    """False alarm: one seed in 10,000."""
    toys = [architectures.network(kind, seed, layers, VOCABULARY) for seed, layers in ((6, 2), (7, 1))]
    target, small = (with_engine("auto", toy, VOCABULARY, frozenset({EOS})) for toy in toys)
    prompt = Prompt((2, 1, 3), (START,)) if kind in ENCODER_DECODER else Prompt((), (START,))
    p, rejected = speculative_p_value(target, ModelDraft(small, VOCABULARY), prompt, 2, Sampling(1.0), 3, 600)
    assert p > ALARM and rejected > 50


@pytest.mark.parametrize("kind", KINDS)
def test_which_read_trees(kind: str) -> None:
    if kind in NO_TREES:
        with pytest.raises(UserError, match="takes no position ids"):
            model(kind, "auto").require_trees()
    else:
        model(kind, "auto").require_trees()


def test_the_docs_say_which_engine_each_gets() -> None:
    page = (PACKAGE.parent / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for kind in KINDS:
        (row,) = [line for line in rows if f"`{kind}`" in line]
        assert ENGINES[kind] in row and ("no trees" in row) == (kind in NO_TREES)
