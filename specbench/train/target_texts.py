"""Outputs of a target to learn from, in batches, kept beside the checkpoints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specbench import border
from specbench.border import Unreadable
from specbench.files import json_digest, require_writable, write_atomically
from specbench.text.vocabulary import Vocabulary
from specbench.train.recipe_places import resolve
from specbench.train.recipe_schema import Recipe
from specbench.train.resuming import digest_of_weights

Ids = list[int]


def write_outputs(
    target: PreTrainedModel,
    sources: list[Ids],
    *,
    sampled: bool,
    batch_size: int,
    max_new_tokens: int,
    size: int,
    seed: int,
    per_source: float | None = None,
    progress: bool = True,
    purpose: str = "",
) -> list[Ids]:
    """One output per source, without the start token and closed by end-of-sequence if the target ended it.

    Greedy, or sampled at T=1 from the first `size` tokens (no top-k, no top-p). Sources of like length share a batch.
    `per_source` also limits outputs to so many tokens per source token: one output that never ends holds up a batch.
    `purpose` is shown after the name of the progress bar.
    """
    torch.manual_seed(seed)
    outputs: list[Ids] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    bar = tqdm(total=len(order), desc=f"{'sampled' if sampled else 'greedy'} outputs{purpose}", disable=not progress)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        room = max_new_tokens
        if per_source is not None:
            room = min(room, 4 + int(per_source * max(len(sources[index]) for index in chosen)))
        written = _one_batch(target, [sources[index] for index in chosen], sampled, room, size)
        for index, output in zip(chosen, written, strict=True):
            outputs[index] = output
        bar.update(len(chosen))
    bar.close()
    return outputs


def written_tokens(tokenizer: PreTrainedTokenizerFast, *models: Any) -> int:
    """How many tokens a run of these models has: further logits are padding that no draft can read.

    It is the vocabulary of `specbench run`, of the tokenizer's tokens that each model has a row for.
    """
    rows = min(model.config.get_text_config().vocab_size for model in models)
    return Vocabulary(tokenizer, 0, is_encoder_decoder=False, rows=rows).size


def special_ids(target: PreTrainedModel) -> tuple[int, frozenset[int]]:
    """The id that rows are filled up with, and the ids that end an output.

    A decoder-only model may have several that end it, and none for filling up: then an end is taken.
    """
    given, pad = target.config.eos_token_id, target.config.pad_token_id
    ends = frozenset(given if isinstance(given, (list, tuple)) else () if given is None else (given,))
    return (pad if pad is not None else min(ends, default=0)), ends


def padded(rows: list[Ids], pad: int) -> torch.Tensor:
    """The rows as one tensor, filled up with `pad`."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])


def _one_batch(
    target: PreTrainedModel, sources: list[Ids], sampled: bool, max_new_tokens: int, size: int
) -> Iterator[Ids]:
    pad, ends = special_ids(target)
    ids = padded(sources, pad).to(target.device)
    # What comes before the outputs: a start token, or the prompt itself (then all of one length).
    before = 1 if target.config.is_encoder_decoder else ids.shape[1]
    logits: int = target.config.get_text_config().vocab_size
    with torch.inference_mode():
        written = target.generate(
            input_ids=ids,
            attention_mask=padded([[1] * len(source) for source in sources], 0).to(target.device),
            pad_token_id=pad,
            do_sample=sampled,
            num_beams=1,
            temperature=1.0 if sampled else None,
            top_k=0 if sampled else None,
            top_p=1.0 if sampled else None,
            max_new_tokens=max_new_tokens,
            suppress_tokens=list(range(size, logits)) or None,
        )
    for row in written[:, before:].tolist():
        closed = next((place for place, token in enumerate(row) if token in ends), None)
        yield row[: closed + 1] if closed is not None else [token for token in row if token != pad]


def outputs_file(
    recipe: Recipe, output: Path, name: str, sources: list[Ids], target: PreTrainedModel | None = None
) -> Path:
    """Where the target's outputs (`name`: greedy or sampled) are kept: in `output`, or in a folder that recipes share.

    There the name says of which target, sources and settings they are. Of a model of the hub without a commit in the
    recipe, `target` has that which was loaded.
    """
    distill = recipe.distill
    if distill.outputs is None:
        return output / f"target-{name}.jsonl"
    weights = weights_of(recipe, target)
    settings = [name, recipe.seed, recipe.task, distill.max_new_tokens, distill.per_source, recipe.bf16]
    folder = Path(resolve(distill.outputs))
    require_writable(folder, "distill.outputs=FOLDER")
    return folder / f"target-{name}-{json_digest([weights, settings, sources])}.jsonl"


def weights_of(recipe: Recipe, target: PreTrainedModel | None) -> str:
    """What tells the target's weights from others: a digest of a folder's, or a model of the hub at its commit."""
    distill = recipe.distill
    place = Path(resolve(distill.target or ""))
    commit = distill.revision or getattr(getattr(target, "config", None), "_commit_hash", None)
    return digest_of_weights(place) if place.exists() else "@".join(filter(None, (distill.target, commit)))


class KeptOutput(TypedDict):
    """A line of a file of outputs: token ids that the target read, and those that it wrote."""

    source: Ids
    output: Ids


def kept_outputs(path: Path, sources: list[Ids], make: Callable[[], list[Ids]]) -> list[Ids]:
    """The outputs in `path` if they are of exactly these sources (a resumed run), otherwise of `make()`."""
    if path.is_file():
        try:
            kept: list[KeptOutput] = [border.parse(line, KeptOutput) for line in border.read_text(path).splitlines()]
        except Unreadable as error:
            print(f"{path}: is damaged ({error}); the target writes these outputs again", file=sys.stderr)
        else:
            if [row["source"] for row in kept] == sources:
                return [row["output"] for row in kept]
    outputs = make()
    lines = [json.dumps({"source": s, "output": o}) for s, o in zip(sources, outputs, strict=True)]
    write_atomically(path, "\n".join(lines) + "\n", "output")
    return outputs
