"""`make bench`: `spawn` beside the other ways to get ranks out of a notebook, and the virtual cluster beside the real
machine, measured in real kernels.

__main__  ->  environment     the competitors, installed beside the course
          ->  side_by_side    every launcher in a kernel of its own (launchers/*.py are their cells)
          ->  worlds          time and memory of spawn's ranks, cost of recording (cells: parallelisms.py, recorder.py)
          ->  imports         what `import utils` costs
          ->  virtual         what `simulate` predicts beside what `spawn` takes, and how quick it is itself
                              (cells: predictions.py, virtual_speed.py)
          ->  schedules       GPipe and 1F1B on eight virtual stages, to look at
          ->  grading         a class graded by plain nbgrader and by us
          ->  goals, show     what was hoped for beside what was measured, a table, a figure (virtual_tables.py)
"""
