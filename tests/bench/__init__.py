"""`make bench`: compares `spawn` with other ways to start ranks from a notebook, and the virtual cluster with the real
machine, in real kernels.

__main__  ->  environment     the competitors, installed in an environment of their own
          ->  side_by_side    each launcher in its own kernel (launchers/*.py are the cells)
          ->  worlds          time and memory of spawn's ranks, cost of recording (cells: parallelisms.py, recorder.py)
          ->  imports         what `import utils` costs
          ->  virtual         what `simulate` predicts and what `spawn` takes, and the speed of `simulate`
                              (cells: predictions.py, virtual_speed.py)
          ->  schedules       pictures of GPipe and 1F1B on eight virtual stages
          ->  grading         a class graded by plain nbgrader and by this grader
          ->  goals, show     goals and results, tables and a figure (virtual_tables.py)
"""
