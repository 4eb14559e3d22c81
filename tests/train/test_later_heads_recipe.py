"""Toy Medusa and Hydra heads: which state and which tokens each head reads and which token it is about, by plain loops;
what their recipes write, that they learn and resume."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from specbench.errors import UserError
from specbench.methods.hydra.network import HydraHeads
from specbench.methods.medusa.draft import MedusaHeads
from specbench.train.recipe import make_learner, train
from specbench.train.recipe_schema import DistillPlan, HeadsPlan, Recipe
from specbench.train.trainers import SizedTrainer
from tests.support.networks import network
from tests.support.small_recipes import losses
from tests.support.toy_batch import SOURCE, TEXT, batch, every_place

PLANS = {
    "medusa": HeadsPlan(number=3, layers=2, rank=4),
    "hydra": HeadsPlan(number=3, narrow=8, rank=4),
}
CLASSES = {"medusa": MedusaHeads, "hydra": HydraHeads}


def random_learner(kind: str, family: str) -> Any:
    torch.manual_seed(3)
    target = network(family, 4)
    learner = make_learner(Recipe(kind=kind, heads=PLANS[kind]), target, Dataset.from_dict({}))
    for weight in learner.trained.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return learner.eval()


def plain_logits(learner: Any, family: str, head: int, text: list[int], place: int) -> torch.Tensor:
    """The logits [V] of `head` for the token at `place` of `text`, from the target's state `head` tokens before that of
    its own head, which for T5 stands at the start token before the first token."""
    target, heads, between = learner.target, learner.trained, text[place - head : place]
    if family == "gpt2":
        states = target(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
        state = states[place - 1 - head]
    else:
        read = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": torch.tensor([[0, *text]])}
        states = target(**read, output_hidden_states=True).decoder_hidden_states[-1][0]
        state = states[place - head] * states.shape[-1] ** -0.5  # T5 scales it before a tied head
    size = state.pow(2).mean().sqrt()
    units = state / size
    if isinstance(heads, MedusaHeads):
        for layer in range(heads.layers):
            units = units + F.silu(units @ heads.weight_LKDD[layer, head - 1] + heads.bias_LK1D[layer, head - 1, 0])
    else:
        table = target.get_input_embeddings().weight
        rows = [table[token] / table[token].pow(2).mean().sqrt() @ heads.narrow_DM for token in between]
        seen = torch.cat(rows)
        gate = units @ heads.weight_KDD[head - 1] + seen @ heads.gates[head - 1] + heads.bias_KD[head - 1]
        units = units + seen @ heads.shifts[head - 1] + F.silu(gate)
    own = units @ heads.output.down_KDR[head - 1] @ heads.output.up_KRV[head - 1]
    return target.get_output_embeddings()(size * units) + own


@torch.no_grad()
@pytest.mark.parametrize("family", ["t5", "gpt2"])
@pytest.mark.parametrize("kind", PLANS)
def test_teacher_forced_predictions_are_those_of_a_plain_loop(kind: str, family: str) -> None:
    """And with the predictions of a head moved by one token they are not."""
    learner = random_learner(kind, family)
    given = {name: ids[:1] for name, ids in batch(family).items() if name != "labels"}
    for head in (1, 2, 3):
        ours = learner.as_draft(head)(every_place(given), **given)[0]
        first = 1 if family == "gpt2" else 0  # row of the first token's logits, counted in tokens
        for place in range(head + first, len(TEXT)):
            row = place - first
            plain = plain_logits(learner, family, head, TEXT, place)
            assert torch.allclose(ours[row], plain, atol=2e-4)
            assert not torch.allclose(ours[row - 1], plain, atol=2e-2)


@torch.no_grad()
@pytest.mark.parametrize("family", ["t5", "gpt2"])
@pytest.mark.parametrize("kind", PLANS)
def test_the_loss_is_that_of_a_plain_loop(kind: str, family: str) -> None:
    """Forward KL of each head at the tokens that count, a mean for each head, weighted by .8 to the head's number."""
    learner = random_learner(kind, family)
    given = batch(family)
    p = learner.target(**{name: ids for name, ids in given.items() if name != "labels"}).logits
    expected = 0.0
    for head in (1, 2, 3):
        terms = []
        for text, row_p in zip(given["labels"].tolist(), p, strict=True):
            first = 1 if family == "gpt2" else 0
            for place in range(head + first, sum(token >= 0 for token in text)):
                log_p = row_p[place - first].log_softmax(-1)
                log_q = plain_logits(learner, family, head, [token for token in text if token >= 0], place).log_softmax(
                    -1
                )
                terms.append(float((log_p.exp() * (log_p - log_q)).sum()))
        expected += 0.8**head * sum(terms) / len(terms)
    assert float(learner(**given)["loss"]) == pytest.approx(expected, rel=1e-3)


def heads_recipe(target: Recipe, folder: Path, kind: str, steps: int, **keys: Any) -> Recipe:
    return replace(
        target,
        name=kind,
        output=f"{target.output}-{kind}",
        kind=kind,
        heads=PLANS[kind],
        distill=DistillPlan(target=str(folder), greedy=1.0, sampled=0.0, references=True, max_new_tokens=8),
        optim=replace(target.optim, max_steps=steps, lr=0.05, warmup_steps=0),
        data=replace(target.data, eval_path=[], **keys),
        log_steps=1,
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", PLANS)
def test_heads_learn_resume_and_are_kept_with_their_target(
    kind: str, t5_recipe: Recipe, pairs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that is killed and resumed ends at the weights of one that was not."""
    target = train(t5_recipe)
    recipe = heads_recipe(t5_recipe, target, kind, 20, test={"toy": pairs}, test_rows=6)
    whole = train(recipe)
    seen = losses(whole)
    assert sum(seen[-5:]) < 0.9 * sum(seen[:5])
    card = (whole / "README.md").read_text()
    assert "α of head 1, toy, T=0" in card and "α of head 3, toy, T=1" in card and "α of head 4" not in card
    CLASSES[kind].load(whole, AutoModelForSeq2SeqLM.from_pretrained(target), "draft")

    class Killed(Exception):
        pass

    step: Callable[..., torch.Tensor] = SizedTrainer.training_step

    def killed(self: Any, *args: Any, **given: Any) -> torch.Tensor:
        if self.state.global_step == 11:
            raise Killed
        return step(self, *args, **given)

    cut = replace(recipe, output=recipe.output + "-cut")
    with monkeypatch.context() as patch:
        patch.setattr(SizedTrainer, "training_step", killed)
        with pytest.raises(Killed):
            train(cut)
    resumed = load_file(train(cut) / "heads.safetensors")
    for name, weight in load_file(whole / "heads.safetensors").items():
        assert torch.equal(resumed[name], weight), name


@pytest.mark.parametrize("kind", PLANS)
def test_heads_of_a_decoder_only_target(kind: str, gpt_recipe: Recipe) -> None:
    target = train(gpt_recipe)
    folder = train(heads_recipe(gpt_recipe, target, kind, 3, hold_out=24))
    CLASSES[kind].load(folder, AutoModelForCausalLM.from_pretrained(target), "draft")
    assert "α of head 3, held-out rows, T=0" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kind": "hydro"}, "kind is 'hydro': choose one of model, blockwise, medusa, hydra"),
        ({"kind": "medusa", "number": 0}, "heads.number is 0: it must be from 1 to 64"),
        ({"kind": "hydra", "decay": 0.0}, "heads.decay is 0.0: it must be above 0"),
        ({"kind": "hydra"}, "distill.target is not set: kind=hydra is trained on a target"),
    ],
)
def test_what_a_recipe_of_heads_refuses(keys: dict[str, Any], said: str, t5_recipe: Recipe) -> None:
    with pytest.raises(UserError, match=said):
        train(replace(t5_recipe, kind=keys.pop("kind"), heads=HeadsPlan(**keys)))
