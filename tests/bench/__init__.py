"""`make bench`: what `spawn`, `simulate` and grading cost on this machine, beside what else there is.

Each part is a module: CASES names what it measures, and `measure(case)` returns rows. __main__ calls it in fresh
processes, some times in turns so that a disturbance hits them all, and makes one table, with pyperf.

launchers       `spawn` beside other ways to start ranks
startup         what `import utils` and the first spawn add to `import torch`
parallelisms    a training step of each parallelism in `spawn`: time, and memory of its ranks
recorder        what recording adds to an all-reduce
watch           what `watch` adds to a training step
reports         how soon a report comes, for each kind of failure
virtual_speed   how long `simulate` takes
predictions     what `simulate` predicts for this machine, beside what `spawn` takes
grading         one submission of each kind, by plain nbgrader and by this grader
one_class       a class of solutions, by several numbers of workers
"""

from typing import NotRequired, TypedDict


class Row(TypedDict):
    name: str
    values: list[float]  # seconds, unless there is a unit
    unit: NotRequired[str]  # as pyperf calls it
    beside: NotRequired[str]  # name of the row that it is compared with
