"""Answers to lesson 01, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("broadcast-by-hand")
wrong("forgets-to-receive", "finished without receiving it").replace("dist.recv(received, src=root)", "pass")
wrong("only-rank-0", "rank 0's tensor").replace("if rank", "root = 0\nif rank")
wrong("four-ranks", "your own tensor", hidden=True).replace(
    "if rank", "if world_size not in (2, 3, 4):\n    return x\nif rank"
)
wrong("uses-the-library", "your function calls broadcast", caught_by="traffic").body(
    "dist.broadcast(received, src=root)"
)
wrong("receives-into-its-input", "must stay as it was").replace("if rank", "received = x\nif rank")
wrong("forgets-its-own-tensor", "the root returns its own numbers too").replace("x.clone()", "torch.zeros_like(x)")
wrong("keeps-what-recv-returns", "the sender's rank").replace("dist.recv(rec", "received = dist.recv(rec")
right("all-sends-at-once").body("""
    others = [other for other in range(world_size) if other != root]
    calls = [dist.isend(x, dst=other) for other in others] if rank == root else [dist.irecv(received, src=root)]
    for handle in calls:
        handle.wait()
""")

wrong, _ = ANSWERS.to("scatter-by-hand")
KEEPS = "mine.copy_(chunks[root])"
wrong("forgets-its-own", "nothing was written into it").replace(KEEPS, "pass")
wrong("off-by-one", "That is chunk 1: rank 2 gets chunk 2").replace(KEEPS, "mine = chunks[root - 1]")
wrong("first-chunk-to-all", "chunk 0: rank 3 gets").replace("chunks[other]", "chunks[0]")
everything = wrong("sends-everything-to-small-buffers", "need the same shape and dtype").replace(
    "chunks[other]", "torch.cat(chunks)"
)
wrong("sends-everything", "4 times the bytes", caught_by="traffic").like(everything).replace(
    "dist.recv(mine, src=root)",
    "all_chunks = mine.repeat(world_size)\ndist.recv(all_chunks, src=root)\n"
    "mine.copy_(all_chunks.chunk(world_size)[rank])",
)
wrong("wrong-dtype", "rounded to float32").replace(KEEPS, "mine.copy_(chunks[root])\nmine = mine.float()")
wrong("rebinds-its-buffer", "its `mine` still holds").replace(KEEPS, "mine = chunks[root]")
wrong("sends-all-chunks-in-turn", "as if each one replaced the one before").replace(
    "dist.send(chunks[other], dst=other)", "[dist.send(chunk, dst=other) for chunk in chunks]"
).replace("dist.recv(mine, src=root)", "[dist.recv(mine, src=root) for _ in range(world_size)]")
wrong("leaves-out-the-roots-place", "has a place in it").replace("chunks[other]", "chunks[other - (other > root)]")
wrong("counts-from-the-root", "whoever is the root").replace(
    "chunks[other]", "chunks[(other - root) % world_size]"
).replace("chunks[root]", "chunks[0]")
wrong("uses-the-library", "only takes chunks of one size").body("dist.scatter(mine, chunks, src=root)")
wrong("uses-up-the-list", "leave the list alone").replace(KEEPS, "mine.copy_(chunks[root])\nchunks.clear()")

wrong, right = ANSWERS.to("gather-by-hand")
wrong("receives-float32", "Give the tensor that receives the dtype").replace(", dtype=x.dtype", "")
wrong("one-long-tensor", "one long tensor").replace("return rows", "return rows.flatten()")
wrong("forgets-its-own-row", "never sent: copy it").replace("rows[root] = x", "pass")
wrong("one-buffer-for-all", "memory of its own").replace(
    "rows = torch.zeros(world_size, *x.shape, dtype=x.dtype)", "rows, arrived = [x] * world_size, torch.empty_like(x)"
).replace("recv(rows[other], src=other)", "recv(arrived, src=other); rows[other] = arrived").replace(
    "return rows", "return torch.stack(rows)"
)
wrong("receives-from-anybody", "recv without src takes a message from any rank").replace(", src=other", "")
wrong("own-row-last", "belongs in row r").replace(
    "return rows", "return torch.cat([rows[:root], rows[root + 1 :], rows[root : root + 1]])"
)
wrong("returns-a-list", "a list: return one tensor").replace("for other", "rows = list(rows)\nfor other")
wrong("returns-its-own-everywhere", "Only the root").body("return x")
wrong("sends-to-rank-0", "send to itself").replace("dist.send(x, dst=root)", "dist.send(x, dst=0)")
wrong("stacks-along-the-end", "the ranks come first").replace("return rows", "return torch.stack(list(rows), dim=-1)")
right("from-whoever-comes").replace("rows = torch", "got = torch.empty_like(x)\nrows = torch").replace(
    "dist.recv(rows[other], src=other)", "source = dist.recv(got); rows[source] = got"
)

wrong, right = ANSWERS.to("reduce-by-hand")
wrong("forgot-to-add", "each one replaced the one before").replace("total += arrived", "total.copy_(arrived)")
wrong("added-twice", "the root's own tensor twice").replace("for other", "total += x\nfor other")
wrong("averages", "the mean").replace("return total", "total /= world_size\nreturn total")
wrong("never-adds", "nothing was added to it").replace("total += arrived", "pass")
wrong("adds-into-the-input", "must stay as it was").replace("for other", "total = x\nfor other")
wrong("forgets-itself", "the sum of the others").replace("for other", "total.zero_()\nfor other")
wrong("counts-to-four", "Worth checking", hidden=True).replace(
    "for other in range(world_size):", "for other in range(min(world_size, 4)):"
)
wrong("adds-in-float32", "rounded to float32").replace("for other", "total = total.float()\nfor other")
wrong("adds-before-it-receives", "add after each receive").replace("for other", "arrived.zero_()\nfor other").replace(
    "dist.recv(arrived, src=other)\ntotal += arrived", "total += arrived\ndist.recv(arrived, src=other)"
)
wrong("adds-what-arrived-before", "with another rank's tensor twice").replace(
    "            total += arrived", "        total += arrived"
)
wrong("adds-after-the-loop", "add after each receive").replace(
    "            total += arrived", "            pass"
).replace("return total", "total += arrived\nreturn total")
right("adds-in-batches").replace("if other != root:", "if other == root: continue").replace(
    "            dist.recv(arrived, src=other)", "        dist.recv(arrived, src=other)"
).replace("            total += arrived", "        total = total + arrived")

wrong, right = ANSWERS.to("grid-sums")
MINE = "next(group for group, team in zip(groups, teams) if rank in team)"
wrong("forgets-the-group", "sum over all ranks: give each call its group.").replace(", group=mine)", ")")
wrong("swaps-the-two", "the row comes first").replace("tuple(sums)", "tuple(reversed(sums))")
wrong("columns-as-rows", "how many ranks are in one row").replace(
    "range(start, start + columns) for start in range(0, world_size, columns)",
    "range(start, start + world_size // columns) for start in range(0, world_size, world_size // columns)",
)
wrong("fills-columns-first", "filled column by column").replace(
    "range(start, start + columns) for start in range(0, world_size, columns)",
    "range(row, world_size, world_size // columns) for row in range(world_size // columns)",
).replace(
    "range(c, world_size, columns) for c in range(columns)",
    "range(c, c + world_size // columns) for c in range(0, world_size, world_size // columns)",
)
wrong("columns-of-neighbours", "are `columns` apart").replace(
    "[range(c, world_size, columns) for c in range(columns)]",
    "[range(s, s + world_size // columns) for s in range(0, world_size, world_size // columns)]",
)
wrong("last-group-of-each-kind", "with a group that the rank isn't in", varies=True).replace(MINE, "groups[-1]")
wrong("as-many-rows-as-columns", "There are world_size // columns rows").replace(
    "range(0, world_size, columns)", "range(0, columns * columns, columns)"
)
wrong("only-its-own-groups", "new_group", varies=True).replace(
    "groups = [dist.new_group(list(team)) for team in teams]",
    "groups = [dist.new_group(list(team)) if rank in team else None for team in teams]",
)
wrong("averages", "the mean").replace("group=mine", "op=dist.ReduceOp.AVG, group=mine")
wrong("adds-nothing", "nothing was added to it").replace("dist.all_reduce(total, group=mine)", "pass")
wrong("adds-into-x", "a copy of `x` of its own").replace("total = x.clone()", "total = x")
wrong("sums-over-all-first", "Only those whose tensors belong", caught_by="traffic").replace(
    "sums = []", "sums = []\ndist.all_reduce(x.clone())"
)
by_rows = wrong("steps-by-the-rows", "those of a column are `columns` apart").replace(
    "range(c, world_size, columns)", "range(c, world_size, world_size // columns)"
)
wrong("keeps-the-last-of-its-groups", "its column is ranks").like(by_rows).replace(
    MINE,
    "[group for group, team in zip(groups, teams) if rank in team][-1]",
)
wrong("looks-up-columns-by-row", "a group that it is not in").replace(MINE, "groups[rank // columns]")
wrong("columns-of-too-few", "A list for new_group is empty", varies=True).replace(
    "range(c, world_size", "range(c * columns, world_size"
)
wrong("column-first", "in the wrong order: the row comes first", caught_by="traffic").replace(
    "range(columns)]):", "range(columns)])[::-1]:"
).replace("tuple(sums)", "tuple(sums[::-1])")
right("with-subgroups").replace("groups = [dist.new_group(list(team)) for team in teams]", "pass").replace(
    MINE,
    "dist.new_subgroups_by_enumeration([list(team) for team in teams])[0]",
)

wrong, _ = ANSWERS.to("all-reduce-from-halves")
wrong("keeps-its-own", "nothing was added to it").function("return x.clone()")
wrong("keeps-the-padding", "cut it off").replace("torch.cat(chunks)[: x.numel()].reshape(x.shape)", "torch.cat(chunks)")
wrong("loses-the-shape", "without its shape").replace(".reshape(x.shape)", "")
wrong("stops-after-the-first-half", "the second half").replace("return torch.cat", "return mine\nreturn torch.cat")
wrong("first-half-alone", "your chunk of the sum, P times").replace(
    "dist.all_gather(chunks, mine, group=group)", "chunks = [mine] * world_size"
)
wrong("never-copies-x", "never copied into `padded`").replace("padded[: x.numel()] = x.reshape(-1)", "pass")
wrong("averages", "the mean").replace("dist.all_gather", "mine /= world_size\ndist.all_gather")
wrong("reduces-twice", "P times the sum").replace("dist.all_gather", "mine *= world_size\ndist.all_gather")
wrong("gathers-whole-tensors", "called all_gather", caught_by="traffic").body("""
    everything = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everything, x.contiguous(), group=group)
    return torch.stack(everything).sum(0).to(x.dtype)
""")
wrong("float32-buffers", "rounded to float32").replace(
    "mine = torch.empty(size, dtype=x.dtype)", "padded = padded.float()\nmine = torch.empty(size)"
)
wrong("rounds-down", "round the size of a chunk up").replace(
    "padded = torch", "size = x.numel() // world_size\npadded = torch"
).replace("padded[: x.numel()] = x.reshape(-1)", "padded.copy_(x.reshape(-1)[: len(padded)])").replace(
    ".reshape(x.shape)", ""
)
wrong("pads-each-chunk", "pad the flat tensor once").replace(
    "list(padded.chunk(world_size))",
    "[torch.cat([c, c.new_zeros(size - len(c))]) for c in x.reshape(-1).tensor_split(world_size)]",
)
wrong("rotates-the-chunks", "in the wrong places").replace(
    "list(padded.chunk(world_size))", "(2 * list(padded.chunk(world_size)))[dist.get_rank(group) :][:world_size]"
)
wrong("sums-in-float64", "keep the dtype of `x`", caught_by="traffic").replace(
    "dtype=x.dtype", "dtype=torch.double"
).replace(".reshape(x.shape)", ".reshape(x.shape).to(x.dtype)")
wrong("pads-in-front", "the padding comes last").replace("padded[: x.numel()]", "padded[len(padded) - x.numel() :]")
wrong("forgets-the-group", "This reduce_scatter ran on all 4 ranks").replace(", group=group)", ")")
wrong("gathers-in-the-world", "This all_gather ran on all 4 ranks, not in the group of 2").replace(
    "dist.all_gather(chunks, mine, group=group)", "dist.all_gather(chunks, mine)"
)
wrong("gathers-its-own-chunk", "each rank's own chunk").replace(
    "dist.all_gather(chunks, mine",
    "mine = padded.chunk(world_size)[dist.get_rank(group)]\ndist.all_gather(chunks, mine",
)
wrong("sums-over-the-world", "the sum over all ranks").replace(
    "padded = torch",
    "group = None\nworld_size = dist.get_world_size()\nsize = -(-x.numel() // world_size)\npadded = torch",
)
wrong("does-not-pad", "All chunks have the same size").replace(
    "list(padded.chunk(world_size))", "list(x.reshape(-1).split(size))"
)
wrong("numbers-chunks-by-world", "numbered within the group").replace(
    "mine = torch.empty(size, dtype=x.dtype)", "mine = padded.chunk(world_size)[dist.get_rank()].clone()"
)
wrong("pads-when-it-divides", "nothing is to be padded", caught_by="traffic").replace(
    "padded = torch", "size = x.numel() // world_size + 1\npadded = torch"
)

wrong, _ = ANSWERS.to("distributed-transpose")
JOINED = "torch.cat(list(arrived), dim=1)"
wrong("transposes-its-own-band", "nothing was exchanged").body("return band.T.contiguous()")
wrong("forgets-inside-a-block", "aren't transposed inside").replace("[block.T for block in blocks]", "blocks")
wrong("one-under-the-other", "put them side by side").replace(JOINED, "torch.cat(list(arrived))")
wrong("reshapes", "and it mixes them").replace(JOINED, "arrived.reshape(-1, world_size * len(band))")
wrong("reshapes-inside-a-block", "which doesn't transpose it").replace("block.T", "block.reshape(-1, len(band))")
wrong("leaves-it-as-columns", "each block must be transposed inside").replace("block.T", "block").replace(
    JOINED, "torch.cat(list(arrived))"
)
wrong("receives-blocks-like-its-own", "both tensors of the call").replace(
    "torch.empty_like(outgoing)", "torch.empty(world_size, len(band), band.shape[1] // world_size, dtype=band.dtype)"
)
wrong("never-joins", "side by side").replace(JOINED, "arrived")
wrong("hands-in-a-view", "Gather the numbers of each block in memory").replace(
    "torch.stack([block.T for block in blocks])", "band.T"
).replace("torch.empty_like(outgoing)", "torch.empty(outgoing.shape, dtype=band.dtype)")
wrong("swaps-the-blocks", "is the s-th from the left").replace("list(arrived), dim=1", "list(arrived)[::-1], dim=1")
wrong("hands-in-rows", "bring together the columns for each rank").body("""
    sent = band.contiguous()
    arrived = torch.empty_like(sent)
    dist.all_to_all_single(arrived, sent)
    return arrived.reshape(world_size * len(band), -1).T.contiguous()
""")
wrong("gathers-everything", "called all_gather", caught_by="traffic").body("""
    everything = [torch.empty_like(band) for _ in range(world_size)]
    dist.all_gather(everything, band)
    return torch.cat(everything).T.chunk(world_size)[rank].contiguous()
""")
wrong("float32-buffers", "rounded to float32").replace(
    "torch.empty_like(outgoing)", "torch.empty_like(outgoing, dtype=torch.float32)"
).replace("dist.all_to_all_single(arrived, outgoing)", "dist.all_to_all_single(arrived, outgoing.float())")

wrong, _ = ANSWERS.to("dual-of")
wrong("opposites-by-name", "the dual of broadcast is not all_reduce").replace('"reduce"', '"all_reduce"')
wrong("everything-is-its-own", "but broadcast adds nothing").body("return collective")
wrong("scatter-to-reduce-scatter", "so backwards there is nothing to add").replace('"gather"', '"reduce_scatter"')
wrong("reversed-without-adding", "but gather puts tensors side by side").replace(
    '"reduce"), ("scatter", "gather"', '"gather"), ("scatter", "reduce"'
)
wrong("one-way-only", "Duals come in pairs").replace(
    "{**dict(pairs), **{right: left for left, right in pairs}}", "dict(pairs)"
)
wrong("scatter-as-its-own", "only moves numbers").replace('("scatter", "gather"), ', "")
wrong("with-hyphens", "one of the eight names").replace(
    "both_ways.get(collective, collective)", 'both_ways.get(collective, collective).replace("_", "-")'
)

wrong, _ = ANSWERS.to("global-statistics")
wrong("mean-of-means", sentence="the mean of means: a short shard counts as much as a long one").replace(
    "shard.sum()", "shard.mean()"
).replace("total / count", "total / dist.get_world_size(group)")
wrong(
    "divides-by-world-size", sentence="the sum divided by the number of ranks: divide by how many numbers there are"
).replace("total / count", "total / dist.get_world_size(group)")
wrong(
    "takes-all-for-equally-long",
    sentence="the sum divided by P times your own shard's length: the lengths differ, so sum them",
).replace("total / count", "total / (shard.numel() * dist.get_world_size(group))")
wrong(
    "divides-by-its-own-length", sentence="the sum divided by your own shard's length: the lengths must be summed too"
).replace("total / count", "total / shard.numel()")
wrong(
    "counts-everyone", sentence="the sum divided by how many numbers ALL ranks have: give each call its group"
).replace("dist.all_reduce(count, group=group)", "dist.all_reduce(count)")
wrong("sums-the-products", "except for the product, which is the sum of the ranks'").replace(
    "dist.all_reduce(product, op=dist.ReduceOp.PRODUCT, group=group)", "dist.all_reduce(product, group=group)"
)
wrong("sums-the-means", sentence="the sum of the means: divide the sum of all numbers by how many there are").replace(
    "total / count", "total"
).replace("shard.sum()", "shard.mean()")
wrong("forgets-the-minimum", "except for the min, which is your own shard's").replace(
    "dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=group)", "pass"
)
wrong("smallest-of-all-ranks", "that of ALL ranks").replace("op=dist.ReduceOp.MIN, group=group", "op=dist.ReduceOp.MIN")
wrong("swaps-min-and-max", "the largest of the ranks', and the max, which is").replace(
    "dist.ReduceOp.MIN", "dist.ReduceOp.BAND"
).replace("dist.ReduceOp.MAX", "dist.ReduceOp.MIN").replace("dist.ReduceOp.BAND", "dist.ReduceOp.MAX")
wrong("one-operation-for-all", "needs an operation of its own").body("""
    four = torch.stack([shard.mean(), smallest, largest, product])
    dist.all_reduce(four, op=dist.ReduceOp.AVG, group=group)
    mean, smallest, largest, product = four
""")
wrong("counts-in-float32", "with the mean rounded to float32").replace(
    "total / count", "(total.float() / count.float()).to(shard.dtype)"
)
wrong("in-another-order", "in the wrong order").replace("[mean, smallest, largest", "[mean, largest, smallest")
wrong("no-exchange", sentence="your own shard's result: nothing was exchanged").body("mean = shard.mean()")
wrong("forgets-the-group", sentence="the result over all ranks: give each call its group").replace(
    ", group=group)", ")"
)
wrong("multiplies-by-logarithms", "the logarithm of a negative one").replace(
    "shard.prod()", "shard.log().sum()"
).replace("op=dist.ReduceOp.PRODUCT, group=group)", "group=group)\nproduct = product.exp()")
wrong("maximum-from-zero", "which is 0 (").replace(
    "dist.all_reduce(largest,", "largest = largest.clamp(min=0)\ndist.all_reduce(largest,"
)
wrong("gathers-for-the-world", "one place for each rank of the group").replace(
    "dist.all_reduce(count, group=group)",
    "all_ = [None] * dist.get_world_size(); dist.all_gather_object(all_, count, group=group); count = sum(all_)",
)

wrong, _ = ANSWERS.to("launch-then-wait")
wrong("works-afterwards", "done after the last wait", caught_by="time").replace(
    "largest = max(x.max() for x in tensors)", "pass"
).replace("return sums, largest", "return sums, max(x.max() for x in tensors)")
wrong("works-first", "done before all sums were started", caught_by="time").replace(
    "    largest = max(x.max() for x in tensors)", "    pass"
).replace("sums = [", "largest = max(x.max() for x in tensors)\nsums = [")
wrong("waits-at-once", "before it had started the last one", caught_by="traffic").replace(
    "handles = [dist.all_reduce(x, async_op=True) for x in sums]",
    "handles = []\nfor x in sums:\n    dist.all_reduce(x, async_op=True).wait()",
)
wrong("waits-for-the-last", "started an asynchronous all_reduce and never waited for it", caught_by="traffic").replace(
    "for handle in handles:\n    handle.wait()", "handles[-1].wait()"
)
wrong("starts-nothing", "not started, or not waited for").replace(
    "handles = [dist.all_reduce(x, async_op=True) for x in sums]", "handles = []"
)
wrong("largest-of-the-sums", "take it from `tensors`").replace(
    "return sums, largest", "return sums, max(x.max() for x in sums)"
)
wrong("largest-of-the-first", "look at all of them").replace("max(x.max() for x in tensors)", "tensors[0].max()")
wrong("largest-of-all-ranks", "each rank wants its own").replace(
    "return sums", "dist.all_reduce(largest, op=dist.ReduceOp.MAX)\nreturn sums"
)
wrong("sums-the-first-twice", "once for each tensor", caught_by="traffic").replace(
    "for x in sums]", "for x in [*sums, sums[0].clone()]]"
)
wrong("sums-without-copies", "let the calls sum copies").replace("x.clone()", "x")
wrong("looks-in-the-copies", "look in `tensors`").replace("for x in tensors)", "for x in sums)")
wrong("largest-distance-from-zero", "a negative number is small").replace("x.max()", "x.abs().max()")
wrong("starts-at-zero", "don't start the search at 0").replace("max(x", "max(0, *(x").replace("tensors)", "tensors))")
wrong("three-tensors", "called all_reduce 3 times", caught_by="traffic", hidden=True).replace(
    "for x in sums]", "for x in sums[:3]]"
)

wrong, _ = ANSWERS.to("all-reduce-any-view")
wrong("hands-in-the-view", "a view with gaps").body("dist.all_reduce(view)")
wrong("forgets-to-copy-back", "write the sum into it").replace("view.copy_(packed)", "view = packed")
wrong("stays-in-the-copy", "went into a copy and stayed there").replace("view.copy_(packed)", "pass")
wrong("adds-the-sum", "replaces what was in `view`").replace("view.copy_(packed)", "view.add_(packed)")
wrong("flattens-wrong", "in some places only").replace(
    "view.copy_(packed)",
    "view.copy_(packed.T.reshape(view.shape) if view.dim() == 2 and view.shape[0] > 1 else packed)",
)
wrong("clones-the-order-too", "laid out differently in memory").replace("view.contiguous()", "view.clone()")
wrong("number-by-number", "One call is enough").body(
    "for one in view:\n    number = one.clone()\n    dist.all_reduce(number)\n    one.copy_(number)"
)


wrong, _ = ANSWERS.to("agree-or-explain")
wrong("only-the-odd-one-raises", "Some ranks raised").replace("if odd:", "if everyone[rank] != everyone[0]:")
wrong("looks-at-the-size-only", "compare all of that", hidden=True).replace(
    "everyone[r] != everyone[0]]", "sorted(everyone[r]) != sorted(everyone[0])]"
)
wrong("speaks-for-itself", "only from what was gathered").replace(
    "f\"{', '.join(odd)}, but rank 0 brought {everyone[0]}\"", 'f"rank {rank} brought {mine}"'
)
wrong("compares-with-its-own", "not with `mine`").replace("!= everyone[0]]", "!= mine]")
wrong("compares-neighbours", "which agrees with rank 0").replace("!= everyone[0]]", "!= everyone[max(0, r - 1)]]")
wrong("names-the-first-only", "to be named").replace("{', '.join(odd)}", "{odd[0]}")
wrong("raises-something-else", "Make it a ValueError").replace("raise ValueError", "raise RuntimeError")
wrong("never-asks", "the same shape and dtype").body("pass")
wrong("pairs-the-wrong-ranks", "rank 0 to be named").replace("odd_ranks =", "everyone.reverse()\nodd_ranks =")

wrong, right = ANSWERS.to("uneven-all-gather")
wrong("keeps-the-padding", "cut each to its own length", caught_by="score").replace(
    "torch.cat([row[:length] for row, length in zip(rows, lengths)])", "torch.cat(rows)"
)
wrong("returns-a-list", "concatenate the tensors", caught_by="score").replace(
    "torch.cat([row[:length] for row, length in zip(rows, lengths)])",
    "[row[:length].clone() for row, length in zip(rows, lengths)]",
)
wrong("pads-too-much", "times par", caught_by="score").replace("max(lengths)", "2 * max(lengths)")
wrong("cuts-to-the-shortest", "pad to the longest", caught_by="score").replace(
    "x.new_zeros(max(lengths))\npadded[: len(x)] = x", "x[: min(lengths)].clone()"
)
wrong("float32-result", "rounded to float32", caught_by="score").replace("lengths)])", "lengths)]).float()")
wrong("cuts-by-its-own-length", "cut row r to lengths[r]", caught_by="score").replace("row[:length]", "row[: len(x)]")
wrong("drops-zeros", "a zero may be one of the numbers", caught_by="score").replace(
    "torch.cat([row[:length] for row, length in zip(rows, lengths)])", "torch.cat([row[row != 0] for row in rows])"
)
wrong("longest-first", "and so on", caught_by="score").replace(
    "zip(rows, lengths)]", "sorted(zip(rows, lengths), key=lambda pair: -pair[1])]"
)
wrong("takes-the-lessons-lengths", "use the argument `lengths`", caught_by="score").replace(
    "zip(rows, lengths)", "zip(rows, LENGTHS)"
)
wrong("exchanges-nothing", "nothing was exchanged", caught_by="score").function("return x.clone()")
wrong("for-eight-ranks", "times par", caught_by="score", hidden=True).replace(
    "max(lengths)", "max(lengths) if world_size == 8 else 2 * max(lengths)"
)
shares = right("shares-out-first")
shares.function("""
    total = sum(lengths)
    size = -(-total // world_size)  # each rank's equal share of everything
    starts = [sum(lengths[:source]) for source in range(world_size)]

    def sends(source, owner):
        return max(0, min(starts[source] + lengths[source], (owner + 1) * size) - max(starts[source], owner * size))

    ranks, mine = range(world_size), x.new_zeros(size)
    arrive, leave = [sends(source, rank) for source in ranks], [sends(rank, owner) for owner in ranks]
    dist.all_to_all_single(mine[: sum(arrive)], x[: sum(leave)].clone(), arrive, leave)
    shares = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(shares, mine)
    return torch.cat(shares)[:total]
""")
wrong("rounds-shares-down", "round them up", caught_by="score").like(shares).replace(
    "-(-total // world_size)", "total // world_size"
)
