"""Answers to lesson 04, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("bandwidth-of-levels")
wrong("keeps-the-fixed-cost", sentence="with the fixed cost still in: subtract it from each time").replace(
    "(t - fixed)", "t"
)
wrong("adds-the-fixed-cost", sentence="with the fixed cost added: subtract it from each time").replace(
    "(t - fixed)", "(t + fixed)"
)
wrong("moves-n", sentence="half of it: a copy of n bytes reads n and writes n").replace(
    "append(2 * n / (t", "append(n / (t"
)
wrong("touches-n", sentence="what you get if copies of n bytes touch n bytes: they touch 2 n, which must fit").replace(
    "if 2 * n <= size", "if n <= size"
)
wrong("inverse", sentence="the time per byte: bandwidth is bytes per second").replace(
    "2 * n / (t - fixed))", "(t - fixed) / (2 * n))"
)
wrong(
    "exactly-full-is-too-full",
    sentence="what you get if a copy must leave some room: one that fills a level belongs to it",
).replace("2 * n <= size", "2 * n < size")
wrong("best-of-each-level", sentence="the best: take the median").replace(
    "rates[level].append(2 * n / (t - fixed))", "rates[level] = [max([*rates[level], 2 * n / (t - fixed)])]"
)
wrong(
    "every-level-that-fits",
    sentence="of all copies that fit: each belongs to the first level that has room, and to no other",
).body("""
    if t < 1.1 * fixed:
        continue
    for level, size in levels.items():
        if 2 * n <= size:
            rates[level].append(2 * n / (t - fixed))
""")
wrong("in-gigabytes", sentence="in GB/s: return bytes/s").replace("(t - fixed))", "(t - fixed) / 1e9)")
wrong(
    "all-together",
    sentence="all bytes of a level divided by all of their seconds: take the median of the copies' rates",
).function("""
    totals = {}
    for n, t in zip(nbytes, seconds):
        if t >= 1.1 * fixed:
            level = next(name for name, size in levels.items() if 2 * n <= size)
            moved, took = totals.get(level, (0, 0.0))
            totals[level] = moved + 2 * n, took + t - fixed
    return {name: totals[name][0] / totals[name][1] for name in levels if name in totals}
""")
wrong("noise-counts", sentence="with copies that took less than 1.1 times the fixed cost: leave them out").replace(
    "t < 1.1 * fixed", "t <= fixed"
)
wrong(
    "net-time-decides",
    sentence="without copies of less than 2.1 times the fixed cost: the whole time must be 1.1 times as long",
).replace("t < 1.1 * fixed", "t - fixed < 1.1 * fixed")
right("goes-through-the-levels").body("""
    for level in levels:
        if n + n <= levels[level]:
            rates[level] += [(n + n) / (t - fixed)] if t >= 1.1 * fixed else []
            break
""")

wrong, right = ANSWERS.to("roofline-time")
wrong("adds-both", "the longer one counts").replace("max(computing, moving)", "computing + moving")
wrong("forgets-the-launch", "without the launch").replace(" + gpu.launch", "")
wrong("takes-the-shorter", "the shorter of the two").replace("max(", "min(")
wrong("computing-alone", "you predict", caught_by="time").replace("max(computing, moving)", "computing")
wrong("always-float32", "gpu.peak(dtype)").replace("gpu.peak(dtype)", 'gpu.peak("float32")')
wrong("swaps-the-words", "the other one").replace("if moving > computing", "if moving < computing")
wrong("launch-counts-as-moving", "it counts as neither").replace(
    "if moving > computing", "if moving + gpu.launch > computing"
)
wrong("two-launches", sentence="with more than one launch: an operation has one").replace("+ gpu", "+ 2 * gpu")
wrong("moved-in-numbers", sentence="for `moved` numbers of several bytes each: `moved` is in bytes").replace(
    "moved / gpu.bandwidth", "moved * getattr(torch, dtype).itemsize / gpu.bandwidth"
)
right("compares-intensities").body("""
    bound = "memory" if moved and flops / moved < gpu.peak(dtype) / gpu.bandwidth else "compute"
    seconds = gpu.launch + (moved / gpu.bandwidth if bound == "memory" else computing)
""")
wrong("peak-of-bfloat16", "the peak of bfloat16").replace("flops / gpu.peak(dtype)", 'flops / gpu.peak("bfloat16")')

wrong, right = ANSWERS.to("fused-chain")
wrong("forgets-relu", "without the relu").replace("torch.relu(x * scale + shift)", "x * scale + shift")
wrong("shift-first", "scale, then shift").replace("x * scale + shift", "(x + shift) * scale")
wrong("relu-first", "it comes last").replace("torch.relu(x * scale + shift)", "torch.relu(x) * scale + shift")
wrong("loads-everything", "the chip has room for").replace('"x", here', '"x", slice(0, numel)')
wrong("by-way-of-memory", "need not go back to memory", caught_by="traffic").body("""
    here = slice(start, start + block)
    memory.store("y", memory.load("x", here) * scale, here)
    memory.store("y", memory.load("y", here) + shift, here)
    memory.store("y", torch.relu(memory.load("y", here)), here)
""")
wrong("whole-blocks-only", "without the last, shorter block").body("""
    here = slice(start, start + block)
    if start + block <= numel:
        memory.store("y", torch.relu(memory.load("x", here) * scale + shift), here)
""")
wrong("ends-a-block-early", sentence="without the last block: range(0, numel, block) has its start, too").replace(
    "range(0, numel, block)", "range(0, numel - block, block)"
)
wrong(
    "end-is-a-length", sentence="without all blocks but the first: slice(start, end) has an end, not a length"
).replace("slice(start, start + block)", "slice(start, block)")
wrong(
    "first-of-each-block", sentence="one number of each block: a slice has a start and an end, that of the block"
).replace("slice(start, start + block)", "slice(start, start + 1)")
wrong("in-float32", sentence="rounded to float32: y has the dtype of x", hidden=True).replace(
    "torch.relu(x *", "torch.relu(x.float() *"
)
wrong("start-and-end", "one slice per dimension").replace('load("x", here)', 'load("x", start, start + block)')
wrong("looks-into-the-arrays", "only memory.load and memory.store", caught_by="traffic").replace(
    'memory.load("x", here)', 'memory.arrays["x"][here]'
)
right("in-place-on-the-chip").body("""
    part = memory.load("x", slice(start, min(start + block, numel)))
    memory.store("y", part.mul_(scale).add_(shift).clamp_(min=0), slice(start, start + len(part)))
""")
right("from-the-end").function("""
    end, block = numel, max(1, memory.room // 2)
    while end > 0:
        here = slice(max(0, end - block), end)
        memory.store("y", (memory.load("x", here) * scale + shift).clamp(min=0), here)
        end -= block
    return memory
""")

wrong, right = ANSWERS.to("tiled-matmul")
wrong("forgets-to-add", "add them up").replace("total = total + ", "total = ")
wrong("first-product-only", "the first 2 places of the inner dimension").replace(
    "range(0, k, tile)", "range(0, tile, tile)"
)
wrong("b-transposed", "a times b transposed").replace(
    'memory.load("b", inner, columns)', 'memory.load("b", columns, inner).T'
)
wrong("stores-every-step", "stays on the chip until it is complete", caught_by="traffic").replace(
    '"b", inner, columns)', '"b", inner, columns)\nmemory.store("c", total, rows, columns)'
)
wrong("tiles-of-one-number", "times what is needed", caught_by="traffic").function("""
    for i in range(m):
        for j in range(n):
            row, column = slice(i, i + 1), slice(j, j + 1)
            total = 0
            for step in range(k):
                inner = slice(step, step + 1)
                total = total + memory.load("a", row, inner) @ memory.load("b", inner, column)
            memory.store("c", total, row, column)
    return memory
""")
wrong("total-of-all-tiles", sentence="with the tiles before it added: each tile of c starts at 0").replace(
    "total = 0", "total = total if i or j else 0"
)
wrong("adds-to-what-was-there", "what c held at first").replace("total = 0", 'total = memory.load("c", rows, columns)')
wrong("a-transposed", sentence="made with tiles of a transposed: they are at (rows, inner)").replace(
    '"a", rows, inner', '"a", inner, rows'
)
wrong("steps-of-one", sentence="made with tiles that overlap: step goes up by `tile`").replace(
    "range(0, k, tile)", "range(k // tile)"
)
wrong("one-product", sentence="a single product of tiles for each tile of c: it takes one for each step").body("""
    memory.store("c", memory.load("a", rows, columns) @ memory.load("b", rows, columns), rows, columns)
""")
wrong("whole-rows", "the chip has room for").body("""
    inner = slice(0, k)
    memory.store("c", memory.load("a", rows, inner) @ memory.load("b", inner, columns), rows, columns)
""")
wrong("loads-a-twice", "1.5 times what is needed", caught_by="traffic").replace(
    "total = total", 'memory.load("a", rows, inner)\ntotal = total'
)
wrong("whole-tiles-only", "places of the inner dimension", hidden=True).replace(
    "range(0, k, tile)", "range(0, max(1, k // tile) * tile, tile)"
)
wrong("element-by-element", "use @").replace(" @ memory", " * memory")
wrong("wrong-tiles-of-b", "the wrong tiles of b").replace('"b", inner, columns', '"b", columns, inner')
right("keeps-tiles-in-variables").body("""
    first, *others = [slice(step, step + tile) for step in range(0, k, tile)]
    total = memory.load("a", rows, first) @ memory.load("b", first, columns)
    for inner in others:
        left = memory.load("a", rows, inner)
        right = memory.load("b", inner, columns)
        total += left @ right
    memory.store("c", total, rows, columns)
""")
right("keeps-a-tile-for-the-next-column").replace("for i", "steps = list(range(0, k, tile))\nfor i").replace(
    "for j", "left, at = None, None\nfor j"
).replace(
    "rows, columns = slice(i, i + tile), slice(j, j + tile)",
    "rows, columns, total = slice(i, i + tile), slice(j, j + tile), 0",
).replace("total = 0", "steps.reverse()").replace("for step in range(0, k, tile):", "for step in steps:").replace(
    'total = total + memory.load("a", rows, inner) @ memory.load("b", inner, columns)',
    "if step != at:\n"
    '    left, at = memory.load("a", rows, inner), step\n'
    'total = total + left @ memory.load("b", inner, columns)',
)
wrong("inner-loop-over-n", "the first 6 places of the inner dimension").replace(
    "range(0, k, tile)", "range(0, n, tile)"
)
wrong("b-at-the-rows-of-c", sentence="made with tiles of b at the rows of c: they are at (inner, columns)").replace(
    '"b", inner, columns', '"b", rows, columns'
)

wrong, right = ANSWERS.to("read-topology")
wrong("keeps-the-names", "shifted").replace("1 : gpus + 1", ":gpus")
wrong("name-in-front", "the GPU's name in front").replace("1 : gpus + 1", ": gpus + 1")
wrong("all-columns", "columns that are not GPUs").replace("1 : gpus + 1", "1:")
wrong("cuts-at-tabs-only", "white space around the labels").replace("line.split()", 'line.split("\\t")')
wrong("last-column-missing", "without the last columns").replace("1 : gpus + 1", "1:gpus")
wrong("names-of-one-digit", "two digits", hidden=True).replace(
    "gpus = len(lines)", "lines = [line for line in lines if line[4:5].isspace()]\ngpus = len(lines)"
)
wrong("counts-words-in-the-first-line", "Only rows of GPUs count").function("""
    lines = text.splitlines()
    gpus = lines[0].count("GPU")  # "GPU NUMA ID" has it too
    return [line.split()[1 : gpus + 1] for line in lines[1 : gpus + 1]]
""")
right("takes-labels-only").body(r"""
    import re
    rows = re.findall(r"^GPU\d+\s.*", text, re.MULTILINE)
    matrix = [re.findall(r"\b(?:X|SYS|NODE|PHB|PXB|PIX|NV\d+)\b", row)[: len(rows)] for row in rows]
""")
wrong("splits-at-tabs", "splits at any white space", hidden=True).replace(
    "line.split()[1 : gpus + 1]", "[label.strip() for label in line.split('\\t')][1:gpus + 1]"
)

wrong, right = ANSWERS.to("collective-costs")
wrong("rounds-the-levels-down", "log2 P rounded down").replace("(P - 1).bit_length()", "P.bit_length() - 1")
wrong("levels-are-not-whole", "rounds are whole").replace("(P - 1).bit_length()", "math.log2(P)")
wrong("p-rounds", "there are P - 1 other ranks").replace("(P - 1, others, 0)", "(P, others, 0)")
wrong("bit-length-of-p", "rounded up, are enough").replace("(P - 1).bit_length()", "P.bit_length()")
wrong("sent-and-received", "at the same time count once").replace(
    '"pairwise all-to-all": (P - 1,', '"pairwise all-to-all": (2 * (P - 1),'
)
wrong("one-phase", "an all-reduce has two phases").replace(
    "(2 * (P - 1), 2 * others, others)", "(P - 1, others, others)"
)
wrong("whole-in-each-round", "a chunk is a P-th of it").replace("(P - 1, others, 0)", "(P - 1, P - 1, 0)")
wrong("flat-at-once", "messages that wait for each other").replace(
    '"flat scatter": (P - 1, others, 0)', '"flat scatter": (1, 1 / P, 0)'
)
wrong("one-chunk", "there are P - 1 of them").replace(
    '"flat gather": (P - 1, others, 0)', '"flat gather": (P - 1, 1 / P, 0)'
)
wrong("tree-sends-once", "a tree sends it in every round").replace("(levels, levels, 0)", "(levels, 1, 0)")
wrong("adds-in-both-phases", "pass results on add nothing").replace("2 * others, others)", "2 * others, 2 * others)")
wrong("tree-adds-once", "a tree adds it in every round").replace("(levels, levels, levels)", "(levels, levels, 1)")
wrong("halves-forever", "exchanges half as much").replace(
    "(2 * levels, 2 * others, others)", "(2 * levels, levels, others)"
)
wrong("never-adds", "what arrives in a reduce is added").replace("(P - 1, others, others)", "(P - 1, others, 0)")
wrong("gather-adds", "nothing is added here").replace(
    '"flat gather": (P - 1, others, 0)', '"flat gather": (P - 1, others, others)'
)
wrong("tree-adds-nothing", "by your numbers it takes", caught_by="time").replace(
    "(levels, levels, levels)", "(levels, levels, 0)"
)
wrong("returns-seconds", "3 values", caught_by="time").replace(
    "return costs[algorithm]", "return sum(costs[algorithm])"
)
right("composes").body("""
    levels, others = math.ceil(math.log2(P)), 1 - 1 / P
    def both(one, other):
        return tuple(a + b for a, b in zip(one, other))
    flat = (P - 1, others, 0)
    up, down, ring = (levels, levels, levels), (levels, levels, 0), (P - 1, others, others)
    costs = {
        "flat scatter": flat, "flat gather": flat, "pairwise all-to-all": flat, "ring all-gather": flat,
        "tree broadcast": down, "tree reduce": up, "ring reduce-scatter": ring,
        "ring all-reduce": both(ring, flat), "tree all-reduce": both(up, down),
        "halving-doubling all-reduce": both((levels, others, others), (levels, others, 0)),
    }
""")

wrong, right = ANSWERS.to("tuning-table")
wrong(
    "next-by-latency",
    sentence="each line compared with the next by latency alone: a line that is nowhere lowest gets an entry",
).body("""
    order = sorted(lines, key=lines.__getitem__)
    table = [(0.0, order[0])]
    for one, other in zip(order, order[1:]):
        (a, b), (c, d) = lines[one], lines[other]
        if d < b:
            table.append(((c - a) / (b - d), other))
    return table
""")
wrong(
    "only-the-ends",
    sentence="a table of the first line and the flattest one alone: those between them are lowest somewhere, too",
).body("""
    first, last = min(lines, key=lines.__getitem__), min(lines, key=lambda name: lines[name][1])
    (a, b), (c, d) = lines[first], lines[last]
    return [(0.0, first)] + ([((c - a) / (b - d), last)] if first != last else [])
""")
wrong(
    "farthest-crossing", sentence="the table with the crossing that is farthest away: the nearest one comes first"
).replace("min(crossings)", "max(crossings)")
wrong(
    "dropped-too-late",
    sentence="a table with a crossing of a line that has been dropped: compute it with the last one that is left",
).body("""
    first, *others = sorted(lines, key=lines.__getitem__)
    table = [(0.0, first)]
    for name in others:
        (a, b), (c, d) = lines[table[-1][1]], lines[name]
        if d < b:
            at = (c - a) / (b - d)
            while len(table) > 1 and at <= table[-1][0]:
                table.pop()
            table.append((at, name))
    return table
""")
wrong("steeper-too", sentence="a table that goes on to steeper lines: only a flatter one is lowest later").replace(
    "if other_slope < slope", "if other_slope != slope and other not in [name for _, name in table]"
)
wrong("up-to", sentence="a table of sizes up to which a line is lowest: an entry has the size where it begins").replace(
    "return table",
    "ends = [size for size, _ in table[1:]] + [math.inf]\nreturn [(end, name) for end, (_, name) in zip(ends, table)]",
)
wrong(
    "crossings-with-the-first",
    sentence="a table of where each line crosses the first one: go on from the line that is lowest there",
).body("""
    first = min(lines, key=lines.__getitem__)
    latency, slope = lines[first]
    return [(0.0, first)] + sorted(((a - latency) / (slope - b), name) for name, (a, b) in lines.items() if b < slope)
""")
wrong("no-first-entry", sentence="without the first entry, at size 0").replace("return table", "return table[1:]")
wrong("names-first", sentence="name and size exchanged: (bytes, name)").replace(
    "return table", "return [(name, size) for size, name in table]"
)
wrong("rounds", "sizes are rounded").replace(
    "return table", "return [(float(round(size)), name) for size, name in table]"
)
wrong("names-alone", sentence="the names alone: an entry has the size from which on, and the name").replace(
    "return table", "return [name for _, name in table]"
)
wrong("tie-at-zero", "you returned", hidden=True).replace(
    "min(lines, key=lines.__getitem__)", "next(n for n in reversed(lines) if lines[n][0] == min(lines.values())[0])"
)
wrong(
    "first-of-equal-latencies",
    sentence="a table with two entries at size 0: of lines with the same latency, the flatter one is lowest",
).replace("min(lines, key=lines.__getitem__)", "min(lines, key=lambda name: lines[name][0])")
wrong("in-the-wrong-order", sentence="in the wrong order: sizes rise").replace("return table", "return table[::-1]")
wrong("sizes-alone", sentence="the sizes alone: an entry has the size from which on, and the name").replace(
    "return table", "return [size for size, _ in table]"
)
wrong("drops-the-last", sentence="without the last entry: add it before you stop").replace(
    "return table", "return table[:-1]"
)
wrong("each-size-by-name", sentence="a dict: return a list of (bytes, name)").replace(
    "return table", "return {size: name for size, name in table}"
)
right("tries-all-crossings").body("""
    sizes = {0.0}
    for a, b in lines.values():
        for c, d in lines.values():
            if b > d and c > a:
                sizes.add((c - a) / (b - d))
    table = []
    for size in sorted(sizes):
        after = size * (1 + 1e-9)
        name = min(lines, key=lambda one: (lines[one][0] + after * lines[one][1], lines[one][1]))
        if not table or table[-1][1] != name:
            table.append((size, name))
    return table
""")
wrong(
    "flattest-for-all", sentence="the line with the fewest seconds per byte, for all sizes: it wins for large ones only"
).function("return [(0, min(lines, key=lambda name: lines[name][1]))]")
wrong(
    "crossings-upside-down",
    sentence="with sizes upside down: lines cross at a difference in seconds, divided by one in seconds per byte",
).replace("table.append((at, name))", "table.append((1 / at, name))")

wrong, right = ANSWERS.to("two-lines")
wrong("absolute-errors", "best by absolute errors").replace(
    "((alpha + n * beta) / t - 1) ** 2", "(alpha + n * beta - t) ** 2"
)
wrong("errors-cancel", "by errors that cancel").replace(
    "((alpha + n * beta) / t - 1) ** 2", "(alpha + n * beta) / t - 1"
)
wrong("last-of-the-first-part", "the last size of the first part").replace(
    "return first,", "return sizes[sizes.index(first) - 1],"
)
wrong("returns-the-place", "return the size in bytes").replace("return first,", "return sizes.index(first),")
wrong("right-before-left", "in the wrong order").replace("return first, left, right", "return first, right, left")
wrong("parts-too-small", "three at least").replace("range(3, len(sizes) - 2)", "range(2, len(sizes) - 1)")
wrong("one-line", "one line for all sizes").replace(
    "return first, left, right", "one = fit(sizes, seconds)\nreturn first, one, one"
)
wrong("fits-by-itself", "the `fit` that you are given").replace(
    "lines = [fit(*part) for part in parts]", "lines = [(part[1][0], part[1][-1] / part[0][-1]) for part in parts]"
)
wrong("worst-cut", "the smallest sum is").replace("min(found)", "max(found)")
wrong("early-cuts-only", "the first size of the second part is", hidden=True).replace(
    "range(3, len(sizes) - 2)", "range(3, min(7, len(sizes) - 2))"
)
right("numbers-in-tensors").body("""
    n, t = torch.tensor(sizes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    def error(cut):
        total = 0
        for part in (slice(0, cut), slice(cut, None)):
            alpha, beta = fit(sizes[part], seconds[part])
            total += ((alpha + n[part] * beta - t[part]) / t[part]).square().sum().item()
        return total
    cut = min(range(3, len(sizes) - 2), key=error)
    first, left, right = sizes[cut], fit(sizes[:cut], seconds[:cut]), fit(sizes[cut:], seconds[cut:])
""")
wrong("relative-to-the-line", "relative to the line").replace(
    "((alpha + n * beta) / t - 1) ** 2", "(1 - t / (alpha + n * beta)) ** 2"
)
wrong("without-squares", "aren't squared").replace(
    "((alpha + n * beta) / t - 1) ** 2", "abs((alpha + n * beta) / t - 1)"
)
wrong("smallest-largest-error", "by its largest error").replace("error = sum(", "error = max(").replace(
    "((alpha + n * beta) / t - 1) ** 2", "abs((alpha + n * beta) / t - 1)"
)
wrong("leaves-out-the-cut", sentence="made without the size at the cut: the second part begins with it").replace(
    "(sizes[cut:], seconds[cut:])", "(sizes[cut + 1 :], seconds[cut + 1 :])"
).replace("len(sizes) - 2", "len(sizes) - 3")
wrong("last-lines", sentence="a line of the last cut that was tried: keep the lines of the best one").replace(
    "_, first, left, right = min(found)", "first, (left, right) = min(found)[1], lines"
)
wrong("shares-a-size", "lines that share a size").replace(
    "lines = [fit(*part) for part in parts]",
    "lines = [fit(sizes[:cut + 1], seconds[:cut + 1]), fit(sizes[cut:], seconds[cut:])]",
)
wrong("tries-no-cut", "No cut was tried").replace("range(3, len(sizes) - 2)", "range(3, len(sizes) - 3)")

wrong, right = ANSWERS.to("critical-batch")
MESSAGES = "(alpha + nbytes / P / bandwidth)"
wrong("no-latency", sentence="for messages without a latency: each of a ring's 2 (P - 1) has one").replace(
    MESSAGES, "(nbytes / P / bandwidth)"
)
wrong("one-latency", sentence="for a single latency in each ring: each of its 2 (P - 1) messages has one").replace(
    f"2 * (P - 1) * {MESSAGES}", "(P > 1) * alpha + 2 * (P - 1) * nbytes / P / bandwidth"
)
wrong("latency-of-a-phase", sentence="for a single latency in each phase: every message has one").replace(
    "ring(local, gradients, intra) + ring(nodes, gradients / local, inter)",
    "ring(local, gradients, (0, intra[1])) + ring(nodes, gradients / local, (0, inter[1])) + 2 * intra[0] + inter[0]",
)
wrong("whole-in-each-message", sentence="for messages that carry all of a ring's bytes: a chunk is a P-th").replace(
    "nbytes / P / bandwidth", "nbytes / bandwidth"
)
wrong("one-phase", sentence="for rings of P - 1 messages: an all-reduce has 2 (P - 1)").replace(
    "2 * (P - 1)", "(P - 1)"
)
wrong("p-rounds", sentence="for rings of 2 P messages: 2 (P - 1) are enough").replace("2 * (P - 1)", "2 * P")
wrong("whole-step", sentence="for the whole step: only the backward pass, 4 FLOP, overlaps").replace(
    "(4 * parameters)", "(6 * parameters)"
)
wrong("two-flop", sentence="for 2 FLOP per parameter: the backward pass has 4").replace(
    "(4 * parameters)", "(2 * parameters)"
)
wrong("rounds-down", "rounded down").replace("math.ceil(", "int(")
wrong("not-rounded", "tokens are whole, so round up").replace("math.ceil(", "(")
wrong("forgets-the-itemsize", sentence="for gradients of one byte each: they have `itemsize`").replace(
    "parameters * itemsize", "parameters"
)
wrong("both-directions", sentence="for twice the bandwidth: all bytes leave a GPU in one direction").replace(
    "nbytes / P / bandwidth", "nbytes / P / bandwidth / 2"
)
wrong("two-bytes-each", sentence="for gradients of two bytes each: they have `itemsize`").replace(
    "parameters * itemsize", "parameters * 2"
)
wrong("to-the-nearest", "With one token more nobody waits", caught_by="time").replace("math.ceil(", "round(")
wrong("floor-and-one", "one token: a single GPU", hidden=True).replace("math.ceil(", "1 + int(")
wrong(
    "ring-of-all-between", sentence="for a ring through all GPUs in phase 2: a ring has one GPU of each node"
).replace("ring(nodes, gradients / local, inter)", "(nodes > 1) * ring(nodes * local, gradients / local, inter)")
wrong("an-m-th", sentence="for an M-th of the gradients in phase 2: each of a node's L GPUs has an L-th").replace(
    "gradients / local, inter", "gradients / nodes, inter"
)
wrong("one-token-more", "nobody waits either", caught_by="time").replace("math.ceil(", "1 + math.ceil(")
wrong("tokens-of-all", sentence="the tokens of all GPUs together: return those of one").replace(
    "/ (4 * parameters))", "* nodes * local / (4 * parameters))"
)
wrong("one-flat-ring", sentence="for one ring through all GPUs over the network: only phase 2 crosses it").replace(
    "ring(local, gradients, intra) + ring(nodes, gradients / local, inter)",
    "ring(nodes * local, gradients, inter if nodes > 1 else intra)",
)
wrong(
    "whole-over-the-network",
    sentence="for all gradients over each NIC, or a NIC for all GPUs of a node: each has one, for an L-th of them",
).replace("gradients / local", "gradients")
wrong("shard-of-all", sentence="for too few bytes in phase 2: an L-th of the gradients, in chunks of an M-th").replace(
    "gradients / local", "gradients / local / nodes"
)
wrong(
    "without-the-network",
    sentence="for phases 1 and 3 alone: phase 2 comes on top, since each phase waits for the one before",
).replace(" + ring(nodes, gradients / local, inter)", "")
wrong("without-the-nodes", sentence="without phases 1 and 3, the rings inside the nodes").replace(
    "ring(local, gradients, intra) + ", ""
)
wrong("phases-twice", sentence="with phases 1 and 3 twice: each is half of a ring all-reduce").replace(
    "= ring(local", "= 2 * ring(local"
)
wrong("no-all-gather", sentence="without phase 3, the all-gather in each node").replace(
    "= ring(local", "= 0.5 * ring(local"
)
wrong(
    "links-exchanged", sentence="for links in each other's place: intra is inside a node, inter between them"
).replace("gradients, intra)", "gradients, inter)").replace("gradients / local, inter)", "gradients / local, intra)")
wrong("sizes-exchanged", sentence="for `nodes` and `local` in each other's place").replace(
    "ring(local, gradients, intra) + ring(nodes, gradients / local, inter)",
    "ring(nodes, gradients, intra) + ring(local, gradients / nodes, inter)",
)
right("by-floor-division").body("""
    (near, fast), (far, slow) = intra, inter
    nbytes = parameters * itemsize
    seconds = 2 * (local - 1) * near + 2 * (local - 1) / local * nbytes / fast
    seconds += 2 * (nodes - 1) * far + 2 * (nodes - 1) / nodes * nbytes / local / slow
    return int(-(-seconds * peak // (4 * parameters)))
""")

wrong, right = ANSWERS.to("scaling-efficiency")
wrong(
    "upside-down", sentence="upside down: an efficiency is what would be ideal, divided by what was measured"
).replace("ideal[gpus] / took", "took / ideal[gpus]")
wrong("always-strong", sentence="the other kind of efficiency: this is weak scaling").replace(
    'if work == "the same" else 1', ""
)
wrong("always-weak", sentence="the speed-up, or the other kind of efficiency: this is strong scaling").replace(
    'fewest / gpus if work == "the same" else 1', "1"
)
wrong("relative-to-one", sentence="relative to one GPU: compare with the smallest number of GPUs, which is 4").replace(
    "fewest / gpus if", "1 / gpus if"
)
wrong("longest-time", sentence="relative to the longest time: compare with the smallest number of GPUs").replace(
    "seconds[fewest] *", "max(seconds.values()) *"
)
wrong("speed-up-of-more-work", sentence="how much more work per second is done: divide by how many more GPUs").replace(
    "else 1", "else gpus / fewest"
)
wrong("shortest-time", sentence="relative to the shortest time: compare with the smallest number of GPUs").replace(
    "seconds[fewest] *", "min(seconds.values()) *"
)
wrong("in-percent", sentence="in percent: 1 is 100 %").replace("ideal[gpus] / took", "100 * ideal[gpus] / took")
wrong("a-list", sentence="a list: return {GPUs: efficiency}").body("""
    return [seconds[fewest] * (fewest / gpus if work == "the same" else 1) / took for gpus, took in seconds.items()]
""")
wrong("first-is-the-fewest", sentence="relative to the first number of GPUs: compare with the smallest").replace(
    "fewest = min(seconds)", "fewest = next(iter(seconds))"
)
right("by-throughput").body("""
    done = {gpus: (1 if work == "the same" else gpus) / took for gpus, took in seconds.items()}  # work per second
    return {gpus: done[gpus] / gpus / (done[fewest] / fewest) for gpus in done}
""")

wrong, right = ANSWERS.to("sharded-state")
wrong("rounds-down", "some numbers are on no rank").replace("-(-parameters // pieces)", "parameters // pieces")
wrong("always-one-more", "one number too many", hidden=True).replace(
    "-(-parameters // pieces)", "parameters // pieces + (pieces > 1)"
)
wrong("gradients-first", "from stage 2 on").replace(
    '{"parameters": 3, "gradients": 2}', '{"parameters": 3, "gradients": 1}'
)
wrong("parameters-never", "from stage 3 on").replace(
    '{"parameters": 3, "gradients": 2}', '{"parameters": 4, "gradients": 2}'
)
wrong("all-at-once", "from stage").replace("sharded_from.get(name, 1)", "1")
wrong("optimizer-whole", "from stage 1 on").replace("sharded_from.get(name, 1)", "sharded_from.get(name, 4)")
wrong("all-in-float32", "its dtype is bfloat16").replace("dtype=dtype", "dtype=torch.float32")
wrong("pads-what-is-whole", "padded though it is whole").replace(
    "-(-parameters // pieces)", "-(-parameters // pieces) if pieces > 1 else -(-parameters // world_size) * world_size"
)
wrong("slices-a-whole", "A slice of a whole tensor is a view", caught_by="memory").replace(
    "torch.empty(-(-parameters // pieces), dtype=dtype)",
    "torch.empty(-(-parameters // pieces) * pieces, dtype=dtype)[: -(-parameters // pieces)]",
)
right("asks-three-times").body("""
    shard = math.ceil(parameters / world_size)
    whole = [["parameters", "gradients", *recipe], ["parameters", "gradients"], ["parameters"], []][stage]
    state = {}
    for name in recipe:
        state[name] = torch.zeros(parameters if name in whole else shard, dtype=recipe[name])
""")

wrong, right = ANSWERS.to("activation-bytes")
wrong("flash-is-ignored", sentence="what stored scores would keep").replace(
    "4 * a * s * b if flash else 5 * a * s * s * b", "5 * a * s * s * b"
)
wrong("always-flash", sentence="what FlashAttention would keep").replace(
    "4 * a * s * b if flash else 5 * a * s * s * b", "4 * a * s * b"
)
wrong("without-norms", sentence="without the mean and the deviation of LayerNorm, 16 s b").replace(" + 16 * s * b", "")
wrong("one-norm", sentence="with half of LayerNorm's 16 s b: there are two of them").replace("16 * s * b", "8 * s * b")
wrong("no-scores", sentence="without the scores").replace("5 * a * s * s * b", "0")
wrong("one-head", sentence="with scores of one head: there are a of them").replace("5 * a * s * s * b", "5 * s * s * b")
wrong("logarithms-of-one-head", sentence="with the logarithms of one head: there are a of them").replace(
    "4 * a * s * b if flash", "4 * s * b if flash"
)
wrong("flash-keeps-nothing", sentence="without the logarithms that FlashAttention keeps").replace(
    "4 * a * s * b if flash", "0 if flash"
)
wrong("logarithms-in-16-bits", sentence="with the logarithms in 16 bits: they are float32").replace(
    "4 * a * s * b if flash", "2 * a * s * b if flash"
)
wrong("logarithm-of-each-pair", sentence="with a logarithm for each pair of tokens: each token has one").replace(
    "4 * a * s * b if flash", "4 * a * s * s * b if flash"
)
wrong("flash-keeps-the-mask", sentence="with a mask of the scores: FlashAttention draws it again").replace(
    "4 * a * s * b if flash", "(4 * a * s + a * s * s) * b if flash"
)
wrong("no-batch", sentence="for 1 sequence: there are b of them").replace(
    "return linear + scores", "return (linear + scores) // b"
)
wrong("no-masks", sentence="without the two masks of dropout behind the matrices").replace("34 * s", "32 * s")
wrong("no-mask-of-scores", sentence="without the mask of the scores, 1 byte each").replace(
    "5 * a * s * s * b", "4 * a * s * s * b"
)
wrong("no-result-of-dropout", sentence="with one of the two results, of softmax and of dropout: both stay").replace(
    "5 * a * s * s * b", "3 * a * s * s * b"
)
wrong("one-mask-less", sentence="without one of the masks behind the matrices: attention has one, and the MLP").replace(
    "34 * s", "33 * s"
)
wrong("sequences-squared", sentence="with b squared: a sequence's tokens meet only those of the same sequence").replace(
    "s * s * b", "s * s * b * b"
)
wrong("in-32-bits", sentence="with 4 bytes for each number behind the matrices: they have 16 bits").replace(
    "34 * s", "68 * s"
)
wrong("divides-by-h", sentence="with 5 a s // h, which is rounded down: multiply first").replace(
    "5 * a * s * s * b", "s * b * h * (5 * a * s // h)"
)
right("item-by-item").body("""
    token = s * b
    linear = 4 * token * h + 16 * token + (2 + 6) * token * h + 3 * token * h + (2 + 8 + 8 + 1) * token * h
    scores = token * a * (4 if flash else 2 * s + s + 2 * s)
""")
wrong("no-dropout-of-scores", sentence="without the mask of the scores and the result of their dropout").replace(
    "5 * a * s * s * b", "2 * a * s * s * b"
)
wrong("scores-of-one-sequence", sentence="with scores of one sequence: there are b of them").replace(
    "5 * a * s * s * b", "5 * a * s * s"
).replace("4 * a * s * b", "4 * a * s")
wrong("gelu-once", sentence="with one of GELU's two tensors: its input and its output both stay").replace(
    "34 * s * b * h", "26 * s * b * h"
)

wrong, right = ANSWERS.to("mfu-and-hfu")
wrong("no-attention", sentence="without attention: 12 L w s FLOP per token come on top").replace(
    " + 4 * layers * width * sequence", ""
)
wrong("attention-forward-only", sentence="with the FLOP of attention forward only: backward has twice as many").body("""
    rate = tokens_per_second / (gpus * peak)
    attention = 4 * layers * width * sequence
    mfu = rate * (6 * parameters + attention)
    hfu = rate * ((6 + 2 * recomputed) * parameters + attention)
""")
wrong("one-gpu", sentence="for one GPU: divide by the peak of all of them").replace("(gpus * peak)", "peak")
wrong("forward-only", sentence="the forward pass only").replace(
    "3 * forwards_per_second, (3", "forwards_per_second, (3"
)
wrong("in-percent", sentence="in percent: 1 is 100 %").replace(
    "3 * forwards_per_second, (3", "300 * forwards_per_second, (3"
)
wrong("hfu-is-mfu", sentence="MFU once more: HFU counts what is recomputed, too").replace("(3 + recomputed)", "3")
wrong("mfu-counts-recomputation", sentence="HFU: MFU leaves out what is recomputed").replace(
    "3 * forwards_per_second, (3", "(3 + recomputed) * forwards_per_second, (3"
)
wrong(
    "whole-step-again", sentence="with the recomputed share of the whole step: only forward is computed again"
).replace("(3 + recomputed)", "3 * (1 + recomputed)")
wrong(
    "recomputed-as-half-a-step", sentence="with r/2: a whole forward pass is a third of a step, so r of it adds r/3"
).replace("(3 + recomputed) *", "3 * (1 + recomputed / 2) *")
wrong(
    "half-of-what-is-recomputed", sentence="with half of what is recomputed: r forward passes come on top of the three"
).replace("(3 + recomputed)", "(3 + recomputed / 2)")
wrong("recomputes-no-attention", sentence="without the attention that is computed again").replace(
    "(3 + recomputed) * forwards_per_second",
    "3 * forwards_per_second + recomputed * 2 * parameters * tokens_per_second / (gpus * peak)",
)
wrong("hfu-below", sentence="divided by what is recomputed: HFU is never below MFU").body("""
    forward = 2 * parameters + 4 * layers * width * sequence
    mfu = 3 * tokens_per_second * forward / (gpus * peak)
    hfu = mfu / (1 + recomputed / 3)
""")
wrong("adds-the-share", sentence="MFU plus the share: a whole forward pass is a third of MFU").replace(
    "(3 + recomputed) * forwards_per_second", "3 * forwards_per_second + recomputed"
)
wrong("all-recomputed", sentence="with the whole forward pass computed again: it is the share `recomputed`").replace(
    "(3 + recomputed)", "4"
)
wrong("causal", sentence="with causal attention counted half: by convention it isn't").replace(
    "4 * layers", "2 * layers"
)
wrong("one-layer", sentence="with attention once for all layers: each layer has it").replace(
    "4 * layers * width", "4 * width"
)
right("from-the-formula").body("""
    mfu = tokens_per_second * (6 * parameters + 12 * layers * width * sequence) / gpus / peak
    hfu = mfu * (1 + recomputed / 3)
""")


wrong, right = ANSWERS.to("best-plan")
wrong("data-parallelism-alone", "times par", caught_by="score").body("return 8 * machines, 1, critical // 2")
wrong("more-gpus-than-there-are", "16 at most", caught_by="score").body("return 8, 4, critical // 2")
wrong("rows-left-over", "a multiple of dp", caught_by="score").body("return 4, 4, 16001")
wrong("a-plan-in-words", "3 values: dp, tp, rows", caught_by="score").body('return {"dp": 4, "tp": 4}, 16384')
wrong("too-many-rows", "out of memory", caught_by="score").body("return 8 * machines, 1, 2**24")
wrong("knows-only-two-machines", "times par", caught_by="score", hidden=True).body(
    "return (4, 4, 19456) if machines == 2 else (8, 1, critical)"
)
right("tried-on-the-cluster").body("""
    tried = {(2, 32768): (4, 4, 19456), (1, 8192): (2, 4, 3072), (4, 65536): (8, 4, 53248)}
    return tried[machines, critical]
""")
