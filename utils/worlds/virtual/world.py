"""The process of a virtual cluster, seen from the kernel: it runs all ranks (world.py)."""

from __future__ import annotations

import marshal
import pickle
import re
import signal
import time
from dataclasses import replace

from ...cluster.hardware import Cluster
from ...diagnosis import deadlock
from ...diagnosis.errors import Interrupted, RankCrashed, RankFailed, RankTimeout, WorldStuck
from ...diagnosis.failure_report import how_it_died, report_failures
from ...diagnosis.silent_mistakes import silent_mistake
from ...events.event import Event, Region
from ...events.failure import Failure
from ...events.memory_samples import MemoryNote, peak_of
from ...events.rank_state import RankState
from ...report.collective_charges import Charge
from ...report.run import Run
from ..common.protocol import Request, path_in
from ..real.ordered_output import OrderedOutput
from ..real.placement import Placement
from ..real.world import MOST_PRINTED, RealWorld, run_world

MOST_SECONDS = 600  # of real time
SIGN = re.compile(rb"\xff\x00(rank|news|finished) ?([^\x00]*)\x00\xff")
BEGUN_SIGN = re.compile(rb"\xff(\x00[^\x00]*\x00?)?\Z")
LONGEST_SIGN = 200  # bytes


def run_virtually(world_size: int, cluster: Cluster, device: str, program: bytes) -> Run:
    """Run `program` on virtual ranks, from their start to their end; raises the report of what went wrong."""
    return run_world(lambda: VirtualWorld(world_size, cluster, device, program), MOST_SECONDS)


class VirtualWorld(RealWorld):
    """One process, seen from the kernel, that runs all ranks of a virtual cluster."""

    entry = f"{__package__}.engine:run_virtual_world"

    def __init__(self, world_size: int, cluster: Cluster, device: str, program: bytes):
        self.world_size, self.cluster, self.device = world_size, cluster, device
        self.speaker, self.begun = 0, b""
        self.progress = ""
        super().__init__(1, Placement("gloo"), program)
        self.output = OrderedOutput(world_size)
        self.states = [RankState(rank) for rank in range(world_size)]
        self.results = [None] * world_size

    def request(self) -> Request:
        request = super().request()
        return replace(request, world_size=self.world_size, cluster=self.cluster, device=self.device)

    # --- while it runs

    def feed(self, _: int, data: bytes) -> None:
        """Hand on what each rank has printed: signs say whose text follows."""
        *pieces, last = SIGN.split(self.begun + data)  # text, then a sign and what it says, then text ...
        begun = BEGUN_SIGN.search(last, max(0, len(last) - LONGEST_SIGN))
        whole = begun.start() if begun else len(last)
        self.begun = last[whole:]
        texts, signs, abouts = [*pieces[::3], last[:whole]], pieces[1::3], pieces[2::3]
        self.hear(texts[0])
        for sign, about, text in zip(signs, abouts, texts[1:], strict=True):
            if sign == b"rank":
                self.speaker = int(about)
            elif sign == b"news":
                self.take_news(*about.split())
            else:
                self.close(0)
            self.hear(text)

    def hear(self, text: bytes) -> None:
        if text:
            self.output.feed(self.speaker, text)

    def take_news(self, seconds: bytes, calls: bytes, finished: bytes) -> None:
        done = f", {int(finished):,} finished" if int(finished) else ""
        self.progress = f"{self.world_size:,} ranks at {float(seconds) * 1e3:,.3f} ms, {int(calls):,} calls{done}"

    def close(self, _: int) -> None:
        for rank in range(self.world_size):
            self.output.close(rank)
        self.progress = ""
        self.take_outcome(0)

    def show(self) -> None:
        bar = self.output.bar() or (("virtual", self.progress) if self.progress else None)
        self.screen.show(list(self.output.ready()), bar)

    def raise_if_stuck(self) -> None:
        """The world itself sees that, at once."""

    def anybody_running(self) -> bool:
        return False  # asked only when the process has ended

    def flooded(self) -> RankFailed:
        self.end()
        return RankFailed(
            f"the ranks have printed more than {MOST_PRINTED >> 20} MB. Is there a print in an endless loop?"
        )

    def timed_out(self, timeout: float) -> RankTimeout:
        lines = self.where_they_are()
        self.end()
        return RankTimeout(
            f"the virtual cluster has not come to an end after {timeout:g} s of real time.\n"
            + "\n".join(lines)
            + "\n\nIs there a loop without an end? Else simulate fewer ranks, layers or steps."
        )

    def interrupted(self) -> Interrupted:
        lines = self.where_they_are() if self.started else []
        self.end()
        return Interrupted("\n".join(["the simulation was ended.", *lines]))

    def where_they_are(self) -> list[str]:
        """A line for each rank, from the process itself, if it can still answer."""
        self.connection.send(("signal", signal.SIGUSR1))
        path, answered_by = path_in(self.folder, "where", 0), time.monotonic() + 1
        while time.monotonic() < answered_by:
            self.listen(0.02)
            try:
                with open(path, "rb") as file:
                    running, ranks = pickle.load(file)
            except FileNotFoundError:
                continue
            self.take_records(ranks)
            return ["  " + line for line in deadlock.describe_ranks(self.states, running)]
        return []

    # --- when it has ended

    def take_records(self, ranks: list[dict]) -> None:
        for rank, told in enumerate(ranks):
            self.states[rank] = RankState(
                rank,
                events=[Event(*fields) for fields in told["events"]],
                groups_made=[Event(*fields) for fields in told["groups_made"]],
                waits=told["waits"],
                strides=told["strides"],
                dropped=told["dropped"],
                regions=[Region(*fields) for fields in told["regions"]],
                finished=told["finished"],
            )

    def collect(self) -> Run:
        """The Run of a world that went well; raises the report of one that did not."""
        crash = self.exit_codes.get(0)
        self.end()
        outcome = self.outcomes.get(0)
        if not isinstance(outcome, dict):
            raise RankCrashed(f"the process of the virtual cluster {how_it_died(crash or 0)}.")
        if "refused" in outcome:
            raise RuntimeError(outcome["refused"])
        ranks = marshal.loads(outcome["ranks"])
        self.take_records(ranks)
        self.results = [None if result is None else pickle.loads(result)[1] for result in outcome["results"]]
        raise_what_went_wrong(self.states, outcome["failures"])
        return self.run_of(ranks, outcome["algorithms"])

    def run_of(self, ranks: list[dict], algorithms: list[tuple]) -> Run:
        events = [event for state in self.states for event in state.events]
        regions = [region for state in self.states for region in state.regions]
        if not regions:  # the program names none: then it is what each GPU was busy with
            regions = [Region(r, "compute", *span) for r, told in enumerate(ranks) for span in told["busy"]]
        last = max((event.end for event in events if event.end is not None), default=0.0)
        return Run(
            world_size=self.world_size,
            world="virtual",
            backend=self.cluster.name,
            results=self.results,
            output=self.printed(),
            events=events,
            elapsed=max(last, *(told["clock"] for told in ranks)),
            regions=regions,
            memory_notes=[[MemoryNote("virtual", list(t["memory"]), peak_of(t["memory"])[0])] for t in ranks],
            algorithms=[Charge(*kind) for kind in algorithms],
        )


def raise_what_went_wrong(states: list[RankState], failures: dict[int, Failure]) -> None:
    """Raises the report of a world that has come to its end, if that was not a good one."""
    if failures:
        waiting = {state.rank: event for state in states if (event := state.blocked_in()) is not None}
        raise report_failures(failures, waiting, {})
    if not all(state.finished for state in states):
        report = deadlock.deadlock_report(states) or "\n".join(deadlock.describe_ranks(states))
        raise WorldStuck(f"no rank can move any more: each waits for another.\n{report}")
    if error := silent_mistake(states):
        raise error
