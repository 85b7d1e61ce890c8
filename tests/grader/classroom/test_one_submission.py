"""The two small files that nbgrader puts beside a notebook are a student's bytes, too."""

import os
from types import SimpleNamespace

import pytest

from grader.classroom.notebook_file import MAX_STAMP, small_file
from grader.classroom.one_submission import OneSubmission


@pytest.fixture
def stamp(tmp_path):
    return tmp_path / "timestamp.txt"


def read(path):
    course = SimpleNamespace(folder=lambda *names: path.parent)
    return OneSubmission(course, "01_tiny", "ada").timestamp


def test_a_time_stamp_as_nbgrader_writes_it(stamp):
    stamp.write_text("2026-01-02 03:04:05.678901 UTC\n")
    assert read(stamp).isoformat() == "2026-01-02T03:04:05.678901"


@pytest.mark.parametrize("text", [b"", b"soon", b"9999-12-31 00:00:00 UTC", b"1" * 100, b"\xff\xfe", b"9" * 10_000_000])
def test_another_is_none_and_costs_nothing(stamp, text):
    stamp.write_bytes(text)
    assert read(stamp) is None


def test_a_huge_file_is_not_read(stamp):
    with open(stamp, "wb") as file:
        os.truncate(file.fileno(), 3 * 2**30)  # sparse
    assert small_file(stamp) == b""


def test_neither_links_nor_pipes_are_opened(stamp, tmp_path):
    (tmp_path / "secret").write_text("2026-01-02 03:04:05 UTC")
    stamp.symlink_to(tmp_path / "secret")
    assert small_file(stamp) == b""
    stamp.unlink()
    os.mkfifo(stamp)
    assert small_file(stamp) == b""
    assert small_file(tmp_path / "none") == b"" and MAX_STAMP < 1000
