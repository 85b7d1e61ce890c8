"""The sentence that names a mistake: "That is ...", "Those are ..." or "It was ...", as its words need it.

Authors write what an answer is, in words that follow "That is": `the last tensor that arrived`, `the scores
themselves`, `divided by this rank's own tokens`, `without the gates`. Words that end in a full stop are a sentence of
their own and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HAS_NO_NOUN = ("with ", "without ", "for ", "of ", "if ", "relative to ")
PARTICIPLE = re.compile(
    r"(?!need)(?:\w+ed|cut|sent|made|taken|given|split|drawn|put|kept|read|left|built|lost|done)\b(?! /)"
)
# Words that end the noun phrase at the beginning; the last word before them says whether it is a plural.
AFTER_NOUN = re.compile(
    r"[,:;.?]|(?:^|\s)(?:of|in|on|at|for|from|to|by|with|without|within|among|per|that|which|who|whose|where|when|while|"
    r"if|as|over|than|and|or|but|after|before|times|instead|not|only|alone|too|is|are|into|along|across|between|twice|"
    r"again|themselves|itself|\w+ed)\b"
)
SINGULAR = re.compile(r"(?:a|an|what|how|one|each|half|no|not|x)\s|[\d(]")  # begins words that are no plural
PLURAL = re.compile(r"[a-zA-Z]+(?<!s|u|i|')s")  # but loss, radius, axis, rank's
NO_PLURALS = ("bias", "squares")


def named(mistakes: Sequence[str]) -> str:
    """All the mistakes that can be behind an outcome, in sentences; "" if there are none."""
    whole = [words for words in mistakes if words.endswith(".")]
    first, *others = [words for words in mistakes if not words.endswith(".")] or [""]
    said = [*whole, *([sentence("That is", first)] if first else []), *(sentence("Or it is", one) for one in others)]
    if len(said) > 1:
        said.append("Both give these numbers." if len(said) == 2 else "All of these give these numbers.")
    return " ".join(said)


def sentence(start: str, words: str) -> str:
    """start: "That is" or "Or it is", which changes with the words."""
    if words.startswith(HAS_NO_NOUN):
        words = f"the result {words}"
    if PARTICIPLE.match(words):
        start = {"That is": "It was"}.get(start, "Or it was")
    elif is_plural(words):
        start = {"That is": "Those are"}.get(start, "Or they are")
    return f"{start} {words}" + "." * (not words.endswith("?"))


def is_plural(words: str) -> bool:
    noun = AFTER_NOUN.split(words, maxsplit=1)[0].split()[-1:]
    return not SINGULAR.match(words) and bool(noun) and noun[0] not in NO_PLURALS and bool(PLURAL.fullmatch(noun[0]))
