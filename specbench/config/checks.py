"""Range checks that types cannot express. Each error names the key, the value and what is allowed."""

import math
import re
from pathlib import Path

from specbench.config.draft import DraftConfig
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.extensions import extensions
from specbench.config.model import ModelConfig, check_model
from specbench.config.names import METRICS
from specbench.config.ranges import MAX_BATCH, MAX_GAMMA, require
from specbench.config.schema import AcceptConfig, RunConfig, TaskConfig
from specbench.config.tree import BY_TREE, check_tree
from specbench.errors import UserError
from specbench.methods.early_exit.config import EarlyExitConfig
from specbench.methods.layer_skip.config import LayerSkipConfig

GAMMAS = ("auto", "adaptive", "heuristic")
RULES = ("exact", "match", "onehot", "lenient", "typical", "top-beta", "block", "traversal", "k-seq")
ON_TREES = ("exact", "traversal", "k-seq", "typical")
ON_TREES_ALONE = {"traversal": "block", "k-seq": "exact"}  # and what they are on a chain
# Whose key it is.
RULE_OF = {"lenience": "lenient", "epsilon": "typical", "delta": "typical", "beta": "top-beta", "tau": "top-beta"}
PLACE = re.compile(r"\{\w+\}")  # of a field in a template
DTYPES = ("auto", "bfloat16", "float32", "float16")
ENGINES = ("auto", "eager", "static", "native", "cudagraph", "compile")
NUMERICS = ("auto", "invariant", "fast")


def check(config: RunConfig) -> None:
    """Check every value, and which keys go together, before anything is loaded.

    Raises:
        UserError: the first value out of range, or the first pair of keys that exclude each other.
    """
    fits = config.gamma in (*GAMMAS, BY_TREE) if isinstance(config.gamma, str) else 1 <= config.gamma <= MAX_GAMMA
    require(fits, "gamma", config.gamma, f"from 1 to {MAX_GAMMA}, or {' | '.join(GAMMAS)}")
    require(1 <= config.batch <= MAX_BATCH, "batch", config.batch, f"from 1 to {MAX_BATCH}")
    require(config.max_new_tokens >= 1, "max_new_tokens", config.max_new_tokens, "at least 1")
    require(config.limit is None or config.limit >= 1, "limit", config.limit, "at least 1, or null for all")
    require(config.warmup >= 0, "warmup", config.warmup, "at least 0")
    require(config.resamples >= 100, "resamples", config.resamples, "at least 100")
    require(config.seed >= 0, "seed", config.seed, "at least 0")
    require(config.dtype in DTYPES, "dtype", config.dtype, " | ".join(DTYPES))
    require(config.engine in ENGINES, "engine", config.engine, " | ".join(ENGINES))
    require(config.numerics in NUMERICS, "numerics", config.numerics, " | ".join(NUMERICS))
    device = re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", config.device)
    require(device is not None, "device", config.device, "auto | cpu | cuda | cuda:N | mps")
    require(config.threads is None or config.threads >= 1, "threads", config.threads, "at least 1, or null")
    sampling = config.sampling
    require(0 <= sampling.temperature <= 100, "sampling.temperature", sampling.temperature, "from 0 to 100")
    require(
        sampling.top_k is None or sampling.top_k >= 1,
        "sampling.top_k", sampling.top_k, "at least 1, or null for off",
    )  # fmt: skip
    require(
        sampling.top_p is None or 0 < sampling.top_p <= 1,
        "sampling.top_p", sampling.top_p, "above 0 and at most 1, or null for off",
    )  # fmt: skip
    alpha = config.simulate.alpha
    require(alpha is None or 0 <= alpha <= 1, "simulate.alpha", alpha, "from 0 to 1, or null")
    _check_accept(config.accept, sampling.temperature)
    if alpha is not None and config.accept.rule != "exact":
        raise UserError(f"accept={config.accept.rule}: not together with simulate.alpha, which accepts by chance")
    check_model("target", config.target)
    config.draft.check("draft")
    if config.draft.inside_target and (config.target.device_map or config.target.tp_plan):
        raise UserError(
            f"draft={config.draft.kind}: works inside the target, which must be on one device for it; "
            "leave target.device_map and target.tp_plan null"
        )
    if config.gamma in ("auto", "adaptive") and (objection := config.draft.objection_to_probe()) is not None:
        raise UserError(f"gamma={config.gamma}: {objection}")
    if config.batch > 1:
        _check_batch(config)
    if config.draft.learns:
        _check_learning(config)
    models = (config.target, *(one for one in config.draft.levels() if isinstance(one, ModelConfig)))
    if alpha is None and any(model.weights == "random" for model in models):
        raise UserError("weights=random: alpha of random weights means nothing; set simulate.alpha=0.75 to time passes")
    check_tree(config.tree)
    _check_tree_in_run(config)
    _check_task(config.task)


def require_fixed(draft: DraftConfig) -> None:
    """Raise UserError where the weights of `draft` change, for a verb that measures one draft."""
    if draft.learns:
        raise UserError("draft.online=true: is for specbench run and sweep; here the draft must remain as it is")


def _check_learning(config: RunConfig) -> None:
    """Raise UserError where a draft cannot learn between prompts."""
    if config.batch > 1:
        raise UserError(f"batch={config.batch}: draft.online=true learns from one prompt after another; use batch=1")
    if config.simulate.alpha is not None:
        raise UserError(
            f"simulate.alpha={config.simulate.alpha}: a draft has nothing to learn from acceptance by chance"
        )
    if config.engine == "compile":
        raise UserError("engine=compile: freezes the draft's weights, which draft.online=true changes; use engine=auto")
    if config.target.device_map or config.target.tp_plan:
        raise UserError(
            "draft.online=true: needs a target on one device; leave target.device_map and target.tp_plan null"
        )


def _check_batch(config: RunConfig) -> None:
    """Raise UserError where a run does not decode in batches."""
    if config.gamma in ("auto", "adaptive"):
        raise UserError(
            f"gamma={config.gamma}: its probe times passes of one prompt; with batch={config.batch} give a "
            "number, or gamma=heuristic"
        )
    if any(isinstance(one, EarlyExitConfig | LayerSkipConfig) for one in config.draft.levels()):
        raise UserError(
            f"draft={config.draft.label()}: cannot be batched, since it extends the target's own cache; use batch=1"
        )
    if config.target.device_map or config.target.tp_plan:
        raise UserError(
            f"batch={config.batch}: the target must be on one device for it; leave target.device_map and "
            "target.tp_plan null, or use batch=1"
        )


def _check_accept(accept: AcceptConfig, temperature: float) -> None:
    rules = (*RULES, *extensions("rules"))
    require(accept.rule in rules, "accept.rule", accept.rule, " | ".join(rules))
    for key, rule in RULE_OF.items():
        value = getattr(accept, key)
        if value is None and rule == accept.rule:
            raise UserError(f"accept.{key} is not set: accept={rule} requires it")
        if value is not None and rule != accept.rule:
            raise UserError(f"accept.{key}={value}: only accept={rule} has this key; set both, or neither")
    require(
        accept.lenience is None or 0 < accept.lenience <= 1,
        "accept.lenience", accept.lenience, "above 0 and at most 1",
    )  # fmt: skip
    for key, value in (("epsilon", accept.epsilon), ("delta", accept.delta)):
        require(value is None or 0 < value < 1, f"accept.{key}", value, "between 0 and 1")
    require(accept.beta is None or accept.beta >= 1, "accept.beta", accept.beta, "at least 1")
    require(accept.tau is None or 0 <= accept.tau < math.inf, "accept.tau", accept.tau, "at least 0")
    if accept.rule == "top-beta" and temperature > 0:
        raise UserError(
            f"accept=top-beta: compares tokens with the argmax, so not at sampling.temperature={temperature:g}; use "
            "sampling.temperature=0, or accept=lenient or accept=typical"
        )


def _check_tree_in_run(config: RunConfig) -> None:
    """Raise UserError where a valid tree does not go together with the rest of the run."""
    tree = config.tree
    if tree.shape == "none":
        if config.gamma == BY_TREE:
            raise UserError("gamma=tree: requires a tree, such as tree=sequoia")
        if (chain := ON_TREES_ALONE.get(config.accept.rule)) is not None:
            raise UserError(f"accept={config.accept.rule}: requires a tree, such as tree=widths; or use accept={chain}")
        if (objection := config.draft.objection_to_chain()) is not None:
            raise UserError(f"draft={config.draft.kind}: {objection}; pick one, such as tree=widths")
        if config.draft.own_tree:
            rules = [rule for rule in ON_TREES if rule not in ON_TREES_ALONE]
            require(
                config.accept.rule in rules,
                "accept.rule", config.accept.rule, f"{' | '.join(rules)} with draft={config.draft.kind}",
            )  # fmt: skip
            if config.simulate.alpha is not None:
                raise UserError(f"simulate.alpha={config.simulate.alpha}: not together with draft={config.draft.kind}")
        return
    if config.gamma != BY_TREE:
        raise UserError(f"gamma={config.gamma}: not together with tree={tree.shape}, whose depth takes its place")
    if (objection := config.draft.objection_to_tree()) is not None:
        others = " | ".join(kind for kind, draft in DRAFT_KINDS.items() if draft.grows_trees)
        raise UserError(f"tree={tree.shape}: draft={config.draft.label()}: {objection}; use tree=none, or {others}")
    if config.draft.found_in_text and tree.children not in ("distinct", "fixed"):
        raise UserError(
            f"tree.children={tree.children}: draft={config.draft.label()} does not draw its tokens; leave the key out"
        )
    if config.draft.confidence_bound() is not None:
        raise UserError(f"draft.confidence={config.draft.confidence_bound()}: not together with tree={tree.shape}")
    if config.simulate.alpha is not None:
        raise UserError(f"simulate.alpha={config.simulate.alpha}: not together with tree={tree.shape}")
    rule = config.accept.rule
    if rule in ("match", "onehot"):
        same = "accept=exact" if tree.shape == "dynamic" else "accept=exact tree.children=fixed"
        raise UserError(f"accept={rule}: not together with tree={tree.shape}; for a tree use {same}")
    require(rule in ON_TREES, "accept.rule", rule, f"{' | '.join(ON_TREES)} with tree={tree.shape}")
    if rule == "k-seq":
        _check_k_sequential(config)
    levels = len(tree.widths) if tree.widths is not None else tree.depth or 0
    if levels >= config.max_new_tokens:
        raise UserError(
            f"tree={tree.shape}: its {levels} levels have no room in max_new_tokens={config.max_new_tokens}, of which "
            "the target writes the last itself; give fewer levels"
        )


def _check_k_sequential(config: RunConfig) -> None:
    """K-SEQ tests k independent draws from one q, with a scale that depends on k."""
    tree = config.tree
    if tree.shape != "widths" or tree.children != "replaced":
        raise UserError(
            f"accept=k-seq: not together with tree={tree.shape}, tree.children={tree.children}: its children are "
            "independent draws, as many as a shape says; use tree=widths tree.children=replaced"
        )
    if not config.draft.scores_children:
        raise UserError(
            f"accept=k-seq: not together with draft={config.draft.label()}: its children are draws from one q; use "
            "accept=exact"
        )


def _check_task(task: TaskConfig) -> None:
    for key, path in (("task.path", task.path), ("task.train_path", task.train_path)):
        require(path is None or Path(path).exists(), key, path, "a file or folder; there is none of that name")
    if task.path is None and task.hub is None and task.shipped is None:
        raise UserError(f"task={task.name}: set task.path=FILE, a file of rows (.jsonl, .csv, .txt, .gz or not)")
    require(
        task.template is None or PLACE.search(task.template) is not None,
        "task.template", task.template, "text with {field} for a field of a row",
    )  # fmt: skip
    if task.chat_template and task.source_field is None and task.template is None:
        raise UserError(
            f"task.chat_template=true: task={task.name} gives the beginning of a text, which no template asks for; "
            "use task=prompts, or set task.source_field="
        )
    require(task.shuffle is None or task.shuffle >= 0, "task.shuffle", task.shuffle, "at least 0, or null")
    require(task.rows_per_prompt >= 1, "task.rows_per_prompt", task.rows_per_prompt, "at least 1")
    require(task.max_source_tokens >= 1, "task.max_source_tokens", task.max_source_tokens, "at least 1")
    require(task.train_limit >= 1, "task.train_limit", task.train_limit, "at least 1")
    require(
        task.prompt_words is None or task.prompt_words >= 0,
        "task.prompt_words", task.prompt_words, "at least 0, or null",
    )  # fmt: skip
    require(task.metric is None or task.metric in METRICS, "task.metric", task.metric, " | ".join(METRICS))
