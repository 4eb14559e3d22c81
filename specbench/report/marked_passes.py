"""A decoded prompt pass by pass, as in Figure 1: accepted tokens, the rejected token, the target's token; and trees.

The terminal and the picture show the same lines, which this file makes from a record.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from specbench.analysis.degenerate import repeated
from specbench.errors import UserError
from specbench.escaping import printable
from specbench.records.decoded import Pass
from specbench.records.run_record import PromptRecord, RunRecord
from specbench.theory.trees import ROOT

Kind = Literal["accepted", "rejected", "target"]  # target: the correction, or the bonus token after full acceptance
# End-of-text tokens: T5 and Llama 2, Gemma, BERT, GPT-2, Qwen and SmolLM2, Llama 3, Phi.
ENDS = ("</s>", "<eos>", "<end_of_turn>", "[SEP]", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>",
        "<|end|>")  # fmt: skip
LONGEST = 44  # tokens of a typical prompt's completion
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

    Raises UserError for a prompt without the drafted tokens: of an older record, or one that a kept record has not.
    """
    texts = record.get("pieces")
    ours = prompt["speculative"]
    require_shown(record, prompt)
    if texts is None or any(len(a_pass.tokens) < a_pass.drafted for a_pass in ours.passes):
        raise UserError(f"{record['run_id']}: its passes do not hold the drafted tokens; run it again with force=true")
    made: list[Line] = []
    written = ""
    position = 0
    for a_pass in ours.passes:
        drafted, accepted = along_path(a_pass), a_pass.accepted
        own = drafted[: min(accepted, a_pass.emitted)]
        pieces = [Piece(token_text(texts, token), "accepted") for token in own]
        if accepted < min(len(drafted), a_pass.emitted):  # not after the end of the completion
            pieces.append(Piece(token_text(texts, drafted[accepted]), "rejected"))
        if a_pass.emitted > accepted:
            pieces.append(Piece(token_text(texts, ours.tokens[position + accepted]), "target"))
        if not made and pieces:
            pieces[0] = Piece(pieces[0].text.lstrip(), pieces[0].kind)  # a completion does not begin with a space
        room = width - sum(len(piece.text) for piece in pieces)
        before = written.replace("␣", " ").lstrip()
        made.append(Line(before if len(before) <= room else "…" + before[len(before) - max(room - 1, 0) :], pieces))
        written += "".join(piece.text for piece in pieces if piece.kind != "rejected")
        position += a_pass.emitted
    return made


def require_shown(record: RunRecord, prompt: PromptRecord) -> None:
    """Raises UserError if a kept record has not all draft tokens of this prompt."""
    if "shown" in record and record["prompts"][record["shown"]] is not prompt:
        raise UserError(
            f"{record['run_id']}: a kept record has the draft tokens of only one prompt, "
            f"--prompt {record['shown'] + 1}; to see others, run its config again"
        )


def along_path(a_pass: Pass) -> list[int]:
    """The drafted tokens of a pass; for a tree only the accepted path, and the first child of its end."""
    tokens, parents, path = a_pass.tokens, a_pass.parents, a_pass.path
    if parents is None or path is None:
        return tokens
    end = path[-1] if path else ROOT
    return [tokens[node] for node in (*path, *([parents.index(end)] if end in parents else []))]


def typical_prompt(record: RunRecord) -> int:
    """The index of a typical prompt; for a kept record, of the prompt that it shows.

    Of the longest tenth of the prompts that fit, have a rejection and repeat no n-gram, the prompt whose tokens per
    pass are nearest to the run's. Only the fifth of them that is most like its references counts.
    """
    if "shown" in record:
        return record["shown"]
    passes = [prompt["speculative"].passes for prompt in record["prompts"]]
    lengths = [len(prompt["speculative"].tokens) for prompt in record["prompts"]]
    rejected = [any(p.accepted < p.drafted for p in of_prompt) for of_prompt in passes]
    sound = [repeated(prompt["speculative"].tokens) == 0 for prompt in record["prompts"]]
    fitting = [i for i, length in enumerate(lengths) if rejected[i] and sound[i] and length <= LONGEST]
    fitting = fitting or list(range(len(lengths)))
    alike = [_likeness(prompt) for prompt in record["prompts"]]
    fitting = sorted(fitting, key=lambda i: -alike[i])[: 1 + len(fitting) // 5]
    fitting.sort(key=lambda i: -lengths[i])
    whole = sum(lengths) / sum(map(len, passes))
    return min(fitting[: 1 + len(fitting) // 10], key=lambda i: abs(lengths[i] / len(passes[i]) - whole))


def _likeness(prompt: PromptRecord) -> float:
    """How many words the completion shares with its reference, in their order; 0 without one."""
    reference = prompt.get("reference")
    return SequenceMatcher(None, prompt["speculative"].text.split(), (reference or "").split()).ratio()


def count(prompt: PromptRecord) -> str:
    """Return the length of a completion in words: '21 tokens in 7 target passes'."""
    ours = prompt["speculative"]
    return f"{len(ours.tokens)} tokens in {len(ours.passes)} target passes"


SIGNS = str.maketrans({"\n": "⏎", "\r": "⏎", "\t": "⇥"})


def token_text(texts: dict[str, str], token: int) -> str:
    """Return a token's text on one line, with a sign of its own for the end of the completion."""
    text = printable(texts[str(token)].replace("\r\n", "⏎").translate(SIGNS))
    if not text.strip():
        return "␣" * max(1, len(text))
    return "▪" if text.strip() in ENDS else text


# target: the token after the path; unvisited: below a rejected node, or tested after its sibling was accepted
NodeKind = Literal["accepted", "rejected", "target", "unvisited"]


@dataclass(frozen=True)
class Twig:
    """One line: the branches before a token, the token's text, and what became of it."""

    branches: str
    text: str
    kind: NodeKind


def tree_of_pass(record: RunRecord, prompt: PromptRecord, number: int) -> list[Twig]:
    """The tree of pass `number` (from 0) of a prompt, nodes under their parents. Raises UserError if it has none."""
    require_shown(record, prompt)
    passes = prompt["speculative"].passes
    a_pass = passes[number]
    parents, path = a_pass.parents, a_pass.path
    texts = record.get("pieces")
    if parents is None or path is None or texts is None:
        raise UserError(f"--tree {number + 1}: this pass drafted no tree")
    done = sum(one.emitted for one in passes[:number])
    last = prompt["speculative"].tokens[done + a_pass.emitted - 1]
    taken = path[: a_pass.accepted]
    target = token_text(texts, last).strip() if a_pass.emitted > a_pass.accepted else None
    nodes = [token_text(texts, token).strip() or "␣" for token in a_pass.tokens]
    return list(_below(ROOT, "", parents, taken, nodes, target))


def _below(
    node: int, before: str, parents: list[int], taken: list[int], nodes: list[str], target: str | None
) -> Iterator[Twig]:
    children = [child for child, parent in enumerate(parents) if parent == node]
    on_path = node in (ROOT, *taken)
    ends_here = on_path and node == (taken[-1] if taken else ROOT)
    lines: list[tuple[int | None, NodeKind]] = [(child, _kind(child, children, taken, on_path)) for child in children]
    if ends_here and target is not None:
        lines.append((None, "target"))
    for place, (child, kind) in enumerate(lines):
        last = place == len(lines) - 1
        yield Twig(before + ("└─ " if last else "├─ "), nodes[child] if child is not None else (target or ""), kind)
        if child is not None:
            yield from _below(child, before + ("   " if last else "│  "), parents, taken, nodes, target)


def _kind(child: int, siblings: list[int], taken: list[int], on_path: bool) -> NodeKind:
    if child in taken:
        return "accepted"
    later = any(sibling in taken for sibling in siblings[: siblings.index(child)])
    return "rejected" if on_path and not later else "unvisited"


def telling_pass(prompt: PromptRecord) -> int | None:
    """The pass (from 0) whose tree shows the most; None if no pass has a tree.

    It has the longest accepted path that left a first child; among equals the earliest.
    """
    passes = prompt["speculative"].passes
    grown = [number for number, one in enumerate(passes) if one.parents is not None]
    return max(grown, key=lambda number: _interest(passes[number]), default=None)


def _interest(a_pass: Pass) -> tuple[bool, int]:
    """Whether the accepted path left a first child, and its length."""
    parents, path = a_pass.parents or [], a_pass.path or []
    first = [parents.index(parents[node]) for node in path]  # the first sibling of each accepted node
    return list(path) != first, a_pass.accepted
