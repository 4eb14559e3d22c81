"""The states of a frozen target along the texts to learn on, computed once for the recipes that share a folder.

The target's own run takes most of a training step of a small head: of EAGLE's on SmolLM2-135M 80%. States are kept
before the target's head, from which its logits follow, and after each depth that a recipe reads: a recipe computes only
what no other has kept.

Shapes: B texts, T tokens, D the target's width.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specbench.engine.eager.network_parts import Taps, changed_after_head
from specbench.errors import UserError
from specbench.files import json_digest, require_writable, write_atomically
from specbench.train.logits import FromStates
from specbench.train.target_completions import held
from specbench.train.target_texts import Ids, padded, special_ids

ROWS, TOKENS = 64, 2**16  # texts of a file, and their tokens, at most
AT_ONCE = 4096  # tokens that the target reads together, filled up to equal lengths
OPENED = 256  # files, at most
HEAD = "head"  # in place of a depth: what the target's head reads
TOLERANCE = 1e-2  # of the largest logit: what 16 bits round

Depth = int | str


def require_states_suffice(target: PreTrainedModel) -> None:
    """Raise UserError for a target that changes its logits after its head, before anything is made for it."""
    if (reason := changed_after_head(target)) is not None:
        raise UserError(f"distill.states: {reason}, so its states do not give them; leave it out")


class KeptStates:
    """States along `texts` at `depths` and before the head, in files of up to ROWS texts of like length."""

    def __init__(
        self,
        folder: Path,
        target: PreTrainedModel,
        texts: Sequence[Ids],
        depths: Sequence[int],
        weights: str,
        progress: bool = False,
    ) -> None:
        """Computes the states that `folder` lacks; `weights` is a digest of the target's.

        Raises:
            UserError: the target's logits are not its head's, or the disk has too little room.
        """
        require_writable(folder, "distill.states=FOLDER")
        self.folder, self.target, self.texts = folder, target, texts
        self.depths: tuple[Depth, ...] = (HEAD, *depths)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        self._groups = list(self._parts(order, ROWS, TOKENS))
        self._group_of = {row: number for number, rows in enumerate(self._groups) for row in rows}
        of_target = [weights, str(target.dtype)]
        self._digests = [json_digest([*of_target, [texts[row] for row in rows]]) for rows in self._groups]
        self._opened: dict[Path, Any] = {}
        if any(map(self._lacking, range(len(self._groups)))):
            with held(folder / "states.lock"):  # a second recipe waits, and takes up what the first has written
                self._compute_missing(progress)

    def of(self, rows_B: torch.Tensor, ids_BT: torch.Tensor) -> list[torch.Tensor]:
        """[B, T, D] before the head, then at each depth, of the texts `rows_B`, with zeros after their ends.

        Raises ValueError if `ids_BT` are other texts.
        """
        rows, found = rows_B.tolist(), []
        for row, ids in zip(rows, ids_BT.tolist(), strict=True):
            if ids[: len(self.texts[row])] != self.texts[row]:
                raise ValueError(f"text {row} is another than the one whose states are kept")
        for depth in self.depths:
            states = [self._file(self._group_of[row], depth).get_tensor(str(row)) for row in rows]
            filled = states[0].new_zeros(*ids_BT.shape, states[0].shape[-1])
            for place, states_TD in enumerate(states):
                filled[place, : len(states_TD)] = states_TD
            found.append(filled.to(ids_BT.device))
        return found

    def logits_of(self, rows_B: torch.Tensor, ids_BT: torch.Tensor) -> FromStates:
        """The target's logits [B, T, V] along the texts `rows_B`."""
        return self.logits(self.of(rows_B, ids_BT)[0])

    def logits(self, states: torch.Tensor) -> FromStates:
        """The target's logits after `states`, which its head reads."""
        return FromStates(states, self.target.get_output_embeddings())

    def _parts(self, rows: Sequence[int], most_rows: int, most_tokens: int) -> Iterator[list[int]]:
        """`rows`, the longest text last, in parts of so many texts and, filled up to equal lengths, tokens."""
        part: list[int] = []
        for row in rows:
            if part and (len(part) == most_rows or (len(part) + 1) * len(self.texts[row]) > most_tokens):
                yield part
                part = []
            part.append(row)
        yield part

    def _path(self, number: int, depth: Depth) -> Path:
        return self.folder / f"states-{depth}-{self._digests[number]}.safetensors"

    def _lacking(self, number: int) -> list[Depth]:
        """The depths of group `number` without a whole file."""
        lacking: list[Depth] = []
        for depth in self.depths:
            path, names = self._path(number, depth), set[str]()
            try:
                with safe_open(path, "pt") as file:
                    names = {*file.keys()}
            except FileNotFoundError:
                pass
            except SafetensorError as error:
                print(f"{path}: is damaged ({error}); these states are computed again", file=sys.stderr)
            if names != {str(row) for row in self._groups[number]}:
                lacking.append(depth)
        return lacking

    def _file(self, number: int, depth: Depth) -> Any:
        """The opened file, of which a tensor is read when it is asked for."""
        path = self._path(number, depth)
        if path not in self._opened:
            if len(self._opened) >= OPENED:
                self._opened.clear()
            self._opened[path] = safe_open(path, "pt")
        return self._opened[path]

    def _compute_missing(self, progress: bool) -> None:
        missing = {number: lacking for number in range(len(self._groups)) if (lacking := self._lacking(number))}
        if not missing:
            return
        self._require_head_alone(self.texts[self._groups[0][0]])
        of_token = self.target.get_output_embeddings().weight.shape[1] * self.target.dtype.itemsize
        tokens = {number: sum(len(self.texts[row]) for row in self._groups[number]) for number in missing}
        needed = of_token * sum(tokens[number] * len(lacking) for number, lacking in missing.items())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"distill.states={self.folder}: the states take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are "
                "free; give a folder with more room, or leave it out"
            )
        title = f"states of the target, {needed / 1e9:.1f} GB"
        for number, lacking in tqdm(missing.items(), desc=title, unit=" files", disable=not progress):
            self._compute(number, lacking)

    def _compute(self, number: int, lacking: Sequence[Depth]) -> None:
        """Write the files of group `number` for the depths that it lacks."""
        kept: dict[Depth, dict[str, torch.Tensor]] = {depth: {} for depth in lacking}
        depths = [depth for depth in kept if isinstance(depth, int)]
        with closing(Taps(self.target, depths)) as taps:
            for rows in self._parts(self._groups[number], ROWS, AT_ONCE):
                found: dict[Depth, torch.Tensor] = {HEAD: self._before_head([self.texts[row] for row in rows])}
                found.update(zip(depths, taps.taken(), strict=True))
                for depth, states in kept.items():
                    for place, row in enumerate(rows):
                        states[str(row)] = found[depth][place, : len(self.texts[row])].contiguous().cpu()
        for depth, states in kept.items():
            write_atomically(self._path(number, depth), save(states), "distill.states=FOLDER")

    @torch.no_grad()
    def _before_head(self, texts: Sequence[Ids]) -> torch.Tensor:
        """[B, T, D], without the logits, which take a fifth of a small model's run."""
        device = self.target.device
        ids_BT = padded(list(texts), special_ids(self.target)[0]).to(device)
        mask_BT = padded([[1] * len(text) for text in texts], 0).to(device)
        body = self.target.base_model
        states: torch.Tensor = body(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).last_hidden_state
        return states

    @torch.no_grad()
    def _require_head_alone(self, text: Ids) -> None:
        """Raise UserError if something between the states, the head and the logits is not known here."""
        wanted = self.target(input_ids=torch.tensor([text], device=self.target.device), use_cache=False).logits.float()
        found = self.logits(self._before_head([text])).computed().float()
        if wanted.shape != found.shape or not (wanted - found).abs().max() <= TOLERANCE * wanted.abs().max():
            raise UserError(
                "distill.states: distill.target changes its logits after its head, so its states do not give them; "
                "leave it out"
            )
