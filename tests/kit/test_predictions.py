"""predictions.py: guesses before the answer, and both side by side after it."""

import pytest
import torch

from utils.kit import predictions
from utils.kit.predictions import how_far, how_predictions_went, predict, reveal


@pytest.fixture(autouse=True)
def no_predictions_yet(monkeypatch):
    monkeypatch.setattr(predictions, "made", {})


def shown(capsys):
    """What a notebook that knows no HTML shows for the last call."""
    return capsys.readouterr().out.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("guess", "answer", "verdict"),
    [
        (96, 96, "right"),
        (0.3333, 1 / 3, "right"),
        (92, 96, "close, 4.2 % too low"),
        (64, 96, "33 % too low"),
        (300, 96, "3.12 times too high"),
        (1, 4096, "4,096 times too low"),
        (5, 0, "too high"),
        (-5, 5, "too low"),
        (float("inf"), 5, "too high"),
        (0, 0, "right"),
        (True, True, "right"),
        (True, False, "wrong"),
        ("A deadlock.", "a  deadlock", "right"),
        ("an error", "a deadlock", "wrong"),
        ([1, 2, 3], [1, 2, 4], "right in 2 of 3 entries"),
        ((1, 2), [1, 2], "right"),
        ([1], [1, 2], "wrong: 2 entries, not 1"),
        ([[1, 2], [3]], [[1, 2], [4]], "right in 1 of 2 entries"),
        (torch.tensor([1, 2]), [1, 2], "right"),
        ("many", 3, "wrong"),
    ],
)
def test_a_guess_is_compared_with_the_answer(guess, answer, verdict):
    assert how_far(guess, answer) == verdict


def test_guess_and_answer_stand_side_by_side(capsys):
    predict("bytes of each", 64)
    reveal("bytes of each", torch.tensor(96), unit="B", why="3 x 4 x 8, `float64`: a < b.")
    assert shown(capsys) == "bytes of each: 96 B (you said 64 B: 33 % too low)"
    html = predictions.made["bytes of each"]._repr_html_()
    assert "<details><summary>Why</summary>" in html and "<code>float64</code>: a &lt; b" in html
    assert html.index("33 % too low") < html.index("<details>")  # nobody has to open anything to see that


def test_without_a_guess_the_answer_is_folded_away():
    predict("bytes of each", ...)
    reveal("bytes of each", 96, why="because")
    html = predictions.made["bytes of each"]._repr_html_()
    assert html.startswith("<details><summary>bytes of each: open to see</summary>") and html.endswith("</details>")
    assert "96" not in html.split("</summary>")[0]


def test_nothing_blocks_a_student_who_skips_the_cell(capsys):
    reveal("never asked", 3)
    assert shown(capsys) == "never asked: 3 (no guess)"


def test_before_the_answer_a_guess_is_only_noted(capsys):
    predict("messages", 6)
    assert shown(capsys) == "messages? You say 6."
    predict("messages", ...)
    assert "Replace the ..." in shown(capsys)
    predict("what happens", ..., choices=["an error", "a deadlock"])
    assert "one of 'an error', 'a deadlock'" in shown(capsys)


def test_a_cell_shows_all_its_predictions(capsys):
    predict("messages", 6)
    predict("bytes", 7)
    assert capsys.readouterr().out.count("You say") == 2


def test_a_second_guess_replaces_the_first(capsys):
    predict("messages", 6)
    predict("messages", 7)
    reveal("messages", 7)
    assert shown(capsys) == "messages: 7 (you said 7: right)"


def test_a_mistyped_choice_counts_as_the_nearest_and_loses_no_other_guess(capsys):
    predict("what happens", "A deadlock", choices=["an error", "a deadlock"])
    assert shown(capsys) == "what happens? You say A deadlock."
    predict("what happens", "dedlock", choices=["an error", "a deadlock"])
    assert shown(capsys) == "what happens? You say a deadlock, the nearest choice to 'dedlock'."
    reveal("what happens", "a deadlock")
    assert shown(capsys).endswith("right)")
    predict("what happens", 7, choices=["an error", "a deadlock"])
    assert shown(capsys) == "what happens? '7' is not one of 'an error', 'a deadlock'."
    reveal("what happens", "a deadlock")
    assert shown(capsys).endswith("(no guess)")


def test_a_guess_is_right_if_its_digits_are_those_that_are_shown(capsys):
    predict("seconds", 1)
    reveal("seconds", 1.0049)
    assert shown(capsys) == "seconds: 1 (you said 1: right)"
    predict("seconds", 1)
    reveal("seconds", 1.0051)
    assert shown(capsys) == "seconds: 1.01 (you said 1: close, 0.51 % too low)"


def test_a_number_may_be_typed_as_a_word(capsys):
    predict("GPUs", "1,024")
    reveal("GPUs", 1024)
    assert shown(capsys) == "GPUs: 1,024 (you said 1,024: right)"
    predict("sizes", ["1", 2.5])
    reveal("sizes", [1, 2.5])
    assert shown(capsys).endswith("right)")


def test_another_answer_may_be_just_as_right(capsys):
    predict("segments", 5)
    reveal("segments", 4, ties=[5])
    assert shown(capsys) == "segments: 4 (you said 5: right)"


def test_how_they_went():
    predict("messages", 6)
    predict("bytes", ...)
    predict("never revealed", 1)
    reveal("messages", 6)
    reveal("bytes", 96e6, unit="B")
    table = how_predictions_went()
    assert table.caption == "1 of 2 predictions made, 1 of them right"
    assert "96 MB" in repr(table) and "never revealed" not in repr(table)
    assert "<td>right</td>" in table._repr_html_()
