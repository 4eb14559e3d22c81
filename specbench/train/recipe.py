"""One recipe from data to a finished folder: rows → tokenizer → network → Trainer → saved model → card.

The only file here that knows the order of things. A killed run resumes from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from accelerate import PartialState
from datasets import Dataset
from torch import nn
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
    Trainer,
    default_data_collator,
    set_seed,
)

from specbench.config.draft import TrainedConfig, named
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.places import OF_MODELS, SHIPPED
from specbench.environment import environment, require_cpus
from specbench.errors import MachineError, UserError
from specbench.files import json_text, write_atomically
from specbench.formatting import markdown_table
from specbench.nouns import with_noun
from specbench.train import networks
from specbench.train.frozen import FrozenTargetLearner
from specbench.train.quality import bleu_metric, held_out_prompts, measure, prompts
from specbench.train.resuming import CHECKPOINTS, MarksWhole, claim, interrupted, last_whole, step_of
from specbench.train.rows import read
from specbench.train.schema import (
    BlockPlan,
    DataPlan,
    EaglePlan,
    Recipe,
    check,
    portable,
    require_made,
    resolve,
    short_name,
    with_places,
)
from specbench.train.sets import evaluation_set, make_tokenizer, training_rows, training_set
from specbench.train.trainers import Clock, DistillTrainer, SizedTrainer, use_byte_dropout

# What a recipe leaves open and its target decides: the kind of text, the family, the field, and the depths of taps.
#
# The general recipes (`medusa`, `eagle`, …) are written for an encoder-decoder target that translates. With a
# decoder-only target the same recipe trains on running text. Only the target's config is read, no weights.


PROMPTS = "held-out.jsonl"  # beside the weights: what the next command decodes
TEXTS = SHIPPED + "data/sum-mini.jsonl.gz"  # held-out texts, as ende-mini is held-out pairs
HELD_OUT_TEXTS = 200  # of a decoder-only target's rows, if no other rows measure what is trained
TEXT_FIELDS = ("text", "prompt")  # of rows of running text, the first that a row has


def fitted_to_target(recipe: Recipe, given: Collection[str] = ()) -> Recipe:
    """`recipe` for its `distill.target`; the keys in `given` remain as they are.

    A target whose config cannot be read changes nothing: loading it reports the error. Raises UserError if a given
    `task` contradicts the target.
    """
    recipe = with_places(recipe)
    config = _config_of(recipe)
    kind = None if config is None else "seq2seq" if config.is_encoder_decoder else "lm"
    if kind is not None and kind != recipe.task:
        called = "decoder-only" if kind == "lm" else "an encoder-decoder"
        if "task" in given:
            raise UserError(
                f"task={recipe.task}: distill.target={recipe.distill.target} is {called}, which requires task={kind}"
            )
        if recipe.specdec.queries:
            raise UserError(
                f"distill.target={recipe.distill.target}: is decoder-only, and specdec reads the encoder of a T5; "
                "use another recipe, such as medusa or eagle"
            )
        recipe = replace(recipe, task=kind)
    if kind is not None and recipe.model.start_from is None:
        recipe = replace(recipe, model=replace(recipe.model, family="gpt2" if kind == "lm" else "t5"))
    if config is not None:
        recipe = replace(recipe, eagle=_with_taps(recipe.eagle, config), block=_with_block_taps(recipe.block, config))
    if recipe.task != "lm":
        return recipe
    data = _text_plan(recipe.data, given)
    if kind is not None and data.hold_out is None and not data.test:
        data = replace(data, hold_out=HELD_OUT_TEXTS)
    return replace(recipe, data=data)


def usual_taps(layers: int) -> list[int]:
    """EAGLE-3's depths in a target of `layers` decoder layers: 2, n/2 and n-3, or thirds where these are not in order.

    Li et al. 2025 (2503.01840) fuse a low, a middle and a high depth; 2, n/2 and n-3 are those of their code.
    """
    theirs = [2, layers // 2, layers - 3]
    return theirs if theirs == sorted(set(theirs)) else sorted({layers // 3, 2 * layers // 3, layers})


def _with_taps(plan: EaglePlan, config: Any) -> EaglePlan:
    """Raise UserError where the target has fewer layers than `plan` asks for."""
    layers = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
    if plan.taps and not 0 <= min(plan.taps) <= max(plan.taps) <= layers:
        raise UserError(
            f"eagle.taps={list(plan.taps)}: the target has {layers} decoder layers; the usual depths are "
            f"eagle.taps={usual_taps(layers)}"
        )
    return replace(plan, taps=usual_taps(layers)) if plan.fused and not plan.taps else plan


def _with_block_taps(plan: BlockPlan, config: Any) -> BlockPlan:
    """`plan` with the usual depths where it names none; never the last, whose state is the head's."""
    if not plan.size or plan.taps:
        return plan
    layers = config.num_hidden_layers
    return replace(plan, taps=sorted({min(depth, layers - 1) for depth in usual_taps(layers)}))


def _config_of(recipe: Recipe) -> Any:
    """The `transformers` config of the target; None if there is no target, or its config cannot be read."""
    if not recipe.distill.target:
        return None
    try:
        return networks.load_config(recipe.distill.target, recipe.distill.revision)
    except (UserError, MachineError):
        return None


def _text_plan(plan: DataPlan, given: Collection[str]) -> DataPlan:
    """`plan` for running text: without the recipe's own files of sentence pairs, and with the field that rows have."""
    own = {SHIPPED + "data/ende-mini.jsonl.gz", SHIPPED + "data/ende-mini-sentences.jsonl.gz"}
    if "data.exclude" not in given and own & {*plan.exclude}:
        plan = replace(plan, exclude=[TEXTS, *(file for file in plan.exclude if file not in own)])
    if not any(name.startswith("data.test") for name in given):
        plan = replace(plan, test={name: file for name, file in plan.test.items() if file not in own})
    there = [file for file in plan.path if Path(resolve(file)).exists()]  # training reports the others
    row = next(chain.from_iterable(islice(read(file), 1) for file in there), None)
    if "data.text" in given or row is None or isinstance(row.get(plan.text), str):
        return plan
    return replace(plan, text=next((name for name in TEXT_FIELDS if isinstance(row.get(name), str)), plan.text))


@dataclass
class Facts:
    """The measured values that a model card states."""

    parameters: int
    rows: int
    seconds: float
    tokens: int
    loss: float | None
    steps: int
    measured: dict[str, str] = field(default_factory=dict)  # 'BLEU, multi30k-test2016' -> '25.3'


def write_card(recipe: Recipe, facts: Facts, folder: Path, composed_from: str | None = None) -> None:
    """README.md and recipe.yaml beside the weights; `composed_from` is the choice of `recipe=`, None without one."""
    (folder / "recipe.yaml").write_text(
        yaml.safe_dump(portable(asdict(recipe)), sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
    data = recipe.data
    where = data.hub or ", ".join(short_name(path) for path in data.path)
    kept = "".join(f", {name} in {list(values)}" for name, values in data.keep.items())
    held = "".join(f"; without {short_name(path)} and near copies" for path in data.exclude)
    running = ", ".join(short_name(path) for path in data.passages.path)
    held += f"; and passages of {running}, to be summarised by their first sentences" if running else ""
    rows = [
        ("parameters", f"{facts.parameters:,}" if facts.parameters < 1e5 else f"{facts.parameters / 1e6:.2f}M"),
        ("data", f"{where}{kept}{held} ({facts.rows:,} rows)"),
        ("steps", f"{facts.steps:,} of {recipe.optim.batch_size * recipe.optim.accumulate} rows"),
        ("training tokens", f"{facts.tokens:,}"),
        ("learning rate", f"{recipe.optim.lr:g} ({recipe.optim.lr_scale}), {recipe.optim.schedule}"),
        ("seed", str(recipe.seed)),
        ("hardware", f"{hardware()}, {facts.seconds / 60:.0f} minutes"),
        ("software", f"torch {torch.__version__}, transformers {transformers.__version__}"),
        ("last loss", "not logged" if facts.loss is None else f"{facts.loss:.3f}"),
    ]
    if recipe.distill.target:
        rows.insert(2, ("distilled from", short_name(recipe.distill.target)))
    if recipe.distill.start_from:
        rows.insert(3, ("started from", short_name(recipe.distill.start_from)))
    rows += facts.measured.items()
    made = f"`specbench train recipe={composed_from}`" if composed_from else "specbench"
    (folder / "README.md").write_text(
        f"---\nlibrary_name: transformers\n---\n# {recipe.name}\n\n"
        f"Trained by {made}; the whole recipe is in `recipe.yaml`.\n\n"
        f"{markdown_table(('what', 'value'), rows)}\n",
        encoding="utf-8",
    )


def hardware() -> str:
    """The processor or GPU in words."""
    machine = environment()
    if machine["gpus"]:
        return f"{len(machine['gpus'])} x {machine['gpus'][0]}"
    return f"{machine['cores']} CPU cores ({machine['cpu']}), {with_noun(machine['threads'], 'thread')}"


def train(recipe: Recipe, composed_from: str | None = None) -> Path:
    """Run `recipe`, or finish it if it was interrupted; returns the folder that `from_pretrained` takes.

    `composed_from` is the choice of `recipe=` that it was composed from, which the card names.
    """
    recipe = with_places(check(recipe))
    require_made(recipe)
    try:
        return _train(recipe, composed_from)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(interrupted(recipe)) from error


def _train(recipe: Recipe, composed_from: str | None) -> Path:
    require_cpus(recipe.threads)
    output = Path(recipe.output).expanduser()
    output.mkdir(parents=True, exist_ok=True)
    # With several processes the first one fits the tokenizer and asks the target; the others read what it wrote.
    processes = PartialState(cpu=not torch.cuda.is_available())
    with processes.main_process_first():
        if processes.is_main_process:
            claim(recipe, output)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    set_seed(recipe.seed)
    rows, held = training_rows(recipe)
    with processes.main_process_first():
        tokenizer = make_tokenizer(recipe, rows, output)
    prompts(recipe, held, tokenizer)  # rows that nothing can be measured on end a training before it begins
    model: Any = None
    heads = recipe.heads_kind()
    if heads is None:
        model = networks.build(recipe.model, tokenizer)
        if not torch.cuda.is_available():
            use_byte_dropout(model)
    target = load_target(recipe, model, tokenizer, processes.device)
    with processes.main_process_first():
        train_set = training_set(recipe, rows, tokenizer, target, output)
    if heads is not None:
        assert target is not None
        model = learner = make_learner(recipe, target, train_set)
        if recipe.distill.start_from:
            learner.continue_from(Path(resolve(recipe.distill.start_from)))
    eval_set = evaluation_set(recipe, tokenizer) if heads is None else None
    trainer = make_trainer(recipe, model, tokenizer, train_set, eval_set, target, output)
    minutes = recipe.optim.max_minutes
    clock = Clock(output / "seconds.txt", None if minutes is None else 60 * minutes)
    trainer.add_callback(clock)
    trainer.add_callback(MarksWhole())
    checkpoint = last_whole(output, told=processes.is_main_process)
    if checkpoint is not None and processes.is_main_process:
        print(f"{output}: resumes from step {step_of(checkpoint)} of {recipe.optim.max_steps}", file=sys.stderr)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.is_world_process_zero():
        if heads is not None:
            learner.save(recipe, output)
            measured = learner.measure(recipe, held, tokenizer)
        else:
            networks.save(model, tokenizer, output)
            measured = measure(recipe, held, model.eval(), tokenizer, target)
        history = trainer.state.log_history
        (output / "training-log.json").write_text(json.dumps(history, indent=1), encoding="utf-8")
        losses = [entry["loss"] for entry in history if "loss" in entry]
        per_row = sum(train_set["length"]) / len(train_set)
        facts = Facts(
            parameters=networks.parameter_count(trainer.model),
            rows=len(train_set),
            seconds=clock.seconds,
            tokens=round(per_row * recipe.optim.batch_size * recipe.optim.accumulate * trainer.state.global_step),
            loss=float(losses[-1]) if losses else None,
            steps=trainer.state.global_step,
            measured=measured,
        )
        write_card(recipe, facts, output, composed_from)
        for name, value in measured.items():
            print(f"{name}: {value}", file=sys.stderr)
        if rows_to_run := held_out_prompts(recipe, held, tokenizer):
            write_atomically(output / PROMPTS, "".join(f"{json_text(row)}\n" for row in rows_to_run), "output=FOLDER")
    return output


def next_command(recipe: Recipe) -> str:
    """The command that measures what `recipe` wrote: on its held-out prompts, where it has any."""
    output = Path(recipe.output).expanduser()
    own, kind = _word_of(str(output)), recipe.heads_kind()
    words = ["specbench", "run"]
    if recipe.distill.target is None:
        words += [f"target={own}", "draft=lookup"]
    else:
        commit = f"@{recipe.distill.revision}" if recipe.distill.revision else ""
        words.append(f"target={_word_of(recipe.distill.target)}{commit}")
        words += [f"draft={own}"] if kind is None else [f"draft={kind}", f"draft.path={own}"]
    if (output / PROMPTS).is_file():
        words += ["task=prompts", f"task.path={output / PROMPTS}"]
    return shlex.join(words)


def _word_of(place: str) -> str:
    """A place as `target=` and `draft=` take it."""
    if place.startswith(OF_MODELS):
        return place.removeprefix(OF_MODELS)
    return place if "/" in place else f"./{place}"


def load_target(
    recipe: Recipe, draft: PreTrainedModel | None, tokenizer: PreTrainedTokenizerFast, device: torch.device
) -> PreTrainedModel | None:
    """The target of a distilling recipe, its vocabulary compared with the draft's."""
    where = recipe.distill.target
    if where is None:
        return None
    networks.check_same_vocabulary(networks.load_tokenizer(where).get_vocab(), tokenizer.get_vocab(), where)
    dtype = torch.bfloat16 if recipe.bf16 else torch.float32
    target = networks.load(where, recipe.model.family, dtype, recipe.distill.revision).eval()
    if draft is not None and recipe.distill.borrow and recipe.model.start_from is None:
        networks.borrow(draft, target)
    return target.to(device)


def arguments(recipe: Recipe, output: Path, evaluated: bool) -> Seq2SeqTrainingArguments:
    """The arguments of the Trainer, from the recipe."""
    optim = recipe.optim
    return Seq2SeqTrainingArguments(
        output_dir=str(output / CHECKPOINTS),
        max_steps=optim.max_steps,
        per_device_train_batch_size=optim.batch_size,
        per_device_eval_batch_size=100,
        gradient_accumulation_steps=optim.accumulate,
        learning_rate=optim.lr,
        lr_scheduler_type=optim.schedule,
        warmup_steps=optim.warmup_steps,
        weight_decay=optim.weight_decay,
        adam_beta2=optim.beta2,
        max_grad_norm=optim.clip,
        optim="adamw_torch_fused",
        bf16=recipe.bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=recipe.seed,
        train_sampling_strategy="group_by_length" if recipe.task == "seq2seq" else "random",
        logging_steps=recipe.log_steps,
        save_steps=recipe.save_steps,
        save_total_limit=2,
        eval_strategy="steps" if evaluated else "no",
        eval_steps=recipe.eval_steps if evaluated else None,
        predict_with_generate=recipe.task == "seq2seq",
        generation_max_length=recipe.data.max_target,
        generation_num_beams=1,
        disable_tqdm=not recipe.progress,
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False if "LOCAL_RANK" in os.environ else None,
    )


def make_trainer(
    recipe: Recipe,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    train_set: Dataset,
    eval_set: Dataset | None,
    target: PreTrainedModel | None,
    output: Path,
) -> Trainer:
    """The Trainer of the recipe: of a model, on the data or against `target`, or of a learner, which has its target.

    A learner's saves no tokenizer: the target has it.
    """
    pairs, learns = recipe.task == "seq2seq", isinstance(model, FrozenTargetLearner)
    make: Callable[..., Trainer] = SizedTrainer
    if target is not None and not learns:
        make = partial(DistillTrainer, target=target, kl_weight=recipe.distill.kl_weight)
    batching = DataCollatorForSeq2Seq(tokenizer, model=model.target if learns else model)
    return make(
        model=model,
        args=arguments(recipe, output, eval_set is not None),
        train_dataset=train_set,
        eval_dataset=eval_set,
        data_collator=batching if pairs else default_data_collator,  # blocks of one size
        processing_class=None if learns else tokenizer,
        lr_by_size=recipe.optim.lr_scale == "rms",
        compute_metrics=bleu_metric(tokenizer) if pairs and not learns else None,
    )


def make_learner(recipe: Recipe, target: PreTrainedModel, train_set: Dataset) -> FrozenTargetLearner[Any]:
    """What `recipe` trains on `target`: the learner that the config of its kind of draft names."""
    kind = DRAFT_KINDS[recipe.heads_kind() or "blockwise"]
    assert issubclass(kind, TrainedConfig)
    learner: Callable[..., FrozenTargetLearner[Any]] = named(kind.learner)
    return learner(target, recipe, train_set)
