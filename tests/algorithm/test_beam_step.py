"""One step of a beam search by hand: which hypotheses end, which continue, when the search stops."""

import pytest
import torch

from specbench.algorithm.beam import Beams, BeamSettings, Hypothesis, begin, continuations, step


def test_scores_that_are_not_finite_are_refused() -> None:
    for bad in (torch.nan, torch.inf):
        with pytest.raises(FloatingPointError, match="not finite"):
            continuations([(0,)], torch.zeros(1), {(0,): torch.tensor([0.0, bad, -1.0])}, 2)


def test_what_cannot_be_said_is_no_continuation() -> None:
    rows = {(0,): torch.tensor([-1.0, -torch.inf, -2.0])}
    texts, scores = continuations([(0,)], torch.tensor([-1.0]), rows, 9, never={2})
    assert texts == [(0, 0)] and scores.tolist() == [-2.0]


def test_only_the_first_w_candidates_may_end_a_text() -> None:
    settings = BeamSettings(2, 9, frozenset({3}))
    beams = step(begin((0,), settings), {(0,): torch.tensor([0.4, 0.3, 0.2, 0.1]).log()}, settings)
    assert beams.running == [(0, 0), (0, 1)] and not beams.ended  # the end comes fourth
    sure, late = torch.tensor([0.1, 0.1, 0.1, 0.7]).log(), torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    beams = step(beams, {(0, 0): sure, (0, 1): late}, settings)
    assert [one.tokens for one in beams.ended] == [(0, 0, 3)]
    assert beams.ended[0].score == pytest.approx(float(torch.tensor(0.4 * 0.7).log()) / 2)
    assert beams.running == [(0, 1, 0), (0, 1, 1)] and not beams.finished


def test_w_texts_go_on_however_many_ends_are_likelier() -> None:
    settings = BeamSettings(2, 9, frozenset({3, 4}))
    ends = torch.tensor([0.06, 0.04, 0.0, 0.5, 0.4]).log()
    beams = Beams([(0, 0), (0, 1)], torch.tensor([-1.0, -1.1]), [], 1)
    beams = step(beams, {(0, 0): ends, (0, 1): ends}, settings)
    assert beams.running == [(0, 0, 0), (0, 1, 0)]
    assert [one.tokens for one in beams.ended] == [(0, 0, 3), (0, 1, 3)]


@pytest.mark.parametrize(
    ("early", "penalty", "over"),
    [
        (True, 1.0, True),  # two have ended
        (False, 1.0, True),  # -2.4 / 2 is below -1.1
        ("never", 1.0, False),  # -2.4 / 9 is not
        ("never", 0.0, True),  # -2.4 is below -1.1
        (False, 2.0, False),  # -2.4 / 4 is not
    ],
)
def test_it_is_over_when_w_have_ended_and_none_can_come_before_them(
    early: bool | str, penalty: float, over: bool
) -> None:
    settings = BeamSettings(2, 9, frozenset({3}), penalty, early)
    ended = [Hypothesis((0, 3), -1.0), Hypothesis((0, 1, 3), -1.1)]
    beams = Beams([(0, 0), (0, 1)], torch.tensor([-2.0, -2.5]), ended, 1)
    row = torch.tensor([-0.4, -9.0, -9.0, -20.0])
    assert step(beams, {(0, 0): row, (0, 1): row}, settings).finished == over
    one_ended = Beams(beams.running, beams.scores_W, ended[:1], 1)
    assert not step(one_ended, {(0, 0): row, (0, 1): row}, settings).finished


def test_a_step_without_a_row_cannot_be_taken() -> None:
    settings = BeamSettings(2, 9, frozenset({3}))
    row = torch.tensor([-1.0, -1.5, -2.0, -3.0])
    with pytest.raises(KeyError):
        step(Beams([(0, 0), (0, 1)], torch.tensor([-1.0, -1.1]), [], 1), {(0, 0): row}, settings)
