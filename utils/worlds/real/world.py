"""One world of real ranks, seen from the kernel: it shows what they print, watches over them, and ends them all."""

from __future__ import annotations

import errno
import linecache
import os
import pickle
import re
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable

from ...diagnosis import deadlock
from ...diagnosis.errors import Interrupted, RankCrashed, RankError, RankFailed, RankTimeout, WorldStuck
from ...diagnosis.failure_report import GIVES_UP, LAST_WORDS, is_innocent, report_crash, report_failures
from ...diagnosis.silent_mistakes import silent_mistake
from ...diagnosis.words import ranks_text
from ...events.failure import Failure
from ...events.isend_ends import bound_by_receives
from ...events.rank_state import RankState
from ...recording.reader import RecordReader, read_memory
from ...report.run import Run
from ...text import source_lines
from ..common.protocol import SYNCHRONISED, Request, path_in
from .ordered_output import OrderedOutput
from .placement import Placement
from .screen import Screen
from .world_folder import make_folder, working_directory
from .zygote.client import zygote

GRACE = 0.5  # seconds that the other ranks have to say what happened to them, once one has failed
MAX_START = 120  # seconds that the zygote may take to import torch
MOST_PRINTED = 256 << 20  # bytes of one rank
QUIET = 0.4  # seconds without a call to the network, after which we look whether anybody can still move


def run_world(make: Callable[[], RealWorld], timeout: float) -> Run:
    """Run the world that `make` makes from its start to its end; raises the report of what went wrong."""
    try:
        return run_once(make, timeout)
    except NoZygote:  # it was killed since the last call; now there is a new one
        return run_once(make, timeout)


def run_once(make: Callable[[], RealWorld], timeout: float) -> Run:
    with make() as world:
        try:
            world.watch(timeout)
        except KeyboardInterrupt:
            raise world.interrupted() from None
        return world.collect()


class NoZygote(RankCrashed):
    """There was nobody to start the ranks."""


class RealWorld:
    """The processes of one call of spawn, from their start to the last byte they leave."""

    entry = f"{__package__}.rank_process:perform"  # what each process does

    def __init__(self, size: int, placement: Placement, program: bytes):
        self.size, self.placement, self.backend = size, placement, placement.backend
        self.zero = self.last_news = time.monotonic()
        self.output, self.screen = OrderedOutput(size), Screen()
        self.outcomes: dict[int, object] = {}  # of the ranks that are finished: ("result", value) or a Failure
        self.exit_codes: dict[int, int] = {}  # of the processes that have ended
        self.states = [RankState(rank) for rank in range(size)]
        self.printed_bytes = [0] * size
        self.started = False  # whether the zygote has made the ranks
        self.last_words: dict[int, list[str]] = {}  # of the ranks in which a library has given up
        self.records: list[RecordReader] = []  # what each rank records; empty until all have begun to
        self.folder = make_folder(len(program))
        try:
            for name, content in (("program", program), ("request", pickle.dumps(self.request()))):
                with open(os.path.join(self.folder, name), "wb") as file:
                    file.write(content)
            self.start()
        except BaseException:
            self.remove_folder()
            raise

    def request(self) -> Request:
        return Request(
            world_size=self.size,
            backend=self.backend,
            folder=self.folder,
            zero=self.zero,
            environment={**os.environ, **self.placement.environment},
            working_directory=working_directory(),
            sys_path=list(sys.path),
            # a cell's entry has no time of change; a file's has one, and the rank can read the file
            entry=self.entry,
            sources={file: entry for file, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None},
        )

    def start(self) -> None:
        pipes: list[tuple[int, int]] = []
        try:
            pipes += (os.pipe() for _ in range(self.size))
            self.connection = zygote.make_world(self.size, self.folder, [write for _, write in pipes])
        except BaseException as error:
            for read, _ in pipes:
                os.close(read)
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise RuntimeError(f"{self.size} ranks need more open files than there may be: use fewer.") from None
            raise
        finally:
            for _, write in pipes:
                os.close(write)
        self.readers = {read: rank for rank, (read, _) in enumerate(pipes)}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.connection, selectors.EVENT_READ)
        for read in self.readers:
            os.set_blocking(read, False)
            self.selector.register(read, selectors.EVENT_READ)

    def __enter__(self) -> RealWorld:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        """Whatever happened (an interrupt, say): no process, descriptor or file stays."""
        try:
            self.end()
        finally:
            self.selector.close()
            self.connection.close()
            for read in self.readers:
                os.close(read)
            for record in self.records:
                record.close()
            self.remove_folder()
        if isinstance(error, RankError):
            outcomes = [self.outcomes.get(rank) for rank in range(self.size)]
            error.results = [outcome[1] if isinstance(outcome, tuple) else None for outcome in outcomes]
            error.output = self.printed()
            error.events = [event for state in self.states for event in state.events]

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- while the ranks run

    def watch(self, timeout: float) -> None:
        """Print what the ranks print until all have ended, one has failed, none can move, or the time is up."""
        deadline = None  # the time of the first spawn may go into importing torch: it counts once all ranks are there
        give_up = None  # when to stop waiting for the others, once a rank has failed
        quiet_since, last_seen = time.monotonic(), None
        while not all(self.has_ended(rank) for rank in range(self.size)):
            self.listen(0.1 if give_up is None else 0.02)
            now = time.monotonic()
            seen = self.news()
            if seen != last_seen:
                quiet_since, last_seen = now, seen
            if give_up is None and self.somebody_failed():
                give_up = now + GRACE
            if give_up is not None:
                if now >= give_up or (now - quiet_since > GRACE / 10 and not self.anybody_running()):
                    break
            elif deadline is None:
                deadline = now + timeout if self.started else None
                if now - self.zero > MAX_START:
                    raise self.not_started()
            elif now >= deadline:
                raise self.timed_out(timeout)
            elif max(self.printed_bytes) > MOST_PRINTED:
                raise self.flooded()
            elif now - quiet_since >= QUIET:
                self.raise_if_stuck()
                quiet_since = now

    def flooded(self) -> RankFailed:
        """End all ranks: what one of them prints would fill this process's memory, and nobody could read it."""
        rank = self.printed_bytes.index(max(self.printed_bytes))
        line = source_lines.place(self.ask_for_lines(seconds=0.1).get(rank, ""))
        self.end()
        return RankFailed(
            f"rank {rank} has printed more than {MOST_PRINTED >> 20} MB. Is there a print in an endless loop?"
            + (f"\n  it was at {line}" if line else ""),
            rank=rank,
        )

    def not_started(self) -> RankCrashed:
        words = zygote.last_words()
        zygote.stop()
        return RankCrashed(
            f"the process that starts the ranks is not ready after {MAX_START} s: does `import torch` take that long? "
            + (f"Its last words: {words}" if words else "Run the cell again: it is started anew.")
        )

    def has_ended(self, rank: int) -> bool:
        return rank in self.outcomes or rank in self.exit_codes

    def somebody_failed(self) -> bool:
        return bool(self.exit_codes) or any(isinstance(outcome, Failure) for outcome in self.outcomes.values())

    def anybody_running(self) -> bool:
        """Whether a rank is at work: neither ended nor waiting for the others."""
        self.update_states()
        return any(not self.has_ended(s.rank) and s.blocked_in() is None for s in self.states)

    def listen(self, seconds: float) -> None:
        """Take in prints and exits, waiting up to `seconds` for the first."""
        heard = self.selector.select(seconds)
        news = False
        for key, _ in heard:
            if key.fileobj is self.connection:
                self.take_message()
                news = True
            else:
                news |= self.take_output(key.fd).replace(SYNCHRONISED, b"") != b""
        self.show()
        now = time.monotonic()
        if news:
            self.last_news = now
        elif heard:  # ranks that talk much and say nothing: don't take a core from them at each call
            time.sleep(min(max((now - self.last_news) / 20, 0.002), 0.02))

    def take_message(self) -> None:
        try:
            kind, *what = self.connection.recv()
        except (EOFError, OSError):
            words = zygote.last_words()
            raise (RankCrashed if self.started else NoZygote)(
                "the process that starts the ranks was killed or could not start"
                + (f": {words}" if words else ". Run the cell again: it is started anew.")
            ) from None
        if kind == "exit":
            rank, code = what
            self.exit_codes[rank] = code
        elif kind == "started":
            self.started = True
        elif kind == "note":
            print(*what)
        elif kind == "refused":
            raise RuntimeError(f"This machine does not allow {self.size} ranks: {what[0]}. Use fewer.")

    def take_output(self, descriptor: int) -> bytes:
        """Read what has come from one rank; b"" if there is no more now."""
        rank = self.readers[descriptor]
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return b""
        if data:
            self.printed_bytes[rank] += len(data)
            self.feed(rank, data)
        else:
            self.selector.unregister(descriptor)
            self.close(rank)
        return data

    def feed(self, rank: int, data: bytes) -> None:
        """Take in what the process of `rank` has written."""
        self.output.feed(rank, data)
        if self.output.is_closed(rank):
            self.take_outcome(rank)

    def close(self, rank: int) -> None:
        """No more will come from the process of `rank`."""
        self.output.close(rank)
        self.take_outcome(rank)

    def take_outcome(self, rank: int) -> None:
        """Read what the rank left when its function was over; a rank that crashed left nothing."""
        path = path_in(self.folder, "outcome", rank)
        if rank not in self.outcomes and os.path.exists(path):
            with open(path, "rb") as file:
                try:
                    self.outcomes[rank] = pickle.load(file)
                except (Exception, SystemExit) as error:
                    said = f"what it returned can't be read here: {type(error).__name__}: {error}"
                    self.outcomes[rank] = Failure("CannotReturn", said, (), time.monotonic() - self.zero)
            self.states[rank].finished = True

    def show(self) -> None:
        lines = [(rank, self.without_last_words(rank, text)) for rank, text in self.output.ready()]
        self.screen.show(lines, self.output.bar())

    def without_last_words(self, rank: int, text: str) -> str:
        """`text` without what a library says when it gives up: that is kept for the report."""
        if rank not in self.last_words and "terminate called" not in text:
            return text
        kept = []
        for line in text.split("\n"):
            if GIVES_UP.match(line):
                self.last_words[rank] = []
            elif rank in self.last_words and (farewell := LAST_WORDS.match(line)):
                self.last_words[rank].append(farewell["said"])
            else:
                kept.append(line)
        return "\n".join(kept)

    def paths(self, name: str) -> list[str]:
        """Where each rank writes its file of this name."""
        return [path_in(self.folder, name, rank) for rank in range(self.size)]

    def news(self) -> list:
        """Something that is never the same again once a rank has called the network, or ended."""
        if not self.records and all(map(os.path.exists, self.paths("notes"))):  # made last
            files = zip(self.paths("calls"), self.paths("notes"), strict=True)
            self.records = [RecordReader(rank, *both) for rank, both in enumerate(files)]
        return [*(record.news() for record in self.records), len(self.outcomes), len(self.exit_codes)]

    def update_states(self) -> None:
        self.news()
        for record in self.records:
            self.states[record.rank] = record.state(self.states[record.rank].finished)

    def raise_if_stuck(self) -> None:
        self.update_states()
        report = deadlock.deadlock_report(self.states, now=time.monotonic() - self.zero)
        if report is not None:
            self.end()
            raise WorldStuck(f"no rank can move any more: each waits for another.\n{report}")

    def timed_out(self, timeout: float) -> RankTimeout:
        """Ask each rank for its line, end them, and say where each was."""
        self.update_states()
        running = self.ask_for_lines(seconds=1)
        unfinished = [state.rank for state in self.states if not state.finished]
        at_work = [rank for rank in unfinished if self.states[rank].blocked_in() is None]
        lines = deadlock.describe_ranks(self.states, running, now=time.monotonic() - self.zero)
        self.end()
        verb = "has" if len(unfinished) == 1 else "have"
        return RankTimeout(
            f"{ranks_text(unfinished).lower()} {verb} not finished after {timeout:g} s.\n"
            + "\n".join("  " + line for line in lines)
            + f"\n\nIf the work needs longer, say how long: spawn(..., timeout={max(300, round(5 * timeout))}).",
            rank=next(iter(at_work or unfinished), None),
        )

    def interrupted(self) -> Interrupted:
        """End all ranks, and say where each was when the student had enough."""
        self.update_states()
        lines = deadlock.describe_ranks(self.states, self.ask_for_lines(seconds=0.1)) if self.started else []
        self.end()
        return Interrupted("\n".join(["the ranks were ended.", *("  " + line for line in lines)]))

    def ask_for_lines(self, seconds: float) -> dict[int, str]:
        """{rank: "file:line"} of the ranks that run. faulthandler answers even from a loop that holds the GIL."""
        self.connection.send(("signal", signal.SIGUSR1))
        answered_by = time.monotonic() + seconds
        waiting = [state.rank for state in self.states if not state.finished]
        whole = re.compile(r" in <module>$|^  \.\.\.$", re.MULTILINE)  # how a stack ends: at its root, or cut off
        while time.monotonic() < answered_by and not all(whole.search(self.stack(rank)) for rank in waiting):
            self.listen(0.02)
        return {rank: self.students_line(rank) for rank in waiting}

    def stack(self, rank: int) -> str:
        try:
            with open(path_in(self.folder, "stack", rank), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def students_line(self, rank: int) -> str:
        """The innermost line of the student's in the stack that the rank left, "file:line", or "" if there is none."""
        frames = re.findall(r'^  File "(.*)", line (\d+)', self.stack(rank), re.MULTILINE)  # innermost first
        own = [(file, line) for file, line in frames[:-1] if source_lines.is_students(file)]  # the last is the zygote's
        return ":".join(own[0]) if own else ""

    def end(self) -> None:
        """End all processes, and take in what they have left."""
        try:
            if len(self.exit_codes) < self.size:
                self.connection.send(("signal", signal.SIGKILL))
            patience = time.monotonic() + 5
            while len(self.exit_codes) < self.size and time.monotonic() < patience:
                self.listen(0.1)
        except (OSError, RankError):  # the zygote is gone, and its ranks with it
            pass
        for descriptor, rank in self.readers.items():
            if descriptor in self.selector.get_map():
                while self.take_output(descriptor):
                    pass
            self.close(rank)
        self.show()
        self.screen.flush()

    # --- when they have ended

    def collect(self) -> Run:
        """The Run of a world that went well; raises the report of one that did not."""
        self.update_states()
        crashes = dict(self.exit_codes)  # nobody was ended by us yet: a process that is gone, is gone by itself
        self.end()
        failures = {rank: outcome for rank, outcome in self.outcomes.items() if isinstance(outcome, Failure)}
        waiting = {
            s.rank: event for s in self.states if s.rank not in crashes and (event := s.blocked_in()) is not None
        }
        crashes = {rank: code for rank, code in crashes.items() if rank not in self.outcomes}
        if crashes and all(map(is_innocent, failures.values())):
            rank, code = next(iter(crashes.items()))  # the first that was seen
            hint = deadlock.difference_at_the_end(self.states)
            place = source_lines.place(self.students_line(rank))
            raise report_crash(rank, code, place, self.states[rank].events, self.last_words.get(rank, []), hint)
        if failures:
            raise report_failures(failures, waiting, crashes)
        bound_by_receives(self.states)
        if error := silent_mistake(self.states):
            raise error
        return Run(
            world_size=self.size,
            world="spawn",
            backend=self.backend,
            results=[self.outcomes[rank][1] for rank in range(self.size)],
            output=self.printed(),
            events=[event for state in self.states for event in state.events],
            elapsed=time.monotonic() - self.zero,
            regions=[region for state in self.states for region in state.regions],
            memory_notes=[read_memory(record.notes) for record in self.records],
        )

    def printed(self) -> list[str]:
        return ["".join(texts) for texts in self.output.text]
