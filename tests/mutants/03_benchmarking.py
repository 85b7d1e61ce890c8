"""Wrong answers to lesson 03: at least two per exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import answers

MUTANTS, ALSO_RIGHT, mutant, also_right = answers()

# ---- time-once


def timing(before: str, after: str) -> str:
    """The exercise's cell with other lines before and after the clock starts."""
    return f"""
def time_once(operation, synchronize):
    {before}
    start = time.perf_counter()
    handle = operation()
    {after}
    return time.perf_counter() - start
"""


WAIT = "handle.wait() if handle is not None else None"

mutant("time-once", "never-waits", says="the time to START it", cell=timing("synchronize(); dist.barrier()", "pass"))
mutant(
    "time-once",
    "synchronizes-instead-of-waiting",
    says="the time to START it",
    cell=timing("synchronize(); dist.barrier()", "synchronize()"),
)
mutant("time-once", "no-barrier", says="was not ready yet", cell=timing("synchronize()", f"{WAIT}; synchronize()"))
mutant(
    "time-once",
    "barrier-then-synchronize",
    says="synchronize on each rank, then",
    cell=timing("dist.barrier(); synchronize()", f"{WAIT}; synchronize()"),
)
mutant(
    "time-once",
    "old-work-counts",
    says="earlier work still in the queue",
    cell=timing("dist.barrier()", f"{WAIT}; synchronize()"),
)
mutant(
    "time-once",
    "no-synchronize-at-the-end",
    says="synchronize at the end, too",
    cell=timing("synchronize(); dist.barrier()", WAIT),
)
mutant(
    "time-once",
    "meets-at-the-end",
    says="including the barrier",
    cell=timing("synchronize(); dist.barrier()", f"{WAIT}; synchronize(); dist.barrier()"),
)
mutant(
    "time-once",
    "no-barrier-at-all",
    "traffic",
    says="called all_reduce",
    cell=timing("synchronize()", f"{WAIT}; synchronize()"),
)
mutant(
    "time-once",
    "warms-up-inside",
    "traffic",
    says="called all_reduce, barrier, all_reduce",
    cell=timing("operation().wait(); synchronize(); dist.barrier()", f"{WAIT}; synchronize()"),
)
mutant(
    "time-once",
    "synchronizes-only-without-a-handle",
    says="synchronize at the end, too",
    cell=timing("synchronize(); dist.barrier()", "synchronize() if handle is None else handle.wait()"),
)
also_right(
    "time-once",
    "asks-for-wait",
    cell="""
def time_once(operation, synchronize):
    synchronize()
    dist.barrier()
    synchronize()
    before = time.perf_counter_ns()
    handle = operation()
    if hasattr(handle, "wait"):
        handle.wait()
    synchronize()
    return (time.perf_counter_ns() - before) / 1e9
""",
)
also_right(
    "time-once",
    "another-clock",
    cell="""
def time_once(operation, synchronize):
    synchronize()
    handle = dist.barrier(async_op=True)
    handle.wait()
    before = time.monotonic()
    work = operation()
    if work:
        work.wait()
    synchronize()
    after = time.monotonic()
    return after - before
""",
)

mutant(
    "time-once",
    "start-minus-end",
    says="the wrong sign",
    cell=timing("synchronize(); dist.barrier()", f"{WAIT}; synchronize()").replace(
        "time.perf_counter() - start", "start - time.perf_counter()"
    ),
)
mutant(
    "time-once",
    "only-rank-0-meets",
    says="rank 0  waits in barrier",
    cell=timing("synchronize()\n    if dist.get_rank() == 0: dist.barrier()", f"{WAIT}; synchronize()"),
)

# ---- times-of-the-slowest

mutant(
    "times-of-the-slowest",
    "no-warm-up",
    says="was called 4 times",
    replace=("range(warmup):\n        time_one()", "range(0):\n        time_one()"),
)
mutant(
    "times-of-the-slowest",
    "warm-up-among-the-repeats",
    says="was called 4 times",
    replace=("for _ in range(repeats)]", "for _ in range(repeats - warmup)]"),
)
mutant(
    "times-of-the-slowest",
    "keeps-the-warm-up",
    says="the warm-up's included",
    cell="""
def times_of_the_slowest(time_one, warmup, repeats):
    slowest = torch.tensor([time_one() for _ in range(warmup + repeats)], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()
""",
)
mutant("times-of-the-slowest", "averages", says="the mean over the ranks", replace=("ReduceOp.MAX", "ReduceOp.AVG"))
mutant("times-of-the-slowest", "sums", says="the sum over the ranks", replace=(", op=dist.ReduceOp.MAX", ""))
mutant("times-of-the-slowest", "fastest", says="the fastest rank", replace=("ReduceOp.MAX", "ReduceOp.MIN"))
mutant(
    "times-of-the-slowest",
    "rank-0-alone",
    says="rank 0's times",
    replace=("dist.all_reduce(slowest, op=dist.ReduceOp.MAX)", "dist.broadcast(slowest, src=0)"),
)
mutant(
    "times-of-the-slowest",
    "own-times",
    says="this rank's own times",
    replace=("dist.all_reduce(slowest, op=dist.ReduceOp.MAX)", "pass"),
)
mutant(
    "times-of-the-slowest",
    "one-call-each-repeat",
    "traffic",
    says="called all_reduce, all_reduce",
    replace=(
        "dist.all_reduce(slowest, op=dist.ReduceOp.MAX)",
        "[dist.all_reduce(one, op=dist.ReduceOp.MAX) for one in slowest.unbind()]",
    ),
)
mutant(
    "times-of-the-slowest",
    "float32",
    says="rounded to float32",
    cell="""
def times_of_the_slowest(time_one, warmup, repeats):
    for _ in range(warmup):
        time_one()
    slowest = torch.tensor([time_one() for _ in range(repeats)])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()
""",
)
mutant(
    "times-of-the-slowest",
    "one-warm-up-at-least",
    says="time_one was called",
    hidden=True,
    replace=("in range(warmup):", "in range(max(1, warmup)):"),
)
also_right(
    "times-of-the-slowest",
    "cuts-the-warm-up-off",
    cell="""
def times_of_the_slowest(time_one, warmup, repeats):
    slowest = torch.tensor([time_one() for _ in range(warmup + repeats)][warmup:], dtype=torch.double)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, async_op=True).wait()
    return [one.item() for one in slowest]
""",
)

mutant(
    "times-of-the-slowest",
    "on-rank-0-alone",
    says="though right on rank 0",
    replace=("dist.all_reduce(slowest, op=", "dist.reduce(slowest, dst=0, op="),
)
mutant(
    "times-of-the-slowest",
    "sorts-first",
    says="sorting before the ranks were compared",
    replace=("mine = [time_one() for _ in range(repeats)]", "mine = sorted(time_one() for _ in range(repeats))"),
)
mutant(
    "times-of-the-slowest",
    "the-slowest-rank-in-all",
    says="slowest overall",
    cell="""
def times_of_the_slowest(time_one, warmup, repeats):
    for _ in range(warmup):
        time_one()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [time_one() for _ in range(repeats)])
    return max(everyone, key=sum)
""",
)

# ---- median-and-spread

mutant("median-and-spread", "mean", says="the mean", replace=("median(seconds)", "sum(seconds) / len(seconds)"))
mutant("median-and-spread", "minimum", says="the minimum", replace=("median(seconds)", "min(seconds)"))
mutant(
    "median-and-spread",
    "unsorted",
    says="sort first",
    replace=("median(seconds)", "seconds[len(seconds) // 2]"),
)
mutant(
    "median-and-spread",
    "upper-median",
    says="the upper of the two",
    replace=("median(seconds)", "sorted(seconds)[len(seconds) // 2]"),
)
mutant(
    "median-and-spread",
    "torch-median",
    says="the lower of the two",
    replace=("median(seconds)", "torch.tensor(seconds).median().item()"),
)
mutant(
    "median-and-spread",
    "standard-deviation",
    says="the standard deviation",
    replace=(
        "median(abs(each - middle) for each in seconds)",
        "(sum((each - sum(seconds) / len(seconds)) ** 2 for each in seconds) / len(seconds)) ** 0.5",
    ),
)
mutant(
    "median-and-spread",
    "mean-distance",
    says="the mean distance",
    replace=(
        "median(abs(each - middle) for each in seconds)",
        "sum(abs(each - middle) for each in seconds) / len(seconds)",
    ),
)
mutant(
    "median-and-spread",
    "signed-distances",
    says="absolute values",
    replace=("abs(each - middle)", "each - middle"),
)
mutant(
    "median-and-spread",
    "in-seconds",
    says="divide by the median",
    replace=("for each in seconds)", "for each in seconds) * middle"),
)
mutant(
    "median-and-spread",
    "sorts-in-place",
    says="the input",
    replace=("middle = median(seconds)", "seconds.sort()\n    middle = median(seconds)"),
)
also_right(
    "median-and-spread",
    "torch-quantile",
    body="""    times = torch.tensor(seconds, dtype=torch.float64)
    middle = times.quantile(0.5).item()
    distance = (times - middle).abs().quantile(0.5).item()
""",
)

mutant(
    "median-and-spread",
    "distances-from-the-mean",
    says="the distance from the mean",
    replace=("abs(each - middle)", "abs(each - sum(seconds) / len(seconds))"),
)

# ---- counted-bytes

mutant("counted-bytes", "handed-in", says="one chunk of the whole", body="    return handed_in\n")
mutant(
    "counted-bytes",
    "reduce-scatter-output",
    says="one chunk of it",
    body="""    if collective in ("all_gather", "gather"):
        return world_size * handed_in
    return handed_in // world_size if collective == "reduce_scatter" else handed_in
""",
)
mutant("counted-bytes", "of-all-ranks", says="what all ranks hold together", body="    return world_size * handed_in\n")
mutant(
    "counted-bytes",
    "bytes-sent",
    says="that comes later, in busbw",
    body="""    if collective in ("all_gather", "gather"):
        return world_size * handed_in
    return handed_in * (world_size - 1) / world_size if collective == "all_to_all" else handed_in
""",
)
mutant(
    "counted-bytes",
    "forgets-gather",
    says="one chunk of the whole",
    body='    return world_size * handed_in if collective == "all_gather" else handed_in\n',
)
mutant(
    "counted-bytes",
    "always-four-ranks",
    says="gather of 3 ranks",
    hidden=True,
    replace=("world_size * handed_in", "4 * handed_in"),
)
also_right(
    "counted-bytes",
    "table",
    body='    return handed_in * {"all_gather": world_size, "gather": world_size}.get(collective, 1)\n',
)

mutant(
    "counted-bytes",
    "two-phases",
    says="the two phases come later",
    body="""    if collective == "all_reduce":
        return 2 * handed_in
    return world_size * handed_in if collective in ("all_gather", "gather") else handed_in
""",
)

# ---- bandwidths

mutant("bandwidths", "always-two", says="a factor of 2", replace=("2 * others", "2"))
mutant("bandwidths", "no-factor", says="busbw has the factor", body="    factor = 1\n")
mutant("bandwidths", "send-and-receive", says="twice too much", replace=("factor = others", "factor = 2 * others"))
mutant("bandwidths", "all-reduce-once", says="two phases", replace=("factor = 2 * others", "factor = others"))
mutant(
    "bandwidths",
    "upside-down",
    says="upside down",
    replace=("(world_size - 1) / world_size", "world_size / (world_size - 1)"),
)
mutant(
    "bandwidths",
    "broadcast-like-the-others",
    says="broadcast of 4 ranks",
    replace=('("broadcast", "reduce")', "()"),
)
mutant(
    "bandwidths",
    "only-others",
    says="with 2 (P - 1) instead",
    replace=("(world_size - 1) / world_size", "world_size - 1"),
)
mutant(
    "bandwidths",
    "gib",
    says="GiB/s",
    cell="""
def bandwidths(collective, nbytes, seconds, world_size):
    algbw = nbytes / seconds / 2**30
    others = (world_size - 1) / world_size
    factor = {"broadcast": 1, "reduce": 1, "all_reduce": 2 * others}.get(collective, others)
    return algbw, algbw * factor
""",
)
mutant(
    "bandwidths",
    "all-ranks-time",
    says="P times too small",
    replace=("factor = 2 * others", "factor = 2 * others / world_size"),
)
mutant(
    "bandwidths",
    "always-three-quarters",
    says="hidden test",
    hidden=True,
    replace=("(world_size - 1) / world_size", "0.75"),
)
also_right(
    "bandwidths",
    "bytes-sent",
    body="""    sent = {"broadcast": 1, "reduce": 1, "all_reduce": 2 - 2 / world_size}
    factor = sent.get(collective, 1 - 1 / world_size)
""",
)

mutant(
    "bandwidths",
    "floor-division",
    says="// rounds down",
    replace=("(world_size - 1) / world_size", "(world_size - 1) // world_size"),
)

# ---- find-the-mistakes

mutant("find-the-mistakes", "gib-upside-down", says="factors is not right", replace=("1e9 / 2**30", "2**30 / 1e9"))
mutant("find-the-mistakes", "chunk-upside-down", says="factors is not right", replace=("1 / world_size", "world_size"))
mutant(
    "find-the-mistakes", "algbw-upside-down", says="factors is not right", replace=("algbw / busbw", "busbw / algbw")
)
mutant("find-the-mistakes", "adds-the-factors", says="you returned", replace=("math.prod(", "sum("))
mutant(
    "find-the-mistakes",
    "divides",
    says="factors is not right",
    replace=("busbw * math.prod(", "busbw / math.prod("),
)
mutant("find-the-mistakes", "too-tolerant", says="not within 1 % of the claim", replace=("0.01 * claim", "0.1 * claim"))
mutant(
    "find-the-mistakes",
    "returns-the-claim",
    says="first number must be the right busbw",
    replace=("return busbw, list(mistakes)", "return claim, list(mistakes)"),
)
mutant(
    "find-the-mistakes",
    "too-strict",
    says="tolerance is too small",
    replace=("0.01 * claim", "1e-6 * claim"),
)
mutant(
    "find-the-mistakes",
    "at-most-two",
    says="hidden test",
    hidden=True,
    replace=("return busbw, list(mistakes)", "return busbw, list(mistakes) if how_many < 3 else None"),
)
also_right(
    "find-the-mistakes",
    "isclose",
    replace=(
        ("abs(wrong - claim) <= 0.01 * claim", "math.isclose(wrong / claim, 1, abs_tol=0.01)"),
        ("return busbw, list(mistakes)", "return [busbw, set(mistakes)]"),
    ),
)

mutant(
    "find-the-mistakes",
    "one-sided",
    says="too large or too small, both count",
    replace=("abs(wrong - claim) <= 0.01", "wrong - claim <= 0.01"),
)
mutant(
    "find-the-mistakes",
    "returns-the-wrong-number",
    says="with the mistakes in it",
    replace=("return busbw, list(mistakes)", "return wrong, list(mistakes)"),
)
mutant(
    "find-the-mistakes",
    "words-instead-of-a-list",
    says="A list of names",
    replace=("list(mistakes)", '", ".join(mistakes)'),
)
also_right(
    "find-the-mistakes",
    "counts-in-binary",
    cell="""
def find_the_mistakes(claim, collective, nbytes, seconds, world_size, bandwidths):
    algbw, busbw = bandwidths(collective, nbytes, seconds, world_size)
    factors = {"GiB": 1e9 / 2**30, "one chunk": 1 / world_size, "both ways": 2, "algbw": algbw / busbw}
    best = None
    for bits in range(2 ** len(factors)):
        chosen = [name for place, name in enumerate(factors) if bits >> place & 1]
        claimed = busbw
        for name in chosen:
            claimed *= factors[name]
        if 0.99 < claimed / claim < 1.01 and (best is None or len(chosen) < len(best)):
            best = chosen
    return busbw, best
""",
)

# ---- sweep-sizes

mutant(
    "sweep-sizes", "not-rounded", says="can't be cut", replace=("nbytes - nbytes % (world_size * itemsize)", "nbytes")
)
mutant(
    "sweep-sizes",
    "whole-numbers-only",
    says="each rank needs a chunk",
    replace=("% (world_size * itemsize)", "% itemsize"),
)
mutant("sweep-sizes", "forgets-itemsize", says="several bytes", replace=("% (world_size * itemsize)", "% world_size"))
mutant("sweep-sizes", "rounds-up", says="rounded up", replace=("nbytes - nbytes %", "nbytes + -nbytes %"))
mutant("sweep-sizes", "keeps-zero", says="a size of 0", replace=("if possible > 0:", "if True:"))
mutant(
    "sweep-sizes",
    "four-bytes-each",
    says="hidden test",
    hidden=True,
    replace=("% (world_size * itemsize)", "% (world_size * (8 if itemsize == 8 else 4))"),
)
mutant(
    "sweep-sizes",
    "rounds-before-multiplying",
    says="rounded before they were multiplied",
    replace=("if possible > 0:", "nbytes = possible or nbytes\n        if possible > 0:"),
)
mutant(
    "sweep-sizes",
    "without-the-largest",
    says="without the largest",
    body="""        possible = nbytes - nbytes % (world_size * itemsize)
        if possible > 0 and nbytes < largest:
            sizes.append(possible)
""",
)
also_right(
    "sweep-sizes",
    "floor-division",
    body="""        count = nbytes // itemsize // world_size
        sizes += [count * world_size * itemsize] * (count > 0)
""",
)

mutant(
    "sweep-sizes",
    "floats",
    says="Sizes are whole numbers",
    replace=("sizes.append(possible)", "sizes.append(possible / 1)"),
)
mutant(
    "sweep-sizes",
    "raises-small-sizes",
    says="leave them out",
    replace=("if possible > 0:", "possible = max(possible, world_size * itemsize)\n        if possible > 0:"),
)
mutant(
    "sweep-sizes",
    "stops-at-the-first-zero",
    says="go on with the next",
    body="""        possible = nbytes - nbytes % (world_size * itemsize)
        if possible == 0:
            break
        sizes.append(possible)
""",
)

# ---- fit

FIT = "rows = torch.stack([1 / t, n / t], dim=1)  # (sizes, 2)"

mutant(
    "fit",
    "unweighted",
    says="ordinary least squares",
    body="""    rows = torch.stack([torch.ones_like(n), n], dim=1)
    alpha, beta = torch.linalg.lstsq(rows, t[:, None]).solution.flatten().tolist()
""",
)
mutant(
    "fit",
    "root-weights",
    says="weighted by 1 / t:",
    body="""    rows = torch.stack([1 / t.sqrt(), n / t.sqrt()], dim=1)
    alpha, beta = torch.linalg.lstsq(rows, t.sqrt()[:, None]).solution.flatten().tolist()
""",
)
mutant(
    "fit",
    "divides-twice",
    says="divided by t once",
    body="""    rows = torch.stack([1 / t**2, n / t**2], dim=1)
    alpha, beta = torch.linalg.lstsq(rows, 1 / t[:, None]).solution.flatten().tolist()
""",
)
mutant("fit", "turned-round", says="the latency comes first", replace=("[1 / t, n / t]", "[n / t, 1 / t]"))
mutant(
    "fit",
    "bandwidth-instead-of-beta",
    says="seconds per byte",
    replace=(".flatten().tolist()", ".flatten().tolist()\n    beta = 1 / beta"),
)
mutant(
    "fit",
    "two-points",
    says="all sizes count",
    body="""    beta = ((t[-1] - t[0]) / (n[-1] - n[0])).item()
    alpha = (t[0] - beta * n[0]).item()
""",
)
mutant(
    "fit",
    "no-alpha-below-zero",
    says="as it comes out",
    hidden=True,
    replace=(".flatten().tolist()", ".flatten().tolist()\n    alpha = max(alpha, 0.0)"),
)
mutant(
    "fit",
    "logarithms",
    says="you returned",
    body="""    x, y = n.log() - n.log().mean(), t.log() - t.log().mean()
    slope = (x * y).sum() / (x * x).sum()
    alpha, beta = t.min().item(), slope.item()
""",
)
also_right(
    "fit",
    "normal-equations",
    body="""    a, b, c, d, e = (x.sum().item() for x in (1 / t**2, n / t**2, n**2 / t**2, 1 / t, n / t))
    alpha, beta = (c * d - b * e) / (a * c - b * b), (a * e - b * d) / (a * c - b * b)
""",
)
also_right(
    "fit",
    "numpy-polyfit",
    body="""    import numpy
    beta, alpha = numpy.polyfit(n.numpy(), t.numpy(), 1, w=1 / t.numpy())
""",
)

mutant(
    "fit",
    "float32",
    says="compute in float64",
    replace=(
        ("rows = torch.stack([1 / t, n / t], dim=1)", "rows = torch.stack([1 / t, n / t], dim=1).float()"),
        ("dtype=torch.float64)).solution", "dtype=torch.float32)).solution"),
    ),
)
mutant(
    "fit",
    "times-on-the-right",
    says="with t on the right-hand side",
    replace=("torch.ones(len(t), 1, dtype=torch.float64)", "t[:, None]"),
)

# ---- size-for-share

mutant("size-for-share", "always-half", says="the half-bandwidth size", body="    return alpha / beta\n")
mutant("size-for-share", "share-of-it", says="most of the time", body="    return share * alpha / beta\n")
mutant("size-for-share", "missing-share", says="(1 - s) / s", body="    return (1 - share) / share * alpha / beta\n")
mutant("size-for-share", "upside-down", says="upside down", body="    return share / (1 - share) * beta / alpha\n")
mutant("size-for-share", "no-share-above", says="and one more", body="    return alpha / beta / (1 - share)\n")
also_right("size-for-share", "solved-otherwise", body="    return alpha / (beta / share - beta)\n")

mutant("size-for-share", "rounded", says="rounded", body="    return int(share / (1 - share) * alpha / beta)\n")

# ---- crossover

mutant(
    "crossover",
    "turned-round",
    says="wrong sign",
    replace=(("(beta_one - beta_other)", "(beta_other - beta_one)"), ("size if size > 0 else None", "size")),
)
mutant("crossover", "negative-sizes", says="below 0", replace=("size if size > 0 else None", "size"))
mutant("crossover", "divides-by-zero", says="divided by zero", replace=("beta_one == beta_other", "False"))
mutant("crossover", "absolute", says="only meet below 0", replace=("size if size > 0 else None", "abs(size)"))
mutant("crossover", "infinite", says="infinite", replace=("return None  # parallel lines", "return math.inf"))
mutant("crossover", "zero-is-a-size", says="not above 0", hidden=True, replace=("size > 0", "size >= 0"))
mutant("crossover", "half-bandwidth", says="half-bandwidth size of the first", body="    return alpha_one / beta_one\n")
mutant(
    "crossover",
    "only-one-order",
    says="None though they meet",
    replace=("beta_one == beta_other", "beta_one <= beta_other"),
)
also_right(
    "crossover",
    "asks-first",
    body="""    if (alpha_one - alpha_other) * (beta_one - beta_other) >= 0:
        return None
    return (alpha_one - alpha_other) / (beta_other - beta_one)
""",
)

# ---- held-out-errors

mutant("held-out-errors", "sees-everything", says="has seen the size", replace=(" if index != held_out", ""))
mutant("held-out-errors", "in-seconds", says="in seconds", replace=("/ seconds[held_out] - 1", "- seconds[held_out]"))
mutant(
    "held-out-errors",
    "no-sign",
    says="without its sign",
    replace=(
        "errors.append((alpha + sizes[held_out] * beta) / seconds[held_out] - 1)",
        "errors.append(abs((alpha + sizes[held_out] * beta) / seconds[held_out] - 1))",
    ),
)
mutant(
    "held-out-errors",
    "measured-over-predicted",
    says="the other way round",
    replace=(
        "(alpha + sizes[held_out] * beta) / seconds[held_out]",
        "seconds[held_out] / (alpha + sizes[held_out] * beta)",
    ),
)
mutant("held-out-errors", "ratio", says="subtract 1", replace=("/ seconds[held_out] - 1", "/ seconds[held_out]"))
mutant(
    "held-out-errors",
    "wrong-sign",
    says="wrong sign",
    replace=(
        "(alpha + sizes[held_out] * beta) / seconds[held_out] - 1",
        "1 - (alpha + sizes[held_out] * beta) / seconds[held_out]",
    ),
)
mutant(
    "held-out-errors",
    "leaves-out-by-size",
    says="hidden test",
    hidden=True,
    replace=("if index != held_out]", "if sizes[index] != sizes[held_out]]"),
)
also_right(
    "held-out-errors",
    "slices",
    body="""        after = held_out + 1
        alpha, beta = fit(sizes[:held_out] + sizes[after:], seconds[:held_out] + seconds[after:])
        measured = seconds[held_out]
        errors.append((alpha + beta * sizes[held_out] - measured) / measured)
""",
)

mutant(
    "held-out-errors",
    "predicts-for-the-place",
    says="for the index in the list",
    replace=("alpha + sizes[held_out] * beta", "alpha + held_out * beta"),
)
mutant(
    "held-out-errors",
    "leaves-out-the-size-alone",
    says="fit got",
    replace=("[seconds[index] for index in others]", "seconds"),
)
also_right(
    "held-out-errors",
    "puts-it-back",
    body="""        size, measured = sizes.pop(held_out), seconds.pop(held_out)
        alpha, beta = fit(sizes, seconds)
        sizes.insert(held_out, size)
        seconds.insert(held_out, measured)
        errors.append((alpha + size * beta) / measured - 1)
""",
)

# ---- recover-the-link

mutant(
    "recover-the-link",
    "the-line-itself",
    says="2 (P - 1) steps",
    replace=("alpha / steps, steps / world_size / beta", "alpha, 1 / beta"),
)
mutant("recover-the-link", "one-phase", says="two phases", replace=("2 * (world_size - 1)", "world_size - 1"))
mutant(
    "recover-the-link",
    "whole-each-step",
    says="n / P bytes, not n",
    replace=("steps / world_size / beta", "steps / beta"),
)
mutant("recover-the-link", "p-steps", says="not P", replace=("2 * (world_size - 1)", "2 * world_size"))
mutant(
    "recover-the-link",
    "returns-beta",
    says="the bandwidth is 1 / beta",
    replace=("steps / world_size / beta", "beta * world_size / steps"),
)
mutant(
    "recover-the-link",
    "latency-of-all-steps",
    says="and the link one",
    replace=("return alpha / steps", "return alpha"),
)
mutant("recover-the-link", "for-four-ranks", says="hidden test", hidden=True, replace=("2 * (world_size - 1)", "6"))
also_right(
    "recover-the-link",
    "an-asynchronous-operation",
    replace=(
        ("partial(dist.all_reduce, x)", "lambda x=x: dist.all_reduce(x, async_op=True)"),
        ("return alpha / steps, steps / world_size / beta", "return [alpha / steps, 1 / (world_size * beta / steps)]"),
    ),
)
mutant(
    "recover-the-link",
    "times-it-itself",
    says="Let seconds_of do the timing",
    replace=(
        "seconds.append(seconds_of(partial(dist.all_reduce, x)))",
        "start = time.perf_counter(); dist.all_reduce(x); seconds.append(time.perf_counter() - start)",
    ),
)
mutant(
    "recover-the-link",
    "calls-it-before",
    says="takes a function that it can call",
    replace=("partial(dist.all_reduce, x)", "dist.all_reduce(x)"),
)
mutant(
    "recover-the-link",
    "gb-instead-of-bytes",
    says="return bytes/s",
    replace=("steps / world_size / beta", "steps / world_size / beta / 1e9"),
)
