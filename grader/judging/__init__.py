"""Judging one notebook: checks run here, on values from sandboxed ranks and messages that the hub has counted."""
