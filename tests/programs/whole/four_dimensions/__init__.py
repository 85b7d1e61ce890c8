"""Tensor, context, pipeline (AFAB and 1F1B) and data parallelism in modules that ask a global who this rank is.

The kind of huggingface/picotron: `process_group_manager` is a global that each rank sets for itself, and every other
module reads it as `pgm.process_group_manager.tp_rank`.
"""

from .train import WORLD_SIZE, main

__all__ = ["WORLD_SIZE", "main"]
