"""`spawn`: ranks as processes on this machine, over NCCL or Gloo. Programs use it through the facade."""

from .launch import spawn
from .placement import get_device

__all__ = ["get_device", "spawn"]
