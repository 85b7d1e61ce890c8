"""`spawn`: ranks as processes on this machine, over NCCL or Gloo."""
