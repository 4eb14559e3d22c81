"""alpha of many drafts at once: the target writes its sample once, and every draft is scored on it under every rule.

A draft costs one pass over the sample; no gamma is tried, since alpha does not depend on it (Corollary 3.6). Memory is
the models' weights and one chunk of distributions (`analysis.acceptance.agreement`), for a sample of any size.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import combinations, groupby
from pathlib import Path
from typing import cast

import numpy as np
import torch

from specbench.algorithm.acceptance.base import Children
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.analysis.acceptance.agreement import Agreement, agreements
from specbench.analysis.acceptance.ranks import MOST_RANKS, RankReader, Ranks, acceptance_vector
from specbench.analysis.costs.core_time import core_times, waited_share
from specbench.analysis.costs.disturbance import of_steps
from specbench.analysis.forecast.grown_trees import counts_of_children
from specbench.analysis.forecast.hindsight import Option, least_cost
from specbench.analysis.forecast.positions import POSITIONS, accepted_by_position
from specbench.choose.candidates import LoadedCandidate, Scored
from specbench.choose.kept import KeptAgreements, kept_file
from specbench.choose.sample import target_sample
from specbench.choose.skips import with_skips
from specbench.config.model import name_of, own_weights
from specbench.config.rules import AcceptKeys, rule_of
from specbench.config.schema import task_label
from specbench.config.verbs import ChooseConfig, as_run, require_distinct
from specbench.environment import environment, hardware
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.experiment.build import build_each, resolve
from specbench.experiment.gamma import plan_of
from specbench.experiment.identity import identify
from specbench.experiment.measure import generator_for
from specbench.experiment.runner import Progress, translated_errors
from specbench.files import json_digest
from specbench.loading import vocabulary_facts
from specbench.loading.model_loader import locked_device
from specbench.methods.from_text import likeliest_tokens
from specbench.methods.model.config import ModelDraftConfig
from specbench.methods.model.draft import TextDraft
from specbench.methods.router.config import RouterConfig
from specbench.records.alpha_document import AlphaDocument, AlphaRow, RouterBound, ScoredSetting, ScoredText
from specbench.records.documents import write_document
from specbench.records.schema import SCHEMA_VERSION
from specbench.stats import Interval, over_rows, ratio
from specbench.tasks import Task
from specbench.text.tokenizer import load_tokenizer

GPU_TOKENS = 10_000  # the paper's (Table 3)
CPU_TOKENS = 2_000
FEWEST_ROWS = 50
BOUND_PLACES = 200  # about so many tokens at which rules on several children are compared with the bound on all rules
TOP_TOKENS = (500, 1000, 2000, 4000, 8000, 16000, 32000)  # of draft.top_tokens, whose bound on alpha is shown
SHOWN = 3  # drafts whose alpha is shown while they are scored
ROUTERS = 3  # pairs of drafts whose tokens a pass are bounded, and shown
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
    return resolve_all(_with_parts(configs), lambda line: None)


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


def score(
    candidates: Sequence[LoadedCandidate],
    leniences: Sequence[float],
    progress: Progress,
    ahead: int = 1,
    bounded: bool = False,
    resumes: bool = False,
) -> Scored:
    """Score the drafts of one sampling setting along completions of the target, written now or read from the cache.

    Drafts whose acceptance falls with the position are scored `ahead` tokens of a proposal (`POSITIONS` at least if
    `bounded`), drafts that grow trees by the ranks of their children, compared with the bound on all rules if
    `bounded`. A draft that grows is scored on each completion before the completion is added to it. `resumes`: each
    completion's agreements are on the disk when it is scored, until `Scored.forget`.
    """
    config, parts = candidates[0].config, candidates[0].parts
    sampling = parts.spec.sampling
    drafts = {one.draft: one.parts.draft for one in candidates}  # each once, however many rules check it
    rules = {one.rule: one.lossy for one in candidates if one.lossy is not None}
    rules |= {f"{one:g}": lenient(one, sampling) for one in leniences}
    progress.say(f"the target writes its sample (T={sampling.temperature:g})")
    sample = target_sample(config, parts, budget(config), progress)
    progress.say(f"scoring {', '.join(drafts)}")
    grows = {
        one.draft: one.config.draft.scores_children and not isinstance(one.parts.draft, TextDraft) for one in candidates
    }
    k_seq = {draft: _children_under_k_seq([one for one in candidates if one.draft == draft]) for draft in drafts}
    most = max(MOST_RANKS, *(max(one.config.tree.widths or [1]) for one in candidates))
    levels = POSITIONS if bounded else max(one.config.tree.levels for one in candidates)
    ahead = max(ahead, levels)
    spacing = -(-sum(map(len, sample.texts)) // BOUND_PLACES) if bounded else 0
    in_common = [sample.file.name, sample.texts, sorted(rules), ahead, levels, most, spacing]
    files = {
        draft: kept_file(config.results, draft, _key(draft, candidates, in_common, k_seq[draft]))
        for draft in (drafts if resumes else ())
    }
    kept = KeptAgreements(drafts, files)
    scored = Scored(list(candidates), sample, {}, 0.0, kept)
    if before := sum(not kept.without(index) for index in range(len(sample.texts))):
        progress.note(f"T={sampling.temperature:g}: {before} of {len(sample.texts)} completions were scored before")
    for index, text in enumerate(sample.texts):
        if missing := kept.without(index):
            began = parts.target.now()
            scored.stores.before(index)
            generators = {draft: generator_for(config.seed, index, "ranks", parts.device) for draft in missing}
            readers = [
                RankReader(sampling, generators[draft], spacing, most, levels, k_seq[draft]) if grows[draft] else None
                for draft in missing
            ]
            scores = agreements(
                parts.target, [drafts[draft] for draft in missing], parts.prompts[index], text, sampling, rules, ahead,
                readers,
            )  # fmt: skip
            kept.add(index, dict(zip(missing, scores, strict=True)), parts.target.now() - began)
        progress.advance(index + 1, len(sample.texts), so_far(kept, index + 1))
    scored.stores.before(0)
    found = {draft: [kept.found[draft][index] for index in range(len(sample.texts))] for draft in drafts}
    return replace(scored, agreement=found, seconds=kept.seconds)


def so_far(kept: KeptAgreements, texts: int) -> str:
    """Alpha of the best drafts along the first `texts` completions, in a few words."""
    alphas = {}
    for draft, found in kept.found.items():
        betas = [beta for index in range(texts) for beta in found[index].beta]
        alphas[draft] = sum(betas) / max(1, len(betas))
    best = sorted(alphas, key=lambda draft: -alphas[draft])[:SHOWN]
    return "α so far: " + ", ".join(f"{draft} {alphas[draft]:.3f}" for draft in best)


def _key(draft: str, candidates: Sequence[LoadedCandidate], in_common: Sequence[object], k_seq: set[int]) -> str:
    """A digest of all that the agreements of `draft` depend on."""
    own = [one for one in candidates if one.draft == draft]
    ids = sorted({identify(as_run(replace(one.config, accept=AcceptKeys()), gamma=1)) for one in own})
    return json_digest([ids, own[0].parts.engine, sorted(k_seq), *in_common], 12)


def _children_under_k_seq(candidates: Sequence[LoadedCandidate]) -> set[int]:
    """How many children the nodes of their trees have that K-SEQ verifies."""
    return {
        count
        for one in candidates
        if one.tree is not None and one.parts.spec.verification.traits.k_sequential
        for count in counts_of_children(plan_of(one.config, None))
    }


def _unprobed(config: ChooseConfig) -> ChooseConfig:
    return replace(config, tree=replace(config.tree, acceptance=[1.0])) if config.tree.is_probed else config


def candidate_name(config: ChooseConfig) -> str:
    """The draft, and its tree where it drafts one."""
    return config.draft.label() + ("" if config.tree.shape == "none" else f", {config.tree.label()}")


def budget(config: ChooseConfig) -> int:
    """Tokens of the target's own completion to score."""
    if config.tokens is not None:
        return config.tokens
    return CPU_TOKENS if torch.device(config.device).type == "cpu" else GPU_TOKENS


def measure_alpha(configs: Sequence[ChooseConfig], progress: Progress) -> tuple[Path, AlphaDocument]:
    """Score every draft of `configs`, which differ only in draft, rule and temperature, and write the record.

    Returns:
        The record's file, and the record.
    """
    rows, settings, finished = list[AlphaRow](), list[ScoredSetting](), list[Scored]()
    surroundings = environment()
    first = resolve(configs[0])
    with locked_device(first.device, progress.say) as device, translated_errors(first):
        configs = with_skips([replace(config, device=str(device)) for config in _with_parts(configs)], progress)
        candidates = sorted(prepare(configs, progress), key=lambda candidate: sample_of(candidate.config))
        for _, group in groupby(candidates, key=lambda candidate: sample_of(candidate.config)):
            began, before = time.perf_counter(), core_times()
            scored = score(list(group), configs[0].leniences, progress, bounded=True, resumes=True)
            of_setting = alpha_rows(scored, hardware(surroundings, scored.config.device))
            rows += of_setting
            finished.append(scored)
            if len(rows) < len(candidates):  # the table of all follows the last
                progress.note(done(of_setting))
            signs = of_steps(waited_share(before), []).all_signs
            settings.append(_setting_record(scored, time.perf_counter() - began, signs))
    ids = [identify(as_run(candidate.config)) for candidate in candidates]
    found = candidates[0].config
    digest = json_digest([ids, found.tokens, found.leniences])
    alpha_id = file_name(f"{name_of(found.target)}-{found.task.name}", f"-{digest}")
    record: AlphaDocument = {
        "schema_version": SCHEMA_VERSION,
        "alpha_id": alpha_id,
        "rows": rows,
        "settings": settings,
        "configs": [asdict(candidate.config) for candidate in candidates],
        "environment": surroundings,
    }
    file = write_document(alpha_folder(found.results) / f"{alpha_id}.json", record)
    for scored in finished:
        scored.forget()
    return file, record


def done(rows: Sequence[AlphaRow]) -> str:
    """Alpha of each draft and rule of one sample, in a line."""
    names = (one["draft"] + ("" if one["accept"] == "exact" else f" {one['accept']}") for one in rows)
    alphas = (f"{name} {one.get('alpha_rule', one['alpha']):.3f}" for name, one in zip(names, rows, strict=True))
    return f"T={rows[0]['temperature']:g}: α " + ", ".join(alphas)


def _with_parts(configs: Sequence[ChooseConfig]) -> list[ChooseConfig]:
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


def of_routers(scored: Scored) -> list[RouterBound]:
    """The bounds on a router of each pair of drafts, highest alpha first; of the first few the tokens a pass, too."""
    routed = {one.draft for one in scored.candidates if isinstance(one.config.draft, RouterConfig)}
    drafts = [name for name in scored.agreement if name not in routed]
    found = list[RouterBound]()
    for pair in combinations(drafts, 2):
        both = list(zip(*(scored.agreement[name] for name in pair), strict=True))
        betas = [max(at) for texts in both for at in zip(*(text.beta for text in texts), strict=True)]
        found.append({"drafts": list(pair), "alpha": sum(betas) / len(betas)})
    found.sort(key=lambda one: -one["alpha"])
    costs, most = np.ones((2, POSITIONS + 1)), scored.config.max_new_tokens
    for one in found[:ROUTERS]:
        texts = [scored.agreement[name] for name in one["drafts"]]
        options = [[Option(text, POSITIONS, costs) for text in both] for both in zip(*texts, strict=True)]
        tokens = sum(len(text.beta) for text in texts[0])
        one["gamma"], one["tokens_per_pass"] = POSITIONS, tokens / sum(least_cost(pair, most) for pair in options)
        one["alone"] = [tokens / sum(least_cost([pair[which]], most) for pair in options) for which in (0, 1)]
    return found


def alpha_folder(results: str | Path) -> Path:
    """The folder of the records of `specbench alpha`; each has its table in `rows`."""
    return Path(results) / "alpha"


def alpha_rows(scored: Scored, where: str) -> list[AlphaRow]:
    """One row for each draft and rule, with intervals over prompts.

    A row has alpha under Algorithm 1, strict match and a greedy draft; alpha(l) for each lenience; the acceptance
    probability of the row's own rule if it is another; and for a lossy rule its total variation from the target, mean
    over tokens.
    """
    rows = list[AlphaRow]()
    for candidate in scored.candidates:
        config, texts = candidate.config, scored.agreement[candidate.draft]
        alpha = _alpha(config, texts)
        row: AlphaRow = {
            "target": name_of(config.target), "draft": candidate.draft,
            "task": task_label(config.task.name, config.task.path), "own_weights": own_weights(asdict(config)),
            "temperature": config.sampling.temperature, "top_k": config.sampling.top_k, "top_p": config.sampling.top_p,
            "accept": candidate.rule, "lossy": candidate.lossy is not None,
            "prompts": len(texts), "tokens": sum(len(a.beta) for a in texts),
            "alpha": alpha.value, "alpha_low": alpha.low, "alpha_high": alpha.high,
            "lenient": {
                name: _mean(config, [(sum(a.under[name]), len(a.beta)) for a in texts])
                for name in (f"{one:g}" for one in config.leniences) if name in texts[0].under
            },
            "dtype": config.dtype, "device": config.device, "hardware": where, "simulated": False,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        if (processing := config.sampling.processing()) is not None:
            row["processing"] = processing
        if config.context_tokens is not None:
            row["context"] = config.context_tokens
        for rule in ("match", "onehot"):
            row |= _bounded(f"alpha_{rule}", _alpha(config, [text.at(rule) for text in texts]))
        if candidate.own_alpha is not None:
            row |= _bounded("alpha_rule", _alpha(config, [candidate.under_rule(text) for text in texts]))
        if candidate.lossy is not None:
            varied = [a.total_variation[candidate.rule] for a in texts]
            row["total_variation"] = sum(map(sum, varied)) / row["tokens"]
        if texts[0].matched:
            row |= cast(AlphaRow, vocabulary_facts(candidate.parts.draft_vocabulary))
            row["shared_mass"] = sum(sum(a.shared) for a in texts) / row["tokens"]
            row |= _bounded("alpha_matched", _mean(config, [(sum(a.matched), len(a.beta)) for a in texts]))
        row["silent"] = _mean(config, [(sum(text.silent), len(text.silent)) for text in texts]).value
        row["alpha_by_position"] = _by_position(config, texts)
        ranks = [text.ranks for text in texts if text.ranks is not None]
        if ranks and ranks[0].ahead:
            row["acceptance_by_level"] = {
                name: cast(list[list[float]], acceptance_vector(ranks, cast(Children, name)))
                for name in ranks[0].accepted
            }
        if ranks:
            row["acceptance_by_rank"] = _each(config, [one.accepted for one in ranks], [len(a.beta) for a in texts])
        if ranks and ranks[0].of_children:
            counts = [one.places for one in ranks]
            row["acceptance_of_children"] = _each(config, [one.of_children for one in ranks], counts)
        rows.append(row)
    return rows


def _bounded(name: str, one: Interval) -> AlphaRow:
    """The three keys of a row that hold an interval."""
    return cast(AlphaRow, {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high})


def _by_position(config: ChooseConfig, texts: Sequence[Agreement]) -> list[Interval]:
    """The acceptance at each position that any proposal reaches, with its interval."""
    counts = np.array([accepted_by_position(text) for text in texts])  # [completions, positions, 2]
    reached = [place for place in range(counts.shape[1]) if counts[:, place, 0].any()]
    return [_mean(config, [(hit, seen) for seen, hit in counts[:, place]]) for place in reached]


def _each(
    config: ChooseConfig, texts: Sequence[dict[str, list[float]]], counts: Sequence[int]
) -> dict[str, list[Interval]]:
    """The mean of each sum over `texts`, with its interval."""
    return {
        name: [
            _mean(config, [(total, count) for total, count in zip(column, counts, strict=True)])
            for column in zip(*(text[name] for text in texts), strict=True)
        ]
        for name in texts[0]
    }


def _alpha(config: ChooseConfig, texts: Sequence[Agreement]) -> Interval:
    return _mean(config, [(sum(a.beta), len(a.beta)) for a in texts])


def _mean(config: ChooseConfig, columns: Sequence[tuple[float, int]]) -> Interval:
    return over_rows(columns, ratio, scale="probability")


def of_top_tokens(scored: Scored) -> dict[str, float]:
    """By N: the share of the sample's tokens that are among the N likeliest of the training text.

    What a draft with `draft.top_tokens=N` never proposes is never accepted, so that its alpha is at most this. Empty
    where no draft is a model, or the training text is not on this machine.
    """
    config = scored.config
    are_models = any(isinstance(one.config.draft, ModelDraftConfig) for one in scored.candidates)
    if not are_models or (config.task.shipped is None and config.task.train_path is None):
        return {}
    vocabulary = load_tokenizer(config.target, "target")
    tokens = [token for text in scored.sample.texts for token in text]
    found = dict[str, float]()
    with contextlib.suppress(UserError):  # a task without training text
        for most in (one for one in TOP_TOKENS if one < vocabulary.size):
            kept = set(likeliest_tokens(Task(config.task), vocabulary, most, lambda line: None))
            found[str(most)] = sum(token in kept for token in tokens) / max(1, len(tokens))
    return found


def _setting_record(scored: Scored, wall_s: float, signs: str | None) -> ScoredSetting:
    """The sample and the agreements from which the rows are computed, with their times."""
    return {
        "of_top_tokens": of_top_tokens(scored),
        "of_routers": of_routers(scored),
        "temperature": scored.config.sampling.temperature,
        "sample": scored.sample.file.name,
        "sample_s": scored.sample.seconds,
        "texts_reused": scored.sample.reused,
        "score_s": scored.seconds,
        "wall_s": wall_s,
        "disturbed_by": signs,
        "drafts": {name: [_agreement_record(a) for a in texts] for name, texts in scored.agreement.items()},
    }


def _agreement_record(agreement: Agreement) -> ScoredText:
    """An agreement as it is recorded: of the ranks the sums, and not each token's."""
    ranks = agreement.ranks
    sums = ranks and Ranks(ranks.accepted, {}, ranks.of_children, ranks.places)
    return cast(ScoredText, asdict(replace(agreement, ranks=sums)))


def sample_of(config: ChooseConfig) -> tuple[float, int]:
    """What tells the samples of a comparison apart: temperature and context."""
    return config.sampling.temperature, config.context_tokens or 0
