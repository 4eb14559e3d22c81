"""The forms of prompts in files: `prompt`, `turns`, `instruction` with `input`, or fields that a template joins.

Conversations (`messages`) are in `conversation`.
"""

import re

from specbench.tasks.rows import TEXT_FIELD, Row

FIELDS = ("prompt", "turns", "instruction")  # each is read where the field that a task names is another of these
INPUT = "input"  # what an instruction is about, in rows like Alpaca's
PLACE = re.compile(r"\{(\w+)\}")
WAY_OUT = "name the field with task.source_field=NAME, or put several together with task.template='… {NAME} …'"


def turns_of(row: Row, name: str, is_line_a_prompt: bool, way_out: str) -> list[str]:
    """The user's turns in a row: the field `name`, or another of FIELDS if it is one of these.

    Most files have a single turn. `is_line_a_prompt`: a line of plain text is a prompt.

    Raises:
        UserError: no field fits; the message names the row's fields.
    """
    if name not in row.fields and name in FIELDS:
        name = next((field for field in FIELDS if field in row.fields), name)
    if name not in row.fields and is_line_a_prompt and list(row.fields) == [TEXT_FIELD]:
        name = TEXT_FIELD
    value = row.fields.get(name)
    if isinstance(value, list) and value and all(isinstance(turn, str) for turn in value):
        return list(value)
    text = row.text(name, way_out)
    about = row.fields.get(INPUT) if name == "instruction" else None
    return [f"{text}\n\n{about}" if isinstance(about, str) and about.strip() else text]


def filled(template: str, row: Row) -> str:
    """`template` with the row's text for each `{field}`; other braces are unchanged.

    Raises:
        UserError: the row lacks a field.
    """

    def text(found: re.Match[str]) -> str:
        value = row.fields.get(found[1])
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        return row.text(found[1], "task.template names it")

    return PLACE.sub(text, template)
