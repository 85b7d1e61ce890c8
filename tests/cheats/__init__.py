"""Ways to get points for a wrong answer, to do harm, or to learn a secret; one kind per module.

tests/grader/judging/test_cheats.py tries all of them on the grader.
"""

from tests.cheats import channels, exhaust, forge, moments, names, odd, patch, spy, talk, values
from tests.cheats.cheat import Cheat

CHEATS: list[Cheat] = [
    cheat
    for module in (values, talk, channels, forge, names, odd, patch, spy, moments, exhaust)
    for cheat in module.CHEATS
]
HANGS: list[Cheat] = moments.HANGS
