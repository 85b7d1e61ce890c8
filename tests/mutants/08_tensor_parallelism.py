"""Wrong answers to lesson 08: at least two an exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import Mutant, Variant

MUTANTS: list[Mutant] = []
ALSO_RIGHT: list[Variant] = []
