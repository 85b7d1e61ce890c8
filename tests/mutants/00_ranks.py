"""Answers to lesson 00, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("hello-ranks")
wrong("swaps-rank-and-size", "how many ranks there are: ask get_rank()").body(
    'me.update(rank=dist.get_world_size(), world_size=dist.get_rank(), device="cpu")'
)
wrong("device-itself", "take str(...) of it").replace("str(get_device())", "get_device()")
wrong("always-rank-0", "each has its own").replace("dist.get_rank()", "0")
wrong("rank-as-size", "ask get_world_size()").replace("dist.get_world_size()", "dist.get_rank()")
wrong("forgets-the-device", "says nothing about 'device'", varies=True).replace(
    'me["device"] = str(get_device())', "pass"
)
wrong("returns-a-tuple", "Add your entries").replace("return me", 'return me["rank"], me["world_size"], me["device"]')
wrong("forgets-to-call", "Call it: write ()").replace("dist.get_rank()", "dist.get_rank")
wrong("makes-its-own-dict", "Leave the entry that `me` starts with").replace('me["rank"]', 'me = {}; me["rank"]')
wrong("takes-its-rank", "takes an argument, and gets none").replace("hello_ranks()", "hello_ranks(rank, world_size)")
wrong("counts-from-1", "ranks are counted from 0").replace("dist.get_rank()", "dist.get_rank() + 1")
wrong("text-from-the-environment", "take int(...)").replace("dist.get_rank()", 'os.environ["RANK"]')
wrong("four-ranks-everywhere", "in a different run").replace("dist.get_world_size()", "4")
right("reads-the-environment").body(
    'me.update(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), device=get_device().type)'
)

wrong, right = ANSWERS.to("replicas-in-step")
wrong("forgets-the-all-reduce", "from its own rows alone").replace("dist.all_reduce(weight.grad)", "pass").replace(
    "weight.grad /= world_size", "pass"
)
wrong("sums", "SUM of the gradients").replace("weight.grad /= world_size", "pass")
wrong("halves-the-sum", "divided by 2 leads to").replace("weight.grad /= world_size", "weight.grad /= 2")
wrong("divides-by-its-rows", "a rank's number of rows").replace("/= world_size", "/= len(mine)")
wrong("divides-by-all-rows", "the number of rows of all ranks").replace("/= world_size", "/= len(mine) * world_size")
wrong("multiplies-by-lr-twice", "by lr twice").replace("/= world_size", "*= lr / world_size")
wrong("cuts-the-batch-again", "this rank's rows only").replace(
    "mlp.forward(weights, mine)", "mlp.forward(weights, mine.chunk(world_size)[dist.get_rank()])"
)
wrong("reduces-to-rank-0", "not its root").replace("dist.all_reduce(weight.grad)", "dist.reduce(weight.grad, dst=0)")
AVERAGED = "for weight in weights:\n    dist.all_reduce(weight.grad)\n    weight.grad /= world_size\n"
AVERAGED_WEIGHTS = AVERAGED.replace("grad", "data")
wrong("averages-weights-at-the-end", "the mean of replicas that trained apart").replace(AVERAGED, "").replace(
    "return [", AVERAGED_WEIGHTS + "return ["
)
wrong("zeroes-before-the-step", "not between it and the step").replace("optimizer.zero_grad()", "pass").replace(
    "optimizer.step()", "optimizer.zero_grad()\noptimizer.step()"
)
wrong("steps-before-the-sum", "before optimizer.step()").replace(
    AVERAGED + "optimizer.step()", "optimizer.step()\n" + AVERAGED
)
wrong("returns-in-the-loop", "return after the loop").replace(
    "optimizer.step()", "optimizer.step()\nreturn [weight.detach() for weight in weights]"
)
wrong("averages-the-loss", "divided by the number of ranks: averaging the losses brings in no").replace(
    "loss.backward()", "dist.all_reduce(loss.data); loss = loss / world_size; loss.backward()"
).replace(AVERAGED, "")
wrong("never-zeroes", "add up from step to step").replace("optimizer.zero_grad()", "pass")
wrong("only-the-last-weight", "the last weight's gradient only").replace(
    AVERAGED, "dist.all_reduce(weights[-1].grad)\nweights[-1].grad /= world_size\n"
)
wrong("steps-in-the-loop", "steps once for each weight").replace("optimizer.step()", "").replace(
    "/= world_size", "/= world_size; optimizer.step()"
)
wrong("zeroes-too-late", "zero_grad() before that").replace("loss.backward()", "loss.backward(); optimizer.zero_grad()")
wrong("averages-the-weights-only", "and not the weights").replace("weight.grad", "weight")
wrong("divides-twice", "AVG, for example, does it already").replace(
    "dist.all_reduce(weight.grad)", "dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)"
)
wrong("broadcasts", "rank 0's gradients").replace(
    AVERAGED, "for weight in weights:\n    dist.broadcast(weight.grad, src=0)\n"
)
wrong("for-two-ranks", "SUM of the gradients", hidden=True).replace(
    "weight.grad /= world_size", "weight.grad /= {2: 2, 4: 4}.get(world_size, 1)"
)
right("averages-weights-at-each-step").replace(AVERAGED + "optimizer.step()", "optimizer.step()\n" + AVERAGED_WEIGHTS)
right("one-flat-mean").replace(
    AVERAGED,
    "flat = torch.cat([weight.grad.flatten() for weight in weights])\n"
    "dist.all_reduce(flat, op=dist.ReduceOp.AVG)\n"
    "for weight, mean in zip(weights, flat.chunk(len(weights))):\n    weight.grad = mean.view_as(weight)\n",
)

wrong, right = ANSWERS.to("rendezvous-by-hand")
wrong("never-parts", "Leave each meeting before the next one").replace("dist.destroy_process_group()", "pass").replace(
    "pass\ngathered = []", "dist.destroy_process_group()\ngathered = []"
)
wrong("parts-only-in-between", "still has a process group").replace(
    "gathered.append([int(one) for one in everyone])\ndist.destroy_process_group()",
    "gathered.append([int(one) for one in everyone])",
).replace("store =", "if dist.is_initialized():\n    dist.destroy_process_group()\nstore =")
wrong("numbers-ranks-backwards", "Give rank= the rank that this process has there").replace(
    "rank=rank", "rank=world_size - 1 - rank"
)
wrong("a-world-of-its-own", "the number who come to it", varies=True).replace("world_size=world_size", "world_size=1")
wrong("only-makes-the-store", "There is no process group at this point").replace(
    'dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)', "pass"
)
wrong("plain-numbers", "put `number` into one").replace("torch.tensor([float(number)])", "number").replace(
    "torch.empty(1) ", "0 "
)
wrong("two-dtypes", "the dtype of `mine`").replace("float(number)", "number")
wrong("path-as-store", "and not its path").replace("store=store", "store=path")
wrong("parts-before-it-gathers", "destroy_process_group after it").replace(
    "everyone =", "dist.destroy_process_group()\neveryone ="
)
wrong("stays-in-the-first-group", "the group of an earlier meeting").body("""
    if not gathered:
        dist.init_process_group("gloo", store=dist.FileStore(path, world_size), rank=rank, world_size=world_size)
    everyone = [torch.empty(1) for _ in range(world_size)]
    dist.all_gather(everyone, torch.tensor([float(number)]))
    gathered.append([int(one) for one in everyone])
""")
wrong("the-same-tensor-n-times", "is the SAME tensor n times").replace(
    "[torch.empty(1) for _ in range(world_size)]", "[torch.empty(1)] * world_size"
)
wrong("gathers-ranks", "gather `number`").replace("float(number)", "float(rank)")
wrong("gathers-tensors", "take .item() of each").replace("[int(one) for one in everyone]", "everyone")
wrong("one-flat-list", "append each meeting's own list").replace("gathered.append(", "gathered.extend(")
wrong("meets-in-the-store", "made no call of `dist` in a group").body("""
    store = dist.FileStore(path, world_size)
    store.set(str(rank), str(number))
    gathered.append([int(store.get(str(other))) for other in range(world_size)])
""")
right("fills-a-row").replace(
    "everyone =", "row = torch.zeros(world_size)\nrow[rank] = number\nif False: everyone ="
).replace("dist.all_gather(everyone, torch.tensor([float(number)]))", "dist.all_reduce(row)").replace(
    "[int(one) for one in everyone]", "[int(one) for one in row]"
)
right("by-a-url").replace("store = dist.FileStore(path, world_size)", "pass").replace(
    "store=store", 'init_method=f"file://{path}"'
).replace("[torch.empty(1) for _ in range(world_size)]", "[None] * world_size").replace(
    "dist.all_gather(everyone, torch.tensor([float(number)]))", "dist.all_gather_object(everyone, number)"
).replace("gathered.append([int(one) for one in everyone])", "gathered.append(everyone); dist.barrier()")
right("behind-a-prefix").replace("dist.FileStore(path, world_size)", 'dist.PrefixStore("met", dist.FileStore(path))')

wrong, right = ANSWERS.to("take-turns")
TURN = 'if order[turn] == rank:\n    file.append(f"rank {rank}")\n'
wrong("no-barrier", "without a barrier after the turn of rank", caught_by="traffic").replace("dist.barrier()", "pass")
wrong("barrier-before-the-turn", "reads without a barrier after the turn of rank 1", caught_by="traffic").replace(
    TURN + "dist.barrier()", "dist.barrier()\n" + TURN
)
wrong("barrier-inside-the-if", "writes without a barrier", caught_by="traffic").replace(
    TURN + "dist.barrier()", TURN + "    dist.barrier()"
)
wrong("barrier-for-all-but-the-writer", "never called this barrier").replace(
    "dist.barrier()", "elif turn == 0:\n    dist.barrier()"
)
wrong("writes-the-turn", "each writes its own rank").replace('f"rank {rank}"', 'f"rank {turn}"')
wrong("in-rank-order", "in the order of the ranks").replace("order[turn] == rank", "turn == rank")
wrong("order-read-backwards", "the rank order[turn] writes").replace("order[turn] == rank", "order[rank] == turn")
wrong("from-the-end", "counted from 0").replace("order[turn] == rank", "order[-1 - turn] == rank")
wrong("reads-in-its-turn", "you read before every rank had written").replace(
    'file.append(f"rank {rank}")', 'file.append(f"rank {rank}"); lines = file.lines()'
).replace("return file.lines()", "return lines")
wrong("one-barrier-for-all", "nothing guarantees it", caught_by="traffic").body("""
    file.append(f"rank {rank}")
    dist.barrier()
""")
wrong("all-write-in-each-turn", "only one rank writes in each turn", varies=True).replace(
    "if order[turn] == rank:", "if True:"
)
wrong("numbers-alone", 'without the word "rank"').replace('f"rank {rank}"', "str(rank)")
wrong("fakes-it", "appended 0 lines to the file", caught_by="traffic").replace("file = SharedFile(path)", "").replace(
    TURN, ""
).replace("file.lines()", '[f"rank {one}" for one in order]')
right("waits-before-and-after").body("""
    for writer in order:
        dist.barrier()
        if rank == writer:
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
wrong("empty-counts-as-0", "average of the ranks' averages").replace(
    "sum(mine), len(mine)", "sum(mine) / max(1, len(mine)), 1"
)
wrong("sums-averages", "since longer lists").replace(
    "sum(mine), len(mine)", "sum(mine) / max(1, len(mine)), 1 / world_size"
)
wrong("leaves-empty-ranks-out", "averages of ranks that have numbers").replace(
    "sum(mine), len(mine)", "sum(mine) / max(1, len(mine)), len(mine) > 0"
)
wrong("returns-early", "never called this all_reduce").replace(
    "sum_and_count =", "if not mine:\n    return 0.0, reading\nsum_and_count ="
)
wrong("divides-by-ranks", "divide by the sum of the counts").replace("sum_and_count[1])", "world_size)")
wrong("does-not-divide", "the sum of all numbers").replace("(sum_and_count[0] / sum_and_count[1])", "sum_and_count[0]")
wrong("blames-rank-0", "first line of the report", caught_by="reading").replace('"raised": 2', '"raised": 0')
wrong("blames-a-lost-connection", "before the colon", caught_by="reading").replace("ZeroDivision", "Connection")
wrong("four-ranks", "divide by the sum of the counts", hidden=True).replace(
    "sum_and_count[1])", "(6 if world_size == 4 else 3 if world_size == 2 else world_size))"
)
wrong("whole-numbers", "if fractions are cut off").replace("sum(mine), len(mine)", "int(sum(mine)), len(mine)")
wrong("sums-no-counts", "sum the counts too").replace("sum_and_count[1])", "max(1, len(mine)))")
wrong("error-with-its-text", "The name alone", caught_by="reading").replace('Error"', 'Error: division by zero"')
wrong("reads-nothing", "leaves 'raised' empty", caught_by="reading").replace('"raised": 2', '"raised": None')
wrong("own-sum-by-all-counts", "sum over the ranks too").replace(
    "(sum_and_count[0] / sum_and_count[1])", "sum(mine) / sum_and_count[1]"
)
wrong("empty-counts-as-one", "its count is 0").replace("sum(mine), len(mine)", "sum(mine), max(1, len(mine))")
wrong("reduces-to-rank-0", "by all_reduce").replace(
    "dist.all_reduce(sum_and_count)", "dist.reduce(sum_and_count, dst=0)"
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
IF, APPEND = "if averages[-1] < 1:", "averages.append(average.item() / world_size)"
REDUCED = "other = torch.tensor([loss])\ndist.all_reduce(other, op=dist.ReduceOp.MIN)\nif other.item() < 1:"
wrong("decides-alone", "All must decide by the same number").replace(IF, "if loss < 1:")
wrong("averages-as-tensors", "take .item() of each").replace("average.item()", "average")
wrong("never-stops", "You go on after an average below 1").replace(IF, "if False:")
wrong("stops-at-1-too", "an average of 1, which is not below 1").replace(IF, "if averages[-1] <= 1:")
wrong("first-small-loss-stops-all", "when one of the losses is below 1").replace(IF, REDUCED)
wrong("all-must-be-small", "when all of the losses").replace(IF, REDUCED.replace("MIN", "MAX"))
wrong("sum-must-be-small", "when the sum of the losses").replace(IF, "if average.item() < 1:")
wrong("sums-the-first-two-steps-only", "count the steps up to that one", caught_by="reading").replace(
    '"steps": 2', '"steps": 1'
)
wrong("swaps-the-calls", "each rank has a line in the report", caught_by="reading").replace(
    '"in all_reduce": [0, 2], "in barrier": [1]', '"in all_reduce": [1], "in barrier": [0, 2]'
)
wrong("keeps-the-last", "those of all steps").replace(APPEND, "averages = [average.item() / world_size]")
wrong("own-losses", "this rank's own losses").replace(
    APPEND + f"\n{IF}", "averages.append(loss)\nif average.item() < 3:"
)
wrong("divides-twice", "by the number of ranks again").replace("/ world_size", "/ world_size**2")
wrong("sums", "the sums: divide each").replace("average.item() / world_size", "average.item()")
wrong("leaves-the-last-step-out", "it counts too").replace("break", "averages.pop()\nbreak")
wrong("leaves-without-the-barrier", "leave the loop by `break`").replace("break", "return averages, {}")
wrong("barrier-before-the-break", "no average is below 1; then").replace("dist.barrier()", "").replace(
    "break", "dist.barrier()\nbreak"
)
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

wrong, right = ANSWERS.to("smallest-cluster")
wrong("swaps-the-two", "memory comes first").replace("return by_memory, by_time", "return by_time, by_memory")
wrong("the-larger-twice", "each wall has its own number").replace(
    "return by_memory, by_time", "return (max(by_memory, by_time),) * 2"
)
wrong("rounds-down", "needs one more GPU").replace("math.ceil(16", "int(16")
wrong("rounds-to-the-nearest", "rounded to the nearest").replace("by_time = math.ceil(", "by_time = round(")
wrong("parameters-alone", "gradients and Adam's state").replace("16 * parameters", "2 * parameters")
wrong("always-one-more", "one too many").replace("math.ceil(16", "1 + int(16")
wrong("not-rounded", "not a whole number of GPUs").replace("math.ceil(6", "(6")
wrong("forward-alone", "6 FLOP per parameter and token").replace("6 * parameters * tokens", "2 * parameters * tokens")
wrong("one-flop", "a single FLOP").replace("6 * parameters * tokens", "parameters * tokens")
wrong("days-as-seconds", "a day has 24 * 3600").replace("days * 24 * 3600", "days")
wrong("days-as-hours", "a day has 24 of them").replace("days * 24 * 3600", "days * 3600")
wrong("a-single-day", "for a single day").replace("days * 24 * 3600", "24 * 3600")
wrong("minutes", "those are its minutes").replace("days * 24 * 3600", "days * 24 * 60")
wrong("a-day-of-24-seconds", "an hour has 3600").replace("days * 24 * 3600", "days * 24")
wrong("gigabytes-of-2**30", "gpu_memory is in bytes already", hidden=True).replace(
    "/ gpu_memory)", "/ (gpu_memory * 1.024**3))"
)
wrong("forty-percent-again", "already what it reaches").replace("(gpu_flops *", "(0.4 * gpu_flops *")
right("by-floor-division").function("""
    seconds = days * 86400
    return int(-(-16 * parameters // gpu_memory)), int(-(-6 * parameters * tokens // (gpu_flops * seconds)))
""")

wrong, right = ANSWERS.to("barrier-by-hand")
wrong("uses-the-barrier", "barrier", caught_by="score").body("dist.barrier()")
wrong("nobody-waits", "has come", caught_by="score").body("pass")
wrong("tells-only", "has come", caught_by="score").body("""
    if rank > 0:
        dist.send(word, dst=0)
    else:
        for other in range(1, world_size):
            dist.recv(word, src=other)
""")
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
            dist.recv(torch.zeros(1), src=rank ^ distance)
            handle.wait()
""")
wrong("three-exchanges", "has come", caught_by="score", hidden=True).like(further).replace(
    "distance < world_size", "distance < 8"
)
