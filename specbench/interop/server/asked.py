"""The prompts of a task as requests: token ids if the target's tokenizer is at hand, text, or messages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench.config.schema import RunConfig, TaskConfig
from specbench.config.server import ServerConfig
from specbench.errors import UserError
from specbench.experiment.prompts import encode, transcript_of
from specbench.interop.server.client import Asked
from specbench.loading.model_loader import Say
from specbench.nouns import with_noun
from specbench.tasks import Example, Task, require_prompt
from specbench.tasks.row_files import interleaved
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary

FIRST_WORDS = 4  # of a row that is all text to continue: an empty prompt is none to a server


@dataclass(frozen=True)
class Prompts:
    """Examples, and how they are sent.

    Attributes:
        sent: ids, text or chat.
        vocabulary: the target's, if it is named.
        run: the config whose prompts these are, if token ids are sent.
    """

    examples: list[Example]
    sent: str
    vocabulary: Vocabulary | None
    run: RunConfig

    def asked(self, example: Example, answers: Sequence[str]) -> Asked:
        """The request of an example; `answers` are to the turns before it. Raises UserError if it is no prompt."""
        task = self.run.task
        require_prompt(task, example)
        if self.sent == "ids":
            assert self.vocabulary is not None
            return Asked(ids=encode(self.run, self.vocabulary, example, answers).prefix)
        if self.sent == "chat":
            messages = example.messages
            if example.turns:
                messages = interleaved(example.turns, answers or [""] * (len(example.turns) - 1))
            return Asked(messages=messages or [{"role": "user", "content": example.prompt}])
        text = transcript_of(example, answers) if example.turns else example.prompt
        return Asked(text=text + task.suffix)

    def shown(self, example: Example, answers: Sequence[str]) -> str:
        """The prompt as records have it, the same as in a run."""
        return transcript_of(example, answers) if len(example.turns) > 1 else example.prompt


def examples_of(config: ServerConfig) -> tuple[TaskConfig, list[Example]]:
    """The task, with first words as prompts where a row is all text to continue, and its examples."""
    task = config.task
    if task.source_field is None and task.prompt_words is None:
        task = replace(task, prompt_words=FIRST_WORDS)
    return task, Task(task).examples(config.limit, later_turns=config.batch == [1] and not config.rates)


def require_no_conversations(config: ServerConfig) -> None:
    """Raises UserError if a prompt is a conversation, unless the task says that it is sent without a template."""
    task, examples = examples_of(config)
    if task.chat_template is not False and any(one.messages or one.turns for one in examples):
        raise UserError(
            f"task={task.name}: has conversations, and start={config.start} is asked by text, without a chat template; "
            "choose another task, or start another engine"
        )


def prompts_of(config: ServerConfig, say: Say) -> Prompts:
    """The prompts of the task, as `send` says. Raises UserError if a row is no prompt, or ids have no tokenizer."""
    task, examples = examples_of(config)
    run = RunConfig(target=config.target, task=task, max_new_tokens=config.max_new_tokens, limit=config.limit)
    vocabulary = load_tokenizer(config.target, "target") if config.names_target else None
    sent = config.send
    if sent == "auto":
        talks = task.chat_template or any(example.messages or example.turns for example in examples)
        sent = "ids" if vocabulary is not None else "chat" if talks and task.chat_template is not False else "text"
    say(f"task {task.name}, {with_noun(len(examples), 'prompt')}, sent as {sent}")
    return Prompts(examples, sent, vocabulary, run)
