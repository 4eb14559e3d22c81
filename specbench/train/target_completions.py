"""Completions of prompts by a decoder-only target, with the engine of `specbench run`, several prompts at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specbench import border
from specbench.algorithm.batching import together
from specbench.algorithm.decoding import DecodingSpec, autoregress, autoregressive
from specbench.border import Unreadable
from specbench.engine.batch import Batch
from specbench.engine.eager.model import EagerModel
from specbench.engine.selection import with_engine
from specbench.engine.session import Model, Prompt
from specbench.errors import UserError
from specbench.sampling import Sampling
from specbench.train.target_texts import Ids, KeptOutput, special_ids

ROWS = {"cpu": 8, "gpu": 32}  # prompts at a time
AT_ONCE = 4  # times as many are kept together: a stopped training repeats no more


def engine_of(target: PreTrainedModel, size: int) -> EagerModel:
    """`target` by the engine of `specbench run`, which writes only the first `size` tokens of the vocabulary."""
    return with_engine("auto", target, size, special_ids(target)[1], "auto")


def completions(
    model: EagerModel, sources: Sequence[Ids], *, sampled: bool, max_new_tokens: int, seed: int, first: int = 0
) -> Iterator[Ids]:
    """The completions by `model` (`engine_of`) of `sources` from number `first` on, in their order.

    Greedy, or sampled at T=1. Each has a generator of its own, by its number, so that none depends on the others.
    """
    start = (model.network.config.decoder_start_token_id,) if model.network.config.is_encoder_decoder else ()
    spec = DecodingSpec.algorithm_1(Sampling(temperature=float(sampled)), max_new_tokens)
    rows = min(ROWS["cpu" if model.device.type == "cpu" else "gpu"], max(1, len(sources) - first))
    batch = _batch_of(model, rows)
    group = AT_ONCE * rows
    for begin in range(first, len(sources), group):
        asked = [
            (
                Prompt(tuple(source), start) if start else Prompt((), tuple(source)),
                torch.Generator(model.device).manual_seed(seed + begin + place),
            )
            for place, source in enumerate(sources[begin : begin + group])
        ]
        with torch.inference_mode():
            if isinstance(batch, Batch):
                traces = together((autoregress(batch, prompt, spec, random) for prompt, random in asked), rows, batch)
            else:  # one prompt at a time, with passes in calls if the engine can
                traces = [autoregressive(batch, prompt, spec, random) for prompt, random in asked]
            yield from (trace.tokens for trace in traces)


def _batch_of(model: EagerModel, rows: int) -> Model:
    """`model` with room for `rows` sequences, or itself if its network cannot read several."""
    try:
        return Batch.of(model, rows) if rows > 1 else model
    except UserError:
        return model


def kept_completions(
    path: Path,
    target: PreTrainedModel,
    sources: list[Ids],
    *,
    sampled: bool,
    max_new_tokens: int,
    size: int,
    seed: int,
    progress: bool = True,
) -> list[Ids]:
    """The completions in `path` as far as they are of these sources, and `target`'s of the others, which it then keeps.

    A training that was stopped while its target wrote, and another recipe with the same file, resume from there.
    """
    title = f"{'sampled' if sampled else 'greedy'} completions"
    with held(path):
        outputs = _kept(path, sources)
        if len(outputs) == len(sources):
            print(f"{title} of {len(sources)} prompts: {path}", file=sys.stderr)
            return outputs
        model = engine_of(target, size)
        made = completions(
            model, sources, sampled=sampled, max_new_tokens=max_new_tokens, seed=seed, first=len(outputs)
        )  # fmt: skip
        with (
            path.open("w", encoding="utf-8") as file,
            tqdm(total=len(sources), initial=len(outputs), desc=title, unit=" prompts", disable=not progress) as bar,
        ):
            file.writelines(_line(*row) for row in zip(sources, outputs, strict=False))
            file.flush()  # the target may write for minutes before the next line, and be killed
            for source, output in zip(sources[len(outputs) :], made, strict=True):
                outputs.append(output)
                file.write(_line(source, output))
                file.flush()
                bar.update()
    return outputs


@contextmanager
def held(path: Path) -> Iterator[None]:
    """A context that one process enters at a time: a second recipe waits, and takes up what the first has written."""
    with path.open("a") as file:
        with suppress(ImportError, OSError):  # a system or a file system without such locks
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _line(source: Ids, output: Ids) -> str:
    """How a file keeps a completion; `_kept` reads it."""
    return json.dumps({"source": source, "output": output}) + "\n"


def _kept(path: Path, sources: list[Ids]) -> list[Ids]:
    """The outputs in `path` of the first of `sources`, up to a line that is damaged or of another source."""
    if not path.is_file():
        return []
    found: list[Ids] = []
    try:
        lines = border.read_text(path).splitlines()
        for source, line in zip(sources, lines, strict=False):
            row: KeptOutput = border.parse(line, KeptOutput)
            if row["source"] != source:
                break
            found.append(row["output"])
    except Unreadable as error:
        print(f"{path}: line {len(found) + 1} is damaged ({error}); the target goes on from there", file=sys.stderr)
    return found
