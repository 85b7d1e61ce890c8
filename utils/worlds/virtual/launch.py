"""`simulate`: run a notebook's function on the ranks of a virtual cluster. What comes back is a Run in virtual time.

check the call -> pickle the program by value -> one process runs all ranks (simulated_world.py) -> return a Run, or
raise
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...report.run import Run
from ..common.call_checks import check_program, check_timeout, check_world_size
from ..common.program import name_of, pickle_program
from ..real.zygote.client import zygote

if TYPE_CHECKING:
    from ...cluster.hardware import Cluster
    from ...cluster.jitter import Jitter

MAX_RANKS = 16384
MOST_SECONDS = 600.0  # real time
DEVICES = ("meta", "cpu")
zygote.preload.append(f"{__package__}.simulated_world")


def simulate(
    fn: Callable[..., object],
    world_size: int,
    *args: Any,
    cluster: str | Cluster = "dgx-h100",
    device: str = "meta",
    item_as_nan: bool = False,
    rates: str | None = None,
    jitter: Jitter | None = None,
    site: str | float | None = None,
    alike: Callable[[int], Hashable] | None = None,
    timeout: float | None = None,
    **kwargs: Any,
) -> Run:
    """Run `fn(rank, world_size, *args, **kwargs)`, a rank program as for `spawn`, on virtual GPUs.

    cluster   a name ("dgx-h100", ...), which stands for as many nodes as the ranks need, or a Cluster of your own
    device    "meta": tensors have sizes but no values, and nothing is computed, so a thousand ranks and models of any
              size are quick. "cpu": tensors have values too, as with spawn.

    item_as_nan
              on device="meta", what a program gets that asks for a value: by default an error; if True, nan from
              `.item()` and False from an `if`, and a line that says so once. For programs that print their loss.

    rates     "achieved": kernels and links are as fast as real ones have been measured to be, for questions of time:
              the default, if that is known (presets: dgx-a100, dgx-h100, dgx-h200, dgx-b200, gb200-nvl72).
              "datasheet": as fast as the datasheet promises, to compare times with closed forms: the default otherwise.
              A Cluster can name its own default. The Run says which it was.

    jitter    stragglers and late launches, with a seed: see Jitter in cluster/jitter.py. By default all GPUs
              of a kind are alike.

    site      what the place adds to what the chips need, at achieved rates: "benchmark" (the default: nothing),
              "production" (stragglers, throttling, congestion), or how many times as long matrix products and
              attention take. SITES in cluster/presets.py has all names, with sources.

    alike     a function of a rank. You promise that ranks for which it returns the same value do the same: the same
              calls, with the same sizes, in groups that lie on the nodes alike. Then only the first of each kind runs,
              and a step on thousands of GPUs takes seconds: with `lambda rank: rank // 8 % 16`, 16 ranks run for any
              number of them. Only for device="meta". docs/simulator.md says what is checked, and what isn't.

    timeout   real seconds after which a simulation that has not finished is ended; 600 by default.

    The ranks are threads that take turns, and each has its own clock. Computing takes the time that the roofline model
    gives for the GPU, a message the time that the links between its ranks need, and a collective the time of the best
    algorithm for it. These are seconds of the virtual cluster, the same in every run. `run.elapsed` and the times of
    events are in them, and so are `time.perf_counter()` and `time.sleep` inside the program: a benchmark measures the
    cluster. `run.costs()` says what was charged for the collectives, and why. What the model doesn't see is listed in
    docs/simulator.md.

    Returns a Run. Raises ValueError or TypeError for a call that can't work, RankFailed if a rank raises an exception
    (out of memory, say), RankCrashed or RankTimeout if the process that runs the ranks dies or takes too long,
    WorldStuck if no rank can move, and SilentMistake if the ranks' calls do not fit together.
    """
    check_program(fn, args, kwargs, "simulate")
    world_size = check_world_size(world_size, most=MAX_RANKS, caller="simulate")
    timeout = check_timeout(timeout, default=MOST_SECONDS)
    if device not in DEVICES:
        raise ValueError(f'device is "meta" (sizes only) or "cpu" (values too); got {device!r}.')
    from ...cluster.presets import find_cluster, site_factor  # only now, so that importing the package is quick
    from .alike import runs_as, why_not
    from .world import run_virtually

    cluster = find_cluster(cluster, world_size).at_rates(rates)
    if jitter is not None:
        cluster = replace(cluster, jitter=jitter)
    if site is not None:
        if cluster.rates != "achieved":
            raise ValueError(f"site={site!r} changes achieved rates, and these are the datasheet's. Leave it out.")
        cluster = replace(cluster, site=site_factor(site))
    representatives = None if alike is None else runs_as(alike, world_size)
    if representatives is not None and (reason := why_not(cluster, device)):
        raise ValueError(reason)
    program = pickle_program(fn, args, kwargs, world_size)
    run = run_virtually(world_size, cluster, device, item_as_nan, representatives, program, timeout)
    run.program = name_of(fn)
    return run
