"""The needs of a command, before anything is loaded: models, tokens, memory of weights, and time.

Time is taken from the record of the most similar run on the same hardware. Without one it is estimated: a step of the
target reads each of its weights once, at the rate of a short copy.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch

from specbench import theory
from specbench.analysis.costs.probe import COLD, LONG_S, MOST_STEPS, PASSES, STEPS
from specbench.choose.settled import budget, sample_of, settled
from specbench.config.model import ModelConfig, name_of
from specbench.config.places import home, model_at
from specbench.config.schema import RunConfig, task_label
from specbench.config.verbs import ChooseConfig
from specbench.engine.weights import parameters
from specbench.engine.weights.load import shape_of
from specbench.environment import environment, hardware
from specbench.errors import MachineError, UserError
from specbench.formatting import duration, size
from specbench.nouns import with_noun
from specbench.records.catalog import Catalog
from specbench.records.run_record import Row
from specbench.records.served import SERVED
from specbench.tasks import Task
from specbench.train.checkpoints import last_whole, step_of
from specbench.train.networks import trained_parameters
from specbench.train.recipe_places import short_name
from specbench.train.recipe_schema import Recipe
from specbench.train.trainers import seconds_in

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# The more of these a record shares, the better it predicts.
COMPARED = ("draft", "temperature", "gamma", "accept", "batch")
COPIED = 2**26  # bytes of the copy that memory is timed with
READ_AT_ONCE = 0.15  # steps that a token of a text takes that is read in one go
USUAL_ALPHA = 0.6  # of a draft that is not known yet: passes need so many fewer steps
ENTRY_S = 3e-7  # seconds, of a core, to compare p and q at one token of the vocabulary by all rules
USUAL_VOCABULARY = 32_000
USUAL_V = 1.2  # steps that a verification takes
CHARACTERS = 4  # of a token
TRAINED_BYTES = 16  # of a weight in training: fp32, its gradient and AdamW's two states
MULTIPLIED = 1024  # rows of the matrices that arithmetic is timed with
LOOKED_AT = 8  # prompts whose length stands for all


@dataclass(frozen=True)
class Needs:
    """The needs of a command; None if they are not known.

    Attributes:
        models: parameters by name.
        work: what is done, in words.
        tokens: that the target writes, or that are trained on, at most.
        weights_bytes: of all models; in training also of gradients and the optimiser's states.
        known_from: where the time is from, in words.
    """

    models: dict[str, int | None]
    work: str
    tokens: int | None
    weights_bytes: int | None
    seconds: float | None
    known_from: str


def lines(needs: Needs) -> list[str]:
    """`needs` for a person."""
    sizes = {name: "size not known" if count is None else in_words(count) for name, count in needs.models.items()}
    memory = "not known" if needs.weights_bytes is None else f"{size(needs.weights_bytes)} for weights, and caches"
    return [
        f"models: {', '.join(f'{name} ({count})' for name, count in sizes.items())}",
        f"work: {needs.work}",
        f"memory: {memory}",
        f"time: {'not known' if needs.seconds is None else f'about {duration(needs.seconds)}'} ({needs.known_from})",
    ]


def in_words(count: int) -> str:
    """A number of weights: '12.3M parameters'."""
    return f"{count / 1e9:.3g}B parameters" if count >= 1e9 else f"{count / 1e6:.3g}M parameters"


def of_run(config: RunConfig) -> Needs:
    """The needs of the run of a resolved config."""
    prompts, rows = prompts_of(config), _records(config.results)
    like = most_similar(config, machine_of(config), keys_of_run(config), rows)
    tokens = None if prompts is None else 2 * prompts * config.max_new_tokens  # with and without the draft
    seconds, known_from = None, "the number of prompts is not known; give limit=N"
    if like is not None and prompts is not None:
        seconds = config.runs * (like.get("warmup_s", 0) + prompts * seconds_a_prompt(like))
        known_from = f"from the record {like['run_id']}"
    elif tokens is not None:
        step, known_from = step_seconds(config, [])
        reading = 2 * prompts * READ_AT_ONCE * _tokens_of_prompt(config) if prompts else 0.0
        seconds = None if step is None else config.runs * (tokens + reading) * step
    every = "all prompts of the task" if prompts is None else with_noun(prompts, "prompt")
    every += "" if config.context_tokens is None else f" of up to {config.context_tokens:,} tokens"
    work = f"{every} with and without the draft" + ("" if tokens is None else f", up to {tokens:,} new tokens")
    return Needs(_models([config]), work, tokens, weights_of(config), seconds, known_from)


def of_alpha(configs: Sequence[ChooseConfig]) -> Needs:
    """The needs of `specbench alpha` for `configs`."""
    configs = settled(configs)
    samples = len({sample_of(one) for one in configs})
    step, known_from = step_seconds(configs[0], _records(configs[0].results))
    drafts = len({one.draft.label() for one in configs})
    tokens, most = (
        budget(configs[0]),
        None if configs[0].limit is None else configs[0].limit * configs[0].max_new_tokens,
    )
    is_bound = most is not None and most < tokens  # by the prompts
    tokens = min(tokens, most) if most is not None else tokens
    scoring = READ_AT_ONCE * (1 + drafts) * (step or 0) + drafts * _compared_seconds(configs[0])
    seconds = None if step is None else samples * tokens * (step + scoring)
    models = _models(configs)
    counts = list(models.values())
    weights = None if None in counts else BYTES[configs[0].dtype] * sum(count for count in counts if count)
    several = "" if samples == 1 else f"{samples} samples of "
    work = f"the target writes {several}{'up to ' if is_bound else ''}{tokens:,} tokens, along which "
    work += f"{with_noun(drafts, 'draft, is')} scored"
    return Needs(models, work, samples * tokens, weights, seconds, known_from)


def of_recommend(configs: Sequence[ChooseConfig]) -> Needs:
    """The needs of `specbench recommend` for `configs`, without the runs of verify=N."""
    scored = of_alpha(configs)
    config = settled(configs)[0]
    step, known_from = step_seconds(config, _records(config.results))
    if step is None or scored.seconds is None:
        return scored
    prompt = READ_AT_ONCE * _tokens_of_prompt(config)
    visit = max(STEPS, min(MOST_STEPS, int(LONG_S / step)))
    steps = 0.0
    for one in configs:
        share = _draft_share(one)
        steps += visit + COLD + 2 * prompt
        for gamma in one.gammas:
            passes = (PASSES + 1) * (gamma + 1) / theory.expected_tokens(USUAL_ALPHA, gamma)
            steps += passes * (USUAL_V + gamma * share) + 2 * prompt
    batches = sum(config.batches)
    timed = (config.rounds + 1) * steps * batches * step
    work = f"{scored.work} and timed in {config.rounds} rounds at {len(config.gammas)} γ"
    return replace(scored, work=work, seconds=scored.seconds + timed, known_from=known_from)


def of_training(recipe: Recipe) -> Needs:
    """The needs of `specbench train` for a recipe that is fitted to its target."""
    plan, optim = recipe.data, recipe.optim
    most = plan.max_target + (plan.max_source if recipe.task == "seq2seq" else 0)
    if plan.completions:
        most = plan.max_source + recipe.distill.max_new_tokens
    tokens = optim.max_steps * optim.batch_size * optim.accumulate * most
    target = None if recipe.distill.target is None else parameters(model_at(recipe.distill.target, "distill.target"))
    own = trained_parameters(recipe)
    models = {f"{recipe.name}, trained": own}
    if recipe.distill.target is not None:
        models[short_name(recipe.distill.target)] = target
    known = own is not None and (target is not None or recipe.distill.target is None)
    held = TRAINED_BYTES * (own or 0) + (2 if recipe.bf16 else 4) * (target or 0)
    work = f"{optim.max_steps:,} steps of {optim.batch_size * optim.accumulate} rows, up to {tokens:,} tokens"
    if optim.max_minutes is not None:
        work = f"up to {work}"
    seconds, known_from = _seconds_of_training(recipe, (6 * (own or 0) + 2 * (target or 0)) * tokens)
    return Needs(models, work, tokens, held if known else None, seconds, known_from)


def _seconds_of_training(recipe: Recipe, operations: float) -> tuple[float | None, str]:
    """Seconds of training and their basis: the time that its steps take, or the time left to it if that is less."""
    output = Path(home(recipe.output))
    checkpoint, clock = last_whole(output, told=False), output / "seconds.txt"
    spent = seconds_in(clock) if checkpoint is not None and clock.is_file() else None
    seconds, known_from = _seconds_of_steps(recipe, operations, checkpoint, spent)
    if (minutes := recipe.optim.max_minutes) is not None:
        left = max(0.0, 60 * minutes - (spent or 0.0))
        if seconds is None or left < seconds:
            after = "" if spent is None else f", of which {duration(spent)} are over"
            return left, f"at most: optim.max_minutes={minutes:g}{after}"
    return seconds, known_from


def _seconds_of_steps(
    recipe: Recipe, operations: float, checkpoint: Path | None, spent: float | None
) -> tuple[float | None, str]:
    """Seconds of the steps after `checkpoint`, which was there after `spent`; else of the operations of all."""
    if checkpoint is not None and spent is not None and step_of(checkpoint):
        done = step_of(checkpoint)
        left = max(0, recipe.optim.max_steps - done)
        return spent / done * left, f"for the steps after {done}, at the rate of those before"
    if not operations:
        return None, "the sizes of the models are not known"
    rate = operations_a_second("cuda" if torch.cuda.is_available() else "cpu")
    return (
        operations / rate,
        f"at most: {operations:.1e} operations, if every row is as long as it may be, at the {rate / 1e9:.0f} GFLOP/s "
        "of a short product",
    )


@cache
def operations_a_second(device: str) -> float:
    """The rate of a short matrix product in fp32."""
    one = torch.ones(MULTIPLIED, MULTIPLIED, device=device)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        one @ one
        if one.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * MULTIPLIED**3 / best


def _models(configs: Sequence[RunConfig]) -> dict[str, int | None]:
    """Each model once, by its name, the target first."""
    found = {name_of(configs[0].target): parameters(configs[0].target)}
    for config in configs:
        for part in config.draft.levels():
            if isinstance(part, ModelConfig):
                found.setdefault(part.label(), parameters(part))
    return found


def _records(results: str) -> list[Row]:
    return [row for row in Catalog(results).rows() if not row.get("simulated") and not row.get(SERVED)]


def machine_of(config: RunConfig) -> str:
    """The hardware of the run, as records name it."""
    machine = environment()
    if config.threads is not None:
        machine["threads"] = config.threads
    return hardware(machine, config.device)


def keys_of_run(config: RunConfig) -> Row:
    """The values of COMPARED."""
    return {
        "draft": config.draft.label(), "temperature": config.sampling.temperature, "gamma": config.gamma,
        "accept": config.accept.rule, "batch": config.batch,
    }  # fmt: skip


def prompts_of(config: RunConfig) -> int | None:
    """How many prompts the run decodes; None for a whole split of the hub, whose rows are not counted here."""
    if config.task.path is None and config.task.shipped is None:
        return config.limit
    return len(Task(config.task).examples(config.limit))


def weights_of(config: RunConfig) -> int | None:
    """Bytes of the weights of target and draft in the run's dtype."""
    models = [config.target, *(draft for draft in config.draft.levels() if isinstance(draft, ModelConfig))]
    counts = [parameters(model) for model in models]
    return None if None in counts else BYTES[config.dtype] * sum(count for count in counts if count)


def most_similar(config: RunConfig, machine: str, named: Row, rows: Sequence[Row]) -> Row | None:
    """The record of the same target, task, context, dtype and hardware with most keys of the job, then the newest."""
    task = task_label(config.task.name, config.task.path)
    same = {
        "target": name_of(config.target), "task": task, "dtype": config.dtype, "hardware": machine,
        "context": config.context_tokens,
    }  # fmt: skip
    similar = [row for row in rows if all(row.get(key) == value for key, value in same.items())]
    return max(
        similar,
        key=lambda row: (sum(_column(row, key) == named[key] for key in COMPARED), str(row.get("created") or "")),
        default=None,
    )


def _column(row: Row, key: str) -> object:
    """A column of a record; those older than batches decoded one prompt at a time."""
    return row.get(key, 1 if key == "batch" else None)


def seconds_a_prompt(row: Row) -> float:
    """Seconds of reading and continuing a prompt with the target alone and with the draft, from a record."""
    reading = 2 * (row.get("target_start_s") or 0) + (row.get("draft_start_s") or 0)
    target = row["tokens"] / row["prompts"] * row["target_step_s"] / (row.get("occupancy_baseline") or 1)
    return float(reading + target * (1 + 1 / (row.get("speedup_measured") or 1)))


def step_seconds(config: RunConfig, rows: Sequence[Row]) -> tuple[float | None, str]:
    """Seconds of a step of the target, and their source: the newest record of it, or the rate of memory."""
    same = {"target": name_of(config.target), "dtype": config.dtype, "hardware": machine_of(config)}
    known = [row for row in rows if row.get("target_step_s") and all(row.get(k) == value for k, value in same.items())]
    if known:
        newest = max(known, key=lambda row: str(row.get("created") or ""))
        return float(newest["target_step_s"]), f"with the step time of the record {newest['run_id']}"
    if (count := parameters(config.target)) is None:
        return None, "no record of this target on this machine, and its size is not known"
    rate = bytes_a_second(config.device)
    return (
        BYTES[config.dtype] * count / rate,
        f"an estimate, with no record of this target here: a step reads all weights, at {rate / 1e9:.1f} GB/s",
    )


@cache
def bytes_a_second(device: str) -> float:
    """The rate at which a short copy reads memory."""
    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        target.copy_(source)
        if source.is_cuda:
            torch.cuda.synchronize(source.device)
        best = min(best, time.perf_counter() - began)
    return COPIED / best


def _draft_share(config: ChooseConfig) -> float:
    """A draft's step over the target's, by the sizes of the models; a draft without a model is free."""
    target = parameters(config.target)
    own = [parameters(part) for part in config.draft.levels() if isinstance(part, ModelConfig)]
    if not target or any(count is None for count in own):
        return 0.2
    return sum(count for count in own if count) / target


def _compared_seconds(config: ChooseConfig) -> float:
    """Seconds in which p and q of a token are compared by all rules, on a CPU; a GPU hardly needs any."""
    if torch.device(config.device).type != "cpu":
        return 0.0
    try:
        return ENTRY_S * float(shape_of(config.target, "target").get_text_config().vocab_size)
    except (UserError, MachineError):
        return ENTRY_S * USUAL_VOCABULARY


def _tokens_of_prompt(config: RunConfig) -> float:
    """The approximate number of tokens of each prompt, from the length of a few."""
    if config.context_tokens is not None:
        return config.context_tokens
    if config.task.path is None and config.task.shipped is None:
        return 64
    examples = islice(Task(config.task).examples(LOOKED_AT), LOOKED_AT)
    return fmean(len(one.prompt) for one in examples) / CHARACTERS
