"""What a job left behind that died: dumps of torch's flight recorder, one per rank, and what they say."""

from .explain import explain

__all__ = ["explain"]
