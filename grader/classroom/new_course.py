"""Make a course's folder: a configuration that begins with this project's, its lessons, a place for submissions."""

from __future__ import annotations

import re
from pathlib import Path

from grader.classroom.course import CONFIG, ClassroomError

PROJECT = Path(__file__).resolve().parents[2]
TEXT = '''"""The configuration of this course: all of the project's, and below that what is different here."""

load_subconfig("nbgrader_config.py", path={project!r})  # noqa: F821
c = get_config()  # noqa: F821

c.CourseDirectory.course_id = {name!r}

# Where students fetch lessons and hand them in, if you use nbgrader's exchange:
# c.Exchange.root = "/srv/nbgrader/exchange"

# When lessons are due, and the part of the earned points that each day begun after that costs, up to a maximum.
# c.SaveGrades.deadlines = {{"01_collectives": "2026-10-05 18:00 Europe/Berlin"}}
# c.LateByDay.percent_per_day = 10
# c.LateByDay.grace_hours = 2
# c.LateByDay.most_percent = 50

# Courses of earlier terms, in whose answers the report looks for copies.
# c.Similarity.earlier = ["../autumn"]

# Seconds for one submission.
# c.Judge.seconds = 600
'''


def new_course(folder: Path) -> Path:
    """Make a course in this folder, which may exist, and return its path. Raises ClassroomError if one is there."""
    root = folder.resolve()
    for taken in (CONFIG, "solutions", "submitted"):
        if (root / taken).exists() or (root / taken).is_symlink():
            raise ClassroomError(f"{folder} has a {taken} already: name a new or an empty folder")
    try:
        (root / "submitted").mkdir(parents=True)
        (root / "solutions").symlink_to(PROJECT / "solutions")
        name = re.sub(r"[^\w-]+", "-", root.name).strip("-") or "course"
        (root / CONFIG).write_text(TEXT.format(project=str(PROJECT), name=name), encoding="utf-8")
    except OSError as error:
        raise ClassroomError(f"{folder} can't be made: {error.strerror}") from error
    return root
