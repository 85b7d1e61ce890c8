"""nbgrader's configuration: where each step of an assignment lives, and what is plugged in against nbgrader's traps.

`nbgrader generate_assignment | validate | autograde | generate_feedback | export` and the exchange's
`release_assignment | fetch_assignment | submit | collect` read it when they run in this folder.
"""

import os
import sys
from pathlib import Path

import nbgrader
from nbgrader.preprocessors import CheckCellMetadata, GetGrades, OverwriteCells, OverwriteKernelspec

ROOT = str(Path(__file__).resolve().parent)
sys.path.insert(0, ROOT)

from grader.classroom import nbgrader_plugins, submission
from grader.classroom.collect_no_links import Collect
from grader.pages import feedback, sanitize

c = get_config()


def first_in(variable: str, folder: str) -> None:
    """Put a folder in front of a search path of the environment, for every process that nbgrader starts."""
    others = [one for one in os.environ.get(variable, "").split(os.pathsep) if one and one != folder]
    os.environ[variable] = os.pathsep.join([folder, *others])


first_in("PYTHONPATH", ROOT)  # kernels find `utils` and `grader` here, before anything a student puts beside a notebook
first_in("PATH", str(Path(sys.executable).parent))  # nbgrader calls `alembic`, which stands beside this Python

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
c.CourseDirectory.submitted_directory = "submitted"
c.CourseDirectory.autograded_directory = "autograded"
c.CourseDirectory.feedback_directory = "feedback"

# nbgrader copies every file that lies beside a notebook: to students, and back from them. Only notebooks shall travel,
# and the two files that `submit` adds. A pattern ignores a name: every suffix but .ipynb and .txt, and of .txt every
# one but timestamp.txt, submission_secret.txt and those that end as they do.
c.CourseDirectory.ignore = ["__pycache__", ".*", "*.[!it]*", "*.i[!p]*", "*.t[!x]*", "*[!pt].txt"]
c.CourseDirectory.include = ["*.ipynb", "timestamp.txt", "submission_secret.txt"]

# Without this, nbgrader keeps the release (or the feedback) that is there, and says nothing.
c.GenerateAssignment.force = True
c.GenerateFeedback.force = True

c.Autograde.exporter_class = submission.Submission
c.Autograde.sanitize_preprocessors = [
    submission.OfficialCells,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
    sanitize.PassiveCells,  # formgrader shows what comes of it as it is
]
c.Autograde.autograde_preprocessors = [
    nbgrader_plugins.Judge,
    CheckCellMetadata,
    nbgrader_plugins.SaveGrades,  # late penalties too, in the same transaction
]

c.ExchangeFactory.collect = Collect

c.GenerateFeedback.exporter_class = feedback.FeedbackPage
c.GenerateFeedback.preprocessors = [GetGrades]

# Formgrader's pages of submissions load no script from the internet, and take a student's name for text.
TEMPLATES = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader" / "templates"
c.HTMLExporter.template_name = "formgrader_offline"
c.HTMLExporter.extra_template_basedirs = [str(TEMPLATES), str(Path(ROOT) / "grader" / "pages")]
c.HTMLExporter.extra_template_paths = [str(TEMPLATES)]

# Submissions are judged by grader/judging/judge.py, without a kernel, in a sandbox (grader/sandbox.py). Where there can be
# none, grading refuses, until  c.Judge.sandbox = False  says that they may run with all rights of who grades.
c.Judge.checks = "utils.checks"
c.Judge.hidden = "grader.hidden"
c.Judge.sandbox = True
c.Judge.seconds = 600  # for a submission that loops in every answer; what is not judged by then gives no points

# Kernels run for the Validate button of JupyterLab alone, which students press: nothing of theirs earns points.
c.Execute.timeout = 90  # seconds a cell: a right answer takes two, on a busy machine ten
c.Execute.interrupt_on_timeout = True
# What kernels write to stderr (warnings, logging, child processes) counts as a failure there.
# It is text like any other: let it come out of stdout.
c.Execute.extra_arguments = ["--IPKernelApp.exec_lines=import os, sys; sys.stderr = sys.stdout; os.dup2(1, 2)"]
