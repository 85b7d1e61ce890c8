"""grader/authoring/meaning.py: an expression is recognised however it's written, and innocent ones are not."""

import ast
import textwrap

import pytest

from grader.authoring.meaning import pieces, pieces_in_text


def recognised(answer, candidate):
    """Whether the largest expression of `answer` is found in `candidate`."""
    whole, found = largest(answer, any_order=True), list(pieces(parsed(candidate)))
    return any(one.means(piece) for one in whole for piece in found)


def largest(code, any_order=False):
    found = list(pieces(parsed(code), any_order))
    return [piece for piece in found if len(piece.text) == max(len(one.text) for one in found)]


def parsed(code):
    return ast.parse(textwrap.dedent(code))


BUBBLE = "(ranks - 1) / (microbatches + ranks - 1)"
SAME = {
    "other names": (BUBBLE, "(p - 1) / (m + p - 1)"),
    "names in another order": ("2 * a * (b + 1) - b", "2 * p * (a + 1) - a"),
    "operands turned round": (BUBBLE, "(p - 1) / (p - 1 + m)"),
    "brackets": ("2 * (size - 1) * n / size", "(2 * (p - 1)) * (k / p)"),
    "another formula": (BUBBLE, "1 - m / (m + p - 1)"),
    "attributes and calls as variables": (BUBBLE, "(len(xs) - 1) / (plan.count + len(xs) - 1)"),
    "rounding up": ("math.ceil((a + 1) / b) * c", "-(-(x + 1) // y) * z"),
    "the larger one": ("a - b if a > b else c * (b - a)", "z * (y - x) if x <= y else x - y"),
    "powers": ("2 ** (depth - 1) * width + 1", "1 + w * 2 ** d / 2"),
    "max and a condition": ("max(a * b, c) + a - 1", "(x * y if x * y > z else z) - (1 - x)"),
    "in steps": (
        "def f(ranks, microbatches):\n    idle = ranks - 1\n    return idle / (microbatches + idle)",
        "def g(p, m):\n    total, busy = m + p - 1, m\n    return (total - busy) / total",
    ),
    "a comprehension with other names": (
        "[weights[r * size : (r + 1) * size] for r in stages]",
        "list(items[i * n : (i + 1) * n] for i in places)",
    ),
    "a list or a generator": ("sum(abs(x - m) ** 2 for x in xs)", "sum([abs(y - n) ** 2 for y in ys])"),
    "a condition turned round": (
        "send(a[i]) if i != root else recv(b[i])",
        "recv(there[k]) if k == first else send(here[k])",
    ),
    "a comparison turned round": ("f(a[i]) > g(b[i])", "g(y[k]) < f(x[k])"),
    "keywords in another order": ("cat(a[i + 1], dim=d + 1, out=b)", "cat(x[1 + j], out=y, dim=k + 1)"),
    "three operations with the same names": ("(place - 1 - step) % size", "(-step + place - 1) % size"),
}
OTHER = {
    "one more": (BUBBLE, "(p - 1) / (m + p)"),
    "three operations with other names": ("(place - 1 - step) % size", "(a - 1 - b) % c"),
    "a single call": ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad)"),
    "a neighbour": ("(rank + 1) % world_size", "(rank + 1) % world_size"),
    "a sum": ("a + b + c + d + e", "a + b + c + d + e"),
    "another library call": ("torch.cat([a[i], b[i + 1]])", "torch.stack([a[i], b[i + 1]])"),
    "strings": ("'a' if x > y + 1 else 'b'", "'c' if x > y + 1 else 'd'"),
    "true or false": ("first <= token < first + rows * 2", "low * 2 + k > at"),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_in_other_words_is_recognised(case):
    answer, candidate = SAME[case]
    assert recognised(answer, candidate)


@pytest.mark.parametrize("case", OTHER)
def test_what_is_not_the_same_or_tells_nothing_is_not(case):
    assert not recognised(*OTHER[case])


def test_a_variable_that_changes_is_not_replaced_by_its_value():
    changing = "def f(a, b):\n    c = a + 1\n    c = c * 2\n    return c / (b + a) - b"
    assert not recognised("(a + 1) / (b + a) - b", changing)


def test_a_definition_in_terms_of_itself_ends():
    assert list(pieces(parsed("def f(x):\n    y = y + x * 2\n    return y / (x - 1) + y")))


def test_a_tower_of_powers_is_read_at_once():
    assert not any(one.keys for one in pieces(parsed("x ** y ** z ** x + 3")))


def test_pieces_have_their_lines():
    (piece,) = largest("x = 1\n\ny = (a - 1) / (b + a - 1)\n")
    assert (piece.line, piece.text, piece.operations) == (3, "(a - 1) / (b + a - 1)", 4)


def test_code_in_backticks_counts():
    text = "First.\nThe share is `(p - 1) / (m + p - 1)`; see `this one`.\n"
    text += "```python\nx = 1\ny = (m + p - 1) / (2 * p)\n```\n"
    assert {(piece.line, piece.text) for piece in pieces_in_text(text) if piece.operations >= 4} == {
        (2, "(p - 1) / (m + p - 1)"),
        (5, "(m + p - 1) / (2 * p)"),
    }
