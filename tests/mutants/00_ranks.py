"""Wrong answers to lesson 00: at least two an exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import answers

MUTANTS, ALSO_RIGHT, mutant, also_right = answers()

# ---- hello-ranks

mutant(
    "hello-ranks",
    "swaps-rank-and-size",
    says="how many ranks there are: ask get_rank()",
    body="""
    me["rank"] = dist.get_world_size()
    me["world_size"] = dist.get_rank()
    me["device"] = str(get_device())
    """,
)
mutant("hello-ranks", "device-itself", says="take str(...) of it", replace=("str(get_device())", "get_device()"))
mutant("hello-ranks", "always-rank-0", says="each has its own", replace=("dist.get_rank()", "0"))
mutant("hello-ranks", "last-rank-as-size", says="world_size is", replace=("get_world_size()", "get_world_size() - 1"))
mutant(
    "hello-ranks",
    "forgets-the-device",
    says="says nothing about 'device'",
    replace=('me["device"] = str(get_device())', "pass"),
)
mutant(
    "hello-ranks",
    "four-ranks",
    says="world_size is",
    hidden=True,
    replace=("dist.get_world_size()", "4 if dist.get_world_size() > 2 else 2"),
)
also_right(
    "hello-ranks",
    "reads-the-environment",
    body="""
    me.update(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), device=get_device().type)
    """,
)

mutant("hello-ranks", "forgets-to-call", says="Call it: write ()", replace=("dist.get_rank()", "dist.get_rank"))
mutant(
    "hello-ranks",
    "takes-its-rank",
    says="your function takes `rank`",
    cell="""
    def hello_ranks(rank, world_size):
        return {"process": os.getpid(), "rank": rank, "world_size": world_size, "device": str(get_device())}
    """,
)

# ---- rendezvous-by-hand

JOIN = 'dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)'

mutant(
    "rendezvous-by-hand",
    "never-parts",
    says="The first meeting must be over before the second",
    cell="""
    def rendezvous_by_hand(number, paths, rank, world_size):
        dist.destroy_process_group()
        gathered = []
        for path in paths:
            store = dist.FileStore(path, world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            everyone = [torch.empty(1) for _ in range(world_size)]
            dist.all_gather(everyone, torch.tensor([float(number)]))
            gathered.append([int(one) for one in everyone])
        return gathered, dist.is_initialized()
    """,
)
mutant(
    "rendezvous-by-hand",
    "parts-only-in-between",
    says="still has a process group",
    cell="""
    def rendezvous_by_hand(number, paths, rank, world_size):
        dist.destroy_process_group()
        gathered = []
        for path in paths:
            if dist.is_initialized():
                dist.destroy_process_group()
            store = dist.FileStore(path, world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            everyone = [torch.empty(1) for _ in range(world_size)]
            dist.all_gather(everyone, torch.tensor([float(number)]))
            gathered.append([int(one) for one in everyone])
        return gathered, dist.is_initialized()
    """,
)
mutant(
    "rendezvous-by-hand",
    "numbers-ranks-backwards",
    says="did not give its own `rank`",
    replace=(JOIN, JOIN.replace("rank=rank", "rank=world_size - 1 - rank")),
)
mutant(
    "rendezvous-by-hand",
    "a-world-of-its-own",
    says="names the same world_size",
    replace=(JOIN, JOIN.replace("world_size=world_size", "world_size=1")),
)
mutant(
    "rendezvous-by-hand",
    "only-makes-the-store",
    says="There is no process group, or no longer",
    replace=(JOIN, "pass"),
)
also_right(
    "rendezvous-by-hand",
    "by-a-url",
    cell="""
    def rendezvous_by_hand(number, paths, rank, world_size):
        dist.destroy_process_group()
        gathered = []
        for path in paths:
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)
            everyone = [None] * world_size
            dist.all_gather_object(everyone, number)
            gathered.append(everyone)
            dist.barrier()
            dist.destroy_process_group()
        return gathered, dist.is_initialized()
    """,
)

mutant(
    "rendezvous-by-hand",
    "no-store",
    says="give it store=store",
    replace=(JOIN, JOIN.replace("store=store, ", "")),
)
mutant(
    "rendezvous-by-hand",
    "path-as-store",
    says="and not its path",
    replace=(JOIN, JOIN.replace("store=store", "store=path")),
)
mutant(
    "rendezvous-by-hand",
    "parts-before-it-gathers",
    says="destroy_process_group after it",
    replace=(JOIN, JOIN + "\n        dist.destroy_process_group()"),
)
also_right(
    "rendezvous-by-hand",
    "behind-a-prefix",
    replace=("store = dist.FileStore(path, world_size)", 'store = dist.PrefixStore("met", dist.FileStore(path))'),
)

# ---- take-turns

mutant(
    "take-turns",
    "no-barrier",
    "traffic",
    says="without a barrier after the turn of rank",
    replace=("dist.barrier()", "pass"),
)
mutant(
    "take-turns",
    "barrier-before-the-turn",
    "traffic",
    says="reads without a barrier after the turn of rank 1",
    body="""
        dist.barrier()
        if order[turn] == rank:
            file.append(f"rank {rank}")
    """,
)
mutant(
    "take-turns",
    "barrier-inside-the-if",
    "traffic",
    says="writes without a barrier",
    body="""
        if order[turn] == rank:
            file.append(f"rank {rank}")
            dist.barrier()
    """,
)
mutant(
    "take-turns",
    "barrier-for-all-but-the-writer",
    says="the barrier is inside an `if`",
    body="""
        if order[turn] == rank:
            file.append(f"rank {rank}")
        elif turn == 0:
            dist.barrier()
    """,
)
mutant("take-turns", "in-rank-order", says="in the order of the ranks", replace=("order[turn] == rank", "turn == rank"))
mutant(
    "take-turns",
    "order-read-backwards",
    says="a different order",
    replace=("order[turn] == rank", "order[rank] == turn"),
)
mutant(
    "take-turns",
    "one-barrier-for-all",
    "traffic",
    says="nothing guarantees it",
    body="""
        if turn == 0:
            file.append(f"rank {rank}")
            dist.barrier()
    """,
)
also_right(
    "take-turns",
    "waits-before-and-after",
    body="""
        dist.barrier()
        if rank == order[turn]:
            file.append("rank " + str(rank))
        dist.barrier()
    """,
)

mutant(
    "take-turns",
    "all-write-in-each-turn",
    says="in each turn only one rank writes",
    replace=("if order[turn] == rank:", "if True:"),
)
mutant(
    "take-turns",
    "fakes-it",
    "traffic",
    says="appended 0 lines to the file",
    cell="""
    def take_turns(path, order, rank, world_size):
        for turn in range(world_size):
            dist.barrier()
        return [f"rank {one}" for one in order]
    """,
)
also_right(
    "take-turns",
    "counts-its-barriers",
    cell="""
    def take_turns(path, order, rank, world_size):
        file, mine = SharedFile(path), order.index(rank)
        for _ in range(mine):
            dist.barrier()
        file.append(f"rank {rank}")
        for _ in range(world_size - mine):
            dist.barrier(async_op=True).wait()
        return file.lines()
    """,
)

# ---- one-failing-rank

mutant(
    "one-failing-rank",
    "empty-counts-as-0",
    says="longer lists must count for more",
    body="""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}
    average = torch.tensor([sum(mine) / len(mine) if mine else 0.0])
    dist.all_reduce(average)
    average = average.item() / world_size
    """,
)
mutant(
    "one-failing-rank",
    "leaves-empty-ranks-out",
    says="averages of ranks that have numbers",
    body="""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}
    both = torch.tensor([sum(mine) / len(mine) if mine else 0.0, 1.0 if mine else 0.0])
    dist.all_reduce(both)
    average = (both[0] / both[1]).item()
    """,
)
mutant(
    "one-failing-rank",
    "returns-early",
    says="an empty list still has to make the calls",
    body="""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}
    if not mine:
        return 0.0, reading
    sum_and_count = torch.tensor([sum(mine), len(mine)], dtype=torch.float64)
    dist.all_reduce(sum_and_count)
    average = (sum_and_count[0] / sum_and_count[1]).item()
    """,
)
mutant(
    "one-failing-rank",
    "divides-by-ranks",
    says="what do you divide by?",
    replace=("sum_and_count[1])", "world_size)"),
)
mutant(
    "one-failing-rank",
    "does-not-divide",
    says="the sum of all numbers",
    replace=("(sum_and_count[0] / sum_and_count[1])", "sum_and_count[0]"),
)
mutant(
    "one-failing-rank",
    "blames-rank-0",
    "reading",
    says="first line of the report",
    replace=('"raised": 2', '"raised": 0'),
)
mutant(
    "one-failing-rank",
    "blames-a-lost-connection",
    "reading",
    says="before the colon",
    replace=('"ZeroDivisionError"', '"ConnectionError"'),
)
mutant(
    "one-failing-rank",
    "four-ranks",
    says="what do you divide by?",
    hidden=True,
    replace=("sum_and_count[1])", "(6 if world_size == 4 else 3 if world_size == 2 else world_size))"),
)
also_right(
    "one-failing-rank",
    "two-sums",
    body="""
    reading = dict(raised=2, error="ZeroDivisionError", waited=[3, 1, 0])
    total, count = torch.tensor(float(sum(mine))), torch.tensor(len(mine))
    dist.all_reduce(total)
    dist.all_reduce(count)
    average = total.item() / count.item()
    """,
)

mutant(
    "one-failing-rank",
    "whole-numbers",
    says="when fractions are cut off",
    replace=("sum(mine), len(mine)", "int(sum(mine)), len(mine)"),
)
mutant(
    "one-failing-rank",
    "sums-no-counts",
    says="sum the counts too",
    replace=("sum_and_count[1])", "max(1, len(mine)))"),
)
mutant(
    "one-failing-rank",
    "error-with-its-text",
    "reading",
    says="The name alone",
    replace=('"ZeroDivisionError"', '"ZeroDivisionError: division by zero"'),
)
mutant(
    "one-failing-rank",
    "reads-nothing",
    "reading",
    says="leaves 'raised' empty",
    replace=('reading = {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}', "pass"),
)
also_right(
    "one-failing-rank",
    "gathers-all-numbers",
    body="""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": {0, 1, 3}}
    lists = [None] * world_size
    dist.all_gather_object(lists, mine)
    everything = [number for numbers in lists for number in numbers]
    average = sum(everything) / len(everything)
    """,
)

# ---- one-deadlock

OWN = "if averages[-1] < 1:  # the same number on every rank, so the same decision"

mutant("one-deadlock", "decides-alone", says="All must decide by the same number", replace=(OWN, "if loss < 1:"))
mutant("one-deadlock", "never-stops", says="You continue although the average", replace=(OWN, "if False:"))
mutant(
    "one-deadlock",
    "stops-at-1-too",
    says="rank 0 made 1 step",
    hidden=True,
    replace=(OWN, "if averages[-1] <= 1:"),
)
mutant(
    "one-deadlock",
    "first-small-loss-stops-all",
    says="when one of the losses is below 1",
    replace=(
        OWN,
        "smallest = torch.tensor([loss])\n"
        "        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)\n"
        "        if smallest.item() < 1:",
    ),
)
mutant(
    "one-deadlock",
    "all-must-be-small",
    says="You continue although the average",
    replace=(
        OWN,
        "largest = torch.tensor([loss])\n"
        "        dist.all_reduce(largest, op=dist.ReduceOp.MAX)\n"
        "        if largest.item() < 1:",
    ),
)
mutant(
    "one-deadlock",
    "sums-the-first-two-steps-only",
    "reading",
    says="count the steps up to that one",
    replace=('"steps": 2', '"steps": 1'),
)
mutant(
    "one-deadlock",
    "swaps-the-calls",
    "reading",
    says="each rank has a line in the report",
    replace=('"in all_reduce": [0, 2], "in barrier": [1]', '"in all_reduce": [1], "in barrier": [0, 2]'),
)
also_right(
    "one-deadlock",
    "rank-0-tells",
    replace=(
        OWN,
        "stop = torch.tensor([int(averages[-1] < 1)])\n        dist.broadcast(stop, src=0)\n        if stop.item():",
    ),
)

mutant(
    "one-deadlock",
    "leaves-the-last-step-out",
    says="it counts too",
    replace=(OWN, "if averages[-1] < 1:\n            averages.pop()"),
)
mutant(
    "one-deadlock",
    "leaves-without-the-barrier",
    says="did not end at the barrier",
    replace=(OWN, "if averages[-1] < 1:\n            return averages, {}"),
)
also_right(
    "one-deadlock",
    "gathers-all-losses-first",
    cell="""
    def one_deadlock(losses, rank, world_size):
        all_losses = torch.tensor(losses, dtype=torch.float64)
        dist.all_reduce(all_losses)
        averages = []
        for average in (all_losses / world_size).tolist():
            averages.append(average)
            if average < 1:
                break
        dist.barrier()
        return averages, {"in all_reduce": (0, 2), "in barrier": (1,), "steps": 2}
    """,
)

# ---- memory-wall

mutant(
    "memory-wall",
    "rounds-down",
    says="a part fits nowhere",
    replace=("math.ceil(state / gpu_memory)", "int(state // gpu_memory)"),
)
mutant(
    "memory-wall",
    "always-one-more",
    says="one too many",
    replace=("math.ceil(state / gpu_memory)", "int(state // gpu_memory) + 1"),
)
mutant("memory-wall", "parameters-alone", says="the parameters alone", replace=("* bytes_per_parameter", "* 2"))
mutant(
    "memory-wall",
    "gigabytes",
    says="return bytes",
    replace=("parameters * bytes_per_parameter", "parameters * bytes_per_parameter / 1e9"),
)
mutant(
    "memory-wall",
    "not-rounded",
    says="not a whole number of GPUs",
    replace=("math.ceil(state / gpu_memory)", "state / gpu_memory"),
)
mutant(
    "memory-wall",
    "always-16",
    says="the state takes",
    hidden=True,
    replace=("* bytes_per_parameter", "* 16"),
)
also_right(
    "memory-wall", "floor-of-the-negative", replace=("math.ceil(state / gpu_memory)", "int(-(-state // gpu_memory))")
)

mutant(
    "memory-wall",
    "float-of-gpus",
    says="but a float",
    replace=("math.ceil(state / gpu_memory)", "state // -gpu_memory * -1"),
)
also_right(
    "memory-wall",
    "by-numpy",
    body="""
    import numpy
    state = parameters * bytes_per_parameter
    gpus = numpy.ceil(state / gpu_memory).astype(int)
    """,
)

# ---- bandwidth-of-levels

mutant("bandwidth-of-levels", "moves-n", says="half of it", replace=("append(2 * n / t)", "append(n / t)"))
mutant(
    "bandwidth-of-levels",
    "touches-n",
    says="2 n, which must fit",
    replace=("if 2 * n <= size", "if n <= size"),
)
mutant("bandwidth-of-levels", "inverse", says="bytes per second", replace=("2 * n / t)", "t / (2 * n))"))
mutant(
    "bandwidth-of-levels",
    "exactly-full-is-too-full",
    says="the bandwidth of",
    replace=("2 * n <= size", "2 * n < size"),
)
mutant(
    "bandwidth-of-levels",
    "best-of-each-level",
    says="the best: take the median",
    replace=("rates[level].append(2 * n / t)", "rates[level] = [max([*rates[level], 2 * n / t])]"),
)
also_right(
    "bandwidth-of-levels",
    "goes-through-the-levels",
    body="""
        for level in levels:
            if n + n <= levels[level]:
                rates[level] += [(n + n) / t]
                break
    """,
)

mutant(
    "bandwidth-of-levels",
    "every-level-that-fits",
    says="the first level that has room for it, and to no other",
    body="""
        for level, size in levels.items():
            if 2 * n <= size:
                rates[level].append(2 * n / t)
    """,
)
mutant("bandwidth-of-levels", "in-gigabytes", says="return bytes/s", replace=("2 * n / t)", "2 * n / t / 1e9)"))

# ---- arithmetic-intensity

mutant(
    "arithmetic-intensity",
    "forgets-additions",
    says="k multiplications AND k additions",
    replace=("2 * m * k * n", "m * k * n"),
)
mutant("arithmetic-intensity", "forgets-the-output", says="without the output", replace=("+ m * n)", ")"))
mutant("arithmetic-intensity", "numbers-not-bytes", says="divide by bytes", replace=(" * element_size", ""))
mutant("arithmetic-intensity", "inverse", says="the inverse", replace=("flops / moved", "moved / flops"))
mutant(
    "arithmetic-intensity",
    "two-or-four-bytes",
    says="bytes per number",
    hidden=True,
    replace=("* element_size", "* (2 if element_size == 2 else 4)"),
)
also_right("arithmetic-intensity", "by-parts", body="intensity = 2 / (element_size * (1 / n + 1 / m + 1 / k))")

# ---- roofline-time

mutant(
    "roofline-time", "adds-both", says="the longer one counts", replace=("max(computing, moving)", "computing + moving")
)
mutant("roofline-time", "forgets-the-launch", says="without the launch", replace=(" + gpu.launch", ""))
mutant("roofline-time", "takes-the-shorter", says="the shorter of the two", replace=("max(", "min("))
mutant("roofline-time", "computing-alone", "time", says="you predict", replace=("max(computing, moving)", "computing"))
mutant("roofline-time", "swaps-the-words", says="bound by", replace=("if moving > computing", "if moving < computing"))
also_right(
    "roofline-time",
    "compares-intensities",
    body="""
    bound = "memory" if moved and flops / moved < gpu.peak(dtype) / gpu.bandwidth else "compute"
    seconds = gpu.launch + (moved / gpu.bandwidth if bound == "memory" else computing)
    """,
)

mutant(
    "roofline-time",
    "launch-counts-as-moving",
    says="it counts as neither",
    replace=("if moving > computing", "if moving + gpu.launch > computing"),
)
mutant(
    "roofline-time",
    "launch-beside-the-others",
    says="on top of the longer one",
    replace=("max(computing, moving) + gpu.launch", "max(computing, moving, gpu.launch)"),
)

# ---- fused-chain

mutant(
    "fused-chain",
    "forgets-relu",
    says="without the relu",
    replace=("torch.relu(x * scale + shift)", "x * scale + shift"),
)
mutant("fused-chain", "shift-first", says="scale, then shift", replace=("x * scale + shift", "(x + shift) * scale"))
mutant(
    "fused-chain",
    "relu-first",
    says="it comes last",
    replace=("torch.relu(x * scale + shift)", "torch.relu(x) * scale + shift"),
)
mutant("fused-chain", "loads-everything", says="the chip has room for", replace=('"x", here', '"x", slice(0, numel)'))
mutant(
    "fused-chain",
    "by-way-of-memory",
    "traffic",
    says="need not go back to memory",
    body="""
        here = slice(start, start + block)
        memory.store("y", memory.load("x", here) * scale, here)
        memory.store("y", memory.load("y", here) + shift, here)
        memory.store("y", torch.relu(memory.load("y", here)), here)
    """,
)
mutant(
    "fused-chain",
    "loads-twice",
    "traffic",
    says="and be loaded again",
    replace=("torch.relu(x * scale + shift)", 'torch.relu(memory.load("x", here) * scale + shift)'),
)
mutant(
    "fused-chain",
    "whole-blocks-only",
    says="without the last, shorter block",
    body="""
        here = slice(start, start + block)
        if start + block <= numel:
            memory.store("y", torch.relu(memory.load("x", here) * scale + shift), here)
    """,
)
also_right(
    "fused-chain",
    "in-place-on-the-chip",
    body="""
        part = memory.load("x", slice(start, min(start + block, numel)))
        memory.store("y", part.mul_(scale).add_(shift).clamp_(min=0), slice(start, start + len(part)))
    """,
)

mutant(
    "fused-chain",
    "start-and-end",
    says="one slice per dimension",
    replace=('load("x", here)', 'load("x", start, start + block)'),
)
mutant(
    "fused-chain",
    "looks-into-the-arrays",
    "traffic",
    says="only memory.load and memory.store",
    replace=('memory.load("x", here)', 'memory.arrays["x"][here]'),
)
also_right(
    "fused-chain",
    "from-the-end",
    cell="""
    def fused_chain(memory, numel, scale, shift):
        end, block = numel, max(1, memory.room // 2)
        while end > 0:
            here = slice(max(0, end - block), end)
            memory.store("y", (memory.load("x", here) * scale + shift).clamp(min=0), here)
            end -= block
        return memory
    """,
)

# ---- tiled-matmul

SUM = 'total = total + memory.load("a", rows, inner) @ memory.load("b", inner, columns)'

mutant("tiled-matmul", "forgets-to-add", says="add them up", replace=("total = total + ", "total = "))
mutant(
    "tiled-matmul",
    "first-product-only",
    says="go on along the inner dimension",
    replace=("range(0, k, tile)", "range(0, tile, tile)"),
)
mutant(
    "tiled-matmul",
    "b-transposed",
    says="a times b transposed",
    replace=('memory.load("b", inner, columns)', 'memory.load("b", columns, inner).T'),
)
mutant(
    "tiled-matmul",
    "stores-every-step",
    "traffic",
    says="stays on the chip until it is complete",
    replace=(SUM, SUM + '\n                memory.store("c", total, rows, columns)'),
)
mutant(
    "tiled-matmul",
    "tiles-of-one-number",
    "traffic",
    says="times what is needed",
    cell="""
    def tiled_matmul(memory, m, k, n):
        for i in range(m):
            for j in range(n):
                row, column = slice(i, i + 1), slice(j, j + 1)
                total = 0
                for step in range(k):
                    inner = slice(step, step + 1)
                    total = total + memory.load("a", row, inner) @ memory.load("b", inner, column)
                memory.store("c", total, row, column)
        return memory
    """,
)
mutant(
    "tiled-matmul",
    "whole-rows",
    says="the chip has room for",
    body="""
            inner = slice(0, k)
            memory.store("c", memory.load("a", rows, inner) @ memory.load("b", inner, columns), rows, columns)
    """,
)
mutant(
    "tiled-matmul",
    "loads-a-twice",
    "traffic",
    says="1.5 times what is needed",
    replace=(SUM, 'memory.load("a", rows, inner)\n                ' + SUM),
)
mutant(
    "tiled-matmul",
    "whole-tiles-only",
    says="c is",
    hidden=True,
    replace=("range(0, k, tile)", "range(0, max(1, k // tile) * tile, tile)"),
)
also_right(
    "tiled-matmul",
    "keeps-tiles-in-variables",
    body="""
            first, *others = [slice(step, step + tile) for step in range(0, k, tile)]
            total = memory.load("a", rows, first) @ memory.load("b", first, columns)
            for inner in others:
                left = memory.load("a", rows, inner)
                right = memory.load("b", inner, columns)
                total += left @ right
            memory.store("c", total, rows, columns)
    """,
)
also_right(
    "tiled-matmul",
    "keeps-a-tile-for-the-next-column",
    cell="""
    def tiled_matmul(memory, m, k, n):
        tile = math.isqrt(memory.room // 4)
        steps = list(range(0, k, tile))
        for i in range(0, m, tile):
            left, at = None, None
            for j in range(0, n, tile):
                rows, columns, total = slice(i, i + tile), slice(j, j + tile), 0
                steps.reverse()
                for step in steps:
                    inner = slice(step, step + tile)
                    if step != at:
                        left, at = memory.load("a", rows, inner), step
                    total = total + left @ memory.load("b", inner, columns)
                memory.store("c", total, rows, columns)
        return memory
    """,
)

mutant("tiled-matmul", "element-by-element", says="use @", replace=(" @ memory", " * memory"))
mutant(
    "tiled-matmul",
    "wrong-tiles-of-b",
    says="the wrong tiles of b",
    replace=('"b", inner, columns', '"b", columns, inner'),
)

# ---- read-topology

CUT = "[line.split()[1 : gpus + 1] for line in lines]"

mutant("read-topology", "keeps-the-names", says="shifted", replace=(CUT, "[line.split()[:gpus] for line in lines]"))
mutant(
    "read-topology",
    "name-in-front",
    says="the GPU's name in front",
    replace=(CUT, "[line.split()[: gpus + 1] for line in lines]"),
)
mutant(
    "read-topology",
    "all-columns",
    says="columns that are not GPUs",
    replace=(CUT, "[line.split()[1:] for line in lines]"),
)
mutant(
    "read-topology",
    "cuts-at-tabs-only",
    says="white space around the labels",
    replace=("line.split()", r'line.split("\t")'),
)
mutant(
    "read-topology",
    "tabs-and-strips",
    says="row 0 is []",
    hidden=True,
    replace=(CUT, r'[[x.strip() for x in line.split("\t")[1 : gpus + 1]] for line in lines]'),
)
mutant(
    "read-topology",
    "names-of-one-digit",
    says="12 GPUs",
    hidden=True,
    replace=("len(lines)", "sum(line[4:5].isspace() for line in lines)"),
)
also_right(
    "read-topology",
    "takes-labels-only",
    body=r"""
    import re
    rows = re.findall(r"^GPU\d+\s.*", text, re.MULTILINE)
    matrix = [re.findall(r"\b(?:X|SYS|NODE|PHB|PXB|PIX|NV\d+)\b", row)[: len(rows)] for row in rows]
    """,
)

mutant(
    "read-topology",
    "counts-words-in-the-first-line",
    says="Only rows of GPUs count",
    cell="""
    def read_topology(text):
        lines = text.splitlines()
        gpus = lines[0].count("GPU")  # "GPU NUMA ID" has it too
        return [line.split()[1 : gpus + 1] for line in lines[1 : gpus + 1]]
    """,
)

# ---- best-ring

mutant(
    "best-ring",
    "rank-order",
    says="its slowest link is SYS",
    replace=("return max(rings, key=slowest)", "return list(range(len(matrix)))"),
)
mutant(
    "best-ring", "leaves-it-open", says="A ring is closed", replace=("in range(len(ring))", "in range(1, len(ring))")
)
mutant("best-ring", "worst-ring", says="its slowest link is SYS", replace=("max(rings", "min(rings"))
mutant(
    "best-ring",
    "sums-the-speeds",
    says="its slowest link is",
    replace=("min(gpu_topology.speed", "sum(gpu_topology.speed"),
)
mutant(
    "best-ring",
    "greedy",
    says="its slowest link is",
    cell="""
    def best_ring(matrix):
        ring = [0]
        while len(ring) < len(matrix):
            left = [gpu for gpu in range(len(matrix)) if gpu not in ring]
            ring.append(max(left, key=lambda gpu: gpu_topology.speed(matrix[ring[-1]][gpu])))
        return ring
    """,
)
also_right(
    "best-ring",
    "goes-the-other-way-round",
    cell="""
    def best_ring(matrix):
        def slowest(ring):
            return min(gpu_topology.speed(matrix[a][b]) for a, b in zip(ring, ring[1:] + ring[:1]))
        rings = [[0, *others] for others in permutations(range(len(matrix) - 1, 0, -1))]
        return sorted(rings, key=slowest)[-1]
    """,
)
mutant(
    "best-ring",
    "names-the-first-twice",
    says="closed anyway",
    replace=("max(rings, key=slowest)", "[*max(rings, key=slowest), 0]"),
)
