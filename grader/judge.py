"""Judge a submission: run every check of its notebook on the student's answers, and say what each has earned.

The checks, the hidden tests and all that they expect are in this process, which runs no student code. A check gets a
`run` whose ranks are processes in a sandbox (ranks.py), and which brings back values (inside/codec.py) and the record
of the hub that has carried all messages (hub.py).

    judge(notebook) -> Judgement        notebook: sanitised, with the official check cells (submission.py)
"""

from __future__ import annotations

import atexit
import copy
import hashlib
import inspect
import io
import math
import pickle
import re
import socket
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import cloudpickle
import torch
from nbformat.notebooknode import NotebookNode
from nbgrader import utils as nbgrader_utils

from grader.hub import Hub, Known
from grader.inside import codec
from grader.inside.codec import Breach, Other, receive
from grader.inside.rank import LENGTH, strided
from grader.line import Diverged, Line, replay
from grader.ranks import HostGone, Rank, RankHost
from grader.sandbox import Limits
from grader.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Judgement, Look, Verdict
from utils import travel
from utils.checks import expect as expecting
from utils.checks.expect import Answer, CheckFailed
from utils.checks.judge import Checks, Runner, links
from utils.cluster import Cluster
from utils.errors import RankCrashed, RankTimeout
from utils.run import Run
from utils.slow_memory import SlowMemory

CPU_SECONDS = 5  # of computing for one rank in one run; a right answer takes a tenth of one
CPU_SECONDS_EACH = 1  # if all compute: a run gets CPU_SECONDS and this for each of its ranks
RUN_SECONDS = 60  # for one run, on a machine that has other things to do too
READ_SECONDS = 60  # for reading a notebook's cells
MOST_SAID = 10_000  # characters of a verdict: some checks quote what they were given whole
MOST_HELD = 64 << 20  # bytes of runs that are still to be confirmed
MESSAGE = 250  # bytes that a line of a log takes, without the words
SALT_OF_A_RUN = 1_000_000_007  # the next run's inputs have nothing to do with this one's
MOST_HOSTS = 4  # that one submission may break
TOOK_TOO_LONG = "took too long or too much"
CHECK = re.compile(r'^check\((\w+)(?:, judges="(\w+)")?\)$', re.MULTILINE)
LESSON = re.compile(r'^hidden_tests_for\("(\w+)"\)', re.MULTILINE)


@dataclass(frozen=True)
class CheckCell:
    """What an official check cell says: which function it judges, in what respect, for how many points.

    before  how many cells of code stand before it
    """

    name: str
    function: str
    judges: str
    points: float
    before: int


def judge(
    nb: NotebookNode,
    checks: str = "utils.checks",
    hidden: str = "grader.hidden",
    sandboxed: bool = True,
    seconds: float = 600,
    progress: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Judge a notebook. Never raises for what a submission does.

    checks, hidden  packages with a module for each lesson: the visible checks, and the hidden tests
    seconds         for all of it; checks whose turn has not come by then are not run
    progress        is told (checks judged, all checks)

    Raises NoSandbox when there can be no sandbox here, ValueError when the check cells are no checks of ours.
    """
    began = monotonic()
    cells, official = read_notebook(nb)
    lesson = lesson_of(nb)
    judging = Judging(cells, official, sandboxed, began + seconds)
    said = Judgement(lesson)
    parts = [Checks(checks, lesson), Checks(hidden, lesson, hidden=True)] if official else []
    for part in parts:
        by_value(part)
    expecting.salt = salt_of(cells, parts)
    try:
        for number, cell in enumerate(official):
            verdict = judging.verdict(cell, parts)
            verdict.said, verdict.mistake = verdict.said[:MOST_SAID], verdict.mistake[:MOST_SAID]
            said.verdicts.append(verdict)
            if progress:
                progress(number + 1, len(official))
    finally:
        expecting.salt = 0
        judging.close()
    not_run = [verdict.check for verdict in said.verdicts if verdict.kind == NOT_RUN]
    if not_run:
        said.troubles.append(f"took more than {seconds:g} s in all; not judged: {', '.join(not_run)}")
    said.looks, said.seconds = judging.looks, monotonic() - began
    return said


# ---- what the notebook says ------------------------------------------------------------------------------------------


def read_notebook(nb: NotebookNode) -> tuple[list[str], list[CheckCell]]:
    """(the text of all cells of code that are no checks, what the checks say). Raises ValueError for an odd check."""
    cells: list[str] = []
    official = []
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        if not is_check(cell):
            cells.append(cell.source)
            continue
        name = cell.metadata.nbgrader["grade_id"]
        calls = CHECK.findall(cell.source)
        if len(calls) != 1:
            raise ValueError(f'the check cell {name} is not one call of check(function, judges="values")')
        [(function, judges)] = calls
        points = float(cell.metadata.nbgrader["points"])
        official.append(CheckCell(name, function, judges or "values", points, len(cells)))
    return cells, official


def is_check(cell: NotebookNode) -> bool:
    """A code cell with points that a person does not grade."""
    return cell.cell_type == "code" and nbgrader_utils.is_grade(cell) and not nbgrader_utils.is_solution(cell)


def lesson_of(nb: NotebookNode) -> str:
    """The lesson whose hidden tests the check cells name. Raises ValueError if they name none, or several."""
    text = "\n".join(cell.source for cell in nb.cells if is_check(cell))
    lessons = sorted(set(LESSON.findall(text)))
    if len(lessons) == 1 or not text:
        return "".join(lessons)
    raise ValueError(f"the check cells name the hidden tests of {', '.join(lessons) or 'no lesson'}")


def salt_of(cells: list[str], parts: list[Checks]) -> int:
    """The same each time the submission is judged, and nothing that its code can know: that can read its own cells, but
    not the hidden tests.
    """
    files = {sys.modules[function.__module__].__file__ for part in parts for function in part.functions.values()}
    known = hashlib.sha256("\0".join(cells).encode("utf-8", "surrogatepass"))
    for file in sorted(files):
        known.update(Path(file).read_bytes())
    return int.from_bytes(known.digest()[:5], "big")


def by_value(part: Checks) -> None:
    """What a check hands to the ranks travels by value, unless the sandbox has it: no file of the tests is in there."""
    for function in part.functions.values():
        if not function.__module__.startswith("utils."):
            cloudpickle.register_pickle_by_value(sys.modules[function.__module__])


# ---- hosts -----------------------------------------------------------------------------------------------------------

HOST_LIMITS = Limits(wall=24 * 3600, cpu=24 * 3600)  # a run's own time is the hub's to bound
spare: list[RankHost] = []  # it takes seconds to start one, and nothing of a rank outlives its world


def host_for(sandboxed: bool) -> RankHost:
    """A host of ranks, from the submission before or a new one."""
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
    """The judging of one submission: its answers, the host of its ranks, and how much time is left."""

    def __init__(self, cells: list[str], official: list[CheckCell], sandboxed: bool, until: float):
        self.cells, self.official, self.sandboxed, self.until = cells, official, sandboxed, until
        self.looks: list[Look] = []
        self.host: RankHost | None = None
        self.hosts = 0
        self.answers: dict[tuple[str, int], dict] | None = None
        self.stuck: dict[str, str] = {}  # function -> how it was stopped

    def close(self) -> None:
        """Let the host serve the next submission, unless this one has given cause to want a new one."""
        if self.host is not None:
            if any(look.what != TOOK_TOO_LONG for look in self.looks):
                self.host.close()
            else:
                spare.append(self.host)
            self.host = None

    def ranks_of(self, count: int) -> list:
        """Fresh processes for the ranks of a world. Raises HostGone."""
        if self.host is None:
            self.hosts += 1
            if self.hosts > MOST_HOSTS:
                raise HostGone("the submission has ended its sandbox again and again")
            self.host = host_for(self.sandboxed)
        return self.host.start(count)

    def lines_to(self, ranks: list[Rank]) -> list[Line]:
        """Lines to the ranks of one run, with the end of its time."""
        until, host = min(monotonic() + RUN_SECONDS, self.until), self.host

        def spent(number: int) -> bool:
            used = host.used(ranks)
            too_much = sum(used) > CPU_SECONDS + CPU_SECONDS_EACH * len(ranks)
            return used[number] > (CPU_SECONDS_EACH if too_much else CPU_SECONDS)

        return [Line(rank.socket, until, spent=partial(spent, number)) for number, rank in enumerate(ranks)]

    def end(self, ranks: list) -> None:
        """Nothing is left of them afterwards."""
        try:
            self.host.end(ranks)
        finally:
            for rank in ranks:
                rank.socket.close()

    def look(self, what: str, evidence: str) -> None:
        look = Look(what, evidence[:2000])
        if look not in self.looks:  # a run that crashed is run a second time
            self.looks.append(look)

    # ---- the answers

    def answer(self, cell: CheckCell) -> dict:
        """The statements that a check's function needs (inside/slices.py). Raises HostGone, Breach."""
        if self.answers is None:
            wanted = [(one.function, one.before) for one in self.official]
            [rank] = self.ranks_of(1)
            try:
                order = {"read": {"cells": self.cells, "wanted": wanted}}
                give_order(rank.socket, order)
                rank.socket.settimeout(READ_SECONDS)
                message = receive(rank.socket)
                if message is None or len(message["answers"]) != len(wanted):
                    raise Breach("the cells could not be read")
                self.answers = dict(zip(wanted, message["answers"], strict=True))
            finally:
                self.end([rank])
        return self.answers[cell.function, cell.before]

    # ---- verdicts

    def verdict(self, cell: CheckCell, parts: list[Checks]) -> Verdict:
        """What one check says."""
        verdict = Verdict(cell.name, 0.0, cell.points, NOT_RUN)
        if cell.function in self.stuck:
            verdict.kind, verdict.said = STUCK, f"Not run again: {self.stuck[cell.function]}"
            return verdict
        if monotonic() > self.until:
            verdict.said = "Not run: the time for this submission was over."
            return verdict
        try:
            answer = self.answer(cell)
            if answer["problem"] or answer["parameters"] is None:
                verdict.kind, verdict.said = WRONG, answer["problem"] or f"There is no function {cell.function}."
                return verdict
            judging = [part for part in parts if registered(part, cell)]
            remarks = [self.judge_part(part, cell, answer, part is judging[-1]) for part in judging]
        except CheckFailed as failed:
            verdict.said, verdict.mistake = str(failed), failed.mistake
            verdict.hidden = "hidden test" in failed.header
            verdict.points = cell.points * failed.share
            verdict.kind = PART if failed.share else BLANK if failed.saw == "Not written yet." else WRONG
        except TooLong as error:
            verdict.kind, verdict.said = STUCK, str(error)
            self.stuck[cell.function] = str(error)
            self.look(TOOK_TOO_LONG, f"{cell.name}: {error}")
        except (HostGone, Breach, OSError) as error:
            verdict.kind, verdict.said = STUCK, f"It was stopped: {error}."
            self.stuck[cell.function] = verdict.said
            self.look("ended its sandbox", f"{cell.name}: {error}")
            self.close()
        else:
            verdict.kind, verdict.points = PASSED, cell.points
            verdict.said = "\n".join(line for remark in remarks for line in remark.splitlines())
        return verdict

    def judge_part(self, part: Checks, cell: CheckCell, answer: dict, decides: bool) -> str:
        """Let the visible or the hidden check judge; returns its remark. Raises CheckFailed, TooLong, HostGone.

        decides: it is the last to judge this, so what it judges are values of ranks that were alone.
        """
        function = stand_in(cell.function, answer["parameters"])
        salt = expecting.salt
        try:
            if decides:
                with suppress(NotTheSame):
                    return Confirmed(self, answer, function).judge(part, cell.judges)
                expecting.salt = salt
                return OnceMore(self, answer, function).judge(part, cell.judges)
            return RemoteRunner(self, answer, function).judge(part, cell.judges)
        except (CheckFailed, TooLong, HostGone, Breach, OSError):
            raise
        except Exception as error:  # a check met something that it did not expect: it is no right answer
            where = f"{cell.name}: {type(error).__name__}: {error}"
            self.look("a check could not judge what came back", where)
            raise CheckFailed(
                f"What came back can't be judged ({type(error).__name__}).",
                mistake="Does your function return what its description says, in that form?",
            ) from None


def registered(part: Checks, cell: CheckCell) -> bool:
    exercise = cell.function.replace("_", "-")
    return not part.hidden or (exercise, cell.judges) in part.registered


class TooLong(Exception):
    """The ranks were stopped; the text says why, for the student."""


def stand_in(name: str, parameters: list[str]) -> Callable:
    """Takes the place of the student's function in this process: it has the name and the parameters, and can't run."""

    def answer(*args: Any, **kwargs: Any) -> None:
        raise TypeError("a check calls the student's function by `run` alone")

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one for one in dict.fromkeys(parameters) if one.isidentifier()]
    answer.__name__ = answer.__qualname__ = name
    answer.__signature__ = inspect.Signature([inspect.Parameter(one, kind) for one in names])
    return answer


# ---- running an answer on ranks --------------------------------------------------------------------------------------


class RemoteRunner(Runner):
    """`run` of a graded check: the ranks are sandboxed processes, the network is the hub."""

    def __init__(self, judging: Judging, answer: dict, function: Callable):
        super().__init__(function)
        self.judging, self.code = judging, answer

    def judge(self, part: Checks, judges: str) -> str:
        """What `part` says of the function; see Checks.judge."""

        def runner(_, if_stuck: str, quiet: bool) -> RemoteRunner:
            self.if_stuck, self.quiet = if_stuck, quiet
            return self

        return part.judge(self.function, judges, runner)

    def world(
        self, cluster: Cluster | None, device: str, world_size: int, function, inputs: tuple, same: dict, catch
    ) -> Run:
        virtual = cluster is not None
        cluster = cluster or links(world_size, alpha=0.0, bandwidth=math.inf)
        memories: list[SlowMemory] = []
        orders = []
        for number in range(world_size):
            mine = [column[number] for column in inputs]
            program = pack_program((function, mine, same, catch), self.function, memories)
            order = {"rank": number, "world_size": world_size, "virtual": virtual, "cluster": cluster, "device": device}
            orders.append({**order, "answer": self.code, "program": program, "more": False})
        try:
            run, hub = self.run_ranks(orders, memories)
        except RankCrashed:
            if memories:
                raise
            run, hub = self.run_ranks(orders, memories)  # it may have been the machine's fault: short of memory, say
        expecting.salt += SALT_OF_A_RUN
        if world_size > 1 and device == "cpu":
            played = Played(orders, [rank.line.log for rank in hub.ranks], memories, run.results)
            run = replace(run, results=self.alone(played))
        results = []
        for rank, (result, after, shared) in enumerate(run.results):
            mine = [column[rank] for column in inputs]
            results.append((result, [restored(*pair) for pair in zip(mine, after, strict=True)], shared))
        return replace(run, results=results)

    def alone(self, played: Played) -> list[tuple]:
        """What ranks come to that were not together, where that is asked; the same as its results if all is well."""
        return played.results

    def run_ranks(self, orders: list[dict], memories: list[SlowMemory]) -> tuple[Run, Hub]:
        """One world, from its beginning to its end. Raises what `spawn` raises, TooLong, HostGone."""
        ranks = self.judging.ranks_of(len(orders))
        hub = Hub(self.judging.lines_to(ranks), orders[0]["cluster"], orders[0]["virtual"], memories)
        try:
            for rank, order in zip(ranks, orders, strict=True):
                give_order(rank.socket, order)
            return hub.run(), hub
        except RankTimeout as error:
            raise TooLong(str(error)) from None
        except RankCrashed as error:
            raise self.how_it_crashed(error, hub) from None
        finally:
            self.judging.end(ranks)

    def play_alone(self, process: Rank, played: Played, rank: int, more: bool = False) -> dict[str, Any]:
        """What a process says in the end that is told what the hub told this rank. Raises Diverged, TimeoutError.

        It may receive as many bytes as all ranks together. more: it will play another run.
        """
        [line] = self.judging.lines_to([process])
        give_order(process.socket, {**played.orders[rank], "more": more})
        return replay(played.logs[rank], line, Known(played.memories))

    def how_it_crashed(self, error: RankCrashed, hub: Hub) -> Exception:
        """The ranks have ended without a word, or with a wrong one."""
        breaches = [f"rank {rank.number} sent {rank.breach}" for rank in hub.ranks if rank.breach]
        if breaches:
            self.judging.look(
                "sent the grader what no answer sends", f"{self.function.__name__}: {'; '.join(breaches)}"
            )
        if self.judging.host.stopped:
            return HostGone(self.judging.host.stopped)
        return error


class Confirmed(RemoteRunner):
    """Judges what ranks came to together, and then looks whether each comes to the very same alone. Raises NotTheSame.

    Alone is one process for each rank: it plays that rank's part in all runs of the check, one after the other. What it
    may remember of a run says nothing of the next, whose inputs are drawn anew. Runs of which the check has looked at
    no value are not played again: traffic is the hub's own record.
    """

    def __init__(self, judging: Judging, answer: dict, function: Callable):
        super().__init__(judging, answer, function)
        self.played: list[Played] = []

    def judge(self, part: Checks, judges: str) -> str:
        said = super().judge(part, judges)
        self.confirm()
        return said

    def answer(self, *run: Any) -> Answer:
        before = len(self.played)
        answer = super().answer(*run)
        return Witnessed(answer, self.played[-1]) if len(self.played) > before else answer

    def alone(self, played: Played) -> list[tuple]:
        played.told = list(map(told_as, played.results))
        self.played.append(played)
        if sum(one.held for one in self.played) > MOST_HELD:
            self.confirm(all_of_them=True)
        return played.results

    def confirm(self, all_of_them: bool = False) -> None:
        """The last rank first: what a rank may have told the next by the moment at which it ended, it has not told yet.

        Virtual time, once it has taken the place of time in a process, stays: such a run has processes of its own.
        """
        played = [one for one in self.played if one.is_judged or all_of_them]
        self.played = []
        together = [one for one in played if not one.orders[0]["virtual"]]
        for runs in (together, *([one] for one in played if one.orders[0]["virtual"])):
            for number in reversed(range(max((len(one.orders) for one in runs), default=0))):
                self.confirm_rank(number, [one for one in runs if number < len(one.orders)])

    def confirm_rank(self, number: int, runs: list[Played]) -> None:
        [process] = self.judging.ranks_of(1)
        try:
            for one in runs:
                said = self.play_alone(process, one, number, more=one is not runs[-1])
                if said["do"] != "done" or told_as((said["result"], said["after"], said["shared"])) != one.told[number]:
                    raise NotTheSame
        except (Diverged, Breach, OSError, KeyError):
            raise NotTheSame from None
        finally:
            self.judging.end([process])


class NotTheSame(Exception):
    """Alone, a rank came to something else, or to nothing. That need not be its fault: the runs are played again."""


class Played:
    """A run that has been played: what each rank was to do, what it and the hub said, and what it came to.

    told       what it came to, packed, where it is to be confirmed
    is_judged  whether the check has looked at that
    """

    def __init__(self, orders: list[dict], logs: list[list], memories: list[SlowMemory], results: list[tuple]):
        self.orders, self.logs, self.memories, self.results = orders, logs, memories, results
        self.told: list[bytes] = []
        self.is_judged = False

    @property
    def held(self) -> int:
        """Bytes that are kept for it, more or less."""
        said = sum(MESSAGE + len(answer) for log in self.logs for _, answer in log)
        return said + sum(len(order["program"]) for order in self.orders) + 2 * sum(map(len, self.told))


class Witnessed(Answer):
    """An Answer that tells when a check looks at values."""

    def __init__(self, answer: Answer, played: Played):
        self.unseen, self.played = answer, played
        self.run = replace(answer.run, results=[])

    def seen(self) -> Answer:
        self.played.is_judged = True
        return self.unseen

    results = property(lambda self: self.seen().results)
    inputs_after = property(lambda self: self.seen().inputs_after)
    shared = property(lambda self: self.seen().shared)


def told_as(told: tuple) -> bytes:
    """What a rank came to, as bytes that can be compared."""
    return codec.pack({"told": told})


class OnceMore(RemoteRunner):
    """Judges what each rank comes to when it is alone, in a process of its own, told what the hub has told it."""

    def alone(self, played: Played) -> list[tuple]:
        """The last rank first, as above."""
        results = []
        for rank in reversed(range(len(played.orders))):
            [process] = self.judging.ranks_of(1)
            try:
                said = self.play_alone(process, played, rank)
            except TimeoutError:
                raise TooLong(f"rank {rank} took too long, when it was run once more.") from None
            except Diverged:
                said = {"do": "failed"}
            finally:
                self.judging.end([process])
            if said["do"] != "done":
                evidence = f"{self.function.__name__}, rank {rank}"
                self.judging.look("did something else when it was run once more, alone", evidence)
                raise CheckFailed(
                    f"rank {rank} did something else when it was run once more, with the same inputs and the "
                    "same messages",
                    mistake="What a rank does must follow from its inputs and from what it receives: not from time, "
                    "chance, files, or what another rank leaves behind.",
                )
            results.append((said["result"], said["after"], said["shared"]))
        return results[::-1]


def give_order(line: socket.socket, order: dict) -> None:
    """What a rank gets first. It is made here, so it may be a pickle."""
    data = pickle.dumps(order)
    line.settimeout(READ_SECONDS)
    line.sendall(LENGTH.pack(len(data)) + data)


def pack_program(program: tuple, function: Callable, memories: list[SlowMemory]) -> bytes:
    """What a rank shall call, with its own inputs and nobody else's."""
    file = io.BytesIO()
    ProgramPickler(file, function, memories).dump(program)
    return file.getvalue()


class ProgramPickler(cloudpickle.Pickler):
    """Puts signs where the student's function and memories stand; tensors go by their values.

    A view goes without the storage that it is a part of: that may hold what other ranks have, or what is expected.
    """

    def __init__(self, file, function: Callable, memories: list[SlowMemory]):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.function, self.memories = function, memories

    def persistent_id(self, value: Any):
        if value is self.function:
            return "answer"
        if isinstance(value, SlowMemory):
            self.memories.append(value)
            return len(self.memories) - 1, value.room
        return None

    def reducer_override(self, value: Any):
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_meta and value.is_leaf:
            strides = value.stride() if 0 not in value.stride() else value.contiguous().stride()
            _, (data, dtype, shape) = travel.pack(value.detach())
            return strided, (data, dtype, shape, strides, value.requires_grad)
        return super().reducer_override(value)


def restored(original: Any, told: Any) -> Any:
    """An input as it was after the call; of one that has state, a copy of ours with the state that was told."""
    kind, state = told if type(told) is list and len(told) == 2 else ("", None)
    if kind == "value":
        return state
    if kind != "state" or type(state) is not dict:
        return Other("nothing", "nothing that can be judged")
    if isinstance(original, torch.nn.Module):
        model = copy.deepcopy(original)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if state.keys() != tensors.keys() or not all(type(one) in TENSORS for one in state.values()):
            return Other("module", "another model")
        for name, tensor in tensors.items():
            tensor.data = state[name].detach()
        return model
    owner = copy.copy(getattr(original, "__self__", original))
    owner.__dict__.update({str(name): value for name, value in state.items()})
    return types.MethodType(original.__func__, owner) if inspect.ismethod(original) else owner


TENSORS = (torch.Tensor, torch.nn.Parameter)
