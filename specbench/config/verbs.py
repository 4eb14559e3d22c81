"""The keys of the verbs beside `run`: the keys of a run that apply, and their own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any, ClassVar

from specbench.config.checks import check, require_fixed
from specbench.config.draft import DraftConfig, TextDraftConfig, TrainedConfig
from specbench.config.draft_keys import DraftKeys
from specbench.config.keys import (
    BYTES,
    EXISTS,
    MAX_BATCH,
    MAX_GAMMA,
    Allowed,
    at_least,
    between,
    fresh,
    key,
    keys_of,
    list_between,
    require,
    require_allowed,
)
from specbench.config.model import ModelConfig, weights_folder
from specbench.config.schema import DEVICE, THREADS, RunConfig, SamplingConfig, TaskConfig
from specbench.config.server import BY_TEXT, STARTED
from specbench.config.tree import AUTO
from specbench.errors import UserError

# Other engines that `bench` times through a package: the extra that installs each, and its packages. `bench.peers` has
# their functions. The engines of SERVED are timed through a server (`interop.starting.served_peers`).
SERVED = tuple(name for name in STARTED if name not in BY_TEXT)  # they read the same token ids
PEERS = {"ctranslate2": ("ctranslate2", ["ctranslate2"]), "llama.cpp": ("llama-cpp", ["llama_cpp", "gguf"])}
VALIDATE, LOAD = "recommend --validate", "recommend --load"  # these modes have keys of their own
GAMMAS = list_between(1, MAX_GAMMA)
POSITIVE = Allowed(lambda value: value > 0, "above 0, or null")
MAX_WIDTH = 64
MAX_U = 256


@dataclass
class ChooseConfig(RunConfig):
    """One draft of several; the command line makes one of these for each."""

    conf_file: ClassVar[str] = "choose"

    tokens: int | None = key(
        None,
        "tokens of the target's completions to score; unset: 10,000 on a GPU, 2,000 on a CPU",
        at_least(1, ", or null"),
        ("alpha", "recommend", VALIDATE),
    )
    leniences: list[float] = fresh(
        lambda: [1.0, 0.5, 0.3, 0.1],
        "of alpha(l), appendix A.5",
        Allowed(lambda values: all(0 < one <= 1 for one in values), "above 0 and at most 1"),
        ("alpha",),
    )
    gammas: list[int] = fresh(
        lambda: [1, 2, 3, 4, 5, 7, 10], "the gammas to compare", GAMMAS, ("recommend", VALIDATE, LOAD)
    )
    rounds: int = key(6, "rounds of timed passes; 24 for narrow intervals", at_least(2), ("recommend", VALIDATE, LOAD))
    verify: int = key(
        0, "check the so many best candidates by real runs (--load: so many loads)", at_least(0), ("recommend", LOAD)
    )
    searches: int = key(
        200, "draft.skip=[auto]: maximum number of sets of sublayers to try", at_least(1), ("alpha", "recommend")
    )
    search_tokens: int = key(
        300, "draft.skip=[auto]: tokens of the target's completions for the search", at_least(1), ("alpha", "recommend")
    )
    batches: list[int] = fresh(
        lambda: [1],
        "batch=1,4,16: a ranking for each batch; --load: sizes at which costs are timed, the server's the largest",
        verbs=("recommend", LOAD),
    )
    repeats: int = key(2, "times that each candidate decodes each prompt", at_least(1), (VALIDATE,))
    memory: str | None = key(
        None, "24GB: leave out candidates that need more with the target, at the largest batch", BYTES, ("recommend",)
    )


def check_choose(config: ChooseConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    check(config)
    require_fixed(config.draft)
    require(config.simulate.alpha is None, "simulate.alpha", config.simulate.alpha, "null: alpha is measured here")
    confidence = config.draft.confidence_bound()
    require(confidence is None, "draft.confidence", confidence, "null: one gamma is predicted")
    if config.tree.shape != "none" and config.accept.rule == "typical" and config.sampling.temperature > 0:
        raise UserError(
            f"accept=typical: its acceptance on tree={config.tree.shape} at T>0 is not predicted, for completions "
            "under a lossy rule are not the target's; give accept=exact or tree=none, or measure it with specbench run"
        )
    require(config.tree.size != AUTO, "tree.size", config.tree.size, "a list of sizes, which are ranked")
    for batch in config.batches or [0]:
        require(1 <= batch <= MAX_BATCH, "batch", batch, f"from 1 to {MAX_BATCH}")
        check(replace(config, batch=batch))


@dataclass
class LoadConfig(ChooseConfig):
    """The keys of `specbench recommend --load`."""

    requests: int = key(200, "requests at each load", at_least(20))
    rates: list[float] = fresh(
        list, "requests per second; unset: .3 to 1.2 of what the target alone serves",
        Allowed(lambda rates: all(0 < one < math.inf for one in rates), "a list of numbers above 0"),
    )  # fmt: skip
    arrivals: str | None = key(
        None, "a file of recorded arrivals in seconds, one per line; rates= stretches them; unset: Poisson", EXISTS
    )
    ttft: float | None = key(
        None, "ms to the first token that are promised; unset: 20 steps of the target alone with a full batch", POSITIVE
    )
    tpot: float | None = key(None, "ms per token after the first that are promised; unset: 2 such steps", POSITIVE)


def check_load(config: LoadConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    check_choose(config)
    require(config.tree.shape == "none", "tree", config.tree.shape, "none: loads are simulated for chains")
    require(len(config.batches) > 1, "batch", config.batches, "a list of batch sizes, as in batch=1,2,4,8")


# Keys of a run that a verb does not use, and what to give in their place.
TREE_KEYS = tuple(one.name for one in keys_of(ChooseConfig) if one.name.startswith("tree."))
CATEGORY = {"task.category_field": ""}  # which only records of runs have
UNUSED = {
    "alpha": CATEGORY
    | dict.fromkeys(("gamma", "warmup", "reuse", "force", "batch"), "")
    | dict.fromkeys(("tree", *TREE_KEYS), "nothing: it measures every way to choose children"),
    "recommend": {"gamma": "gammas=1,3,5"},
    LOAD: CATEGORY
    | {"gamma": "gammas=1,3,5", "warmup": "", "reuse": "", "force": ""}
    | dict.fromkeys(("tree", *TREE_KEYS), ""),
    VALIDATE: {"gamma": "gammas=1,3,5", "warmup": "", "reuse": "", "force": "", "batch": ""}
    | dict.fromkeys(("tree", *TREE_KEYS), "it to specbench recommend, which checks trees with --verify N"),
    "bench": {"gamma": "gammas=1,3,5", "batch": "batches=4,16, and part g"}
    | dict.fromkeys(("warmup", "force", "seed", "simulate.alpha"), "")
    | CATEGORY,
    "bench beam": CATEGORY,
}


def refused(verb: str) -> set[str]:
    """Keys of a run, or parts of its config, that `verb` refuses: its help does not list them."""
    return {*UNUSED[verb], "simulate"}


def require_used(verb: str, schema: type[Any], key: str, value: object) -> None:
    """Check that `verb`, with the keys of `schema`, uses `key`. Raises UserError if it would ignore the key."""
    others = {one.name: "" for one in keys_of(schema) if one.verbs and verb not in one.verbs}
    if (instead := (others | UNUSED.get(verb, {})).get(key)) is not None:
        advice = f"; give {instead}" if instead else ""
        raise UserError(f"{key}={value}: specbench {verb} does not use {key}{advice}")


def require_distinct(names: list[tuple[str, str]]) -> None:
    """Check that no two drafts with their rules have the same name, by which tables tell them apart.

    Raises UserError if two have the same name.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"draft: two of the drafts are called {twice[0]} and go with accept={twice[1]}; name one of them "
            "otherwise, or give each rule once"
        )


def as_run(config: ChooseConfig, gamma: int | None = None, batch: int = 1) -> RunConfig:
    """The config of `specbench run` with this draft and batch, and with `gamma` if given; both write one record.

    Keys that a run does not use are at their defaults, as in any run.
    """
    values = {one.name: getattr(config, one.name) for one in fields(RunConfig)}
    return RunConfig(
        **values | {"batch": batch, "resamples": RunConfig.resamples} | ({} if gamma is None else {"gamma": gamma})
    )


@dataclass
class BenchConfig(RunConfig):
    """The keys of `specbench bench`."""

    conf_file: ClassVar[str] = "bench"
    tells_alpha: ClassVar[bool] = False

    limit: int | None = key(8, "prompts", at_least(1, ", or null for all"))
    gammas: list[int] = fresh(lambda: [2, 4, 7], "the gammas to time", GAMMAS)
    parts: str = key(
        "abcdefg",
        "parts: a generate, b assisted, c prompt lookup, d a step, e a pass, f growth, g batches, i long prompts",
        Allowed(lambda parts: bool(parts) and set(parts) <= set("abcdefgi"), "letters from a to g and i, as in ab"),
    )
    batches: list[int] = fresh(lambda: [4, 16], "the batches of part g", list_between(2, MAX_BATCH))
    repeats: int = key(3, "times that each decoder decodes each prompt", at_least(1))
    step_by_step: bool = key(False, "also time a draft whose steps cannot be captured as one CUDA graph")
    bandwidth: float | None = key(
        None,
        "GB/s, for the lower bound of a step; unset: measured by a copy",
        Allowed(lambda rate: rate > 0, "above 0 (GB/s)"),
    )
    launch_us: float = key(1.5, "microseconds to launch a kernel, for the lower bound of a step", at_least(0, " (us)"))
    peers: list[str] = fresh(
        list,
        "other engines on the same weights: ctranslate2, llama.cpp, vllm, openvino (the last three also with prompt "
        "lookup; through a server that is started here also with draft=, and reading long prompts)",
    )


def in_process(name: str) -> bool:
    """Whether the peer `name` is timed through its package, which is installed; otherwise through its server."""
    return name in PEERS and all(find_spec(package) is not None for package in PEERS[name][1])


def check_bench(config: BenchConfig) -> None:
    """Check every value, before anything is loaded. Raises UserError for the first value out of range."""
    check(config)
    require_fixed(config.draft)
    if isinstance(config.draft, TrainedConfig):
        raise UserError(
            f"draft={config.draft.kind}: needs the target's hidden states, which generate does not return; use run"
        )
    for name, default in vars(SamplingConfig()).items():
        value = getattr(config.sampling, name)
        require(value == default, f"sampling.{name}", value, "left out: bench times greedy decoding")
    require(config.tree.shape == "none", "tree", config.tree.shape, "none: generate does not support trees")
    require(
        config.accept.rule == "exact",
        "accept.rule",
        config.accept.rule,
        "exact, as in the decoding it is compared with",
    )
    for name in config.peers:
        require(name in {*PEERS, *SERVED}, "peers", name, "of " + ", ".join(dict.fromkeys([*PEERS, *SERVED])))
        if name not in SERVED and not in_process(name):
            extra, _ = PEERS[name]
            raise UserError(f"peers={name}: it is not installed; pip install 'specbench-toolkit[{extra}]'")
    if config.peers and (config.target.weights == "random" or weights_folder(config.target) is None):
        raise UserError(f"peers={config.peers[0]}: this target's weights are random; name a folder of weights")
    require(config.batch == 1, "batch", config.batch, "1: part g times batches=[4,16]")


@dataclass
class BeamConfig:
    """A beam search of the target, and the drafts' widths and steps to try."""

    conf_file: ClassVar[str] = "beam"

    target: ModelConfig = fresh(ModelConfig, "the model that searches")
    draft: DraftConfig = fresh(DraftKeys, "the model that searches ahead")
    task: TaskConfig = fresh(TaskConfig, "what to decode")
    width: int = key(4, "w: beams of the target", between(2, MAX_WIDTH))
    u: list[int] | None = key(None, "u: beams of the draft, a list, each at least width; unset: width and 2 width")
    gamma: list[int] = fresh(lambda: [1, 2, 3, 5], "the draft's steps in a pass", GAMMAS)
    length_penalty: float = key(
        1.0, "length penalty: a hypothesis scores log-probability / length^this, as in generate", between(-10, 10)
    )
    early_stopping: bool | str = key(
        False,
        "true: stop once `width` hypotheses are finished | false, never: the heuristics of generate",
        Allowed(lambda early: early in (True, False, "never"), "true | false | never"),
    )
    max_new_tokens: int = key(128, "maximum number of new tokens per prompt")
    limit: int | None = key(8, "prompts")
    dtype: str = key("float32", "as in specbench run; in bfloat16 near ties may fall either way")
    device: str = key("auto", DEVICE)
    threads: int | None = key(None, THREADS)
    results: str = key("results", "the folder of the records")


def check_beam(config: BeamConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    require_allowed(config)
    require(
        config.u is None or (bool(config.u) and all(config.width <= u <= MAX_U for u in config.u)),
        "u", config.u, f"a list of numbers from width={config.width} to {MAX_U}, or null",
    )  # fmt: skip
    require(config.draft.kind == "model", "draft.kind", config.draft.kind, "model: a draft that can search itself")
    confidence = config.draft.confidence_bound()
    require(confidence is None, "draft.confidence", confidence, "null in a beam search")
    assert isinstance(config.draft, ModelConfig)
    for name, model in (("target", config.target), ("draft", config.draft)):
        require(model.weights == "trained", f"{name}.weights", model.weights, "trained: the beams depend on them")
    require_fixed(config.draft)
    check(beam_run(config))


def beam_run(config: BeamConfig) -> RunConfig:
    """The run that loads the same parts. Its engine is eager: what a beam search runs is the network itself."""
    return RunConfig(
        target=config.target, draft=config.draft, task=config.task, gamma=1, max_new_tokens=config.max_new_tokens,
        limit=config.limit, dtype=config.dtype, device=config.device, engine="eager", threads=config.threads,
        results=config.results,
    )  # fmt: skip


@dataclass
class CertifyConfig:
    """The keys of `specbench certify`."""

    conf_file: ClassVar[str] = "certify"

    target: ModelConfig = fresh(ModelConfig, "the model that the server claims to run")
    draft: DraftConfig = fresh(
        DraftKeys, "the draft that the server used, if it is known: faults of its loop show earlier"
    )
    task: TaskConfig = fresh(TaskConfig, "the training text of an n-gram draft")
    sampling: SamplingConfig = fresh(SamplingConfig, "how the server sampled")
    within: float = key(
        0.1,
        "size of the fault that a positive verdict excludes: T>0: total variation per token; T=0: share of "
        "differing tokens",
        Allowed(lambda share: 0 < share < 1, "between 0 and 1"),
    )
    plain: str | None = key(
        None, "a file of completions of the same target without a draft, which tells whose fault a difference is"
    )
    drafted: int | None = key(None, "tokens that the server drafted for these completions", at_least(0, ", or null"))
    accepted: int | None = key(None, "draft tokens that it accepted", at_least(0, ", or null"))
    noise: float | None = key(
        None,
        "T=0: how far the server's logits may differ from ours; unset: measured on this machine",
        Allowed(lambda logits: 0 <= logits < math.inf, "at least 0, or null"),
    )
    limit: int | None = key(None, "rows; unset: all")
    dtype: str = key("auto", "the server's: bfloat16 | float32 | float16; auto: as in specbench run")
    device: str = key("auto", DEVICE)
    threads: int | None = key(None, THREADS)
    seed: int = key(0, "of the target's own completions, which test how often a completion is tokenised differently")


def check_certify(config: CertifyConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    require_allowed(config)
    require(config.target.weights == "trained", "target.weights", config.target.weights, "trained")
    require_fixed(config.draft)
    if (config.drafted is None) != (config.accepted is None):
        missing = "drafted" if config.drafted is None else "accepted"
        raise UserError(f"{missing}: give both, drafted= and accepted=, or neither")
    if config.drafted is not None and config.accepted is not None:
        require(config.accepted <= config.drafted, "accepted", config.accepted, f"at most drafted={config.drafted}")
    check(certify_run(config))


def require_used_by_certify(config: CertifyConfig, given: Mapping[str, object]) -> None:
    """Check that a test at this temperature uses each key of `given`. Raises UserError for one that it ignores."""
    greedy = config.sampling.temperature == 0
    reasons = {"noise": "" if greedy else "at T>0, where the distribution is tested"}
    if greedy:
        reasons |= dict.fromkeys(("draft", "task", "seed"), "at T=0, where each token is the target's best or not")
    elif not any(isinstance(one, TextDraftConfig) for one in config.draft.levels()):
        reasons["task"] = f"with draft={config.draft.label()}, which is not fitted on text"
    for name, value in given.items():
        if why := reasons.get(name.partition("@")[0].partition(".")[0]):
            raise UserError(f"{name}={value}: specbench certify does not use {name} {why}; leave it out")


def certify_run(config: CertifyConfig) -> RunConfig:
    """The run that loads the same target and draft. Its engine is eager: a text is read at once."""
    longest = max(RunConfig().max_new_tokens, config.sampling.min_new_tokens)  # the server's own limit is not known
    return RunConfig(
        target=config.target, draft=config.draft, task=config.task, sampling=config.sampling, gamma=1,
        limit=config.limit, dtype=config.dtype, device=config.device, engine="eager", threads=config.threads,
        seed=config.seed, max_new_tokens=longest,
    )  # fmt: skip
