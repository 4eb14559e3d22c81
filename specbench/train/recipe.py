"""One recipe from data to a finished folder: rows → tokenizer → network → Trainer → saved model → card.

The only file here that knows the order of things. A killed run resumes from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from torch import nn
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerState,
    default_data_collator,
    set_seed,
)
from transformers.trainer import TRAINER_STATE_NAME

from specbench.config.draft import TrainedConfig, named
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.places import home
from specbench.environment import require_cpus
from specbench.errors import UserError
from specbench.files import json_text, write_atomically
from specbench.train import networks
from specbench.train.card import Facts, write_card
from specbench.train.checkpoints import CHECKPOINTS, SECONDS, MarksWhole, has_ended, interrupted, last_whole, step_of
from specbench.train.fitting import with_depths
from specbench.train.frozen import FrozenTargetLearner, earlier_weights
from specbench.train.held_out import bleu_metric, held_out_prompts, measure, prompts
from specbench.train.kept_states import KeptStates, require_states_suffice
from specbench.train.next_command import PROMPTS
from specbench.train.recipe_checks import check
from specbench.train.recipe_places import require_made, resolve, with_places
from specbench.train.recipe_rows import Row
from specbench.train.recipe_schema import Recipe
from specbench.train.resuming import claim, is_done, release
from specbench.train.sets import evaluation_set, padded_batch, training_rows, training_set
from specbench.train.target_texts import special_ids, weights_of
from specbench.train.tokenizers import make_tokenizer
from specbench.train.trainers import Clock, DistillTrainer, LogitsOf, SizedTrainer, seconds_in, use_byte_dropout


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
    output = Path(home(recipe.output))
    if recipe.distill.start_from:
        earlier_weights(Path(resolve(recipe.distill.start_from)))  # before anything is written, or discarded
    output.mkdir(parents=True, exist_ok=True)
    # With several processes the first one fits the tokenizer and asks the target; the others read what it wrote.
    processes = PartialState(cpu=not torch.cuda.is_available())
    is_free = False
    with processes.main_process_first():
        if processes.is_main_process:
            is_free = claim(recipe, output)
    if is_done(recipe, output):
        if processes.is_main_process:
            print(f"{output}: is trained and measured; without its README.md it is measured again", file=sys.stderr)
        return output
    checkpoint = last_whole(output, told=processes.is_main_process)
    is_over = checkpoint is not None and has_ended(recipe, output, checkpoint)
    try:
        begun = _begin(recipe, output, processes, is_over)
    except UserError:
        if is_free:
            release(output)
        raise
    trainer = begun.trainer
    if checkpoint is not None and processes.is_main_process:
        resumes = f"resumes from step {step_of(checkpoint)} of {recipe.optim.max_steps}"
        print(f"{output}: {'is trained; it is measured now' if is_over else resumes}", file=sys.stderr)
    if checkpoint is not None and is_over:
        _restore(begun, checkpoint)
    else:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.is_world_process_zero():
        _finish(recipe, output, begun, composed_from)
    return output


@dataclass(frozen=True)
class _Begun:
    """A training whose parts are loaded; `model` is a learner if something small is trained on `target`."""

    held: list[Row]
    tokenizer: PreTrainedTokenizerFast
    model: Any
    target: PreTrainedModel | None
    train_set: Dataset
    trainer: Trainer
    clock: Clock


def _begin(recipe: Recipe, output: Path, processes: PartialState, is_over: bool = False) -> _Begun:
    """Rows, tokenizer, networks and Trainer; the tokenizer and the target's outputs are kept in `output`.

    A training that `is_over` is only measured.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    set_seed(recipe.seed)
    rows, held = training_rows(recipe)
    with processes.main_process_first():
        tokenizer = make_tokenizer(recipe, rows, output)
    prompts(recipe, held, tokenizer)  # rows that nothing can be measured on end a training before it begins
    model: Any = None
    if not recipe.on_frozen_target:
        own = recipe.model.family == "own" and recipe.model.start_from is None
        model = networks.as_target(recipe) if own else networks.build(recipe.model, tokenizer)
        if not torch.cuda.is_available():
            use_byte_dropout(model)
    target = load_target(recipe, model, tokenizer, processes.device)
    if recipe.distill.states and target is not None:
        require_states_suffice(target)
    with processes.main_process_first():
        train_set = training_set(recipe, rows, tokenizer, target, output)
    if recipe.on_frozen_target:
        assert target is not None
        model = make_learner(with_depths(recipe, target.config), target, train_set)
        if recipe.distill.start_from:
            model.continue_from(Path(resolve(recipe.distill.start_from)))
    kept: KeptStates | None = None
    if recipe.distill.states and not is_over:
        learns = isinstance(model, FrozenTargetLearner)
        kept = _kept_states(recipe, target, train_set, model.depths if learns else ())
        if learns:
            model.kept = kept
    eval_set = evaluation_set(recipe, tokenizer) if not recipe.on_frozen_target else None
    minutes = recipe.optim.max_minutes
    clock = Clock(output / SECONDS, None if minutes is None else 60 * minutes)
    of_kept = None if kept is None else kept.logits_of
    trainer = make_trainer(recipe, model, tokenizer, train_set, eval_set, target, output, clock, of_kept)
    trainer.add_callback(MarksWhole())  # first: a time that is over ends the training at a whole checkpoint
    trainer.add_callback(clock)
    return _Begun(held, tokenizer, model, target, train_set, trainer, clock)


def _kept_states(
    recipe: Recipe, target: PreTrainedModel | None, train_set: Dataset, depths: Sequence[int]
) -> KeptStates:
    """The target's cached states of the training texts; computes what is not in the cache yet."""
    assert target is not None and recipe.distill.states is not None  # `recipe_checks`
    folder, texts = Path(resolve(recipe.distill.states)), list(train_set["input_ids"])
    return KeptStates(folder, target, texts, depths, weights_of(recipe, target), recipe.progress)


def _restore(begun: _Begun, checkpoint: Path) -> None:
    """Load the weights and the state of a training that was over: `Trainer.train` would take one more step."""
    begun.trainer._load_from_checkpoint(str(checkpoint))
    begun.trainer.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    begun.clock.seconds = (seconds_in(begun.clock.file) or 0.0) if begun.clock.file.is_file() else 0.0


def _finish(recipe: Recipe, output: Path, begun: _Begun, composed_from: str | None) -> None:
    """Save and measure what was trained, and write its card and the prompts that it is measured on."""
    model, trainer = begun.model, begun.trainer
    if isinstance(model, FrozenTargetLearner):
        model.save(recipe, output)
        measured = model.measure(recipe, begun.held, begun.tokenizer)
    else:
        networks.save(model, begun.tokenizer, output)
        measured = measure(recipe, begun.held, model.eval(), begun.tokenizer, begun.target)
    history = trainer.state.log_history
    (output / "training-log.json").write_text(json.dumps(history, indent=1), encoding="utf-8")
    losses = [entry["loss"] for entry in history if "loss" in entry]
    facts = Facts(
        parameters=networks.parameter_count(trainer.model),
        rows=len(begun.train_set),
        seconds=begun.clock.seconds,
        tokens=round(tokens_a_step(recipe, begun.train_set) * trainer.state.global_step),
        loss=float(losses[-1]) if losses else None,
        steps=trainer.state.global_step,
        measured=measured,
    )
    if rows_to_run := held_out_prompts(recipe, begun.held, begun.tokenizer):
        write_atomically(output / PROMPTS, "".join(f"{json_text(row)}\n" for row in rows_to_run), "output=FOLDER")
    write_card(recipe, facts, output, composed_from)  # last: with it the training is done
    for name, value in measured.items():
        print(f"{name}: {value}", file=sys.stderr)


def tokens_a_step(recipe: Recipe, train_set: Dataset) -> float:
    """The mean number of tokens of an optimiser step."""
    per_row: float = sum(train_set["length"]) / len(train_set)
    return per_row * recipe.optim.batch_size * recipe.optim.accumulate


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
        torch_compile=recipe.compile,
        bf16=recipe.bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=recipe.seed,
        train_sampling_strategy="group_by_length" if recipe.task == "seq2seq" or recipe.data.completions else "random",
        logging_steps=recipe.log_steps,
        logging_nan_inf_filter=False,  # it reads the loss of each step, so a GPU would wait for the host
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
    clock: Clock | None = None,
    kept: LogitsOf | None = None,
) -> Trainer:
    """The Trainer of the recipe: of a model, on the data or against `target`, or of a learner, which has its target.

    A learner's saves no tokenizer: the target has it.
    """
    pairs, learns = recipe.task == "seq2seq", isinstance(model, FrozenTargetLearner)
    make: Callable[..., Trainer] = SizedTrainer
    if target is not None and not learns:
        make = partial(DistillTrainer, target=target, kl_weight=recipe.distill.kl_weight, kept=kept)
    told = arguments(recipe, output, eval_set is not None)
    told.remove_unused_columns = kept is None  # the numbers of the texts, which a model has no argument for
    batching: Callable[..., Any] = default_data_collator
    if pairs:
        batching = DataCollatorForSeq2Seq(tokenizer, model=model.target if learns else model)
    elif recipe.data.completions and target is not None:
        batching = partial(padded_batch, pad=special_ids(target)[0])
    else:  # blocks of one size
        train_set = train_set.with_format("torch")  # lists of Python's numbers take several times as long
        # A smaller batch at the end of each pass over the blocks would be compiled again.
        told.dataloader_drop_last = recipe.compile and len(train_set) >= told.train_batch_size * told.world_size
    return make(
        model=model,
        args=told,
        train_dataset=train_set,
        eval_dataset=eval_set,
        data_collator=batching,
        processing_class=None if learns else tokenizer,
        lr_by_size=recipe.optim.lr_scale == "rms",
        clock=clock,
        compute_metrics=bleu_metric(tokenizer) if pairs and not learns else None,
    )


def make_learner(recipe: Recipe, target: PreTrainedModel, train_set: Dataset) -> FrozenTargetLearner[Any]:
    """The learner that `recipe` trains on `target`, named by the config of its kind of draft."""
    kind = DRAFT_KINDS[recipe.kind]
    assert issubclass(kind, TrainedConfig)
    learner: Callable[..., FrozenTargetLearner[Any]] = named(kind.learner)
    return learner(target, recipe, train_set)
