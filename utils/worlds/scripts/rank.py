"""What a rank does that runs a script: it behaves like a process that torchrun has started.

output to its pipe -> torchrun's environment -> record the calls -> run the script as `__main__`
-> its threads, its exit handlers -> leave the outcome in a file -> wait to be killed
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import random
import signal
import sys
import threading

import numpy.random
import torch

from ...recording import regions
from ...recording.recorder import Recorder
from ...recording.torch_private import set_pickler_of_objects
from ...recording.track_memory import track_memory
from ..common.protocol import Request
from ..common.rank_environment import failure, flush
from ..common.result import pickle_result
from ..real.rank_process import let_program_join, record, surround

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def perform(rank: int, request: Request) -> bytes:
    """Run the script on one real rank. Returns its outcome, a Result or a Failure, pickled."""
    try:
        with open(os.path.join(request.folder, "program"), "rb") as program:
            script, tracks_memory = pickle.load(program)
        enter(rank, request)
        try:
            if tracks_memory:
                with track_memory():
                    script.run()
            else:
                script.run()
        finally:
            end_like_an_interpreter()
        if isinstance(regions.recorder, Recorder):
            regions.recorder.finish()
        return pickle_result(None)
    except SystemExit as exit:
        return pickle_result(None) if exit.code in (None, 0) else pickle.dumps(failure(exit, request.zero))
    except BaseException as error:
        return pickle.dumps(failure(error, request.zero))
    finally:
        for number in HANDLED:  # it is done, and waits for the others
            signal.signal(number, signal.SIG_IGN)


def enter(rank: int, request: Request) -> None:
    """Set up this process as torchrun does, which neither seeds anything nor joins the world."""
    surround(rank, request)
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="False", TORCH_NCCL_ASYNC_ERROR_HANDLING="1")
    if "OMP_NUM_THREADS" not in os.environ:
        if request.world_size > 1:
            os.environ["OMP_NUM_THREADS"] = "1"
        else:
            torch.set_num_threads(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
    set_pickler_of_objects(pickle.Pickler)
    for seed in (random.seed, numpy.random.seed, torch.seed):  # the zygote's numbers would be the same on all ranks
        seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    record(rank, request)
    let_program_join(request, set(), "")


def end_like_an_interpreter() -> None:
    """Wait for the script's threads, run its exit handlers, and close what it has left open.

    The process itself lives on: its connections would close, and ranks that still need them would fail.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    flush()
