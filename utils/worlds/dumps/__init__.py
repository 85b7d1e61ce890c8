"""What a job left behind that died: dumps of torch's flight recorder or of `watch`, one per rank, and what they say."""

from .explain import explain

__all__ = ["explain"]
