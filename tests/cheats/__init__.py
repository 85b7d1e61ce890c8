"""Ways to get points for a wrong answer, to do harm, or to learn a secret; each module holds one kind.

tests/test_cheats.py holds the grader against all of them. `python -m tests.cheats.plain` shows what plain nbgrader makes
of them.
"""

from tests.cheats import channels, exhaust, forge, moments, names, patch, spy, talk, values
from tests.cheats.cheat import Cheat

CHEATS: list[Cheat] = [
    cheat for module in (values, talk, channels, forge, names, patch, spy, moments, exhaust) for cheat in module.CHEATS
]
HANGS: list[Cheat] = moments.HANGS
