"""Text and marks share one stream of bytes: this takes them apart, however the stream is cut into reads.

A mark is a sequence of bytes that no text contains (protocol.py lists them). One with a "%d" or "%s" carries a content:
b"\\xff\\x00rank %d\\x00\\xff" stands for the mark of rank 0, of rank 1, and so on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

TEXT = b""  # stands for a mark with the bytes between two marks
LONGEST_CONTENT = 200  # bytes: a mark that has begun further back than this is text after all
_CONTENT = rb"[^\x00]*"


class Framing:
    """The marks to look for in one stream, and its last bytes, if they may be the beginning of a mark."""

    def __init__(self, *marks: bytes):
        self._marks = marks
        self._whole, self._begun = _patterns(marks)
        self._longest = max(len(mark) + LONGEST_CONTENT * _has_content(mark) for mark in marks)
        self.tail = b""  # bytes that may begin a mark: the next read will tell

    def split(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What has come whole with `data`, in order: (mark, its content), or (TEXT, the text) between two marks."""
        data, at = self.tail + data, 0
        self.tail = b""
        for found in self._whole.finditer(data):
            if found.start() > at:
                yield TEXT, data[at : found.start()]
            number = found.lastindex or 1
            yield self._marks[number - 1], found[number]
            at = found.end()
        begun = self._begun.search(data, max(at, len(data) - self._longest))
        end = begun.start() if begun else len(data)
        self.tail = data[end:]
        if end > at:
            yield TEXT, data[at:end]

    def rest(self) -> bytes:
        """The stream has ended: what looked like the beginning of a mark is text."""
        rest, self.tail = self.tail, b""
        return rest


def is_only(mark: bytes, data: bytes) -> bool:
    """Whether `data` is nothing but whole marks of this kind, or empty; a quick test for streams of many marks."""
    return data == mark * (len(data) // len(mark))


@functools.cache  # every rank's stream has the same marks
def _patterns(marks: tuple[bytes, ...]) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """(whole marks, in which the n-th group is the content of the n-th mark; a mark that the stream's end cuts off)."""
    return re.compile(b"|".join(map(_pattern, marks))), re.compile(b"|".join(map(_pattern_of_beginnings, marks)))


def _has_content(mark: bytes) -> bool:
    return b"%" in mark


def _parts(mark: bytes) -> list[bytes]:
    """What stands before the content of a mark and after it; for a mark without content, the mark alone."""
    return re.split(rb"%[ds]", mark)


def _pattern(mark: bytes) -> bytes:
    if not _has_content(mark):
        return re.escape(mark) + b"()"
    return (b"(" + _CONTENT + b")").join(map(re.escape, _parts(mark)))


def _pattern_of_beginnings(mark: bytes) -> bytes:
    """Matches a mark that the stream's end cuts off."""
    head, *foot = _parts(mark)
    beginnings = [re.escape(head[:length]) for length in range(1, len(head))]
    for end in foot:
        beginnings += [re.escape(head) + _CONTENT + re.escape(end[:length]) for length in range(len(end))]
    return b"|".join(beginning + rb"\Z" for beginning in beginnings)
