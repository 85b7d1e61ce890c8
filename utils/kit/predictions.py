"""Guesses that you make before a cell shows the answer. They earn no points, and nothing waits for them.

predict("bytes of each all-reduce", 128)            what you think
reveal("bytes of each all-reduce", 96, unit="B", why="One for each weight matrix: 3 x 4 x 8.")
how_predictions_went()                              all of them, in a table
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from html import escape
from types import EllipsisType
from typing import Any

try:
    from IPython.display import display
except ModuleNotFoundError:  # a lesson as a script, on a machine without Jupyter
    display = print

from ..text import tables
from ..text.svg import GREEN, image
from ..text.units import quantity
from .asking import box_of
from .front_end import someone_is_there
from .ruler import ruler

CLOSE = 0.1  # relative error of a guess that counts as close
NO_GUESS, RIGHT = "no guess", "right"

made: dict[str, Prediction] = {}  # this notebook's, by question


class Prediction:
    """One question, the guess, and the answer once it is revealed.

    guess     `...` if there is none yet, None for "I don't know"
    typed     what was typed, where that is none of the choices; `guess` is then the nearest of them, or none yet
    on_page   (the widget, what shows it) while it waits for a click
    """

    def __init__(self, question: str, guess: Any = ..., choices: Sequence[str] = ()) -> None:
        self.question, self.choices = question, tuple(choices)
        self.answer: Any = ...
        self.ties: tuple[Any, ...] = ()
        self.unit, self.why = "", ""
        self.on_page: tuple[Any, Any] | None = None
        self.say(guess)

    def say(self, guess: Any) -> None:
        self.typed, self.guess = "", guess if self.choices else number_of(guess)
        if self.guessed and self.choices and normal(guess) not in map(normal, self.choices):
            self.typed, self.guess = str(guess), next(iter(get_close_matches(str(guess), self.choices, n=1)), ...)

    def ask(self) -> None:
        """Show it with a widget, which makes room for words once it is answered: so they are what gets saved."""
        box = box_of(self.question, self.choices, shown(self.guess) if self.guessed else "", self.clicked)
        words = {"text/plain": repr(self), "text/html": self._repr_html_()}
        self.on_page = box, display({**box._repr_mimebundle_(), **words}, raw=True, display_id=True)

    def clicked(self, guess: Any) -> None:
        self.say(guess)
        self.close()

    def close(self) -> None:
        if self.on_page:
            (box, place), self.on_page = self.on_page, None
            place.update(self)
            box.close()

    @property
    def guessed(self) -> bool:
        return self.guess is not None and not isinstance(self.guess, EllipsisType)

    @property
    def revealed(self) -> bool:
        return not isinstance(self.answer, EllipsisType)

    @property
    def verdict(self) -> str:
        """How far the guess is from the answer, in words."""
        if not self.guessed:
            return NO_GUESS
        as_right = any(how_far(self.guess, other, self.unit) == RIGHT for other in self.ties)
        return RIGHT if as_right else how_far(self.guess, self.answer, self.unit)

    def __repr__(self) -> str:
        if not self.revealed:
            return f"{self.question}? {self.said()}"
        guess = f"you said {shown(self.guess, self.unit)}: {self.verdict}" if self.guessed else NO_GUESS
        return f"{self.question}: {shown(self.answer, self.unit)} ({guess})"

    def said(self) -> str:
        if self.guessed:
            return f"You say {shown(self.guess)}" + f", the nearest choice to {self.typed!r}" * bool(self.typed) + "."
        if self.typed:
            return f"{self.typed!r} is not one of {listed(self.choices)}."
        if self.guess is None:
            return "You say that you don't know."
        return f"Replace the ... with {'one of ' + listed(self.choices) if self.choices else 'your guess'}."

    def _repr_html_(self) -> str:
        """Folded if nothing has been said yet, so that nobody reads the answer by accident."""
        if not self.revealed:
            return f"<p>{escape(repr(self))}</p>"
        answer = f"<b>{escape(shown(self.answer, self.unit))}</b>"
        why = as_html(self.why)
        if isinstance(self.guess, EllipsisType):
            return f"<details><summary>{escape(self.question)}: open to see</summary><p>{answer}. {why}</p></details>"
        guess = escape(f"You said {shown(self.guess, self.unit)}: {self.verdict}." if self.guessed else "")
        folded = f"<details><summary>Why</summary><p>{why}</p></details>" if self.why else ""
        return f"<p>{escape(self.question)}: {answer}. {guess}</p>{self.picture()}{folded}"

    def picture(self) -> str:
        """The guess beside the answer: two numbers on a ruler, or two of the choices."""
        if self.choices:
            return f"<p>{''.join(map(self.marked, self.choices))}</p>"
        if not (is_number(self.guess) and is_number(self.answer)):
            return ""
        try:
            drawn = ruler(float(self.guess), float(self.answer), partial(shown, unit=self.unit))
        except (ValueError, OverflowError):  # infinite, or not a number
            return ""
        return image(drawn, f"{shown(self.guess, self.unit)} and {shown(self.answer, self.unit)} on a line")

    def marked(self, choice: str) -> str:
        is_right = any(normal(choice) == normal(one) for one in (self.answer, *self.ties))
        look = f"border: 2px solid {GREEN}; font-weight: bold" if is_right else "border: 1px solid; opacity: 0.7"
        words = f"{'✓ ' * is_right}{choice}{' (you)' * (self.guessed and normal(choice) == normal(self.guess))}"
        style = f"display: inline-block; margin: 2px 6px 2px 0; padding: 1px 8px; border-radius: 10px; {look}"
        return f'<span style="{style}">{escape(words)}</span>'


def predict(question: str, guess: Any = ..., choices: Sequence[str] = ()) -> None:
    """Write down a guess, to be compared by `reveal`. Run the cell again to change your mind.

    Where there is no guess yet, a notebook shows buttons for the choices, or a field, and "I don't know".

    guess     a number, a word, True or False, or a list of these; `...` means none yet
    choices   the words to choose from, where the guess is a word
             A word that is none of them counts as the nearest one; if none is near, as no guess yet
    """
    before = made.get(question)
    prediction = made[question] = Prediction(question, guess, choices)
    if prediction.guess is not ... or prediction.typed or not someone_is_there():
        display(prediction)
        return
    if before:
        before.close()
        prediction.say(before.guess)
    try:
        prediction.ask()
    except ImportError:  # there is no ipywidgets
        display(prediction)


def reveal(question: str, answer: Any, unit: str = "", why: str = "", ties: Sequence[Any] = ()) -> None:
    """Show the answer next to the guess. A guess is right if it is shown with the same digits.

    ties   other answers that are just as right
    unit   of a number, such as "B" or "s"; 96e6 with "B" is shown as 96 MB
    why    one paragraph, folded until it is opened; `code` and $formulas$ as in text
    """
    prediction = made.setdefault(question, Prediction(question))
    prediction.close()
    prediction.answer, prediction.unit, prediction.why, prediction.ties = plain(answer), unit, why, tuple(ties)
    display(prediction)


class HowPredictionsWent:
    """A table of predictions: question, guess, answer, verdict."""

    header = ("prediction", "you said", "it is", "so your guess is")

    def __init__(self, predictions: Sequence[Prediction]) -> None:
        self.rows = [
            (one.question, shown(one.guess, one.unit) if one.guessed else "", shown(one.answer, one.unit), one.verdict)
            for one in predictions
        ]
        self.guessed = sum(one.guessed for one in predictions)
        self.right = sum(one.verdict == RIGHT for one in predictions)
        self.caption = f"{self.guessed} of {len(predictions)} predictions made, {self.right} of them right"

    def __repr__(self) -> str:
        return f"{self.caption}\n\n{tables.text(self.header, self.rows)}"

    def _repr_html_(self) -> str:
        return tables.html(self.caption, self.header, self.rows)


def how_predictions_went() -> HowPredictionsWent:
    """All predictions of this notebook that have been revealed."""
    return HowPredictionsWent([one for one in made.values() if one.revealed])


# ---- comparing


def how_far(guess: Any, answer: Any, unit: str = "") -> str:
    """ "right", "close, 4 % too low", "3.2 times too high", "wrong", or how many entries of a list are right."""
    guess = plain(guess)
    if isinstance(answer, list | tuple) and isinstance(guess, list | tuple):
        return how_many(guess, answer, unit)
    if is_number(guess) and is_number(answer):
        return RIGHT if shown(guess, unit) == shown(answer, unit) else how_far_off(float(guess), float(answer))
    return RIGHT if normal(guess) == normal(answer) else "wrong"


def how_many(guess: Sequence[Any], answer: Sequence[Any], unit: str = "") -> str:
    if len(guess) != len(answer):
        return f"wrong: {len(answer)} entries, not {len(guess)}"
    right = sum(how_far(mine, true, unit) == RIGHT for mine, true in zip(guess, answer, strict=True))
    return RIGHT if right == len(answer) else f"right in {right} of {len(answer)} entries"


def how_far_off(guess: float, answer: float) -> str:
    if math.isclose(guess, answer, rel_tol=1e-3):  # equal in the digits that people type
        return RIGHT
    direction = "high" if guess > answer else "low"
    if answer == 0 or guess / answer <= 0 or not math.isfinite(guess / answer):
        return f"too {direction}"
    off = abs(guess / answer - 1)
    if off <= CLOSE:
        return f"close, {100 * off:.2g} % too {direction}"
    factor = max(guess / answer, answer / guess)
    return f"{100 * off:.2g} % too {direction}" if factor < 2 else f"{shown(factor)} times too {direction}"


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def number_of(guess: Any) -> Any:
    """A number that was typed as a word, "1,024" say, or a list of such; anything else as it is."""
    if isinstance(guess, list | tuple):
        return type(guess)(map(number_of, guess))
    try:
        number = float(guess.replace(",", "")) if isinstance(guess, str) else None
    except ValueError:
        return guess
    return guess if number is None else int(number) if number.is_integer() else number


def plain(value: Any) -> Any:
    """A tensor or an array as plain numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def normal(word: Any) -> Any:
    """A word without the differences that don't matter; anything else as it is."""
    return " ".join(word.casefold().split()).removesuffix(".") if isinstance(word, str) else word


# ---- showing


def shown(value: Any, unit: str = "") -> str:
    if is_number(value):
        if unit and value >= 0:
            return quantity(value, unit)
        return f"{value:,.3g}" if value % 1 and value < 1000 else f"{value:,.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(item, unit) for item in value) + "]"
    return str(value)


def listed(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words))


def as_html(text: str) -> str:
    """Escaped, with `code` as code; formulas between dollars are left to the notebook."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
