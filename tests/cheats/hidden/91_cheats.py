"""The hidden tests: those of the tiny lesson, for each number."""

from functools import partial
from importlib import import_module

from utils.checks.judge import check

tiny = import_module("tests.tiny.hidden.90_tiny")
MOST = import_module("tests.cheats.checks.91_cheats").MOST
NEEDLE = "this-does-not-stand-in-any-answer"

for exercise, function in {"double": tiny.double_values, "total": tiny.total_values}.items():
    for number in range(MOST):
        globals()[f"{exercise} {number}"] = check(f"{exercise}-{number}")(partial(function))
