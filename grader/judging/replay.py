"""Confirming results before they earn points: each rank is replayed in a process that runs alone.

Ranks of one world run at the same time on one machine, so they might exchange values behind the hub's back: through how
long one of them sleeps, say. In a replay a rank has only its inputs and the hub's recorded answers. If it gets to the
same result, that result is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grader.inside import codec
from grader.inside.codec import Breach
from grader.judging.hub_rank import RankResult
from grader.judging.rank_connection import Diverged
from grader.judging.remote_runner import Recording, RemoteRunner, TooLong
from utils.checks.answer import Answer, CheckFailed
from utils.checks.registry import Checks

if TYPE_CHECKING:
    from grader.inside.slices import Slice
    from grader.judging.judge import Judging

MAX_RECORDED = 64 << 20  # bytes of recordings that wait for their replay


class ReplayDiffers(Exception):
    """A replayed rank came to another result, or to none. That need not be the rank's fault: ReplayAlone decides."""


class ReplayCheck(RemoteRunner):
    """Judges the results of the run itself, then replays each rank and compares. Raises ReplayDiffers.

    One process per rank replays that rank in all runs of the check, one after the other. What it may remember of a run
    does not help it in the next, whose inputs are drawn anew. A run is not replayed if the check has read no value of
    it: traffic is the hub's own record. Nor is one that is judged by the memory that ranks say they held: there they
    may tell each other through the hub whatever they like, so other ways gain them nothing.
    """

    def __init__(self, judging: Judging, code: Slice, function: Callable[..., Any], may_use_a_crew: bool = True):
        super().__init__(judging, code, function, may_use_a_crew)
        self.recordings: list[Recording] = []

    def judge(self, part: Checks, judges: str) -> str:
        remark = super().judge(part, judges)
        self.replay_all([one for one in self.recordings if one.values_were_read])
        return remark

    def answer(self, *run: Any) -> Answer:
        before = len(self.recordings)
        answer = super().answer(*run)
        return WatchedAnswer(answer, self.recordings[-1]) if len(self.recordings) > before else answer

    def confirmed(self, recording: Recording) -> list[RankResult]:
        if self.judges == "memory" and not recording.memories:
            return recording.results
        recording.packed = list(map(packed, recording.results))
        self.recordings.append(recording)
        if sum(one.nbytes for one in self.recordings) > MAX_RECORDED:
            self.replay_all(self.recordings)
        return recording.results

    def replay_all(self, recordings: list[Recording]) -> None:
        """The last rank goes first, so that no rank can learn anything from when the one before it ended.

        Once virtual time has replaced real time in a process, it stays, so a virtual run gets processes of its own.
        """
        self.recordings = []
        self.judging.dismiss_crew()  # nothing of a run may be left while its ranks are replayed
        real = [one for one in recordings if not one.orders[0].virtual]
        for runs in (real, *([one] for one in recordings if one.orders[0].virtual)):
            for rank in reversed(range(max((len(one.orders) for one in runs), default=0))):
                self.replay_rank(rank, [one for one in runs if rank < len(one.orders)])

    def replay_rank(self, rank: int, runs: list[Recording]) -> None:
        [process] = self.judging.start_ranks(1)
        try:
            for one in runs:
                last = self.replay(process, one, rank, more_runs=one is not runs[-1])
                if last["do"] != "done" or packed(result_in(last)) != one.packed[rank]:
                    raise ReplayDiffers
        except (Diverged, Breach, OSError, KeyError):
            raise ReplayDiffers from None
        finally:
            self.judging.end_ranks([process])


class WatchedAnswer(Answer):
    """An Answer that notes in its recording when a check reads a value that came from a rank."""

    def __init__(self, answer: Answer, recording: Recording):
        self.recording = recording
        super().__init__(
            answer.results, answer.inputs_after, replace(answer.run, results=[]), answer.shared, answer.names
        )

    def __getattribute__(self, name: str) -> Any:
        if name in ("results", "inputs_after", "shared"):
            self.recording.values_were_read = True
        return super().__getattribute__(name)


class ReplayAlone(RemoteRunner):
    """Judges the results of the replays: the last word, when they differ from those of the run itself."""

    def __init__(self, judging: Judging, code: Slice, function: Callable[..., Any]):
        super().__init__(judging, code, function, may_use_a_crew=False)

    def confirmed(self, recording: Recording) -> list[RankResult]:
        """The last rank first, as above."""
        results = []
        for rank in reversed(range(len(recording.orders))):
            [process] = self.judging.start_ranks(1)
            try:
                last = self.replay(process, recording, rank)
            except TimeoutError:
                raise TooLong(f"rank {rank} took too long when it was run again.") from None
            except Diverged:
                last = {"do": "failed"}
            finally:
                self.judging.end_ranks([process])
            if last["do"] != "done":
                evidence = f"{self.function.__name__}, rank {rank}"
                self.judging.flag("did something else when it was run again, alone", evidence)
                raise CheckFailed(
                    f"rank {rank} did something else when it was run again, with the same inputs and the same messages",
                    mistake="What a rank does may depend only on its inputs and on what it receives: not on time, "
                    "chance, files, or anything that another rank leaves behind.",
                )
            results.append(result_in(last))
        return results[::-1]


def result_in(message: dict[str, Any]) -> RankResult:
    """The result in a rank's last message."""
    return RankResult(message["result"], message["after"], message["shared"])


def packed(result: RankResult) -> bytes:
    """A result as bytes that can be compared."""
    return codec.pack({"result": result.result, "after": result.inputs_after, "shared": result.shared})
