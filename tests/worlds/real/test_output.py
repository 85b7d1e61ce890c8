"""What ranks print, in the promised order, however it arrives; the live bar; results of random patterns of messages."""

import io
import os
import re
import sys
from types import SimpleNamespace

import nbformat
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from nbclient.client import _RGX_CARRIAGERETURN as NBCLIENT
from nbval.plugin import coalesce_streams
from tqdm import tqdm, trange

from grader.authoring import execute
from tests.kernel import Notebook
from utils import RankFailed, spawn
from utils.worlds.common.protocol import FINISHED, SYNCHRONISED
from utils.worlds.real import screen as screen_module
from utils.worlds.real.ordered_output import OrderedOutput

pytestmark = pytest.mark.long

# --- the order


def known_lines(rank, data):
    """What has come from a rank, read byte by byte: ([(epoch, rank, number, line)], epoch, whether it is finished)."""
    lines, row, epoch = [], b"", 0
    while data:
        if data.startswith(FINISHED):
            return [*lines, (epoch, rank, len(lines), row)] if row else lines, epoch, True
        if data.startswith(SYNCHRONISED):
            epoch, data = epoch + 1, data[len(SYNCHRONISED) :]
        elif data.startswith(b"\n"):
            lines.append((epoch, rank, len(lines), row))
            row, data = b"", data[1:]
        else:
            row, data = row + data[:1], data[1:]
    return lines, epoch, False


def may_be_shown(received):
    """All lines that no other line can come before any more, once this much has come from each rank."""
    known, epochs, finished = zip(*(known_lines(*one) for one in enumerate(received)), strict=True)

    def is_past(rank, epoch):
        return finished[rank] or epochs[rank] > epoch

    return [
        f"[{rank}] " + line.decode("utf-8", "backslashreplace")
        for epoch, rank, _, line in sorted(sum(known, []))
        if all(is_past(lower, epoch) for lower in range(rank))
        and all(is_past(higher, epoch - 1) for higher in range(rank, len(received)))
    ]


def take(output):
    return [f"[{rank}] {line}" for rank, lines in output.ready() for line in lines.removesuffix("\n").split("\n")]


PIECES = [b"a", b" ", b"\n", b"b\nc\n", "é✓😀".encode(), SYNCHRONISED, SYNCHRONISED, b"\xff", b"\x00", b"\xff\x00sync"]
PIECES += [b"\xc3", b"\x1b[31m", b"\x1b", "\u2028\x0c".encode(), b"\xff\x00finish"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 25)), max_size=40),
)
def test_lines_come_in_order_and_as_soon_as_possible(streams, reads):
    """However the writes are cut into reads, and however the ranks interleave. Nothing is lost."""
    streams = [stream + FINISHED for stream in streams]
    output, shown, received = OrderedOutput(len(streams)), [], [b""] * len(streams)
    reads += [(rank, 10**6) for rank in range(len(streams))]
    for rank, size in reads:
        rank %= len(streams)
        data = streams[rank][len(received[rank]) :][:size]
        received[rank] += data
        output.feed(rank, data)
        shown += take(output)
        assert shown == may_be_shown(received)
    assert len(shown) == sum(len(known_lines(rank, stream)[0]) for rank, stream in enumerate(streams))
    for rank in range(len(streams)):
        assert "".join(output.text[rank]) == "".join(
            line.partition(" ")[2] + "\n" for line in shown if line.startswith(f"[{rank}]")
        )


# --- one rank's rows


def lines_of(*reads):
    output = OrderedOutput(1)
    for data in reads:
        output.feed(0, data)
    output.close(0)
    return "".join(lines for _, lines in output.ready())


NESTED = b"\r0/2\n\r0/9\x1b[A\n\r5/9\x1b[A\r9/9\n\r1/2"


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"10 %\r50 %\r100 %\nnext\n", "100 %\nnext\n"),
        (b"step 1\rstep 2\r", "step 2\n"),
        (b"\r 10 %\r      \rdone\n", "done\n"),
        (b"\r 10 %\r 9 %   ", " 9 %\n"),
        (b"\r100 %\n\n\nafter two empty lines\n", "100 %\n\n\nafter two empty lines\n"),
        (b"\r1 of 1\n\r0 of 2\r2 of 2\nend", "1 of 1\n2 of 2\nend\n"),
        (b"\r1 of 1\n" + SYNCHRONISED + b"\r2 of 2\n" + FINISHED, "1 of 1\n2 of 2\n"),
        (b"not \xff\xfe utf-8 \xc3\n\xc3\xa9\n", "not \\xff\\xfe utf-8 \\xc3\né\n"),
        (b"\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"),
        (b"\x1b[2J\x1b[1;1Hhome\x1b[K\x1b[A\x1b[?25l\n", "home\n"),
        (NESTED, "9/9\n1/2\n"),
        (NESTED + b"\n\n\r0/4\x1b[A\x1b[A", "9/9\n0/4\n"),
        (NESTED + b"\n\r    \x1b[A", "9/9\n1/2\n"),
        (b"begun" + SYNCHRONISED + b" and ended\n", "begun and ended\n"),
    ],
)
def test_rows_become_lines_wherever_they_are_cut(written, lines):
    assert lines_of(written) == lines
    for cut in range(len(written)):
        assert lines_of(written[:cut], written[cut:]) == lines
    assert lines_of(*(bytes([byte]) for byte in written)) == lines


@pytest.mark.parametrize("inner", [{}, {"leave": False}, {"position": 1, "leave": False}, {"position": 1}])
def test_tqdm_leaves_what_it_leaves_in_a_terminal(inner):
    file = io.StringIO()
    print("before", file=file)
    for i in trange(3, file=file, mininterval=0, bar_format="outer {n}/{total}"):
        for _ in trange(2, file=file, mininterval=0, bar_format="inner {n}/{total}", **inner):
            if i == 1:
                tqdm.write("between all the others", file=file)
    rows = [row for row in terminal(file.getvalue()).split("\n") if row]
    assert lines_of(file.getvalue().encode()).splitlines() == rows


def test_a_bar_is_there_while_it_is_drawn():
    output = OrderedOutput(3)
    output.feed(2, b"\rrank 2 draws")
    assert output.bar() == (2, "rank 2 draws")
    output.feed(1, b"10 %\r")
    output.feed(0, b"not a bar")
    assert output.bar() == (1, "10 %")
    output.feed(1, b"20 %\r    \r")
    assert output.bar() == (2, "rank 2 draws"), "rank 1's was wiped"
    output.feed(1, b"100 %\n")
    assert output.bar() == (1, "100 %"), "a nested one may follow"
    output.feed(1, b"other words\n")
    assert output.bar() == (2, "rank 2 draws")
    output.feed(2, b"\n" + FINISHED)
    assert output.bar() is None


def test_a_bar_that_has_ended_waits_no_longer_than_it_must():
    """It waits until something else is drawn or printed. A collective that follows does not make it a later line."""
    output = OrderedOutput(2)
    output.feed(0, b"\r100 %\n")
    output.feed(0, b"\r0 of 5")
    assert take(output) == [], "a nested bar may have been drawn"
    output.feed(0, b"\r1 of 5")
    assert take(output) == ["[0] 100 %"]
    output.feed(0, b"\n" + SYNCHRONISED + b"after the barrier\n" + FINISHED)
    assert take(output) == ["[0] 1 of 5"]
    output.feed(1, b"one line\n" + FINISHED)
    assert take(output) == ["[1] one line", "[0] after the barrier"]


def test_large_and_small_pieces_take_linear_time():
    """10 MB in a single line, as a bar, in small reads: the time must not grow with the square of the length."""
    line = b"y" * 10_000_000
    reads = [line[at : at + 4096] for at in range(0, len(line), 4096)]
    assert lines_of(*reads, b"\n") == lines_of(b"x\r", *reads) == line.decode() + "\n"
    bar = [b"\r%d %%" % number for number in range(100_000)]
    assert lines_of(*bar) == "99999 %\n"


# --- the screen


def terminal(text):
    """What a terminal shows in the end."""
    rows, row, column = [""], 0, 0
    for char in re.findall(r"\x1b\[A|\x1b\[K|[^\x1b]", text):
        if char == "\n":
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif char == "\r":
            column = 0
        elif char == "\b":
            column = max(column - 1, 0)
        elif char == "\x1b[A":
            row -= 1
        elif char == "\x1b[K":
            rows[row] = rows[row][:column]
        else:
            rows[row] = rows[row].ljust(column)[:column] + char + rows[row][column + 1 :]
            column += 1
    return "\n".join(row.rstrip() for row in rows)


def jupyterlab(text):
    """What JupyterLab shows of a stream: `processText` in its model.ts, which counts characters like JavaScript."""
    units = text.encode("utf-16-le")
    shown, at = [], 0
    for unit in (units[i : i + 2] for i in range(0, len(units), 2)):
        if unit == b"\b\0":
            if at and shown[at - 1] != b"\n\0":
                shown[at - 1 : at + 1] = []
                at -= 1
        elif unit == b"\r\0":
            while at and shown[at - 1] != b"\n\0":
                at -= 1
        else:
            at = len(shown) if unit == b"\n\0" else at
            shown[at : at + 1] = [unit]
            at += 1
    return b"".join(shown).decode("utf-16-le")


def nbval(text):
    outputs = [nbformat.v4.new_output("stream", text=part) for part in re.split(r"(?<=\r)", text) if part]
    return "".join(output.text for output in coalesce_streams(outputs))


class Stream(io.StringIO):
    encoding = "utf-8"
    is_terminal = False

    def isatty(self):
        return self.is_terminal


WORDS = st.text(st.sampled_from("ab 😀中é\x1b"), max_size=12)
LINES = st.lists(st.tuples(st.integers(0, 3), WORDS.map("{}\n".format)), max_size=3)
BARS = st.tuples(st.integers(0, 1), WORDS.map("bar {}\t\b".format)) | st.none()


@pytest.mark.parametrize("is_terminal", [True, False])
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.3, 0.15, 0.01]), LINES, BARS)))
def test_a_live_line_leaves_nothing_behind(is_terminal, steps):
    """For everything that shows or compares output, the final text is the same as without live lines."""
    steps = [*steps, (0.0, [(0, "the bar's last state\n")], None)]
    expected = "".join(f"[rank {rank}] {line}" for _, lines, _ in steps for rank, line in lines)
    now, stream, screen = 0.0, Stream(), screen_module.Screen()
    stream.is_terminal = is_terminal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(screen_module, "is_watched", lambda stream: True)
        patch.setattr(screen_module, "time", SimpleNamespace(monotonic=lambda: now))
        for seconds, lines, bar in steps:
            now += seconds
            screen.show(lines, bar)
    written = stream.getvalue()
    if is_terminal:
        assert terminal(written.replace("\x1b[K", "\0").replace("\x1b", "?").replace("\0", "\x1b[K")) == terminal(
            expected.replace("\x1b", "?")
        )
    else:
        assert jupyterlab(written) == nbval(written) == NBCLIENT.sub("", written) == expected


def test_the_live_line_is_patient_slow_and_only_for_someone_watching(monkeypatch):
    stream, clock = Stream(), SimpleNamespace(now=0.0)
    monkeypatch.setattr(screen_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(sys, "stdout", stream)
    for watched, drawings in ((False, 0), (True, 10)):
        monkeypatch.setattr(screen_module, "is_watched", lambda stream, watched=watched: watched)
        screen = screen_module.Screen()
        for number in range(1000):  # for 1.2 seconds
            clock.now += 0.0012
            screen.show([], (1, f"{number} " + "x" * 1000))
        written = stream.getvalue()
        assert abs(written.count("[rank 1]") - drawings) <= 1
        assert all(len(line) < 150 for line in re.split("[\r\n]", written))
        screen.show([(1, "over\n")], None)


def test_two_worlds_share_one_live_line(monkeypatch):
    stream, clock = Stream(), SimpleNamespace(now=0.0)
    monkeypatch.setattr(screen_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(screen_module, "is_watched", lambda stream: True)
    one, other = screen_module.Screen(), screen_module.Screen()
    for _ in range(3):
        clock.now += 0.15
        one.show([], (0, "half of it"))
        other.show([(5, "a line\n")], (5, "a quarter of it"))
    one.show([(0, "all of it\n")], None)
    other.show([(5, "done\n")], None)
    expected = "[rank 5] a line\n" * 3 + "[rank 0] all of it\n[rank 5] done\n"
    assert nbval(stream.getvalue()) == jupyterlab(stream.getvalue()) == expected


def test_the_last_state_of_a_bar_is_kept_when_the_world_fails(capsys):
    def program(rank, world_size):
        for step in trange(10, bar_format="{n}/{total}", mininterval=0):
            if step == 4:
                raise ValueError("no more")

    with pytest.raises(RankFailed, match="no more") as caught:
        spawn(program, 1)
    assert capsys.readouterr().out == "[rank 0] 4/10\n"
    assert caught.value.output == ["4/10\n"]


def test_a_very_long_line_and_bytes_that_are_not_text_from_a_real_rank(capsys):
    def program(rank, world_size):
        print("y" * 10_000_000, end="", flush=True)
        os.write(2, b" and \xff\xfe\r\n\xe2\x82")
        dist.barrier()
        os.write(1, b"\xac is whole")

    run = spawn(program, 2)
    assert run.output == ["y" * 10_000_000 + " and \\xff\\xfe\n€ is whole\n"] * 2
    lines = capsys.readouterr().out.splitlines()
    assert [line[:10] + line[-8:] for line in lines] == [
        "[rank 0] y\\xff\\xfe",
        "[rank 1] y\\xff\\xfe",
        "[rank 0] €is whole",
        "[rank 1] €is whole",
    ]


def test_warnings_and_logging_come_in_order_with_prints(capfd):
    def program(rank, world_size):
        import logging
        import warnings

        print("one")
        warnings.warn("two", stacklevel=1)
        print("three", end="\n\n")
        logging.warning("four")
        dist.barrier()
        sys.stderr.write("five")
        print(" six")

    run = spawn(program, 2)
    out, err = capfd.readouterr()
    assert err == "" and all(re.match(r"\[rank \d\] ", line) for line in out.splitlines())
    for output in run.output:
        places = [output.index(f"{word}\n") for word in ("one", "two", "three\n", "WARNING:root:four", "five six")]
        assert places == sorted(places)


# --- the keyboard that a rank lacks


def test_input_says_what_to_do_instead():
    with pytest.raises(RankFailed) as caught:
        spawn(lambda rank, n: input("name? "), 1)
    assert (
        "EOFError: a rank has no keyboard. Ask in the notebook and pass the answer on: spawn(work, 4, answer)"
        in str(caught.value)
    )
    assert 'input("name? ")' in str(caught.value)


def test_stdin_is_empty_also_for_processes_that_a_rank_starts():
    def program(rank, world_size):
        import subprocess

        child = subprocess.run([sys.executable, "-c", "import sys; print(sys.stdin.read() == '')"], capture_output=True)
        return sys.stdin.readline(), list(sys.stdin), child.stdout

    assert spawn(program, 1).results == [("", [], b"True\n")]


# --- in a real kernel


IMPORTS = """
import time, torch.distributed as dist, utils.worlds.real.screen
from tqdm import trange
from utils import spawn
"""


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    notebook.run(IMPORTS)
    yield notebook
    notebook.close()


def test_megabytes_from_each_of_two_ranks_arrive_whole_and_in_order(notebook):
    shown = notebook.run(
        "def work(rank, world_size):\n"
        "    for half in 'ab':\n"
        "        for number in range(10_000):\n"
        "            print(f'{half}{rank} {number:05}', 'x' * 90)\n"
        "        dist.barrier()\n"
        "run = spawn(work, 2)"
    )
    line = "{0}{1} {2:05} " + "x" * 90 + "\n"
    assert shown == {
        "stdout": "".join(
            f"[rank {rank}] " + line.format(half, rank, number)
            for half in "ab"
            for rank in range(2)
            for number in range(10_000)
        ),
        "stderr": "",
        "error": None,
    }
    length = notebook.run("print([len(output) for output in run.output])")["stdout"]
    assert length == f"{[20_000 * len(line.format('a', 0, 0))] * 2}\n"


DRAWS_BARS = """
from functools import partial
bar = partial(trange, mininterval=0, miniters=1)
def draw_bars(rank, world_size):
    for step in bar(8, bar_format="😀 {n}/{total}", disable=rank > 1):
        time.sleep(0.05)
        if step == 5:
            print("\\nin the middle")
        dist.barrier()
    for epoch in bar(2, bar_format="epoch {n}/{total}"):
        for step in bar(6, bar_format="a longer line for step {n}/{total}", leave=epoch == 1):
            time.sleep(0.05)
    print("over")
run = spawn(draw_bars, 3)
"""
UNSEEN = "utils.worlds.real.screen.PATIENCE = 1e9\n" + DRAWS_BARS + "utils.worlds.real.screen.PATIENCE = 0.2"


def test_live_bars_are_shown_and_leave_no_trace(notebook):
    seen, unseen = notebook.run(DRAWS_BARS), notebook.run(UNSEEN)
    assert seen["error"] is None and seen["stderr"] == ""
    assert "[rank 0] 😀 5/8\n[rank 0] in the middle\n[rank 1] 😀 5/8\n" in unseen["stdout"]
    assert "\r" not in unseen["stdout"]
    text = seen["stdout"]
    assert re.search(r"\[rank 0\] 😀 \d/8[\b\r]", text) and re.search(r"for step \d/6[\b\r]", text)
    assert nbval(text) == NBCLIENT.sub("", text) == jupyterlab(text) == unseen["stdout"]


ONLY_A_BAR = """
def wait(rank, world_size):
    for step in trange(20, leave=False, disable=rank > 0):
        time.sleep(0.03)
spawn(wait, 2).results
"""


def test_live_bars_are_not_in_notebooks_that_are_built(root, tmp_path):
    cells = [nbformat.v4.new_code_cell(source) for source in (IMPORTS, DRAWS_BARS, UNSEEN, ONLY_A_BAR)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    lesson = SimpleNamespace(name="01_bars", root=root, room=tmp_path, cells=cells)
    execute.run(lesson, notebook, tmp_path, str(tmp_path), after_cell=lambda: None)
    (seen,), (unseen,), (erased, value) = (cell.outputs for cell in notebook.cells[1:])
    assert seen == unseen and seen.text.endswith("[rank 2] over\n")
    assert erased.text == "[rank 0] \n" and value.data["text/plain"] == "[None, None]"


@pytest.mark.parametrize("module", ["notebook", "auto"])
def test_a_bar_made_for_notebooks_is_text_in_a_rank(notebook, module):
    shown = notebook.run(
        f"from tqdm.{module} import tqdm, trange as notebook_range\n"
        "def work(rank, world_size):\n"
        "    import tqdm.notebook as inside\n"
        "    for step in tqdm(range(3), bar_format='{n} of {total}'): pass\n"
        "    for step in notebook_range(4, bar_format='{n} of {total}'): pass\n"
        "    for step in inside.tqdm(range(5), bar_format='{n} of {total}'): pass\n"
        "run = spawn(work, 1)"
    )
    assert shown == {"stdout": "[rank 0] 3 of 3\n[rank 0] 4 of 4\n[rank 0] 5 of 5\n", "stderr": "", "error": None}


# --- messages of every pattern

DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8]
COLLECTIVES = ["all_reduce", "broadcast", "all_gather", "all_to_all", "messages"]


def contribution(step, rank, to, size, dtype):
    """The input of `rank` in a step: whole numbers, small enough that their sums are exact in every dtype."""
    return ((torch.arange(size) * 7 + 5 * rank + 3 * to + 11 * step) % 10).to(dtype)


def between(messages, world_size):
    """The messages of a step that go from one rank of this world to another."""
    pairs = [(source % world_size, to % world_size, tag, length) for source, to, tag, length in messages]
    return [message for message in pairs if message[0] != message[1]]


def perform(rank, world_size, steps):
    """Do the steps with real messages. Returns what this rank holds after each."""
    held = []
    for number, (what, size, dtype, root, messages) in enumerate(steps):
        mine = contribution(number, rank, 0, size, dtype)
        if what == "all_reduce":
            dist.all_reduce(mine)
        elif what == "broadcast":
            dist.broadcast(mine, src=root % world_size)
        elif what == "all_gather":
            parts = [torch.empty_like(mine) for _ in range(world_size)]
            dist.all_gather(parts, mine)
            mine = torch.cat(parts)
        elif what == "all_to_all":
            sends = [contribution(number, rank, to, (size + rank + to) % 4, dtype) for to in range(world_size)]
            parts = [torch.empty((size + source + rank) % 4, dtype=dtype) for source in range(world_size)]
            mine = torch.empty(sum(map(len, parts)), dtype=dtype)
            dist.all_to_all_single(mine, torch.cat(sends), [len(part) for part in parts], [len(send) for send in sends])
        else:
            mine, works = [], []
            for source, to, tag, length in between(messages, world_size):
                if rank == source:
                    works.append(dist.isend(contribution(number, source, to, length, dtype), to, tag=tag))
                elif rank == to:
                    mine.append(torch.empty(length, dtype=dtype))
                    works.append(dist.irecv(mine[-1], source, tag=tag))
            for work in works:
                work.wait()
            mine = torch.cat([torch.empty(0, dtype=dtype), *mine])
        held.append(mine)
    return held


def model(rank, world_size, steps):
    """What `perform` must return, computed without messages."""
    held = []
    for number, (what, size, dtype, root, messages) in enumerate(steps):
        everyones = [contribution(number, source, 0, size, dtype) for source in range(world_size)]
        if what == "all_reduce":
            held.append(sum(everyones))
        elif what == "broadcast":
            held.append(everyones[root % world_size])
        elif what == "all_gather":
            held.append(torch.cat(everyones))
        elif what == "all_to_all":
            sizes = [(size + source + rank) % 4 for source in range(world_size)]
            parts = [contribution(number, source, rank, sizes[source], dtype) for source in range(world_size)]
            held.append(torch.cat(parts))
        else:
            received = [
                contribution(number, source, to, length, dtype)
                for source, to, _, length in between(messages, world_size)
                if rank == to
            ]
            held.append(torch.cat([torch.empty(0, dtype=dtype), *received]))
    return held


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(
            st.sampled_from(COLLECTIVES),
            st.sampled_from([0, 1, 3, 1000, 100_000]),
            st.sampled_from(DTYPES),
            st.integers(0, 4),
            st.lists(
                st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2), st.sampled_from([1, 5, 70_000])),
                max_size=8,
            ),
        ),
        max_size=6,
    ),
)
def test_results_are_those_of_a_serial_model(world_size, steps):
    results = spawn(perform, world_size, steps).results
    for rank in range(world_size):
        for held, expected in zip(results[rank], model(rank, world_size, steps), strict=True):
            assert held.dtype == expected.dtype and torch.equal(held, expected)
