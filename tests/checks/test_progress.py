"""utils/checks/progress.py: what has passed, what is left, and how both look."""

import pytest

from utils.checks import CheckFailed, checks_for
from utils.checks.progress import Passed, Progress, Summary
from utils.checks.registry import Checks

POINTS = {"sum": {"values": 3, "traffic": 1.5}, "mean": {"values": 2}, "fastest": {"score": 3}}
DONE = [("sum", "values"), ("sum", "traffic"), ("mean", "values"), ("fastest", "score")]


def progress(*passed, failed=()) -> Progress:
    return Progress(POINTS, set(passed), set(failed))


def test_a_summary_says_what_is_left_and_where_to_go_on():
    shown = repr(Summary(progress(("sum", "values"), failed=[("mean", "values")])))
    assert shown.splitlines()[0] == "0 of 3 exercises done, 3 of 6.5 points"
    rows = [line.split("   ") for line in shown.splitlines()[2:6]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["exercise", "points", "passed", "left"],
        ["sum", "3 of 4.5", "values", "traffic"],
        ["mean", "0 of 2", "values (not passed)"],
        ["fastest", "0 of 3 extra credit", "score"],
    ]
    assert shown.endswith("Next: sum, traffic.")
    assert "<p>Next: sum, traffic.</p>" in Summary(progress(("sum", "values")))._repr_html_()


def test_the_challenge_is_not_needed_for_all_points_but_for_all_exercises():
    assert repr(Summary(progress(*DONE[:3]))).splitlines()[0] == "2 of 3 exercises done, 6.5 of 6.5 points"
    assert repr(Summary(progress(*DONE))).endswith("All of it is done.")


def test_a_summary_remembers_what_the_saved_notebook_shows_unless_it_has_failed_since():
    again = Summary(progress(("sum", "traffic"), failed=[("mean", "values")]), [("sum", "values"), ("mean", "values")])
    assert again.rows[0][2] == "values (before), traffic" and again.caption.startswith("1 of 3 exercises done")
    assert again.next == "Next: mean, values."


def test_the_last_outcome_of_a_check_counts():
    one = progress()
    for passed in (True, False):
        one.note("mean", "values", passed)
        assert one.of_lesson() == (2 * passed, 6.5)
    assert "values (not passed)" in repr(Summary(one))
    one.note("mean", "values", True)
    assert one.failed == set()


def test_a_passed_check_is_green_in_a_notebook_and_plain_elsewhere():
    passed = Passed("sum · values · passed\n  1 < 2 messages", progress(("sum", "values")))
    assert repr(passed) == "sum · values · passed\n  1 < 2 messages"
    html = passed._repr_html_()
    assert "✓ sum · values · passed</span>\n  1 &lt; 2 messages" in html
    assert "var(--jp-success-color1" in html and "3 of 6.5 points" in html
    assert "points" not in Passed("x", Progress({}))._repr_html_(), "a lesson that is not built has none"


def a_lesson(folder) -> Checks:
    (folder / "77_sums").mkdir()
    (folder / "77_sums/checks_77.py").write_text(
        "from utils.checks import CheckFailed, check\n\n"
        "@check('sum')\ndef sum_values(run):\n    if run.function() != 3:\n        raise CheckFailed('wrong')\n"
    )
    checks = Checks(folder / "77_sums")
    checks.progress = progress()
    return checks


@pytest.fixture
def check(tmp_path):
    return a_lesson(tmp_path)


def test_running_a_check_is_noted(check, capsys):
    check(answer(3))
    assert capsys.readouterr().out == "sum · values · passed\n"
    assert check.progress.of_lesson() == (3, 6.5) and check.summary().next == "Next: sum, traffic."
    with pytest.raises(CheckFailed):
        check(answer(4))
    assert check.progress.of_lesson() == (0, 6.5)


def answer(value: int):
    def sum():
        return value

    return sum


def test_a_lesson_knows_its_points():
    points = checks_for("02_all_reduce").progress.points
    assert points["naive-all-reduce"] == {"values": 3, "traffic": 2}
    assert list(points)[-1] == "mixed-sizes"
