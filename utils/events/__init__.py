"""What happened, as plain data: events, regions, failures, and who belongs with whom. Anything here runs without torch, so
every other package may use it."""
