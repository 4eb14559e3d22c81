"""Range checks that types cannot express. Each error names the key, the value and what is allowed."""

import re
from pathlib import Path

from specbench.config.kinds import DRAFT_KINDS, levels
from specbench.config.recipes import made_by
from specbench.config.schema import AcceptConfig, DraftConfig, ModelConfig, RunConfig, TaskConfig
from specbench.errors import UserError

MAX_GAMMA = 64
GAMMAS = ("auto", "adaptive", "heuristic")
RULES = ("exact", "lenient", "typical", "block")
RULE_OF = {"lenience": "lenient", "epsilon": "typical", "delta": "typical"}  # whose key it is
DTYPES = ("auto", "bfloat16", "float32", "float16")
DEVICE_MAPS = ("auto", "balanced", "sequential")
METRICS = ("bleu", "rouge")
WEIGHTS = ("trained", "random")
ENGINES = ("auto", "eager", "static", "cudagraph", "compile")


def require(holds: bool, key: str, value: object, allowed: str) -> None:
    """Raise a UserError that names `key`, its value and what is allowed, unless `holds`."""
    if not holds:
        raise UserError(f"{key}={value}: must be {allowed}")


def check(config: RunConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    fits = config.gamma in GAMMAS if isinstance(config.gamma, str) else 1 <= config.gamma <= MAX_GAMMA
    require(fits, "gamma", config.gamma, f"from 1 to {MAX_GAMMA}, or {' | '.join(GAMMAS)}")
    require(config.max_new_tokens >= 1, "max_new_tokens", config.max_new_tokens, "at least 1")
    require(config.limit is None or config.limit >= 1, "limit", config.limit, "at least 1, or null for all")
    require(config.warmup >= 0, "warmup", config.warmup, "at least 0")
    require(config.resamples >= 100, "resamples", config.resamples, "at least 100")
    require(config.seed >= 0, "seed", config.seed, "at least 0")
    require(config.dtype in DTYPES, "dtype", config.dtype, " | ".join(DTYPES))
    require(config.engine in ENGINES, "engine", config.engine, " | ".join(ENGINES))
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
    _check_accept(config.accept)
    if alpha is not None and config.accept.rule != "exact":
        raise UserError(f"accept={config.accept.rule}: not together with simulate.alpha, which accepts by chance")
    _check_model("target", config.target)
    _check_draft(config.draft)
    if DRAFT_KINDS[config.draft.kind].inside and (config.target.device_map or config.target.tp_plan):
        raise UserError(
            f"draft={config.draft.kind}: works inside the target, which must be on one device for it; "
            "leave target.device_map and target.tp_plan null"
        )
    _check_confidence(config)
    _check_heads(config)
    if alpha is None and "random" in (config.target.weights, *(one.weights for one in levels(config.draft))):
        raise UserError(
            "weights=random: alpha of random weights says nothing; give one to time with, simulate.alpha=0.75"
        )
    _check_task(config.task)


def _check_accept(accept: AcceptConfig) -> None:
    require(accept.rule in RULES, "accept.rule", accept.rule, " | ".join(RULES))
    for key, rule in RULE_OF.items():
        value = getattr(accept, key)
        if value is None and rule == accept.rule:
            raise UserError(f"accept.{key} is not set: accept={rule} needs one")
        if value is not None and rule != accept.rule:
            raise UserError(f"accept.{key}={value}: only accept={rule} has one; set both, or neither")
    require(
        accept.lenience is None or 0 < accept.lenience <= 1,
        "accept.lenience", accept.lenience, "above 0 and at most 1",
    )  # fmt: skip
    for key, value in (("epsilon", accept.epsilon), ("delta", accept.delta)):
        require(value is None or 0 < value < 1, f"accept.{key}", value, "between 0 and 1")


def _check_confidence(config: RunConfig) -> None:
    confidence = config.draft.confidence
    if confidence is None:
        return
    require(0 < confidence <= 1, "draft.confidence", confidence, "above 0 and at most 1, or null")
    require(config.draft.kind == "model", "draft.confidence", confidence, f"null for draft.kind={config.draft.kind}")
    if config.gamma in ("auto", "adaptive"):
        raise UserError(f"gamma={config.gamma}: where draft.confidence ends proposals, give a number or heuristic")


def _check_heads(config: RunConfig) -> None:
    if config.draft.kind == "blockwise" and config.gamma in ("auto", "adaptive"):
        raise UserError(
            f"gamma={config.gamma}: its probe hears the first of the heads alone, and those behind it agree less; "
            "with draft=blockwise give a number or heuristic"
        )


def _check_model(key: str, model: ModelConfig) -> None:
    require(model.device_map in (None, *DEVICE_MAPS), f"{key}.device_map", model.device_map, " | ".join(DEVICE_MAPS))
    require(model.tp_plan in (None, "auto"), f"{key}.tp_plan", model.tp_plan, "auto, or null")
    if key.startswith("draft") and (model.device_map or model.tp_plan):
        raise UserError(f"{key}.device_map, {key}.tp_plan: a draft lives on one device; leave them null")
    if model.device_map and model.tp_plan:
        raise UserError(f"{key}.device_map={model.device_map}: not together with {key}.tp_plan; leave one of them null")
    require(model.weights in WEIGHTS, f"{key}.weights", model.weights, " | ".join(WEIGHTS))
    if model.architecture:
        require(model.weights == "random", f"{key}.weights", model.weights, f"random where {key}.architecture is given")
    elif model.path is not None:
        there = Path(model.path).is_dir()
        if not there and (how := made_by(model.path)):
            raise UserError(f"{key}.path={model.path}: is not there yet; {how}")
        require(there, f"{key}.path", model.path, "a folder; there is none of that name")
    elif model.hub is not None:
        if not model.revision:
            raise UserError(
                f"{key}.revision is not set: give the commit of {model.hub} to use, so that the run can be repeated"
            )
    elif model.shipped is None:
        raise UserError(f"{key}: set {key}.path=FOLDER, or {key}.hub=ID and {key}.revision=COMMIT")


def _check_draft(draft: DraftConfig, key: str = "draft") -> None:
    require(draft.kind in DRAFT_KINDS, f"{key}.kind", draft.kind, " | ".join(DRAFT_KINDS))
    require(1 <= draft.match <= 32, f"{key}.match", draft.match, "from 1 to 32")
    require(1 <= draft.order <= 8, f"{key}.order", draft.order, "from 1 to 8")
    require(0 < draft.discount < 1, f"{key}.discount", draft.discount, "between 0 and 1")
    require(
        draft.corpus is None or Path(draft.corpus).exists(),
        f"{key}.corpus", draft.corpus, "a file or folder; there is none of that name",
    )  # fmt: skip
    require(draft.layers >= 1, f"{key}.layers", draft.layers, "at least 1")
    if draft.kind == "blockwise" and draft.path is None and draft.shipped is None:
        raise UserError(f"{key}.path is not set: give the folder that `specbench train recipe=blockwise` wrote")
    if DRAFT_KINDS[draft.kind].weights:
        _check_model(key, draft)
    if draft.kind == "cascade":
        _check_cascade(draft, key)


def _check_cascade(draft: DraftConfig, key: str) -> None:
    require(1 <= draft.inner_gamma <= MAX_GAMMA, f"{key}.inner_gamma", draft.inner_gamma, f"from 1 to {MAX_GAMMA}")
    for name, part in (("via", draft.via), ("inner", draft.inner)):
        if part is None:
            raise UserError(f"{key}.{name} is not set: a cascade is made of two drafts; give draft@{key}.{name}=NAME")
        _check_draft(part, f"{key}.{name}")
        if name == "via":
            require(part.kind == "model", f"{key}.via.kind", part.kind, "model: the target checks its distribution")
            require(part.confidence is None, f"{key}.via.confidence", part.confidence, "null in a cascade")


def _check_task(task: TaskConfig) -> None:
    for key, path in (("task.path", task.path), ("task.train_path", task.train_path)):
        require(path is None or Path(path).exists(), key, path, "a file or folder; there is none of that name")
    if task.path is None and task.hub is None and task.shipped is None:
        raise UserError(f"task={task.name}: set task.path=FILE, a file of rows (.jsonl, .csv, .txt, .gz or not)")
    if task.chat_template and task.source_field is None:
        raise UserError(
            f"task.chat_template=true: task={task.name} gives the beginning of a text, which no template asks for; "
            "use task=prompts, or set task.source_field="
        )
    require(task.rows_per_prompt >= 1, "task.rows_per_prompt", task.rows_per_prompt, "at least 1")
    require(task.max_source_tokens >= 1, "task.max_source_tokens", task.max_source_tokens, "at least 1")
    require(task.train_limit >= 1, "task.train_limit", task.train_limit, "at least 1")
    require(
        task.prompt_words is None or task.prompt_words >= 0,
        "task.prompt_words", task.prompt_words, "at least 0, or null",
    )  # fmt: skip
    require(task.metric is None or task.metric in METRICS, "task.metric", task.metric, " | ".join(METRICS))
