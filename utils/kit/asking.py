"""A question with buttons, or with a field and a button, to be answered by a click. And what was typed, as a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")  # "1,024" is a number, "1, 24" a list


def box_of(question: str, choices: Sequence[str], chosen: str, take: Callable[[Any], None]) -> Any:
    """A widget that calls take(guess), or take(None) for "I don't know". Raises ImportError without ipywidgets.

    chosen   an earlier guess, as words
    """
    from ipywidgets import Box, Button, Label, Text

    def button(words: str, guess: Callable[[], Any]) -> Any:
        one = Button(description=words, button_style="info" if words == chosen else "", layout={"width": "auto"})
        one.on_click(lambda _: take(guess()))
        return one

    parts = [button(choice, partial(str, choice)) for choice in choices]
    if not choices:
        field = Text(chosen, placeholder="a number, or several", continuous_update=False, layout={"width": "12em"})
        field.observe(lambda change: take(typed(change["new"])), "value")  # by Enter, and by a click elsewhere
        parts = [field, button("That's my guess", lambda: typed(field.value))]
    parts.append(button("I don't know", lambda: None))
    return Box([Label(question), *parts], layout={"flex_flow": "row wrap", "align_items": "center"})


def typed(words: str) -> Any:
    """ "1,024" and "3e8" as numbers, "7, 9" and "[[1, 2], [3]]" as lists, "" as None, anything else as words."""
    words = words.strip()
    try:
        return ast.literal_eval(words.replace(",", "") if THOUSANDS.fullmatch(words) else words)
    except (ValueError, SyntaxError):
        return words or None
