"""Answers to lesson 12, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("axis-groups")
wrong("first-axis-innermost", "if the FIRST axis is innermost").body("""
    names = list(sizes)[::-1]
    grid = torch.arange(torch.Size(sizes.values()).numel()).view(*[sizes[n] for n in names])
    order = [i for i, n in enumerate(names) if n not in axes] + [i for i, n in enumerate(names) if n in axes]
    each = torch.Size(sizes[n] for n in names if n in axes).numel()
    return sorted(sorted(g) for g in grid.permute(order).reshape(-1, each).tolist())
""")
wrong("other-axes", "the groups along the other axes").replace(
    "grid = torch", "axes = [n for n in sizes if n not in axes]; grid = torch"
)
wrong("first-group", "only the group of rank 0").replace("each).tolist())", "each).tolist())[:1]")
wrong("neighbours", "cut into neighbouring ranks").replace("grid.permute(order)", "grid")
wrong("axes-in-their-order", "you returned", hidden=True).body("""
    names = [n for n in sizes if n not in axes] + list(axes)
    grid = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values())
    each = torch.Size(sizes[n] for n in axes).numel()
    return sorted(grid.permute([list(sizes).index(n) for n in names]).reshape(-1, each).tolist())
""")
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
wrong("keeps-the-last", "on another rank the answer holds none").replace("if rank in ranks:", "if True:")
wrong("everybody", "all ranks: give the members").replace("dist.new_group(ranks)", "dist.new_group()")
wrong("never-kept", "no group of this name").replace("mine[name] = group", "pass")
wrong("two-axes-only", "the group", hidden=True).replace("return mine", "return dict(list(mine.items())[:2])")
right("two-passes").body("""
    made = {name: [dist.new_group(ranks) for ranks in groups] for name, groups in members.items()}
    place = {name: [rank in ranks for ranks in groups].index(True) for name, groups in members.items()}
    return {name: made[name][place[name]] for name in members}
""")

wrong, right = ANSWERS.to("grid-step")
wrong("no-average", "average over the data axis").replace("[*gradients, loss] if last else gradients", "[]")
wrong("sum-over-dp", "2 times too large: average over the data axis").replace("ReduceOp.AVG", "ReduceOp.SUM")
wrong("not-divided-by-m", "one of 4 parts of the mean").replace(" / num_microbatches if last", " if last")
wrong("divided-twice", "once too often").replace("group=dp_group)", "group=dp_group)\nx /= dp_size")
wrong("without-f", "without f").replace("f(x) @ columns", "x @ columns")
wrong("without-g", "the gradient of").replace("g(gelu(f(x) @ columns) @ rows)", "(gelu(f(x) @ columns) @ rows)")
wrong("loss-of-own-rows", "own rows").replace("[*gradients, loss] if last else gradients", "gradients")
wrong("over-the-world", "lie along no axis", caught_by="traffic").replace(
    "return loss, gradients",
    "for x in gradients:\n    dist.all_reduce(x.clone())\nreturn loss, gradients",
)
wrong("over-tp-too", "reduced along tp too", caught_by="traffic").replace(
    "return loss, gradients",
    "for x in gradients:\n    dist.all_reduce(x.clone(), group=tp_group)\nreturn loss, gradients",
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

wrong, right = ANSWERS.to("merge-attention")
wrong("adds", "the sum: weigh each part").body("return out_a + out_b, torch.logaddexp(lse_a, lse_b)")
wrong("mean", "the mean: weigh each part").body("return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)")
wrong("wrong-way-round", "the wrong way round").body("""
    lse = torch.logaddexp(lse_a, lse_b)
    return out_a * (lse_b - lse).exp().unsqueeze(-1) + out_b * (lse_a - lse).exp().unsqueeze(-1), lse
""")
wrong("lse-added", "the sum of both").replace("return out, lse", "return out, lse_a + lse_b")
wrong("lse-larger", "the larger one").replace("return out, lse", "return out, torch.maximum(lse_a, lse_b)")
wrong("overflows", "out", hidden=True).body("""
    a, b = lse_a.exp().unsqueeze(-1), lse_b.exp().unsqueeze(-1)
    return (out_a * a + out_b * b) / (a + b), (a + b).squeeze(-1).log()
""")
right("sigmoid").body("""
    share = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    return out_a + share * (out_b - out_a), lse_a - torch.nn.functional.logsigmoid(lse_a - lse_b)
""")

wrong, right = ANSWERS.to("zigzag-positions")
wrong("contiguous", "neighbouring tokens").body("return torch.arange(tokens).chunk(cp_size)[cp_rank].tolist()")
wrong("strided", "every P-th token").body("return list(range(tokens))[cp_rank::cp_size]")
wrong("two-neighbours", "two neighbouring chunks").replace("2 * cp_size - 1 - cp_rank", "(cp_rank + 1) % (2 * cp_size)")
wrong("off-by-one", "the positions are").replace("2 * cp_size - 1 - cp_rank", "2 * cp_size - 2 - cp_rank")
wrong("later-first", "the later chunk first").replace("early + late", "late + early")
right("arithmetic").body("""
    size = tokens // (2 * cp_size)
    starts = cp_rank * size, (2 * cp_size - 1 - cp_rank) * size
    return [start + n for start in starts for n in range(size)]
""")

wrong, right = ANSWERS.to("ring-attention")
wrong("own-keys-only", "own keys alone").replace("range(cp_size - 1)", "range(0)")
wrong("one-hop-short", "without the keys of the last rank").replace("range(cp_size - 1)", "range(cp_size - 2)")
wrong("own-positions", "use those of the rank that they come from").replace(
    "positions_of[(cp_rank - step - 1) % cp_size]", "positions_of[cp_rank]"
)
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
right("batched").replace(
    "sending = dist.isend(kv, dst=after)\ndist.recv(incoming, src=before)\nsending.wait()",
    "for work in [dist.isend(kv, dst=after), dist.irecv(incoming, src=before)]:\n    work.wait()",
)

wrong, right = ANSWERS.to("ring-attention-backward")
wrong("never-home", "one more hop brings it home").replace(
    "dkv = passed_on(dkv)\nreturn", "return"
)
wrong("own-part-only", "own queries contribute").replace(
    "dkv = passed_on(dkv)\nreturn dq, *dkv",
    "_, dk, dv = attention_block_backward(q, k, v, out, lse, grad, positions_of[cp_rank], positions_of[cp_rank])\n"
    "passed_on(dkv)\nreturn dq, dk, dv",
)
wrong("keys-go-home-too", "need P - 1 hops", caught_by="traffic").replace(
    "dkv = passed_on(dkv)\nreturn", "dkv, kv = passed_on(dkv), passed_on(kv)\nreturn"
)
wrong("dq-of-own-keys", "add up all hops").replace("dq += part[0]", "dq = part[0] if step == 0 else dq")
wrong("own-positions", "dq").replace("positions_of[(cp_rank - step) % cp_size]", "positions_of[cp_rank]")
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
wrong("no-exchange", "own tokens").body("return causal_attention(q, k, v)")
wrong("gathers-all", "all_gather", caught_by="traffic").body("""
    from utils.kit.functional_collectives import all_gather
    whole = [all_gather(x, cp_group, dim=2) for x in (q, k, v)]
    return causal_attention(*whole).chunk(cp_size, 2)[dist.get_rank(cp_group)].contiguous()
""")
wrong("heads-mixed-up", "a different order").replace(
    "return torch.cat(exchange(parts), dim=1)",
    "there = torch.cat(exchange(parts), dim=1)\n"
    "return there.unflatten(1, (cp_size, -1)).transpose(1, 2).flatten(1, 2)",
)
wrong("never-back", "returned").replace("return torch.cat(exchange(parts), dim=1)", "return out")
wrong("world-instead-of-group", "returned").replace("group=cp_group", "group=None")
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
