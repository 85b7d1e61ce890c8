"""Wrong answers to lesson 05: at least two per exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import answers

MUTANTS, ALSO_RIGHT, mutant, also_right = answers()

# ---- shard-the-batch

mutant("shard-the-batch", "uses-chunk", says="the result of `chunk`", body="return batch.chunk(world_size)[rank]")
mutant(
    "shard-the-batch",
    "drops-the-rest",
    says="without the leftover rows",
    body="size = len(batch) // world_size\nreturn batch[rank * size : (rank + 1) * size]",
)
mutant("shard-the-batch", "every-pth", says="a block of consecutive rows", body="return batch[rank::world_size]")
mutant(
    "shard-the-batch",
    "columns",
    says="cut the batch along its rows",
    body="return batch.tensor_split(world_size, dim=1)[rank]",
)
mutant("shard-the-batch", "everything", says="each rank gets its own rows", body="return batch")
mutant(
    "shard-the-batch",
    "one-row-at-least",
    says="rank 3 returned",
    hidden=True,
    replace=(
        (
            "return batch[first",
            "return batch[:1] if len(batch) < world_size - 1 and rank >= len(batch) else batch[first",
        ),
    ),
)

# ---- average-gradients

mutant(
    "average-gradients",
    "forgets-to-divide",
    says="divide by world_size",
    replace=("parameter.grad /= world_size", "pass"),
)
mutant(
    "average-gradients",
    "averages-parameters",
    says="Average the gradients, not the parameters",
    body="""
    dist.all_reduce(parameter.data)
    parameter.data += 1
    dist.all_reduce(parameter.grad)
    parameter.grad /= world_size
    """,
)
mutant(
    "average-gradients",
    "averages-equal-parameters",
    says="not the tensors in `grad`",
    body="dist.all_reduce(parameter.data)\nparameter.data /= world_size",
)
mutant(
    "average-gradients",
    "divides-twice",
    says="divide once",
    replace=("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)"),
)
mutant(
    "average-gradients",
    "averages-a-copy",
    says="nothing was averaged",
    body="mean = parameter.grad / world_size\ndist.all_reduce(mean)",
)
mutant(
    "average-gradients",
    "broadcasts-rank-0s",
    says="average those of all ranks",
    body="dist.broadcast(parameter.grad, src=0)",
)
mutant(
    "average-gradients",
    "two-ranks",
    says="the gradient of parameter 0 is",
    hidden=True,
    replace=("parameter.grad /= world_size", "parameter.grad /= min(world_size, 3)"),
)
mutant(
    "average-gradients",
    "row-by-row",
    "traffic",
    says="all-reduces of",
    body="""
    for row in parameter.grad:
        dist.all_reduce(row)
    parameter.grad /= world_size
    """,
)
mutant(
    "average-gradients",
    "gathers",
    "traffic",
    says="your function calls all_gather",
    body="""
    parts = [torch.empty_like(parameter.grad) for _ in range(world_size)]
    dist.all_gather(parts, parameter.grad)
    parameter.grad = torch.stack(parts).mean(0)
    """,
)

# ---- broadcast-weights

mutant(
    "broadcast-weights",
    "parameters-only",
    says="buffers must be broadcast too",
    body="for tensor in model.parameters():\n    dist.broadcast(tensor.detach(), src=0)",
)
mutant(
    "broadcast-weights",
    "into-a-copy",
    says="the model's own memory",
    body="for tensor in tensors:\n    dist.broadcast(tensor.detach().clone(), src=0)",
)
mutant(
    "broadcast-weights",
    "returns-copies",
    says="in the model is",
    body="""
    tensors = [tensor.detach().clone() for tensor in tensors]
    for tensor in tensors:
        dist.broadcast(tensor, src=0)
    """,
)
mutant(
    "broadcast-weights",
    "averages",
    says="copy rank 0's",
    body="""
    for tensor in tensors:
        mean = tensor.detach().double()
        dist.all_reduce(mean)
        tensor.data.copy_(mean / world_size)
    """,
)
mutant("broadcast-weights", "from-the-last", says="rank 0 is the source", replace=("src=0", "src=world_size - 1"))
mutant(
    "broadcast-weights",
    "floats-only",
    says="num_batches_tracked",
    replace=("for tensor in tensors:", "for tensor in (t for t in tensors if t.is_floating_point()):"),
)
mutant(
    "broadcast-weights",
    "what-is-trained",
    says="was returned as",
    hidden=True,
    body="""
    for tensor in [*(p for p in model.parameters() if p.requires_grad), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    """,
)
mutant(
    "broadcast-weights",
    "twice",
    "traffic",
    says="each tensor only once",
    replace=("for tensor in tensors:", "for tensor in tensors * 2:"),
)

# ---- weigh-uneven-shards

mutant(
    "weigh-uneven-shards",
    "mean-of-means",
    says="a row of a short shard counts more",
    body="for parameter in model.parameters():\n    dist.all_reduce(parameter.grad)\n    parameter.grad /= world_size",
)
mutant(
    "weigh-uneven-shards",
    "divides-by-world-size-too",
    says="already add up to one",
    replace=(
        "dist.all_reduce(parameter.grad)",
        "dist.all_reduce(parameter.grad)\n        parameter.grad /= world_size",
    ),
)
mutant(
    "weigh-uneven-shards",
    "divides-by-its-own-rows",
    says="summed over the ranks too",
    body="""
    for parameter in model.parameters():
        parameter.grad *= len(shard)
        dist.all_reduce(parameter.grad)
        parameter.grad /= len(shard)
    """,
)
mutant(
    "weigh-uneven-shards",
    "never-divides",
    says="divide by how many rows there are on all ranks",
    replace=("len(shard) / rows.item()", "len(shard)"),
)
mutant(
    "weigh-uneven-shards",
    "in-float32",
    says="right to a few digits only",
    replace=("rows.item()", "rows"),
)
mutant(
    "weigh-uneven-shards",
    "trusts-the-largest",
    says="the gradient of parameter 0 is",
    hidden=True,
    replace=("/ rows.item()", "/ (rows.item() if world_size < 4 else 5 * world_size)"),
)

mutant(
    "weigh-uneven-shards",
    "shares-of-the-mean",
    says="must add up to one",
    replace=("dist.all_reduce(rows)", "rows = rows.double()\n    dist.all_reduce(rows, op=dist.ReduceOp.AVG)"),
)
mutant(
    "bucketed-gradients",
    "divides-by-the-number-of-buckets",
    says="the gradient of parameter",
    replace=("flat /= world_size", "flat /= len(buckets)"),
)

# ---- accumulate-gradients

mutant(
    "accumulate-gradients",
    "forgets-the-number-of-microbatches",
    says="divide each loss by the number of microbatches",
    replace=(" / len(microbatches)", ""),
)
mutant(
    "accumulate-gradients",
    "clears-in-between",
    says="don't clear `grad` in between",
    replace=("loss = loss_of(model(microbatch))", "model.zero_grad()\n        loss = loss_of(model(microbatch))"),
)
REDUCES_EACH_TIME = """
def accumulate_gradients(model, microbatches, rank, world_size):
    for microbatch in microbatches:
        loss = loss_of(model(microbatch)) / len(microbatches)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    for parameter in model.parameters():
        parameter.grad /= world_size
    return [parameter.grad for parameter in model.parameters()]
"""
mutant("accumulate-gradients", "reduces-each-time", says="averaged and added again", cell=REDUCES_EACH_TIME)
mutant(
    "accumulate-gradients",
    "reduces-each-microbatch",
    "traffic",
    says="3 times as much as is needed",
    cell="""
    def accumulate_gradients(model, microbatches, rank, world_size):
        total = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for microbatch in microbatches:
            model.zero_grad()
            (loss_of(model(microbatch)) / len(microbatches)).backward()
            for parameter, whole in zip(model.parameters(), total):
                dist.all_reduce(parameter.grad)
                whole += parameter.grad / world_size
        return total
    """,
)
mutant(
    "accumulate-gradients",
    "forgets-to-divide",
    says="divide by world_size",
    replace=("parameter.grad /= world_size", "pass"),
)
mutant(
    "accumulate-gradients",
    "always-three",
    says="the gradient of parameter 0 is",
    hidden=True,
    replace=("/ len(microbatches)", "/ 3"),
)

# ---- epoch-indices

mutant(
    "epoch-indices",
    "forgets-the-epoch",
    says="The epoch must be part",
    replace=(
        "order = torch.randperm(num_samples, generator=generator)",
        "order = torch.randperm(num_samples, generator=generator.manual_seed(seed))",
    ),
)
mutant(
    "epoch-indices",
    "seeds-by-rank",
    says="no rank sees",
    replace=(
        "order = torch.randperm(num_samples, generator=generator)",
        "order = torch.randperm(num_samples, generator=generator.manual_seed(seed + epoch + rank))",
    ),
)
mutant(
    "epoch-indices",
    "drops-the-rest",
    says="rank 2 got 2 samples",
    body="order = torch.randperm(num_samples, generator=generator).tolist()\nreturn order[rank::world_size]",
)
mutant(
    "epoch-indices",
    "shuffles-its-own-part",
    says="Shuffle all samples first",
    body="""
    each = math.ceil(num_samples / world_size)
    mine = [index % num_samples for index in range(rank * each, (rank + 1) * each)]
    return [mine[index] for index in torch.randperm(each, generator=generator).tolist()]
    """,
)
mutant(
    "epoch-indices",
    "everything-to-all",
    says="12 on every rank",
    body="return torch.randperm(num_samples, generator=generator).tolist()",
)
mutant(
    "epoch-indices",
    "overlapping-parts",
    says="no rank sees",
    body="""
    order = torch.randperm(num_samples, generator=generator).tolist()
    each = math.ceil(num_samples / world_size)
    return [order[(rank + number) % num_samples] for number in range(each)]
    """,
)
mutant(
    "epoch-indices",
    "pads-once",
    says="got 0 samples",
    hidden=True,
    replace=("while len(order) < each * world_size:", "if len(order) < each * world_size:"),
)

mutant(
    "epoch-indices",
    "rotates-only",
    says="not shuffled",
    body="""
    each = math.ceil(num_samples / world_size)
    return [(index + epoch) % num_samples for index in range(rank, each * world_size, world_size)]
    """,
)
mutant(
    "epoch-indices",
    "never-seeds",
    says="The epoch must be part",
    replace=("torch.randperm(num_samples, generator=generator)", "torch.randperm(num_samples)"),
)

# ---- flat-gradients

mutant(
    "flat-gradients",
    "never-copies-back",
    says="nothing was averaged",
    replace=("parameter.grad = piece.view_as(parameter)", "pass"),
)
mutant("flat-gradients", "forgets-to-divide", says="divide by world_size", replace=("flat /= world_size", "pass"))
mutant(
    "flat-gradients",
    "detached-by-zero-grad",
    says="`zero_grad` sets `grad` to None",
    cell="""
    def flat_gradients(model, shard, rank, world_size):
        parameters = list(model.parameters())
        flat = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=shard.dtype)
        pieces = flat.split([parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces):
            parameter.grad = piece.view_as(parameter)
        model.zero_grad()
        loss_of(model(shard)).backward()
        dist.all_reduce(flat)
        return [piece.view_as(parameter) / world_size for parameter, piece in zip(parameters, pieces)]
    """,
)
mutant(
    "flat-gradients",
    "forgets-the-shape",
    says="assign a gradient of size",
    replace=("piece.view_as(parameter)", "piece"),
)
mutant(
    "flat-gradients",
    "cuts-in-the-wrong-order",
    says="the gradient of parameter 0 is",
    replace=(
        "torch.cat([parameter.grad.reshape(-1) for parameter in parameters])",
        "torch.cat([parameter.grad.reshape(-1) for parameter in reversed(parameters)])",
    ),
)
mutant(
    "flat-gradients",
    "one-by-one",
    "traffic",
    says="4 all-reduces",
    body="for parameter in parameters:\n    dist.all_reduce(parameter.grad)\n    parameter.grad /= world_size",
)
mutant(
    "flat-gradients",
    "equal-pieces",
    says="the gradient of parameter 0 is",
    body="""
    flat = torch.cat([parameter.grad.T.reshape(-1) for parameter in parameters])
    dist.all_reduce(flat)
    flat /= world_size
    for parameter, piece in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad = piece.view_as(parameter)
    """,
)

# ---- make-buckets

mutant(
    "make-buckets",
    "forward-order",
    says="backward starts at the other end",
    cell="""
    def make_buckets(sizes, cap):
        buckets, filled = [], 0
        for index in range(len(sizes)):
            if not buckets or filled + sizes[index] > cap:
                buckets.append([])
                filled = 0
            buckets[-1].append(index)
            filled += sizes[index]
        return buckets
    """,
)
mutant(
    "make-buckets",
    "closes-too-late",
    says="check before you add a parameter",
    replace=("filled + sizes[index] > cap", "filled >= cap"),
)
mutant("make-buckets", "closes-too-early", says="closed too early", replace=("> cap", ">= cap"))
mutant("make-buckets", "never-empties", says="you returned", replace=("filled = 0", "pass"))
mutant(
    "make-buckets",
    "empty-first",
    says="empty bucket at the start",
    body="""
    if index == len(sizes) - 1:
        buckets.append([])
    if filled + sizes[index] > cap or index == len(sizes) - 1:
        buckets.append([])
        filled = 0
    buckets[-1].append(index)
    filled += sizes[index]
    """,
)
mutant(
    "make-buckets",
    "one-for-all",
    says="start a new one",
    body="if not buckets:\n    buckets.append([])\nbuckets[-1].append(index)",
)
mutant(
    "make-buckets",
    "large-one-takes-neighbours",
    says="you returned",
    hidden=True,
    replace=("filled += sizes[index]", "filled += sizes[index] if sizes[index] < 5 * cap else 0"),
)

# ---- bucketed-gradients

mutant("bucketed-gradients", "forgets-to-divide", says="divide by world_size", replace=("flat /= world_size", "pass"))
mutant(
    "bucketed-gradients",
    "cuts-in-forward-order",
    says="the gradient of parameter",
    replace=(
        "for index, piece in zip(bucket, flat.split([parameters[index].numel() for index in bucket])):",
        "for index, piece in zip(sorted(bucket), flat.split([parameters[index].numel() for index in sorted(bucket)])):",
    ),
)
mutant(
    "bucketed-gradients",
    "never-copies-back",
    says="nothing was averaged",
    replace=("parameters[index].grad = piece.view_as(parameters[index])", "pass"),
)
mutant(
    "bucketed-gradients", "drops-the-handle", "traffic", says="never waited for it", replace=("handle.wait()", "pass")
)
mutant(
    "bucketed-gradients",
    "waits-at-once",
    "traffic",
    says="before it had started the last one",
    replace=(
        "flights.append((flat, dist.all_reduce(flat, async_op=True)))",
        "handle = dist.all_reduce(flat, async_op=True)\n        handle.wait()\n        flights.append((flat, handle))",
    ),
)
mutant(
    "bucketed-gradients",
    "order-differs-by-rank",
    says="in the same order",
    cell="""
    def bucketed_gradients(model, shard, buckets, rank, world_size):
        parameters = list(model.parameters())
        loss_of(model(shard)).backward()
        buckets = buckets if rank % 2 == 0 else buckets[::-1]
        flights = []
        for bucket in buckets:
            flat = torch.cat([parameters[index].grad.reshape(-1) for index in bucket])
            flights.append((flat, dist.all_reduce(flat, async_op=True)))
        for bucket, (flat, handle) in zip(buckets, flights):
            handle.wait()
            flat /= world_size
            for index, piece in zip(bucket, flat.split([parameters[index].numel() for index in bucket])):
                parameters[index].grad = piece.view_as(parameters[index])
        return [parameter.grad for parameter in parameters]
    """,
)
mutant(
    "bucketed-gradients",
    "reversed",
    "traffic",
    says="handed",
    cell="""
    def bucketed_gradients(model, shard, buckets, rank, world_size):
        parameters = list(model.parameters())
        loss_of(model(shard)).backward()
        flights = []
        for bucket in reversed(buckets):
            flat = torch.cat([parameters[index].grad.reshape(-1) for index in bucket])
            flights.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        for bucket, flat, handle in flights:
            handle.wait()
            flat /= world_size
            for index, piece in zip(bucket, flat.split([parameters[index].numel() for index in bucket])):
                parameters[index].grad = piece.view_as(parameters[index])
        return [parameter.grad for parameter in parameters]
    """,
)

# ---- communication-end

mutant(
    "communication-end", "adds-everything", says="no all-reduce starts before its bucket is ready", body="end += takes"
)
mutant("communication-end", "the-last-alone", says="the one before may still occupy it", body="end = is_ready + takes")
mutant(
    "communication-end", "all-at-once", says="the network does one at a time", body="end = max(end, is_ready + takes)"
)
mutant(
    "communication-end",
    "after-backward",
    says="each starts as soon as it is ready",
    body="end = ready[-1] + sum(took)",
)

# ---- overlap-by-hooks

STARTS = "flights.append((flat, dist.all_reduce(flat, async_op=True)))"
REGISTERS = "hooks.append(parameters[index].register_post_accumulate_grad_hook(hook))"

mutant(
    "overlap-by-hooks",
    "wrong-hook",
    says="hook is called before that",
    replace=(REGISTERS, "hooks.append(parameters[index].register_hook(hook))"),
)
mutant(
    "overlap-by-hooks",
    "late-binding",
    says="nothing was averaged",
    replace=(
        "hook = partial(one_more_is_ready, number)",
        "hook = lambda parameter: one_more_is_ready(number, parameter)",
    ),
)
mutant(
    "overlap-by-hooks",
    "averages-its-argument",
    says="Average the gradients, not the parameters",
    replace=("while len(flights)", "dist.all_reduce(parameter)\n        while len(flights)"),
)
mutant(
    "overlap-by-hooks",
    "if-for-while",
    says="never started a bucket",
    replace=("while len(flights) < len(buckets) and", "if len(flights) < len(buckets) and"),
)
BY_READINESS = """
    def overlap_by_hooks(model, shard, buckets, rank, world_size):
        parameters = list(model.parameters())
        missing = [len(bucket) for bucket in buckets]
        flights = []

        def one_more_is_ready(number, parameter):
            missing[number] -= 1
            if missing[number] == 0:
                flat = torch.cat([parameters[index].grad.reshape(-1) for index in buckets[number]])
                flights.append((buckets[number], flat, dist.all_reduce(flat, async_op=True)))

        for number, bucket in enumerate(buckets):
            for index in bucket:
                parameters[index].register_post_accumulate_grad_hook(partial(one_more_is_ready, number))
        loss = loss_of(model(shard))
        with region("backward"):
            loss.backward()
        for bucket, flat, handle in flights:
            handle.wait()
            flat /= world_size
            for index, piece in zip(bucket, flat.split([parameters[index].numel() for index in bucket])):
                parameters[index].grad = piece.view_as(parameters[index])
        return [parameter.grad for parameter in parameters]
    """
mutant("overlap-by-hooks", "as-they-are-ready", says="started their buckets in different orders", cell=BY_READINESS)
mutant(
    "overlap-by-hooks",
    "starts-with-the-first-gradient",
    says="A hook ran before its gradient",
    replace=("missing[len(flights)] == 0:", "missing[len(flights)] < len(buckets[len(flights)]):"),
)
mutant(
    "overlap-by-hooks",
    "after-backward",
    "traffic",
    says="after backward had ended",
    cell="""
    def overlap_by_hooks(model, shard, buckets, rank, world_size):
        parameters = list(model.parameters())
        loss = loss_of(model(shard))
        with region("backward"):
            loss.backward()
        flights = []
        for bucket in buckets:
            flat = torch.cat([parameters[index].grad.reshape(-1) for index in bucket])
            flights.append((flat, dist.all_reduce(flat, async_op=True)))
        for bucket, (flat, handle) in zip(buckets, flights):
            handle.wait()
            flat /= world_size
            for index, piece in zip(bucket, flat.split([parameters[index].numel() for index in bucket])):
                parameters[index].grad = piece.view_as(parameters[index])
        return [parameter.grad for parameter in parameters]
    """,
)
mutant(
    "overlap-by-hooks",
    "all-in-the-last-hook",
    "time",
    says="idle until backward is over",
    replace=(
        "while len(flights) < len(buckets) and missing[len(flights)] == 0:",
        "while len(flights) < len(buckets) and sum(missing) == 0:",
    ),
)
mutant(
    "overlap-by-hooks",
    "waits-in-the-hook",
    "time",
    says="a backward that waits for the network",
    replace=(STARTS, "flights.append((flat, dist.all_reduce(flat, async_op=True)))\n            flights[-1][1].wait()"),
)
mutant(
    "overlap-by-hooks",
    "blocks-in-the-hook",
    "traffic",
    says="blocked",
    replace=((STARTS, "dist.all_reduce(flat)\n            flights.append((flat, None))"), ("handle.wait()", "pass")),
)
mutant("overlap-by-hooks", "forgets-to-divide", says="divide by world_size", replace=("flat /= world_size", "pass"))
mutant("overlap-by-hooks", "forgets-to-wait", "traffic", says="never waited for it", replace=("handle.wait()", "pass"))
mutant(
    "overlap-by-hooks",
    "no-buckets",
    "traffic",
    says="made 4 all-reduces",
    cell="""
    def overlap_by_hooks(model, shard, buckets, rank, world_size):
        handles = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: handles.append(dist.all_reduce(parameter.grad, async_op=True))
            )
        loss = loss_of(model(shard))
        with region("backward"):
            loss.backward()
        for handle in handles:
            handle.wait()
        for parameter in model.parameters():
            parameter.grad /= world_size
        return [parameter.grad for parameter in model.parameters()]
    """,
)
mutant(
    "overlap-by-hooks",
    "waits-for-the-one-before",
    "time",
    says="a backward that waits for the network",
    hidden=True,
    replace=(STARTS, "if flights:\n                flights[-1][1].wait()\n            " + STARTS),
)

# ---- average-what-is-used

mutant(
    "average-what-is-used",
    "divides-by-users",
    says="the others count as zero",
    replace=("parameter.grad /= world_size", "parameter.grad /= count"),
)
mutant("average-what-is-used", "zeros-for-all", says="AdamW keeps moving it", replace=("if count:", "if True:"))
mutant(
    "average-what-is-used",
    "only-what-it-has",
    says="agree on which parameters",
    body="""
    for parameter in trained:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
    """,
)
mutant(
    "average-what-is-used",
    "only-what-all-use",
    says="every rank needs the mean",
    replace=("if count:", "if count == world_size:"),
)
mutant(
    "average-what-is-used",
    "zeros-thrown-away",
    says="every rank needs the mean",
    body="""
    dist.all_reduce(users)
    for parameter, count in zip(trained, users.tolist()):
        if count:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(gradient)
            gradient /= world_size
    """,
)
mutant(
    "average-what-is-used",
    "frozen-too",
    says="the gradient of parameter 1 is",
    replace=(
        "dist.all_reduce(users)  # how many ranks have used each",
        """trained = list(model.parameters())
    users = torch.tensor([int(p.grad is not None or not p.requires_grad) for p in trained])
    dist.all_reduce(users)""",
    ),
)
mutant(
    "average-what-is-used",
    "rank-0-decides",
    says="every rank needs the mean",
    hidden=True,
    replace=("dist.all_reduce(users)  # how many ranks have used each", "dist.broadcast(users, src=0)"),
)

# ---- normalise-globally

mutant(
    "normalise-globally", "own-rows", says="nothing was exchanged", body="mean, var = x.mean(0), x.var(0, correction=0)"
)
mutant(
    "normalise-globally",
    "mean-of-means",
    says="a short shard counts as much",
    body="""
    sums = torch.cat([x.mean(0), x.square().mean(0)])
    dist.all_reduce(sums)
    mean, mean_of_squares = (sums / world_size).chunk(2)
    var = mean_of_squares - mean.square()
    """,
)
mutant(
    "normalise-globally",
    "mean-of-variances",
    says="leaves out the spread of their means",
    body="""
    sums = torch.cat([x.sum(0), x.new_tensor([len(x)])])
    variances = x.var(0, correction=0)
    dist.all_reduce(sums)
    dist.all_reduce(variances)
    mean, var = sums[:-1] / sums[-1], variances / world_size
    """,
)
mutant(
    "normalise-globally",
    "unbiased",
    says="one less than the number of rows",
    replace=(
        "var = mean_of_squares - mean.square()",
        "var = (mean_of_squares - mean.square()) * sums[-1] / (sums[-1] - 1)",
    ),
)
mutant(
    "normalise-globally",
    "forgets-the-mean",
    says="subtract the square of the mean",
    replace=("var = mean_of_squares - mean.square()", "var = mean_of_squares"),
)
mutant(
    "normalise-globally",
    "gathers-the-batch",
    "traffic",
    says="your function calls",
    body="""
    shards = [None] * world_size
    dist.all_gather_object(shards, x)
    rows = torch.cat(shards)
    mean, var = rows.mean(0), rows.var(0, correction=0)
    """,
)
mutant(
    "normalise-globally",
    "sums-the-batch",
    "traffic",
    says="must not grow with the batch",
    body="""
    rows = x.new_zeros(100, world_size, x.shape[1])
    rows[: len(x), rank] = x
    count = x.new_tensor([len(x)])
    dist.all_reduce(rows)
    dist.all_reduce(count)
    mean = rows.sum((0, 1)) / count
    var = rows.square().sum((0, 1)) / count - mean.square()
    """,
)

mutant(
    "normalise-globally",
    "eps-outside-the-root",
    says="add it to the variance",
    cell="""
    def normalise_globally(x, eps, rank, world_size):
        sums = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
        dist.all_reduce(sums)
        mean, mean_of_squares = (sums[:-1] / sums[-1]).chunk(2)
        var = mean_of_squares - mean.square()
        return (x - mean) / (torch.sqrt(var) + eps), var
    """,
)

# ---- normalise-backward

mutant(
    "normalise-backward",
    "own-rows",
    says="every row of every rank counts",
    body="mean_g, mean_gx = g.mean(0), (g * x_hat).mean(0)",
)
mutant(
    "normalise-backward",
    "constant-statistics",
    says="mean and variance depend on x too",
    body="mean_g = mean_gx = torch.zeros_like(var)",
)
mutant(
    "normalise-backward",
    "forgets-the-variance",
    says="without the term of the variance",
    replace=(
        "mean_g, mean_gx = (sums[:-1] / sums[-1]).chunk(2)",
        "mean_g, mean_gx = (sums[:-1] / sums[-1]).chunk(2)\n    mean_gx = 0 * mean_gx",
    ),
)
mutant(
    "normalise-backward",
    "mean-of-means",
    says="a short shard counts as much",
    body="""
    sums = torch.cat([g.mean(0), (g * x_hat).mean(0)])
    dist.all_reduce(sums)
    mean_g, mean_gx = (sums / world_size).chunk(2)
    """,
)
mutant(
    "normalise-backward",
    "own-count",
    says="sum that number too",
    replace=("sums[:-1] / sums[-1]", "sums[:-1] / len(g)"),
)
mutant(
    "normalise-backward", "never-divides", says="with sums: divide them", replace=("sums[:-1] / sums[-1]", "sums[:-1]")
)
mutant(
    "normalise-backward",
    "three-calls",
    "traffic",
    says="made 3 all-reduces",
    body="""
    mean_g, mean_gx, count = g.sum(0), (g * x_hat).sum(0), g.new_tensor([len(g)])
    for total in (mean_g, mean_gx, count):
        dist.all_reduce(total)
    mean_g, mean_gx = mean_g / count, mean_gx / count
    """,
)

# ---- right answers in another form

also_right("shard-the-batch", "tensor-split", body="return batch.tensor_split(world_size)[rank]")
also_right("shard-the-batch", "a-copy", body="return batch.tensor_split(world_size)[rank].clone()")
also_right("average-gradients", "lets-the-library-divide", body="dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)")
also_right(
    "average-gradients",
    "divides-first",
    body="parameter.grad = parameter.grad / world_size\ndist.all_reduce(parameter.grad)",
)
also_right(
    "average-gradients",
    "asynchronous",
    body="handle = dist.all_reduce(parameter.grad, async_op=True)\nhandle.wait()\nparameter.grad.div_(world_size)",
)
also_right(
    "broadcast-weights",
    "without-grad",
    body="with torch.no_grad():\n    for tensor in tensors:\n        dist.broadcast(tensor.data, 0)",
)
also_right(
    "broadcast-weights",
    "flat-by-dtype",
    body="""
    for dtype in (torch.float64, torch.int64):
        some = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in some])
        dist.broadcast(flat, src=0)
        for tensor, piece in zip(some, flat.split([tensor.numel() for tensor in some])):
            tensor.copy_(piece.view_as(tensor))
    """,
)
also_right(
    "weigh-uneven-shards",
    "weighs-the-loss",
    cell="""
    def weigh_uneven_shards(model, shard, rank, world_size):
        rows = torch.tensor([float(len(shard))], dtype=shard.dtype)
        dist.all_reduce(rows)
        (loss_of(model(shard)) * len(shard) / rows).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        return [parameter.grad for parameter in model.parameters()]
    """,
)
also_right(
    "weigh-uneven-shards",
    "multiplies-and-averages",
    body="""
    counts = [None] * world_size
    dist.all_gather_object(counts, len(shard))
    for parameter in model.parameters():
        parameter.grad *= len(shard) * world_size / sum(counts)
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    """,
)
also_right(
    "accumulate-gradients",
    "divides-at-the-end",
    cell="""
    def accumulate_gradients(model, microbatches, rank, world_size):
        for microbatch in microbatches:
            loss_of(model(microbatch)).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat)
        flat /= world_size * len(microbatches)
        pieces = flat.split([parameter.numel() for parameter in model.parameters()])
        return [piece.view_as(parameter) for piece, parameter in zip(pieces, model.parameters())]
    """,
)
also_right(
    "epoch-indices",
    "in-runs",
    body="""
    order = torch.randperm(num_samples, generator=generator).tolist()
    each = -(-num_samples // world_size)
    return [order[index % num_samples] for index in range(rank * each, (rank + 1) * each)]
    """,
)
also_right(
    "epoch-indices",
    "pythons-random",
    cell="""
    def epoch_indices(num_samples, epoch, seed, rank, world_size):
        import random
        order = list(range(num_samples))
        random.Random(1000 * seed + epoch).shuffle(order)
        each = -(-num_samples // world_size)
        return (order * world_size)[: each * world_size][rank::world_size]
    """,
)
also_right(
    "epoch-indices",
    "torchs-own",
    cell="""
    def epoch_indices(num_samples, epoch, seed, rank, world_size):
        from torch.utils.data import DistributedSampler

        sampler = DistributedSampler(range(num_samples), world_size, rank, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)
    """,
)
also_right(
    "flat-gradients",
    "copies-back",
    body="""
    flat = torch.empty(sum(parameter.numel() for parameter in parameters), dtype=parameters[0].dtype)
    pieces = flat.split([parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces):
        piece.copy_(parameter.grad.flatten() / world_size)
    dist.all_reduce(flat, async_op=True).wait()
    for parameter, piece in zip(parameters, pieces):
        parameter.grad.copy_(piece.reshape(parameter.shape))
    """,
)
also_right(
    "make-buckets",
    "looks-back",
    body="""
    if buckets and sum(sizes[other] for other in buckets[-1]) + sizes[index] <= cap:
        buckets[-1].append(index)
    else:
        buckets.append([index])
    """,
)
also_right(
    "bucketed-gradients",
    "copies-back",
    replace=(
        "parameters[index].grad = piece.view_as(parameters[index])",
        "parameters[index].grad.copy_(piece.view_as(parameters[index]))",
    ),
)
also_right(
    "bucketed-gradients",
    "divides-first",
    replace=(
        ("flights.append", "flat /= world_size\n        flights.append"),
        ("        handle.wait()\n        flat /= world_size", "        handle.wait()"),
    ),
)
also_right("communication-end", "branches", body="if is_ready > end:\n    end = is_ready\nend += takes")
also_right(
    "overlap-by-hooks",
    "averages-in-flight",
    replace=(
        (STARTS, "flights.append((flat, dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)))"),
        ("        flat /= world_size\n", ""),
    ),
)
also_right(
    "overlap-by-hooks",
    "lambda-with-default",
    replace=(
        "hook = partial(one_more_is_ready, number)",
        "hook = lambda parameter, number=number: one_more_is_ready(number, parameter)",
    ),
)
also_right(
    "overlap-by-hooks",
    "copies-into-views",
    cell="""
    def overlap_by_hooks(model, shard, buckets, rank, world_size):
        parameters = list(model.parameters())
        flats = [torch.zeros(sum(parameters[i].numel() for i in bucket), dtype=shard.dtype) for bucket in buckets]
        missing, handles = [len(bucket) for bucket in buckets], []
        for bucket, flat in zip(buckets, flats):
            for i, piece in zip(bucket, flat.split([parameters[i].numel() for i in bucket])):
                parameters[i].grad = piece.view_as(parameters[i])

        def ready(number, parameter):
            missing[number] -= 1
            for next_one in range(len(handles), len(buckets)):
                if missing[next_one]:
                    break
                flats[next_one] /= world_size
                handles.append(dist.all_reduce(flats[next_one], async_op=True))

        for number, bucket in enumerate(buckets):
            for i in bucket:
                parameters[i].register_post_accumulate_grad_hook(partial(ready, number))
        loss = loss_of(model(shard))
        with region("backward"):
            loss.backward()
        for handle in handles:
            handle.wait()
        return [parameter.grad for parameter in parameters]
    """,
)
also_right(
    "average-what-is-used",
    "zeros-first",
    body="""
    dist.all_reduce(users, op=dist.ReduceOp.MAX)
    used = [parameter for parameter, one in zip(trained, users.tolist()) if one]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in used])
    dist.all_reduce(flat)
    flat /= world_size
    for parameter, piece in zip(used, flat.split([p.numel() for p in used])):
        parameter.grad = piece.view_as(parameter)
    """,
)
also_right(
    "normalise-globally",
    "two-passes",
    body="""
    sums = torch.cat([x.sum(0), x.new_tensor([len(x)])])
    dist.all_reduce(sums)
    mean = sums[:-1] / sums[-1]
    var = (x - mean).square().sum(0) / sums[-1]
    dist.all_reduce(var)
    """,
)
also_right(
    "normalise-backward",
    "two-calls",
    body="""
    sums, count = torch.stack([g.sum(0), (g * x_hat).sum(0)]), torch.tensor([len(g)])
    dist.all_reduce(sums)
    dist.all_reduce(count)
    mean_g, mean_gx = sums / count.item()
    """,
)
