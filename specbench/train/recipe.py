"""One recipe from data to a finished folder: rows → tokenizer → network → Trainer → saved model.

The only file here that knows the order of things. A run that was killed goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from specbench.errors import UserError
from specbench.train import features, networks
from specbench.train.quality import bleu_metric
from specbench.train.rows import Row, joined, load_rows, read_jsonl, without_held_out
from specbench.train.schema import Recipe, check
from specbench.train.tokenizers import fit_unigram, fit_wordpiece
from specbench.train.trainers import SpecSeq2SeqTrainer, SpecTrainer


def train(recipe: Recipe) -> Path:
    """Run `recipe`, or finish it if it was interrupted; returns the folder that `from_pretrained` takes."""
    check(recipe)
    output = Path(recipe.output).expanduser()
    output.mkdir(parents=True, exist_ok=True)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    set_seed(recipe.seed)
    fields = (recipe.data.source, recipe.data.target) if recipe.task == "seq2seq" else (recipe.data.text,)
    rows = without_held_out(load_rows(recipe.data, fields), recipe.data, fields)
    tokenizer = make_tokenizer(recipe, rows, output)
    model = networks.build(recipe.model, tokenizer)
    train_set, eval_set = make_sets(recipe, rows, tokenizer)
    trainer = make_trainer(recipe, model, tokenizer, train_set, eval_set, output)
    started = time.time()
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(output / "checkpoints")))
    save(trainer.model, tokenizer, output)
    log = {"seconds": round(time.time() - started, 1), "history": trainer.state.log_history}
    (output / "training-log.json").write_text(json.dumps(log, indent=1), encoding="utf-8")
    return output


def make_tokenizer(recipe: Recipe, rows: list[Row], output: Path) -> PreTrainedTokenizerFast:
    """The tokenizer named by the recipe, the one already fitted for this run, or a new one fitted on its text."""
    plan = recipe.tokenizer
    where = plan.start_from or recipe.model.start_from
    fitted = output / "tokenizer"
    if where or (fitted / "tokenizer.json").is_file():
        try:
            return AutoTokenizer.from_pretrained(where or fitted)
        except (OSError, ValueError) as error:
            raise UserError(f"tokenizer.start_from={where}: no tokenizer can be loaded ({str(error).splitlines()[0]})") from error
    fields = (recipe.data.source, recipe.data.target) if recipe.task == "seq2seq" else (recipe.data.text,)
    extra = chain.from_iterable(islice(read_jsonl(file), plan.extra_rows) for file in plan.extra)
    # The prefix is read with every source, so it deserves pieces of its own.
    prefix = [recipe.data.prefix] * len(rows) if recipe.task == "seq2seq" else []
    texts = chain((row[name] for row in rows for name in fields), prefix, (row["text"] for row in extra))
    fit = fit_unigram if plan.kind == "unigram" else fit_wordpiece
    tokenizer = fit(texts, plan.size)
    tokenizer.save_pretrained(fitted)
    return tokenizer


def make_sets(
    recipe: Recipe, rows: list[Row], tokenizer: PreTrainedTokenizerFast
) -> tuple[Dataset, Dataset | None]:
    """The training set, and the evaluation set if the recipe names one."""
    plan = recipe.data
    if recipe.task == "lm":
        held = load_rows(plan, (plan.text,), plan.eval_path)[: plan.eval_rows] if plan.eval_path else []
        return features.blocks(rows, plan, tokenizer), features.blocks(held, plan, tokenizer) if held else None
    rows = rows + joined(rows, plan, recipe.seed)
    held = list(islice(chain.from_iterable(read_jsonl(file) for file in plan.eval_path), plan.eval_rows))
    return features.pairs(rows, plan, tokenizer), features.pairs(held, plan, tokenizer) if held else None


def arguments(recipe: Recipe, output: Path, evaluated: bool) -> dict[str, Any]:
    """What every Trainer is told, from the recipe."""
    optim = recipe.optim
    return dict(
        output_dir=str(output / "checkpoints"),
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
        disable_tqdm=not recipe.progress,
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False if "LOCAL_RANK" in os.environ else None,
    )


def make_trainer(
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    train_set: Dataset,
    eval_set: Dataset | None,
    output: Path,
) -> Trainer:
    """The Trainer for the recipe's task."""
    common = arguments(recipe, output, eval_set is not None)
    if recipe.task == "seq2seq":
        args: TrainingArguments = Seq2SeqTrainingArguments(
            **common, predict_with_generate=True, generation_max_length=recipe.data.max_target, generation_num_beams=1
        )
        trainer: Trainer = SpecSeq2SeqTrainer(
            model=model,
            args=args,
            train_dataset=train_set,
            eval_dataset=eval_set,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
            compute_metrics=bleu_metric(tokenizer),
        )
    else:
        trainer = SpecTrainer(
            model=model,
            args=TrainingArguments(**common),
            train_dataset=train_set,
            eval_dataset=eval_set,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
            processing_class=tokenizer,
        )
    trainer.lr_by_size = recipe.optim.lr_scale == "rms"
    return trainer


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """bf16 safetensors, config and tokenizer: what `from_pretrained` and `target.path=` take."""
    model.to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)
