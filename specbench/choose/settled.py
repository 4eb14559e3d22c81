"""The configs of candidates as they will be compared, and their models."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from specbench.choose.candidates import LoadedCandidate
from specbench.config.rules import rule_of
from specbench.config.verbs import ChooseConfig, require_distinct
from specbench.experiment.run_parts import build_each, resolve
from specbench.experiment.runner import Progress
from specbench.methods.router.config import RouterConfig

GPU_TOKENS = 10_000  # the paper's (Table 3)
CPU_TOKENS = 2_000
FEWEST_ROWS = 50
SHORT = 8  # tokens; completions of a whole task are longer on average


def resolve_all(configs: Sequence[ChooseConfig], note: Callable[[str], None]) -> list[ChooseConfig]:
    """`configs` with every key that is known before models are loaded; `note` receives what a user must know."""
    return [
        # Rows are not read beyond what the sample could need.
        replace(one, limit=max(FEWEST_ROWS, budget(one) // SHORT)) if one.limit is None else one
        for one in (resolve(config, note) for config in configs)
    ]


def settled(configs: Sequence[ChooseConfig]) -> list[ChooseConfig]:
    """`configs` as they will be compared, before anything is loaded."""
    return resolve_all(with_parts(configs), lambda line: None)


def prepare(configs: Sequence[ChooseConfig], progress: Progress) -> list[LoadedCandidate]:
    """The resolved configs and their parts; models are loaded here."""
    notes: list[str] = []
    resolved = resolve_all(configs, notes.append)
    for line in dict.fromkeys(notes):  # several drafts have one target
        progress.note(line)
    for _, group in groupby(sorted(resolved, key=sample_of), key=sample_of):
        require_distinct([(candidate_name(config), rule_of(config.accept).label()) for config in group])
    # Trees get their shape from the sample: no prompts are set aside for a probe.
    built = build_each([_unprobed(config) for config in resolved], progress.say, progress.note)
    return [LoadedCandidate(*pair) for pair in zip(resolved, built, strict=True)]


def _unprobed(config: ChooseConfig) -> ChooseConfig:
    return replace(config, tree=replace(config.tree, acceptance=[1.0])) if config.tree.is_probed else config


def candidate_name(config: ChooseConfig) -> str:
    """The draft, and its tree if it drafts one."""
    return config.draft.label() + ("" if config.tree.shape == "none" else f", {config.tree.label()}")


def budget(config: ChooseConfig) -> int:
    """Tokens of the target's own completion to score."""
    if config.tokens is not None:
        return config.tokens
    return CPU_TOKENS if torch.device(config.device).type == "cpu" else GPU_TOKENS


def with_parts(configs: Sequence[ChooseConfig]) -> list[ChooseConfig]:
    """`configs`, and after them the parts of routers, for the bound on these; a draft once a rule and temperature."""
    parts = [
        replace(config, draft=replace(part, cache_dir=part.cache_dir or config.draft.cache_dir))
        for config in configs
        if isinstance(config.draft, RouterConfig)
        for part in config.draft.drafts.values()
    ]

    def named(one: ChooseConfig) -> tuple[str, str, float, int]:
        return one.draft.label(), rule_of(one.accept).label(), *sample_of(one)

    there, new = set(map(named, configs)), {named(one): one for one in parts}
    return [*configs, *(one for name, one in new.items() if name not in there)]


def sample_of(config: ChooseConfig) -> tuple[float, int]:
    """The key of a sample in a comparison: temperature and context."""
    return config.sampling.temperature, config.context_tokens or 0
