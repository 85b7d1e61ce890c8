"""Answers to lesson 12, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("axis-groups")
wrong("first-axis-innermost", sentence="the groups if the FIRST axis is innermost: here the last one is").body("""
    names = list(sizes)[::-1]
    grid = torch.arange(torch.Size(sizes.values()).numel()).view(*[sizes[n] for n in names])
    order = [i for i, n in enumerate(names) if n not in axes] + [i for i, n in enumerate(names) if n in axes]
    each = torch.Size(sizes[n] for n in names if n in axes).numel()
    return sorted(sorted(g) for g in grid.permute(order).reshape(-1, each).tolist())
""")
wrong(
    "other-axes", sentence="the groups along the other axes: ranks of a group differ on `axes` and agree on the others"
).replace("grid = torch", "axes = [n for n in sizes if n not in axes]; grid = torch")
wrong("first-group", sentence="only the group of rank 0: all groups are wanted").replace(
    "each).tolist())", "each).tolist())[:1]"
)
wrong("neighbours", sentence="cut into neighbouring ranks: only groups along the innermost axes lie like that").replace(
    "grid.permute(order)", "grid"
)
one_axis = wrong(
    "one-axis-at-a-time", sentence="the groups of each axis alone: ranks that differ on any of `axes` are in one group"
)
one_axis.body("""
    grid, groups = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values()), []
    for axis in axes:
        groups += grid.movedim(list(sizes).index(axis), -1).reshape(-1, sizes[axis]).tolist()
    return sorted(groups)
""")
wrong(
    "axes-in-their-order", sentence="with ranks in the order that `axes` gives: within a group they ascend", hidden=True
).body("""
    names = [n for n in sizes if n not in axes] + list(axes)
    grid = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values())
    each = torch.Size(sizes[n] for n in axes).numel()
    return sorted(grid.permute([list(sizes).index(n) for n in names]).reshape(-1, each).tolist())
""")
wrong(
    "first-of-the-axes",
    sentence="the groups along one of the axes alone: ranks that differ on any of `axes` are in one group",
).replace("grid = torch", "axes = axes[:1]; grid = torch")
wrong("axis-by-axis", same_as="one-axis-at-a-time").like(one_axis).replace("sorted(groups)", "groups")
wrong("last-of-the-axes", same_as="first-of-the-axes").replace("grid = torch", "axes = axes[-1:]; grid = torch")
right("by-coordinates").body("""
    from itertools import product
    groups = {}
    for rank, place in enumerate(product(*map(range, sizes.values()))):
        key = tuple(x for x, name in zip(place, sizes) if name not in axes)
        groups.setdefault(key, []).append(rank)
    return list(groups.values())
""")

wrong, right = ANSWERS.to("process-groups")
wrong("only-its-own", "new_group", varies=True).body("""
    mine = {}
    for name, groups in members.items():
        for ranks in groups:
            if rank in ranks:
                mine[name] = dist.new_group(ranks)
    return mine
""")
wrong("keeps-the-last", "that this rank isn't in: keep a group").replace("if rank in ranks:", "if True:")
wrong("first-members-alone", "no group of this name on this rank").replace("if rank in ranks:", "if rank == ranks[0]:")
wrong("groups-of-axes-as-lists", "no group of this name on this rank").replace(
    "mine[name] = group", "mine[name] = ranks"
)
wrong("everybody", "all ranks: give the members").replace("dist.new_group(ranks)", "dist.new_group()")
wrong("never-kept", "no group of this name").replace("mine[name] = group", "pass")
wrong("two-axes-only", "the group", hidden=True).replace("return mine", "return dict(list(mine.items())[:2])")
right("two-passes").body("""
    made = {name: [dist.new_group(ranks) for ranks in groups] for name, groups in members.items()}
    place = {name: [rank in ranks for ranks in groups].index(True) for name, groups in members.items()}
    return {name: made[name][place[name]] for name in members}
""")

wrong, right = ANSWERS.to("grid-step")
wrong("no-average", sentence="the result of this rank's own rows: average over the data axis").replace(
    "[*gradients, loss] if last else gradients", "[]"
)
wrong("sum-over-dp", sentence="the sum over the data axis: average over it").replace("ReduceOp.AVG", "ReduceOp.SUM")
wrong(
    "not-divided-by-m", sentence="added up over the microbatches: each one's mean is divided by num_microbatches"
).replace(" / num_microbatches if last", " if last")
wrong("divided-twice", sentence="divided by the size of the data axis once too often").replace(
    "group=dp_group)", "group=dp_group)\nx /= dp_size"
)
wrong(
    "without-f", sentence="without f: each tensor rank then knows only its own columns' share of x's gradient"
).replace("f(x) @ columns", "x @ columns")
wrong("without-g", sentence="without g: each tensor rank then has only its own rows' share of the sum").replace(
    "g(gelu(f(x) @ columns) @ rows)", "(gelu(f(x) @ columns) @ rows)"
)
wrong("loss-of-own-rows", same_as="no-average").replace("[*gradients, loss] if last else gradients", "gradients")
wrong("f-once", sentence="with f before the first pair alone: each pair of layers begins with f").replace(
    "for columns", "x = f(x)\nfor columns"
).replace("f(x) @ columns", "x @ columns")
wrong("loss-on-all", sentence="the loss, where None is wanted: the stage isn't the last one").replace(
    "return loss, gradients",
    "loss = loss if last else batch.new_zeros(())\ndist.all_reduce(loss, group=pp_group)\nreturn loss, gradients",
)
wrong("over-the-world", "lie along no axis", caught_by="traffic").replace(
    "return loss, gradients",
    "for x in gradients:\n    dist.all_reduce(x.clone())\nreturn loss, gradients",
)
wrong("over-tp-too", "reduced along tp too", caught_by="traffic").replace(
    "return loss, gradients",
    "for x in gradients:\n    dist.all_reduce(x.clone(), group=tp_group)\nreturn loss, gradients",
)
wrong("g-for-f", sentence="with f and g swapped: f comes before the columns, g after the rows").replace(
    "g(gelu(f(x) @ columns) @ rows)", "f(gelu(g(x) @ columns) @ rows)"
)
wrong("one-gelu-for-two-layers", sentence="without the gelu after g: each of the two matrices is a layer").replace(
    "gelu(g(gelu(f(x) @ columns) @ rows))", "g(gelu(f(x) @ columns) @ rows)"
)
wrong(
    "gelu-before-the-sum",
    sentence="with the second gelu before g: add up first, since gelu of a sum is not the sum of the gelus",
).replace("gelu(g(gelu(f(x) @ columns) @ rows))", "g(gelu(gelu(f(x) @ columns) @ rows))")
wrong(
    "rows-by-tp-rank", sentence="what you get if tensor ranks take different rows: all of them need chunk dp_rank"
).replace(
    "microbatches[number] if",
    "batch.chunk(dp_size)[dist.get_rank(tp_group) % dp_size].chunk(num_microbatches)[number] if",
)
wrong("always-the-first", sentence="with microbatch 0 each time: `number` says which one to take").replace(
    "microbatches[number]", "microbatches[0]"
)
wrong(
    "divided-by-m-twice",
    sentence="divided by too much: by the number of microbatches twice, or by that of all ranks. Take the mean over "
    "the data axis alone, of losses divided by num_microbatches once",
).replace("group=dp_group)", "group=dp_group)\nx /= num_microbatches")
wrong("divided-by-the-world", same_as="divided-by-m-twice").replace(
    "op=dist.ReduceOp.AVG, group=dp_group)", "group=dp_group)\nx /= dist.get_world_size()"
)
wrong(
    "each-stage-divides",
    sentence="what you get if every stage divides what it passes on: only the last one does, and only its loss",
).replace("mlp.loss_of(x) / num_microbatches if last else x", "(mlp.loss_of(x) if last else x) / num_microbatches")
wrong("mean-over-the-world", sentence="the mean over all ranks: only those along dp have the same weights").replace(
    "op=dist.ReduceOp.AVG, group=dp_group)", "op=dist.ReduceOp.AVG) if x is not loss else None"
)
wrong("added-along-tp", sentence="added up along tp too: these ranks have different columns and rows").replace(
    "return loss, gradients", "for x in gradients:\n    dist.all_reduce(x, group=tp_group)\nreturn loss, gradients"
)
wrong("mean-along-tp", sentence="the mean along tp: these ranks have different columns and rows").replace(
    "return loss, gradients",
    "for x in gradients:\n    dist.all_reduce(x, op=dist.ReduceOp.AVG, group=tp_group)\nreturn loss, gradients",
)
wrong("added-along-pp", sentence="added up along pp too: stages have different layers").replace(
    "return loss, gradients", "for x in gradients:\n    dist.all_reduce(x, group=pp_group)\nreturn loss, gradients"
)
right("flat").replace(
    "for x in [*gradients, loss] if last else gradients:\n    dist.all_reduce(x, op=dist.ReduceOp.AVG, group=dp_group)",
    """flat = torch.cat([x.flatten() for x in gradients] + ([loss.view(1)] if last else []))
dist.all_reduce(flat, group=dp_group)
flat /= dp_size
sizes = [x.numel() for x in gradients]
gradients = [part.view_as(x) for part, x in zip(flat.split(sizes + [1] * last), gradients)]
loss = flat[-1] if last else None""",
)

wrong("microbatch-on-every-stage", "only the first takes a microbatch").replace(
    "microbatches[number] if x is None else x", "microbatches[number]"
)

wrong, right = ANSWERS.to("merge-attention")
wrong("adds", sentence="the sum: weight each part by its share of all exponentials").body(
    "return out_a + out_b, torch.logaddexp(lse_a, lse_b)"
)
wrong("mean", sentence="the mean: weight each part by its share of all exponentials").body(
    "return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)"
)
wrong("not-unsqueezed", "no dimension for the width").replace(".exp().unsqueeze(-1)", ".exp()")
wrong(
    "never-normalised",
    sentence="the sum of both parts with the right weights, never divided by the sum of the weights",
).body("""
    largest = torch.maximum(lse_a, lse_b)
    a, b = (lse_a - largest).exp(), (lse_b - largest).exp()
    return out_a * a.unsqueeze(-1) + out_b * b.unsqueeze(-1), largest + (a + b).log()
""")
wrong("wrong-way-round", sentence="the right weights, the wrong way round").body("""
    lse = torch.logaddexp(lse_a, lse_b)
    return out_a * (lse_b - lse).exp().unsqueeze(-1) + out_b * (lse_a - lse).exp().unsqueeze(-1), lse
""")
wrong("lse-added", sentence="the sum of both: it is the logarithm of a sum of exponentials").replace(
    "return out, lse", "return out, lse_a + lse_b"
)
wrong("lse-larger", sentence="the larger one: it is the logarithm of a sum of exponentials").replace(
    "return out, lse", "return out, torch.maximum(lse_a, lse_b)"
)
wrong("lse-overflows", "an exponential overflows", hidden=True).replace(
    "return out, lse", "return out, lse_a + (lse_b - lse_a).exp().log1p()"
)
wrong("overflows", "an exponential overflows", hidden=True).body("""
    a, b = lse_a.exp().unsqueeze(-1), lse_b.exp().unsqueeze(-1)
    return (out_a * a + out_b * b) / (a + b), (a + b).squeeze(-1).log()
""")
wrong(
    "shares-of-the-lse",
    sentence="weighted by shares of the lse: an lse is a logarithm, so the weights are exponentials",
).body("""
    share = (lse_a / (lse_a + lse_b)).unsqueeze(-1)
    return share * out_a + (1 - share) * out_b, torch.logaddexp(lse_a, lse_b)
""")
wrong("base-2", sentence="weighted with an lse to base 2: the exponentials are those of e").replace(
    "torch.logaddexp(", "torch.logaddexp2("
)
wrong("lse-to-base-2", sentence="to base 2: the exponentials are those of e").replace(
    "return out, lse", "return out, torch.logaddexp2(lse_a, lse_b)"
)
wrong("lse-without-log", sentence="the larger one and the sum of the shifted exponentials: take its logarithm").replace(
    "return out, lse",
    "top = torch.maximum(lse_a, lse_b)\nreturn out, top + (lse_a - top).exp() + (lse_b - top).exp()",
)
wrong("lse-shifted", sentence="shifted: add the larger lse again, after the logarithm").replace(
    "return out, lse",
    "top = torch.maximum(lse_a, lse_b)\nreturn out, ((lse_a - top).exp() + (lse_b - top).exp()).log()",
)
wrong("shifted-by-the-first", "an exponential became infinite", hidden=True).replace(
    "torch.logaddexp(lse_a, lse_b)", "lse_a + torch.log1p((lse_b - lse_a).exp())"
)
right("sigmoid").body("""
    share = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    return out_a + share * (out_b - out_a), lse_a - torch.nn.functional.logsigmoid(lse_a - lse_b)
""")

wrong, right = ANSWERS.to("zigzag-block")
wrong("no-mask", sentence="what all pairs give, whether visible or not: half of them are masked").body(
    "return attend(q, k, v)"
)
wrong("always-causal", sentence="what a causal mask by number gives: that is right for a rank's own keys only").body(
    "return attend(q, k, v, causal=True)"
)
wrong("mask-of-its-own-only", same_as="no-mask").body("return attend(q, k, v, causal=keys_of == queries_of)")
wrong(
    "wrong-way-round",
    sentence="what a rank on the other side of this one would need: of a rank before, all queries see the early keys; "
    "of a rank behind, the late queries see all keys",
).replace("keys_of < queries_of", "keys_of > queries_of")
wrong(
    "late-keys", sentence="the late keys of a rank before this one: its early chunk is the one that all queries see"
).replace("k[:, :, :n], v[:, :, :n]", "k[:, :, n:], v[:, :, n:]")
wrong(
    "early-queries",
    sentence="the early queries among the keys of a rank behind: it is the late ones that see all of these",
).replace("[:, :, n:]", "[:, :, :n]")
wrong(
    "all-before", sentence="what a rank before this one would need: of a rank behind, the late queries see all keys"
).replace("keys_of < queries_of", "keys_of != queries_of")
wrong(
    "all-behind", sentence="what a rank behind this one would need: of a rank before, all queries see the early keys"
).replace("keys_of < queries_of", "False")
wrong("lse-of-nothing", sentence="0 where a query sees none of the keys: the log of an empty sum is -inf").replace(
    'float("-inf")', "0.0"
)
wrong(
    "computes-then-hides", sentence="those of all pairs: what is masked must be left out, not computed and thrown away"
).body("""
    out, lse = attend(q, k, v, causal=keys_of == queries_of)
    if keys_of < queries_of:
        return attend(q, k[:, :, :n], v[:, :, :n])
    if keys_of > queries_of:
        out[:, :, :n], lse[:, :, :n] = 0, float("-inf")
    return out, lse
""")
wrong("without-the-kernel", sentence="none: call `attend`, which stands for the fast kernel").body("""
    early, late = torch.arange(n), torch.arange(n)
    at = {rank: torch.cat([early + rank * n, late + (99 - rank) * n]) for rank in (queries_of, keys_of)}
    return attention_block(q, k, v, at[queries_of], at[keys_of])
""")
wrong(
    "late-queries-only", sentence="of the late queries alone: both chunks come after the early one of a rank before"
).replace("return attend(q, k[:, :, :n], v[:, :, :n])", "k, v = k[:, :, :n], v[:, :, :n]")
wrong(
    "late-queries-masked",
    sentence="what a causal mask leaves of the late queries: they come after all keys of a rank behind",
).replace("attend(q[:, :, n:], k, v)", "attend(q[:, :, n:], k, v, causal=True)")
wrong(
    "late-queries-late-keys",
    sentence="what the late queries see in one half of the keys alone: they come after all keys of a rank behind",
).replace("attend(q[:, :, n:], k, v)", "attend(q[:, :, n:], k[:, :, n:], v[:, :, n:])")
wrong("late-queries-early-keys", same_as="late-queries-late-keys").replace(
    "attend(q[:, :, n:], k, v)", "attend(q[:, :, n:], k[:, :, :n], v[:, :, :n])"
)
wrong("plus-infinity", sentence="inf where a query sees none of the keys: the log of an empty sum is -inf").replace(
    'float("-inf")', 'float("inf")'
)
wrong("late-queries-first", sentence="right, but with the early and the late queries swapped").replace(
    "out[:, :, n:], lse[:, :, n:] =", "out[:, :, :n], lse[:, :, :n] ="
)
right("quarters").body("""
    early, late = slice(0, n), slice(n, 2 * n)
    outs, lses = [], []
    for mine, first in ((early, True), (late, False)):
        if keys_of > queries_of and first:
            parts = (torch.zeros_like(q[:, :, mine]), torch.full_like(q[:, :, mine, 0], float("-inf")))
        elif keys_of > queries_of:
            parts = attend(q[:, :, mine], k, v)
        elif keys_of < queries_of:
            parts = attend(q[:, :, mine], k[:, :, early], v[:, :, early])
        elif first:
            parts = attend(q[:, :, mine], k[:, :, early], v[:, :, early], causal=True)
        else:
            a, b = attend(q[:, :, mine], k[:, :, early], v[:, :, early])
            c, d = attend(q[:, :, mine], k[:, :, late], v[:, :, late], causal=True)
            lse = torch.logaddexp(b, d)
            parts = (a * (b - lse).exp().unsqueeze(-1) + c * (d - lse).exp().unsqueeze(-1), lse)
        outs.append(parts[0])
        lses.append(parts[1])
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)
""")

wrong, right = ANSWERS.to("ring-attention")
wrong("own-keys-only", sentence="attention to this rank's own keys alone: merge those that arrive, too").replace(
    "range(cp_size - 1)", "range(0)"
)
wrong("one-hop-short", sentence="attention without the keys of the last rank of the ring: P - 1 blocks arrive").replace(
    "range(cp_size - 1)", "range(cp_size - 2)"
)
wrong(
    "own-positions",
    sentence="with the same positions for queries and keys: keys have those of the rank that they come from",
).replace("positions_of[(cp_rank - step - 1) % cp_size]", "positions_of[cp_rank]")
wrong("last-block-only", sentence="attention to the last block alone: merge it with what you had").replace(
    "out, lse = merge(out, lse, *attention_block(q, kv[0], kv[1], positions_of[cp_rank], theirs))",
    "out, lse = attention_block(q, kv[0], kv[1], positions_of[cp_rank], theirs)",
)
wrong(
    "own-keys-each-time", sentence="attention to this rank's own keys each time: attend to those that have arrived"
).replace("q, kv[0], kv[1], positions_of", "q, k, v, positions_of")
wrong(
    "positions-behind",
    sentence="with positions one hop behind the keys: the first that arrive are of the rank before this one",
).replace("cp_rank - step - 1", "cp_rank - step")
wrong(
    "positions-of-the-next", sentence="with positions as if keys came from the next rank: they come from the one before"
).replace("cp_rank - step - 1", "cp_rank + step + 1")
wrong("one-hop-more", "need P - 1 hops", caught_by="traffic").replace(
    "return out, lse",
    "incoming = torch.empty_like(kv)\nsending = dist.isend(kv, dst=after)\ndist.recv(incoming, src=before)\n"
    "sending.wait()\nreturn out, lse",
)
wrong("group-ranks-as-global", "rank", varies=True).replace(
    "dist.get_global_rank(cp_group, (cp_rank + step) % cp_size)", "(cp_rank + step) % cp_size"
)
wrong("receives-first", "each waits for").replace(
    "sending = dist.isend(kv, dst=after)\ndist.recv(incoming, src=before)\nsending.wait()",
    "dist.recv(incoming, src=before)\ndist.send(kv, dst=after)",
)
wrong("all-gathers", "your function calls all_gather", caught_by="traffic").body("""
    from utils.kit.functional_collectives import all_gather
    k, v = all_gather(k, cp_group, dim=2), all_gather(v, cp_group, dim=2)
    return attention_block(q, k, v, positions_of[cp_rank], torch.cat(positions_of))
""")
wrong(
    "first-and-last", sentence="attention to the first and the last block alone: merge each with all that came before"
).replace(
    "merge(out, lse, *",
    "merge(*attention_block(q, k, v, positions_of[cp_rank], positions_of[cp_rank]), *",
)
wrong("own-keys-twice", sentence="attention to this rank's own keys twice: P - 1 blocks arrive").replace(
    "range(cp_size - 1)", "range(cp_size)"
)
wrong(
    "sends-its-own", sentence="attention to the same arrived keys in each hop: pass on what has just arrived"
).replace("isend(kv,", "isend(torch.stack([k, v]),")
wrong(
    "positions-ahead",
    sentence="with positions one hop ahead of the keys: the first that arrive are of the rank before this one",
).replace("cp_rank - step - 1", "cp_rank - step - 2")
wrong("no-mask", sentence="attention to later tokens, too: it must be causal").replace(
    "positions_of[cp_rank], theirs)", "positions_of[cp_rank], torch.zeros_like(theirs))"
)
wrong("values-as-keys", sentence="attention with values as keys: of what arrives, keys come first").replace(
    "q, kv[0], kv[1]", "q, kv[1], kv[0]"
)
wrong(
    "leaves-out-later-ranks",
    sentence="attention without the blocks of later ranks: a later rank may have earlier tokens, so compare positions",
).replace(
    "out, lse = merge(out, lse, *",
    "out, lse = (out, lse) if (cp_rank - step - 1) % cp_size > cp_rank else merge(out, lse, *",
)
wrong("added-up", sentence="the sum of what the blocks give: merge them, by their lse").replace(
    "out, lse = merge(out, lse, *", "out, lse = (lambda a, b, c, d: (a + c, torch.logaddexp(b, d)))(out, lse, *"
)
wrong("two-messages", "travel together", caught_by="traffic").replace(
    "sending = dist.isend(kv, dst=after)\ndist.recv(incoming, src=before)\nsending.wait()",
    "for there, here in zip(kv, incoming):\n    sending = dist.isend(there, dst=after)\n"
    "    dist.recv(here, src=before)\n    sending.wait()",
)
wrong(
    "positions-swapped", sentence="with the positions of queries and keys swapped: those of the queries come first"
).replace("positions_of[cp_rank], theirs)", "theirs, positions_of[cp_rank])")
right("batched").replace(
    "sending = dist.isend(kv, dst=after)\ndist.recv(incoming, src=before)\nsending.wait()",
    "for work in [dist.isend(kv, dst=after), dist.irecv(incoming, src=before)]:\n    work.wait()",
)

wrong, right = ANSWERS.to("ring-attention-backward")
wrong(
    "never-home",
    sentence="the gradient of another rank's keys: in each round add first, then pass on, after the last round too",
).replace("dkv = passed_on(dkv)\nreturn", "return")
wrong(
    "own-part-only", sentence="what this rank's own queries contribute: others have looked at these keys, too"
).replace(
    "dkv = passed_on(dkv)\nreturn dq, *dkv",
    "_, dk, dv = attention_block_backward(q, k, v, out, lse, grad, positions_of[cp_rank], positions_of[cp_rank])\n"
    "passed_on(dkv)\nreturn dq, dk, dv",
)
wrong("keys-go-home-too", "need P - 1 hops", caught_by="traffic").replace(
    "dkv = passed_on(dkv)\nreturn", "dkv, kv = passed_on(dkv), passed_on(kv)\nreturn"
)
wrong("dq-of-own-keys", sentence="what this rank's own keys contribute: add up all hops").replace(
    "dq += part[0]", "dq = part[0] if step == 0 else dq"
)
wrong("dq-of-the-last", sentence="what the last keys to arrive contribute: add up all hops").replace(
    "dq += part[0]", "dq = part[0]"
)
wrong("values-first", sentence="one of k and v, the wrong way round: dk, then dv").replace(
    "torch.stack(part[1:])", "torch.stack([part[2], part[1]])"
)
wrong(
    "own-positions", sentence="with this rank's positions for all keys: use those of the rank that they come from"
).replace("positions_of[(cp_rank - step) % cp_size]", "positions_of[cp_rank]")
wrong("block-by-block", sentence="with each block's own out and lse: those of all keys are given").replace(
    "q, kv[0], kv[1], out, lse,",
    "q, kv[0], kv[1], "
    "*attention_block(q, kv[0], kv[1], positions_of[cp_rank], positions_of[(cp_rank - step) % cp_size]),",
)
wrong(
    "positions-ahead", sentence="with positions one hop ahead of the keys: in round 0 this rank's own keys are here"
).replace("cp_rank - step", "cp_rank - step - 1")
wrong(
    "positions-behind", sentence="with positions one hop behind the keys: in round 0 this rank's own keys are here"
).replace("cp_rank - step", "cp_rank - step + 1")
wrong(
    "positions-of-the-next", sentence="with positions as if keys came from the next rank: they come from the one before"
).replace("cp_rank - step", "cp_rank + step")
wrong("last-visitor", sentence="what the last rank to have these keys contributes: add to what has arrived").replace(
    "dkv += torch", "dkv = torch"
)
wrong(
    "positions-swapped", sentence="with the positions of queries and keys swapped: those of the queries come first"
).replace(
    "positions_of[cp_rank], positions_of[(cp_rank - step) % cp_size]",
    "positions_of[(cp_rank - step) % cp_size], positions_of[cp_rank]",
)
wrong("passed-on-before-adding", same_as="never-home").replace(
    "kv, dkv = passed_on(kv), passed_on(dkv)", "kv = passed_on(kv)"
).replace("dkv += torch.stack(part[1:])", "dkv = passed_on(dkv) + torch.stack(part[1:])").replace(
    "dkv = passed_on(dkv)\nreturn", "return"
)
wrong(
    "stays-here", sentence="the sum of what this rank found for all the keys that came by: it must travel with the keys"
).replace("kv, dkv = passed_on(kv), passed_on(dkv)", "kv = passed_on(kv)").replace(
    "dkv = passed_on(dkv)\nreturn", "return"
)
wrong("dq-travels", sentence="dq of another rank's queries, too: q stays here, and so does its gradient").replace(
    "kv, dkv = passed_on(kv), passed_on(dkv)", "kv, dkv, dq = passed_on(kv), passed_on(dkv), passed_on(dq)"
)
wrong("averages", sentence="divided by P: each rank adds its part, and nothing is averaged").replace(
    "return dq, *dkv", "return dq, *(dkv / cp_size)"
)
right("one-message").body("""
    dq, home = torch.zeros_like(q), torch.stack([k, v])
    both = torch.cat([home, torch.zeros_like(home)])
    for step in range(cp_size):
        if step > 0:
            both = passed_on(both)
        k_now, v_now = both[0], both[1]
        part = attention_block_backward(
            q, k_now, v_now, out, lse, grad, positions_of[cp_rank], positions_of[(cp_rank - step) % cp_size]
        )
        dq += part[0]
        both[2:] += torch.stack(part[1:])
    return dq, *passed_on(both[2:].clone())
""")

wrong, right = ANSWERS.to("ulysses-attention")
wrong("sees-the-future", sentence="attention to later tokens, too: it must be causal").replace(
    "causal_attention(q, k, v)", "torch.nn.functional.scaled_dot_product_attention(q, k, v)"
)
wrong("keys-as-values", sentence="attention that adds up keys where values belong: q, k and v travel").replace(
    "for x in (q, k, v))", "for x in (q, k, k))"
)
wrong("no-exchange", sentence="attention within this rank's own tokens: exchange them first").body(
    "return causal_attention(q, k, v)"
)
wrong("gathers-all", "all_gather", caught_by="traffic").body("""
    from utils.kit.functional_collectives import all_gather
    whole = [all_gather(x, cp_group, dim=2) for x in (q, k, v)]
    return causal_attention(*whole).chunk(cp_size, 2)[dist.get_rank(cp_group)].contiguous()
""")
wrong(
    "heads-mixed-up", sentence="right, but with the heads in a different order: heads come back from rank 0 first"
).replace(
    "return torch.cat(exchange(parts), dim=1)",
    "there = torch.cat(exchange(parts), dim=1)\nreturn there.unflatten(1, (cp_size, -1)).transpose(1, 2).flatten(1, 2)",
)
wrong("never-back", sentence="all tokens of some heads: exchange them back").replace(
    "return torch.cat(exchange(parts), dim=1)", "return out"
)
wrong("world-instead-of-group", sentence="without cp_group: the exchange is then among all ranks").replace(
    "group=cp_group", "group=None"
)
wrong("dimensions-exchanged", "shape").replace(
    "torch.cat(exchange(x.chunk(cp_size, dim=1)), dim=2)", "torch.cat(exchange(x.chunk(cp_size, dim=2)), dim=1)"
)
wrong(
    "back-as-there", sentence="the heads cut once more: on the way back, cut the tokens, and join along the heads"
).body("""
    q, k, v = (torch.cat(exchange(x.chunk(cp_size, dim=1)), dim=2) for x in (q, k, v))
    return torch.cat(exchange(causal_attention(q, k, v).chunk(cp_size, dim=1)), dim=2)
""")
wrong("cut-by-heads", sentence="some heads of some tokens: what goes back is cut along the tokens").replace(
    "out.chunk(cp_size, dim=2)", "out.chunk(cp_size, dim=1)"
)
wrong("some-heads", same_as="never-back").replace("return torch.cat(exchange(parts), dim=1)", "return out.clone()")
right("one-exchange").body("""
    stacked = torch.cat([x.unflatten(1, (cp_size, -1)) for x in (q, k, v)], dim=2).transpose(0, 1).contiguous()
    arrived = torch.empty_like(stacked)
    dist.all_to_all_single(arrived, stacked, group=cp_group)
    q, k, v = torch.cat(list(arrived), dim=2).chunk(3, dim=1)
    out = causal_attention(q, k, v)
    back = torch.stack(out.chunk(cp_size, dim=2))
    arrived = torch.empty_like(back)
    dist.all_to_all_single(arrived, back, group=cp_group)
    return torch.cat(list(arrived), dim=1)
""")

wrong, right = ANSWERS.to("finish-gradients")
wrong("no-tp-sum", sentence="without the sum along tp: each rank has used this weight for its own tokens").replace(
    "if name in partial:", "if False:"
)
wrong("tp-sum-for-all", sentence="summed along tp too: this weight is cut there, and its gradient is whole").replace(
    "if name in partial:", "if True:"
)
wrong(
    "tied-forgotten",
    sentence="without the other end of the pipeline: a tied weight is used twice, and both gradients count",
).replace("if name in tied:", "if False:")
wrong(
    "tied-mean",
    sentence="the mean of the two ends of the pipeline: add them up, each is a part of one weight's gradient",
).replace("group=embedding_group", "op=dist.ReduceOp.AVG, group=embedding_group")
wrong("sum-over-dp", sentence="the sum along dp: take the mean").replace("dist.ReduceOp.AVG", "dist.ReduceOp.SUM")
wrong("no-dp", sentence="without the mean along dp").replace(
    "group=dp_group", "group=dp_group) if False else None"
).replace("None)", "None")
wrong("in-place", "must stay as it was").replace("gradient.clone()", "gradient")
wrong("gathers-first", "each axis that it needs", caught_by="traffic").replace(
    "return finished", "dist.all_reduce(torch.zeros(50), group=dp_group)\nreturn finished"
)
wrong("tp-mean", sentence="the mean along tp: add up, each rank's tokens give a part of one gradient").replace(
    "all_reduce(finished[name], group=tp_group)", "all_reduce(finished[name], op=dist.ReduceOp.AVG, group=tp_group)"
)
wrong(
    "tied-along-tp", sentence="added up along tp in place of the two ends of the pipeline: they are the embedding_group"
).replace("group=embedding_group", "group=tp_group")
wrong(
    "partial-over-the-ends",
    sentence="added up over the embedding_group in place of tp: a partial weight's ranks are the tp_group",
).replace("group=tp_group", "group=embedding_group")
wrong("divided-by-the-world", sentence="divided by the number of all ranks: the mean is that along dp").replace(
    "op=dist.ReduceOp.AVG, group=dp_group)", "group=dp_group)\nfinished[name] /= dist.get_world_size()"
)
wrong("mean-over-the-world", sentence="the mean over all ranks: only those along dp have the same weights").replace(
    "op=dist.ReduceOp.AVG, group=dp_group)", "op=dist.ReduceOp.AVG)"
)
wrong("part-of-a-name", same_as="tp-sum-for-all").replace("if name in partial:", "if any(x in name for x in partial):")
right("two-loops").body("""
    finished = {name: gradient.clone() for name, gradient in gradients.items()}
    for names, group in ((partial, tp_group), (tied, embedding_group)):
        for name in finished:
            if name in names:
                dist.all_reduce(finished[name], group=group)
    for name in finished:
        dist.all_reduce(finished[name], group=dp_group)
        finished[name] /= dist.get_world_size(dp_group)
""")

wrong, right = ANSWERS.to("grid-norm")
wrong(
    "replicated-everywhere", sentence="the norm with replicated gradients counted on every tp rank: count them once"
).replace("/ dist.get_world_size(tp_group)", "/ 1")
wrong(
    "tied-twice",
    sentence="the norm with the tied gradient counted on both of its stages: `elsewhere` says what to leave out",
).replace("if name in elsewhere:", "if False:")
wrong(
    "everything", sentence="the norm of everything on every rank: count replicated gradients, and tied ones, once"
).replace("/ dist.get_world_size(tp_group)", "/ 1").replace("if name in elsewhere:", "if False:")
wrong("own-norm", sentence="the norm of this rank's gradients: add up the squares over the grid").replace(
    "for group in (tp_group, pp_group):", "for group in ():"
)
wrong("tied-where-replicated", sentence="the norm with a tied gradient counted twice where it is cut along tp").replace(
    "if name in elsewhere:", "if name in elsewhere and name in replicated:"
)
wrong("stage-norm", sentence="this stage's norm: add up the squares along pp, too").replace(
    "(tp_group, pp_group)", "(tp_group,)"
)
wrong("sharded-only", sentence="the norm of the sharded gradients alone: replicated ones count too, once").replace(
    "if name in elsewhere:", "if name in elsewhere + replicated:"
)
wrong(
    "divided-twice",
    sentence="the norm with replicated gradients counted too little: each of P ranks counts a P-th of the squares",
).replace("/ dist.get_world_size(tp_group)", "/ dist.get_world_size(tp_group) ** 2")
wrong("no-root", sentence="the square of the norm").replace("total.sqrt().item()", "total.item()")
wrong(
    "over-the-world", sentence="the norm with all data ranks counted: they have the same gradients, so leave dp out"
).replace("for group in (tp_group, pp_group):\n    dist.all_reduce(total, group=group)", "dist.all_reduce(total)")
wrong(
    "norms-added", sentence="the sum of the norms of the tensors: add up squares, and take one root at the end"
).replace("square = gradient.double().square().sum()", "square = gradient.double().norm()").replace(
    "total.sqrt().item()", "total.item()"
)
wrong(
    "root-before-the-sum", sentence="the sum of the ranks' norms: add up squares first, and take the root last"
).replace("for group in", "total = total.sqrt()\nfor group in").replace("total.sqrt().item()", "total.item()")
wrong("norms-under-the-root", sentence="the root of the sum of norms: what adds up are squares").replace(
    "square = gradient.double().square().sum()", "square = gradient.double().norm()"
)
wrong(
    "global-rank-0-counts",
    sentence="the norm with replicated gradients counted by rank 0 of the world alone: each stage has its own",
).body("""
    for name, gradient in gradients.items():
        if name not in elsewhere and (name not in replicated or dist.get_rank() == 0):
            total += gradient.double().square().sum()
    for group in (tp_group, pp_group):
        dist.all_reduce(total, group=group)
    return total.sqrt().item()
""")
wrong("sends-gradients", "Only sums of squares", caught_by="traffic").replace(
    "total = torch.zeros", "dist.all_reduce(torch.zeros(20), group=pp_group)\ntotal = torch.zeros"
)
wrong("own-slice", sentence="the norm of this rank's columns and rows: add up the squares along tp, too").replace(
    "(tp_group, pp_group)", "(pp_group,)"
)
wrong(
    "all-divided",
    sentence="the norm with sharded gradients divided by the tp ranks, too: each of these has other numbers",
).replace("if name in replicated else square", "if True else 0")
wrong("the-others-divided", sentence="the norm with sharded and replicated gradients swapped").replace(
    "if name in replicated", "if name not in replicated"
)
wrong("mean-over-stages", sentence="the root of a mean over stages: add up their squares").replace(
    "return total", "total /= dist.get_world_size(pp_group)\nreturn total"
)
right("first-tp-rank-counts").body("""
    first = dist.get_rank(tp_group) == 0
    mine = [g for name, g in gradients.items() if name not in elsewhere and (first or name not in replicated)]
    total = torch.tensor([sum(float(g.square().sum()) for g in mine)], dtype=torch.float64)
    dist.all_reduce(total, group=pp_group)
    dist.all_reduce(total, group=tp_group)
    return float(total) ** 0.5
""")

wrong, right = ANSWERS.to("token-mean")
wrong(
    "mean-of-means",
    sentence="the mean over this rank's own tokens: a rank with few tokens then counts as much as the others",
).body("""
    mean = losses.mean().nan_to_num(0.0)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=dp_group)
    return losses.mean(), mean
""")
wrong("p-times-too-small", sentence="P times too small: the gradients are averaged over P ranks later").replace(
    " * dist.get_world_size(dp_group)", ""
)
wrong("sum", sentence="the sum over this rank's tokens: divide by the tokens of all ranks").replace(
    "losses.sum() * dist.get_world_size(dp_group) / count", "losses.sum()"
)
wrong(
    "no-graph", sentence="the mean over all ranks' tokens: start from this rank's own sum, which has a graph"
).replace("return local, total / count", "return total / count, total / count")
wrong(
    "times-the-world",
    sentence="multiplied by the number of all ranks: the gradients are averaged over dp_group alone",
).replace("dist.get_world_size(dp_group)", "dist.get_world_size()")
wrong("own-mean-backward", same_as="mean-of-means").replace(
    "losses.sum() * dist.get_world_size(dp_group) / count", "losses.mean()"
)
wrong("mean-of-nothing", "the mean of no tokens").replace("losses.sum() *", "losses.mean() * len(losses) *")
wrong("own-mean-reported", sentence="this rank's own mean").replace(
    "return local, total / count", "return local, losses.mean()"
)
wrong("mean-of-means-reported", sentence="the mean of the ranks' means: give every token the same weight").replace(
    "return local, total / count",
    "mean = losses.mean()\ndist.all_reduce(mean, op=dist.ReduceOp.AVG, group=dp_group)\nreturn local, mean",
)
wrong("detached", "no gradient").replace("local = losses.sum()", "local = losses.detach().sum()")
wrong("divided-by-p", sentence="divided by P: the gradients are averaged over P ranks later, so multiply by P").replace(
    "losses.sum() *", "losses.sum() /"
)
wrong(
    "own-count", sentence="the sum over all ranks, divided by this rank's tokens alone: count those of all ranks"
).replace("total / count", "total / len(losses)")
wrong("mean-times-p", sentence="multiplied by P: that belongs to the loss to go backward from alone").replace(
    "local, total / count", "local, total * dist.get_world_size(dp_group) / count"
)
right("two-calls").body("""
    count, total = torch.tensor(len(losses)), losses.detach().sum()
    dist.all_reduce(count, group=dp_group)
    dist.all_reduce(total, group=dp_group)
    size = dist.get_world_size(dp_group)
    return losses.sum() * size / count, total / count
""")

wrong, right = ANSWERS.to("batch-rows")
wrong("dealt", sentence="every P-th row of the batch: chunk dp_rank is wanted").replace(
    "[dp_rank * each : (dp_rank + 1) * each]", "[dp_rank::dp_size]"
)
dealt_first = wrong("dealt-first", same_as="dealt")
dealt_first.body("""
    epoch, place = divmod(step, num_samples // batch_size)
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    each = batch_size // dp_size
    return order[dp_rank::dp_size][place * each : (place + 1) * each]
""")
wrong(
    "own-part",
    sentence="each rank's place in its own part of the data set: the batch then depends on the number of ranks",
).like(dealt_first).replace("order[dp_rank::dp_size]", "order[dp_rank * num_samples // dp_size :]")
wrong("never-reshuffled", sentence="the order of the first epoch: shuffle with seed + epoch").replace(
    "seed + epoch", "seed"
)
wrong("first-batch", sentence="the first batch of the epoch, whatever the step").replace(
    "place * batch_size", "0 * batch_size"
).replace("(place + 1) * batch_size", "batch_size")
wrong("whole-batch", sentence="the whole batch: chunk dp_rank of it is wanted").replace(
    "[dp_rank * each : (dp_rank + 1) * each]", "[:]"
)
wrong("new-order-each-step", sentence="a new order at each step: shuffle once for each epoch").replace(
    "seed + epoch", "seed + step"
)
wrong(
    "uneven-epochs",
    sentence="counted with samples that are left over at the end of an epoch: they are not used, and belong to no step",
    hidden=True,
).replace("num_samples // batch_size", "-(-num_samples // batch_size)")
wrong("sorted", sentence="the right samples in a different order: a batch is in the order of the permutation").replace(
    "return batch[dp_rank * each : (dp_rank + 1) * each]", "return sorted(batch[dp_rank * each : (dp_rank + 1) * each])"
)
wrong("order-of-its-own", sentence="a different order on each rank: all data ranks cut the same batch").replace(
    "seed + epoch", "seed + epoch + dp_rank"
)
wrong("epochs-from-1", sentence="what epochs counted from 1 give: the first one is epoch 0").replace(
    "seed + epoch", "seed + epoch + 1"
)
wrong(
    "batch-of-each-rank", sentence="a batch for each rank: batch_size counts the samples of all data ranks together"
).body("""
    epoch, place = divmod(step, num_samples // batch_size)
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    return order[(place * dp_size + dp_rank) * batch_size :][:batch_size]
""")
wrong("places-go-on", sentence="what is at step * batch_size: in each epoch, places begin at 0 again").replace(
    "place * batch_size : (place + 1)", "step * batch_size : (step + 1)"
)
wrong("epochs-of-all-samples", same_as="uneven-epochs", hidden=True).replace(
    "order = torch", "epoch = step * batch_size // num_samples; order = torch"
)
wrong("across-epochs", same_as="uneven-epochs", hidden=True).replace(
    "order = torch", "epoch, first = divmod(step * batch_size, num_samples); order = torch"
).replace("place * batch_size : (place + 1) * batch_size", "first : first + batch_size")
wrong(
    "permutes-less",
    sentence="an order of whole batches alone: permute all num_samples, and leave the last ones out",
    hidden=True,
).replace("torch.randperm(num_samples,", "torch.randperm(num_samples // batch_size * batch_size,")
right("by-chunk").body("""
    epoch, place = divmod(step, num_samples // batch_size)
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    return order[place * batch_size :][:batch_size].chunk(dp_size)[dp_rank].tolist()
""")

wrong, right = ANSWERS.to("program-groups")
wrong(
    "mean-over-dp", sentence="the groups along dp alone: ranks along cp have the same weights and other tokens"
).replace('("dp", "cp")', '("dp",)')
wrong("mean-over-everything", sentence="one group of all ranks: those along pp and tp have different weights").replace(
    '("dp", "cp")', "tuple(sizes)"
)
wrong("ends-without-the-middle", sentence="the ends alone: a stage in between is in a group by itself").replace(
    "ends += [[rank] for rank in ranks[1:-1]]", "pass"
)
wrong(
    "middle-together", sentence="the ends, but with the stages in between in one group: each of them is alone"
).replace("ends += [[rank] for rank in ranks[1:-1]]", "ends += [ranks[1:-1]] if ranks[1:-1] else []")
wrong("whole-pipelines", sentence="whole pipelines: only the first and the last stage have the table").replace(
    "ends.append(sorted({ranks[0], ranks[-1]}))", "ends.append(ranks)"
).replace("ends += [[rank] for rank in ranks[1:-1]]", "pass")
wrong("pipeline-by-pipeline", sentence="right but for their order: groups go by their first rank").replace(
    "sorted(ends)", "ends"
)
wrong("first-pipeline", sentence="the ends of one pipeline: each pipeline has two").replace(
    'in groups["pp"]:', 'in groups["pp"][:1]:'
)
wrong(
    "mean-in-two", sentence="the groups along each of two axes: ranks that differ on either of them are in one group"
).replace('along(sizes, ("dp", "cp"))', 'along(sizes, ("dp",)) + along(sizes, ("cp",))')
wrong(
    "one-stage-left-out",
    sentence="no group for a pipeline of one stage: the first is the last, in a group by itself",
    hidden=True,
).replace("ends.append(sorted({ranks[0], ranks[-1]}))", "ends += [[ranks[0], ranks[-1]]] * (len(ranks) > 1)")
wrong(
    "one-stage-twice", sentence="a rank twice in its group: with one stage, the first is the last", hidden=True
).replace("sorted({ranks[0], ranks[-1]})", "[ranks[0], ranks[-1]]")
right("by-name").body("""
    wanted = {"pp": ("pp",), "cp": ("cp",), "tp": ("tp",), "mean": ("cp", "dp")}
    groups = {name: along(sizes, axes) for name, axes in wanted.items()}
    pairs = [ranks if len(ranks) < 3 else [ranks[0], ranks[-1]] for ranks in groups["pp"]]
    inside = [[rank] for ranks in groups["pp"] for rank in ranks[1:-1]]
    return groups | {"ends": sorted(pairs + inside)}
""")

wrong, right = ANSWERS.to("pieces-to-read")
wrong(
    "global-places",
    sentence="places in the whole tensor: count from the start of the file, and from the start of the wanted part",
).replace("- first,", "- 0,").replace("- first)", "- 0)")
wrong("swapped", sentence="right, but the two the wrong way round: the place in the file comes first").replace(
    "(in_file, in_mine)", "(in_mine, in_file)"
)
wrong("reads-all", sentence="all that is in the file: only what is wanted should be read").replace(
    "plan[name] = (in_file, in_mine)", "plan[name] = (tuple((0, b - a) for a, b in box), in_mine)"
)
wrong("needless-files", "you returned").replace("if all(first < end for first, end in common):", "if True:")
wrong(
    "one-dimension",
    sentence="files that hold nothing of the wanted part, too: they must overlap with it along all dimensions, and "
    "`end` is the first place behind",
).replace("if all(first < end", "if any(first < end")
wrong(
    "places-to-read", sentence="what to read in places of the whole tensor: count from the start of the file"
).replace("in (box, wanted)", "in ([(0, 0)] * len(box), wanted)")
wrong("lengths", sentence="(first, length) of each part: (first, end) is wanted").replace(
    "stop - first)", "stop - start)"
)
wrong("touching-boxes", same_as="one-dimension").replace("first < end", "first <= end")
wrong(
    "both-in-wanted", sentence="places in the wanted part, both times: what to read is in places of the file"
).replace("(in_file, in_mine)", "(in_mine, in_mine)")
wrong("both-in-file", sentence="places in the file, both times: where it goes is in places of the wanted part").replace(
    "(in_file, in_mine)", "(in_file, in_file)"
)
wrong(
    "goes-to-whole-places",
    sentence="where it goes in places of the whole tensor: count from the start of the wanted part",
).replace("(in_file, in_mine)", "(in_file, tuple(common))")
wrong("last-place", sentence="what to read with its last place as `end`: `end` is the first place behind").replace(
    "(in_file, in_mine)", "(tuple((a, b - 1) for a, b in in_file), in_mine)"
)
wrong("end-stays", sentence="where it goes with only its start moved: move its end, too").replace(
    "(in_file, in_mine)", "(in_file, tuple((a, end) for (a, _), (_, end) in zip(in_mine, common)))"
)
wrong(
    "whole-files-only", sentence="only the files that lie in the wanted part entirely: a part of a file may be wanted"
).replace(
    "if all(first < end for first, end in common):", "if all(a <= c and d <= b for (a, b), (c, d) in zip(wanted, box)):"
)
wrong(
    "one-file", sentence="only one of the files: each that holds something of the wanted part has to be read"
).replace("plan[name] = (in_file, in_mine)", "return {name: (in_file, in_mine)}")
right("by-slices").body("""
    plan = {}
    for name, box in saved.items():
        there, here = [], []
        for (a, b), (c, d) in zip(wanted, box):
            inside = range(max(a, c), min(b, d))
            if not inside:
                break
            there.append((inside[0] - c, inside[-1] + 1 - c))
            here.append((inside[0] - a, inside[-1] + 1 - a))
        else:
            plan[name] = tuple(there), tuple(here)
    return plan
""")

wrong, right = ANSWERS.to("shard-boxes")
wrong(
    "qkv-as-one",
    sentence="one box for q, k and v together: the whole has all of q first, so a shard lies in three places",
).replace("pieces = 3 if", "pieces = 1 if")
wrong(
    "three-in-a-row",
    sentence="three boxes side by side: the columns of the other ranks lie between a shard's q, k and v",
).replace("(piece * tp_size + tp_rank)", "(tp_rank * pieces + piece)")
wrong("rows-for-columns", sentence="cut along the other dimension: rows are the first, columns the last one").replace(
    '0 if cut == "rows" else len(shape) - 1', 'len(shape) - 1 if cut == "rows" else 0'
)
wrong(
    "shape-of-the-whole", sentence="a part of the shard's box: `shape` is that of the shard, not of the whole weight"
).replace("shape[dim] // pieces, []", "shape[dim] // pieces // tp_size, []")
wrong("places-in-the-shard", sentence="where it lies in the shard: boxes are places in the whole weight").replace(
    "(piece * tp_size + tp_rank) * each", "piece * each"
)
wrong("cuts-what-is-whole", sentence="a part of a weight that isn't cut: each rank has all of it").replace(
    'if cut == "no"', "if not cut"
)
wrong("first-and-length", sentence="(first, length) of each box: (first, end) is wanted").replace(
    "first, first + each", "first, each"
)
wrong("last-place", sentence="boxes that end with the last place: `end` is the first place behind").replace(
    "first, first + each", "first, first + each - 1"
)
wrong("whole-width", sentence="boxes as wide as q, k and v of the shard together: each of them is a third").replace(
    "first, first + each", "first, first + each * pieces"
)
wrong(
    "third-of-the-shard",
    sentence="boxes at the wrong distance: in the whole, each of q, k and v is as wide as the parts of all ranks",
).replace("(piece * tp_size + tp_rank)", "(piece * pieces + tp_rank)")
wrong("second-dimension", sentence="cut along the second dimension: columns are the last one", hidden=True).replace(
    "len(shape) - 1", "min(1, len(shape) - 1)"
)
right("from-the-places").body("""
    box = [range(n) for n in shape]
    where = {"rows": 0, "columns": -1, "qkv": -1}.get(cut)
    boxes = [box]
    if where is not None:
        places = torch.arange(shape[where] * tp_size).view(3 if cut == "qkv" else 1, tp_size, -1)
        boxes = []
        for piece in places[:, tp_rank].tolist():
            copy = list(box)
            copy[where] = piece
            boxes.append(copy)
    return [[(part[0], part[-1] + 1) for part in each] for each in boxes]
""")

wrong, right = ANSWERS.to("best-grid")
wrong("data-only", "would need", caught_by="score").body("""return {"dp": gpus, "tp": 1, "pp": 1}""")
wrong("too-few-gpus", "but there are 512 GPUs", caught_by="score").body(
    """return {"dp": 8, "tp": 4, "pp": 8, "recompute": "full"}"""
)
wrong("deep-pipeline", "times par", caught_by="score").body(
    """return {"dp": gpus // 128, "tp": 8, "pp": 16, "micro": batch * 32 // gpus, "recompute": "full"}"""
)
wrong("a-tuple", "a dict with", caught_by="score").body("return gpus // 64, 8, 8")
right("searches").body("""
    from dataclasses import asdict
    from utils.kit.plans import plans
    model = Model(layers, width, heads, length, vocabulary=0)
    cluster = find_cluster("dgx-h100", gpus, rates="datasheet")
    every = plans(model, batch, cluster, most_cp=2, most_micro=2, recompute=("none",))
    fitting = [plan for plan in every if not problem_of(plan, model, batch, cluster)]
    return asdict(min(fitting, key=lambda plan: sum(seconds_of(plan, model, batch, cluster).values())))
""")
