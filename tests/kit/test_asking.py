"""Predictions by a click, and what stays where nobody can click. In a real JupyterLab: test_in_jupyterlab.py."""

import sys
from types import SimpleNamespace

import pytest

from utils.kit import predictions
from utils.kit.asking import typed
from utils.kit.front_end import someone_is_there
from utils.kit.predictions import predict, reveal

ENDS = ["an error", "a deadlock"]


class Place:
    """What `display` returns: it remembers what is shown."""

    def __init__(self, data):
        self.data, self.now = data, None

    def update(self, shown):
        self.now = repr(shown)


@pytest.fixture
def page(monkeypatch):
    """Someone who can click, and the places of all that has been displayed."""
    places = []
    monkeypatch.setattr(predictions, "made", {})
    monkeypatch.setattr(predictions, "someone_is_there", lambda: True)
    monkeypatch.setattr(predictions, "display", lambda data, **_: places.append(Place(data)) or places[-1])
    return places


def part(question, words):
    """A button, by what it says."""
    return next(one for one in predictions.made[question].on_page[0].children if one.description == words)


def test_beside_the_widget_stands_what_other_viewers_show(page):
    predict("how it ends", ..., choices=ENDS)
    assert page[0].data["text/plain"].startswith("how it ends? Replace the ...")
    assert "<p>how it ends?" in page[0].data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in page[0].data


def test_after_a_click_words_take_the_place_of_the_widget(page):
    predict("how it ends", ..., choices=ENDS)
    box = predictions.made["how it ends"].on_page[0]
    part("how it ends", "a deadlock").click()
    assert page[0].now == "how it ends? You say a deadlock." and box.comm is None


def test_the_cell_remembers_a_click_when_it_is_run_again_and_marks_it(page):
    predict("how it ends", ..., choices=ENDS)
    part("how it ends", "an error").click()
    predict("how it ends", ..., choices=ENDS)
    assert part("how it ends", "an error").button_style == "info" != part("how it ends", "a deadlock").button_style
    reveal("how it ends", "a deadlock")
    assert repr(page[-1].data) == "how it ends: a deadlock (you said an error: wrong)"


def test_who_does_not_know_sees_the_answer_open(page):
    predict("bytes", ...)
    part("bytes", "I don't know").click()
    reveal("bytes", 96, unit="B")
    assert predictions.made["bytes"]._repr_html_() == "<p>bytes: <b>96 B</b>. </p>"
    assert predictions.how_predictions_went().guessed == 0


def test_the_answer_puts_an_open_question_away(page):
    predict("bytes", ...)
    reveal("bytes", 96)
    assert page[0].now.startswith("bytes? Replace the ...") and predictions.made["bytes"].on_page is None
    assert predictions.made["bytes"]._repr_html_().startswith("<details><summary>bytes: open to see")


def test_a_guess_in_the_code_needs_no_widget(page):
    predict("bytes", 64)
    assert repr(page[0].data) == "bytes? You say 64."


def test_without_ipywidgets_there_are_words(page, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    predict("bytes", ...)
    assert repr(page[0].data).startswith("bytes? Replace the ...")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("1,024", 1024), ("3e8", 3e8), ("7, 9", (7, 9)), ("[[1, 2], [3]]", [[1, 2], [3]]), (" True ", True),
        ("a word", "a word"), ("", None), ("  ", None), ("__import__('os')", "__import__('os')"),
    ],
)  # fmt: skip
def test_what_is_typed_into_the_field(words, value):
    assert typed(words) == value


@pytest.mark.parametrize("asks", [{"allow_stdin": True}, {"allow_stdin": False}, {}])
def test_a_program_that_runs_a_notebook_is_told_from_a_person(asks, monkeypatch):
    kernel = SimpleNamespace(get_parent=lambda: {"content": asks})
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=kernel))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert someone_is_there() == asks.get("allow_stdin", False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not someone_is_there()
