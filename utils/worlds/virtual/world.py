"""The process of a virtual cluster, seen from the kernel: it runs all ranks (simulated_world.py)."""

from __future__ import annotations

import marshal
import os
import pickle
import signal
import time
from dataclasses import replace
from typing import Any

from ...cluster.hardware import Cluster
from ...diagnosis import deadlock
from ...diagnosis.data_remark import data_remark
from ...diagnosis.errors import Interrupted, RankCrashed, RankError, RankFailed, RankTimeout, WorldStuck
from ...diagnosis.failure_report import how_it_died, report_failures, students_frames
from ...diagnosis.nccl_order import nccl_remark
from ...diagnosis.replicas import frozen_remark
from ...diagnosis.silent_mistakes import silent_mistake
from ...events.computed import Computed
from ...events.event import Event, Region
from ...events.failure import NEVER_SET, Failure
from ...events.memory_samples import MemoryNote, peak_of
from ...events.rank_state import Gradient, RankState, SamplerUse, StackFrame, TensorLayout
from ...report.collective_charges import Charge
from ...report.run import Run
from ..common.framing import Framing
from ..common.outcome import RankRecord, Refused, VirtualOutcome
from ..common.protocol import FINISHED, NEWS_IS, SPEAKS, Request, path_in
from ..real.placement import Placement
from ..real.process_world import ProcessWorld
from ..real.watchdog import run_world
from .alike import Representatives, RunsAs

PATIENCE = 5  # seconds for the process to begin saying where its ranks are; how long it takes grows with their calls


def run_virtually(
    world_size: int,
    cluster: Cluster,
    device: str,
    item_as_nan: bool,
    alike: RunsAs | None,
    program: bytes,
    timeout: float,
) -> Run:
    """Run `program` on virtual ranks, from their start to their end, at most for `timeout` seconds of real time.

    Raises the report of what went wrong.
    """
    return run_world(lambda: VirtualWorld(world_size, cluster, device, item_as_nan, alike, program), timeout)


class VirtualWorld(ProcessWorld):
    """The ranks of one call of `simulate`: threads of a single process, which is number 0 of this world."""

    entry = f"{__package__}.simulated_world:run_virtual_world"

    def __init__(
        self,
        world_size: int,
        cluster: Cluster,
        device: str,
        item_as_nan: bool,
        alike: RunsAs | None,
        program: bytes,
    ):
        self.cluster, self.device, self.item_as_nan = cluster, device, item_as_nan  # first: the request has them
        self.representatives = Representatives(cluster, world_size, alike)
        super().__init__(world_size, 1, Placement("gloo"), program)
        self.states = [RankState(rank) for rank in self.representatives.running]
        self.framing = Framing(SPEAKS, NEWS_IS, FINISHED)
        self.speaker = 0  # the rank whose text comes now
        self.news = ""  # how far the ranks have come, for the live line

    def request(self) -> Request:
        return replace(
            super().request(),
            cluster=self.cluster,
            device=self.device,
            alike=self.representatives.runs_as,
            item_as_nan=self.item_as_nan,
        )

    # --- while it runs

    def feed(self, _: int, data: bytes) -> None:
        """Hand on what each rank has printed: marks tell whose text follows."""
        for mark, content in self.framing.split(data):
            if mark == SPEAKS:
                self.speaker = int(content)
            elif mark == NEWS_IS:
                self.take_news(*content.split())
            elif mark == FINISHED:
                self.close_output(0)
            else:
                self.output.feed(self.speaker, content)

    def take_news(self, seconds: bytes, calls: bytes, finished: bytes) -> None:
        done = f", {int(finished):,} finished" if int(finished) else ""
        self.news = f"{len(self.states):,} ranks at {float(seconds) * 1e3:,.3f} ms, {int(calls):,} calls{done}"

    def close_output(self, _: int) -> None:
        for rank in range(self.world_size):
            self.output.close(rank)
        self.news = ""
        self.take_outcome(0)

    def show(self) -> None:
        bar = self.output.bar() or (("virtual", self.news) if self.news else None)
        self.screen.show(list(self.output.ready()), bar)

    def raise_if_stuck(self) -> None:
        """Nothing to do: the process itself notices at once when its ranks are stuck, and ends."""

    def any_running(self) -> bool:
        return False  # asked only after a failure, and then the process has ended, with all its ranks

    def flooded(self, limit: int) -> RankFailed:
        self.end()
        return RankFailed(f"the ranks have printed more than {limit >> 20} MB. Is there a print in an endless loop?")

    def timed_out(self, timeout: float) -> RankTimeout:
        lines = self.where_they_are()
        self.end()
        return RankTimeout(
            f"the virtual cluster has not finished after {timeout:g} s of real time.\n"
            + "\n".join(lines)
            + "\n\nIs there an endless loop? If not, simulate fewer ranks, layers or steps, or allow it more time: "
            f"simulate(..., timeout={max(3600, round(5 * timeout))})."
        )

    def interrupted(self) -> Interrupted:
        lines = self.where_they_are() if self.started else []
        self.end()
        return Interrupted("\n".join(["the simulation was ended.", *lines]))

    def where_they_are(self) -> list[str]:
        """A line for each rank, from the process itself, if it can still answer."""
        self.signal(signal.SIGUSR1)
        path, give_up = path_in(self.folder, "where", 0), time.monotonic() + PATIENCE
        while not self.exit_codes and (time.monotonic() < give_up or os.path.exists(path + ".part")):
            self.listen(0.02)
            try:
                with open(path, "rb") as file:
                    running, records = pickle.load(file)
            except FileNotFoundError:
                continue
            self.take_records(records)
            return ["  " + line for line in deadlock.describe_ranks(self.states, running)]
        return []

    # --- when it has ended

    def take_records(self, records: list[RankRecord]) -> None:
        self.states = [
            RankState(
                rank,
                events=[Event(*fields) for fields in record["events"]],
                groups_made=[Event(*fields) for fields in record["groups_made"]],
                waits=record["waits"],
                strides={index: TensorLayout(*layout) for index, layout in record["strides"].items()},
                unused_handles=record["unused_handles"],
                skipped=record["skipped"],
                unreduced=record["unreduced"],
                frozen=record["frozen"],
                moved={index: Gradient(*parameter) for index, parameter in record["moved"].items()},
                left=record["left"],
                samplers=[SamplerUse(*fields) for fields in record["samplers"]],
                stack=[StackFrame(*fields) for fields in record["stack"]],
                regions=[Region(*fields) for fields in record["regions"]],
                finished=record["finished"],
            )
            for rank, record in zip(self.representatives.running, records, strict=True)
        ]

    def results(self) -> list[Any]:
        outcome = self.outcomes.get(0)
        if not isinstance(outcome, VirtualOutcome):
            return [None] * self.world_size
        results = self.representatives.spread(outcome.results)
        return [None if result is None else pickle.loads(result).value for result in results]

    def collect(self) -> Run:
        exit_code = self.exit_codes.get(0, 0)
        self.end()
        outcome = self.outcomes.get(0)
        if isinstance(outcome, Refused):
            raise RuntimeError(outcome.reason)
        if not isinstance(outcome, VirtualOutcome):
            raise RankCrashed(f"the process of the virtual cluster {how_it_died(exit_code)}.")
        records = marshal.loads(outcome.ranks)
        self.take_records(records)
        if outcome.held_up and not outcome.failures:
            error = WorldStuck(deadlock.report_of_a_lock(self.states, outcome.lines, outcome.held_up))
            idle = {rank: ("idle", outcome.lines.get(rank, "")) for rank in outcome.held_up}
            error.waiting = deadlock.waiting_in(self.states, idle)
            raise error
        raise_what_went_wrong(self.representatives.among_themselves(self.states), outcome.failures)
        return self.run_of(records, outcome)

    def run_of(self, records: list[RankRecord], outcome: VirtualOutcome) -> Run:
        events = [event for state in self.states for event in state.events]
        for remark in filter(None, (nccl_remark(events), data_remark(self.states) or frozen_remark(self.states))):
            print(remark)
        regions = [region for state in self.states for region in state.regions]
        if not regions:  # the program names none: then show when each GPU was busy
            running = zip(self.representatives.running, records, strict=True)
            regions = [Region(rank, "compute", *span) for rank, record in running for span in record["busy"]]
        last = max((event.end for event in events if event.end is not None), default=0.0)
        samples = [list(record["memory"]) for record in records]
        notes = [[MemoryNote("virtual", of_rank, peak_of(of_rank)[0])] for of_rank in samples]
        return Run(
            world_size=self.world_size,
            world="virtual",
            backend=self.cluster.name,
            results=self.results(),
            output=self.printed(),
            events=events,
            elapsed=max(last, *(record["clock"] for record in records)),
            regions=regions,
            memory_notes=self.representatives.spread(notes),
            algorithms=[Charge(*kind) for kind in outcome.algorithms],
            computed=self.representatives.spread([Computed(*record["computed"]) for record in records]),
            rates=self.cluster.rates or "datasheet",
            uncertainty=self.cluster.uncertainty,
            runs_as=self.representatives.runs_as,
        )


def raise_what_went_wrong(states: list[RankState], failures: dict[int, Failure]) -> None:
    """Raises the report of a world that has ended, unless it ended well."""
    if failures:
        waiting = {state.rank: event for state in states if (event := state.blocked_in()) is not None}
        error: RankError = report_failures(failures, waiting, {}, deadlock.mixed_up_before(states))
        frames = {r: students_frames(f.frames)[-1:] for r, f in failures.items() if f.message.endswith(NEVER_SET)}
        if frames:
            stores = {rank: ("store", f"{at.file}:{at.line}") for rank, frame in frames.items() for at in frame}
            error.waiting = deadlock.waiting_in(states, stores)
        raise error
    if not all(state.finished for state in states):
        report = deadlock.deadlock_report(states) or "\n".join(deadlock.describe_ranks(states))
        error = WorldStuck(f"{deadlock.who_is_stuck(states)}\n{report}")
        error.waiting = deadlock.waiting_in(states, {})
        raise error
    if mistake := silent_mistake(states):
        raise mistake
