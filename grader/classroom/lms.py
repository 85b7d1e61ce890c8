"""What a learning platform's zip of submissions holds, into `submitted/`; and feedback in a zip, out of `feedback/`.

Files are taken apart here, not with `nbgrader zip_collect`: that also unpacks archives in the archive, of any size,
and knows students only by what stands in the file's name. The regular expression for the names is nbgrader's option.
"""

from __future__ import annotations

import json
import shutil
import zipfile
import zlib
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress
from pathlib import Path, PurePosixPath

from nbgrader.exchange import ExchangeFactory
from nbgrader.plugins import FileNameCollectorPlugin

from grader.classroom.course import ClassroomError, Course
from grader.classroom.gradebook import replace_file
from grader.classroom.grades import read_grades
from grader.classroom.notebook_file import MAX_FILE, printable

# How a file in the zip is called: what comes before `file_id` is the platform's own.
NAMES = {
    "canvas": r"(?P<name>[^_/]+)_(?:(?P<late>LATE)_)?(?P<student_id>\d+)_\d+_(?P<file_id>[^/]+)$",
    "moodle": r"(?P<student_id>[^/]+?)_\d+_assignsubmission_file_?/?(?P<file_id>.+)$",
    "other": "",  # c.FileNameCollectorPlugin.named_regexp
}


@dataclass
class HandIn:
    """What the zip holds of one student."""

    place: str = ""  # the platform's name for it: the beginning of the files' names
    files: dict[str, zipfile.ZipInfo] = field(default_factory=dict)  # by the names that they get
    when: datetime = datetime.min  # the newest file's date
    late: bool = False  # as the platform marks it


# ---- in --------------------------------------------------------------------------------------------------------------


def collect_zip(course: Course, lesson: str, file: Path, platform: str, times: bool = False) -> str:
    """Put the notebooks of a zip into `submitted/`, in place of what the same students handed in before.

    platform: one of NAMES. times: take the files' dates in the zip as the times of handing in. Returns what was done,
    in words. Raises ClassroomError if the file is no zip, or if nothing says what its files are called.
    """
    plugin = FileNameCollectorPlugin(config=course.config)
    plugin.named_regexp = NAMES[platform] or plugin.named_regexp
    if not plugin.named_regexp:
        raise ClassroomError("c.FileNameCollectorPlugin.named_regexp has to say what the files are called")
    counts = dict.fromkeys(("new", "changed", "unchanged"), 0)
    try:
        with zipfile.ZipFile(file) as archive:
            found, left_out = sort_out(archive.infolist(), plugin, Ids(course))
            for student, hand_in in found.items():
                counts[put(archive, course.folder("submitted", student, lesson), hand_in, times)] += 1
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ClassroomError(f"{file} can't be read as a zip: {error}") from None
    places = read_places(course, lesson) | {student: hand_in.place for student, hand_in in found.items()}
    replace_file(places_file(course, lesson), json.dumps(places, indent=1).encode())
    lines = [f"{lesson}: {', '.join(f'{number} {what}' for what, number in counts.items())}"]
    if late := sorted(student for student, hand_in in found.items() if hand_in.late):
        lines.append(f"late, as {platform} says: {', '.join(late)}")
    return "\n".join([*lines, *(f"left out: {printable(line)}" for line in left_out)])


def sort_out(
    infos: list[zipfile.ZipInfo], plugin: FileNameCollectorPlugin, ids: Ids
) -> tuple[dict[str, HandIn], list[str]]:
    """What each student has handed in, and a line for each file that is left out."""
    found, left_out = defaultdict[str, HandIn](HandIn), []
    for info in infos:
        about = plugin.collect(info.filename)
        student = ids.find(about) if about else None
        if info.is_dir():
            continue
        if not about:
            left_out.append(f"{info.filename}: not a notebook, or not named as {plugin.named_regexp}")
        elif not student:
            left_out.append(f"{info.filename}: nobody in the gradebook, or more than one, is {about['student_id']}")
        elif sum(one.file_size for one in [info, *found[student].files.values()]) > MAX_FILE:
            left_out.append(f"{info.filename}: with it, {student}'s files have more than {MAX_FILE >> 20} MiB")
        else:
            hand_in = found[student]
            hand_in.place = info.filename.removesuffix(about["file_id"])
            hand_in.files[PurePosixPath(about["file_id"]).name.lstrip(".")] = info
            with suppress(ValueError):  # no date
                hand_in.when = max(hand_in.when, datetime(*info.date_time))
            hand_in.late |= bool(about.get("late"))
    return {student: hand_in for student, hand_in in found.items() if hand_in.files}, left_out


def put(archive: zipfile.ZipFile, folder: Path, hand_in: HandIn, times: bool) -> str:
    """Make the folder hold these files and no others. Returns what it was before: new, changed or unchanged."""
    files = {name: archive.read(info) for name, info in hand_in.files.items()}
    if times:
        files["timestamp.txt"] = f"{hand_in.when} UTC\n".encode()
    if not folder.exists():
        what = "new"
    elif same(folder, files):
        return "unchanged"
    else:
        what = "changed"
        shutil.rmtree(folder)
    for name, content in files.items():
        replace_file(folder / name, content)
    return what


def same(folder: Path, files: dict[str, bytes]) -> bool:
    there = {path.name: path for path in folder.iterdir()}
    return there.keys() == files.keys() and all(
        path.is_file()
        and not path.is_symlink()
        and path.stat().st_size == len(files[name])
        and path.read_bytes() == files[name]
        for name, path in there.items()
    )


class Ids:
    """Who is meant by what a platform writes: its own number, the student's id, or a name that only one has."""

    def __init__(self, course: Course) -> None:
        self.known: dict[str, set[str]] = defaultdict(set)
        with course.gradebook() as gradebook:
            for one in gradebook.students:
                first, last = one.first_name or "", one.last_name or ""
                for key in (one.id, one.lms_user_id or "", letters(first + last), letters(last + first)):
                    self.known[key].add(one.id)

    def find(self, about: dict[str, str]) -> str | None:
        for key in (about["student_id"], letters(about["student_id"]), letters(about.get("name") or "")):
            if key and len(self.known.get(key, ())) == 1:
                return next(iter(self.known[key]))
        return None


def letters(name: str) -> str:
    """A name as Canvas writes it into a file's: lower case, without anything between."""
    return "".join(filter(str.isalnum, name.lower()))


# ---- out -------------------------------------------------------------------------------------------------------------


def hand_back(course: Course, lesson: str) -> str:
    """Write feedback-LESSON.zip: each page where the platform's zip had the submission, or else in STUDENT/.

    If the course has an exchange, nbgrader releases the pages there, too. A student with an answer that a person still
    has to grade is left out. Returns what was done, in words. Raises ClassroomError if nbgrader can't release.
    """
    grades, places = read_grades(course, lesson), read_places(course, lesson)
    waiting = sorted(student for student, names in grades.waiting.items() if names)
    pages = {student: course.folder("feedback", student, lesson) / f"{lesson}.html" for student in grades.earned}
    ready = {student: page for student, page in pages.items() if page.is_file() and student not in waiting}
    path = course.root / f"feedback-{lesson}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student, page in ready.items():
            archive.write(page, f"{places.get(student, f'{student}/')}{lesson}.html")
    lines = [f"{path}: {len(ready)} of {len(pages)}"]
    if waiting:
        lines.append(f"not yet, since an answer waits to be graded by hand: {', '.join(map(printable, waiting))}")
    if course.config.get("Exchange", {}).get("root"):
        secrets = [page.with_name("submission_secret.txt").is_file() for page in ready.values()]
        exclude = ",".join(set(pages) - set(compress(ready, secrets)))
        course.must(ExchangeFactory(config=course.config).release_feedback, lesson, exclude=exclude)
        lines.append(f"released to the exchange: {sum(secrets)}")
    return "\n".join(lines)


def places_file(course: Course, lesson: str) -> Path:
    return course.root / "downloaded" / lesson / "places.json"


def read_places(course: Course, lesson: str) -> dict[str, str]:
    """student -> the beginning of their files' names in the platform's zip; {} if nothing came from one."""
    try:
        found: dict[str, str] = json.loads(places_file(course, lesson).read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {}
