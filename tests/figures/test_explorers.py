"""Explorers: whose value counts, when there are sliders, and what stands in their place."""

import os
import re

import nbformat
import pytest
from nbclient import NotebookClient

from utils.figures import explore, time_curves

SOURCE = """
from utils.figures import explore, time_curves

def own(n):
    return 3 * n

def triple(n, unused):
    return {"triple": (3 * n, lambda: own(n), "B")}, lambda right: time_curves(
        {"3 n": [(1, 3), (100, 300)], "yours": [(n, y) for y in right.values()]}, f"n = {n}", "yours"
    )

explore(triple, {"n": "B"}, n=[1, 10, 100], unused=[0, 1])
"""


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


@pytest.mark.parametrize("there", [False, True])
def test_there_are_sliders_only_if_someone_could_move_them(there, tmp_path):
    """nbclient allows no input, as nbval does; a front end does."""

    class Client(NotebookClient):
        async def async_start_new_kernel_client(self, **options):
            client = await super().async_start_new_kernel_client(**options)
            client.allow_stdin = there
            return client

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SOURCE)])
    Client(notebook, kernel_name="python3", timeout=300, startup_timeout=300).execute(
        env={**os.environ, "SPAWN_ZYGOTE": "1"}
    )
    outputs = [set(output.data) for output in notebook.cells[0].outputs]
    still, sliders = {"text/plain", "text/html"}, {"application/vnd.jupyter.widget-view+json"}
    assert outputs == ([still | sliders, still] if there else [still])
    assert "<img" in notebook.cells[0].outputs[-1].data["text/html"]
