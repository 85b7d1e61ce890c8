"""The first cell in every kernel: the same clock for all. Imports nothing that a launcher imports."""

import time


def timed(call, *args):
    """(seconds, what the call returned)."""
    began = time.perf_counter()
    results = call(*args)
    return time.perf_counter() - began, results


def timed_in_a_row(most, call, *args):
    """`most` calls in a row, or as many as start within two seconds."""
    taken = []
    while len(taken) < most and sum(seconds for seconds, _ in taken) < 2:
        taken.append(timed(call, *args))
    return taken
