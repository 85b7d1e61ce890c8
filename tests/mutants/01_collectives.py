"""Answers to lesson 01, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, _ = ANSWERS.to("predict-rooted")
wrong("always-root-0", "right list for root 0").replace("list(held[root]) for", "list(held[0]) for")
wrong("gathers-nested-lists", "one list per rank inside a list").replace(
    "[number for numbers in held for number in numbers]", "[list(numbers) for numbers in held]"
)
wrong("adds-everything-to-one-number", "position by position").replace(
    "[sum(column) for column in zip(*held)]", "[sum(sum(numbers) for numbers in held)]"
)
wrong("scatters-every-pth", "a chunk is a run of neighbours").replace(
    "held[root][rank * size : (rank + 1) * size]", "held[root][rank::world_size]"
)
wrong("reduces-everywhere", "the others get None").replace(
    "after[root] = [sum(column) for column in zip(*held)]",
    "after = [[sum(column) for column in zip(*held)] for _ in held]",
)
wrong("chunks-of-two", "scatter among 5 ranks", hidden=True).replace(
    "held[root][rank * size : (rank + 1) * size]", "held[root][rank * 2 : rank * 2 + 2]"
)

wrong, _ = ANSWERS.to("call-rooted")
wrong("broadcasts-from-0", "right for root 0").replace(
    "dist.broadcast(received, src=root)", "dist.broadcast(received, src=0)"
)
wrong("all-reduces", "called all_reduce", caught_by="traffic").replace(
    "dist.reduce(received, dst=root)", "dist.all_reduce(received)"
)
wrong("reads-off-the-root", "is not the root").replace("received = received if rank == root else None", "pass")
wrong("averages", "the mean").replace("received = received", "received = received / world_size\nreceived = received")
wrong("root-alone-calls", "every rank must make the call").replace(
    "dist.broadcast(received, src=root)", "dist.broadcast(received, src=root) if rank == root else None"
)
wrong("list-on-every-rank", "scatter").replace(
    "list(x.chunk(world_size)) if rank == root else None", "list(x.chunk(world_size))"
)

wrong, right = ANSWERS.to("broadcast-by-hand")
wrong("forgets-to-receive", "What usually causes this here").replace("dist.recv(received, src=root)", "pass")
wrong("only-rank-0", "rank 0's tensor").body("""
    if rank == 0:
        for other in range(1, world_size):
            dist.send(x, dst=other)
    else:
        dist.recv(received, src=0)
""")
wrong("four-ranks", "your own tensor", hidden=True).replace(
    "if rank", "if world_size not in (2, 4):\n    return x\nif rank"
)
wrong("uses-the-library", "your function calls broadcast", caught_by="traffic").body(
    "dist.broadcast(received, src=root)"
)
wrong("sends-to-itself", "send to itself").replace(
    "if other != root:\n    dist.send(x, dst=other)", "dist.send(x, dst=other)"
)
wrong("receives-into-its-input", "must stay as it was").replace("if rank", "received = x\nif rank").replace(
    "dist.recv(received, src=root)", "dist.recv(x, src=root)"
)
wrong("everyone-sends-to-everyone", "times as many as are needed", caught_by="traffic").body("""
    sending = [dist.isend(x, dst=other) for other in range(world_size) if other != rank]
    for other in range(world_size):
        if other != rank:
            arrived = torch.empty_like(x)
            dist.recv(arrived, src=other)
            if other == root:
                received = arrived
    for handle in sending:
        handle.wait()
""")
right("all-sends-at-once").body("""
    if rank == root:
        sends = [dist.isend(x, dst=other) for other in range(world_size) if other != root]
        for handle in sends:
            handle.wait()
    else:
        dist.irecv(received, src=root).wait()
""")

wrong, _ = ANSWERS.to("scatter-by-hand")
wrong("forgets-its-own", "nothing was written into it").replace("mine.copy_(chunks[root])", "pass")
wrong("off-by-one", "the previous rank's chunk").replace("mine.copy_(chunks[root])", "mine = chunks[root - 1]")
wrong("first-chunk-to-all", "first chunk").body("""
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(chunks[0], dst=other)
        mine.copy_(chunks[root])
    else:
        dist.recv(mine, src=root)
""")
wrong("sends-everything", "4 times the bytes", caught_by="traffic").body("""
    if rank == root:
        for other in range(world_size):
            if other != root:
                dist.send(torch.cat(chunks), dst=other)
        mine.copy_(chunks[root])
    else:
        everything = mine.new_empty(world_size * mine.numel())
        dist.recv(everything, src=root)
        mine.copy_(everything.chunk(world_size)[rank])
""")
wrong("sends-everything-to-small-buffers", "or has a different size").replace("chunks[other]", "torch.cat(chunks)")
wrong("wrong-dtype", "a different dtype", hidden=True).replace(
    "mine.copy_(chunks[root])", "mine.copy_(chunks[root])\nmine = mine.float()"
)
wrong("rebinds-its-buffer", "did not write it into `mine`").replace("mine.copy_(chunks[root])", "mine = chunks[root]")
wrong("receives-from-anybody-but-the-root", "What usually causes this here").replace(
    "dist.recv(mine, src=root)", "dist.recv(mine, src=(rank + 1) % world_size)"
)

wrong, right = ANSWERS.to("gather-by-hand")
wrong("one-long-tensor", "one long tensor").replace("return rows", "return rows.flatten()")
wrong("forgets-its-own-row", "never sent: copy it").replace("rows[root] = x", "pass")
wrong("root-row-first", "the root's own row first").replace(
    "for other in range(world_size):\n"
    "    if other == root:\n"
    "        rows[root] = x\n"
    "    else:\n"
    "        dist.recv(rows[other], src=other)",
    "others = [other for other in range(world_size) if other != root]\n"
    "rows[0] = x\n"
    "for row, other in enumerate(others, 1):\n"
    "    dist.recv(rows[row], src=other)",
)
wrong("returns-a-list", "a list: return one tensor").replace("for other", "rows = list(rows)\nfor other")
wrong("returns-its-own-everywhere", "Only the root").body("return x")
wrong("sends-to-rank-0", "send to itself").replace("dist.send(x, dst=root)", "dist.send(x, dst=0)")
right("from-whoever-comes").function("""
    if rank != root:
        dist.send(x, dst=root)
        return None
    got, rows = torch.empty_like(x), {root: x}
    for _ in range(world_size - 1):
        source = dist.recv(got)
        rows[source] = got.clone()
    return torch.stack([rows[r] for r in range(world_size)])
""")

wrong, right = ANSWERS.to("reduce-by-hand")
wrong("forgot-to-add", "each one replaced the one before").replace("total += arrived", "total.copy_(arrived)")
wrong("added-twice", "the root's own tensor twice").replace("for other", "total += x\nfor other")
wrong("averages", "the mean").replace("return total", "total /= world_size\nreturn total")
wrong("never-adds", "nothing was added to it").replace("total += arrived", "pass")
wrong("adds-into-the-input", "must stay as it was").replace("for other", "total = x\nfor other")
wrong("forgets-itself", "the sum of the others").replace("for other", "total.zero_()\nfor other")
wrong("counts-to-four", "What usually causes this here", hidden=True).replace(
    "for other in range(world_size):", "for other in range(min(world_size, 4)):"
)
wrong("adds-in-float32", "a different dtype", hidden=True).replace("for other", "total = total.float()\nfor other")
right("adds-in-batches").replace("if other != root:", "if other == root: continue").replace(
    "            dist.recv(arrived, src=other)", "        dist.recv(arrived, src=other)"
).replace("            total += arrived", "        total = total + arrived")

wrong, _ = ANSWERS.to("predict-unrooted")
wrong("whole-sum-everywhere", "one chunk of it").replace("cut(total, world_size)", "[total for _ in held]")
wrong("keeps-its-own-chunks", "rank r gets chunk r from every rank").replace(
    "for source in chunks for number in source[rank]]", "for number in chunks[rank][rank]]"
)
wrong("moves-nothing", "nothing was moved").replace(
    "[[number for source in chunks for number in source[rank]] for rank in range(world_size)]",
    "[list(numbers) for numbers in held]",
)
wrong("leaves-chunks-nested", "put their numbers into one list").replace(
    "[number for source in chunks for number in source[rank]]", "[source[rank] for source in chunks]"
)
wrong("averages", "the mean").replace(
    "[list(total) for _ in range(world_size)]", "[[t / world_size for t in total] for _ in held]"
)

wrong, _ = ANSWERS.to("call-unrooted")
wrong("gathers-on-rank-0", "called gather", caught_by="traffic").replace(
    "dist.all_gather(parts, x)",
    "dist.gather(x, parts if rank == 0 else None, dst=0)\nfor part in parts:\n    dist.broadcast(part, src=0)",
)
wrong("averages", "the mean").replace("dist.all_reduce(received)", "dist.all_reduce(received, op=dist.ReduceOp.AVG)")
wrong("overwrites-its-input", "must stay as it was").replace("received = x.clone()", "received = x")
wrong("output-and-input-swapped", "rank 3 returned", varies=True).replace(
    "dist.all_to_all_single(received, x)", "dist.all_to_all_single(x.clone(), received)"
)
wrong("reduces-to-rank-0", "called reduce", caught_by="traffic").replace(
    "dist.all_reduce(received)", "dist.reduce(received, dst=0)\ndist.broadcast(received, src=0)"
)

wrong, _ = ANSWERS.to("all-gather-from-rooted")
wrong("forgets-the-broadcast", "rank 0 called gather", caught_by="traffic").replace(
    "dist.broadcast(everything, src=0)", "pass"
)
wrong("forgets-the-gather", "gather before you broadcast").replace("dist.gather(x, rows, dst=0)", "everything[:] = x")
wrong("uses-all-gather", "called all_gather", caught_by="traffic").body("dist.all_gather(list(everything), x)")
wrong("one-long-tensor", "one long tensor").replace("return", "everything = everything.reshape(-1)\nreturn")
wrong("rank-0-alone-broadcasts", "every rank must call both").replace(
    "dist.broadcast(everything, src=0)", "if rank == 0:\n    dist.broadcast(everything, src=0)"
)

wrong, _ = ANSWERS.to("all-reduce-from-halves")
wrong("keeps-its-own", "nothing was added to it").function("return x.clone()")
wrong("keeps-the-padding", "cut it off").replace("torch.cat(chunks)[: x.numel()].reshape(x.shape)", "torch.cat(chunks)")
wrong("loses-the-shape", "without its shape").replace(".reshape(x.shape)", "")
wrong("stops-after-the-first-half", "the second half").replace("return torch.cat", "return mine\nreturn torch.cat")
wrong("first-half-alone", "your chunk of the sum, P times").replace(
    "dist.all_gather(chunks, mine)", "chunks = [mine] * world_size"
)
wrong("never-copies-x", "never copied into `padded`").replace("padded[: x.numel()] = x.reshape(-1)", "pass")
wrong("averages", "the mean").replace("dist.all_gather", "mine /= world_size\ndist.all_gather")
wrong("reduces-twice", "P times the sum").replace("dist.all_gather", "mine *= world_size\ndist.all_gather")
wrong("gathers-whole-tensors", "called all_gather", caught_by="traffic").body("""
    padded[: x.numel()] = x.reshape(-1)
    everything = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(everything, padded)
    chunks = list(torch.stack(everything).sum(0).to(x.dtype).chunk(world_size))
""")
wrong("float32-buffers", "a different dtype", hidden=True).replace(
    "mine = torch.empty(size, dtype=x.dtype)", "padded = padded.float()\nmine = torch.empty(size)"
)

wrong, _ = ANSWERS.to("distributed-transpose")
wrong("transposes-its-own-band", "nothing was exchanged").body("return band.T.contiguous()")
wrong("forgets-inside-a-block", "not transposed inside").replace("[block.T for block in blocks]", "blocks")
wrong("one-under-the-other", "put them side by side").replace(
    "torch.cat(list(arrived), dim=1)", "torch.cat(list(arrived))"
)
wrong("reshapes", "the right numbers in the wrong order").replace(
    "torch.cat(list(arrived), dim=1)", "arrived.reshape(-1, world_size * len(band))"
)
wrong("gathers-everything", "called all_gather", caught_by="traffic").body("""
    everything = [torch.empty_like(band) for _ in range(world_size)]
    dist.all_gather(everything, band)
    return torch.cat(everything).T.chunk(world_size)[rank].contiguous()
""")
wrong("float32-buffers", "a different dtype", hidden=True).replace(
    "torch.empty_like(outgoing)", "torch.empty_like(outgoing, dtype=torch.float32)"
).replace("dist.all_to_all_single(arrived, outgoing)", "dist.all_to_all_single(arrived, outgoing.float())")

wrong, _ = ANSWERS.to("dual-of")
wrong("opposites-by-name", "the dual of broadcast is not all_reduce").replace('"reduce"', '"all_reduce"')
wrong("everything-is-its-own", "the dual of broadcast is not broadcast").body("return collective")
wrong("scatter-to-reduce-scatter", "the sizes do not even fit").replace('"gather"', '"reduce_scatter"')
wrong("one-way-only", "the dual of gather is not gather").replace(
    "{**dict(pairs), **{right: left for left, right in pairs}}", "dict(pairs)"
)
wrong("with-hyphens", "one of the eight names").replace(
    "both_ways.get(collective, collective)", 'both_ways.get(collective, collective).replace("_", "-")'
)

wrong, _ = ANSWERS.to("global-statistics")
wrong("mean-of-means", "the mean of means").body("""
    mean = shard.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)
""")
wrong("divides-by-world-size", "divide by how many numbers").replace("total / count", "total / world_size")
wrong("divides-by-its-own-length", "the lengths must be summed too").replace("total / count", "total / shard.numel()")
wrong("sums-the-products", "the products were summed").replace(
    "dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)", "dist.all_reduce(product)"
)
wrong("no-exchange", "nothing was exchanged").body("mean = shard.mean()")
wrong("maximum-from-zero", "returned", hidden=True).replace(
    "dist.all_reduce(largest,", "largest = largest.clamp(min=0)\ndist.all_reduce(largest,"
)

wrong, _ = ANSWERS.to("launch-then-wait")
wrong("forgot-wait", "never waited", caught_by="traffic").replace("handle.wait()", "pass")
wrong("waits-at-once", "before it had started the last one", caught_by="traffic").replace(
    "handles = [dist.all_reduce(x, async_op=True) for x in sums]",
    "handles = []\nfor x in sums:\n    dist.all_reduce(x, async_op=True).wait()",
)
wrong("blocks", "Pass async_op=True", caught_by="traffic").replace(
    "handles = [dist.all_reduce(x, async_op=True) for x in sums]",
    "handles = []\nfor x in sums:\n    dist.all_reduce(x)",
)
wrong("waits-for-the-last", "started an asynchronous all_reduce and never waited for it", caught_by="traffic").replace(
    "for handle in handles:\n    handle.wait()", "handles[-1].wait()"
)
wrong("starts-nothing", "not started, or not waited for").replace(
    "handles = [dist.all_reduce(x, async_op=True) for x in sums]", "handles = []"
)
wrong("three-tensors", "called all_reduce, all_reduce, all_reduce", caught_by="traffic", hidden=True).replace(
    "for x in sums]", "for x in sums[:3]]"
)

wrong, _ = ANSWERS.to("all-reduce-any-view")
wrong("hands-in-the-view", "a view with gaps").body("dist.all_reduce(view)")
wrong("forgets-to-copy-back", "copy the sum back").replace("view.copy_(packed)", "view = packed")
wrong("stays-in-the-copy", "went into a copy and stayed there").replace("view.copy_(packed)", "pass")
wrong("averages", "the mean").replace("view.copy_(packed)", "view.copy_(packed / world_size)")
wrong("flattens-wrong", "returned", hidden=True).replace(
    "view.copy_(packed)",
    "view.copy_(packed.T.reshape(view.shape) if view.dim() == 2 and view.shape[0] > 1 else packed)",
)
wrong("replaces-the-views-memory", "did not write it into `view`").replace("view.copy_(packed)", "view.data = packed")
wrong("number-by-number", "One call of each").body("""
    for one in view:
        number = one.clone()
        dist.all_reduce(number)
        one.copy_(number)
""")

wrong, _ = ANSWERS.to("agree-or-explain")
wrong("only-the-odd-one-raises", "Every rank must raise").replace("if odd:", "if everyone[rank] != everyone[0]:")
wrong("looks-at-the-size-only", "raised no ValueError", hidden=True).replace(
    "everyone[r] != everyone[0]]", "sorted(everyone[r]) != sorted(everyone[0])]"
)
wrong("names-everybody", "which agrees with rank 0").replace(
    "if everyone[r] != everyone[0]]\nif odd:", "]\nif len(set(everyone)) > 1:"
)
wrong("speaks-for-itself", "the same sentence on every rank").replace(
    "f\"{', '.join(odd)}, but rank 0 brought {everyone[0]}\"", 'f"rank {rank} brought {mine}"'
)
wrong("names-the-first-only", "to be named").replace("{', '.join(odd)}", "{odd[0]}")
wrong("never-asks", "went on to all_reduce").body("pass")
wrong("pairs-the-wrong-ranks", "rank 0 to be named").replace("odd =", "everyone.reverse()\nodd =")
