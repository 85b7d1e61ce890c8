"""Answers to lesson 00, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("hello-ranks")
wrong("size-as-rank", "how many ranks there are").replace("get_rank()", "get_world_size()")
wrong("device-itself", "take str(...) of it").replace("str(get_device())", "get_device()")
wrong("always-rank-0", "each has its own").replace("dist.get_rank()", "0")
wrong("rank-as-size", "ask get_world_size()").replace("dist.get_world_size()", "dist.get_rank()")
wrong("no-device", "nothing about 'device'", varies=True).replace('me["device"] = str(get_device())', "pass")
wrong("returns-a-tuple", "Add your entries").replace("return me", 'return me["rank"], me["world_size"], me["device"]')
wrong("forgets-to-call", "Call it: write ()").replace("dist.get_rank()", "dist.get_rank")
wrong("makes-its-own-dict", "Leave the entry that `me` starts with").replace('me["rank"]', 'me = {}; me["rank"]')
wrong("takes-its-rank", "takes an argument, and gets none").replace("hello_ranks()", "hello_ranks(rank, world_size)")
wrong("counts-from-1", "ranks are counted from 0").replace("dist.get_rank()", "dist.get_rank() + 1")
wrong("text-from-the-environment", "take int(...)").replace("dist.get_rank()", 'os.environ["RANK"]')
wrong("four-ranks-everywhere", "in a different run").replace("dist.get_world_size()", "4")
wrong("device-type", "without the GPU's number").replace("str(get_device())", "get_device().type")
wrong("always-the-cpu", "names a GPU").replace("str(get_device())", '"cpu"')
wrong("device-by-hand", "put together by hand").replace("str(get_device())", 'get_device().type + ":0"')
wrong("always-the-first-gpu", "rank 0's GPU").replace("str(", '"cuda:0" if get_device().type == "cuda" else str(')
wrong("device-index", "not what get_device() says").replace("str(get_device())", "get_device().index")
wrong(
    "rank-on-its-machine", sentence="its number among the ranks of one machine: `LOCAL_RANK` is not the rank"
).replace("dist.get_rank()", 'int(os.environ["LOCAL_RANK"])')
wrong(
    "ranks-of-its-machine", sentence="how many ranks are on one machine: `LOCAL_WORLD_SIZE` is not the world size"
).replace("dist.get_world_size()", 'int(os.environ["LOCAL_WORLD_SIZE"])')
right("reads-the-environment").replace("dist.get_rank()", 'int(os.environ["RANK"])')

wrong, right = ANSWERS.to("replicas-in-step")
SUM, DIVIDE = "dist.all_reduce(weight.grad)", "weight.grad /= world_size"
ZERO, STEP = "optimizer.zero_grad()", "optimizer.step()"
wrong("forgets-the-all-reduce", "from its own rows alone").replace(SUM, "pass").replace(DIVIDE, "pass")
wrong("sums", sentence="with the SUM of the gradients: divide it by the number of ranks").replace(DIVIDE, "pass")
wrong("halves-the-sum", sentence="with half the sum of the gradients: divide it by world_size").replace(
    DIVIDE, "weight.grad /= 2"
)
wrong(
    "divides-by-its-rows",
    sentence="with the sum divided by a rank's rows: the loss is already a mean over rows, so divide by world_size",
).replace("/= world_size", "/= len(mine)")
wrong(
    "divides-by-all-rows",
    sentence="with the sum divided by all ranks' rows: the loss is already a mean over rows, so divide by world_size",
).replace("/= world_size", "/= len(mine) * world_size")
wrong(
    "multiplies-by-lr-twice", sentence="with gradients that were multiplied by lr twice: the optimizer does that"
).replace("/= world_size", "*= lr / world_size")
wrong("cuts-the-batch-again", sentence="with each batch cut once more: `batches` has this rank's rows only").replace(
    ", mine)", ", mine.chunk(world_size)[dist.get_rank()])"
)
wrong("reduces-to-rank-0", "`reduce` leads to").replace(SUM, "dist.reduce(weight.grad, dst=0)")
AVERAGED = f"for weight in weights:\n    {SUM}\n    {DIVIDE}\n"
IN_WEIGHTS = AVERAGED.replace("grad", "data")
wrong(
    "averages-at-the-end", sentence="the mean of replicas that trained apart: average the gradients at every step"
).replace(AVERAGED, "").replace("return [", IN_WEIGHTS + "return [")
wrong(
    "zeroes-before-the-step",
    sentence="the weight before the first step: call zero_grad(), backward() and step() in this order",
).replace(ZERO, "pass").replace(STEP, f"{ZERO}; {STEP}")
wrong("steps-before-the-sum", "before optimizer.step()").replace(AVERAGED + STEP, f"{STEP}\n{AVERAGED}")
wrong("returns-in-the-loop", sentence="the weight after the first step: return after the loop").replace(
    STEP, f"{STEP}; return [one.detach() for one in weights]"
)
wrong("averages-the-loss", "averaging the losses brings in no").replace(
    "loss.backward()", "dist.all_reduce(loss.data); loss = loss / world_size; loss.backward()"
).replace(AVERAGED, "")
wrong("never-zeroes", sentence="with gradients that add up from step to step: zero them at the start of each").replace(
    ZERO, "pass"
)
wrong("only-the-last-weight", sentence="with an average of the last weight's gradient only").replace(
    "in weights:", "in weights[-1:]:"
)
wrong(
    "steps-in-the-loop",
    sentence="with one step of the optimizer for each weight: call step() after the loop over them",
).replace(STEP, "").replace(DIVIDE, f"{DIVIDE}; {STEP}")
wrong("zeroes-too-late", "zero_grad() before that").replace("loss.backward()", "loss.backward(); optimizer.zero_grad()")
wrong("averages-the-weights-only", "and not the weights").replace("weight.grad", "weight")
wrong("divides-twice", sentence="with a second division: AVG, for example, divides already").replace(
    "grad)", "grad, op=dist.ReduceOp.AVG)"
)
wrong("broadcasts", sentence="with rank 0's gradients alone: average those of all ranks").replace(
    SUM, "dist.broadcast(weight.grad, src=0)"
).replace(DIVIDE, "")
wrong("for-two-ranks", same_as="sums", hidden=True).replace("/= world_size", "/= {2: 2, 4: 4}.get(world_size, 1)")
wrong("divides-before-it-waits", "written to while it was in flight").replace(
    SUM, "handle = dist.all_reduce(weight.grad, async_op=True)"
).replace(DIVIDE, f"{DIVIDE}; handle.wait()")
wrong("gathers-at-rank-0", "`gather` leads to").replace(
    SUM,
    "every = [torch.zeros_like(weight) for _ in range(world_size)] * (dist.get_rank() == 0)\n"
    "dist.gather(weight.grad, every or None)\nweight.grad = sum(every or [weight.grad])",
)
wrong(
    "averages-too-early",
    sentence="without the average in the last step: average the gradients between backward() and step()",
).replace(AVERAGED, "").replace(ZERO, IN_WEIGHTS + ZERO)
wrong("takes-the-largest", "ReduceOp.MAX leads to").replace("grad)", "grad, op=dist.ReduceOp.MAX)")
right("averages-weights-at-each-step").replace(AVERAGED + STEP, f"{STEP}\n{IN_WEIGHTS}")
right("one-flat-mean").replace(
    AVERAGED,
    "flat = torch.cat([weight.grad.flatten() for weight in weights])\n"
    "dist.all_reduce(flat, op=dist.ReduceOp.AVG)\n"
    "for weight, mean in zip(weights, flat.chunk(len(weights))):\n    weight.grad = mean.view_as(weight)\n",
)

wrong, right = ANSWERS.to("rendezvous-by-hand")
STORE, LEAVE = "store = dist.FileStore(path, world_size)", "dist.destroy_process_group()"
JOIN = 'dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)'
NUMBER, EMPTY = "torch.tensor([float(number)])", "[torch.empty(1) for _ in range(world_size)]"
GATHER = f"dist.all_gather(everyone, {NUMBER})"
APPEND = "gathered.append([int(one) for one in everyone])"
stays = wrong("never-parts", "Leave each meeting before the next one")
stays.replace(f"{APPEND}\n{LEAVE}", APPEND)
wrong("its-own-number-for-all", "rank 3 gathered").replace(APPEND, APPEND.replace("int(one)", "int(number)"))
wrong("parts-late", "has a process group").like(stays).replace(STORE, f"dist.is_initialized() and {LEAVE}; {STORE}")
wrong("numbers-ranks-backwards", "give rank=").replace("rank=rank", "rank=world_size - 1 - rank")
wrong("a-world-of-its-own", "the number who come to it", varies=True).replace("world_size=world_size", "world_size=1")
wrong("only-makes-the-store", "There is no process group").replace(JOIN, "pass")
wrong("plain-numbers", "put `number` into one").replace(NUMBER, "number").replace("torch.empty(1) ", "0 ")
wrong("two-dtypes", "the dtype of `mine`").replace("float(number)", "number")
wrong("path-as-store", "and not its path").replace("store=store", "store=path")
wrong("parts-early", "destroy_process_group after it").replace("everyone =", f"{LEAVE}; everyone =")
wrong("stays-in-the-first-group", "of an earlier meeting").like(stays).replace(JOIN, f"gathered or {JOIN}")
wrong("the-same-tensor-n-times", "is the SAME tensor n times").replace(EMPTY, "[torch.empty(1)] * world_size")
wrong("gathers-ranks", "gather `number`").replace("float(number)", "float(rank)")
wrong("gathers-tensors", "take .item() of each").replace("[int(one) for one in everyone]", "everyone")
wrong("one-flat-list", "append each meeting's own list").replace("gathered.append(", "gathered.extend(")
wrong("gathers-at-0", "`gather` leads to", varies=True).replace(
    GATHER, f"dist.gather({NUMBER}, everyone if rank == 0 else None)"
)
early = wrong("reads-before-it-waits", "before the call has delivered")
early.replace(GATHER, f"handle = {GATHER[:-1]}, async_op=True)").replace(APPEND, f"{APPEND}; handle.wait()")
whole = wrong("reads-whole-numbers-early", "before the call has delivered").like(early)
whole.replace("float(number)", "number").replace("empty(1)", "tensor([0])")
wrong("meets-in-the-store", "made no call of `dist` in a group").body("""
    store = dist.FileStore(path, world_size)
    store.set(str(rank), str(number))
    gathered.append([int(store.get(str(other))) for other in range(world_size)])
""")
wrong("last-meeting-first", "in a different order").replace("gathered.append(", "gathered.insert(0, ")
right("fills-a-row").replace(
    "everyone =", "row = torch.zeros(world_size)\nrow[rank] = number\nif False: everyone ="
).replace(GATHER, "dist.all_reduce(row)").replace("[int(one) for one in everyone]", "[int(one) for one in row]")
right("by-a-url").replace(STORE, "pass").replace("store=store", 'init_method=f"file://{path}"').replace(
    EMPTY, "[None] * world_size"
).replace(GATHER, "dist.all_gather_object(everyone, number)").replace(
    APPEND, "gathered.append(everyone); dist.barrier()"
)
right("behind-a-prefix").replace("dist.FileStore(path, world_size)", 'dist.PrefixStore("met", dist.FileStore(path))')

wrong, right = ANSWERS.to("take-turns")
BARRIER, WRITE = "dist.barrier()", 'file.append(f"rank {rank}")'
TURN = f"if order[turn] == rank:\n    {WRITE}\n"
wrong("no-barrier", "without a barrier after the turn", caught_by="traffic").replace(BARRIER, "pass")
wrong("barrier-first", "the last turn is missing", caught_by="traffic").replace(TURN + BARRIER, f"{BARRIER}\n{TURN}")
wrong("barrier-in-the-if", "writes without a barrier", caught_by="traffic").replace(BARRIER, f"    {BARRIER}")
wrong("for-all-but-the-writer", "never called this barrier").replace(BARRIER, f"elif turn == 0:\n    {BARRIER}")
wrong("writes-the-turn", "each writes its own rank").replace('f"rank {rank}"', 'f"rank {turn}"')
wrong("in-rank-order", "in the order of the ranks").replace("order[turn] == rank", "turn == rank")
wrong("order-read-backwards", "the rank order[turn] writes").replace("order[turn] == rank", "order[rank] == turn")
wrong("from-the-end", "counted from 0").replace("order[turn] == rank", "order[-1 - turn] == rank")
wrong("reads-in-turn", "Read after").replace("return file.lines()", "return now").replace(
    WRITE, f"{WRITE}; now = file.lines()"
)
wrong("one-barrier", "let ALL ranks call the barrier", caught_by="traffic").body(f"{WRITE}; {BARRIER}")
wrong("all-write-in-each-turn", "only one rank writes", varies=True).replace("order[turn] == rank", "True")
wrong("numbers-alone", "not the text that is asked for").replace('f"rank {rank}"', "str(rank)")
wrong("joins-the-lines", "not a list").replace("file.lines()", '"\\n".join(file.lines())')
wrong("fakes-it", "appended 0 lines", caught_by="traffic").function('return [f"rank {one}" for one in order]')
wrong("starts-barriers", "wait()", caught_by="traffic", varies=True).replace("barrier()", "barrier(async_op=True)")
right("waits-before-and-after").replace(TURN, f"{BARRIER}\n{TURN}")
right("counts-its-barriers").function("""
    file, mine = SharedFile(path), order.index(rank)
    [dist.barrier() for _ in range(mine)]
    file.append(f"rank {rank}")
    [dist.barrier(async_op=True).wait() for _ in range(world_size - mine)]
    return file.lines()
""")

wrong, right = ANSWERS.to("one-failing-rank")
PAIR, MEAN = "sum(mine), len(mine)", "sum(mine) / max(1, len(mine))"
DIVISION = "(sum_and_count[0] / sum_and_count[1])"
wrong("empty-counts-as-0", "average of the ranks' averages").replace(PAIR, f"{MEAN}, 1")
wrong("sums-averages", "since longer lists").replace(PAIR, f"{MEAN}, 1 / world_size")
wrong("leaves-empty-ranks-out", "averages of ranks that have numbers").replace(PAIR, f"{MEAN}, len(mine) > 0")
wrong("skips-the-call", "never called this all_reduce").replace("dist.all", "if mine: dist.all")
wrong("divides-by-ranks", "divide by the sum of the counts").replace("sum_and_count[1])", "world_size)")
wrong("does-not-divide", "the sum of all numbers").replace(DIVISION, "sum_and_count[0]")
wrong("blames-rank-0", "first line of the report", caught_by="reading").replace('"raised": 2', '"raised": 0')
wrong("blames-a-lost-connection", "before the colon", caught_by="reading").replace("ZeroDivision", "Connection")
wrong("for-four", "sum of the counts", hidden=True).replace("sum_and_count[1])", "[1, 2, 3, 3, 6, 5][world_size])")
wrong("whole-numbers", "if fractions are cut off").replace(PAIR, "int(sum(mine)), len(mine)")
wrong("sums-no-counts", "sum the counts too").replace("sum_and_count[1])", "max(1, len(mine)))")
wrong("error-with-its-text", "The name alone", caught_by="reading").replace('Error"', 'Error: division by zero"')
wrong("reads-nothing", "leaves 'raised' empty", caught_by="reading").replace('"raised": 2', '"raised": None')
wrong("own-sum-by-all-counts", "sum over the ranks too").replace(DIVISION, "sum(mine) / sum_and_count[1]")
wrong("empty-counts-as-one", "its count is 0").replace(PAIR, "sum(mine), max(1, len(mine))")
wrong("reduces-to-rank-0", "`reduce` leads to").replace("all_reduce(", "reduce(dst=0, tensor=")
wrong("averages-nothing", "an empty list has no average").replace(PAIR, "torch.tensor(mine).double().mean(), 1")
wrong("reads-before-it-waits", "before the call has delivered").replace(
    "dist.all_reduce(sum_and_count)", "handle = dist.all_reduce(sum_and_count, async_op=True)"
).replace(".item()", ".item(); handle.wait()")
wrong("own-average", "all have the sums").replace("dist.all_reduce(sum_and_count)", "sum_and_count[1].clamp_(min=1)")
wrong("rounds", "without its fraction").replace("[0] / sum", "[0] // sum")
right("two-sums").body("""
    reading = dict(raised=2, error="ZeroDivisionError", waited=[3, 1, 0])
    total, count = torch.tensor(float(sum(mine))), torch.tensor(len(mine))
    average = [dist.all_reduce(total), dist.all_reduce(count), total.item() / count.item()][-1]
""")
right("gathers-all-numbers").body("""
    reading = {"raised": 2, "error": "ZeroDivisionError", "waited": {0, 1, 3}}
    lists = [None] * world_size
    dist.all_gather_object(lists, mine)
    average = sum(sum(lists, [])) / len(sum(lists, []))
""")

wrong, right = ANSWERS.to("one-deadlock")
IF, APPEND = "if averages[-1] < 1:", "averages.append(average.item() / world_size)"
REDUCED = "other = torch.tensor([loss])\ndist.all_reduce(other, op=dist.ReduceOp.MIN)\nif other.item() < 1:"
wrong("decides-alone", "All must decide by the same number").replace(IF, "if loss < 1:")
wrong("averages-as-tensors", "take .item() of each").replace("average.item()", "average")
wrong("never-stops", "You go on after an average below 1").replace(IF, "if False:")
wrong("stops-at-1-too", "an average of 1, which is not below 1").replace(IF, "if averages[-1] <= 1:")
wrong("first-small-loss-stops-all", "when one of the losses is below 1").replace(IF, REDUCED)
wrong("all-must-be-small", "when all of the losses").replace(IF, REDUCED.replace("MIN", "MAX"))
wrong("sum-must-be-small", "when the sum of the losses").replace(IF, "if average.item() < 1:")
wrong("rank-0-decides", "when rank 0's own loss").replace(IF, "dist.broadcast(average.fill_(loss), 0)\nif average < 1:")
wrong("a-step-late", "you stop a step late").replace(IF, "if [1, *averages][-2] < 1:")
wrong("counts-one-step", "count the steps up to that one", caught_by="reading").replace('"steps": 2', '"steps": 1')
wrong("one-rank-in-both", "each rank has a line in the report", caught_by="reading").replace("[0, 2]", "[1]")
wrong("keeps-the-last", "those of all steps").replace(APPEND, "averages = [average.item() / world_size]")
wrong("own-losses", "this rank's own losses").replace(APPEND, "averages.append(loss)").replace(IF, "if average < 3:")
wrong("divides-twice", "by the number of ranks again").replace("/ world_size", "/ world_size**2")
wrong("sums", "the sums: divide each").replace("average.item() / world_size", "average.item()")
wrong("leaves-the-last-step-out", "it counts too").replace("break", "averages.pop()\nbreak")
wrong("leaves-without-the-barrier", "every way out of the loop").replace("break", "return averages, {}")
wrong("barrier-to-break", "never falls below 1").replace(BARRIER, "").replace("break", f"{BARRIER}\nbreak")
REDUCE = "dist.all_reduce(average)"
wrong("reduces-to-rank-0", "`reduce` gives the sum to one rank alone").replace(REDUCE, "dist.reduce(average, dst=0)")
wrong("reads-before-it-waits", "before the call has delivered").replace(
    REDUCE, "handle = dist.all_reduce(average, async_op=True)"
).replace(APPEND, f"{APPEND}; handle.wait()")
right("rank-0-tells").replace(IF, "average[0] = averages[-1] < 1\ndist.broadcast(average, src=0)\nif average.item():")
right("gathers-all-losses-first").replace(
    "for loss in losses:",
    "sums = torch.tensor(losses, dtype=torch.float64)\ndist.all_reduce(sums)\nfor average in sums:",
).replace("average = torch.tensor([loss], dtype=torch.float64)", "").replace(REDUCE, "").replace("[0, 2]", "(0, 2)")

wrong, right = ANSWERS.to("smallest-cluster")
WORK, DAYS = "6 * parameters * tokens", "days * 24 * 3600"
wrong("swaps-the-two", "memory comes first").replace("return by_memory, by_time", "return by_time, by_memory")
wrong("the-larger-for-memory", "the state alone").replace("return by_memory,", "return max(by_memory, by_time),")
wrong("the-larger-for-time", "the time alone").replace("memory, by_time", "memory, max(by_memory, by_time)")
wrong("rounds-down", "needs one more GPU").replace("math.ceil(16", "int(16")
wrong("rounds-to-the-nearest", "rounded to the nearest").replace("by_time = math.ceil(", "by_time = round(")
wrong("parameters-alone", "gradients and Adam's state").replace("16 * parameters", "2 * parameters")
wrong("always-one-more", "one too many").replace("math.ceil(16", "1 + int(16")
wrong("not-rounded", "not a whole number of GPUs").replace("math.ceil(6", "(6")
wrong("forward-alone", "6 FLOP per parameter and token").replace(WORK, "2 * parameters * tokens")
wrong("one-flop", "a single FLOP").replace(WORK, "parameters * tokens")
wrong("days-as-seconds", "a day has 24 * 3600").replace(DAYS, "days")
wrong("days-as-hours", "a day has 24 of them").replace(DAYS, "days * 3600")
wrong("a-single-day", "for a single day").replace(DAYS, "24 * 3600")
wrong("minutes", "those are its minutes").replace(DAYS, "days * 24 * 60")
wrong("a-day-of-24-seconds", "an hour has 3600").replace(DAYS, "days * 24")
wrong("gigabytes-of-2**30", "gpu_memory is in bytes already").replace("/ gpu_memory)", "/ (gpu_memory * 1.024**3))")
wrong("forty-percent-again", "already what it reaches").replace("(gpu_flops *", "(0.4 * gpu_flops *")
right("by-floor-division").replace("math.ceil(6", "int(-(-6").replace("s / (", "s // (").replace("3600))", "3600)))")

wrong, right = ANSWERS.to("barrier-by-hand")
wrong("uses-the-barrier", "barrier", caught_by="score").body("dist.barrier()")
wrong("nobody-waits", "had heard of no other rank", caught_by="score").body("pass")
wrong("tells-only", "Only rank 0 heard of all", caught_by="score").body(
    "dist.send(word, dst=0) if rank else [dist.recv(word, src=other) for other in range(1, world_size)]"
)
wrong("forgets-to-answer", "waits in recv", caught_by="score").replace("dist.send(word, dst=other)", "pass")
further = right("further-each-time")
further.body("""
    distance = 1
    while distance < world_size:
        handle = dist.isend(word, dst=(rank + distance) % world_size)
        dist.recv(torch.zeros(1), src=(rank - distance) % world_size)
        handle.wait()
        distance *= 2
""")
wrong("twice-around-a-ring", "times par", caught_by="score").like(further).replace(
    "while distance < world_size:", "for _ in range(2 * world_size):"
).replace("distance *= 2", "pass")
wrong("needs-a-power-of-two", "any number of ranks", caught_by="score").like(further).replace(
    "(rank + distance) % world_size", "rank ^ distance"
).replace("(rank - distance) % world_size", "rank ^ distance")
wrong("skips-missing-partners", "learns nothing in that round", caught_by="score").body("""
    for distance in (1, 2, 4):
        if rank ^ distance < world_size:
            handle = dist.isend(word, dst=rank ^ distance)
            dist.recv(torch.zeros(1), src=rank ^ distance); handle.wait()
""")
wrong("three-exchanges", "until one has", caught_by="score", hidden=True).like(further).replace("< world_size", "< 8")
