"""A class from `submitted/` to the gradebook: reading what was handed in, judging it once, and keeping the grades."""
