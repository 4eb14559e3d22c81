"""The sublayers that a layer-skip draft should skip: a greedy search along a few of the target's own completions.

Zhang et al. (2024, "Draft & Verify", section 3.2) search by Bayesian optimisation over timed runs. Here the value of a
set is its speedup by Theorem 3.8 at its best gamma, without timing: alpha from reading the completions in the remaining
sublayers, c as their share of the target's operations. Beginning with the whole target, each step tries every remaining
sublayer and skips the one whose set has the highest value, until the budget is spent. The best set of all steps is
returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specbench.choose.target_sample import target_sample
from specbench.config.verbs import ChooseConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import decoder_layers, part_without, sublayers
from specbench.engine.session import Prompt
from specbench.experiment.run_parts import build_each, resolve
from specbench.experiment.runner import Progress
from specbench.files import json_digest
from specbench.methods.target_layers.config import LayerSkipConfig
from specbench.recorded import to_json
from specbench.records.documents import saved_document, write_document
from specbench.sampling import Sampling, standardise
from specbench.theory import optimal_gamma, walltime_improvement

MOST_GAMMA = 10


@dataclass(frozen=True)
class SkipSet:
    """Sublayers to skip, and their value along the completions of the search."""

    names: list[str]
    alpha: float
    c: float  # the share of the target's operations that the rest takes

    @property
    def gamma(self) -> int:
        return optimal_gamma(self.alpha, self.c, MOST_GAMMA)

    @property
    def value(self) -> float:
        """Theorem 3.8's speedup at the best gamma."""
        return walltime_improvement(self.alpha, self.gamma, self.c)


@dataclass(frozen=True)
class Search:
    """The best set, and the effort of the search; as its file holds it."""

    best: SkipSet
    tried: int
    tokens: int  # of the completions


class Texts:
    """Completions of the target, and its distributions along them."""

    def __init__(self, target: EagerModel, texts: Sequence[tuple[Prompt, Sequence[int]]], sampling: Sampling) -> None:
        self.target, self.sampling, self.read = target, sampling, list[tuple[list[int], Tensor]]()
        self._sessions = []
        for prompt, text in texts:
            tokens = [*prompt.prefix, *text][:-1]
            session = target.start(prompt)
            tokens = tokens[session.length :]
            self.read.append((tokens, self._rows(session.extend(tokens))))
            session.rollback(session.length - len(tokens))
            self._sessions.append(session)
        self.tokens = sum(len(rows_LV) for _, rows_LV in self.read)

    def value(self, names: Sequence[str]) -> SkipSet:
        """The alpha and cost of the target without these sublayers. Raises ValueError if they cannot be skipped."""
        network = self.target.network
        part = part_without(decoder_layers(network), names, sublayers(network))
        agreed = 0.0
        for session, (tokens, p_LV) in zip(self._sessions, self.read, strict=True):
            q_LV = self._rows(session.shallow(*part).extend(tokens))
            agreed += float(p_LV.minimum(q_LV).sum())
            session.rollback(session.length)
        c = self.target.shallow(*part).operations / self.target.operations
        return SkipSet(list(names), agreed / self.tokens, c)

    def _rows(self, logits_LV: Tensor) -> Tensor:
        return standardise(logits_LV, self.sampling, self.target.vocabulary_size)


def search(texts: Texts, budget: int) -> Search:
    """The best set of a greedy search that values `budget` sets at most."""
    network = texts.target.network
    left = [f"{kind}{layer}" for layer in range(decoder_layers(network)) for kind in sublayers(network)]
    left.remove("attn0")  # its cache counts the tokens
    chosen: list[str] = []
    best: SkipSet | None = None
    tried = 0
    while left and tried < budget:
        step = [texts.value([*chosen, name]) for name in left[: budget - tried]]
        tried += len(step)
        taken = max(step, key=lambda one: one.value)
        chosen = taken.names
        left.remove(chosen[-1])
        if best is None or taken.value > best.value:
            best = taken
    assert best is not None
    return Search(best, tried, texts.tokens)


def with_skips(configs: Sequence[ChooseConfig], progress: Progress) -> list[ChooseConfig]:
    """`configs`, each draft.skip=[auto] replaced by the sublayers of a `search`; `progress` receives the result."""
    found = list[ChooseConfig]()
    for config in configs:
        draft = config.draft
        if isinstance(draft, LayerSkipConfig) and draft.searches:
            draft = replace(draft, skip=_searched(config, progress))
        found.append(replace(config, draft=draft))
    return found


def _searched(config: ChooseConfig, progress: Progress) -> list[str]:
    # The target alone: any draft that needs nothing of its own will do.
    plain = replace(resolve(config), draft=LayerSkipConfig(name="layer-skip", skip=["mlp0"]))
    (parts,) = build_each([replace(plain, limit=plain.limit or config.search_tokens)], progress.say)
    sampling = parts.spec.sampling
    progress.say(f"the target writes completions for the search (T={sampling.temperature:g})")
    sample = target_sample(plain, parts, config.search_tokens, progress)
    target = parts.models[0]
    key = json_digest([sample.file.stem, sample.texts, config.searches], 12)
    file = sample.file.with_name(f"{sample.file.stem}-skips-{key}.json")
    found: Search | None = None if config.force else saved_document(file, Search)
    if found is None:
        with torch.inference_mode():
            alone = EagerModel(target.network, target.vocabulary_size, target.eos_ids)
            texts = Texts(alone, list(zip(parts.prompts, sample.texts, strict=False)), sampling)
            progress.say(f"searching for sublayers to skip ({config.searches} sets at most)")
            found = search(texts, config.searches)
        write_document(file, to_json(found))
    best, names = found.best, ",".join(sorted(found.best.names))
    progress.note(
        f"draft.skip=[{names}]: the best of {found.tried} sets of a greedy search along {found.tokens} tokens of "
        f"{len(sample.texts)} prompts: α={best.alpha:.3f}, c={best.c:.2f} in operations, {best.value:.2f} times as "
        f"fast by Theorem 3.8 at γ={best.gamma}"
    )
    return sorted(best.names)
