"""`python -m tests.bench`: all benchmarks, one after another."""

from tests.bench import launchers

if __name__ == "__main__":
    launchers.main()
