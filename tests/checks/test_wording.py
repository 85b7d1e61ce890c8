"""utils/checks/wording.py: the sentence around the words for a mistake."""

import pytest

from utils.checks.wording import named

SENTENCES = [
    ("the last tensor that arrived: add", "That is the last tensor that arrived: add."),
    ("rank 0's tensor", "That is rank 0's tensor."),
    ("the loss of this rank's tokens alone", "That is the loss of this rank's tokens alone."),
    ("2 times too large", "That is 2 times too large."),
    ("1 for each expert that was chosen", "That is 1 for each expert that was chosen."),
    ("what the other ranks send", "That is what the other ranks send."),
    ("one of the two tensors", "That is one of the two tensors."),
    ("in elements of 4 bytes", "That is in elements of 4 bytes."),
    ("seconds per byte: divide", "Those are seconds per byte: divide."),
    ("the scores themselves: a gate", "Those are the scores themselves: a gate."),
    ("this rank's own rows: nothing", "Those are this rank's own rows: nothing."),
    ("columns: cut the batch along its rows", "Those are columns: cut the batch along its rows."),
    ("all zeros, where no rank has used it", "Those are all zeros, where no rank has used it."),
    ("added up along tp too", "It was added up along tp too."),
    ("cut from the first parameter on", "It was cut from the first parameter on."),
    ("predicted / measured: subtract 1", "That is predicted / measured: subtract 1."),
    ("without the gates", "That is the result without the gates."),
    ("if fractions are cut off", "That is the result if fractions are cut off."),
    ("the sum. Where is f?", "That is the sum. Where is f?"),
    ("Yours is the last tensor that arrived. Add them.", "Yours is the last tensor that arrived. Add them."),
]


@pytest.mark.parametrize(("words", "sentence"), SENTENCES)
def test_a_sentence_has_the_grammar_of_its_words(words, sentence):
    assert named([words]) == sentence


def test_several_mistakes_are_all_said():
    assert named([]) == ""
    assert named(["the mean", "the sums"]) == "That is the mean. Or they are the sums. Both give these numbers."
    three = "That is the mean. Or it was cut off. Or it is the sum. All of these give these numbers."
    assert named(["the mean", "cut off", "the sum"]) == three
