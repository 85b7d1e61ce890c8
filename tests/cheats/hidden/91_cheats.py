"""The hidden tests: those of the tiny lesson, once for each number."""

from importlib import import_module

tiny = import_module("tests.tiny.hidden.90_tiny")
numbered = import_module("tests.cheats.checks.91_cheats").numbered
NEEDLE = "this-does-not-stand-in-any-answer"

globals().update(numbered({("double", "values"): tiny.double_values, ("total", "values"): tiny.total_values}))
