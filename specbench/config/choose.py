"""The keys of `specbench alpha`, `recommend` and `validate`: those of a run, and a few of their own."""

from dataclasses import dataclass, fields, replace

from specbench.config.checks import check, require_fixed
from specbench.config.keys import fresh, key, keys_of
from specbench.config.ranges import MAX_BATCH, MAX_GAMMA, require
from specbench.config.schema import RunConfig
from specbench.config.tree import AUTO
from specbench.errors import UserError


@dataclass
class ChooseConfig(RunConfig):
    """One draft of several; the command line makes one of these for each."""

    tokens: int | None = key(
        None,
        "tokens of the target's completions to score; unset: 10,000 on a GPU, 2,000 on a CPU",
    )
    leniences: list[float] = fresh(lambda: [1.0, 0.5, 0.3, 0.1], "of alpha(l), appendix A.5", ("alpha",))
    gammas: list[int] = fresh(lambda: [1, 2, 3, 4, 5, 7, 10], "the gammas to compare", ("recommend", "validate"))
    rounds: int = key(6, "rounds of timed passes; 24 for narrow intervals", ("recommend", "validate"))
    verify: int = key(0, "number of best candidates to check by real runs", ("recommend",))
    searches: int = key(
        200, "draft.skip=[auto]: the most sets of sublayers that the search tries", ("alpha", "recommend")
    )
    search_tokens: int = key(
        300, "draft.skip=[auto]: tokens of the target's completions for the search", ("alpha", "recommend")
    )
    batches: list[int] = fresh(lambda: [1], "batch=1,4,16: a ranking for each batch", ("recommend",))
    repeats: int = key(2, "times that each candidate decodes each prompt", ("validate",))


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
    "validate": {"gamma": "gammas=[…]", "warmup": "", "force": "", "batch": ""}
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
