"""`make gpu`: everything that needs a GPU, in one command and at most nine minutes (docs/gpu.md).

__main__ runs each stage in a process of its own with a time limit: functions of probes.py, or pytest on tests marked
`gpu`. Only the stages import torch, so a driver that hangs can't stop the command.
"""
