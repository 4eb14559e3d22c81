"""Biases and penalties of a chain as one function of tensors: the rows of one by one processing, and captured."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import FunctionGraph
from specbench.engine.session import Prompt
from specbench.methods.lookup.draft import LookupDraft
from specbench.sampling import Sampling
from specbench.text.processed import CountedSession, ProcessedModel, ProcessedSession
from specbench.text.processors import Processors, Weighing
from tests.support.captured import Repeated
from tests.support.decode import speculative
from tests.support.networks import network
from tests.support.prompts import varied

SIZE, ENDS = 40, frozenset({1})
EACH: dict[str, dict[str, Any]] = {
    "repetition": {"repetition": 1.3},
    "presence": {"presence": 0.4, "frequency": 0.3},
    "bias": {"bias": ((3, 2.0), (7, -100.0))},
    "all": {"repetition": 0.8, "presence": 0.4, "frequency": 0.3, "bias": ((3, 2.0),), "suppressed": (5,), "ngram": 2},
}


def processed(of: dict[str, Any], counts: bool) -> ProcessedModel:
    own = CudaGraphModel(network("gpt2", seed=5, layers=1), SIZE, ENDS, capture=Repeated)
    made = ProcessedModel(own, Processors(SIZE, ENDS, **of))
    assert not made.counts_on_device  # on a CPU
    made.counts_on_device = counts
    return made


@pytest.mark.parametrize("name", EACH)
def test_rows_are_those_of_one_by_one_processing(name: str) -> None:
    """Through blocks, rollbacks near and far, trees, and tokens past the vocabulary; the first is the prompt's."""
    draw, prompt = random.Random(0), Prompt((), (3, 4, 3, 9))
    plain, counted = (processed(EACH[name], counts).start(prompt) for counts in (False, True))
    assert type(plain) is ProcessedSession and isinstance(counted, CountedSession)

    def read(tokens: list[int], parents: list[int] | None = None) -> None:
        want, found = plain.extend(tokens, parents), counted.extend(tokens, parents)
        assert torch.equal(want, found)

    read([9])
    for turn in range(25):
        tokens = [draw.randrange(SIZE + 2) for _ in range(draw.randrange(1, 6))]
        if turn % 5 == 4:
            read(tokens[:3], [-1, 0, -1][: len(tokens)])
            path = [0, 1][: draw.randrange(3)][: len(tokens)]
            for session in (plain, counted):
                session.select(path)
        else:
            read(tokens)
            length = max(len(prompt.prefix), plain.length - draw.choice([0, 1, 2, 3, 9]))
            for session in (plain, counted):
                session.rollback(length)


def test_the_counts_stay_on_the_device_between_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made from the tokens once, and then come from the pass before."""
    made = list[int]()
    own = CountedSession._marked
    monkeypatch.setattr(
        CountedSession, "_marked", lambda self, ids, before: (made.append(len(ids)), own(self, ids, before))[1]
    )
    session = processed(EACH["repetition"], True).start(Prompt((), (3, 4, 3, 9)))
    session.extend([9])
    assert made == [3, 1]  # the prompt but its last token
    for kept in (4, 2, 3):
        length = session.length
        made.clear()
        session.extend([5, 6, 7, 8])
        session.rollback(length + kept)
        assert made == [4]


@pytest.mark.full
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=20, top_p=0.9)])
@pytest.mark.parametrize("name", EACH)
def test_texts_are_the_same_and_penalties_are_a_graph(name: str, sampling: Sampling) -> None:
    texts = []
    for counts in (False, True):
        target = processed(EACH[name], counts)
        generator = torch.Generator().manual_seed(0)
        texts.append([
            speculative(
                target, LookupDraft(SIZE, target.device, 2), varied("gpt2", length), gamma=4, sampling=sampling,
                max_new_tokens=20, generator=generator,
            ).tokens
            for length in (3, 9, 5)
        ])  # fmt: skip
    assert texts[0] == texts[1]
    captured = [one for key, one in target.model._functions.items() if isinstance(key[0], Weighing)]  # type: ignore[attr-defined]
    assert any(isinstance(one, FunctionGraph) for one in captured)


def test_a_row_that_is_not_finite_remains_so() -> None:
    weighing = Weighing(4, 1.2, 0.5, 0.1)
    logits_LV: Tensor = torch.tensor([[torch.nan, 1.0, -torch.inf, 2.0]])
    rows_LV = weighing(logits_LV, torch.tensor([[1], [1]]), torch.zeros(2, 4), torch.zeros(4))[0]
    assert rows_LV.isnan().tolist() == [[True, False, False, False]] and rows_LV[0, 2] == -torch.inf
