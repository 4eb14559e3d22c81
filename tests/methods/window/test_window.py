"""Drafts with a window: logits as with a mask, whatever was read and rolled back; q as drawn; completions unchanged."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.cli import main
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.native.native_model import NativeModel
from specbench.engine.session import Prompt
from specbench.engine.window import BLOCK, ROLLED_BACK, Window
from specbench.methods.model.draft import ModelDraft
from specbench.methods.window.draft import WindowDraft
from specbench.sampling import Sampling
from tests.support.chi import ALARM, speculative_p_value
from tests.support.toy import EOS, PROMPT
from tests.support.toy import VOCABULARY as TOY

WINDOW = Window(20, 3)
VOCABULARY = 61
ENGINES = [EagerModel, StaticModel, NativeModel]
RUN = ["run", "target=gpt-mini", "max_new_tokens=24", "limit=2", "dtype=float32", "warmup=0", "task.prompt_words=60"]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().float()


@pytest.fixture(scope="module")
def text():
    return torch.randint(0, VOCABULARY, (560,), generator=torch.Generator().manual_seed(1)).tolist()


def masked(network, text, rows=slice(None)):
    """Logits of `text` where the tokens `rows` attend to the window alone, and the others to everything."""
    number = torch.arange(len(text))
    causal = number[None] <= number[:, None]
    near = (number[None] < WINDOW.sinks) | (number[None] > number[:, None] - WINDOW.tokens)
    seen = causal.clone()
    seen[rows] &= near[rows]
    bias = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.inference_mode():
        return network(torch.tensor([text]), attention_mask=bias).logits[0]


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("kind", ENGINES)
def test_reading_nothing_gives_no_logits_and_changes_nothing(kind, windowed, network, text):
    model = kind(network, VOCABULARY, frozenset())
    session = (model.windowed(WINDOW, "draft.window=20") if windowed else model).start(Prompt((), tuple(text[:9])))
    assert session.extend([]).shape == (0, VOCABULARY) and session.length == 8
    first = session.extend(text[8:10])
    session.rollback(8)
    assert session.extend([]).shape == (0, VOCABULARY)
    assert torch.equal(session.extend(text[8:10]), first)


@pytest.mark.parametrize("kind", ENGINES)
def test_logits_are_those_of_a_mask_after_reads_rollbacks_and_trees(kind, network, text):
    expected = masked(network, text)
    model = kind(network, VOCABULARY, frozenset()).windowed(WINDOW, "draft.window=20")
    session = model.start(Prompt((), tuple(text[:350])))
    sizes = torch.randint(1, 9, (200,), generator=torch.Generator().manual_seed(2)).tolist()
    for size in sizes:
        if session.length > 500:
            break
        at = session.length
        assert_close(session.extend(text[at : at + size]), expected[at : at + size])
        session.extend([5] * 3)  # a proposal that is rejected
        session.rollback(at + size - size // 3)
    assert session.dropped > 0
    session.rollback(60)  # far before the window: the text is read again
    assert_close(session.extend(text[60 : 60 + BLOCK + 9]), expected[60 : 60 + BLOCK + 9])
    at = session.length
    assert_close(session.extend([text[at], 7, text[at + 1]], [-1, -1, 0])[[0, 2]], expected[at : at + 2])
    assert_close(session.extend([text[at + 2]], [2]), expected[at + 2 : at + 3])
    session.select([0, 2, 3])
    assert_close(session.extend(text[at + 3 : at + 9]), expected[at + 3 : at + 9])


@pytest.mark.parametrize("kind", ENGINES)
def test_it_takes_the_keys_and_values_of_the_whole_session(kind, network, text):
    model = kind(network, VOCABULARY, frozenset())
    own = model.windowed(WINDOW, "draft=window").start(Prompt((), (text[0],)))
    whole = model.start(Prompt((), tuple(text[:300])))
    for end, back in ((300, 300), (303, 302), (340, 336), (350, 350), (500, 500)):
        if whole.length < end - 1:
            whole.extend(text[whole.length : end - 1])
        own.take(whole)
        found = own.extend([*text[end - 1 : end], 9, 9])
        assert_close(found[:1], masked(network, text[:end], slice(end - 1, end))[-1:])
        whole.rollback(back - 1)
        own.rollback(back - 1)
    assert own.dropped > 0 and own.length - own.dropped <= WINDOW.slots


def test_score_is_q_of_the_first_token_of_a_proposal(network, text):
    model = NativeModel(network, VOCABULARY, frozenset())
    draft = WindowDraft(model, model.windowed(WINDOW, "draft=window"))
    prompt, sampling = Prompt((), tuple(text[:100])), Sampling(temperature=1.0)
    scored = draft.start(prompt, sampling).score(text[:110], 100)
    generator = torch.Generator().manual_seed(0)
    target = model.start(prompt)
    drafting = draft.start_on(target, prompt, sampling)
    for end in range(100, 110):
        if target.length < end - 1:
            target.extend(text[target.length : end - 1])
        proposal = drafting.propose(text[:end], 2, generator)
        assert_close(proposal.q_GV[0], scored[end - 100])
        drafting.rollback(end - 1)


def test_slots_do_not_grow_with_the_text(network, text):
    model = StaticModel(network, VOCABULARY, frozenset()).windowed(WINDOW, "draft.window=20")
    session = model.start(Prompt((), tuple(text)))
    assert session._held["self"].slots == WINDOW.slots == 3 + 20 + ROLLED_BACK + BLOCK


@pytest.mark.parametrize("draft", ["draft=window draft.window=16", "draft=gpt-nano draft.window=16 draft.sinks=2"])
@pytest.mark.parametrize("more", ["engine=eager", "engine=native", "engine=native batch=2", "engine=native gamma=5"])
def test_completions_are_the_targets(draft, more, tmp_path, capsys):
    assert main([*RUN, *draft.split(), *more.split(), f"results={tmp_path}", "--format=json"]) == 0
    assert '"identical": 1.0' in capsys.readouterr().out


def test_sampled_completions_are_proved(tmp_path, capsys):
    assert main([*RUN, "draft=window", "draft.window=16", "sampling.temperature=1", f"results={tmp_path}"]) == 0
    assert "proof" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["target=t5-mini", "draft=window"], "encoder-decoder"),
        (["target=t5-mini", "draft=t5-nano", "draft.window=64"], "encoder-decoder"),
        (["target=gpt-mini", "draft=gpt-nano", "draft.sinks=2"], "set draft.window, too"),
        (["target=gpt-mini", "draft=window", "draft.window=0"], "at least 1"),
        (["target=gpt-mini", "draft=window", "engine=static", "batch=2"], "engine=native"),
        (["target=gpt-mini", "draft=window", "tree=widths"], "makes no trees"),
    ],
)
def test_mistakes_are_one_line(words, said, tmp_path, capsys):
    assert main(["run", *words, "limit=2", f"results={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.statistical
@pytest.mark.parametrize("kind", [WindowDraft, ModelDraft])
def test_whole_texts_are_the_targets(kind):
    """One false alarm in 10,000 seeds; drafted tokens are rejected, so that the window does show."""
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=TOY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, initializer_range=0.7,
    )  # fmt: skip
    model = NativeModel(LlamaForCausalLM(config).eval().float(), TOY, frozenset({EOS}))
    windowed = model.windowed(Window(1, 0), "draft=window")
    draft = WindowDraft(model, windowed) if kind is WindowDraft else ModelDraft(windowed, TOY)
    p, rejected = speculative_p_value(model, draft, PROMPT, 3, Sampling(1.0), 4, 1500)
    assert p > ALARM and rejected > 100
