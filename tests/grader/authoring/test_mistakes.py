"""grader/authoring/mistakes.py: what wrong answers with a sentence lead to is written down, and checks say it."""

import pytest

from grader.authoring.lesson import BuildError, read_lesson
from grader.authoring.messages import message_drift, read_messages, update_messages
from grader.authoring.mistakes import known_of, mistakes_drift, not_told_apart
from grader.authoring.try_out import TryOut
from grader.authoring.variants import Answers
from tests.grader.authoring.tiny_lesson import ANSWERS, JUDGING, make_judged_course
from utils.checks.known_mistakes import KnownMistakes, mistakes_file

ORACLE = """
from utils.checks.oracles import Case, oracle

@oracle(values=[(1.25,)])
def add_one(draws, x):
    return Case([[x]], right=x + 1)
"""
HIDDEN = """

### BEGIN HIDDEN TESTS
from utils.checks.oracles import vary

hidden_add_one = vary(add_one, values=[(5.5,)])
### END HIDDEN TESTS
"""
NAMED = (
    ANSWERS.replace('"returned 3"', 'sentence="two more: add 1"')
    .replace('"returned 1"', 'sentence="x itself"')
    .replace(
        "right(", 'wrong("only-small", sentence="x, if it is large", hidden=True).body("return x + (x < 3)")\nright('
    )
)


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # files change within a second
    course = make_judged_course(tmp_path)
    first, second = JUDGING.index('@check("add-one")'), JUDGING.index('@check("add-one", judges="types")')
    checks = JUDGING[:first] + JUDGING[second:]
    (course / "solutions/01_tiny/checks_01.py").write_text(checks + ORACLE + HIDDEN)
    (course / "solutions/01_tiny/answers_01.py").write_text(NAMED)
    return course


def lesson_of(course):
    return read_lesson(course / "solutions/01_tiny/lesson_01.py")


def test_a_build_lets_the_checks_say_the_sentences(course):
    update_messages([lesson_of(course)])
    messages = read_messages(lesson_of(course))
    assert messages["add-one/adds-two"].endswith("returned 3.25, expected 2.25\n  That is two more: add 1.")
    assert messages["add-one/only-small"].endswith("expected something else\n  That is x, if it is large.")
    visible, hidden = (mistakes_file(lesson_of(course).room, hidden) for hidden in (False, True))
    assert KnownMistakes.read(visible).sentences == {("add-one", "two more: add 1"), ("add-one", "x itself")}
    assert KnownMistakes.read(hidden).sentences == {("add-one", "x, if it is large")}, "on the grader's side"
    assert list(message_drift(lesson_of(course))) == list(not_told_apart(*known_of(lesson_of(course)))) == []


def test_a_file_without_a_sentence_is_out_of_date(course):
    update_messages([lesson_of(course)])
    (course / "solutions/01_tiny/answers_01.py").write_text(NAMED.replace("x itself", "x"))
    [said] = mistakes_drift(lesson_of(course))
    assert said == "solutions/01_tiny/mistakes.json is out of date, it lacks 'x' of add-one: run `make build`"
    (course / "solutions/01_tiny/answers_01.py").write_text(ANSWERS)
    update_messages([lesson_of(course)])
    assert not mistakes_file(lesson_of(course).room, hidden=False).exists()


def test_a_sentence_that_no_check_can_say_is_refused(course):
    (course / "solutions/01_tiny/answers_01.py").write_text(NAMED.replace("return 2 + x", "raise KeyError(x)"))
    with pytest.raises(BuildError, match="adds-two: the message does not say 'two more: add 1'; see python -m grader"):
        update_messages([lesson_of(course)])


def test_an_author_sees_what_cannot_be_told_apart(course, capsys):
    more = 'wrong("adds-2", sentence="two more").body("return x + 1 + 1")\nright('
    (course / "solutions/01_tiny/answers_01.py").write_text(NAMED.replace("right(", more))
    TryOut("01", None, course).round()
    said = capsys.readouterr().out
    assert "That is two more: add 1. Or it is two more. Both give these numbers." in said
    assert (
        "the same result, so students read both. Add a case" in said and "  - two more: add 1\n  - two more\n" in said
    )
    update_messages([lesson_of(course)])
    assert len(list(not_told_apart(*known_of(lesson_of(course))))) == 1


def test_answers_may_share_a_sentence():
    answers = Answers()
    wrong, _ = answers.to("add-one")
    wrong("first", sentence="two more")
    wrong("second", same_as="first")
    assert [(one.says, one.sentence) for one in answers.wrong] == [("two more", "two more")] * 2
    with pytest.raises(ValueError, match="add-one/third: fourth has no sentence"):
        wrong("third", same_as="fourth")
    with pytest.raises(ValueError, match="add-one/third: give it a sentence, or words of the check's message"):
        wrong("third")
