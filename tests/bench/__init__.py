"""Benchmarks, run by `make bench`: each module is one, and prints ratios of things measured side by side in one run."""
