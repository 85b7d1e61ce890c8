"""Answers to lesson 03, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("time-once")
wrong("never-waits", "the time to START it").replace("if handle is not None:\n    handle.wait()\nsynchronize()", "pass")
wrong("barrier-then-synchronize", "then meet").replace("synchronize()\ndist.barrier()", "dist.barrier()\nsynchronize()")
wrong("old-work-counts", "earlier work still in the queue").replace("synchronize()\ndist.barrier()", "dist.barrier()")
wrong("no-synchronize-at-the-end", "synchronize at the end, after").replace("synchronize()\nreturn", "return")
wrong("only-on-a-gpu", "under no condition").replace("synchronize()", "torch.cuda.is_available() and synchronize()")
wrong("synchronize-then-wait", "came before the wait").replace("return", "handle and handle.wait()\nreturn").replace(
    "if handle is not None:\n    handle.wait()\n", ""
)
wrong("meets-at-the-end", "including the barrier").replace("return", "dist.barrier()\nreturn")
wrong("barrier-still-under-way", "has to be waited for").replace("barrier()", "barrier(async_op=True)")
wrong("no-barrier-at-all", "called all_reduce", caught_by="traffic").replace("dist.barrier()", "pass")
wrong("longest-of-all-ranks", "the longest time of any rank", hidden=True).replace(
    "return time.perf_counter() - start",
    "slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)\n"
    "dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\nreturn slowest.item()",
)
wrong("times-two-calls", "the time of 2 calls").replace("handle = operation()", "operation()\nhandle = operation()")
wrong("polls", "Call handle.wait()").replace("handle.wait()", "\n    while not handle.is_completed(): pass")
wrong("waits-without-a-handle", "wait only if").replace("if handle is not None:\n    handle.wait()", "handle.wait()")
right("asks-for-wait").replace("start = time.perf_counter()", "synchronize()\nbefore = time.perf_counter_ns()").replace(
    "handle is not None", 'hasattr(handle, "wait")'
).replace("time.perf_counter() - start", "(time.perf_counter_ns() - before) / 1e9")
right("another-clock").replace("dist.barrier()", "dist.barrier(async_op=True).wait()").replace(
    "time.perf_counter()", "time.monotonic()"
)

wrong, right = ANSWERS.to("times-of-the-slowest")
wrong("drops-one-more", "each of the 4 repeats").replace("slowest.tolist()", "slowest.tolist()[1:]")
wrong("warm-up-among-the-repeats", "was called 4 times").replace("range(repeats)", "range(repeats - warmup)")
wrong("averages", "the mean over the ranks").replace("ReduceOp.MAX", "ReduceOp.AVG")
wrong("sums", "the sum over the ranks").replace(", op=dist.ReduceOp.MAX", "")
wrong("fastest", "the fastest rank").replace("ReduceOp.MAX", "ReduceOp.MIN")
wrong("rank-0-alone", "rank 0's times").replace(
    "all_reduce(slowest, op=dist.ReduceOp.MAX)", "broadcast(slowest, src=0)"
)
wrong("own-times", "this rank's own times").replace("dist.all_reduce(slowest, op=dist.ReduceOp.MAX)", "pass")
wrong("one-call-each-repeat", "called all_reduce 5 times", caught_by="traffic").replace(
    "dist.all_reduce(slowest, op=dist.ReduceOp.MAX)",
    "[dist.all_reduce(one, op=dist.ReduceOp.MAX) for one in slowest.unbind()]",
)
wrong("float32", "rounded to float32").replace("dtype=torch.float64, ", "")
wrong("one-warm-up-at-least", "time_one was called", hidden=True).replace("range(warmup)", "range(max(1, warmup))")
wrong("on-rank-0-alone", "though rank 0 has the right one").replace("all_reduce(slowest", "reduce(slowest, dst=0")
wrong("sorts-first", "sorting before").replace("slowest =", "mine.sort()\nslowest =")
wrong("the-slowest-rank-in-all", "slowest overall").replace(
    "slowest =",
    "got = [None] * dist.get_world_size(); dist.all_gather_object(got, mine); return max(got, key=sum)\nslowest =",
)
wrong("largest-of-all", "the largest time of all").replace("slowest.tolist()", "[slowest.max().item()] * repeats")
wrong("keeps-the-first-calls", "warm-up included").replace("range(warmup)", "range(0)").replace(
    "range(repeats)]", "range(warmup + repeats)][:repeats]"
)
wrong("one-time-of-all", "a list of 1:").replace("slowest.tolist()", "[slowest.max().item()]")
wrong("a-thousandth", "shorter than any").replace("slowest.tolist()", "[one / 1000 for one in slowest.tolist()]")
wrong("sorts-at-the-end", "keep the order").replace("slowest.tolist()", "sorted(slowest.tolist())")
right("cuts-the-warm-up-off").function("""
    slowest = torch.tensor([time_one() for _ in range(warmup + repeats)][warmup:], dtype=torch.double)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, async_op=True).wait()
    return [one.item() for one in slowest]
""")

wrong, right = ANSWERS.to("median-and-spread")
wrong("mean", "the mean").replace("median(seconds)", "sum(seconds) / len(seconds)")
wrong("minimum", "the minimum").replace("median(seconds)", "min(seconds)")
wrong("unsorted", "sort first").replace("median(seconds)", "seconds[len(seconds) // 2]")
wrong("upper-median", "the upper of the two").replace("median(seconds)", "sorted(seconds)[len(seconds) // 2]")
wrong("torch-median", "the lower of the two").replace("median(seconds)", "torch.tensor(seconds).median().item()")
wrong("standard-deviation", "the standard deviation").replace(
    "distance =", "from statistics import pstdev\ndistance = pstdev(seconds) or"
)
wrong("range", "the range: the outlier").replace("distance = median(", "distance = max(seconds) - min(seconds); (")
wrong("mean-distance", "the mean distance").replace(
    "distance =", "distance = sum(abs(each - middle) for each in seconds) / len(seconds) or"
)
wrong("shares-of-each-time", "share of each time").replace("middle) for", "middle) / each * middle for")
wrong("signed-distances", "absolute values").replace("abs(each - middle)", "each - middle")
wrong("quartiles", "between quartiles").replace(
    "distance =", "t = torch.tensor(seconds).double()\ndistance = (t.quantile(0.75) - t.quantile(0.25)).item() or"
)
wrong("in-seconds", "divide by the median").replace("for each in seconds)", "for each in seconds) * middle")
wrong("sorts-in-place", "after the call").replace("middle =", "seconds.sort()\nmiddle =")
wrong("distances-from-the-mean", "the distance from the mean").replace("- middle)", "- sum(seconds) / len(seconds))")
wrong("percent", "in percent").replace("distance / middle", "100 * distance / middle")
wrong("largest-distance", "the largest distance").replace("distance = median(", "distance = max(")
right("torch-quantile").body("""
    times = torch.tensor(seconds, dtype=torch.float64)
    middle = times.quantile(0.5).item()
    distance = (times - middle).abs().quantile(0.5).item()
""")

wrong, right = ANSWERS.to("counted-bytes")
wrong("reduce-scatter-output", "one chunk of it").replace(
    "return handed_in", 'return handed_in // world_size if collective == "reduce_scatter" else handed_in'
)
wrong("of-all-ranks", "only to all-gather and gather").body("return world_size * handed_in")
wrong("bytes-sent", "that comes later, in busbw").replace(
    "return handed_in", 'return handed_in * (world_size - 1) / world_size if collective == "all_to_all" else handed_in'
)
wrong("forgets-gather", "one chunk of the whole").replace('in ("all_gather", "gather")', '== "all_gather"')
wrong("always-four-ranks", "gather of 3 ranks", hidden=True).replace("world_size * handed_in", "4 * handed_in")
wrong("two-phases", "the two phases come later").replace(
    "return handed_in", 'return handed_in * (2 if collective == "all_reduce" else 1)'
)
wrong("of-the-others", "this rank's own counts").replace("world_size * handed_in", "(world_size - 1) * handed_in")
right("table").body('return handed_in * {"all_gather": world_size, "gather": world_size}.get(collective, 1)')

wrong, right = ANSWERS.to("bandwidths")
wrong("always-two", "a factor of 2").replace("2 * others", "2")
wrong("no-factor", "as if the factor were 1").body("factor = 1")
wrong("send-and-receive", "twice the right one").replace("factor = others", "factor = 2 * others")
wrong("all-reduce-once", "two phases").replace("factor = 2 * others", "factor = others")
wrong("upside-down", "upside down").replace("(world_size - 1) / world_size", "world_size / (world_size - 1)")
wrong("broadcast-like-the-others", "passes on the whole, so busbw").replace('("broadcast", "reduce")', "()")
wrong("broadcast-to-each", "passes the whole on once").replace("factor = 1", "factor = world_size - 1")
wrong("one-chunk", "is P - 1 chunks").replace("factor = others", "factor = 1 / world_size")
wrong("no-parentheses", "write (P - 1) / P").replace("(world_size - 1) /", "world_size - 1 /")
wrong("only-others", "with 2 (P - 1) instead").replace("(world_size - 1) / world_size", "world_size - 1")
wrong("gib", "GiB/s").replace("/ 1e9", "/ 2**30")
wrong("bytes-per-second", "divide by 1e9").replace("/ 1e9", "/ 1")
wrong("all-ranks-time", "P times too small").replace("factor = 2 * others", "factor = 2 * others / world_size")
wrong("always-three-quarters", "hidden test", hidden=True).replace("(world_size - 1) / world_size", "0.75")
wrong("floor-division", "// rounds down").replace("(world_size - 1) / world_size", "(world_size - 1) // world_size")
wrong("two-phases-for-all", "the factor of an all-reduce").body("factor = 2 * (world_size - 1) / world_size")
right("bytes-sent").body("""
    sent = {"broadcast": 1, "reduce": 1, "all_reduce": 2 - 2 / world_size}
    factor = sent.get(collective, 1 - 1 / world_size)
""")

wrong, right = ANSWERS.to("find-the-mistakes")
wrong("gib-of-one-step", sentence='The factor of "GiB" is 1e9 / 2**30: the same speed is fewer GiB than GB.').replace(
    "1e9 / 2**30", "1000 / 1024"
)
wrong("gib-upside-down", same_as="gib-of-one-step").replace("1e9 / 2**30", "2**30 / 1e9")
wrong("chunk-upside-down", sentence='The factor of "one chunk" is 1 / P, for any number of ranks P.').replace(
    "1 / world_size", "world_size"
)
wrong("half-both-ways", sentence='The factor of "both ways" is 2: received bytes come on top.').replace(
    's": 2', 's": 0.5'
)
wrong("algbw-upside-down", sentence='The factor of "algbw" is algbw / busbw, so it depends on the collective.').replace(
    "algbw / busbw", "busbw / algbw"
)
wrong("adds-the-factors", sentence="Multiply the factors of a subset; don't add them.").replace("math.prod(", "sum(")
wrong("divides", sentence="Multiply busbw by the factors; don't divide it.").replace(
    "busbw * math.prod(", "busbw / math.prod("
)
wrong("too-tolerant", sentence="The tolerance is 1 % of the claim; yours is larger.").replace(
    "0.01 * claim", "0.03 * claim"
)
wrong("too-strict", sentence="The tolerance is 1 % of the claim, 0.01 * claim; yours is smaller.").replace(
    "0.01 * claim", "1e-6 * claim"
)
wrong("at-most-two", sentence="Try the subsets of three and of four mistakes, too.", hidden=True).replace(
    "list(mistakes)", "list(mistakes) if how_many < 3 else None"
)
wrong("rounds", sentence="Don't round: compare the numbers themselves.").replace(
    "abs(wrong - claim) <= 0.01 * claim", "round(wrong) == round(claim)"
)
wrong(
    "one-sided",
    sentence="Take the absolute value of the difference between your product and the claim: too large or too small, "
    "both count.",
).replace("abs(wrong - claim) <= 0.01", "wrong - claim <= 0.01")
wrong("returns-the-wrong-number", "with the mistakes in it").replace("busbw, list(mistakes)", "wrong, list(mistakes)")
wrong("words-instead-of-a-list", "A list of names").replace("list(mistakes)", '", ".join(mistakes)')
wrong("factor-of-an-all-reduce", same_as="algbw-upside-down").replace(
    "algbw / busbw", "world_size / (2 * world_size - 2)"
)
wrong("algbw-times-factors", sentence="Multiply busbw by the factors, not algbw.").replace(
    "busbw * math.prod", "algbw * math.prod"
)
wrong("one-mistake-alone", sentence="Try pairs, too: people make several mistakes at once.").replace(
    "list(mistakes)", "list(mistakes) if how_many < 2 else None"
)
wrong("no-mistake-is-none", sentence="If no subset explains the claim, return None: [] says that it is right.").replace(
    "return busbw, None", "return busbw, []"
)
wrong("largest-subset", "alone explains it").replace("range(len(factors) + 1)", "(4, 3, 2, 1, 0)")
wrong("gives-up-at-once", sentence="Return None only when all subsets have been tried: after both loops.").replace(
    "if abs(", "if how_many: return busbw, None\nif abs("
)
wrong("none-if-there-is-no-mistake", "so return []").replace("list(mistakes)", "list(mistakes) or None")
wrong("no-chunk-in-a-broadcast", "'one chunk', for every").replace(
    "1 / world", 'collective == "broadcast" or 1 / world'
)
wrong("never-starts-again", "start again at busbw").replace("wrong = busbw *", "wrong *=").replace(
    "for how_many", "wrong = busbw\nfor how_many"
)
wrong("near-it", "only near").replace("return busbw, list", "return busbw * claim / wrong, list")
wrong("returns-algbw", "the first number must be").replace("return busbw, list", "return algbw, list")
wrong("keeps-the-last", "alone explains it").replace('factors["algbw"]', 'found = None\nfactors["algbw"]').replace(
    "return busbw, list(mistakes)", "found = list(mistakes)"
).replace("return busbw, None", "return busbw, found")
right("tuple").replace("list(mistakes)", "mistakes")
right("isclose").replace("abs(wrong - claim) <= 0.01 * claim", "math.isclose(wrong / claim, 1, abs_tol=0.01)").replace(
    "return busbw, list(mistakes)", "return [busbw, set(mistakes)]"
)

wrong, right = ANSWERS.to("sweep-sizes")
wrong("not-rounded", sentence="sizes that can't be cut into P equal chunks of whole elements: round down").replace(
    "nbytes - nbytes % (world_size * itemsize)", "nbytes"
)
wrong(
    "whole-numbers-only",
    sentence="multiples of one element: they must be multiples of P * itemsize, so that every rank gets whole elements",
).replace("% (world_size * itemsize)", "% itemsize")
wrong(
    "forgets-itemsize",
    sentence="multiples of P: an element has `itemsize` bytes, so they must be multiples of P * itemsize",
).replace("% (world_size * itemsize)", "% world_size")
wrong(
    "common-multiple",
    sentence="multiples of lcm(P, itemsize): only if P * itemsize divides them does every rank get whole elements",
).replace("(world_size * itemsize)", "math.lcm(world_size, itemsize)")
wrong("rounds-up", sentence="sizes rounded up: round down").replace("nbytes - nbytes %", "nbytes + -nbytes %")
wrong("keeps-zero", sentence="sizes with a 0 among them: leave it out").replace("if possible > 0:", "if True:")
wrong("four-bytes-each", "hidden test", hidden=True).replace("* itemsize)", "* (8 if itemsize == 8 else 4))")
wrong("rounds-the-loop-variable", "0 times `step` is still 0", varies=True).replace("possible =", "possible = nbytes =")
wrong("multiples-only", sentence="the sizes alone that are multiples of P * itemsize: round the others down").replace(
    "possible > 0", "possible == nbytes"
)
wrong(
    "no-parentheses",
    sentence="the result of nbytes % P * itemsize, which is (nbytes % P) * itemsize: use P * itemsize in parentheses",
).replace("(world_size * itemsize)", "world_size * itemsize")
wrong(
    "floor-precedence",
    sentence="the result of // P * itemsize, which divides by P alone: use P * itemsize in parentheses",
).replace("nbytes - nbytes %", "nbytes // world_size * itemsize *")
wrong("rounds-first", sentence="sizes rounded before they were multiplied: multiply the unrounded ones").replace(
    "if possible", "nbytes = possible or nbytes\nif possible"
)
wrong("without-the-largest", sentence="the sizes without the largest: `largest` itself counts").replace(
    "possible > 0", "possible > 0 and nbytes < largest"
)
wrong("floats", "return whole numbers").replace("sizes.append(possible)", "sizes.append(possible / 1)")
wrong("raises-small-sizes", sentence="sizes of which small ones were raised: leave those out").replace(
    "* itemsize)", "* itemsize) or world_size * itemsize"
)
wrong("stops-at-the-first-zero", sentence="an empty list: leave out a small size, and go on with the next").replace(
    "if possible > 0:\n    sizes.append(possible)", "if possible == 0:\n    break\nsizes.append(possible)"
)
wrong("numbers-instead-of-bytes", sentence="numbers of elements: multiply by itemsize").replace(
    "append(possible)", "append(possible // itemsize)"
)
wrong("rounds-to-nearest", sentence="sizes rounded to the nearest multiple: round down").replace(
    "nbytes - nbytes %", "round(nbytes / world_size / itemsize) *"
)
wrong("counts-chunks", sentence="numbers of whole chunks: multiply by P * itemsize again").replace(
    "append(possible)", "append(possible // world_size // itemsize)"
)
wrong("more-than-one-each", sentence="the sizes without the smallest: one element for each rank is enough").replace(
    "possible > 0", "possible > world_size * itemsize"
)
right("floor-division").body("""
    count = nbytes // itemsize // world_size
    sizes += [count * world_size * itemsize] * (count > 0)
""")

wrong, right = ANSWERS.to("fit")
ROWS, ONES = "[1 / t, n / t]", "torch.ones(len(t), 1, dtype=torch.float64)"
wrong("unweighted", sentence="ordinary least squares: divide each error by its time").replace(
    ROWS, "[torch.ones_like(n), n]"
).replace(ONES, "t[:, None]")
wrong(
    "root-weights",
    sentence="the fit weighted by 1 / t: the squares need 1 / t ** 2, so divide the errors, not their squares",
).replace(ROWS, "[1 / t.sqrt(), n / t.sqrt()]").replace(ONES, "t.sqrt()[:, None]")
wrong("divides-twice", sentence="the fit weighted by 1 / t ** 4: each row is divided by t once").replace(
    ROWS, "[1 / t**2, n / t**2]"
).replace(ONES, "1 / t[:, None]")
wrong("turned-round", "the latency comes first").replace(ROWS, "[n / t, 1 / t]")
wrong("bandwidth-instead-of-beta", "seconds per byte").replace("return", "beta = 1 / beta\nreturn")
wrong("two-points", sentence="the line through the first and the last point: all sizes count").body("""
    beta = ((t[-1] - t[0]) / (n[-1] - n[0])).item()
    alpha = (t[0] - beta * n[0]).item()
""")
wrong("fits-beta-alone", "alpha was set to 0").replace(
    "return", "if alpha < 0:\n    alpha, beta = 0, ((n / t).sum() / (n / t).square().sum()).item()\nreturn"
)
wrong("float32", "compute in float64", varies=True).replace("dim=1", "dim=1).float(").replace(
    ONES, "torch.ones(len(t), 1, dtype=torch.float32)"
)
wrong("times-on-the-right", sentence="the solution with t on the right-hand side: divided by t, it is 1").replace(
    ONES, "t[:, None]"
)
wrong("regresses-1-over-t", "near the best line").body("""
    slope, start = linear_regression((n / t).tolist(), (1 / t).tolist())
    alpha, beta = 1 / start, -slope / start
""")
wrong(
    "relative-to-the-size", sentence="the fit weighted by 1 / n: an error is relative to its time, not to its size"
).replace(ROWS, "[1 / n, n / n]").replace(ONES, "(t / n)[:, None]")
wrong("tensors", "holds tensors").replace(".flatten().tolist()", ".flatten()")
wrong("rows-instead-of-columns", "Stack the two columns").replace(", dim=1)", ")")
right("normal-equations").body("""
    a, b, c, d, e = (x.sum().item() for x in (1 / t**2, n / t**2, n**2 / t**2, 1 / t, n / t))
    alpha, beta = (c * d - b * e) / (a * c - b * b), (a * e - b * d) / (a * c - b * b)
""")
right("numpy-polyfit").body("import numpy\nbeta, alpha = numpy.polyfit(n.numpy(), t.numpy(), 1, w=1 / t.numpy())")

wrong, right = ANSWERS.to("size-for-share")
wrong("always-half", "the half-bandwidth size").body("return alpha / beta")
wrong("share-of-it", "most of the time").replace("share / (1 - share)", "share")
wrong("missing-share", "(1 - s) / s").replace("share / (1 - share)", "(1 - share) / share")
wrong("upside-down", "upside down").body("return share / (1 - share) * beta / alpha")
wrong("no-share-above", "collect n on the left").body("return alpha / beta / (1 - share)")
wrong("rest-of-it", "the closer s is to 1").replace("share / (1 - share)", "(1 - share)")
wrong("rounded", "rounded").body("return int(share / (1 - share) * alpha / beta)")
wrong("share-of-one", "share / beta").body("return share * alpha / (1 - share * beta)")
wrong("times-beta", "less than one byte").body("return share / (1 - share) * alpha * beta")
wrong("in-seconds", "divide by beta").body("return share / (1 - share) * alpha")
wrong("twice-the-share", "right for a half alone").body("return 2 * share * alpha / beta")
wrong("wrong-sign", "changes its sign").replace("1 - share", "1 + share")
wrong("divides-by-alpha", "alpha may be 0", hidden=True).body("return 1 / ((1 / share - 1) * beta / alpha)")
right("solved-otherwise").body("return alpha / (beta / share - beta)")

wrong, right = ANSWERS.to("crossover")
wrong("turned-round", "wrong sign").replace("(beta_one - beta_other)", "(beta_other - beta_one)").replace("> 0", "")
wrong("negative-sizes", "below 0").replace("size if size > 0 else None", "size")
wrong("divides-by-zero", "Two lines with the same beta are parallel").replace("beta_one == beta_other", "False")
wrong("absolute", "without its sign").replace("size if size > 0 else None", "abs(size)")
wrong("infinite", "infinite").replace("return None", "return math.inf")
wrong("zero-is-a-size", "must be above 0").replace("size > 0", "size >= 0")
wrong("only-one-order", "may come first or second").replace("beta_one == beta_other", "beta_one <= beta_other")
wrong("small-betas-are-equal", "a tolerance").replace("beta_one == beta_other", "abs(beta_one - beta_other) < 1e-9")
wrong("sign", "the sign of one difference").replace("(beta_one - beta_other)", "(beta_other - beta_one)")
wrong("adds-the-betas", "adding the betas").replace("/ (beta_one - beta_other)", "/ (beta_one + beta_other)")
wrong("time-there", "return the size").replace("return size if", "return alpha_one + size * beta_one if")
wrong("whole-bytes", "as it comes out", hidden=True).replace("/ (beta_one", "// (beta_one")
right("asks-first").body("""
    if (alpha_one - alpha_other) * (beta_one - beta_other) >= 0:
        return None
    return (alpha_one - alpha_other) / (beta_other - beta_one)
""")

wrong, right = ANSWERS.to("held-out-errors")
wrong("sees-everything", sentence="the error of a fit that has seen the size itself: leave it out").replace(
    " if index != held_out", ""
)
wrong("in-seconds", "in seconds").replace("/ seconds[held_out] - 1", "- seconds[held_out]")
wrong("no-sign", "without its sign").replace("return errors", "return [abs(error) for error in errors]")
wrong("measured-over-predicted", "the other way round").replace("return", "return [1 / (1 + e) - 1 for e in errors] or")
wrong("share-of-predicted", "of the prediction").replace("return", "return [e / (1 + e) for e in errors] or")
wrong("wrong-sign", "wrong sign").replace("return errors", "return [-error for error in errors]")
wrong("percent", "in percent").replace("return errors", "return [100 * error for error in errors]")
wrong("ratio", "subtract 1").replace("/ seconds[held_out] - 1", "/ seconds[held_out]")
wrong(
    "leaves-out-by-size",
    sentence="the error of a fit that leaves points out by value, and a value can occur twice: leave out a position",
).replace("index != held_out", "sizes[index] != sizes[held_out]")
wrong("finds-the-size", same_as="leaves-out-by-size").replace(
    "index != held_out", "index != sizes.index(sizes[held_out])"
)
wrong("finds-size-and-time", same_as="leaves-out-by-size").replace(
    "others =", "held_out = sizes.index(sizes[held_out])\nothers ="
)
wrong("removes-by-value", same_as="leaves-out-by-size").replace(
    "index != held_out", "index != sizes.index(sizes[held_out])"
).replace("for index in others])", "for index in range(len(seconds)) if index != seconds.index(seconds[held_out])])")
wrong("alpha-per-byte", "beta is the time per byte").replace("alpha, beta = fit", "beta, alpha = fit")
wrong("predicts-for-the-place", "for the index in the list").replace("sizes[held_out]", "held_out")
wrong("leaves-out-the-size-alone", "fit got", varies=True).replace("[seconds[index] for index in others]", "seconds")
wrong("leaves-out-by-time", same_as="leaves-out-by-size", hidden=True).replace(
    "index != held_out", "seconds[index] != seconds[held_out]"
)
wrong("between-the-neighbours", "called 0 times").body("errors.append(seconds[held_out - 1] / seconds[held_out] - 1)")
right("puts-it-back").body("""
    size, measured = sizes.pop(held_out), seconds.pop(held_out)
    alpha, beta = fit(sizes, seconds)
    sizes.insert(held_out, size)
    seconds.insert(held_out, measured)
    errors.append((alpha + size * beta) / measured - 1)
""")

wrong, right = ANSWERS.to("recover-the-link")
MEASURED = "seconds.append(seconds_of(partial(dist.all_reduce, x)))"
wrong("the-line-itself", sentence="the fitted line itself: it has 2 (P - 1) steps, each of n / P bytes").replace(
    "alpha / steps, steps / world_size / beta", "alpha, 1 / beta"
)
wrong("one-phase", sentence="2 times too large: an all-reduce has two phases of P - 1 steps").replace(
    "2 * (world_size - 1)", "world_size - 1"
)
wrong("one-phase-of-bytes", sentence="2 times too small: an all-reduce has two phases of P - 1 steps").replace(
    "/ world_size / beta", "/ 2 / world_size / beta"
)
wrong("whole-each-step", sentence="P times too large: each step moves n / P bytes, not n").replace(
    "steps / world_size / beta", "steps / beta"
)
wrong("p-steps", sentence="too small: a ring of P ranks has P - 1 steps in each phase, not P").replace(
    "2 * (world_size - 1)", "2 * world_size"
)
wrong("steps-without-parentheses", sentence="too small: divide by 2 (P - 1), with parentheses, not by 2 P - 1").replace(
    "2 * (world_size - 1)", "2 * world_size - 1"
)
wrong(
    "alpha-per-rank", sentence="too large: divide by the number of steps, 2 (P - 1), not by the number of ranks"
).replace("alpha / steps", "alpha / world_size")
wrong("returns-beta", sentence="(alpha, beta) of the link: the bandwidth is 1 / beta").replace(
    "steps / world_size / beta", "beta * world_size / steps"
)
wrong(
    "latency-of-all-steps", sentence="2 (P - 1) times too large: the line has so many latencies, and the link one"
).replace("return alpha / steps", "return alpha")
wrong("for-four-ranks", "hidden test", hidden=True).replace("2 * (world_size - 1)", "6")
wrong("times-it-itself", "Let seconds_of do the timing").replace(
    MEASURED, "start = time.perf_counter(); dist.all_reduce(x); seconds.append(time.perf_counter() - start)"
)
wrong("calls-it-before", "that it can call").replace("partial(dist.all_reduce, x)", "dist.all_reduce(x)")
wrong("microseconds", sentence="1e6 times too large: return seconds, as the docstring says").replace(
    "alpha / steps", "1e6 * alpha / steps"
)
wrong("gb-instead-of-bytes", sentence="1e9 times too small: return bytes/s, as the docstring says").replace(
    "steps / world_size / beta", "steps / world_size / beta / 1e9"
)
wrong(
    "last-x-in-all-operations",
    sentence="the time of the largest size: do all your operations call all_reduce with the last x?",
).replace(MEASURED, "seconds.append(lambda: dist.all_reduce(x))").replace(
    "fit(sizes, seconds)", "fit(sizes, [seconds_of(one) for one in seconds])"
)
wrong(
    "for-two-ranks", sentence="P - 1 times too large: only 2 ranks take 2 steps; a ring of P ranks takes 2 (P - 1)"
).replace("alpha / steps", "alpha / 2")
wrong("elements", sentence="4 times too small: `fit` takes sizes in bytes").replace(
    "fit(sizes, seconds)", "fit([n // 4 for n in sizes], seconds)"
)
wrong(
    "bandwidth-of-the-line",
    sentence="1 / beta of the fitted line: per byte the ring has 2 (P - 1) / P times as much to send",
).replace("steps / world_size / beta", "1 / beta")
wrong("upside-down", sentence="the result with the factor upside down: multiply 1 / beta by 2 (P - 1) / P").replace(
    "steps / world_size / beta", "world_size / steps / beta"
)
wrong("broadcasts", "called broadcast 3 times").replace("dist.all_reduce, x)", "dist.broadcast, x, src=0)")
right("an-asynchronous-operation").replace(
    "partial(dist.all_reduce, x)", "lambda x=x: dist.all_reduce(x, async_op=True)"
).replace("return alpha / steps, steps / world_size / beta", "return [alpha / steps, 1 / (world_size * beta / steps)]")

wrong, right = ANSWERS.to("shortest-benchmark")
wrong("a-full-sweep", "since the score counts all calls", caught_by="score").replace("10 *", "1000 *")
wrong("a-little-more", "times par", caught_by="score").replace("10 *", "30 *")
wrong("stops-at-twice", "too small a difference", caught_by="score").replace("10 * smallest", "2 * smallest")
wrong("forgets-alpha", "subtract alpha first", caught_by="score").replace("(took - smallest) / nbytes", "took / nbytes")
wrong("other-way-round", "the other one", caught_by="score").replace(
    "smallest, (took - smallest) / nbytes", "(took - smallest) / nbytes, smallest"
)
wrong("starts-too-large", "take part of the time", caught_by="score").replace(
    "seconds_of(1)", "seconds_of(2**16)"
).replace("nbytes = 1\n", "nbytes = 2**16\n")
wrong("half-a-byte", "a whole number from 1 on", caught_by="score").replace("seconds_of(1)", "seconds_of(0.5)")
wrong("this-link-only", "beta is", caught_by="score").body("""
    smallest, took = seconds_of(1), seconds_of(2**20)
    return smallest, (took - smallest) / 2**20
""")
wrong("bandwidth", "return seconds per byte", caught_by="score").replace(
    "(took - smallest) / nbytes", "nbytes / (took - smallest)"
)
wrong("never-measures", "never called seconds_of", caught_by="score").body("return 1e-6, 1e-10")
right("looks-ahead").body("""
    smallest, nbytes = seconds_of(1), 1
    took = smallest
    while took < 1.2 * smallest:  # 20 % more can't be an error of 2 %
        nbytes *= 8
        took = seconds_of(nbytes)
    if took < 4 * smallest:
        nbytes = int(4 * nbytes * smallest / (took - smallest)) + 1
        took = seconds_of(nbytes)
    return smallest, (took - smallest) / nbytes
""")
