"""What differs between a target and a head: its own vocabulary (d2t), and the revision that it names."""

import pytest

from specbench.analysis.findings.checkpoint import Checkpoint
from specbench.analysis.findings.configs import differences

TARGET = Checkpoint("t", "owner/t", {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000}, revision="aa")
HEAD = {"hidden_size": 64, "vocab_size": 1000, "draft_vocab_size": 320, "target_layer_ids": [0, 1, 3]}


@pytest.mark.parametrize(
    ("tensors", "matters", "said"),
    [
        (None, "perhaps", "must have the table d2t"),
        ({"fc.weight": (64, 192)}, "yes", "have no table d2t"),
        ({"model.d2t": (300,)}, "yes", "has 300 entries"),
        ({"d2t": (320,)}, "no", "names them"),
    ],
)
def test_a_head_with_a_vocabulary_of_its_own_needs_its_table(
    tensors: dict[str, tuple[int, ...]] | None, matters: str, said: str
) -> None:
    (one,) = differences(TARGET, Checkpoint("h", "owner/h", HEAD, tensors=tensors))
    assert one.what == "the head's own vocabulary (d2t)" and one.matters == matters and said in one.why
    assert (one.target, one.draft) == ("1,000", "320")


def test_another_revision_of_the_target_matters() -> None:
    plain = {name: value for name, value in HEAD.items() if name != "draft_vocab_size"}
    found = [
        [one.matters for one in differences(target, Checkpoint("h", "owner/h", plain | {"target_revision": "aa"}))]
        for target in (TARGET, Checkpoint("t", "owner/t", TARGET.config, revision="bb"),
                       Checkpoint("t", "owner/t", TARGET.config))
    ]  # fmt: skip
    assert found == [[], ["yes"], ["perhaps"]]


def test_a_draft_without_a_template_or_with_an_encoder_is_told() -> None:
    target = Checkpoint("t", "owner/t", {"model_type": "llama"}, template="{{ messages }}")
    found = {one.what: one for one in differences(target, Checkpoint("d", "owner/d", {"model_type": "llama"}))}
    assert found["chat template"].why == "the draft has none: it may never have read conversations"
    t5 = Checkpoint("d", "owner/d", {"model_type": "t5", "is_encoder_decoder": True}, template="{{ messages }}")
    (one,) = differences(target, t5)
    assert (one.what, one.target, one.draft, one.matters) == ("encoder", "none", "yes", "yes")
