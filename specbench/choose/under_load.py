"""Goodput under load: turns of our batching are timed, a simulation serves arrivals at each load, real runs check it.

The costs of turns come from closed loops: a fixed number of rows, in which each completion is replaced at once by the
next request, so that starts, joins and passes are timed as they happen in a server (`analysis.turn_costs.fit`). The
tokens that each request emits in its passes come from the same completions. Half of the rounds run before the real runs
and half after them; and a closed loop of the same setting right before and after each real run says how fast the
machine was then, by which the simulation beside it is scaled.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import cast

from specbench.analysis.costs.core_time import disturbed_by, least_disturbed
from specbench.analysis.costs.probe import already_collected
from specbench.analysis.queueing import Served
from specbench.analysis.turn_costs import SeenTurn, served
from specbench.choose.heading import heading
from specbench.choose.load_plan import Plan, Real, costs_of, recorded_arrivals, setting_name
from specbench.choose.settled import prepare
from specbench.choose.timed_server import ALONE, Key, Server, Timed, closed_loops, server_of, timed_round
from specbench.config.model import name_of
from specbench.config.verbs import LoadConfig, as_run
from specbench.environment import environment
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.experiment.identity import identify
from specbench.experiment.run_parts import resolve
from specbench.experiment.runner import Progress, translated_errors
from specbench.files import json_digest
from specbench.loading.model_loader import locked_device
from specbench.records.choosing import LoadDocument, LoadRow, LoadSpan
from specbench.records.documents import write_document
from specbench.records.run_record import SCHEMA_VERSION
from specbench.report.load_tables import best_at


def recommend_load(configs: Sequence[LoadConfig], progress: Progress) -> tuple[Path, LoadDocument]:
    """Goodput of every (draft, gamma) of `configs` and of the target alone at each load, and the best at each.

    Returns:
        The record's file, and the record.

    Raises:
        UserError: several temperatures or contexts, too few prompts, or a config that cannot be batched or measured.
        MachineError: the device, memory, disk or hub does not suffice.
    """
    if len({config.sampling.temperature for config in configs}) > 1:
        raise UserError("sampling.temperature: a recommendation is for one temperature; give one")
    if len({config.context for config in configs}) > 1:
        raise UserError("context: --load is for one context; give one")
    recorded = recorded_arrivals(configs[0])
    resolved = resolve(configs[0])
    with locked_device(resolved.device, progress.say) as device, translated_errors(resolved):
        candidates = prepare([replace(config, device=str(device)) for config in configs], progress)
        config = cast(LoadConfig, candidates[0].config)
        server, nodes = server_of(candidates), sorted(set(config.batches))
        if len(server.prompts) < 2 * sum(nodes):
            raise UserError(
                f"batch={','.join(map(str, nodes))}: costs of turns are timed over {len(server.prompts)} prompts, and "
                f"these batch sizes need {2 * sum(nodes)}; give more prompts (limit=) or smaller batches"
            )
        timed = {key: Timed([], {}, defaultdict(list)) for key in server.settings}
        waits = list[float | None]()

        def rounds(first: int, last: int) -> None:
            for number in range(first, last):
                progress.say(f"timing turns of our batching, round {number + 1} of {config.rounds}")
                new, waited = least_disturbed(partial(timed_round, server, nodes, number))
                for key, one in new.items():
                    timed[key].turns += one.turns
                    timed[key].requests |= one.requests
                    for rows, values in one.parts_s.items():
                        timed[key].parts_s[rows] += values
                waits.append(waited)

        with already_collected():
            progress.say("warming up")
            timed_round(server, nodes, -1)
            rounds(0, -(-config.rounds // 2))
            plan = Plan.of(config, server, timed, nodes, recorded)
            real = {one: _really(server, plan, *one, nodes, progress) for one in plan.checked()}
            rounds(-(-config.rounds // 2), config.rounds)
    plan = replace(plan, costs=costs_of(timed, nodes))
    rows = [plan.row(key, rate) for rate in plan.rates for key in server.settings]
    surroundings = environment()
    best = [best_at([row for row in rows if row["rate"] == rate]) for rate in plan.rates]
    schedules = {one.name: plan.schedule(one.name) for one in candidates}
    known = [one for one in waits if one is not None]
    digest = json_digest([[identify(as_run(one)) for one in configs], asdict(config)])
    name = file_name(f"{name_of(config.target)}-{config.task.name}", f"-T{config.sampling.temperature:g}-{digest}")
    record: LoadDocument = {
        "schema_version": SCHEMA_VERSION,
        "load_id": name,
        **heading(config, surroundings, candidates[0].parts.engine),
        "requests": plan.requests,
        "arrivals": config.arrivals or "Poisson",
        "server_rows": plan.rows,
        "promise": asdict(plan.promise),
        "rows": rows,
        "costs": [
            {
                "candidate": key[0], "gamma": key[1], "turns": len(timed[key].turns),
                "tokens_per_pass": plan.tokens_per_pass(key), "join_s": costs.join_s, "token_s": costs.token_s,
                "pass_s": {str(at): seconds for at, seconds in costs.at.items()}, "first_s": costs.first_s,
                "held_s": costs.held_s, "start_at": {str(at): factor for at, factor in costs.start_at.items()},
                "c": plan.over_step(key, 0), "verify_cost": plan.over_step(key, 1),
            }
            for key, costs in plan.costs.items()
        ],
        "best": best,
        "schedules": schedules,
        "reasons": _reasons(best, schedules, plan),
        "verified": [plan.checked_row(*one, found) for one, found in real.items()],
        "alpha_rows": [{"draft": one.draft, "accept": one.rule, "candidate": one.name} for one in candidates],
        "configs": [asdict(one.config) for one in candidates],
        "environment": surroundings,
        "disturbed_by": disturbed_by([], sum(known) / len(known) if known else None),
    }  # fmt: skip
    return write_document(Path(config.results) / "load" / f"{name}.json", record), record


def _really(server: Server, plan: "Plan", key: Key, rate: float, nodes: Sequence[int], progress: Progress) -> Real:
    """The requests that our batching serves at this rate."""
    progress.say(f"serving {plan.requests} requests at {rate:.3g} a second, {setting_name(key)}")
    times, draw = plan.arrivals(rate, plan.seed), random.Random(server.seed)

    def work() -> tuple[list[Served], list[SeenTurn]]:
        before = closed_loops(server, key, nodes, draw).turns
        turns, requests, _ = server.serve(key, plan.places, plan.rows, times)
        return served(turns, times, requests), [*before, *closed_loops(server, key, nodes, draw).turns]

    found, waited = least_disturbed(work)
    return Real(*found, waited)


def _reasons(best: Sequence[LoadRow], schedules: Mapping[str, Sequence[LoadSpan]], plan: Plan) -> list[str]:
    """The recommended settings, in sentences."""
    lines = [
        f"load 1: the {plan.capacity:.3g} requests per second that the target alone serves with a full batch of "
        f"{plan.rows}"
    ]
    drafting = [row["load"] for row in best if row["candidate"] != ALONE]
    if not drafting:
        lines.append("a draft pays at no load here")
    elif drafting != [row["load"] for row in best[: len(drafting)]]:
        lines.append(f"a draft pays only at these loads: {', '.join(f'{load:.2f}' for load in drafting)}")
    elif len(drafting) == len(best):
        lines.append("a draft pays up to the highest load here")
    else:
        lines.append(f"a draft pays up to load {drafting[-1]:.2f}, and not above")
    for name, spans in schedules.items():
        said = ", ".join(f"{_sizes(one)} {one.gamma or 'no draft'}" for one in spans)
        lines.append(f"{name}, γ that emits most tokens per second, by requests that decode at a time: {said}")
    return lines


def _sizes(span: LoadSpan) -> str:
    if span.last is None:
        return f"{span.first}+:"
    return f"{span.first}:" if span.first == span.last else f"{span.first}–{span.last}:"
