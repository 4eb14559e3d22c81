"""A decoded prompt pass by pass, as in Figure 1: accepted tokens, the rejected token, and the target's token.

The terminal and the picture show the same lines, which this file makes from a record.
"""

from dataclasses import dataclass
from typing import Literal

from specbench.errors import UserError
from specbench.records.schema import PassRecord, PromptRecord, RunRecord
from specbench.theory.trees import ROOT

Kind = Literal["accepted", "rejected", "target"]  # target: the correction, or the bonus token after full acceptance
# End-of-text tokens: T5 and Llama 2, Gemma, BERT, GPT-2, Qwen and SmolLM2, Llama 3, Phi.
ENDS = ("</s>", "<eos>", "<end_of_turn>", "[SEP]", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>",
        "<|end|>")  # fmt: skip
PER_LINE = 106  # characters of a line, what came before included


@dataclass(frozen=True)
class Piece:
    """One token as text."""

    text: str
    kind: Kind


@dataclass(frozen=True)
class Line:
    """One target pass: the end of the completion `before` it, and the pass's tokens."""

    before: str
    pieces: list[Piece]


def lines(record: RunRecord, prompt: PromptRecord, width: int = PER_LINE) -> list[Line]:
    """The passes of one prompt of a record; tokens drafted after a rejection were never compared and are left out.

    Raises:
        UserError: an older record without the drafted tokens.
    """
    texts = record.get("pieces")
    ours = prompt["speculative"]
    if texts is None or any("tokens" not in a_pass for a_pass in ours["passes"]):
        raise UserError(f"{record['run_id']}: its passes do not hold the drafted tokens; run it again with force=true")
    made: list[Line] = []
    written = ""
    position = 0
    for a_pass in ours["passes"]:
        drafted, accepted = along_path(a_pass), a_pass["accepted"]
        own = drafted[: min(accepted, a_pass["emitted"])]
        pieces = [Piece(token_text(texts, token), "accepted") for token in own]
        if accepted < min(len(drafted), a_pass["emitted"]):  # not after the end of the completion
            pieces.append(Piece(token_text(texts, drafted[accepted]), "rejected"))
        if a_pass["emitted"] > accepted:
            pieces.append(Piece(token_text(texts, ours["tokens"][position + accepted]), "target"))
        if not made and pieces:
            pieces[0] = Piece(pieces[0].text.lstrip(), pieces[0].kind)  # a completion does not begin with a space
        room = width - sum(len(piece.text) for piece in pieces)
        before = written.replace("␣", " ").lstrip()
        made.append(Line(before if len(before) <= room else "…" + before[len(before) - max(room - 1, 0) :], pieces))
        written += "".join(piece.text for piece in pieces if piece.kind != "rejected")
        position += a_pass["emitted"]
    return made


def along_path(a_pass: PassRecord) -> list[int]:
    """The drafted tokens of a pass; of a tree those of the accepted path, and the first child of its end."""
    tokens, parents, path = a_pass["tokens"], a_pass.get("parents"), a_pass.get("path")
    if parents is None or path is None:
        return tokens
    end = path[-1] if path else ROOT
    return [tokens[node] for node in (*path, *([parents.index(end)] if end in parents else []))]


def typical_prompt(record: RunRecord, longest: int = 44) -> int:
    """The index of a typical prompt.

    Of the longest tenth of the prompts that fit and have a rejection, the prompt whose tokens per pass are nearest to
    the run's.
    """
    ways = [prompt["speculative"] for prompt in record["prompts"]]
    refused = [any(p["accepted"] < p["drafted"] for p in way["passes"]) for way in ways]
    fitting = [i for i, way in enumerate(ways) if refused[i] and len(way["tokens"]) <= longest] or list(
        range(len(ways))
    )
    fitting.sort(key=lambda i: -len(ways[i]["tokens"]))
    whole = sum(len(way["tokens"]) for way in ways) / sum(len(way["passes"]) for way in ways)
    longer = fitting[: 1 + len(fitting) // 10]
    return min(longer, key=lambda i: abs(len(ways[i]["tokens"]) / len(ways[i]["passes"]) - whole))


def count(prompt: PromptRecord) -> str:
    """Return the length of a completion in words: '21 tokens in 7 target passes'."""
    ours = prompt["speculative"]
    return f"{len(ours['tokens'])} tokens in {len(ours['passes'])} target passes"


def token_text(texts: dict[str, str], token: int) -> str:
    """Return a token's text on one line, with a sign of its own for the end of the completion."""
    text = texts[str(token)].replace("\n", "⏎")
    if not text.strip():
        return "␣" * max(1, len(text))
    return "▪" if text.strip() in ENDS else text
