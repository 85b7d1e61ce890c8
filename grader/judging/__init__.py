"""Judging one notebook: the checks run here, on values that sandboxed ranks return and messages that the hub has counted."""
