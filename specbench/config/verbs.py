"""The keys of the verbs beside `run`: those of a run that apply, and their own."""

import math
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec

from specbench.config.checks import check, require_fixed
from specbench.config.draft import DraftConfig, TrainedConfig
from specbench.config.drafts import DraftKeys
from specbench.config.keys import fresh, key, keys_of
from specbench.config.model import ModelConfig, weights_folder
from specbench.config.ranges import MAX_BATCH, MAX_GAMMA, require
from specbench.config.schema import RunConfig, SamplingConfig, TaskConfig
from specbench.config.tree import AUTO
from specbench.errors import UserError

# Other engines that `bench` times: the extra that installs each, and its packages. `bench.peers` has their functions.
PEERS = {"ctranslate2": ("ctranslate2", ["ctranslate2"]), "llama.cpp": ("llama-cpp", ["llama_cpp", "gguf"])}
VALIDATE = "recommend --validate"  # the mode has keys of its own


@dataclass
class ChooseConfig(RunConfig):
    """One draft of several; the command line makes one of these for each."""

    tokens: int | None = key(
        None,
        "tokens of the target's completions to score; unset: 10,000 on a GPU, 2,000 on a CPU",
    )
    leniences: list[float] = fresh(lambda: [1.0, 0.5, 0.3, 0.1], "of alpha(l), appendix A.5", ("alpha",))
    gammas: list[int] = fresh(lambda: [1, 2, 3, 4, 5, 7, 10], "the gammas to compare", ("recommend", VALIDATE))
    rounds: int = key(6, "rounds of timed passes; 24 for narrow intervals", ("recommend", VALIDATE))
    verify: int = key(0, "number of best candidates to check by real runs", ("recommend",))
    searches: int = key(
        200, "draft.skip=[auto]: the most sets of sublayers that the search tries", ("alpha", "recommend")
    )
    search_tokens: int = key(
        300, "draft.skip=[auto]: tokens of the target's completions for the search", ("alpha", "recommend")
    )
    batches: list[int] = fresh(lambda: [1], "batch=1,4,16: a ranking for each batch", ("recommend",))
    repeats: int = key(2, "times that each candidate decodes each prompt", (VALIDATE,))


def check_choose(config: ChooseConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    check(config)
    require_fixed(config.draft)
    require(config.simulate.alpha is None, "simulate.alpha", config.simulate.alpha, "null: alpha is measured here")
    confidence = config.draft.confidence_bound()
    require(confidence is None, "draft.confidence", confidence, "null: one gamma is predicted")
    require(config.tokens is None or config.tokens >= 1, "tokens", config.tokens, "at least 1, or null")
    require(all(0 < one <= 1 for one in config.leniences), "leniences", config.leniences, "above 0 and at most 1")
    require(
        bool(config.gammas) and all(1 <= gamma <= MAX_GAMMA for gamma in config.gammas),
        "gammas", config.gammas, f"a list of numbers from 1 to {MAX_GAMMA}",
    )  # fmt: skip
    if config.tree.shape != "none" and config.accept.rule == "typical" and config.sampling.temperature > 0:
        raise UserError(
            f"accept=typical: its acceptance on tree={config.tree.shape} at T>0 is not predicted, for completions "
            "under a lossy rule are not the target's; give accept=exact or tree=none, or measure it with specbench run"
        )
    require(config.tree.size != AUTO, "tree.size", config.tree.size, "a list of sizes, which are ranked")
    for batch in config.batches or [0]:
        require(1 <= batch <= MAX_BATCH, "batch", batch, f"from 1 to {MAX_BATCH}")
        check(replace(config, batch=batch))
    require(config.searches >= 1, "searches", config.searches, "at least 1")
    require(config.search_tokens >= 1, "search_tokens", config.search_tokens, "at least 1")
    require(config.rounds >= 2, "rounds", config.rounds, "at least 2")
    require(config.repeats >= 1, "repeats", config.repeats, "at least 1")
    require(config.verify >= 0, "verify", config.verify, "at least 0")


# Keys of a run that a verb does not use, and what to give in their place.
TREE_KEYS = tuple(one.name for one in keys_of(ChooseConfig) if one.name.startswith("tree."))
UNUSED = {
    "alpha": dict.fromkeys(("gamma", "warmup", "force", "batch"), "")
    | dict.fromkeys(("tree", *TREE_KEYS), "nothing: it measures every way to choose children"),
    "recommend": {"gamma": "gammas=[…]"},
    VALIDATE: {"gamma": "gammas=[…]", "warmup": "", "force": "", "batch": ""}
    | dict.fromkeys(("tree", *TREE_KEYS), "it to specbench recommend, which proves trees with verify=N"),
}


def require_used(verb: str, key: str, value: object) -> None:
    """Check that `verb` uses `key`.

    Raises:
        UserError: it would ignore the key.
    """
    others = {one.name: "" for one in keys_of(ChooseConfig) if one.verbs and verb not in one.verbs}
    if (instead := (others | UNUSED[verb]).get(key)) is not None:
        advice = f"; give {instead}" if instead else ""
        raise UserError(f"{key}={value}: specbench {verb} does not use {key}{advice}")


def require_distinct(names: list[tuple[str, str]]) -> None:
    """Check that no two drafts with their rules have the same name, by which tables tell them apart.

    Raises:
        UserError: two have the same name.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"draft: two of the drafts are called {twice[0]} and go with accept={twice[1]}; name one of them "
            "otherwise, or give each rule once"
        )


def as_run(config: ChooseConfig, gamma: int | None = None, batch: int = 1) -> RunConfig:
    """The config of `specbench run` with this draft and batch, and with `gamma` if given; both write one record."""
    values = {one.name: getattr(config, one.name) for one in fields(RunConfig)}
    return RunConfig(**values | {"batch": batch} | ({} if gamma is None else {"gamma": gamma}))


# The keys of `specbench bench`: those of a run, and a few of its own.


@dataclass
class BenchConfig(RunConfig):
    """The keys of `specbench bench`."""

    limit: int | None = key(8, "prompts")
    gammas: list[int] = fresh(lambda: [2, 4, 7], "the gammas to compare speculative decoding at")
    parts: str = key(
        "abcdefg",
        "parts of the table: a generate, b assisted, c prompt lookup, d a step, e a pass, f growth, g batches",
    )
    batches: list[int] = fresh(lambda: [4, 16], "the batches of part g")
    repeats: int = key(3, "times that each decoder decodes each prompt")
    step_by_step: bool = key(False, "also time a draft whose steps cannot be captured as one CUDA graph")
    bandwidth: float | None = key(None, "GB/s, for the lower bound of a step; unset: measured by a copy")
    launch_us: float = key(1.5, "microseconds to launch a kernel, for the lower bound of a step")
    peers: list[str] = fresh(list, "other engines on the same weights: ctranslate2, llama.cpp (its prompt lookup, too)")


def check_bench(config: BenchConfig) -> None:
    """Check every value, before anything is loaded.

    Raises:
        UserError: the first value out of range.
    """
    check(config)
    require_fixed(config.draft)
    if isinstance(config.draft, TrainedConfig):
        raise UserError(
            f"draft={config.draft.kind}: its target hands over more than logits, which generate cannot read; use run"
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
    require(
        bool(config.gammas) and all(1 <= gamma <= MAX_GAMMA for gamma in config.gammas),
        "gammas", config.gammas, f"a list of numbers from 1 to {MAX_GAMMA}",
    )  # fmt: skip
    require(
        bool(config.parts) and set(config.parts) <= set("abcdefg"),
        "parts",
        config.parts,
        "letters from a to g, as in ab",
    )
    for name in config.peers:
        require(name in PEERS, "peers", name, "of " + ", ".join(PEERS))
        extra, packages = PEERS[name]
        if any(find_spec(package) is None for package in packages):
            raise UserError(f"peers={name}: it is not installed; pip install 'specbench-toolkit[{extra}]'")
    if config.peers and (config.target.weights == "random" or weights_folder(config.target) is None):
        raise UserError(f"peers={config.peers[0]}: this target's weights are random; name a folder of weights")
    require(
        bool(config.batches) and all(2 <= batch <= MAX_BATCH for batch in config.batches),
        "batches", config.batches, f"a list of numbers from 2 to {MAX_BATCH}",
    )  # fmt: skip
    require(config.batch == 1, "batch", config.batch, "1: part g times batches=[4,16]")
    require(config.repeats >= 1, "repeats", config.repeats, "at least 1")
    require(config.bandwidth is None or config.bandwidth > 0, "bandwidth", config.bandwidth, "above 0 (GB/s)")
    require(config.launch_us >= 0, "launch_us", config.launch_us, "at least 0 (us)")


# The keys of `specbench bench beam`: of a run those that a beam search has, and its own.


MAX_WIDTH = 64
MAX_U = 256


@dataclass
class BeamConfig:
    """A beam search of the target, and the drafts' widths and steps to try."""

    target: ModelConfig = fresh(ModelConfig, "the model that searches")
    draft: DraftConfig = fresh(DraftKeys, "the model that searches ahead")
    task: TaskConfig = fresh(TaskConfig, "what to decode")
    width: int = key(4, "w: beams of the target")
    u: list[int] | None = key(None, "u: beams of the draft, a list, each at least width; unset: width and 2 width")
    gamma: list[int] = fresh(lambda: [1, 2, 3, 5], "the draft's steps in a pass")
    length_penalty: float = key(
        1.0, "length penalty: a hypothesis scores log-probability / length^this, as in generate"
    )
    early_stopping: bool | str = key(
        False, "true: over when `width` hypotheses have ended | false, never: the heuristics of generate"
    )
    max_new_tokens: int = key(128, "the most tokens generated for a prompt")
    limit: int | None = key(8, "prompts")
    dtype: str = key("float32", "as in specbench run; in bfloat16 near ties may fall either way")
    device: str = key("auto", "cpu | cuda | cuda:N | mps | auto: cuda where there is one")
    threads: int | None = key(None, "CPU threads of torch; unset: torch's own choice")
    results: str = key("results", "the folder of the records")


def check_beam(config: BeamConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    require(2 <= config.width <= MAX_WIDTH, "width", config.width, f"from 2 to {MAX_WIDTH}")
    require(
        config.u is None or (bool(config.u) and all(config.width <= u <= MAX_U for u in config.u)),
        "u", config.u, f"a list of numbers from width={config.width} to {MAX_U}, or null",
    )  # fmt: skip
    require(
        bool(config.gamma) and all(1 <= gamma <= MAX_GAMMA for gamma in config.gamma),
        "gamma", config.gamma, f"a list of numbers from 1 to {MAX_GAMMA}",
    )  # fmt: skip
    require(
        math.isfinite(config.length_penalty) and abs(config.length_penalty) <= 10,
        "length_penalty", config.length_penalty, "from -10 to 10",
    )  # fmt: skip
    require(
        isinstance(config.early_stopping, bool) or config.early_stopping == "never",
        "early_stopping", config.early_stopping, "true | false | never",
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


# The keys of `specbench certify`: of a run those that its target and its sampling have, and a few of its own.


@dataclass
class CertifyConfig:
    """The keys of `specbench certify`."""

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
    )
    noise: float | None = key(
        None,
        "T=0: how far the server's logits may differ from ours; unset: measured on this machine",
    )
    limit: int | None = key(None, "rows; unset: all")
    dtype: str = key("auto", "the server's: bfloat16 | float32 | float16; auto: as in specbench run")
    device: str = key("auto", "cpu | cuda | cuda:N | mps | auto: cuda where there is one")
    threads: int | None = key(None, "CPU threads of torch; unset: torch's own choice")
    seed: int = key(0, "of the target's own completions, which test how often a completion is tokenised differently")


def check_certify(config: CertifyConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    require(0 < config.within < 1, "within", config.within, "between 0 and 1")
    noise = config.noise
    require(noise is None or (math.isfinite(noise) and noise >= 0), "noise", noise, "at least 0, or null")
    require(config.target.weights == "trained", "target.weights", config.target.weights, "trained")
    require_fixed(config.draft)
    check(certify_run(config))


def certify_run(config: CertifyConfig) -> RunConfig:
    """The run that loads the same target and draft. Its engine is eager: a text is read at once."""
    return RunConfig(
        target=config.target, draft=config.draft, task=config.task, sampling=config.sampling, gamma=1,
        limit=config.limit, dtype=config.dtype, device=config.device, engine="eager", threads=config.threads,
        seed=config.seed,
    )  # fmt: skip
