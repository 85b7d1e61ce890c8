"""The first cell of every kernel of the bench: the clock, the same for all. Imports nothing that a launcher imports."""

import time


def timed(call, *args):
    """(seconds, what the call returned)."""
    began = time.perf_counter()
    results = call(*args)
    return time.perf_counter() - began, results


def timed_in_a_row(most, call, *args):
    """Back to back: `most` calls, or as many as begin within two seconds."""
    taken = []
    while len(taken) < most and sum(seconds for seconds, _ in taken) < 2:
        taken.append(timed(call, *args))
    return taken
