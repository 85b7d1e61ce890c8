"""Judges submissions on all cores of this machine, or on the machines of a Dask cluster.

To a worker goes a notebook as text and how to judge it; back comes a judgement as text. It sees no folder of the course
and no gradebook, so it may stand anywhere where `grader` can be imported.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster
from tqdm import tqdm

from grader.judging.verdict import Flag, Judgement
from grader.judging.worker import JudgeSettings, judge_text, why_not
from grader.sandbox import bubblewrap

DEATHS = 3  # of workers, that one submission may cost
SETTINGS = {
    "distributed.scheduler.allowed-failures": DEATHS - 1,
    "distributed.scheduler.worker-saturation": 1.0,  # a worker has one submission: it alone is suspected if it dies
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
CONNECT = "30s"
FIRST_WORKER = 60  # seconds to wait for one


class ClusterError(Exception):
    """What a person has to change before anything can be judged, in one line."""


def judge_all(
    lesson: str, work: dict[str, str], how: JudgeSettings, jobs: int | None = None, scheduler: str | None = None
) -> Iterator[tuple[str, Judgement, bool]]:
    """Judge notebooks: name -> text. Yields (name, judgement, whether it was judged), in the order in which they end.

    Not judged is what raised an error on a worker, or killed three of them: its judgement says so, and gives no points.
    jobs: processes on this machine, as many as there are cores; scheduler: the address of a Dask scheduler instead.
    Raises ClusterError when there is no cluster or no sandbox on its workers.
    """
    if not work:
        return
    with client_of(min(jobs or os.cpu_count() or 1, len(work)), scheduler) as client:
        require_sandboxes(client, how)
        done: SimpleQueue[Any] = SimpleQueue()
        futures = {client.submit(judge_text, text, how, pure=False): name for name, text in work.items()}
        for future in futures:
            future.add_done_callback(done.put)
        for _ in futures:
            future = next_of(done, client)
            yield futures[future], *judgement_of(future, lesson)


def judgement_of(future: Any, lesson: str) -> tuple[Judgement, bool]:
    if future.cancelled():
        raise ClusterError("the Dask scheduler has gone away; run the same again to go on from here")
    error = future.exception()
    if error is None:
        return Judgement.from_json(future.result()), True
    if isinstance(error, bubblewrap.NoSandbox):
        raise ClusterError(f"a worker says: {error}")
    if isinstance(error, KilledWorker):
        words = f"could not be judged: the process that judged it died, {error.allowed_failures + 1} times in a row"
    else:
        words = "could not be judged, because of an error in the grader"
    evidence = "".join(traceback.format_exception(error))
    return Judgement(lesson, troubles=[words], looks=[Flag("could not be judged", evidence)]), False


def next_of(done: SimpleQueue[Any], client: Client) -> Any:
    """The next future that is done; says so on the screen as long as there is no worker."""
    while True:
        try:
            return done.get(timeout=60)
        except Empty:
            if not client.scheduler_info()["workers"]:
                tqdm.write(f"no worker is connected to {client.scheduler.address}: waiting for one")


# ---- clusters --------------------------------------------------------------------------------------------------------


@contextmanager
def client_of(processes: int, scheduler: str | None) -> Iterator[Client]:
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(SETTINGS))
        if scheduler is None:
            scheduler = stack.enter_context(local_cluster(processes))
        try:
            client = stack.enter_context(Client(scheduler, timeout=CONNECT, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ClusterError(f"there is no Dask scheduler at {scheduler}: {str(error).splitlines()[0]}") from error
        yield client


@contextmanager
def local_cluster(processes: int) -> Iterator[LocalCluster]:
    """Processes of one thread each, on ports that are free; quiet."""
    with TemporaryDirectory(prefix="grading-") as folder:
        with interrupts_for_us_alone():
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


@contextmanager
def interrupts_for_us_alone() -> Iterator[None]:
    """What is started meanwhile does not hear Ctrl-C: we end it, and it prints nothing about that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def require_sandboxes(client: Client, how: JudgeSettings) -> None:
    """Raises ClusterError when there are no workers, or they can't judge."""
    try:
        client.wait_for_workers(1, timeout=FIRST_WORKER)
        reasons = client.run(why_not, how)
    except TimeoutError:
        raise ClusterError(f"no worker is connected to the Dask scheduler at {client.scheduler.address}") from None
    except ImportError as error:
        raise ClusterError(f"the workers can't import the grader ({error}): start them in its environment") from error
    for address, reason in reasons.items():
        if reason:
            raise ClusterError(f"the worker at {address} says: {reason}")
