"""What a submission makes others do: computing that nobody waits for, and work of the judge's own.

Each ends within a limit in processor time, costs its own exercise alone, and the checks after it are judged.
"""

from __future__ import annotations

import pytest

from grader.judging import judge, ranks
from grader.judging.judge import TOOK_TOO_LONG
from grader.judging.worker import JudgeSettings
from grader.sandbox import bounded
from tests.graded import broadcast, judged, notebook, points
from utils.checks.registry import Checks

pytestmark = [pytest.mark.long(minutes=10), pytest.mark.sandbox, pytest.mark.thorough]
COLLECTIVES = "01_collectives"
IMPORTS = "import os, signal, time"
BOTH = ["broadcast-by-hand-values", "scatter-by-hand-values"]


@pytest.fixture(autouse=True)
def a_new_child():
    """One that knows what a test has patched."""
    end_child()
    yield
    end_child()


def end_child() -> None:
    while bounded.children:
        bounded.children.pop().end()


UNSEEN = {
    "an orphan": """
        if os.fork() == 0:
            if os.fork() == 0:
                while True: pass
            os._exit(0)
        os.wait()
        time.sleep(600)
    """,
    "short-lived children, which the kernel forgets": """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if os.fork() == 0:
                began = time.process_time()
                while time.process_time() < began + 0.2: pass
                os._exit(0)
            time.sleep(0.2)
    """,
    "a child, beside a rank that keeps talking": """
        import torch.distributed as dist
        if rank == 0 and os.fork() == 0:
            while True: pass
        while True:
            dist.barrier()
            time.sleep(0.05)
    """,
}


@pytest.mark.parametrize("body", UNSEEN.values(), ids=UNSEEN)
def test_computing_that_nobody_waits_for_is_counted(body, monkeypatch):
    """Time alone would never end it: nothing here computes where the rank's own account shows it."""
    monkeypatch.setattr(ranks, "RUN_SECONDS", 10**6)
    monkeypatch.setattr(ranks, "CPU_SECONDS", 1)
    said = judged(COLLECTIVES, broadcast(body, IMPORTS), BOTH, seconds=10**6)
    assert [verdict.kind for verdict in said.verdicts] == ["stuck", "passed"]
    assert [flag.what for flag in said.flags] == [TOOK_TOO_LONG]


GIVES_WAY = {
    "nice": "os.nice(19)",
    "idle": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
    "batch": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
}


@pytest.mark.parametrize("body", GIVES_WAY.values(), ids=GIVES_WAY)
def test_a_rank_can_not_give_way_to_others_so_that_its_time_stands_still(body):
    said = judged(COLLECTIVES, broadcast(body, IMPORTS), BOTH[:1])
    assert "PermissionError" in said.verdicts[0].said


# ---- the judge's own work --------------------------------------------------------------------------------------------


def plan(**fields: str) -> dict[str, str]:
    found = {"rows": "1", "keep": "[]", "recompute": "[]", "microbatches": "1", **fields}
    words = ", ".join(f"{name!r}: {value}" for name, value in found.items())
    return {"training-plan": f"def training_plan(layers, dim, ranks, memory):\n    return {{{words}}}"}


@pytest.mark.parametrize("fields", [{"microbatches": "10**7"}, {"keep": "[0] * 900_000"}], ids=["a number", "a list"])
def test_a_plan_that_takes_the_judge_for_ever_costs_its_own_check_alone(fields, monkeypatch):
    monkeypatch.setattr(judge, "JUDGE_SECONDS", 10)
    checks = ["training-plan-score", "gather-weight-values"]  # the one before it comes first
    said = judged("07_zero_fsdp", plan(**fields), checks, limited=True)
    verdicts = {verdict.check: verdict for verdict in said.verdicts}
    assert [verdicts[check].kind == "passed" for check in checks] == [False, True], said.verdicts


@pytest.fixture
def works(monkeypatch):
    """Checks of broadcast-by-hand make the judge compute, or hold memory, without end."""

    def check(how: str) -> None:
        real = Checks.judge

        def judge_it(self, function, judges, runner):
            kept = []
            while function.__name__ == "broadcast_by_hand":
                if how == "memory":
                    kept.append(bytearray(100 << 20))
            return real(self, function, judges, runner)

        monkeypatch.setattr(Checks, "judge", judge_it)

    return check


@pytest.mark.parametrize("how, ends", [("computing", "takes more than 10 s"), ("memory", "can't be judged")])
def test_work_of_the_judge_is_limited_and_the_next_check_is_judged(works, how, ends, monkeypatch):
    works(how)
    monkeypatch.setattr(judge, "JUDGE_SECONDS", 10 if how == "computing" else 60)
    said = judged(COLLECTIVES, None, BOTH, limited=True)
    assert said.verdicts[0].points == 0 and ends in said.verdicts[0].said
    assert said.verdicts[1].kind == "passed" and len(said.flags) == 1


def test_the_settings_of_a_course_judge_in_a_child(works, monkeypatch):
    works("computing")
    monkeypatch.setattr(judge, "JUDGE_SECONDS", 10)
    said = JudgeSettings("solutions", sandboxed=True, seconds=600).judge(notebook(COLLECTIVES, None, BOTH))
    assert [verdict.kind for verdict in said.verdicts] == ["stuck", "passed"]


# ---- what is put off -------------------------------------------------------------------------------------------------

LATE = {
    "sleep": "time.sleep(10**6)",
    "the end of the sandbox's memory": "kept = [bytearray(b'x') * (50 << 20) for _ in range(1000)]",
}


@pytest.mark.parametrize("body", LATE.values(), ids=LATE)
def test_what_a_busy_machine_may_have_caused_is_put_off_with_all_that_follows(body, monkeypatch):
    monkeypatch.setattr(judge, "HASTY_SECONDS", 1)
    said = judged(COLLECTIVES, broadcast(body, IMPORTS), BOTH, hasty=True, limited=True)
    assert [verdict.kind for verdict in said.verdicts] == ["not run", "not run"]
    assert said.flags == said.problems == []


def test_what_has_computed_too_much_is_not_put_off(monkeypatch):
    monkeypatch.setattr(ranks, "CPU_SECONDS", 1)
    said = judged(COLLECTIVES, broadcast("while True: pass"), BOTH, hasty=True)
    assert [verdict.kind for verdict in said.verdicts] == ["stuck", "passed"]


def test_the_judges_own_work_is_put_off_too(works, monkeypatch):
    works("computing")
    monkeypatch.setattr(judge, "HASTY_JUDGE_SECONDS", 1)
    said = judged(COLLECTIVES, None, BOTH, hasty=True, limited=True)
    assert [verdict.kind for verdict in said.verdicts] == ["not run", "not run"] and set(points(said).values()) == {0}
