"""Answers to lesson 00, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("hello-ranks")
wrong("swaps-rank-and-size", "how many ranks there are: ask get_rank()").body("""
    me["rank"] = dist.get_world_size()
    me["world_size"] = dist.get_rank()
    me["device"] = str(get_device())
""")
wrong("device-itself", "take str(...) of it").replace("str(get_device())", "get_device()")
wrong("always-rank-0", "each has its own").replace("dist.get_rank()", "0")
wrong("last-rank-as-size", "world_size is").replace("get_world_size()", "get_world_size() - 1")
wrong("forgets-the-device", "says nothing about 'device'", varies=True).replace(
    'me["device"] = str(get_device())', "pass"
)
wrong("four-ranks", "world_size is", hidden=True).replace(
    "dist.get_world_size()", "4 if dist.get_world_size() > 2 else 2"
)
wrong("forgets-to-call", "Call it: write ()").replace("dist.get_rank()", "dist.get_rank")
wrong("takes-its-rank", "takes an argument, and gets none").cell("""
    def hello_ranks(rank, world_size):
        return {"process": os.getpid(), "rank": rank, "world_size": world_size, "device": str(get_device())}
""")
right("reads-the-environment").body(
    'me.update(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), device=get_device().type)'
)

wrong, right = ANSWERS.to("rendezvous-by-hand")
wrong("never-parts", "The first meeting must be over before the second").replace(
    "gathered.append([int(one) for one in everyone])\ndist.destroy_process_group()",
    "gathered.append([int(one) for one in everyone])",
)
wrong("parts-only-in-between", "still has a process group").replace(
    "store =", "if dist.is_initialized():\n    dist.destroy_process_group()\nstore ="
).replace(
    "gathered.append([int(one) for one in everyone])\ndist.destroy_process_group()",
    "gathered.append([int(one) for one in everyone])",
)
wrong("numbers-ranks-backwards", "did not give its own `rank`").replace("rank=rank", "rank=world_size - 1 - rank")
wrong("a-world-of-its-own", "names the same world_size", varies=True).replace("world_size=world_size", "world_size=1")
wrong("only-makes-the-store", "There is no process group, or no longer").replace(
    'dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)', "pass"
)
wrong("path-as-store", "and not its path").replace("store=store", "store=path")
wrong("parts-before-it-gathers", "destroy_process_group after it").replace(
    "everyone =", "dist.destroy_process_group()\neveryone ="
)
right("by-the-environment").replace("store=store, ", "")
right("by-a-url").replace("store = dist.FileStore(path, world_size)", "").replace(
    "store=store", 'init_method=f"file://{path}"'
).replace("[torch.empty(1) for _ in range(world_size)]", "[None] * world_size").replace(
    "dist.all_gather(everyone, torch.tensor([float(number)]))", "dist.all_gather_object(everyone, number)"
).replace("gathered.append([int(one) for one in everyone])", "gathered.append(everyone)\ndist.barrier()")
right("behind-a-prefix").replace("dist.FileStore(path, world_size)", 'dist.PrefixStore("met", dist.FileStore(path))')

wrong, right = ANSWERS.to("take-turns")
wrong("no-barrier", "without a barrier after the turn of rank", caught_by="traffic").replace("dist.barrier()", "pass")
wrong("barrier-before-the-turn", "reads without a barrier after the turn of rank 1", caught_by="traffic").body("""
    dist.barrier()
    if order[turn] == rank:
        file.append(f"rank {rank}")
""")
wrong("barrier-inside-the-if", "writes without a barrier", caught_by="traffic").body("""
    if order[turn] == rank:
        file.append(f"rank {rank}")
        dist.barrier()
""")
wrong("barrier-for-all-but-the-writer", "the barrier is inside an `if`").replace(
    "dist.barrier()", "elif turn == 0:\n    dist.barrier()"
)
wrong("in-rank-order", "in the order of the ranks").replace("order[turn] == rank", "turn == rank")
wrong("order-read-backwards", "the rank order[turn] writes").replace("order[turn] == rank", "order[rank] == turn")
wrong("one-barrier-for-all", "nothing guarantees it", caught_by="traffic").body("""
    if turn == 0:
        file.append(f"rank {rank}")
        dist.barrier()
""")
wrong("all-write-in-each-turn", "in each turn only one rank writes", varies=True).replace(
    "if order[turn] == rank:", "if True:"
)
wrong("fakes-it", "appended 0 lines to the file", caught_by="traffic").replace("file = SharedFile(path)", "").replace(
    'if order[turn] == rank:\n    file.append(f"rank {rank}")', ""
).replace("file.lines()", '[f"rank {one}" for one in order]')
right("waits-before-and-after").body("""
    dist.barrier()
    if rank == order[turn]:
        file.append("rank " + str(rank))
    dist.barrier()
""")
right("counts-its-barriers").function("""
    file, mine = SharedFile(path), order.index(rank)
    for _ in range(mine):
        dist.barrier()
    file.append(f"rank {rank}")
    for _ in range(world_size - mine):
        dist.barrier(async_op=True).wait()
    return file.lines()
""")

wrong, right = ANSWERS.to("one-failing-rank")
wrong("empty-counts-as-0", "longer lists must count for more").body("""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}
    average = torch.tensor([sum(mine) / len(mine) if mine else 0.0])
    dist.all_reduce(average)
    average = average.item() / world_size
""")
wrong("leaves-empty-ranks-out", "averages of ranks that have numbers").body("""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}
    both = torch.tensor([sum(mine) / len(mine) if mine else 0.0, 1.0 if mine else 0.0])
    dist.all_reduce(both)
    average = (both[0] / both[1]).item()
""")
wrong("returns-early", "an empty list still has to make the calls").replace(
    "sum_and_count =", "if not mine:\n    return 0.0, reading\nsum_and_count ="
)
wrong("divides-by-ranks", "divide by the sum of the counts").replace("sum_and_count[1])", "world_size)")
wrong("does-not-divide", "the sum of all numbers").replace("(sum_and_count[0] / sum_and_count[1])", "sum_and_count[0]")
wrong("blames-rank-0", "first line of the report", caught_by="reading").replace('"raised": 2', '"raised": 0')
wrong("blames-a-lost-connection", "before the colon", caught_by="reading").replace(
    '"ZeroDivisionError"', '"ConnectionError"'
)
wrong("four-ranks", "divide by the sum of the counts", hidden=True).replace(
    "sum_and_count[1])", "(6 if world_size == 4 else 3 if world_size == 2 else world_size))"
)
wrong("whole-numbers", "when fractions are cut off").replace("sum(mine), len(mine)", "int(sum(mine)), len(mine)")
wrong("sums-no-counts", "sum the counts too").replace("sum_and_count[1])", "max(1, len(mine)))")
wrong("error-with-its-text", "The name alone", caught_by="reading").replace(
    '"ZeroDivisionError"', '"ZeroDivisionError: division by zero"'
)
wrong("reads-nothing", "leaves 'raised' empty", caught_by="reading").replace(
    'reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}', "pass"
)
right("two-sums").body("""
    reading = dict(raised=2, error="ZeroDivisionError", waited=[3, 1, 0])
    total, count = torch.tensor(float(sum(mine))), torch.tensor(len(mine))
    dist.all_reduce(total)
    dist.all_reduce(count)
    average = total.item() / count.item()
""")
right("gathers-all-numbers").body("""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": {0, 1, 3}}
    lists = [None] * world_size
    dist.all_gather_object(lists, mine)
    everything = [number for numbers in lists for number in numbers]
    average = sum(everything) / len(everything)
""")

wrong, right = ANSWERS.to("one-deadlock")
wrong("decides-alone", "All must decide by the same number").replace("if averages[-1] < 1:", "if loss < 1:")
wrong("never-stops", "You continue although the average").replace("if averages[-1] < 1:", "if False:")
wrong("stops-at-1-too", "an average of 1, which is not below 1", hidden=True).replace(
    "if averages[-1] < 1:", "if averages[-1] <= 1:"
)
wrong("first-small-loss-stops-all", "when one of the losses is below 1").replace(
    "if averages[-1] < 1:",
    "smallest = torch.tensor([loss])\ndist.all_reduce(smallest, op=dist.ReduceOp.MIN)\nif smallest.item() < 1:",
)
wrong("all-must-be-small", "You continue although the average").replace(
    "if averages[-1] < 1:",
    "largest = torch.tensor([loss])\ndist.all_reduce(largest, op=dist.ReduceOp.MAX)\nif largest.item() < 1:",
)
wrong("sums-the-first-two-steps-only", "count the steps up to that one", caught_by="reading").replace(
    '"steps": 2', '"steps": 1'
)
wrong("swaps-the-calls", "each rank has a line in the report", caught_by="reading").replace(
    '"in all_reduce": [0, 2], "in barrier": [1]', '"in all_reduce": [1], "in barrier": [0, 2]'
)
wrong("leaves-the-last-step-out", "it counts too").replace("break", "averages.pop()\nbreak")
wrong("leaves-without-the-barrier", "did not end at the barrier").replace("break", "return averages, {}")
right("rank-0-tells").replace(
    "if averages[-1] < 1:", "stop = torch.tensor([int(averages[-1] < 1)])\ndist.broadcast(stop, src=0)\nif stop.item():"
)
right("gathers-all-losses-first").function("""
    all_losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(all_losses)
    averages = []
    for average in (all_losses / world_size).tolist():
        averages.append(average)
        if average < 1:
            break
    dist.barrier()
    return averages, {"in all_reduce": (0, 2), "in barrier": (1,), "steps": 2}
""")

wrong, right = ANSWERS.to("memory-wall")
wrong("gib", "return bytes").replace("parameters * bytes_per_parameter", "parameters * bytes_per_parameter / 2**30")
wrong("gpus-first", "the bytes come first").replace("return state, gpus", "return gpus, gpus")
wrong("rounds-down", "a part fits nowhere").replace("math.ceil(state / gpu_memory)", "int(state // gpu_memory)")
wrong("always-one-more", "one too many").replace("math.ceil(state / gpu_memory)", "int(state // gpu_memory) + 1")
wrong("parameters-alone", "the parameters alone").replace("* bytes_per_parameter", "* 2")
wrong("gigabytes", "return bytes").replace("parameters * bytes_per_parameter", "parameters * bytes_per_parameter / 1e9")
wrong("not-rounded", "not a whole number of GPUs").replace("math.ceil(state / gpu_memory)", "state / gpu_memory")
wrong("always-16", "the state in bytes is", hidden=True).replace("* bytes_per_parameter", "* 16")
wrong("float-of-gpus", "take int(...)").replace("math.ceil(state / gpu_memory)", "state // -gpu_memory * -1")
right("floor-of-the-negative").replace("math.ceil(state / gpu_memory)", "int(-(-state // gpu_memory))")
right("by-numpy").replace("state =", "import numpy\nstate =").replace(
    "math.ceil(state / gpu_memory)", "numpy.ceil(state / gpu_memory).astype(int)"
)

wrong, right = ANSWERS.to("bandwidth-of-levels")
wrong("moves-n", "half of it").replace("append(2 * n / t)", "append(n / t)")
wrong("touches-n", "2 n, which must fit").replace("if 2 * n <= size", "if n <= size")
wrong("inverse", "bytes per second").replace("2 * n / t)", "t / (2 * n))")
wrong("exactly-full-is-too-full", "fills a level belongs to it").replace("2 * n <= size", "2 * n < size")
wrong("best-of-each-level", "the best: take the median").replace(
    "rates[level].append(2 * n / t)", "rates[level] = [max([*rates[level], 2 * n / t])]"
)
wrong("every-level-that-fits", "the first level that has room, and to no other").body("""
    for level, size in levels.items():
        if 2 * n <= size:
            rates[level].append(2 * n / t)
""")
wrong("in-gigabytes", "return bytes/s").replace("2 * n / t)", "2 * n / t / 1e9)")
right("goes-through-the-levels").body("""
    for level in levels:
        if n + n <= levels[level]:
            rates[level] += [(n + n) / t]
            break
""")

wrong, right = ANSWERS.to("arithmetic-intensity")
wrong("forgets-additions", "k multiplications AND k additions").replace("2 * m * k * n", "m * k * n")
wrong("forgets-the-output", "without the output").replace("+ m * n)", ")")
wrong("numbers-not-bytes", "divide by bytes").replace(" * element_size", "")
wrong("inverse", "the inverse").replace("flops / moved", "moved / flops")
wrong("two-or-four-bytes", "bytes per number", hidden=True).replace(
    "* element_size", "* (2 if element_size == 2 else 4)"
)
right("by-parts").body("intensity = 2 / (element_size * (1 / n + 1 / m + 1 / k))")

wrong, right = ANSWERS.to("roofline-time")
wrong("adds-both", "the longer one counts").replace("max(computing, moving)", "computing + moving")
wrong("forgets-the-launch", "without the launch").replace(" + gpu.launch", "")
wrong("takes-the-shorter", "the shorter of the two").replace("max(", "min(")
wrong("computing-alone", "you predict", caught_by="time").replace("max(computing, moving)", "computing")
wrong("swaps-the-words", "the bound is").replace("if moving > computing", "if moving < computing")
wrong("launch-counts-as-moving", "it counts as neither").replace(
    "if moving > computing", "if moving + gpu.launch > computing"
)
wrong("launch-beside-the-others", "on top of the longer one").replace(
    "max(computing, moving) + gpu.launch", "max(computing, moving, gpu.launch)"
)
right("compares-intensities").body("""
    bound = "memory" if moved and flops / moved < gpu.peak(dtype) / gpu.bandwidth else "compute"
    seconds = gpu.launch + (moved / gpu.bandwidth if bound == "memory" else computing)
""")

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
wrong("loads-twice", "and be loaded again", caught_by="traffic").replace("x * scale", 'memory.load("x", here) * scale')
wrong("whole-blocks-only", "without the last, shorter block").body("""
    here = slice(start, start + block)
    if start + block <= numel:
        memory.store("y", torch.relu(memory.load("x", here) * scale + shift), here)
""")
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
wrong("first-product-only", "go on along the inner dimension").replace("range(0, k, tile)", "range(0, tile, tile)")
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
wrong("whole-rows", "the chip has room for").body("""
    inner = slice(0, k)
    memory.store("c", memory.load("a", rows, inner) @ memory.load("b", inner, columns), rows, columns)
""")
wrong("loads-a-twice", "1.5 times what is needed", caught_by="traffic").replace(
    "total = total", 'memory.load("a", rows, inner)\ntotal = total'
)
wrong("whole-tiles-only", "c is", hidden=True).replace("range(0, k, tile)", "range(0, max(1, k // tile) * tile, tile)")
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

wrong, right = ANSWERS.to("read-topology")
wrong("keeps-the-names", "shifted").replace("1 : gpus + 1", ":gpus")
wrong("name-in-front", "the GPU's name in front").replace("1 : gpus + 1", ": gpus + 1")
wrong("all-columns", "columns that are not GPUs").replace("1 : gpus + 1", "1:")
wrong("cuts-at-tabs-only", "white space around the labels").replace("line.split()", 'line.split("\\t")')
wrong("tabs-and-strips", "row 0 is []", hidden=True).replace(
    "line.split()[1 : gpus + 1]", '[x.strip() for x in line.split("\\t")[1 : gpus + 1]]'
)
wrong("names-of-one-digit", "12 GPUs", hidden=True).replace("len(lines)", "sum(line[4:5].isspace() for line in lines)")
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

wrong, right = ANSWERS.to("best-ring")
wrong("rank-order", "its slowest link is SYS").replace("max(rings, key=slowest)", "list(range(len(matrix)))")
wrong("leaves-it-open", "A ring is closed").replace("in range(len(ring))", "in range(1, len(ring))")
wrong("worst-ring", "its slowest link is SYS").replace("max(rings", "min(rings")
wrong("sums-the-speeds", "its slowest link is").replace("min(", "sum(")
wrong("greedy", "its slowest link is").function("""
    ring = [0]
    while len(ring) < len(matrix):
        left = [gpu for gpu in range(len(matrix)) if gpu not in ring]
        ring.append(max(left, key=lambda gpu: gpu_topology.speed(matrix[ring[-1]][gpu])))
    return ring
""")
wrong("names-the-first-twice", "closed anyway").replace("max(rings, key=slowest)", "[*max(rings, key=slowest), 0]")
right("goes-the-other-way-round").function("""
    def slowest(ring):
        return min(gpu_topology.speed(matrix[a][b]) for a, b in zip(ring, ring[1:] + ring[:1]))
    rings = [[0, *others] for others in permutations(range(len(matrix) - 1, 0, -1))]
    return sorted(rings, key=slowest)[-1]
""")
