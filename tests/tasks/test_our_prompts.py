"""The four tasks of our own prompts for chat models."""

import re
from itertools import combinations

import pytest

from specbench.compose.hydra_app import composed_config
from specbench.config.schema import RunConfig
from specbench.tasks import Task
from specbench.train.recipe_rows import NEAR_COPY, words

OURS = {"chat": 18, "code": 4, "summaries": 3, "translation": 5}  # with their categories


@pytest.mark.parametrize("name", OURS)
def test_forty_eight_rows_of_a_kind_go_into_the_chat_template(name):
    config = composed_config(RunConfig, [f"task={name}", "target=t5-mini", "draft=lookup"], "run").task
    first = Task(config).examples(None, later_turns=False)
    assert len(first) == 48 and len({one.category for one in first}) == OURS[name]
    assert all(one.messages or len(one.turns) == 1 for one in first) and config.chat_template
    assert len({one.prompt for one in first}) == 48
    assert len(Task(config).examples(None)) == (63 if name == "chat" else 48)


def test_no_prompt_is_in_two_tasks():
    words = ("target=t5-mini", "draft=lookup")
    tasks = (composed_config(RunConfig, [f"task={name}", *words], "run").task for name in OURS)
    prompts = [one.prompt for task in tasks for one in Task(task).examples(None)]
    assert len(set(prompts)) == len(prompts) == 63 + 3 * 48


def test_texts_to_summarise_have_150_to_400_words():
    task = composed_config(RunConfig, ["task=summaries", "target=t5-mini", "draft=lookup"], "run").task
    words = [len(one.prompt.partition("\n\n")[2].split()) for one in Task(task).examples(None)]
    assert min(words) >= 150 and max(words) <= 400


def test_texts_to_summarise_are_whole_and_different():
    """No sentence has lost its beginning, and no text is there twice."""
    task = composed_config(RunConfig, ["task=summaries", "target=t5-mini", "draft=lookup"], "run").task
    texts = [one.prompt.partition("\n\n")[2] for one in Task(task).examples(None)]
    for one, other in combinations([words(text) for text in texts], 2):
        assert len(one & other) / len(one | other) < NEAR_COPY
    cut = [one for text in texts for one in re.split(r"(?<=\.) ", text) if re.match("[a-z]{2,} ", one)]
    assert not cut, cut
