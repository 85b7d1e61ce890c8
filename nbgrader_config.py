"""nbgrader's configuration: the folder of each step, and plug-ins that avoid nbgrader's traps.

`nbgrader generate_assignment | validate | autograde | generate_feedback | export` and the exchange's
`release_assignment | fetch_assignment | submit | collect` read it if you run them in this folder.
"""

import os
import sys
from pathlib import Path

import nbgrader
import nbgrader.apps.api
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import CheckCellMetadata, OverwriteCells, OverwriteKernelspec

ROOT = str(Path(__file__).resolve().parent)
sys.path.insert(0, ROOT)

from grader.classroom import formgrader_points, late_days, nbgrader_plugins, notebook_file, submission
from grader.classroom.collect_no_links import Collect
from grader.pages import feedback, sanitize

c = get_config()


def first_in(variable: str, folder: str) -> None:
    """Put a folder first in one of the environment's search paths, for every process that nbgrader starts."""
    others = [one for one in os.environ.get(variable, "").split(os.pathsep) if one and one != folder]
    os.environ[variable] = os.pathsep.join([folder, *others])


first_in("PYTHONPATH", ROOT)  # kernels import `utils` and `grader` from here, not from files that a student adds
first_in("PATH", str(Path(sys.executable).parent))  # nbgrader calls `alembic`, which is next to this Python

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
c.CourseDirectory.submitted_directory = "submitted"
c.CourseDirectory.autograded_directory = "autograded"
c.CourseDirectory.feedback_directory = "feedback"

# nbgrader copies every file next to a notebook, both to students and back. Let it copy only notebooks, and the two
# files that `submit` adds. The patterns ignore all suffixes but .ipynb and .txt, and all .txt files but timestamp.txt,
# submission_secret.txt, and others that end like them.
c.CourseDirectory.ignore = ["__pycache__", ".*", "*.[!it]*", "*.i[!p]*", "*.t[!x]*", "*[!pt].txt"]
c.CourseDirectory.include = ["*.ipynb", "timestamp.txt", "submission_secret.txt"]

# Without these, nbgrader silently keeps an existing release (or feedback).
c.GenerateAssignment.force = True
c.GenerateFeedback.force = True

c.ExportPlugin.to = "nbgrader-grades.csv"  # `nbgrader export` would replace our own grades.csv

c.Autograde.exporter_class = submission.Submission
c.Autograde.sanitize_preprocessors = [
    submission.OfficialCells,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
    sanitize.PassiveCells,  # formgrader shows the result as it is
]
c.Autograde.autograde_preprocessors = [
    nbgrader_plugins.Judge,
    CheckCellMetadata,
    nbgrader_plugins.SaveGrades,  # late penalties too, in the same transaction
]

# Deadlines and what handing in late costs. nbgrader's own c.LateSubmissionPlugin.penalty_method works, too.
c.AssignLatePenalties.plugin_class = late_days.LateByDay
c.SaveGrades.deadlines = {}  # {"01_collectives": "2026-10-05 18:00 Europe/Berlin"}; others are set in formgrader
c.LateByDay.percent_per_day = 0  # part of what was earned that each day begun costs
c.LateByDay.grace_hours = 0  # before the first day begins
c.LateByDay.most_percent = 100

# Formgrader's lists take late penalties off, as everything else does.
nbgrader.apps.api.Gradebook = formgrader_points.GradebookLessPenalties

c.Similarity.earlier = []  # folders of earlier terms' courses: the report compares this class's answers with theirs

c.ExchangeFactory.collect = Collect

# nbgrader would read a time stamp of any size, and fail for one that it can't read.
CourseDirectory.get_existing_timestamp = lambda self, folder: notebook_file.time_stamp(Path(folder))
nbgrader.apps.api.NbGraderAPI.get_submitted_timestamp = lambda self, lesson, student: notebook_file.time_stamp(
    Path(self.coursedir.format_path(self.coursedir.submitted_directory, student, lesson))
)

c.GenerateFeedback.exporter_class = feedback.FeedbackPage
c.GenerateFeedback.preprocessors = [nbgrader_plugins.ReadGrades]

# Make formgrader's submission pages load no script from the internet, and escape a student's name.
TEMPLATES = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader" / "templates"
c.HTMLExporter.template_name = "formgrader_offline"
c.HTMLExporter.extra_template_basedirs = [str(TEMPLATES), str(Path(ROOT) / "grader" / "pages")]
c.HTMLExporter.extra_template_paths = [str(TEMPLATES)]

# grader/judging/judge.py judges submissions, without a kernel, in a sandbox (grader/sandbox). On a machine that can't
# make one, grading refuses, unless  c.Judge.sandbox = False  allows them to run with all rights of the person grading.
c.Judge.lessons = "solutions"
c.Judge.sandbox = True
c.Judge.seconds = 600  # waiting for its ranks, and computing of the judge; checks not reached by then give no points

# Only JupyterLab's Validate button, which students press, uses kernels. They have nothing to do with points.
c.Execute.timeout = 90  # seconds per cell: a correct answer takes two, or ten on a busy machine
c.Execute.interrupt_on_timeout = True
# Validate counts anything that a kernel writes to stderr (warnings, logging, child processes) as a failure, so send it
# to stdout.
c.Execute.extra_arguments = ["--IPKernelApp.exec_lines=import os, sys; sys.stderr = sys.stdout; os.dup2(1, 2)"]
