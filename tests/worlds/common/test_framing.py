"""Text and marks in one stream, however it is cut into reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.worlds.common.framing import LONGEST_CONTENT, TEXT, Framing, is_only
from utils.worlds.common.protocol import FINISHED, NEWS_IS, SPEAKS, SYNCHRONISED

ALL = (SYNCHRONISED, FINISHED, SPEAKS, NEWS_IS)


def pieces(*reads, marks=ALL):
    """What comes out of these reads. Neighbouring texts are joined, because reads may cut them anywhere."""
    framing, found = Framing(*marks), []
    for read in reads:
        found += framing.split(read)
    found.append((TEXT, framing.rest()))
    together = []
    for mark, content in found:
        if mark == TEXT and together and together[-1][0] == TEXT:
            together[-1] = (TEXT, together[-1][1] + content)
        elif mark != TEXT or content:
            together.append((mark, content))
    return together


STREAM = SPEAKS % 12 + b"one\n" + SYNCHRONISED + NEWS_IS % b"0.5 3 1" + b"two\xff\x00" + SYNCHRONISED * 2 + FINISHED
EXPECTED = [
    (SPEAKS, b"12"),
    (TEXT, b"one\n"),
    (SYNCHRONISED, b""),
    (NEWS_IS, b"0.5 3 1"),
    (TEXT, b"two\xff\x00"),
    (SYNCHRONISED, b""),
    (SYNCHRONISED, b""),
    (FINISHED, b""),
]


def test_a_stream_that_is_split_at_any_byte_comes_out_the_same():
    assert pieces(STREAM) == EXPECTED
    for cut in range(len(STREAM)):
        assert pieces(STREAM[:cut], STREAM[cut:]) == EXPECTED
    assert pieces(*(bytes([byte]) for byte in STREAM)) == EXPECTED


@given(
    st.lists(st.sampled_from([SYNCHRONISED, FINISHED, SPEAKS % 7, b"a", b"\xff", b"\x00", b"\xff\x00rank ", b"7\x00"])),
    st.lists(st.integers(1, 30)),
)
def test_any_stream_in_any_reads(parts, sizes):
    stream, reads, at = b"".join(parts), [], 0
    for size in [*sizes, len(b"".join(parts))]:
        reads.append(stream[at : at + size])
        at += size
    whole = pieces(stream)
    assert pieces(*reads) == whole
    assert b"".join(mark.replace(b"%d", content) if mark else content for mark, content in whole) == stream


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"\xff\x00",
        b"\xff\x00rank",
        SPEAKS[:-1] % 3,
        b"\xff\x00another\x00\xff",
        FINISHED[1:],
        FINISHED[:-1],
    ],
)
def test_the_beginning_of_a_mark_and_an_unknown_one_are_text(text):
    assert pieces(text) == ([(TEXT, text)] if text else [])


def test_other_marks_than_those_asked_for_are_text():
    assert pieces(SYNCHRONISED + FINISHED, marks=(FINISHED, SPEAKS)) == [(TEXT, SYNCHRONISED), (FINISHED, b"")]


def test_text_is_held_back_only_while_it_may_become_a_mark():
    framing = Framing(*ALL)
    assert list(framing.split(b"text\xff\x00sync")) == [(TEXT, b"text")]
    assert framing.tail == b"\xff\x00sync"
    assert list(framing.split(b"x")) == [(TEXT, b"\xff\x00syncx")]
    begun = b"\xff\x00rank " + b"1" * 2 * LONGEST_CONTENT
    assert list(framing.split(begun)) == [(TEXT, begun)]
    assert framing.tail == b""


def test_a_stream_of_one_mark_only():
    assert is_only(SYNCHRONISED, SYNCHRONISED * 3)
    assert is_only(SYNCHRONISED, b"")
    assert not is_only(SYNCHRONISED, SYNCHRONISED + b"x")
    assert not is_only(SYNCHRONISED, SYNCHRONISED[:-1])
    assert not is_only(SYNCHRONISED, FINISHED)
