"""A chat template of anyone's renders as `transformers` renders it, or is one line, in time."""

import time
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from specbench.engine import chat_template
from specbench.engine.chat_template import render
from specbench.text.vocabulary import Vocabulary
from tests.support.networks import tokenizer

CHAT = [{"role": "user", "content": "the old dog"}, {"role": "assistant", "content": "größer {{ x }} \n"}]
RIGHT = [
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content | trim }}{{ eos_token }}\n{% endfor %}",
    "{{ bos_token }}{{ messages | tojson }}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{{ strftime_now('%Y') }}",
    "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
]
WRONG = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}": "takes longer than 1 s",
    "{{ 9 ** (9 ** 9) }}": "takes longer than 1 s",
    "{% include 'x' %}": "TypeError",
    "{{ 1 + [] }}": "TypeError",
    "{{ 1 / 0 }}": "ZeroDivisionError",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{{ 'x' * 10 ** 10 }}": "MemoryError",
    "{{ '\\ud800' }}": "surrogate",
    "{{ ''.__class__.__mro__ }}": "SecurityError",
    "{% if": "TemplateSyntaxError",
    "{{ x.y.z }}": "UndefinedError",
    "": "writes no token",
    "{# nothing #}": "writes no token",
}


@pytest.mark.parametrize("template", RIGHT)
def test_a_template_renders_as_it_does_in_this_process(template: str) -> None:
    variables: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
    ((here,), _) = render_jinja_template(
        conversations=[CHAT], chat_template=template, add_generation_prompt=True, **variables
    )
    assert render(template, CHAT, variables) == here


@pytest.mark.parametrize("template", WRONG)
def test_a_template_that_fails_is_one_line_in_time(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    render("x", CHAT, {})  # started
    if WRONG[template].endswith(" 1 s"):
        monkeypatch.setattr(chat_template, "SECONDS", 1.0)
    vocabulary = Vocabulary(tokenizer(False), 0, is_encoder_decoder=False)
    vocabulary.tokenizer.chat_template = template
    began = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        vocabulary.chat(CHAT, 8)
    assert WRONG[template] in str(caught.value)
    assert time.monotonic() - began < 30  # the loops take minutes
    monkeypatch.undo()
    assert render("{{ messages[0].content }}", CHAT, {}) == "the old dog"


def test_several_templates_without_a_default_are_one_line() -> None:
    vocabulary = Vocabulary(tokenizer(False), 0, is_encoder_decoder=False)
    vocabulary.tokenizer.chat_template = {"rag": "a", "tools": "b"}
    with pytest.raises(TemplateError, match="template"):
        vocabulary.chat(CHAT, 8)
