"""Judge a submission: run every check of its notebook on the student's answers, and report what each has earned.

The checks, the hidden tests and everything they expect are in this process, which runs no student code. A check gets a
`run` (remote_runner.py) whose ranks are processes in a sandbox (rank_host.py). It returns values (inside/codec.py) and
the record of the hub that carried all messages (hub.py).

    judge(notebook) -> Judgement        notebook: sanitised, with the official check cells (classroom/submission.py)
"""

from __future__ import annotations

import atexit
import inspect
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from nbformat.notebooknode import NotebookNode

from grader.inside.codec import Breach, receive
from grader.inside.orders import ReadOrder
from grader.judging.check_cells import CheckCell, lesson_of, read_notebook
from grader.judging.hidden_words import Case, differences, veiled
from grader.judging.program_packing import NotForRanks, give_order
from grader.judging.rank_connection import RankConnection
from grader.judging.rank_host import HostGone, Rank, RankHost
from grader.judging.remote_runner import RemoteRunner, TooLong
from grader.judging.replay import ReplayAlone, ReplayCheck, ReplayDiffers
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Flag, Judgement, Score, Verdict
from grader.sandbox.bounded import memory_limited
from grader.sandbox.bubblewrap import ROOT, Limits
from grader.sandbox.load import patience
from utils.checks.answer import CheckFailed
from utils.checks.inputs import Draws
from utils.checks.registry import Checks
from utils.checks.rooms import room_of

if TYPE_CHECKING:
    from grader.inside.slices import Slice

MEMORY = 4 << 30  # bytes, for what a submission sends to this process: a rank is ended when it takes more
MAX_TEXT = 10_000  # characters of a verdict: some checks quote all that they were given
SALT_BITS = 256  # of what the inputs are drawn with: nobody can know it, or find it by trying
MAX_HOSTS = 4  # that one submission may use up
CPU_SECONDS = 5  # of computing for one rank in one run; a right answer takes a tenth of one
CPU_SECONDS_EACH = 1  # if all compute: a run gets CPU_SECONDS, and this for each of its ranks
RUN_SECONDS = 60  # for one run; more where the machine is busy
TOOK_TOO_LONG = "took too long or used too much"
FAILURES = (CheckFailed, TooLong, HostGone, Breach, OSError)  # how the judging of one check can end, but for passing it


@memory_limited(MEMORY)
def judge(
    nb: NotebookNode,
    lessons: str = "solutions",
    sandboxed: bool = True,
    seconds: float = 600,
    progress: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Judge a notebook. Nothing that a submission does makes it raise.

    lessons   the folder with the lessons' rooms, relative to the project's
    seconds   for the whole notebook; checks that have not started by then are not run
    progress  called with (checks judged so far, all checks)

    Raises NoSandbox if this machine can't make a sandbox, ValueError if the check cells are not checks of ours,
    NotForRanks if a check hands its ranks something that no rank may know.
    """
    began = monotonic()
    cells, official = read_notebook(nb)
    lesson = lesson_of(nb)
    judgement = Judgement(lesson)
    room = room_of(lesson, ROOT / lessons) if official else None
    parts = [Checks(room), Checks(room, hidden=True)] if room else []
    judging = Judging(cells, official, sandboxed, began + seconds, Draws(secrets.randbits(SALT_BITS)))
    try:
        for number, cell in enumerate(official):
            verdict = judging.verdict(cell, parts)
            verdict.said, verdict.mistake = verdict.said[:MAX_TEXT], verdict.mistake[:MAX_TEXT]
            judgement.verdicts.append(verdict)
            if progress:
                progress(number + 1, len(official))
    finally:
        judging.close()
    not_run = [verdict.check for verdict in judgement.verdicts if verdict.kind == NOT_RUN]
    if not_run:
        judgement.problems.append(f"took more than {seconds:g} s in all; not judged: {', '.join(not_run)}")
    judgement.flags, judgement.seconds = judging.flags, monotonic() - began
    return judgement


# ---- hosts -----------------------------------------------------------------------------------------------------------

HOST_LIMITS = Limits(wall=24 * 3600, cpu=24 * 3600)  # the hub limits the time of each run
spare: list[RankHost] = []  # to be used again: one takes seconds to start, and nothing of a rank outlives its run


def host_for(sandboxed: bool) -> RankHost:
    """The previous submission's host, or a new one."""
    while spare:
        host = spare.pop()
        if host.alive and host.sandboxed == sandboxed:
            return host
        host.close()
    return RankHost(HOST_LIMITS, sandboxed=sandboxed)


@atexit.register
def close_hosts() -> None:
    while spare:
        spare.pop().close()


# ---- one submission --------------------------------------------------------------------------------------------------


class Judging:
    """The judging of one submission: its cells, the host of its ranks, and the time that is left.

    draws  for the next run: no two runs of a submission get the same inputs
    """

    def __init__(self, cells: list[str], official: list[CheckCell], sandboxed: bool, until: float, draws: Draws):
        self.cells, self.official, self.sandboxed, self.until = cells, official, sandboxed, until
        self.draws = draws
        self.flags: list[Flag] = []
        self.host: RankHost | None = None
        self.hosts_started = 0
        self.crew: list[Rank] = []  # processes that have been ranks in a run of this check, and wait for the next run
        self.slices: dict[tuple[str, int], Slice] | None = None
        self.unreadable = ""  # why the cells can't be read, once that has been tried
        self.stuck: dict[str, str] = {}  # function -> how it was stopped

    def close(self) -> None:
        """Leave the host to the next submission, unless this one has done something suspicious in it."""
        with suppress(HostGone):
            self.dismiss_crew()
        if self.host is not None:
            if any(flag.what != TOOK_TOO_LONG for flag in self.flags):
                self.host.close()
            else:
                spare.append(self.host)
            self.host = None

    def flag(self, what: str, evidence: str) -> None:
        flag = Flag(what, evidence[:2000])
        if flag not in self.flags:  # a run that crashed is run a second time
            self.flags.append(flag)

    # ---- rank processes

    def start_ranks(self, count: int) -> list[Rank]:
        """Start fresh processes for the ranks of a world. Raises HostGone."""
        if self.host is None:
            self.hosts_started += 1
            if self.hosts_started > MAX_HOSTS:
                raise HostGone("the submission has crashed its sandbox too many times")
            self.host = host_for(self.sandboxed)
        return self.host.start(count)

    def crew_for(self, count: int) -> tuple[list[Rank], bool]:
        """Processes for the ranks of a run, those of the runs before it first, and whether there are such."""
        served = bool(self.crew)
        if len(self.crew) < count:
            self.crew += self.start_ranks(count - len(self.crew))
        return self.crew[:count], served

    def dismiss_crew(self) -> None:
        crew, self.crew = self.crew, []
        if crew:
            self.end_ranks(crew)

    def connect(self, ranks: list[Rank]) -> list[RankConnection]:
        """Connections to the ranks of one run, which share its time."""
        until, host = min(monotonic() + RUN_SECONDS * patience(), self.until), self.running_host()
        before = host.used(ranks) if ranks[0] in self.crew else [0.0] * len(ranks)

        def has_overspent(number: int) -> bool:
            used = [now - then for now, then in zip(host.used(ranks), before, strict=True)]
            too_much = sum(used) > CPU_SECONDS + CPU_SECONDS_EACH * len(ranks)
            return used[number] > (CPU_SECONDS_EACH if too_much else CPU_SECONDS)

        return [
            RankConnection(rank.socket, until, has_overspent=partial(has_overspent, number))
            for number, rank in enumerate(ranks)
        ]

    def end_ranks(self, ranks: list[Rank]) -> None:
        """End them and all that they have started."""
        try:
            self.running_host().end(ranks)
        finally:
            for rank in ranks:
                rank.socket.close()

    def why_host_stopped(self) -> str | None:
        return self.running_host().stopped

    def running_host(self) -> RankHost:
        if self.host is None:
            raise HostGone("there is no sandbox")
        return self.host

    # ---- the student's functions

    def slice_for(self, cell: CheckCell) -> Slice:
        """The statements that the function of a check needs (inside/slices.py). Raises HostGone, Breach."""
        if self.slices is None:
            wanted = [(one.function, one.before) for one in self.official]
            if self.unreadable:
                raise Breach(self.unreadable)
            self.unreadable = "the notebook's cells took too long to be read"
            [rank] = self.start_ranks(1)
            try:
                give_order(rank.socket, ReadOrder(self.cells, wanted))
                [connection] = self.connect([rank])
                message = receive(rank.socket, read=connection.read)
                if message is None or len(message["slices"]) != len(wanted):
                    raise Breach("the cells could not be read")
                self.slices = dict(zip(wanted, message["slices"], strict=True))
            except TimeoutError:
                raise Breach(self.unreadable) from None
            finally:
                self.end_ranks([rank])
        return self.slices[cell.function, cell.before]

    # ---- verdicts

    def verdict(self, cell: CheckCell, parts: list[Checks]) -> Verdict:
        """The verdict of one check."""
        verdict = Verdict(cell.name, 0.0, cell.points, NOT_RUN)
        if cell.function in self.stuck:
            verdict.kind, verdict.said = STUCK, f"Not run again: {self.stuck[cell.function]}"
            return verdict
        if monotonic() > self.until:
            verdict.said = "Not run: the time for this submission was over."
            return verdict
        try:
            code = self.slice_for(cell)
            if code["problem"] or code["parameters"] is None:
                verdict.kind, verdict.said = WRONG, code["problem"] or f"There is no function {cell.function}."
                return verdict
            registered = [part for part in parts if has_check(part, cell)]
            visible: list[Case] = []
            scores: list[Score] = []
            remarks = [
                self.judge_part(part, cell, code, part is registered[-1], visible, scores) for part in registered
            ]
        except CheckFailed as failed:
            verdict.said, verdict.mistake = str(failed), failed.mistake
            if failed.impossible:
                self.flag("claims what is impossible", f"{cell.name}: {failed.saw}, expected {failed.expected}")
            verdict.hidden = "hidden test" in failed.header
            verdict.points = cell.points * failed.share
            verdict.kind = PART if failed.share else BLANK if failed.saw == "Not written yet." else WRONG
        except TooLong as error:
            verdict.kind, verdict.said = STUCK, str(error)
            self.stuck[cell.function] = str(error)
            self.flag(TOOK_TOO_LONG, f"{cell.name}: {error}")
        except (HostGone, Breach, OSError) as error:
            verdict.kind, verdict.said = STUCK, f"It was stopped: {error}."
            self.stuck[cell.function] = verdict.said
            self.flag("ended its sandbox", f"{cell.name}: {error}")
            self.close()
        else:
            verdict.kind, verdict.points = PASSED, cell.points
            verdict.score = next(iter(scores), None)
            verdict.said = "\n".join(line for remark in remarks for line in remark.splitlines())
        finally:
            with suppress(HostGone):
                self.dismiss_crew()
        return verdict

    def judge_part(
        self, part: Checks, cell: CheckCell, code: Slice, decides: bool, visible: list[Case], scores: list[Score]
    ) -> str:
        """Let the visible or the hidden check judge. Returns its remark. Raises CheckFailed, TooLong, HostGone.

        decides   it is the last to judge this function, so results count only if a replay confirms them
        visible   the cases of the visible check, which are added here; what is said of a hidden one differs from them
        scores    of a challenge, in the order of the cases, which are added here
        """
        function = stand_in(cell.function, code["parameters"] or [])
        runs = [(ReplayCheck if decides else RemoteRunner)(self, code, function)]
        try:
            return self.judge_until_certain(runs, part, cell)
        except CheckFailed as failed:
            if not part.hidden:
                raise
            if failed.impossible:
                self.flag("claims what is impossible", f"{cell.name}: {failed.saw}, expected {failed.expected}")
            where = differences(runs[-1].cases[-1], visible) if runs[-1].cases else "in a different case"
            raise veiled(failed, cell.judges, runs[-1].ended, where) from None
        except TooLong as error:
            if not part.hidden:
                raise
            self.flag(TOOK_TOO_LONG, f"{cell.name}: {error}")
            raise TooLong("It took too long in a hidden test.\n\nIs there a loop that never ends?") from None
        except (HostGone, Breach, OSError) as error:
            if not part.hidden:
                raise
            self.flag("ended its sandbox", f"{cell.name}: {error}")
            raise HostGone("in a hidden test it used too much, or ended its sandbox") from None
        finally:
            scores += [Score(shown=one.shown, value=one.value, share=one.share) for one in runs[-1].scores]
            if not part.hidden:
                visible += runs[-1].cases

    def judge_until_certain(self, runs: list[RemoteRunner], part: Checks, cell: CheckCell) -> str:
        """Let a check judge with `runs[0]`, and again where that may not be the answer's doing; all are in `runs`."""
        draws, flags = self.draws, [*self.flags]
        while True:
            run = runs[-1]
            try:
                return self.judge_openly(run, part, cell)
            except ReplayDiffers:
                self.draws = draws  # the very same inputs again
                runs.append(ReplayAlone(self, run.code, run.function))
            except FAILURES as error:
                if not run.used_a_crew:
                    raise
                if isinstance(error, HostGone):
                    self.close()
                self.draws, self.flags = draws, [*flags]  # what an earlier run has left may be to blame for all of it
                runs.append(type(run)(self, run.code, run.function, may_use_a_crew=False))

    def judge_openly(self, run: RemoteRunner, part: Checks, cell: CheckCell) -> str:
        """Let a check judge, with all that it has to say."""
        try:
            return run.judge(part, cell.judges)
        except ReplayDiffers:
            raise
        except (*FAILURES, NotForRanks):
            raise
        except Exception as error:  # a check met a value that it did not expect, so the answer is not right
            where = f"{cell.name}: {type(error).__name__}: {error}"
            self.flag("a check could not judge what came back", where)
            raise CheckFailed(
                f"What came back can't be judged ({type(error).__name__}).",
                mistake="Does your function return what its description says, in that form?",
            ) from None


def has_check(part: Checks, cell: CheckCell) -> bool:
    """Whether it judges this cell; the visible part has to, a hidden one need not."""
    exercise = cell.function.replace("_", "-")
    return not part.hidden or (exercise, cell.judges) in part.registered


def stand_in(name: str, parameters: list[str]) -> Callable[..., Any]:
    """Takes the place of the student's function in this process: same name, same parameters, and it can't be run."""

    def answer(*args: Any, **kwargs: Any) -> None:
        raise TypeError("a check may call the student's function only through `run`")

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one for one in dict.fromkeys(parameters) if one.isidentifier()]
    answer.__name__ = answer.__qualname__ = name
    vars(answer)["__signature__"] = inspect.Signature([inspect.Parameter(one, kind) for one in names])
    return answer
