"""Words for people: tables, units, sets of ranks, lines of code. Imports nothing of ours; every other package may use it."""
