"""Explorers: whose value counts, when there are sliders, and what stands in their place.

In a real JupyterLab: test_in_jupyterlab.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from utils.figures import explore, time_curves

SOURCE = """
from utils.figures import explore, time_curves

def own(n):
    return 3 * n

def triple(n, unused):
    return {"triple": (3 * n, lambda: own(n), "B")}, lambda right: time_curves(
        {"3 n": [(1, 3), (100, 300)], "yours": [(n, y) for y in right.values()]}, f"n = {n}", "yours"
    )

one = explore(triple, {"n": "B"}, n=[1, 10, 100], unused=[0, 1])
"""
IN_A_KERNEL = """
from types import SimpleNamespace
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output
from ipywidgets import SelectionSlider
from ipywidgets.widgets.widget import _instances

shell = InteractiveShell.instance()
for there in (False, True):
    shell.kernel = SimpleNamespace(get_parent=lambda: {"content": {"allow_stdin": there}})
    with capture_output() as shown:
        display(one)
    print([sorted(output.data) for output in shown.outputs])
with capture_output() as shown:
    [one for one in _instances.values() if isinstance(one, SelectionSlider)][0].index = 2
print(["300 B" in output.data["text/html"] for output in shown.outputs])
"""
ROOT = Path(__file__).resolve().parents[2]


def explorer(own):
    """As in SOURCE, with another function of the student's. Notes in `seen` what counts."""
    seen = []

    def triple(n, unused):
        def draw(right):
            seen.append(right)
            return time_curves({"3 n": [(1, 3), (100, 300)]}, f"n = {n}")

        return {"triple": (3 * n, lambda: own(n), "B")}, draw

    return explore(triple, {"n": "B"}, n=[1, 10, 100], unused=[0, 1]), seen


def rows(one):
    return [re.split("   +", line.strip()) for line in repr(one).splitlines()[3:]]


def blank(n):
    pass


def fails(n):
    raise NotImplementedError


@pytest.mark.parametrize(
    "own, words, counts",
    [
        (lambda n: 3.0 * n, "30 B", {"triple": 30.0}),
        (lambda n: n, "10 B: not right yet", {}),
        (blank, "not there yet", {}),
        (fails, "not there yet", {}),
    ],
)
def test_the_students_own_value_counts_if_it_is_there_and_right(own, words, counts):
    one, seen = explorer(own)
    page = one.page({"n": 10, "unused": 0})
    assert "<tr><td>triple</td><td>30 B</td><td>" + words + "</td></tr>" in page and seen == [counts]
    assert page.count("<img") == 1
    assert all(row.endswith("the same" if counts else "not there yet") for row in repr(one).splitlines()[3:])


def test_without_a_closed_form_every_number_counts():
    one = explore(lambda n: ({"mine": (None, lambda: n + 1, "")}, lambda right: None), n=[1, 2, 3])
    assert rows(one) == [["2", "3"], ["1", "2"], ["3", "4"]]


def test_the_cases_are_the_start_and_the_ends_of_each_axis_and_the_same_bytes_each_time():
    one, _ = explorer(lambda n: 3 * n)
    assert [row[:2] for row in rows(one)] == [["10 B", "1"], ["1 B", "1"], ["100 B", "1"], ["10 B", "0"]]
    assert one._repr_html_() == explorer(lambda n: 3 * n)[0]._repr_html_() and "widget" not in one._repr_html_()


def test_there_are_sliders_only_if_someone_could_move_them_and_they_redraw():
    """nbclient and nbval allow no input; a front end does."""
    env = {**os.environ, "SPAWN_ZYGOTE": "1"}
    said = subprocess.check_output([sys.executable, "-c", SOURCE + IN_A_KERNEL], text=True, cwd=ROOT, env=env)
    still, sliders = ["text/html", "text/plain"], "application/vnd.jupyter.widget-view+json"
    assert said.splitlines() == [f"{[still]}", f"{[[sliders, *still], still]}", "[True]"]
