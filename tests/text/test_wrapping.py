"""utils/text/wrapping.py: long lines are broken between words."""

from utils.text.wrapping import wrapped


def test_short_lines_stay_as_they_are():
    assert wrapped("rank 0  waits\n\n    x = f( y )", 14) == ["rank 0  waits", "", "    x = f( y )"]


def test_long_lines_go_on_below_with_the_same_indent():
    assert wrapped("first\n  one two three four", 11) == ["first", "  one two", "  three", "  four"]


def test_a_word_that_is_too_long_stays_whole():
    assert wrapped("a all-reduce-of-one", 6) == ["a", "all-reduce-of-one"]


def test_a_line_that_quotes_code_stays_whole():
    assert wrapped("  rank 0  In[4], line 3:  x = f(y)", 12) == ["  rank 0  In[4], line 3:  x = f(y)"]
