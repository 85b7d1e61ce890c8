"""Judge submissions on all cores of this machine, or on the machines of a Dask cluster.

A worker receives a notebook as text and the settings, and returns a judgement as text. It needs neither the course's
folder nor the gradebook, so it can run on any machine where `grader` can be imported.
"""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster
from tqdm import tqdm

from grader.classroom.course import ClassroomError
from grader.classroom.long_runs import handling_interrupts
from grader.judging.verdict import Flag, Judgement
from grader.judging.worker import JudgeSettings, judge_text, why_not
from grader.sandbox import bubblewrap

MAX_WORKER_DEATHS = 3  # per submission
SETTINGS = {
    "distributed.scheduler.allowed-failures": MAX_WORKER_DEATHS - 1,
    "distributed.scheduler.worker-saturation": 1.0,  # one submission per worker: if it dies, the suspect is clear
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
CONNECT_TIMEOUT = "30s"
FIRST_WORKER_TIMEOUT = 60  # seconds


def judge_all(
    lesson: str, work: dict[str, str], settings: JudgeSettings, jobs: int | None = None, scheduler: str | None = None
) -> Generator[tuple[str, Judgement, bool]]:
    """Judge notebooks, {name: text}. Yields (name, judgement, whether it could be judged) as each one finishes.

    A notebook can't be judged if it raises an error on a worker, or kills three of them. Its judgement says so, and
    gives no points. jobs: processes on this machine, by default one per core; scheduler: the address of a Dask
    scheduler to use instead. Raises ClassroomError if there is no cluster, or no sandbox on its workers.
    """
    if not work:
        return
    with client_of(min(jobs or os.cpu_count() or 1, len(work)), scheduler) as client:
        require_sandboxes(client, settings)
        done: SimpleQueue[Any] = SimpleQueue()
        futures = {client.submit(judge_text, text, settings, pure=False): name for name, text in work.items()}
        for future in futures:
            future.add_done_callback(done.put)
        for _ in futures:
            future = wait_for_next(done, client)
            yield futures[future], *judgement_of(future, lesson)


def judgement_of(future: Any, lesson: str) -> tuple[Judgement, bool]:
    if future.cancelled():
        raise ClassroomError("the Dask scheduler has gone away; run the same command again to continue from here")
    error = future.exception()
    if error is None:
        return Judgement.from_json(future.result()), True
    if isinstance(error, bubblewrap.NoSandbox):
        raise ClassroomError(f"a worker says: {error}")
    if isinstance(error, KilledWorker):
        problem = f"could not be judged: the judging process died {error.allowed_failures + 1} times in a row"
    else:
        problem = "could not be judged, because of an error in the grader"
    evidence = "".join(traceback.format_exception(error))
    return Judgement(lesson, problems=[problem], flags=[Flag("could not be judged", evidence)]), False


def wait_for_next(done: SimpleQueue[Any], client: Client) -> Any:
    """The next future to finish. Prints a line every minute while no worker is connected."""
    while True:
        try:
            return done.get(timeout=60)
        except Empty:
            if not client.scheduler_info()["workers"]:
                tqdm.write(f"waiting for a worker: none is connected to {client.scheduler.address}")


# ---- clusters --------------------------------------------------------------------------------------------------------


@contextmanager
def client_of(processes: int, scheduler: str | None) -> Iterator[Client]:
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(SETTINGS))
        if scheduler is None:
            scheduler = stack.enter_context(local_cluster(processes))
        try:
            client = stack.enter_context(Client(scheduler, timeout=CONNECT_TIMEOUT, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ClassroomError(f"there is no Dask scheduler at {scheduler}: {str(error).splitlines()[0]}") from error
        yield client


@contextmanager
def local_cluster(processes: int) -> Iterator[LocalCluster]:
    """Single-threaded worker processes on free ports, which log nothing."""
    with TemporaryDirectory(prefix="grading-") as folder:
        with handling_interrupts(signal.SIG_IGN):  # by workers: this process ends them, so they print no tracebacks
            cluster = LocalCluster(
                n_workers=processes,
                threads_per_worker=1,
                memory_limit=0,
                dashboard_address="127.0.0.1:0",  # with None it would listen on port 8787
                local_directory=folder,
                silence_logs=logging.CRITICAL,
            )
        with cluster:
            yield cluster


def require_sandboxes(client: Client, settings: JudgeSettings) -> None:
    """Raises ClassroomError if there are no workers, or if they can't judge."""
    try:
        client.wait_for_workers(1, timeout=FIRST_WORKER_TIMEOUT)
        reasons = client.run(why_not, settings)
    except TimeoutError:
        raise ClassroomError(f"no worker is connected to the Dask scheduler at {client.scheduler.address}") from None
    except ImportError as error:
        raise ClassroomError(f"the workers can't import the grader ({error}): start them in its environment") from error
    for address, reason in reasons.items():
        if reason:
            raise ClassroomError(f"the worker at {address} says: {reason}")
