"""Answers to lesson 05, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("shard-the-batch")
wrong(
    "last-ranks-get-more",
    sentence="the batch with the longer shards on the last ranks: the first B % P ranks get one more",
).body("""
    size, extra = divmod(len(batch), world_size)
    first = rank * size + max(0, rank - (world_size - extra))
    return batch[first : first + size + (rank >= world_size - extra)]
""")
wrong(
    "uses-chunk", sentence="the result of `chunk`, or of steps of B / P rounded up: the last shard may be much smaller"
).body("return batch.chunk(world_size)[rank]")
wrong("drops-the-rest", sentence="without the leftover rows: the first B % P ranks get one more").replace(
    " + min(rank, larger)", ""
).replace(" + (rank < larger)", "")
wrong(
    "rest-to-the-last",
    sentence="the batch with all leftover rows on the last rank: the first B % P ranks get one more each",
).body("""
    size = len(batch) // world_size
    return batch[rank * size : None if rank == world_size - 1 else (rank + 1) * size]
""")
wrong("cut-evenly", sentence="the batch cut at rank * B // P: the first B % P ranks get one more").body(
    "return batch[rank * len(batch) // world_size : (rank + 1) * len(batch) // world_size]"
)
wrong(
    "forgets-rows-before",
    sentence="a shard that starts at rank * (B // P): each longer shard before it moves its start by one",
).replace(" + min(rank, larger)", "")
wrong(
    "own-size-times-rank",
    sentence="the batch with each shard at rank times its own size: the longer shards before it push its start back",
).replace("size + min(rank, larger)", "(size + (rank < larger))")
wrong("every-pth", sentence="every P-th row: a shard is a block of consecutive rows").body(
    "return batch[rank::world_size]"
)
wrong("columns", sentence="columns: cut the batch along its rows").body(
    "return batch.tensor_split(world_size, dim=1)[rank]"
)
wrong("everything", sentence="the whole batch: each rank gets its own rows").body("return batch")
wrong("one-row-at-least", "rank 3 returned", hidden=True).replace(
    "return batch[first", "return batch[:1] if len(batch) < world_size - 1 and rank >= len(batch) else batch[first"
)
wrong("rounded-cuts", sentence="the batch cut at rank * B / P, rounded: the first B % P ranks get one more").body("""
    cuts = torch.linspace(0, len(batch), world_size + 1).round().long().tolist()
    return batch[cuts[rank] : cuts[rank + 1]]
""")
wrong("one-too-many", sentence="a shard that is one row too long: the longer ones are on ranks 0 to B % P - 1").replace(
    "(rank < larger)", "(rank <= larger)"
)
wrong("sends-rows", "your function calls").replace("size, larger =", "dist.broadcast(batch, src=0)\nsize, larger =")
wrong(
    "one-longer-shard-too-many",
    sentence="the batch with one longer shard too many: only ranks with rank < B % P have one row more",
).replace("rank < larger", "rank <= larger").replace("min(rank, larger)", "min(rank, larger + 1)")
right("tensor-split").body("return batch.tensor_split(world_size)[rank]")

wrong, right = ANSWERS.to("average-gradients")
wrong("forgets-to-divide", "divide by world_size").replace("parameter.grad /= world_size", "pass")
wrong("averages-parameters", "Average the gradients, not the parameters").replace(
    "dist.all_reduce", "dist.all_reduce(parameter.data)\nparameter.data += 1\ndist.all_reduce"
)
wrong("averages-equal-parameters", "or of the weights").body(
    "dist.all_reduce(parameter.data)\nparameter.data /= world_size"
)
wrong("divides-twice", "divide once").replace(
    "dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)"
)
wrong(
    "divides-by-rows",
    sentence="the sum divided by the rows of a shard: its loss is a mean already, so divide by world_size",
).replace("/= world_size", "/= len(shard)")
wrong("adds-nothing", "never added to the others").body("parameter.grad /= world_size")
wrong("leaves-the-sum-in-grad", "the optimizer reads `grad`").replace("parameter.grad /= world_size", "pass").replace(
    "[parameter.grad for", "[parameter.grad / world_size for"
)
wrong("leaves-its-own-in-grad", "the optimizer reads `grad`").replace(
    "dist.all_reduce(parameter.grad)", "means = locals().get('means', []) + [parameter.grad / world_size]"
).replace("parameter.grad /= world_size", "dist.all_reduce(means[-1])").replace(
    "[parameter.grad for parameter in model.parameters()]", "means"
)
wrong("fills-no-grad", "is None").replace("loss_of(model(shard))", "model = deepcopy(model)\nloss_of(model(shard))")
wrong("averages-a-copy", "nothing was averaged").body("mean = parameter.grad / world_size\ndist.all_reduce(mean)")
wrong("broadcasts-rank-0s", "average those of all ranks").body("dist.broadcast(parameter.grad, src=0)")
wrong("row-by-row", "all-reduces of", caught_by="traffic").replace(
    "dist.all_reduce(parameter.grad)", "for row in parameter.grad:\n    dist.all_reduce(row)"
)
wrong("largest", "the largest of the ranks' gradients").body("dist.all_reduce(parameter.grad, op=dist.ReduceOp.MAX)")
wrong("to-rank-0-only", "only one rank has the sum").replace(
    "dist.all_reduce(parameter.grad", "dist.reduce(parameter.grad, dst=0"
)
wrong("all-in-one", "don't put several together", caught_by="traffic").function("""
    loss_of(model(shard)).backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / world_size, [parameter.grad for parameter in model.parameters()])
    return [parameter.grad for parameter in model.parameters()]
""")
right("lets-the-library-divide").body("dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)")
right("divides-first").body("parameter.grad = parameter.grad / world_size\ndist.all_reduce(parameter.grad)")
right("asynchronous").replace("parameter.grad)", "parameter.grad, async_op=True).wait()")

wrong, right = ANSWERS.to("broadcast-weights")
wrong("parameters-only", "buffers must be broadcast too").replace(
    "for tensor in tensors:", "for tensor in model.parameters():"
)
wrong("what-is-saved", "those that `state_dict` leaves out").replace(
    "for tensor in tensors:", "for tensor in model.state_dict().values():"
)
wrong("into-a-copy", "the model's own memory").replace(
    "dist.broadcast(tensor.detach(), src=0)", "dist.broadcast(tensor.detach().clone(), src=0)"
)
wrong("returns-copies", "in the model is").replace(
    "for tensor in tensors:", "tensors = [tensor.detach().clone() for tensor in tensors]\nfor tensor in tensors:"
).replace("dist.broadcast(tensor.detach(), src=0)", "dist.broadcast(tensor, src=0)")
wrong("averages", "copy rank 0's").replace(
    "dist.broadcast(tensor.detach(), src=0)",
    "mean = tensor.detach().double()\ndist.all_reduce(mean)\ntensor.data.copy_(mean / world_size)",
)
wrong("from-the-last", "rank 0 is the source").replace("src=0", "src=world_size - 1")
wrong("floats-only", "those of whole numbers as well").replace(
    "for tensor in tensors:", "for tensor in (t for t in tensors if t.is_floating_point()):"
)
wrong("what-is-trained", "frozen parameters must be broadcast too").replace(
    "for tensor in tensors:", "for tensor in [*(p for p in model.parameters() if p.requires_grad), *model.buffers()]:"
)
wrong("through-float32", sentence="rank 0's, rounded to float32: broadcast each tensor in its own dtype").replace(
    "dist.broadcast(tensor.detach(), src=0)",
    "short = tensor.detach().float()\ndist.broadcast(short, src=0)\ntensor.detach().copy_(short)",
)
wrong("twice", "each tensor only once", caught_by="traffic").replace(
    "for tensor in tensors:", "for tensor in tensors * 2:"
)
wrong("sums", "copy rank 0's, don't add").replace(
    "dist.broadcast(tensor.detach(), src=0)", "dist.all_reduce(tensor.detach())"
)
right("without-grad").replace("tensor.detach(), src=0", "tensor.data, 0")
right("flat-by-dtype").body("""
    for dtype in (torch.float64, torch.int64):
        some = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in some])
        dist.broadcast(flat, src=0)
        for tensor, piece in zip(some, flat.split([tensor.numel() for tensor in some])):
            tensor.copy_(piece.view_as(tensor))
""")

wrong, right = ANSWERS.to("weigh-uneven-shards")
wrong(
    "by-the-largest-shard", sentence="weighted by the rows of the largest shard: divide by the rows of all ranks"
).replace("dist.all_reduce(rows)", "dist.all_reduce(rows, op=dist.ReduceOp.MAX)")
wrong(
    "forgets-its-own-rows",
    sentence="the sum of means divided by the number of all rows: multiply each by its own rows first",
).replace("*= len(shard) / rows.item()", "/= rows.item()")
wrong(
    "mean-of-means",
    sentence="the mean of the ranks' means: a row of a short shard counts more than one of a long shard",
).replace("len(shard) / rows.item()", "1 / world_size")
wrong(
    "divides-by-world-size-too",
    sentence="the right gradient divided by world_size: the weights of all rows already add up to one",
).replace("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad)\nparameter.grad /= world_size")
wrong(
    "divides-by-its-own-rows",
    sentence="the sum divided by your own number of rows: that number must be summed over the ranks too",
).replace("len(shard) / rows.item()", "len(shard)").replace(
    "dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad)\nparameter.grad /= len(shard)"
)
wrong(
    "weights-after-the-sum",
    sentence="the sum of the means times your own share of the rows: weight each gradient before it is summed",
).replace("parameter.grad *= len(shard) / rows.item()", "pass").replace(
    "dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad)\nparameter.grad *= len(shard) / rows.item()"
)
wrong("never-divides", sentence="the sum over all rows: divide by how many rows there are on all ranks").replace(
    "len(shard) / rows.item()", "len(shard)"
)
wrong("in-float32", "right to 7 digits only").replace("rows.item()", "rows")
wrong(
    "own-gradient",
    "your own shard's gradient",
).replace("len(shard) / rows.item()", "1").replace(".grad)", ".grad * 1)")
wrong(
    "own-rows-times-ranks", sentence="the sum divided by P times your own rows: divide by the number of all rows"
).replace("len(shard) / rows.item()", "len(shard)").replace(
    "dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad)\nparameter.grad /= len(shard) * world_size"
)
wrong(
    "shares-of-the-mean", sentence="P times too large: the weights of the rows must add up to one over all ranks"
).replace("dist.all_reduce(rows)", "rows = rows.double()\ndist.all_reduce(rows, op=dist.ReduceOp.AVG)")
wrong("leaves-the-sum-in-grad", "not what you returned").replace("len(shard) / rows.item()", "len(shard)").replace(
    "return [parameter.grad for", "return [parameter.grad / rows.item() for"
)
wrong(
    "counts-in-the-loop",
    sentence="right, but divided by P once per parameter before it: all-reduce the number of rows before the loop",
).replace("dist.all_reduce(rows)", "pass").replace("parameter.grad *=", "dist.all_reduce(rows)\nparameter.grad *=")
wrong(
    "pads",
    sentence="the sum over all rows divided by P times the rows of the largest shard: rows of padding don't count",
).replace("len(shard) / rows.item()", "1 / world_size").replace(
    "loss_of(model(shard)).backward()",
    "largest = torch.tensor(len(shard))\ndist.all_reduce(largest, op=dist.ReduceOp.MAX)\n"
    "loss_of(model(torch.cat([shard, shard.new_zeros(largest - len(shard), 2)]))).backward()",
)
wrong(
    "sum-by-ranks",
    sentence="the sum over all rows divided by world_size: divide by how many rows there are on all ranks",
).replace("rows.item()", "world_size")
right("weighs-the-loss").replace(
    "loss_of(model(shard)).backward()\nrows = torch.tensor(len(shard))",
    "rows = torch.tensor([float(len(shard))], dtype=shard.dtype)",
).replace(
    "dist.all_reduce(rows)", "dist.all_reduce(rows)\n(loss_of(model(shard)) * len(shard) / rows).sum().backward()"
).replace("parameter.grad *= len(shard) / rows.item()", "")
right("multiplies-and-averages").replace("/ rows.item()", "* world_size / rows.item()").replace(
    "parameter.grad)", "parameter.grad, op=dist.ReduceOp.AVG)"
)

wrong, right = ANSWERS.to("epoch-indices")
wrong("forgets-the-epoch", "The epoch must be part").replace(
    "generator=generator", "generator=generator.manual_seed(seed)"
)
wrong("seeds-by-rank", "no rank sees").replace(
    "generator=generator", "generator=generator.manual_seed(seed + epoch + rank)"
)
wrong("seed-times-epoch", "seed * epoch is 0 there").replace(
    "generator=generator", "generator=generator.manual_seed(seed * epoch)"
)
wrong("epoch-alone", "The seed must count in epoch 0").replace(
    "generator=generator", "generator=generator.manual_seed(epoch)"
)
wrong("drops-the-rest", "rank 3 got 2 samples").replace("while len(order) < each * world_size:", "if False:")
wrong("pads-when-divisible", "24 is a multiple of 2 already").replace(
    "each = math.ceil(num_samples / world_size)", "each = num_samples // world_size + 1"
)
wrong("leaves-one-out", "take the whole order").replace("[rank::world_size]", "[: -1][rank::world_size]")
wrong("shuffles-its-own-part", "Shuffle all samples first").body("""
    each = math.ceil(num_samples / world_size)
    mine = [index % num_samples for index in range(rank * each, (rank + 1) * each)]
    return [mine[index] for index in torch.randperm(each, generator=generator).tolist()]
""")
wrong("everything-to-all", "its own part of the order").replace("order[rank::world_size]", "order")
wrong("pads-once", "repeat it as often as needed").replace(
    "while len(order) < each * world_size:", "if len(order) < each * world_size:"
)
wrong("rotates-only", "not shuffled").body("""
    each = math.ceil(num_samples / world_size)
    return [(index + epoch) % num_samples for index in range(rank, each * world_size, world_size)]
""")
wrong("never-seeds", "hand it to randperm").replace(
    "torch.randperm(num_samples, generator=generator)", "torch.randperm(num_samples)"
)
wrong("starts-elsewhere", "To start elsewhere in the same order").replace(
    "generator=generator).tolist()", "generator=generator.manual_seed(seed)).roll(epoch).tolist()"
)
wrong("pads-with-one", "Pad with the samples").replace("order[: each * world_size - len(order)]", "order[:1]").replace(
    "torch.randperm(num_samples, generator=generator).tolist()",
    "torch.randperm(num_samples, generator=generator).tolist()\norder += order[:1] * (-num_samples % world_size)",
)
wrong("with-replacement", "as randperm does and randint doesn't").replace(
    "torch.randperm(num_samples,", "torch.randint(num_samples, (num_samples,),"
)
wrong("sorts-its-part", "in the shuffled order").replace(
    "return order[rank::world_size]", "return sorted(order[rank::world_size])"
)
wrong("tensors", "Take .tolist()").replace(
    "return order[rank::world_size]", "return list(torch.tensor(order[rank::world_size]))"
)
right("in-runs").replace("order[rank::world_size]", "order[rank * each : (rank + 1) * each]")
right("pythons-random").replace(
    "torch.randperm(num_samples, generator=generator).tolist()",
    "list(range(num_samples))\n__import__('random').Random(1000 * seed + epoch).shuffle(order)",
)
right("torchs-own").function("""
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(num_samples), world_size, rank, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)
""")

wrong, right = ANSWERS.to("make-buckets")
wrong("empty-at-the-end", sentence="right except for an empty bucket at the end").replace(
    "return buckets", "return [*buckets, []]"
)
wrong("cuts-from-the-first", sentence="cut from the first parameter on: begin with the last one").replace(
    "reversed(range(len(sizes)))", "range(len(sizes))"
).replace("return buckets", "return [bucket[::-1] for bucket in buckets[::-1]]")
wrong("first-is-free", sentence="right if a bucket's first parameter had no bytes: count it, too").replace(
    "filled += sizes[index]", "filled += sizes[index] * (len(buckets[-1]) > 1)"
)
wrong(
    "buckets-reversed",
    sentence="right except for the order of the buckets: the last parameter's is the first to be sent",
).replace("return buckets", "return buckets[::-1]")
wrong(
    "sorted-inside", sentence="right except for the order inside the buckets: go from the last parameter to the first"
).replace("return buckets", "return [sorted(b) for b in buckets]")
wrong("one-each", sentence="a bucket for each parameter").body("buckets.append([index])")
wrong("forgets-the-last", sentence="without the last bucket: it isn't full, but it counts").replace(
    "return buckets", "return buckets[:-1]"
)
wrong("forward-order", sentence="from the first parameter to the last: backward starts at the other end").replace(
    "reversed(range(len(sizes)))", "range(len(sizes))"
)
wrong(
    "closes-before",
    sentence="a bucket that is closed before it would grow above the cap: close it once it has reached the cap",
).replace("filled >= cap", "filled + sizes[index] > cap")
wrong(
    "large-ones-aside",
    sentence="right if what is above the cap had buckets of its own: it goes in like every other parameter",
).function("""
    buckets, filled, last = [], 0, None
    for index in reversed(range(len(sizes))):
        if sizes[index] >= cap:
            buckets.append([index])
            continue
        if last is None or filled >= cap:
            last, filled = [], 0
            buckets.append(last)
        last.append(index)
        filled += sizes[index]
    return buckets
""")
wrong(
    "closes-below-the-cap",
    sentence="a bucket that is closed before it would reach the cap: close it once it has",
).replace("filled >= cap", "filled + sizes[index] >= cap")
wrong("closes-too-late", sentence="a bucket that is closed too late: one that holds exactly the cap is full").replace(
    ">= cap", "> cap"
)
wrong(
    "never-empties",
    sentence="one bucket per parameter after the first bucket: count each bucket's bytes from zero again",
).replace("filled = 0", "pass")
wrong("large-ones-alone", same_as="closes-before").replace("filled >= cap", "filled >= cap or sizes[index] >= cap")
wrong("carries-over", sentence="what is above the cap counted in the next bucket: count from zero again").replace(
    "filled = 0", "filled = max(0, filled - cap)"
)
wrong("empty-first", sentence="right except for an empty bucket at the start").replace(
    "if not buckets or filled >= cap:",
    "if index == len(sizes) - 1:\n    buckets.append([])\nif filled >= cap or index == len(sizes) - 1:",
)
wrong(
    "one-for-all",
    sentence="one bucket for all: start a new one when the last one has reached the cap, which is in bytes",
).replace("not buckets or filled >= cap", "not buckets").replace("filled = 0", "").replace("filled += sizes[index]", "")
wrong("forgets-parameter-0", sentence="without parameter 0: go on until index 0").replace(
    "reversed(range(len(sizes)))", "range(len(sizes) - 1, 0, -1)"
)
wrong("sizes", sentence="the sizes: a bucket holds the parameters' indices").replace(
    "append(index)", "append(sizes[index])"
)
right("looks-back").body("""
    if buckets and sum(sizes[other] for other in buckets[-1]) < cap:
        buckets[-1].append(index)
    else:
        buckets.append([index])
""")

wrong, right = ANSWERS.to("bucketed-gradients")
wrong("forgets-to-divide", "divide by world_size").replace("flat /= world_size", "pass")
wrong("cuts-in-forward-order", "in the order in which it was put together").replace(
    "zip(bucket, flat.split([parameters[index].numel() for index in bucket]))",
    "zip(sorted(bucket), flat.split([parameters[index].numel() for index in sorted(bucket)]))",
)
wrong("never-copies-back", "nothing was averaged").replace(
    "parameters[index].grad = piece.view_as(parameters[index])", "pass"
)
wrong("float32-flats", "torch.zeros and torch.tensor make those").replace(
    "flights.append", "flat = flat.float()\nflights.append"
).replace("piece.view_as(parameters[index])", "piece.double().view_as(parameters[index])")
wrong("float32-gradients", "A gradient has the dtype of its parameter").replace(
    "flights.append", "flat = flat.float()\nflights.append"
)
wrong("equal-pieces", "Cut each flat tensor into the pieces").replace(
    "flat.split([parameters[index].numel() for index in bucket])", "flat.chunk(len(bucket))"
)
wrong("drops-the-handle", "never waited for it", caught_by="traffic").replace("handle.wait()", "pass")
wrong("waits-at-once", "before it had started the last one", caught_by="traffic").replace(
    "flights.append((flat, dist.all_reduce(flat, async_op=True)))",
    "handle = dist.all_reduce(flat, async_op=True)\nhandle.wait()\nflights.append((flat, handle))",
)
wrong("order-differs-by-rank", "in the same order").replace(
    "flights = []", "buckets = buckets if rank % 2 == 0 else buckets[::-1]\nflights = []"
)
wrong("reversed", "in the order of `buckets`", caught_by="traffic").replace(
    "for bucket in buckets:", "for bucket in reversed(buckets):"
).replace("zip(buckets, flights)", "zip(reversed(buckets), flights)")
wrong("in-the-order-of-buckets", "right numbers in the wrong places").replace(
    "return [parameter.grad for parameter in parameters]",
    "return [parameters[index].grad for bucket in buckets for index in bucket]",
)
wrong("sends-new-tensors", "all zeros").replace("parameters[index].grad.reshape", "0 * parameters[index].data.reshape")
wrong("never-moves-on", "the first numbers of its bucket's flat tensor").replace("= piece", "= flat[: piece.numel()]")
wrong("counts-from-0-in-each-bucket", "are counted from 0").replace(
    "= piece.", "= flat.split([parameters[other].numel() for other in bucket])[index]."
)
right("copies-back").replace(
    "parameters[index].grad = piece.view_as(parameters[index])",
    "parameters[index].grad.copy_(piece.view_as(parameters[index]))",
)
right("divides-first").replace("flights.append", "flat /= world_size\nflights.append").replace(
    "handle.wait()\nflat /= world_size", "handle.wait()"
)

wrong, right = ANSWERS.to("communication-end")
wrong("adds-everything", sentence="the sum of all: no all-reduce starts before its bucket is ready").body(
    "end = sum(took, 0.0)"
)
wrong(
    "the-last-alone", sentence="when the last bucket would end on a free network: the one before may still occupy it"
).replace("max(end, is_ready)", "is_ready")
wrong("all-at-once", sentence="the end if all ran at the same time: the network does one at a time").replace(
    "max(end, is_ready) + takes", "max(end, is_ready + takes)"
)
wrong(
    "after-backward",
    sentence="the end if all start after backward, one after another: each starts as soon as it is ready",
).body("end = max(ready, default=0.0) + sum(took)")
wrong("adds-moments", sentence="the sum of all moments and times: `ready` is a moment, so wait until then").replace(
    "max(end, is_ready) + takes", "end + is_ready + takes"
)
wrong(
    "adds-first", sentence="the later of `ready` and `end + took`: take the later of `ready` and `end`, then add"
).replace("max(end, is_ready) + takes", "max(end + takes, is_ready)")
wrong(
    "first-and-all",
    sentence="the first moment plus the sum of all: the network may have to wait for any of the later buckets too",
).body("end = sum(took, *ready[:1] or [0.0])")
wrong("exposed", sentence="the exposed time: return the moment when the last one ends").replace(
    "return end", "return end - max(ready, default=0.0)"
)
wrong(
    "in-order-of-readiness",
    sentence="the end if the first bucket to be ready is sent first: all ranks keep the order that is given",
    hidden=True,
).replace("zip(ready, took)", "sorted(zip(ready, took))")
right("branches").replace("end = max(end, is_ready) + takes", "if is_ready > end:\n    end = is_ready\nend += takes")

wrong, right = ANSWERS.to("overlap-by-hooks")
wrong("reduces-the-weights", "all-reduce the gradients, not the parameters").replace(
    "parameters[index].grad.reshape", "parameters[index].detach().reshape"
)
wrong("wrong-hook", "hook is called before that").replace(
    "parameters[index].register_post_accumulate_grad_hook", "parameters[index].register_hook"
)
wrong("calls-the-hook", "bound and not called yet").replace("partial(one_more_is_ready, number)", "one_more_is_ready")
wrong("late-binding", "its bucket was never started").replace(
    "hook = partial(one_more_is_ready, number)", "hook = lambda parameter: one_more_is_ready(number, parameter)"
)
wrong("if-for-while", "Start them in a `while`").replace(
    "while len(flights) < len(buckets) and", "if len(flights) < len(buckets) and"
)
wrong("the-rest-after-backward", "Start them in a `while`", caught_by="traffic").replace(
    "while len(flights) < len(buckets) and missing[len(flights)] == 0:",
    "if missing[number] == 0 and number == len(flights):",
).replace(
    "for bucket, (flat",
    """for bucket in buckets[len(flights):]:
    flat = torch.cat([parameters[index].grad.reshape(-1) for index in bucket])
    flights.append((flat, dist.all_reduce(flat, async_op=True)))
for bucket, (flat""",
)
wrong("never-moves-on", "the first numbers of its bucket's flat tensor").replace("= piece", "= flat[: piece.numel()]")
wrong("leaves-hooks", "left on the model").replace("hooks.append(", "(")
wrong("its-own-bucket-twice", "not the `number` that").replace("buckets[len(flights)]", "buckets[number]")
wrong("late-bucket", "but another one was put together").replace("buckets[len(flights)]", "bucket")
wrong("as-they-are-ready", "or its bucket, was complete").replace(
    "while len(flights) < len(buckets) and missing[len(flights)] == 0:", "if missing[number] == 0:"
).replace("buckets[len(flights)]", "buckets[number]").replace("append((flat", "append((buckets[number], flat").replace(
    "for bucket, (flat, handle) in zip(buckets, flights):", "for bucket, flat, handle in flights:"
)
wrong("starts-with-the-first-gradient", "with a gradient missing").replace(
    "missing[len(flights)] == 0:", "missing[len(flights)] < len(buckets[len(flights)]):"
)
wrong("after-backward", "only when the last gradient", caught_by="traffic").replace(
    "missing[len(flights)] == 0", "sum(missing) < 0"
).replace("for bucket, (flat", "one_more_is_ready(0, None)\nfor bucket, (flat")
wrong("all-in-the-last-hook", "idle until backward is over", caught_by="time").replace(
    "missing[len(flights)]", "sum(missing)"
)
wrong("waits-in-the-hook", "a backward that waits for the network", caught_by="time").replace(
    "flights.append((flat, dist.all_reduce(flat, async_op=True)))",
    "flights.append((flat, dist.all_reduce(flat, async_op=True)))\nflights[-1][1].wait()",
)
wrong("waits-in-the-last-hook", "1 of 3 all-reduces had been waited for", caught_by="traffic").replace(
    "hooks = []", "    if not any(missing):\n        flights[0][1].wait()\nhooks = []"
)
wrong("blocks-in-the-hook", "all-reduces blocked", caught_by="traffic").replace(
    "flights.append((flat, dist.all_reduce(flat, async_op=True)))",
    "dist.all_reduce(flat)\nflights.append((flat, None))",
).replace("handle.wait()", "pass")
right("averages-in-flight").replace("async_op=True", "op=dist.ReduceOp.AVG, async_op=True").replace(
    "flat /= world_size", ""
)
right("lambda-with-default").replace(
    "partial(one_more_is_ready, number)", "lambda parameter, number=number: one_more_is_ready(number, parameter)"
)
VIEWS = """flats = [torch.zeros(sum(parameters[i].numel() for i in bucket), dtype=shard.dtype) for bucket in buckets]
for bucket, flat in zip(buckets, flats):
    for i, piece in zip(bucket, flat.split([parameters[i].numel() for i in bucket])):
        parameters[i].grad = piece.view_as(parameters[i])
loss = loss_of"""
CAT = "flat = torch.cat([parameters[index].grad.reshape(-1) for index in buckets[len(flights)]])"
right("copies-into-views").replace("loss = loss_of", VIEWS).replace(CAT, "flat = flats[len(flights)]")
wrong("late-bucket-in-views", "than it is cut for").replace("loss = loss_of", VIEWS).replace(
    "buckets[len(flights)]", "bucket"
)

wrong, right = ANSWERS.to("average-what-is-used")
wrong("divides-by-users", "the others count as zero").replace("parameter.grad /= world_size", "parameter.grad /= count")
wrong("divides-by-all-users", "`users.sum()`").replace("/= world_size", "/= users.sum()")
wrong("zeros-for-all", "AdamW keeps moving it").replace("if count:", "if True:")
wrong("float32-zeros", "zeros_like(parameter)").replace("torch.zeros_like(parameter)", "torch.zeros(parameter.shape)")
wrong("sends-copies", "the mean never got into").replace(
    "dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad * 1)\nparameter.grad *= world_size"
)
wrong("only-what-it-has", "reduced the gradient of").replace("if count:", "if parameter.grad is not None:")
wrong("only-what-all-use", "every rank needs the mean").replace("if count:", "if count == world_size:")
wrong("frozen-too", "all zeros, but it is frozen").replace(
    "dist.all_reduce(users)",
    "trained = list(model.parameters())\n"
    "users = torch.tensor([int(p.grad is not None or not p.requires_grad) for p in trained])\n"
    "dist.all_reduce(users)",
)
wrong("rank-0-decides", "every rank needs the mean", hidden=True).replace(
    "dist.all_reduce(users)", "dist.broadcast(users, src=0)"
)
right("zeros-first").body("""
    dist.all_reduce(users, op=dist.ReduceOp.MAX)
    used = [parameter for parameter, one in zip(trained, users.tolist()) if one]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in used])
    dist.all_reduce(flat)
    flat /= world_size
    for parameter, piece in zip(used, flat.split([p.numel() for p in used])):
        parameter.grad = piece.view_as(parameter)
""")

wrong, right = ANSWERS.to("replica")
wrong("never-broadcasts", "broadcast all that rank 0 holds").replace("dist.broadcast(tensor.detach(), src=0)", "pass")
wrong("forgets-to-divide", "divide by world_size").replace("flat /= dist.get_world_size()", "pass")
wrong("reduces-each-microbatch", "Only the last microbatch", caught_by="traffic").replace(
    "if self.active:", "if True:"
).replace("if not last:\n    return", "")
wrong("hooks-in-earlier-passes", "never waited for it", caught_by="traffic").replace("if self.active:", "if True:")
for name, words, by in (("early", "so set the counts", "values"), ("late", "set anew in each step", "traffic")):
    wrong(f"counts-once-{name}", words, caught_by=by).replace(
        "self.missing = [", "self.missing = getattr(self, 'missing', None) or ["
    )
wrong("counts-in-each-microbatch", "in a last backward only").replace("if self.active:", "if True:").replace(
    "while len(self.flights)", "while self.active and len(self.flights)"
).replace("and not self.missing[len(self.flights)]", "and self.missing[len(self.flights)] <= 0").replace(
    "self.missing = [len(bucket) for bucket in self.buckets]",
    "if not last or not self.__dict__.get('missing'):\n    self.missing = [len(bucket) for bucket in self.buckets]",
)
wrong("counts-down-in-each-microbatch", "In steps of one microbatch they did", caught_by="traffic").replace(
    "self.missing = [", "self.missing = getattr(self, 'missing', None) or ["
).replace("if self.active:", "if True:").replace(
    "while len(self.flights)", "while self.active and len(self.flights)"
).replace("if not last:\n    return", "if not last:\n    return\nself.missing = None")
wrong("indexes-all-parameters", "count the trained parameters only").replace("if parameter.requires_grad", "").replace(
    "self.trained[index].register", "self.trained[index].requires_grad and self.trained[index].register"
)
wrong("never-moves-on", "the first numbers of its bucket's").replace("piece.view", "flat[: len(piece)].view")
wrong("only-what-all-use", "the sum of the users is 0").replace(
    "if users[index]", "if users[index] == dist.get_world_size()"
)
wrong("registers-frozen-ones", "use self.trained[index]").replace(
    "self.trained[index].reg", "[*module.parameters()][index].reg"
)
wrong("float32-zeros", "torch.zeros makes float32").replace("torch.zeros_like(p)", "torch.zeros(p.shape)")
wrong("adds-the-mean", "put the mean in its place").replace("= piece", "= (0 if p.grad is None else p.grad) + piece")
wrong("divides-twice", "divide once").replace("flat /= dist", "flat /= dist.get_world_size()\nflat /= dist")
wrong("users-first", "start all buckets first").replace("dist.all_reduce(users)", "pass").replace(
    "while len(self.flights) < len(self.buckets):",
    "dist.all_reduce(users)\nwhile len(self.flights) < len(self.buckets):",
)
wrong("zeros-for-all", "set None there").replace("if users[index] else None", "")
wrong("zeros-for-frozen-ones", "all zeros, but it is frozen").replace(
    "dist.all_reduce(users)", "dist.all_reduce(users)\nself.module.frozen.grad = 0 * self.module.frozen.detach()"
)
wrong("divides-by-users", "the others count as zero").replace("flat /= dist.get_world_size()", "pass").replace(
    "piece.view_as(p) if", "piece.view_as(p) / users[index] if"
)
wrong("divides-by-all-users", "`users.sum()`").replace("flat /= dist.get_world_size()", "flat /= users.sum()")
wrong("divides-by-microbatches", "the loss is divided by it already").replace(
    "flat /= dist.get_world_size()", "flat /= 3 * dist.get_world_size()"
)
wrong("keeps-its-own-gradients", "this rank's own gradient").replace(
    "piece.view_as(p) if users[index] else None", "p.grad if users[index] else None"
)
wrong("own-use-decides", "deciding for itself").replace("dist.all_reduce(users)", "pass")
wrong("rank-0-decides", "any rank may have used the parameter", hidden=True).replace(
    "dist.all_reduce(users)", "dist.broadcast(users, src=0)"
)
wrong("after-backward", "in the hook that completes it", caught_by="traffic").replace(
    "while len(self.flights) < len(self.buckets) and not self.missing[len(self.flights)]:\n    self.start_next()",
    "pass",
)
wrong("keeps-the-order-in-which-they-are-ready", "all before it have been started").replace(
    "while len(self.flights) < len(self.buckets) and not self.missing[len(self.flights)]:\n    self.start_next()",
    "if not self.missing[number]:\n"
    "    flat = torch.cat([self.trained[index].grad.reshape(-1) for index in self.buckets[number]])\n"
    "    self.flights.append((flat, dist.all_reduce(flat, async_op=True)))",
)
wrong("keeps-the-flights", "begin each step with no flights").replace(
    "self.flights = []", "self.__dict__.setdefault('flights', [])"
)
wrong("forgets-earlier-microbatches", "leave what earlier ones have put into grad").replace(
    "self.flights = []", "self.flights = []\nfor p in self.trained:\n    p.grad = None"
)
wrong("next-when-any-is-complete", "before all its gradients had come").replace(
    "while len(self.flights) < len(self.buckets) and not self.missing[len(self.flights)]:",
    "if not self.missing[number]:",
)
wrong("broadcasts-in-each-pass", "broadcast in `__init__` alone", caught_by="traffic").replace(
    "loss.backward()", "dist.broadcast(self.module.scale, src=0)\nloss.backward()"
)
wrong("waits-in-the-last-hook", "1 of 3 all-reduces had been waited for", caught_by="traffic").replace(
    "async_op=True)))", "async_op=True)))\nif len(self.flights) == 3:\n    self.flights[0][1].wait()"
)
wrong("fills-grads-of-all", "another parameter's gradient").replace(
    "members = [self.trained[index] for index in bucket]", "members = [[*self.module.parameters()][i] for i in bucket]"
)
right("users-in-float64").replace(
    "users = torch.tensor([int(parameter.grad is not None) for parameter in self.trained])",
    "users = torch.tensor([float(parameter.grad is not None) for parameter in self.trained], dtype=torch.float64)",
)
right("zeros-in-grad").replace(
    "while len(self.flights) < len(self.buckets):\n    self.start_next()",
    "for parameter in self.trained:\n    if parameter.grad is None:\n"
    "        parameter.grad = torch.zeros_like(parameter)\n"
    "while len(self.flights) < len(self.buckets):\n    self.start_next()",
)

wrong, right = ANSWERS.to("normalise-globally")
SUMS = """
    sums = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
    dist.all_reduce(sums)
    mean, squares = (sums[:-1] / sums[-1]).chunk(2)
"""
wrong(
    "subtracts-the-mean",
    sentence="the result with the mean of the squares minus the mean: subtract the square of the mean",
).body(SUMS + "    var = squares - mean")
wrong("own-squares", sentence="the result with the squares of your own rows alone: sum them over the ranks too").body(
    SUMS + "    var = (x - mean).square().mean(0)"
)
wrong(
    "weighted-variances",
    sentence="the result with the weighted mean of the ranks' variances: that leaves out the spread of their means. "
    "Subtract the mean over all ranks before you square, not your own",
).body(SUMS + "    var = x.var(0, correction=0) * len(x) / sums[-1]\n    dist.all_reduce(var)")
wrong(
    "own-mean",
    sentence="the result with the mean of your own rows, but the variance of all: use the mean over all ranks",
).body(SUMS + "    var = squares - mean.square()\n    mean = x.mean(0)")
wrong(
    "own-rows-times-ranks",
    sentence="the result with sums divided by your own number of rows times world_size: sum that number too",
).body(SUMS.replace("sums[-1]", "(len(x) * world_size)") + "    var = squares - mean.square()")
wrong("returns-the-deviation", sentence="the standard deviation: return the variance").replace(
    " + eps), var", " + eps), var.sqrt()"
)
wrong("own-rows", sentence="the result with the statistics of your own rows: nothing was exchanged").body(
    "mean, var = x.mean(0), x.var(0, correction=0)"
)
wrong(
    "mean-of-means", sentence="the result with the mean of the ranks' means: weight each by its number of rows"
).replace("[x.sum(0), x.square().sum(0), x.new_tensor([len(x)])]", "[x.mean(0), x.square().mean(0)]").replace(
    "sums[:-1] / sums[-1]", "sums / world_size"
)
wrong(
    "mean-of-variances",
    sentence="the result with the mean of the ranks' variances: that leaves out the spread of their means. Subtract "
    "the mean over all ranks before you square, not your own",
).body(SUMS + "    var = x.var(0, correction=0) / world_size\n    dist.all_reduce(var)")
wrong(
    "unbiased", sentence="the result with a variance that divides by one less than the number of rows: use correction=0"
).replace(
    "var = mean_of_squares - mean.square()", "var = (mean_of_squares - mean.square()) * sums[-1] / (sums[-1] - 1)"
)
wrong("forgets-the-mean", sentence="the result with the mean of the squares: subtract the square of the mean").replace(
    "var = mean_of_squares - mean.square()", "var = mean_of_squares"
)
wrong(
    "mean-of-mean-squares",
    sentence="the result with the mean of the ranks' mean squares: weight each by its number of rows",
).body(SUMS + "    var = (x - mean).square().mean(0) / world_size\n    dist.all_reduce(var)")
wrong("never-divides", sentence="the result with sums: divide them by the number of all rows").body(
    SUMS.replace(" / sums[-1]", "") + "    var = (squares - mean.square()).clamp(min=0)"
)
wrong("sums-the-batch", "must not grow with the batch", caught_by="traffic").replace(
    "dist.all_reduce(sums)", "rows = x.new_zeros(100, x.shape[1])\ndist.all_reduce(rows)\ndist.all_reduce(sums)"
)
wrong("eps-outside-the-root", sentence="the result with eps added to the root: add it to the variance").replace(
    "torch.sqrt(var + eps)", "(torch.sqrt(var) + eps)"
)
wrong("squares-of-sums", sentence="the result with the squares of the ranks' sums: square each number, then sum").body(
    SUMS.replace("x.square().sum(0)", "x.sum(0).square()") + "    var = squares - mean.square()"
)
wrong("deviation-with-eps", sentence="the standard deviation, with eps: return the variance").replace(
    "eps), var", "eps), (var + eps).sqrt()"
)
wrong("of-each-row", sentence="the variance of each row: batch norm takes that of each column, over the rows").body(
    "mean, var = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)"
)
wrong("gathers-rows", "Shards differ in size").body("""
    rows = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(rows, x)
    mean, var = torch.cat(rows).mean(0), torch.cat(rows).var(0, correction=0)
""")
right("two-passes").body(SUMS + "    var = (x - mean).square().sum(0) / sums[-1]\n    dist.all_reduce(var)")

wrong, right = ANSWERS.to("normalise-backward")
SUMS = """
    sums = torch.cat([g.sum(0), (g * x_hat).sum(0), g.new_tensor([len(g)])])
    dist.all_reduce(sums)
    mean_g, mean_gx = (sums[:-1] / sums[-1]).chunk(2)
"""
wrong("drops-the-mean", sentence="the gradient without the term of the mean").body(SUMS + "    mean_g = 0 * mean_g")
wrong(
    "own-sums", sentence="the result with your own sums divided by the number of all rows: sum g and g * x_hat too"
).replace("dist.all_reduce(sums)", "dist.all_reduce(sums[-1:])")
wrong(
    "sums-of-means", sentence="the result with the sum of the ranks' means: divide by the number of all rows"
).replace("[g.sum(0), (g * x_hat).sum(0)", "[g.mean(0), (g * x_hat).mean(0)").replace(
    "sums[:-1] / sums[-1]", "sums[:-1]"
)
wrong("means-swapped", sentence="the result with the two means in each other's place").body(
    SUMS + "    mean_g, mean_gx = mean_gx, mean_g"
)
wrong(
    "product-of-means",
    sentence="the gradient without the term of the variance, which is the mean of the products g * x_hat (the product "
    "of the two means is zero)",
).body(SUMS + "    mean_gx = 0 * mean_g")
wrong(
    "own-products", sentence="the result with the mean of g * x_hat over your own rows: sum that over the ranks too"
).body(SUMS + "    mean_gx = (g * x_hat).mean(0)")
wrong(
    "own-rows-times-ranks",
    sentence="the result with sums divided by your own number of rows times world_size: sum that number too",
).body(SUMS + "    mean_g, mean_gx = (sums[:-1] / (len(g) * world_size)).chunk(2)")
wrong("own-rows", sentence="the result with the means over your own rows: every row of every rank counts").body(
    "mean_g, mean_gx = g.mean(0), (g * x_hat).mean(0)"
)
wrong(
    "constant-statistics",
    sentence="the incoming gradient divided by the standard deviation: mean and variance depend on x too",
).body("mean_g = mean_gx = torch.zeros_like(var)")
wrong("forgets-the-variance", same_as="product-of-means").replace("return", "mean_gx = 0 * mean_gx\nreturn")
wrong(
    "mean-of-means", sentence="the result with the mean of the ranks' means: weight each by its number of rows"
).replace("[g.sum(0), (g * x_hat).sum(0), g.new_tensor([len(g)])]", "[g.mean(0), (g * x_hat).mean(0)]").replace(
    "sums[:-1] / sums[-1]", "sums / world_size"
)
wrong("own-count", sentence="the result with sums divided by your own number of rows: sum that number too").replace(
    "sums[:-1] / sums[-1]", "sums[:-1] / len(g)"
)
wrong("never-divides", sentence="the result with sums: divide them by the number of all rows").replace(
    "sums[:-1] / sums[-1]", "sums[:-1]"
)
wrong("in-float32", "right to 7 digits only").replace(
    "dist.all_reduce(sums)", "sums = sums.float()\ndist.all_reduce(sums)"
)
wrong("three-calls", "made 3 all-reduces", caught_by="traffic").replace(
    "dist.all_reduce(sums)", "for part in sums.chunk(3):\n    dist.all_reduce(part)"
)
wrong("one-row-less", sentence="the result with sums divided by one less than the number of all rows").replace(
    "/ sums[-1]", "/ (sums[-1] - 1)"
)
wrong(
    "products-of-sums", sentence="the result with the products of the ranks' sums: multiply g and x_hat first, then sum"
).body(SUMS.replace("(g * x_hat).sum(0)", "g.sum(0) * x_hat.sum(0)"))
wrong(
    "divides-twice", sentence="the result with means divided by world_size too: the number of all rows is enough"
).body(SUMS.replace("sums[:-1] / sums[-1]", "sums[:-1] / sums[-1] / world_size"))
right("two-calls").replace("dist.all_reduce(sums)", "dist.all_reduce(sums[:-1])\ndist.all_reduce(sums[-1:])")

wrong, right = ANSWERS.to("best-buckets")
wrong("one-for-all", "times par", caught_by="score").body("return [list(reversed(range(len(sizes))))]")
wrong("one-each", "pay the latency 96 times", caught_by="score").body(
    "return [[index] for index in reversed(range(len(sizes)))]"
)
wrong("last-bucket-first", "the first one should hold the last parameter", caught_by="score").replace(
    "key=end)", "key=end)[::-1]"
)
wrong("forgets-the-last", "is in 0 buckets", caught_by="score").replace("return buckets", "return buckets[:-1]")
wrong("sizes-for-indices", "there is an index", caught_by="score").body("return [list(reversed(sizes))]")
wrong("empty-first", "bucket 0 is empty", caught_by="score").replace("return min(", "return [[]] + min(")
wrong("no-buckets", "a list of buckets", caught_by="score").body("return list(reversed(range(len(sizes))))")
wrong("for-this-model-only", "times par", caught_by="score", hidden=True).replace("range(1, 101)", "[64, 65]")
right("larger-ones-first").body("""
    order = list(reversed(range(len(sizes))))
    ends, plans = [0.0], [[]]  # of the first gradients that get ready
    for upto in range(1, len(order) + 1):
        options = []
        for start in range(upto):
            bucket = order[start:upto]
            took = latency + sum(sizes[index] for index in bucket) / bandwidth
            options.append((max(ends[start], ready[bucket[-1]]) + took, start))
        end, start = min(options)
        ends.append(end)
        plans.append([*plans[start], order[start:upto]])
    return plans[-1]
""")
