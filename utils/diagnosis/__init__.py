"""What went wrong, explained: deadlocks, silent mistakes, failures, and the exceptions that carry the reports.

The worlds ask for the reports; everyone may catch the exceptions.
"""

from .errors import RankCrashed, RankError, RankFailed, RankTimeout, SilentMistake, WorldStuck

__all__ = ["RankCrashed", "RankError", "RankFailed", "RankTimeout", "SilentMistake", "WorldStuck"]
