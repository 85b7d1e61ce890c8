"""Wrong answers to lesson 01: at least two an exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import answers

MUTANTS, ALSO_RIGHT, mutant, also_right = answers()

# ---- predict-rooted

mutant(
    "predict-rooted",
    "always-root-0",
    says="right list for root 0",
    replace=("list(held[root]) for", "list(held[0]) for"),
)
mutant(
    "predict-rooted",
    "gathers-nested-lists",
    says="one list per rank inside a list",
    replace=("[number for numbers in held for number in numbers]", "[list(numbers) for numbers in held]"),
)
mutant(
    "predict-rooted",
    "adds-everything-to-one-number",
    says="position by position",
    replace=("[sum(column) for column in zip(*held)]", "[sum(sum(numbers) for numbers in held)]"),
)
mutant(
    "predict-rooted",
    "scatters-every-pth",
    says="a chunk is a run of neighbours",
    replace=("held[root][rank * size : (rank + 1) * size]", "held[root][rank::world_size]"),
)
mutant(
    "predict-rooted",
    "reduces-everywhere",
    says="the others get None",
    replace=(
        "after[root] = [sum(column) for column in zip(*held)]",
        "after = [[sum(column) for column in zip(*held)] for _ in held]",
    ),
)
mutant(
    "predict-rooted",
    "chunks-of-two",
    says="scatter among 5 ranks",
    hidden=True,
    replace=("held[root][rank * size : (rank + 1) * size]", "held[root][rank * 2 : rank * 2 + 2]"),
)

# ---- call-rooted

mutant(
    "call-rooted",
    "broadcasts-from-0",
    says="right for root 0",
    replace=("dist.broadcast(received, src=root)", "dist.broadcast(received, src=0)"),
)
mutant(
    "call-rooted",
    "all-reduces",
    "traffic",
    says="called all_reduce",
    replace=("dist.reduce(received, dst=root)", "dist.all_reduce(received)"),
)
mutant(
    "call-rooted",
    "reads-off-the-root",
    says="is not the root",
    replace=("received = received if rank == root else None", "pass"),
)
mutant(
    "call-rooted",
    "averages",
    says="the mean",
    replace=(
        "dist.reduce(received, dst=root)",
        "dist.reduce(received, dst=root)\n        received = received / world_size",
    ),
)
mutant(
    "call-rooted",
    "root-alone-calls",
    says="every rank must make the call",
    replace=("dist.broadcast(received, src=root)", "dist.broadcast(received, src=root) if rank == root else None"),
)
mutant(
    "call-rooted",
    "list-on-every-rank",
    says="scatter",
    replace=("list(x.chunk(world_size)) if rank == root else None", "list(x.chunk(world_size))"),
)

# ---- broadcast-by-hand

mutant(
    "broadcast-by-hand",
    "forgets-to-receive",
    says="What usually causes this here",
    replace=("dist.recv(received, src=root)", "pass"),
)
mutant(
    "broadcast-by-hand",
    "only-rank-0",
    says="rank 0's tensor",
    body="""
    if rank == 0:
        for other in range(1, world_size):
            dist.send(x, dst=other)
    else:
        dist.recv(received, src=0)
    """,
)
mutant(
    "broadcast-by-hand",
    "four-ranks",
    says="your own tensor",
    hidden=True,
    body="""
    if world_size not in (2, 4):
        return x
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(x, dst=other)
    else:
        dist.recv(received, src=root)
    """,
)
mutant(
    "broadcast-by-hand",
    "uses-the-library",
    "traffic",
    says="your function calls broadcast",
    body="dist.broadcast(received, src=root)",
)
mutant(
    "broadcast-by-hand",
    "sends-to-itself",
    says="send to itself",
    replace=("if other != root:\n                dist.send(x, dst=other)", "dist.send(x, dst=other)"),
)
mutant(
    "broadcast-by-hand",
    "receives-into-its-input",
    says="must stay as it was",
    body="""
    received = x
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(x, dst=other)
    else:
        dist.recv(x, src=root)
    """,
)
mutant(
    "broadcast-by-hand",
    "everyone-sends-to-everyone",
    "traffic",
    says="times as many as are needed",
    body="""
    sending = [dist.isend(x, dst=other) for other in range(world_size) if other != rank]
    for other in range(world_size):
        if other != rank:
            arrived = torch.empty_like(x)
            dist.recv(arrived, src=other)
            if other == root:
                received = arrived
    for handle in sending:
        handle.wait()
    """,
)

# ---- scatter-by-hand

mutant(
    "scatter-by-hand",
    "forgets-its-own",
    says="nothing was written into it",
    replace=("mine.copy_(chunks[root])", "pass"),
)
mutant(
    "scatter-by-hand",
    "off-by-one",
    says="the previous rank's chunk",
    replace=("mine.copy_(chunks[root])", "mine = chunks[root - 1]"),
)
mutant(
    "scatter-by-hand",
    "first-chunk-to-all",
    says="first chunk",
    body="""
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(chunks[0], dst=other)
        mine.copy_(chunks[root])
    else:
        dist.recv(mine, src=root)
    """,
)
mutant(
    "scatter-by-hand",
    "sends-everything",
    "traffic",
    says="4 times the bytes",
    body="""
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(torch.cat(chunks), dst=other)
        mine.copy_(chunks[root])
    else:
        everything = mine.new_empty(world_size * mine.numel())
        dist.recv(everything, src=root)
        mine.copy_(everything.chunk(world_size)[rank])
    """,
)
mutant(
    "scatter-by-hand",
    "sends-everything-to-small-buffers",
    says="or has a different size",
    replace=("dist.send(chunks[other], dst=other)", "dist.send(torch.cat(chunks), dst=other)"),
)
mutant(
    "scatter-by-hand",
    "wrong-dtype",
    says="a different dtype",
    hidden=True,
    replace=("mine.copy_(chunks[root])", "mine.copy_(chunks[root])\n        mine = mine.float()"),
)
mutant(
    "scatter-by-hand",
    "rebinds-its-buffer",
    says="did not write it into `mine`",
    replace=("mine.copy_(chunks[root])", "mine = chunks[root]"),
)
mutant(
    "scatter-by-hand",
    "receives-from-anybody-but-the-root",
    says="What usually causes this here",
    replace=("dist.recv(mine, src=root)", "dist.recv(mine, src=(rank + 1) % world_size)"),
)

# ---- gather-by-hand

mutant(
    "gather-by-hand",
    "forgets-its-own-row",
    says="never sent: copy it",
    replace=("rows[root] = x", "pass"),
)
mutant(
    "gather-by-hand",
    "root-row-first",
    says="the root's own row first",
    replace=(
        "for other in range(world_size):\n        if other == root:\n            rows[root] = x\n        else:\n"
        "            dist.recv(rows[other], src=other)",
        "others = [other for other in range(world_size) if other != root]\n    rows[0] = x\n"
        "    for row, other in enumerate(others, 1):\n        dist.recv(rows[row], src=other)",
    ),
)
mutant(
    "gather-by-hand",
    "returns-a-list",
    says="a list: return one tensor",
    replace=("for other in range(world_size):\n", "rows = list(rows)\n    for other in range(world_size):\n"),
)
mutant("gather-by-hand", "returns-its-own-everywhere", says="Only the root", body="return x")
mutant(
    "gather-by-hand",
    "sends-to-rank-0",
    says="send to itself",
    replace=("dist.send(x, dst=root)", "dist.send(x, dst=0)"),
)

# ---- reduce-by-hand

mutant(
    "reduce-by-hand",
    "forgot-to-add",
    says="each one replaced the one before",
    replace=("total += arrived", "total.copy_(arrived)"),
)
mutant(
    "reduce-by-hand",
    "added-twice",
    says="the root's own tensor twice",
    replace=(
        "for other in range(world_size):\n        if other != root:\n",
        "total += x\n    for other in range(world_size):\n        if other != root:\n",
    ),
)
mutant(
    "reduce-by-hand",
    "averages",
    says="the mean",
    replace=("total += arrived", "total += arrived\n    total /= world_size"),
)
mutant(
    "reduce-by-hand",
    "never-adds",
    says="nothing was added to it",
    replace=("total += arrived", "pass"),
)
mutant(
    "reduce-by-hand",
    "adds-into-the-input",
    says="must stay as it was",
    replace=(
        "for other in range(world_size):\n        if other != root:\n",
        "total = x\n    for other in range(world_size):\n        if other != root:\n",
    ),
)
mutant(
    "reduce-by-hand",
    "forgets-itself",
    says="the sum of the others",
    replace=(
        "for other in range(world_size):\n        if other != root:\n",
        "total.zero_()\n    for other in range(world_size):\n        if other != root:\n",
    ),
)
mutant(
    "reduce-by-hand",
    "counts-to-four",
    says="What usually causes this here",
    hidden=True,
    replace=("for other in range(world_size):", "for other in range(min(world_size, 4)):"),
)
mutant(
    "reduce-by-hand",
    "adds-in-float32",
    says="a different dtype",
    hidden=True,
    replace=(
        "for other in range(world_size):\n        if other != root:\n",
        "total = total.float()\n    for other in range(world_size):\n        if other != root:\n",
    ),
)

# ---- predict-unrooted

mutant(
    "predict-unrooted",
    "whole-sum-everywhere",
    says="one chunk of it",
    replace=("after = cut(total, world_size)", "after = [total for _ in held]"),
)
mutant(
    "predict-unrooted",
    "keeps-its-own-chunks",
    says="rank r gets chunk r from every rank",
    replace=("for source in chunks for number in source[rank]]", "for number in chunks[rank][rank]]"),
)
mutant(
    "predict-unrooted",
    "moves-nothing",
    says="nothing was moved",
    replace=(
        "[[number for source in chunks for number in source[rank]] for rank in range(world_size)]",
        "[list(numbers) for numbers in held]",
    ),
)
mutant(
    "predict-unrooted",
    "leaves-chunks-nested",
    says="put their numbers into one list",
    replace=("[number for source in chunks for number in source[rank]]", "[source[rank] for source in chunks]"),
)
mutant(
    "predict-unrooted",
    "averages",
    says="the mean",
    replace=("[list(total) for _ in range(world_size)]", "[[t / world_size for t in total] for _ in held]"),
)

# ---- call-unrooted

mutant(
    "call-unrooted",
    "gathers-on-rank-0",
    says="called gather",
    caught_by="traffic",
    replace=(
        "dist.all_gather(parts, x)",
        "dist.gather(x, parts if rank == 0 else None, dst=0)\n"
        "        for part in parts:\n            dist.broadcast(part, src=0)",
    ),
)
mutant(
    "call-unrooted",
    "averages",
    says="the mean",
    replace=("dist.all_reduce(received)", "dist.all_reduce(received, op=dist.ReduceOp.AVG)"),
)
mutant(
    "call-unrooted",
    "overwrites-its-input",
    says="must stay as it was",
    replace=("received = x.clone()", "received = x"),
)
mutant(
    "call-unrooted",
    "output-and-input-swapped",
    says="rank 3 returned",
    replace=("dist.all_to_all_single(received, x)", "dist.all_to_all_single(x.clone(), received)"),
)
mutant(
    "call-unrooted",
    "reduces-to-rank-0",
    "traffic",
    says="called reduce",
    replace=("dist.all_reduce(received)", "dist.reduce(received, dst=0)\n        dist.broadcast(received, src=0)"),
)

# ---- all-gather-from-rooted

mutant(
    "all-gather-from-rooted",
    "forgets-the-broadcast",
    "traffic",
    says="rank 0 called gather",
    replace=("dist.broadcast(everything, src=0)", "pass"),
)
mutant(
    "all-gather-from-rooted",
    "forgets-the-gather",
    says="gather before you broadcast",
    replace=("dist.gather(x, rows, dst=0)", "everything[:] = x"),
)
mutant(
    "all-gather-from-rooted",
    "uses-all-gather",
    "traffic",
    says="called all_gather",
    body="""
    dist.all_gather(list(everything), x)
    """,
)
mutant(
    "all-gather-from-rooted",
    "one-long-tensor",
    says="one long tensor",
    replace=(
        "dist.broadcast(everything, src=0)",
        "dist.broadcast(everything, src=0)\n    everything = everything.reshape(-1)",
    ),
)
mutant(
    "all-gather-from-rooted",
    "rank-0-alone-broadcasts",
    says="every rank must call both",
    replace=("dist.broadcast(everything, src=0)", "if rank == 0:\n        dist.broadcast(everything, src=0)"),
)

# ---- all-reduce-from-halves

mutant(
    "all-reduce-from-halves",
    "first-half-alone",
    says="your chunk of the sum, P times",
    replace=("dist.all_gather(chunks, mine)", "chunks = [mine] * world_size"),
)
mutant(
    "all-reduce-from-halves",
    "never-copies-x",
    says="never copied into `padded`",
    replace=("padded[: x.numel()] = x.reshape(-1)", "pass"),
)
mutant(
    "all-reduce-from-halves",
    "averages",
    says="the mean",
    replace=("dist.all_gather(chunks, mine)", "mine /= world_size\n    dist.all_gather(chunks, mine)"),
)
mutant(
    "all-reduce-from-halves",
    "reduces-twice",
    says="P times the sum",
    replace=("dist.all_gather(chunks, mine)", "mine *= world_size\n    dist.all_gather(chunks, mine)"),
)
mutant(
    "all-reduce-from-halves",
    "gathers-whole-tensors",
    "traffic",
    says="called all_gather",
    body="""
    padded[: x.numel()] = x.reshape(-1)
    everything = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(everything, padded)
    chunks = list(torch.stack(everything).sum(0).to(x.dtype).chunk(world_size))
    """,
)
mutant(
    "all-reduce-from-halves",
    "float32-buffers",
    says="a different dtype",
    hidden=True,
    replace=("mine = torch.empty(size, dtype=x.dtype)", "padded = padded.float()\n    mine = torch.empty(size)"),
)

# ---- distributed-transpose

mutant(
    "distributed-transpose",
    "transposes-its-own-band",
    says="nothing was exchanged",
    body="return band.T.contiguous()",
)
mutant(
    "distributed-transpose",
    "forgets-inside-a-block",
    says="not transposed inside",
    body="""
    outgoing = torch.stack(blocks)
    arrived = torch.empty_like(outgoing)
    dist.all_to_all_single(arrived, outgoing)
    return torch.cat(list(arrived), dim=1)
    """,
)
mutant(
    "distributed-transpose",
    "one-under-the-other",
    says="put them side by side",
    replace=("torch.cat(list(arrived), dim=1)", "torch.cat(list(arrived))"),
)
mutant(
    "distributed-transpose",
    "reshapes",
    says="the right numbers in the wrong order",
    replace=("torch.cat(list(arrived), dim=1)", "arrived.reshape(-1, world_size * len(band))"),
)
mutant(
    "distributed-transpose",
    "gathers-everything",
    "traffic",
    says="called all_gather",
    body="""
    everything = [torch.empty_like(band) for _ in range(world_size)]
    dist.all_gather(everything, band)
    return torch.cat(everything).T.chunk(world_size)[rank].contiguous()
    """,
)
mutant(
    "distributed-transpose",
    "float32-buffers",
    says="a different dtype",
    hidden=True,
    body="""
    outgoing = torch.stack([block.T for block in blocks])
    arrived = torch.empty_like(outgoing, dtype=torch.float32)
    dist.all_to_all_single(arrived, outgoing.float())
    return torch.cat(list(arrived), dim=1)
    """,
)

# ---- dual-of

mutant(
    "dual-of",
    "opposites-by-name",
    says="the dual of broadcast is not all_reduce",
    replace=('("broadcast", "reduce")', '("broadcast", "all_reduce")'),
)
mutant(
    "dual-of",
    "everything-is-its-own",
    says="the dual of broadcast is not broadcast",
    body="return collective",
)
mutant(
    "dual-of",
    "scatter-to-reduce-scatter",
    says="the sizes do not even fit",
    replace=('("scatter", "gather")', '("scatter", "reduce_scatter")'),
)
mutant(
    "dual-of",
    "one-way-only",
    says="the dual of gather is not gather",
    replace=("{**dict(pairs), **{right: left for left, right in pairs}}", "dict(pairs)"),
)
mutant(
    "dual-of",
    "with-hyphens",
    says="one of the eight names",
    replace=("both_ways.get(collective, collective)", 'both_ways.get(collective, collective).replace("_", "-")'),
)

# ---- global-statistics

mutant(
    "global-statistics",
    "mean-of-means",
    says="the mean of means",
    body="""
    mean = shard.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)
    """,
)
mutant(
    "global-statistics",
    "divides-by-world-size",
    says="divide by how many numbers",
    replace=("mean = total / count", "mean = total / world_size"),
)
mutant(
    "global-statistics",
    "divides-by-its-own-length",
    says="the lengths must be summed too",
    replace=("mean = total / count", "mean = total / shard.numel()"),
)
mutant(
    "global-statistics",
    "sums-the-products",
    says="the products were summed",
    replace=("dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)", "dist.all_reduce(product)"),
)
mutant(
    "global-statistics",
    "no-exchange",
    says="nothing was exchanged",
    body="mean = shard.mean()",
)
mutant(
    "global-statistics",
    "maximum-from-zero",
    says="returned",
    hidden=True,
    replace=(
        "dist.all_reduce(largest, op=dist.ReduceOp.MAX)",
        "largest = largest.clamp(min=0)\n    dist.all_reduce(largest, op=dist.ReduceOp.MAX)",
    ),
)

# ---- launch-then-wait

mutant(
    "launch-then-wait",
    "forgot-wait",
    "traffic",
    says="never waited",
    replace=("handle.wait()", "pass"),
)
mutant(
    "launch-then-wait",
    "waits-at-once",
    "traffic",
    says="before it had started the last one",
    replace=(
        "handles = [dist.all_reduce(x, async_op=True) for x in sums]",
        "handles = []\n    for x in sums:\n        dist.all_reduce(x, async_op=True).wait()",
    ),
)
mutant(
    "launch-then-wait",
    "blocks",
    "traffic",
    says="Pass async_op=True",
    replace=(
        "handles = [dist.all_reduce(x, async_op=True) for x in sums]",
        "handles = []\n    for x in sums:\n        dist.all_reduce(x)",
    ),
)
mutant(
    "launch-then-wait",
    "waits-for-the-last",
    "traffic",
    says="started an asynchronous all_reduce and never waited for it",
    replace=("for handle in handles:\n        handle.wait()", "handles[-1].wait()"),
)
mutant(
    "launch-then-wait",
    "starts-nothing",
    says="not started, or not waited for",
    replace=("handles = [dist.all_reduce(x, async_op=True) for x in sums]", "handles = []"),
)
mutant(
    "launch-then-wait",
    "three-tensors",
    "traffic",
    says="called all_reduce, all_reduce, all_reduce",
    hidden=True,
    replace=("for x in sums]", "for x in sums[:3]]"),
)

# ---- all-reduce-any-view

mutant(
    "all-reduce-any-view",
    "hands-in-the-view",
    says="a view with gaps",
    body="dist.all_reduce(view)",
)
mutant(
    "all-reduce-any-view",
    "forgets-to-copy-back",
    says="copy the sum back",
    replace=("view.copy_(packed)", "view = packed"),
)
mutant(
    "all-reduce-any-view",
    "stays-in-the-copy",
    says="went into a copy and stayed there",
    replace=("view.copy_(packed)", "pass"),
)
mutant(
    "all-reduce-any-view",
    "averages",
    says="the mean",
    replace=("view.copy_(packed)", "view.copy_(packed / world_size)"),
)
mutant(
    "all-reduce-any-view",
    "flattens-wrong",
    says="returned",
    hidden=True,
    replace=(
        "view.copy_(packed)",
        "view.copy_(packed.T.reshape(view.shape) if view.dim() == 2 and view.shape[0] > 1 else packed)",
    ),
)

# ---- agree-or-explain

mutant(
    "agree-or-explain",
    "only-the-odd-one-raises",
    says="Every rank must raise",
    replace=("if odd:", "if everyone[rank] != everyone[0]:"),
)
mutant(
    "agree-or-explain",
    "looks-at-the-size-only",
    says="raised no ValueError",
    hidden=True,
    replace=("everyone[r] != everyone[0]]", "sorted(everyone[r]) != sorted(everyone[0])]"),
)
mutant(
    "agree-or-explain",
    "names-everybody",
    says="which agrees with rank 0",
    replace=("if everyone[r] != everyone[0]]\n    if odd:", "]\n    if len(set(everyone)) > 1:"),
)
mutant(
    "agree-or-explain",
    "speaks-for-itself",
    says="the same sentence on every rank",
    replace=("f\"{', '.join(odd)}, but rank 0 brought {everyone[0]}\"", 'f"rank {rank} brought {mine}"'),
)
mutant(
    "agree-or-explain",
    "names-the-first-only",
    says="to be named",
    replace=("{', '.join(odd)}", "{odd[0]}"),
)
mutant(
    "agree-or-explain",
    "never-asks",
    says="went on to all_reduce",
    body="pass",
)

mutant(
    "all-reduce-any-view",
    "replaces-the-views-memory",
    says="did not write it into `view`",
    replace=("view.copy_(packed)", "view.data = packed"),
)
mutant(
    "all-reduce-any-view",
    "number-by-number",
    says="One call of each",
    body="for one in view:\n    number = one.clone()\n    dist.all_reduce(number)\n    one.copy_(number)",
)
mutant(
    "agree-or-explain",
    "pairs-the-wrong-ranks",
    says="rank 0 to be named",
    replace=(
        'odd = [f"rank {r} brought {everyone[r]}"',
        'everyone.reverse()\n    odd = [f"rank {r} brought {everyone[r]}"',
    ),
)

# ---- right answers in another form

also_right(
    "broadcast-by-hand",
    "all-sends-at-once",
    body="""
    if rank == root:
        sends = [dist.isend(x, dst=other) for other in range(world_size) if other != root]
        for handle in sends:
            handle.wait()
    else:
        dist.irecv(received, src=root).wait()
    """,
)
also_right(
    "gather-by-hand",
    "from-whoever-comes",
    cell="""
    def gather_by_hand(x: Tensor, root: int, rank: int, world_size: int) -> Tensor | None:
        if rank != root:
            dist.send(x, dst=root)
            return None
        got, rows = torch.empty_like(x), {root: x}
        for _ in range(world_size - 1):
            source = dist.recv(got)
            rows[source] = got.clone()
        return torch.stack([rows[r] for r in range(world_size)])
    """,
)
also_right(
    "reduce-by-hand",
    "adds-in-batches",
    replace=(
        ("if other != root:", "if other == root: continue"),
        ("            dist.recv(arrived, src=other)", "        dist.recv(arrived, src=other)"),
        ("            total += arrived", "        total = total + arrived"),
    ),
)
