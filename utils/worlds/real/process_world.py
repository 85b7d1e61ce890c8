"""The processes of one world, seen from the kernel: started, listened to, ended, and cleaned up after.

A RealWorld has one process per rank. A VirtualWorld has a single process, in which all ranks are threads. This is what
the two have in common; while the processes run, watchdog.py decides when it has gone on for long enough.
"""

from __future__ import annotations

import errno
import linecache
import os
import pickle
import selectors
import shutil
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from ...diagnosis.errors import Interrupted, RankCrashed, RankError, RankFailed, RankTimeout
from ...events.failure import Failure
from ...events.rank_state import RankState
from ...report.run import Run
from ..common.framing import is_only
from ..common.outcome import Outcome, Refused, read_outcome
from ..common.protocol import SYNCHRONISED, Request, path_in
from .ordered_output import OrderedOutput
from .placement import Placement
from .screen import Screen
from .world_folder import make_folder, working_directory
from .zygote.client import zygote
from .zygote.messages import Exited, FromZygote, Note, Signal, Started


def free_port() -> int:
    """A port that is free now, for a program whose ranks meet at MASTER_PORT by themselves."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class NoZygote(RankCrashed):
    """There was no zygote to start the ranks."""


class ProcessWorld(ABC):
    """The processes of one call, from their start to the last byte they leave behind."""

    entry: str  # "module:function": what each process runs
    check_replicas = 0  # see Request

    def __init__(self, world_size: int, processes: int, placement: Placement, program: bytes):
        self.world_size, self.processes, self.placement = world_size, processes, placement
        self.zero = self.last_news = time.monotonic()
        self.output, self.screen = OrderedOutput(world_size), Screen()
        self.states = [RankState(rank) for rank in range(world_size)]
        self.started = False  # whether the zygote has made the processes
        self.pids: tuple[int, ...] = ()
        self.outcomes: dict[int, Outcome] = {}  # {rank: outcome} of finished processes
        self.exit_codes: dict[int, int] = {}  # {rank: exit code} of ended processes
        self.printed_bytes = [0] * processes
        self.folder = make_folder(len(program))
        try:
            for name, content in (("program", program), ("request", pickle.dumps(self.request()))):
                with open(os.path.join(self.folder, name), "wb") as file:
                    file.write(content)
            self._start(program)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def request(self) -> Request:
        return Request(
            world_size=self.world_size,
            backend=self.placement.backend,
            folder=self.folder,
            zero=self.zero,
            environment={"MASTER_PORT": str(free_port()), **os.environ, **self.placement.environment},
            working_directory=working_directory(),
            sys_path=list(sys.path),
            # The entry of a cell has no time of change. That of a file has one, and the rank can read the file.
            sources={file: entry for file, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None},
            entry=self.entry,
            check_replicas=self.check_replicas,
        )

    def _start(self, program: bytes) -> None:
        pipes: list[tuple[int, int]] = []
        try:
            pipes += (os.pipe() for _ in range(self.processes))
            self.connection = zygote.make_world(self.processes, self.folder, [write for _, write in pipes], program)
        except BaseException as error:
            for read, _ in pipes:
                os.close(read)
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise RuntimeError(
                    f"{self.processes} ranks need more open files than this process may have. Use fewer ranks."
                ) from None
            raise
        finally:
            for _, write in pipes:
                os.close(write)
        self.readers = {read: process for process, (read, _) in enumerate(pipes)}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.connection, selectors.EVENT_READ)
        for read in self.readers:
            os.set_blocking(read, False)
            self.selector.register(read, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Whatever happened (an interrupt, say), leave no process, descriptor or file behind."""
        try:
            self.end()
        finally:
            self.close()
        if isinstance(error, RankError):
            error.results = self.results()
            error.output = self.printed()
            error.events = [event for state in self.states for event in state.events]
            error.regions = [region for state in self.states for region in state.regions]

    def close(self) -> None:
        self.selector.close()
        self.connection.close()
        for read in self.readers:
            os.close(read)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- while the processes run

    def listen(self, seconds: float) -> None:
        """Take in what the processes print and how they end, waiting up to `seconds` for the first news."""
        heard = self.selector.select(seconds)
        news = False
        for key, _ in heard:
            if key.fileobj is self.connection:
                self._take_message()
                news = True
            else:
                news |= not is_only(SYNCHRONISED, self._take_output(key.fd))
        self.show()
        now = time.monotonic()
        if news:
            self.last_news = now
        elif heard:  # ranks that communicate much and print nothing: don't take a core from them at each call
            time.sleep(min(max((now - self.last_news) / 20, 0.002), 0.02))

    def _take_message(self) -> None:
        try:
            message: FromZygote = self.connection.recv()
        except (EOFError, OSError):
            words = zygote.last_words()
            raise (RankCrashed if self.started else NoZygote)(
                "the process that starts the ranks was killed or could not start"
                + (f": {words}" if words else ". Run the cell again, which starts a new one.")
            ) from None
        match message:
            case Exited(rank, code):
                self.exit_codes[rank] = code
            case Started(pids):
                self.started, self.pids = True, pids
            case Note(text):
                print(text)
            case Refused(reason):
                raise RuntimeError(f"This machine does not allow {self.processes} ranks: {reason}. Use fewer.")

    def _take_output(self, descriptor: int) -> bytes:
        """Read what has come from one process; b"" if there is nothing more at the moment."""
        process = self.readers[descriptor]
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return b""
        if data:
            self.printed_bytes[process] += len(data)
            self.feed(process, data)
        else:
            self.selector.unregister(descriptor)
            self.close_output(process)
        return data

    def take_outcome(self, process: int) -> None:
        """Read the outcome that a process left when it was done; one that crashed left none."""
        path = path_in(self.folder, "outcome", process)
        if process not in self.outcomes and os.path.exists(path):
            self.outcomes[process] = read_outcome(path, self.seconds())

    def seconds(self) -> float:
        """Since the world began."""
        return time.monotonic() - self.zero

    def has_ended(self, process: int) -> bool:
        return process in self.outcomes or process in self.exit_codes

    def is_over(self) -> bool:
        return all(self.has_ended(process) for process in range(self.processes))

    def any_failed(self) -> bool:
        return bool(self.exit_codes) or any(isinstance(outcome, Failure) for outcome in self.outcomes.values())

    def progress(self) -> list[Any]:
        """Something that never has the same value again once anything has happened."""
        return [len(self.outcomes), len(self.exit_codes)]

    def signal(self, number: int) -> None:
        self.connection.send(Signal(number))

    def end(self) -> None:
        """End all processes, and take in what they have left."""
        try:
            if len(self.exit_codes) < self.processes:
                self.signal(signal.SIGKILL)
            patience = time.monotonic() + 5
            while len(self.exit_codes) < self.processes and time.monotonic() < patience:
                self.listen(0.1)
        except (OSError, RankError):  # the zygote is gone, and its processes with it
            pass
        for descriptor, process in self.readers.items():
            if descriptor in self.selector.get_map():
                while self._take_output(descriptor):
                    pass
            self.close_output(process)
        self.show()
        self.screen.flush()

    def printed(self) -> list[str]:
        return ["".join(texts) for texts in self.output.text]

    # --- what the two kinds of world do differently

    @abstractmethod
    def feed(self, process: int, data: bytes) -> None:
        """Take in what a process has written."""

    @abstractmethod
    def close_output(self, process: int) -> None:
        """Nothing more will come from this process."""

    @abstractmethod
    def show(self) -> None:
        """Put on the screen what may be shown now."""

    @abstractmethod
    def results(self) -> list[Any]:
        """What each rank returned, None for those that returned nothing."""

    @abstractmethod
    def any_running(self) -> bool:
        """Whether a rank is at work: it has not ended, and is not waiting for the others."""

    @abstractmethod
    def raise_if_stuck(self) -> None:
        """Raises WorldStuck if no rank can move any more."""

    @abstractmethod
    def timed_out(self, timeout: float) -> RankTimeout:
        """End everything, and report where each rank was."""

    @abstractmethod
    def flooded(self, limit: int) -> RankFailed:
        """End everything: more than `limit` bytes would fill this process's memory, and nobody could read them."""

    @abstractmethod
    def interrupted(self) -> Interrupted:
        """End everything, and report where each rank was when the student interrupted the kernel."""

    @abstractmethod
    def collect(self) -> Run:
        """The Run of a world that went well; raises the report of one that did not."""
