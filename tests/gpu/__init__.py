"""`make gpu`: everything that needs a GPU, in one command and at most nine minutes (docs/gpu.md).

__main__  ->  parts      what is tried, in which order, and how long each part may take
          ->  running    each part in a process of its own: time limit, crash, output
          ->  page       what came out, in Markdown and HTML; places keeps paths and host names out of it

A part is pytest with a plug-in (pytest_lines), or a module in probes/, run by `python -m tests.gpu.probes`. Both write
what they find as lines (lines.py), at once, so that a crash loses nothing.

Needs Python, torch, numpy and pytest. Only part 0 and the parts import torch: a driver that hangs must not stop this.
"""
