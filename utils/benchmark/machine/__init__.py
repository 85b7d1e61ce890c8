"""This machine, measured with `spawn`: its memory, cores and links, as numbers and as a `Cluster` to simulate."""
