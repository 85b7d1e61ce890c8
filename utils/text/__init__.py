"""Text for people: tables, units, sets of ranks, lines of code. Needs none of our packages, so all may use it."""
