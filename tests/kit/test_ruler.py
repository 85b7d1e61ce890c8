"""ruler.py: where guess and truth stand on a line, and what the line is marked with."""

from xml.etree import ElementTree

import pytest

from utils.kit import predictions
from utils.kit.predictions import Prediction, shown
from utils.kit.ruler import WIDE, ruler

SVG = "{http://www.w3.org/2000/svg}"


def drawn(guess, truth):
    """(x of the guess, x of the truth, the marks' words, the flags' words)"""
    sheet = ElementTree.fromstring(ruler(guess, truth, shown))
    dots = {one.get("fill") == "#FFFFFF": float(one.get("cx")) for one in sheet.iter(f"{SVG}circle")}
    words = {
        bold: [t.text for t in sheet.iter(f"{SVG}text") if (t.get("font-weight") == "bold") == bold] for bold in (0, 1)
    }
    return dots.get(True), dots[False], words[0], words[1]


def test_numbers_alike_stand_on_a_line_that_begins_at_zero():
    guess, truth, marks, flags = drawn(64, 96)
    assert 0 < guess < truth < WIDE and (guess - 34) / (truth - 34) == pytest.approx(64 / 96, abs=0.01)
    assert marks == ["0", "20", "40", "60", "80", "100"] and flags == ["it is 96", "you said 64"]


def test_numbers_far_apart_stand_on_a_logarithmic_line():
    guess, truth, marks, _ = drawn(1_000_000, 100)
    assert truth < guess and marks == ["100", "1,000", "10,000", "100,000", "10⁶"]
    assert drawn(2, 8)[2] == ["2", "5", "10"]
    assert drawn(7, 1.5e15)[2] == ["1", "1,000", "10⁶", "10⁹", "10¹²", "10¹⁵", "10¹⁸"]


def test_zero_and_less_have_their_place():
    assert drawn(5, 0)[:2] == (WIDE - 34, 34)
    assert drawn(-9, -8)[2][-1] == "0"
    guess, truth, marks, _ = drawn(-5, 5)
    assert guess < WIDE / 2 < truth and "0" in marks


@pytest.mark.parametrize("both", [0, 6, -2, 1e-9])
def test_a_right_guess_has_one_flag(both):
    assert drawn(both, both)[3] == [f"{shown(both)}, as you said"]


def answered(guess, answer, choices=()):
    one = Prediction("q", guess, choices)
    one.answer = answer
    return one


def test_the_same_numbers_give_the_same_bytes_and_the_words_stay():
    html = answered(64, 96)._repr_html_()
    assert html == answered(64, 96)._repr_html_() and "You said 64: 33 % too low." in html
    assert html.count("<img") == 1 and len(html) < 3000
    assert repr(answered(64, 96)) == "q: 96 (you said 64: 33 % too low)"


@pytest.mark.parametrize(
    ("guess", "answer"), [(..., 96), ([1], [2]), ("a word", 3), (True, 1), (float("inf"), 3), (float("nan"), 3)]
)
def test_without_two_numbers_there_is_no_ruler(guess, answer):
    assert "<img" not in answered(guess, answer)._repr_html_()


def test_of_the_choices_the_right_one_and_ones_own_are_marked():
    html = answered("yes", "no", ["yes", "no", "at times"])._repr_html_()
    chips = [chip.split(">")[1].split("<")[0] for chip in html.split("<span")[1:]]
    assert chips == ["yes (you)", "✓ no", "at times"]
    one = answered("at times", "no", ["yes", "no", "at times"])
    one.ties = ("at times",)
    assert "✓ at times (you)" in one._repr_html_() and predictions.RIGHT in repr(one)
