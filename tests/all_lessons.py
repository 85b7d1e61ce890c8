"""The sources of all lessons, read once for all test files."""

from grader.authoring.lesson import find_lessons, read_lesson

LESSONS = {path.stem: read_lesson(path) for path in find_lessons()}
