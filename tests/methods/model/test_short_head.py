"""`draft.top_tokens`: a draft with the head of the likeliest tokens alone, in every engine; q is 0 elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.cli import main
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.engine.weights.short_head import shorten_head
from specbench.errors import UserError
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support.calls import called
from tests.support.networks import network

ENDS, KEPT = frozenset({1}), (1, 3, 4, 9, 20, 31)
SOURCE = (5, 9, 12, 30, 1)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
@pytest.mark.parametrize("engine", ["eager", "static", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_tokens_have_the_logits_of_the_whole_head(kind: str, engine: str, dtype: torch.dtype) -> None:
    prompt = Prompt(SOURCE, (0,)) if kind == "t5" else Prompt((), SOURCE)
    whole = with_engine("eager", network(kind, seed=5).to(dtype), 40, ENDS).start(prompt)
    short = network(kind, seed=5).to(dtype)
    shorten_head(short, KEPT, "draft")
    model = with_engine(engine, short, 40, ENDS)
    session, others = model.start(prompt), [token for token in range(40) if token not in KEPT]
    for tokens in ([4], [20, 9, 3]):
        found, all_LV = session.extend(tokens).float(), whole.extend(tokens).float()
        assert found[:, others].isneginf().all()
        near = 1e-4 if dtype == torch.float32 else 0.05 * float(all_LV.abs().max())
        assert torch.allclose(found[:, KEPT], all_LV[:, KEPT], atol=near)


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_kept_tokens_are_drafted(temperature: float) -> None:
    short = network("t5", seed=5)
    shorten_head(short, KEPT, "draft")
    session = ModelDraft(with_engine("auto", short, 40, ENDS), 40).start(Prompt(SOURCE, (0,)), Sampling(temperature))
    for seed in range(6):
        proposal = session.propose([0], 4, torch.Generator().manual_seed(seed))
        assert set(proposal.tokens) <= set(KEPT)
        if proposal.q_GV is not None:
            assert proposal.q_GV[:, KEPT].sum(-1).allclose(torch.ones(len(proposal.tokens)))
        session.rollback(0)


def test_logits_that_are_changed_after_the_head_are_refused() -> None:
    made = network("llama", seed=5)
    made.config.logit_scale = 0.5
    with pytest.raises(UserError, match="draft.top_tokens: LlamaForCausalLM changes its logits after its head"):
        shorten_head(made, KEPT, "draft")


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_run_is_lossless_and_says_how_many(temperature: int, tmp_path: Path, capfd: Any) -> None:
    words = ["target=gpt-mini", "draft=gpt-nano", "draft.top_tokens=200", "gamma=3", "limit=4", "max_new_tokens=12",
             "dtype=float32", f"sampling.temperature={temperature}", f"results={tmp_path}"]  # fmt: skip
    code, out, _, record = called(["run", *words], tmp_path, capfd)
    assert code == 0 and record is not None
    assert "gpt-nano-top200" in record["run_id"] and "with draft gpt-nano-top200" in out
    assert record["summary"]["lossless"] if temperature == 0 else record["summary"]["proof_p"] > 1e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["draft.top_tokens=1"], "draft.top_tokens=1: .*at least 2"),
        (["draft.top_tokens=50", "draft.online=true"], "draft.top_tokens=50: not together with draft.online=true"),
        (["draft=unigram", "draft.top_tokens=50"], "draft.top_tokens"),
    ],
)
def test_slips(words: list[str], said: str, tmp_path: Path, capfd: Any) -> None:
    code, _, error, _ = called(["run", f"results={tmp_path}", *words], tmp_path, capfd)
    assert code == 2
    assert re.search(said, error)


@pytest.mark.full
def test_alpha_shows_its_bound_for_each_number_of_tokens(tmp_path: Path, capfd: Any) -> None:
    """A draft with these tokens alone cannot be accepted more often, and with all of them the bound is 1."""
    words = ["alpha", "target=gpt-mini", "draft=gpt-nano,bigram", "sampling.temperature=0", "tokens=60", "limit=6",
             "max_new_tokens=16", "dtype=float32", f"results={tmp_path}", "--verbose"]  # fmt: skip
    assert main(words) == 0
    assert "with draft.top_tokens=N α is at most" in capfd.readouterr().out
    (file,) = (tmp_path / "alpha").glob("*.json")
    bounds = list(json.loads(file.read_text())["settings"][0]["of_top_tokens"].values())
    assert bounds == sorted(bounds) and 0 < bounds[0] <= bounds[-1] <= 1
    few = ["alpha", "target=gpt-mini", "draft=gpt-nano", "draft.top_tokens=500", *words[3:]]
    assert main(few) == 0
    found = [json.loads(one.read_text())["rows"] for one in (tmp_path / "alpha").glob("*.json")]
    (short,) = (row for rows in found for row in rows if row["draft"] == "gpt-nano-top500")
    assert short["alpha"] <= bounds[0] + 1e-6
