"""alpha of many drafts at once: the target writes its sample once, and every draft is scored on it under every rule.

A draft costs one pass over the sample; no gamma is tried, since alpha does not depend on it (Corollary 3.6). Memory is
the models' weights and one chunk of distributions (`analysis.acceptance.agreement`), for a sample of any size.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import cast

from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.analysis.acceptance.agreement import Agreement, agreements
from specbench.analysis.acceptance.ranks import MOST_RANKS, RankReader, Ranks
from specbench.analysis.costs.core_time import core_times, waited_share
from specbench.analysis.costs.disturbance import of_steps
from specbench.analysis.distinct import numbers_of
from specbench.analysis.findings import findings
from specbench.analysis.findings.finding import Observed, Text
from specbench.analysis.findings.observed import has_network, reads_last, reads_states
from specbench.analysis.forecast.grown_trees import counts_of_children
from specbench.analysis.forecast.positions import POSITIONS
from specbench.choose.alpha_rows import alpha_rows, of_routers, of_top_tokens
from specbench.choose.candidates import LoadedCandidate, Scored
from specbench.choose.kept import KeptAgreements, kept_file
from specbench.choose.settled import budget, prepare, sample_of, with_parts
from specbench.choose.skips import with_skips
from specbench.choose.target_sample import target_sample
from specbench.config.model import name_of
from specbench.config.rules import AcceptKeys
from specbench.config.verbs import ChooseConfig, as_run
from specbench.environment import environment, hardware
from specbench.escaping import file_name
from specbench.experiment.drafting_plan import plan_of
from specbench.experiment.identity import identify
from specbench.experiment.measure import generator_for
from specbench.experiment.run_parts import resolve
from specbench.experiment.runner import Progress, translated_errors
from specbench.files import json_digest
from specbench.loading.model_loader import locked_device
from specbench.methods.model.draft import TextDraft
from specbench.records.alpha_document import AlphaDocument, AlphaRow, ScoredSetting, ScoredText
from specbench.records.documents import write_document
from specbench.records.draft_signs import Finding
from specbench.records.run_record import SCHEMA_VERSION

BOUND_PLACES = 200  # about so many tokens at which rules on several children are compared with the bound on all rules
SHOWN = 3  # drafts whose alpha is shown while they are scored


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


def measure_alpha(configs: Sequence[ChooseConfig], progress: Progress) -> tuple[Path, AlphaDocument]:
    """Score every draft of `configs`, which differ only in draft, rule and temperature, and write the record.

    Returns:
        The record's file, and the record.
    """
    rows, settings, finished = list[AlphaRow](), list[ScoredSetting](), list[Scored]()
    surroundings = environment()
    first = resolve(configs[0])
    with locked_device(first.device, progress.say) as device, translated_errors(first):
        configs = with_skips([replace(config, device=str(device)) for config in with_parts(configs)], progress)
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


def alpha_folder(results: str | Path) -> Path:
    """The folder of the records of `specbench alpha`; each has its table in `rows`."""
    return Path(results) / "alpha"


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
        "findings": {name: found for name in scored.agreement if (found := of_draft(scored, name))},
        "drafts": {name: [_agreement_record(a) for a in texts] for name, texts in scored.agreement.items()},
    }


def of_draft(scored: Scored, name: str) -> list[Finding]:
    """The faults of a draft, by its agreements."""
    one = next(candidate for candidate in scored.candidates if candidate.draft == name)
    draft = asdict(one.config.draft)
    if not has_network(draft):
        return []
    agreements, prompts = scored.agreement[name], one.parts.prompts
    texts = [
        Text(text, found.signs.named, found.beta, text, len(prompt.source) + len(prompt.prefix), sums=found.signs.sums)
        for text, found, prompt in zip(scored.sample.texts, agreements, prompts, strict=False)
    ]
    tokens = {token for text in texts for token in text.named if token is not None}
    seen = Observed(
        texts,
        numbers_of((prompt.source, prompt.prefix) for prompt in prompts[: len(texts)]),
        scored.config.sampling.temperature,
        {str(token): piece for token, piece in one.parts.vocabulary.pieces(tokens).items()},
        inside=reads_states(draft),
        reads_last=reads_last(draft),
    )
    return findings(seen)


def _agreement_record(agreement: Agreement) -> ScoredText:
    """An agreement as it is recorded: of the ranks the sums, and not each token's."""
    ranks = agreement.ranks
    sums = ranks and Ranks(ranks.accepted, {}, ranks.of_children, ranks.places)
    return cast(ScoredText, asdict(replace(agreement, ranks=sums)))
