"""Greedy identity of trees in fp32 on the models that ship: both families, every shape, every engine that runs on a CPU
(captured graphs by their twin), 180 prompts each, 1,080 in all. Each prompt has one of the drafts.
"""

from collections import Counter
from itertools import cycle
from typing import Any

import hydra
import pytest
import torch
from hydra.core.config_store import ConfigStore

from specbench.algorithm.draft import Draft
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.proof.departures import difference
from specbench.compose.to_schema import to_schema
from specbench.compose.unnamed import conf_of_hydra
from specbench.config.schema import RunConfig
from specbench.experiment.run_parts import Parts, build_each, resolve
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.several.draft import MergedDraft
from specbench.sampling import Sampling
from specbench.theory.best_tree import best_shape
from specbench.theory.trees import ByConfidence, Plan, TreeShape
from tests.support.captured import graphs
from tests.support.decode import autoregressive, speculative

pytestmark = pytest.mark.slow

PROMPTS, TOKENS = 180, 24
GREEDY, CPU = Sampling(0.0), torch.device("cpu")
PLANS: dict[str, Plan] = {
    "widths": TreeShape.of_widths([3, 2, 1, 1]),
    "sequoia": best_shape((0.6, 0.2, 0.1), 16, 5),
    "dynamic": ByConfidence(size=16, depth=4, top=4),
}
FAMILIES = {
    "t5-mini": ["task=ende-mini", "task.shipped=ende-mini-train.jsonl.gz", "draft=t5-nano"],
    "gpt-mini": ["task=lm-mini", "task.shipped=sum-mini-train.jsonl.gz", "draft=gpt-nano"],
}
OTHERS = {
    "t5-mini": [
        "lookup", "blockwise", "medusa", "hydra", "eagle", "eagle3", "early-exit", "cascade",
        "merged draft@draft.third=lookup",
    ],
    "gpt-mini": [
        "lookup", "blockwise", "medusa", "hydra", "eagle", "eagle3", "early-exit", "cascade draft@draft.via=gpt-nano",
        "merged draft@draft.first=gpt-nano",
    ],
}  # fmt: skip


def parts_of(target: str, engine: str) -> list[Parts]:
    """The parts of a run with each draft; the target is loaded once."""
    drafts = ["", *(f"draft={draft}" for draft in OTHERS[target])]
    ConfigStore.instance().store(name="run_schema", node=RunConfig)
    with conf_of_hydra():
        configs = [
            hydra.compose("run", overrides=[
                f"target={target}", *FAMILIES[target], "dtype=float32", f"engine={engine}", f"limit={PROMPTS}",
                f"max_new_tokens={TOKENS}", "tree=widths", "threads=1", *draft.split(),
            ])
            for draft in drafts
        ]  # fmt: skip
    return build_each([resolve(to_schema(config, RunConfig)) for config in configs], lambda _: None)


def captured(parts: Parts) -> tuple[Any, list[Draft]]:
    """The same networks as captured graphs."""
    assert isinstance(parts.draft, ModelDraft)
    size, ends = parts.target.vocabulary_size, parts.target.eos_ids
    target, small = (graphs(model.network, size, ends) for model in (parts.target, parts.draft.model))  # type: ignore[attr-defined]
    model, lookup = ModelDraft(small, size), LookupDraft(size, CPU, 3)
    return target, [model, lookup, MergedDraft([model, lookup])]


@pytest.mark.parametrize("engine", ["eager", "static", "auto", "cudagraph"])
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_texts_are_the_targets_own(name: str, engine: str) -> None:
    every = parts_of(name, "eager" if engine == "cudagraph" else engine)
    target: Any
    target, drafts = captured(every[0]) if engine == "cudagraph" else (every[0].target, [one.draft for one in every])
    ends, counts = target.eos_ids, Counter[str]()
    for prompt, draft in zip(every[0].prompts, cycle(drafts)):
        options: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": TOKENS, "generator": torch.Generator()}
        own = autoregressive(target, prompt, **options).tokens
        for plan in PLANS.values():
            trace = speculative(target, TreeDraft(draft, plan, "distinct", ends), prompt, gamma=plan.depth, **options)
            found = difference(target, prompt, own, trace.tokens, TOKENS)
            counts["same" if found is None else "rounding" if found.is_rounding else "other"] += 1
            counts["accepted"] += sum(a_pass.accepted for a_pass in trace.passes)
    print(f"\n{name}, {engine}: {len(every[0].prompts)} prompts, {dict(counts)}")
    assert counts["same"] + counts["rounding"] == 3 * PROMPTS and counts["rounding"] <= 3
    assert counts["accepted"] > PROMPTS
