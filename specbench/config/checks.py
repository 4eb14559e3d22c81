"""Range checks that types cannot express. Each error names the key, the value and what is allowed."""

from specbench.config.draft import DraftConfig
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.keys import MAX_GAMMA, require, require_allowed
from specbench.config.model import ModelConfig, check_model
from specbench.config.rule import RuleConfig
from specbench.config.rules import RULES, rule_of
from specbench.config.schema import DRAWING, ENDING, RunConfig, TaskConfig
from specbench.config.tree import BY_TREE, check_tree
from specbench.errors import UserError
from specbench.methods.target_layers.config import EarlyExitConfig, LayerSkipConfig

GAMMAS = ("auto", "adaptive", "heuristic")


def check(config: RunConfig) -> None:
    """Check every value, and which keys go together, before anything is loaded.

    Raises UserError for the first value out of range, or the first pair of keys that exclude each other.
    """
    fits = config.gamma in (*GAMMAS, BY_TREE) if isinstance(config.gamma, str) else 1 <= config.gamma <= MAX_GAMMA
    require(fits, "gamma", config.gamma, f"from 1 to {MAX_GAMMA}, or {' | '.join(GAMMAS)}")
    require_allowed(config)
    alpha = config.simulate.alpha
    rule = rule_of(config.accept)
    rule.check(config.sampling.temperature, config.tree, config.draft)
    if alpha is not None and config.accept.rule != "exact":
        raise UserError(f"accept={config.accept.rule}: not together with simulate.alpha, which accepts by chance")
    check_model("target", config.target)
    config.draft.check("draft")
    _check_sampling(config)
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
    if config.runs > 1 and config.until is not None:
        raise UserError(
            f"runs={config.runs}: not together with until={config.until}, which looks at one process; find the number "
            "of prompts with until, then give it as limit"
        )
    if config.target.tp_plan and (config.runs > 1 or config.until is not None):
        name = f"runs={config.runs}" if config.runs > 1 else f"until={config.until}"
        raise UserError(f"{name}: not together with target.tp_plan, whose processes decode the same prompts")
    models = (config.target, *(one for one in config.draft.levels() if isinstance(one, ModelConfig)))
    if alpha is None and config.tells_alpha and any(model.weights == "random" for model in models):
        raise UserError("weights=random: alpha of random weights means nothing; set simulate.alpha=0.75 to time passes")
    check_tree(config.tree)
    _check_tree_in_run(config, rule)
    _check_task(config.task)


def _check_sampling(config: RunConfig) -> None:
    """Raise UserError if logits cannot be processed as `sampling` says."""
    sampling = config.sampling
    sampling.pattern()
    require(all(word.strip() for word in sampling.bad_words), "sampling.bad_words", sampling.bad_words, "words")
    require(
        sampling.min_new_tokens <= config.max_new_tokens,
        "sampling.min_new_tokens", sampling.min_new_tokens, f"at most max_new_tokens={config.max_new_tokens}",
    )  # fmt: skip
    require(all(sampling.bad_words_ids), "sampling.bad_words_ids", sampling.bad_words_ids, "lists of token ids")
    require(
        len(sampling.forced_tokens) <= config.max_new_tokens,
        "sampling.forced_tokens", sampling.forced_tokens, f"at most max_new_tokens={config.max_new_tokens} of them",
    )  # fmt: skip
    if sampling.ignore_eos and (sampling.regex is not None or sampling.min_new_tokens):
        name = "min_new_tokens" if sampling.regex is None else "regex"
        raise UserError(f"sampling.ignore_eos=true: not together with sampling.{name}, which is about the end")
    if sampling.stop and config.simulate.alpha is not None:
        raise UserError(f"simulate.alpha={config.simulate.alpha}: not together with sampling.stop: texts mean nothing")
    if not sampling.processes:
        return
    name = next(name for name in sampling.set_keys() if name not in (*DRAWING, *ENDING))
    if config.batch > 1:
        raise UserError(f"batch={config.batch}: not together with sampling.{name}, which is for batch=1")
    if config.simulate.alpha is not None:
        raise UserError(
            f"simulate.alpha={config.simulate.alpha}: not together with sampling.{name}: texts mean nothing"
        )
    if config.draft.learns:
        raise UserError(f"draft.online=true: not together with sampling.{name}: it learns the target's own logits")
    if sampling.regex is not None and sampling.min_new_tokens:
        raise UserError(
            "sampling.min_new_tokens: not together with sampling.regex, which may leave only the end; give a "
            "pattern of that length"
        )


def require_fixed(draft: DraftConfig) -> None:
    """Raise UserError if the weights of `draft` change, for a verb that measures one draft."""
    if draft.learns:
        raise UserError("draft.online=true: is for specbench run and sweep; here the draft must remain as it is")


def _check_learning(config: RunConfig) -> None:
    """Raise UserError if a draft cannot learn between prompts."""
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
    """Raise UserError if a run does not decode in batches."""
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


def _check_tree_in_run(config: RunConfig, rule: RuleConfig) -> None:
    """Raise UserError if a valid tree does not go together with the rest of the run."""
    tree = config.tree
    on_trees = [name for name, kind in RULES.items() if kind.on_trees]
    if tree.shape == "none":
        if config.gamma == BY_TREE:
            raise UserError("gamma=tree: requires a tree, such as tree=sequoia")
        if rule.on_chain is not None:
            raise UserError(f"accept={rule.name}: requires a tree, such as tree=widths; or use accept={rule.on_chain}")
        if (objection := config.draft.objection_to_chain()) is not None:
            raise UserError(f"draft={config.draft.kind}: {objection}; pick one, such as tree=widths")
        if config.draft.own_tree:
            rules = [name for name in on_trees if RULES[name].on_chain is None]
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
            f"tree.children={tree.children}: draft={config.draft.label()} does not draw its tokens; leave it out"
        )
    if config.draft.confidence_bound() is not None:
        raise UserError(f"draft.confidence={config.draft.confidence_bound()}: not together with tree={tree.shape}")
    if config.simulate.alpha is not None:
        raise UserError(f"simulate.alpha={config.simulate.alpha}: not together with tree={tree.shape}")
    if rule.instead_on_trees is not None:
        same = "accept=exact" if tree.shape == "dynamic" else rule.instead_on_trees
        raise UserError(f"accept={rule.name}: not together with tree={tree.shape}; for a tree use {same}")
    name = config.accept.rule
    require(rule.on_trees, "accept.rule", name, f"{' | '.join(on_trees)} with tree={tree.shape}")
    levels = len(tree.widths) if tree.widths is not None else tree.depth or 0
    if levels >= config.max_new_tokens:
        raise UserError(
            f"tree={tree.shape}: its {levels} levels have no room in max_new_tokens={config.max_new_tokens}, of which "
            "the target writes the last itself; give fewer levels"
        )


def _check_task(task: TaskConfig) -> None:
    if task.path is None and task.hub is None and task.shipped is None:
        raise UserError(f"task={task.name}: set task.path=FILE, a file of rows (.jsonl, .csv, .txt, .gz or not)")
    if task.chat_template and task.source_field is None and task.template is None:
        raise UserError(
            f"task.chat_template=true: task={task.name} gives the beginning of a text, which no template asks for; "
            "use task=prompts, or set task.source_field="
        )
