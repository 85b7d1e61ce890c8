"""The parts that are not tests: each module has a list CHECKS (see ../probe.py)."""
