"""What happened, as plain data: events, regions, failures, and which calls belong together.

Nothing here needs torch, so every other package may use it.
"""
