"""The parts that are no tests: each module has a list CHECKS (see ../probe.py)."""
