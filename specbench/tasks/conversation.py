"""Rows that hold a conversation: `{"messages": [{"role": "user", "content": "…"}, …]}`, as chat models are given it."""

from collections.abc import Sequence

from specbench.errors import UserError
from specbench.tasks.rows import Row

MESSAGES_FIELD = "messages"
Message = dict[str, str]  # 'role' and 'content'


def messages_of(row: Row, field: str) -> list[Message] | None:
    """The messages in `field`, or in `messages` if the row lacks it; None where there is text instead.

    Raises:
        UserError: a message has no role or no text.
    """
    found = row.fields.get(field if field in row.fields else MESSAGES_FIELD)
    if not isinstance(found, list) or (found and all(isinstance(turn, str) for turn in found)):
        return None
    if not found:
        raise UserError(f"{row.where}: the conversation is empty")
    return [_message(row, number, message) for number, message in enumerate(found, start=1)]


def _message(row: Row, number: int, message: object) -> Message:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if not isinstance(role, str) or not isinstance(content, str):
        raise UserError(f'{row.where}: message {number} is not {{"role": "…", "content": "…"}} with text in both')
    return {"role": role, "content": content}


def split_answer(messages: Sequence[Message]) -> tuple[list[Message], str | None]:
    """The messages to answer, and the answer where the last message is the assistant's."""
    if messages[-1]["role"] == "assistant":
        return list(messages[:-1]), messages[-1]["content"]
    return list(messages), None


def interleaved(questions: Sequence[str], answers: Sequence[str]) -> list[Message]:
    """A conversation of the user's `questions`, all but the last of them answered."""
    messages = [{"role": "user", "content": questions[0]}]
    for answer, question in zip(answers, questions[1:], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    return messages


def transcript(messages: Sequence[Message]) -> str:
    """The conversation for a reader, a line for each message."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
