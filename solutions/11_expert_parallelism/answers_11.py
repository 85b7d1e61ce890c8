"""Answers to lesson 11, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("router")
wrong("keeps-all", sentence="the softmax over all experts, also of those that were not chosen: set those to zero").body(
    "return (x.float() @ w_gate.float()).softmax(-1)"
)
wrong(
    "always-top-k-first",
    sentence="the softmax over the chosen scores alone; with softmax_first it goes over all experts, and what is "
    "chosen stays as it is",
).replace("if softmax_first:", "if False:")
wrong(
    "always-softmax-first",
    sentence="the softmax over all experts; without softmax_first it goes over the chosen scores alone",
).replace("if softmax_first:", "if True:")
wrong("in-its-own-dtype", "before the product").replace("x.float() @ w_gate.float()", "(x @ w_gate).float()")
wrong("cuts-the-gradient", "no gradient").replace("best = best.softmax(-1)", "best = best.softmax(-1).detach()")
wrong(
    "zeros-in-the-softmax",
    sentence="a softmax in which experts that were not chosen have a score of 0: it has to be -inf, or leave them out",
).body("""
    scores = x.float() @ w_gate.float()
    best, chosen = scores.softmax(-1).topk(k) if softmax_first else scores.topk(k)
    gates = torch.zeros_like(scores).scatter(1, chosen, best)
    return gates if softmax_first else gates.softmax(-1)
""")
wrong("over-tokens", sentence="a softmax over the tokens: the last dimension is that of the experts").replace(
    "scores.softmax(-1).topk(k)", "scores.softmax(0).topk(k)"
)
wrong("one-hot", sentence="1 for each expert that was chosen: its gate is the softmax's number").replace(
    "scatter(1, chosen, best)", "scatter(1, chosen, 1.0)"
)
wrong("scores-as-gates", sentence="the scores themselves: a gate comes out of a softmax").body("""
    scores = x.float() @ w_gate.float()
    best, chosen = scores.topk(k)
    return torch.zeros_like(scores).scatter(1, chosen, best)
""")
wrong("best-alone", sentence="one expert for each token: choose k of them").replace("topk(k)", "topk(1)")
wrong(
    "not-scattered", sentence="the gates of the chosen experts alone, (T, k): put each into its place in a row of E"
).replace("return torch.zeros_like(scores).scatter(1, chosen, best)", "return best")
wrong("lowest", sentence="the gates of the experts with the lowest scores").replace("topk(k)", "topk(k, largest=False)")
wrong("sigmoid", sentence="a sigmoid of each score by itself: a softmax over all experts is wanted").replace(
    "scores.softmax(-1)", "scores.sigmoid()"
)
wrong("softmax-twice", sentence="a softmax of the softmax: with softmax_first, what is chosen stays as it is").replace(
    "return", "best = best.softmax(-1) if softmax_first else best\nreturn"
)
wrong("first-columns", sentence="the gates in the first k columns: each belongs in the column of its expert").replace(
    "scatter(1, chosen, best)", "scatter(1, torch.arange(k).expand_as(chosen), best)"
)
wrong("back-to-bfloat16", "the gates are float32").replace("chosen, best)", "chosen, best).to(x.dtype)")
wrong("masked-after-the-softmax", same_as="zeros-in-the-softmax").body("""
    scores = x.float() @ w_gate.float()
    best, chosen = scores.softmax(-1).topk(k) if softmax_first else scores.topk(k)
    gates = torch.zeros_like(scores).scatter(1, chosen, best)
    return gates if softmax_first else torch.where(gates == 0, 0, gates.softmax(-1))
""")
wrong(
    "by-a-threshold", sentence="more than k gates: where scores tie, a comparison with the k-th largest keeps all"
).body("""
    scores = x.float() @ w_gate.float()
    mask = scores >= scores.topk(k).values[:, -1:]
    if softmax_first:
        return scores.softmax(-1) * mask
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
""")
right("by-a-mask").body("""
    scores = torch.einsum("td,de->te", x.to(torch.float32), w_gate.to(torch.float32))
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.argsort(descending=True)[:, :k], True)
    if softmax_first:
        return torch.where(mask, torch.softmax(scores, dim=1), 0)
    return torch.where(mask, scores, -torch.inf).softmax(1)
""")

wrong, right = ANSWERS.to("buffer-positions")
wrong(
    "token-by-token", sentence="the order of the tokens with all their choices: first choices of all tokens come first"
).replace("in_order = experts.T.flatten()", "in_order = experts.flatten()").replace(
    "position.view(experts.T.shape).T", "position.view(experts.shape)"
)
wrong("no-limit", sentence="without a limit: positions from the capacity on are -1").replace(
    "position = torch.where(position < capacity, position, -1)", "pass"
)
wrong("one-too-many", sentence="one row too many: positions start at 0, so the capacity itself is too large").replace(
    "position < capacity", "position <= capacity"
)
wrong("from-one", sentence="counted from 1").replace(".squeeze(1) - 1", ".squeeze(1)").replace(
    "< capacity", "<= capacity"
)
wrong(
    "each-choice-by-itself",
    sentence="counted for each choice by itself: second choices come after the first ones in the same buffer",
).replace("one_hot.cumsum(0)", "one_hot.view(-1, len(experts), num_experts).cumsum(1).flatten(0, 1)")
wrong("in-the-last-row", sentence="without dropping: a choice that doesn't fit gets -1, not the last row").replace(
    "torch.where(position < capacity, position, -1)", "position.clamp(max=capacity - 1)"
)
wrong(
    "not-transposed-back", sentence="the right positions in the wrong places: transpose back what you have transposed"
).replace("position.view(experts.T.shape).T", "position.view(experts.shape)")
wrong("first-row-empty", sentence="counted from 1, so that the last row of each buffer stays empty").replace(
    ".squeeze(1) - 1", ".squeeze(1)"
)
wrong(
    "along-the-experts", sentence="0 for every choice: the cumulative sum runs over the choices, dimension 0"
).replace("one_hot.cumsum(0)", "one_hot.cumsum(1)")
wrong(
    "overfull-dropped",
    sentence="without all choices of an expert that is wanted too often: the first ones keep their rows",
).replace("position < capacity", "one_hot.sum(0)[in_order] <= capacity")
wrong("capacity-for-dropped", sentence="the capacity in place of -1 for a choice that doesn't fit").replace(
    "position, -1)", "position, capacity)"
)
wrong(
    "starts-again", sentence="without dropping: a choice that doesn't fit gets -1, it doesn't start again at row 0"
).replace("torch.where(position < capacity, position, -1)", "position % capacity")
wrong(
    "end-to-end",
    sentence="the row among the buffers of all experts, end to end: it is counted within the expert's own buffer",
).replace("position, -1)", "in_order * capacity + position, -1)")
right("in-a-loop").body("""
    taken, positions = [0] * num_experts, torch.full_like(experts, -1)
    for choice in range(experts.shape[1]):
        for token, expert in enumerate(experts[:, choice].tolist()):
            if taken[expert] < capacity:
                positions[token, choice] = taken[expert]
                taken[expert] += 1
    return positions
""")

wrong, right = ANSWERS.to("exchange-rows")
wrong("no-backward", sentence="zero: backward has to send the rows of `grad` back to where they came from").replace(
    "return all_to_all(grad, ctx.receive, ctx.send, ctx.ep_group), None, None",
    "all_to_all(grad, ctx.receive, ctx.send, ctx.ep_group)\n"
    "return grad.new_zeros(sum(ctx.send), *grad.shape[1:]), None, None",
)
wrong("own-rows", sentence="this rank's own rows: nothing was exchanged").replace(
    "return all_to_all(rows, send, receive, ep_group)", "all_to_all(rows, send, receive, ep_group)\nreturn rows.clone()"
)
wrong("sizes-again", "did the rank already have", caught_by="traffic").replace(
    "return all_to_all(grad, ctx.receive",
    "ones = [1] * len(ctx.send)\nall_to_all(torch.tensor(ctx.receive), ones, ones, ctx.ep_group)\n"
    "return all_to_all(grad, ctx.receive",
)
wrong("sizes-to-the-world", "without the group").replace("ones, ones, ep_group", "ones, ones")
wrong("back-with-the-same-splits", "goes the other way").replace(
    "ctx.receive, ctx.send, ctx.ep_group", "ctx.send, ctx.receive, ctx.ep_group"
)
wrong("grad-stays", "must travel back").replace("all_to_all(grad, ctx.receive, ctx.send, ctx.ep_group)", "grad")
wrong("none-for-the-rows", "returns None for the rows").replace(
    "return all_to_all(grad, ctx.receive, ctx.send, ctx.ep_group), None, None", "return None, None, None"
)
wrong("one-gradient", "None for the list and for the group").replace("ctx.ep_group), None, None", "ctx.ep_group)")
wrong("no-splits", "Without lists of splits").replace(
    "return all_to_all(rows, send, receive, ep_group)",
    "arrived = rows.new_empty(sum(receive), *rows.shape[1:])\n"
    "dist.all_to_all_single(arrived, rows, group=ep_group)\nreturn arrived",
)
wrong("column-of-the-world", "Its place in the group").replace(
    "receive = all_to_all(torch.tensor(send), ones, ones, ep_group).tolist()",
    "lists = [torch.empty(len(send), dtype=torch.int64) for _ in send]\n"
    "dist.all_gather(lists, torch.tensor(send), group=ep_group)\n"
    "receive = [one[dist.get_rank()].item() for one in lists]",
)
wrong("sizes-in-32-bits", "sends its numbers of rows in int32", caught_by="traffic").replace(
    "torch.tensor(send)", "torch.tensor(send, dtype=torch.int32)"
)
right("by-the-library").replace(
    "receive = all_to_all(torch.tensor(send), ones, ones, ep_group).tolist()",
    "sizes = torch.tensor(send)\n"
    "arriving = torch.empty_like(sizes)\n"
    "dist.all_to_all_single(arriving, sizes, group=ep_group)\n"
    "receive = arriving.tolist()",
)

wrong, right = ANSWERS.to("expert-layer")
wrong("no-gates", sentence="the sum of the experts' outputs, without the gates").replace(
    "gates[token, expert, None] * back", "back"
)
wrong("adds-the-residual", sentence="the layer and the residual connection: x is not part of it").replace(
    "torch.zeros_like(x).index_add", "x.index_add"
)
wrong(
    "order-not-undone",
    sentence="the layer with results in the experts' order: before the way back, restore the order in which the "
    "rows arrived",
).replace("torch.cat(results)[order.argsort()]", "torch.cat(results)")
wrong(
    "gates-before-the-experts",
    sentence="the experts of x times the gates: an expert is not linear, so multiply what it returns",
).replace("exchange(x[token], send", "exchange(gates[token, expert, None] * x[token], send").replace(
    "gates[token, expert, None] * back", "back"
)
wrong("cuts-the-experts-gradient", "no gradient").replace(
    "expert_mlp(*one)", "expert_mlp(one[0], one[1].detach(), one[2])"
)
wrong(
    "skips-empty-experts",
    sentence="no gradient for an expert that no row came to: let it run on its empty tensor, too, which gives zeros",
).replace("expert_mlp(*one)", "expert_mlp(*one) if len(one[0]) else one[0]")
wrong("all-experts-for-all", "with the wrong sizes", caught_by="traffic").replace("(gates.T > 0)", "(gates.T >= 0)")
wrong(
    "wrong-way-round",
    sentence="the layer with results put back the wrong way round: undo the order with its own argsort",
).replace("[order.argsort()]", "[order]")
wrong(
    "as-they-arrive",
    sentence="the layer with rows given to the wrong experts: rows arrive by source, an expert wants its own",
).replace("owner.argsort(stable=True)", "torch.arange(len(owner))")
wrong(
    "last-expert-wins",
    sentence="the result of each token's last expert alone: add up the rows that belong to one token",
).replace(
    "torch.zeros_like(x).index_add(0, token, gates[token, expert, None] * back)",
    "torch.zeros_like(x).index_put((token,), gates[token, expert, None] * back)",
)
wrong("stays-at-home", sentence="the part of this rank's own experts: the other rows have to travel").body("""
    first = dist.get_rank(ep_group) * len(w_up_local)
    own = zip(gates[:, first:].T, w_up_local, w_down_local)
    return sum(gate[:, None] * expert_mlp(x, up, down) for gate, up, down in own)
""")
wrong("by-token", sentence="the layer with rows that leave in the order of the tokens: sort them by expert").replace(
    "expert, token = (gates.T > 0)", "token, expert = (gates > 0)"
)
wrong("first-expert", sentence="the layer with the first expert of a rank for all rows that come to it").replace(
    "expert_mlp(*one)", "expert_mlp(one[0], w_up_local[0], w_down_local[0])"
)
wrong("gates-add-up", sentence="the layer with gates that are made to add up to 1: they are weights already").replace(
    "gates[token, expert, None]", "(gates / gates.sum(1, keepdim=True))[token, expert, None]"
)
wrong(
    "all-experts", sentence="a gradient for experts that were not chosen, too: each token goes to the chosen ones alone"
).replace("(gates.T > 0)", "(gates.T >= 0)")
wrong(
    "gates-by-token", sentence="the layer with the gates in the order of the tokens: the rows come back by expert"
).replace("gates[token, expert, None] * back", "gates[gates > 0][:, None] * back")
wrong("too-few-counts", "bincount's minlength", hidden=True).replace(
    "torch.bincount(expert, minlength=gates.shape[1]).view(size, num_local)", "torch.bincount(expert)"
).replace(
    "[1] * size, [1] * size, ep_group)", "[num_local] * size, [num_local] * size, ep_group).view(size, num_local)"
).replace("counts.sum(1).tolist(), arriving", "counts.view(size, num_local).sum(1).tolist(), arriving")
wrong("table-on-its-side", "than it receives from itself").replace(
    "send, receive = counts.sum(1).tolist(), arriving.sum(1)",
    "send, receive = counts.view(num_local, size).sum(0).tolist(), arriving.sum(1)",
)
right("one-expert-at-a-time").body("""
    num_local, size = len(w_up_local), dist.get_world_size(ep_group)
    pairs = [(gates[:, e] > 0).nonzero().squeeze(1) for e in range(gates.shape[1])]
    counts = torch.tensor([len(pair) for pair in pairs])
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=ep_group)
    table = arriving.view(size, num_local)
    send, receive = [sum(part) for part in counts.view(size, -1).tolist()], table.sum(1).tolist()
    blocks = list(exchange(x[torch.cat(pairs)], send, receive).split(arriving.tolist()))
    for e in range(num_local):
        for source in range(size):
            place = source * num_local + e
            blocks[place] = expert_mlp(blocks[place], w_up_local[e], w_down_local[e])
    back = exchange(torch.cat(blocks), receive, send).split(counts.tolist())
    y = torch.zeros_like(x)
    for e, (pair, rows) in enumerate(zip(pairs, back)):
        y = y.index_add(0, pair, gates[pair, e, None] * rows)
    return y
""")

wrong, right = ANSWERS.to("capacity-layer")
wrong(
    "keeps-the-dropped", sentence="the layer without a limit: a choice with position -1 is dropped, and adds nothing"
).body("""
    parts = [torch.zeros_like(one) for one in (w_up_local, w_down_local)]
    size, me, num_local = dist.get_world_size(ep_group), dist.get_rank(ep_group), len(w_up_local)
    whole = []
    for part, mine in zip(parts, (w_up_local, w_down_local)):
        spread = torch.cat([mine if rank == me else part for rank in range(size)])
        whole.append(all_reduce(spread, ep_group))
    return sum(
        gates[:, c, None] * torch.stack([expert_mlp(x[t], whole[0][e], whole[1][e]) for t, e in enumerate(column)])
        for c, column in enumerate(experts.T.tolist())
    )
""")
wrong("no-gates", sentence="the sum of the experts' outputs, without the gates").replace(
    "gates[token, choice, None] * back[place]", "back[place]"
)
wrong(
    "gates-before", sentence="the experts of x times the gates: an expert is not linear, so multiply what it returns"
).replace("index_copy(0, place, x[token])", "index_copy(0, place, gates[token, choice, None] * x[token])").replace(
    "gates[token, choice, None] * back[place]", "back[place]"
)
wrong("adds-x", sentence="the layer and the residual connection: x is not part of it").replace(
    "torch.zeros_like(x).index_add", "x.index_add"
)
wrong(
    "not-by-expert",
    sentence="computed by the wrong experts: rows arrive by source, and each expert wants its rows from all "
    "sources. View them as (P, E/P, capacity, D), and bring the expert to the front",
).replace("arrived.transpose(0, 1).flatten(1, 2)", "arrived.reshape(num_local, size * capacity, -1)").replace(
    "results.transpose(0, 1).reshape(buffers.shape)", "results.reshape(buffers.shape)"
)
wrong("sends-what-there-is", "all_to_all", caught_by="traffic").body("""
    token, choice = (positions >= 0).nonzero(as_tuple=True)
    table = x.new_zeros(len(x), len(w_up_local) * dist.get_world_size(ep_group))
    table = table.index_put((token, experts[token, choice]), gates[token, choice])
    return expert_layer(x, table, w_up_local, w_down_local, exchange, ep_group)
""")
wrong(
    "not-changed-back",
    sentence="the layer with results in the experts' order: before the way back, change the two dimensions back",
).replace("results.transpose(0, 1).reshape", "results.reshape")
wrong(
    "by-source", sentence="the layer with rows that go to the experts as they came: first sort them by expert"
).replace("arrived.transpose(0, 1).flatten(1, 2)", "arrived.reshape(num_local, size * capacity, -1)")
wrong("drops-place-0", sentence="the layer without the rows in place 0: only a position of -1 is dropped").replace(
    "positions >= 0", "positions > 0"
)
wrong(
    "last-choice-wins",
    sentence="the result of each token's last choice alone: add up the rows that belong to one token",
).replace(
    "index_add(0, token, gates[token, choice, None] * back[place])",
    "index_put((token,), gates[token, choice, None] * back[place])",
)
wrong(
    "x-for-the-dropped",
    sentence="the layer with x in place of 0 for tokens that were dropped: the layer adds nothing for them",
).replace(
    "return torch.zeros_like(x).index_add",
    "return torch.where((positions < 0).all(1, keepdim=True), x, 0).index_add",
)
wrong("x-for-each-dropped", same_as="x-for-the-dropped").replace(
    "return torch.zeros_like(x).index_add", "return torch.where((positions < 0).any(1, keepdim=True), x, 0).index_add"
)
wrong(
    "token-dropped",
    sentence="the layer without the tokens that have lost a choice: only that choice is dropped, the others count",
).replace("(positions >= 0).nonzero", "(positions >= 0).all(1, keepdim=True).expand_as(positions).nonzero")
in_row_0 = wrong(
    "in-row-0", sentence="the layer with dropped choices in row 0 of their expert's buffer: they have no row at all"
)
in_row_0.replace("(positions >= 0).nonzero", "torch.ones_like(positions).nonzero").replace(
    "positions[token, choice]", "positions.clamp(min=0)[token, choice]"
)
wrong("added-to-row-0", same_as="in-row-0").like(in_row_0).replace("index_copy(", "index_add(")
wrong(
    "minus-one-as-an-index",
    sentence="the layer with -1 as an index: a dropped choice then uses the last row of the buffer before its expert's",
).replace("(positions >= 0).nonzero(as_tuple=True)", "torch.ones_like(positions).nonzero(as_tuple=True)")
wrong(
    "place-by-place",
    sentence="the layer with the buffers laid out place by place: each expert's rows lie together",
).replace(
    "experts[token, choice] * capacity + positions[token, choice]",
    "positions[token, choice] * len(w_up_local) * size + experts[token, choice]",
)
on_its_rank = wrong(
    "number-on-its-rank", sentence="the layer with each expert's number on its own rank: the buffers are those of all E"
)
on_its_rank.replace("experts[token, choice] * capacity", "experts[token, choice] % num_local * capacity")
wrong("added-by-number", same_as="number-on-its-rank").like(on_its_rank).replace("index_copy(", "index_add(")
wrong(
    "mean-of-the-kept",
    sentence="the layer with the mean over a token's choices: weight them by their gates, and add up",
).replace("gates[token, choice, None]", "gates[token, choice, None] / (positions >= 0).sum(1)[token, None]")
wrong("expert-times-experts", "out of bounds").replace(
    "experts[token, choice] * capacity +", "experts[token, choice] * num_local +"
)
wrong(
    "shares-of-the-kept", sentence="the layer with gates that are made to add up to 1: a dropped choice's share is lost"
).replace(
    "gates[token, choice, None]",
    "(gates * (positions >= 0) / (gates * (positions >= 0)).sum(1, keepdim=True))[token, choice, None]",
)
right("by-one-flat-index").body("""
    size, share, width = dist.get_world_size(ep_group), len(w_up_local), x.shape[1]
    flat = (experts * capacity + positions).flatten()
    kept = (positions >= 0).flatten()
    rows = x.repeat_interleave(experts.shape[1], 0)
    full = torch.zeros(size * share * capacity, width, dtype=x.dtype).index_add(0, flat[kept], rows[kept])
    splits = [share * capacity] * size
    came = exchange(full, splits, splits).unflatten(0, (size, share, capacity))
    done = [expert_mlp(came[:, e].flatten(0, 1), w_up_local[e], w_down_local[e]) for e in range(share)]
    done = torch.stack([one.unflatten(0, (size, capacity)) for one in done], 1).flatten(0, 2)
    home = exchange(done, splits, splits)
    y = torch.where(kept[:, None], home[flat.clamp(min=0)], 0) * gates.reshape(-1, 1)
    return y.unflatten(0, experts.shape).sum(1)
""")

wrong, right = ANSWERS.to("slowest-rank")
wrong(
    "two-operations", sentence="half of it: each of the two products takes two operations for each number of its matrix"
).replace("4 * most", "2 * most")
wrong("fullest-expert", sentence="the time of the fullest expert; a rank has several").replace(
    "return 4 * most *", "return 4 * torch.tensor(routing).sum(0).max().item() *"
)
wrong("three-products", sentence="half as much again: there are two products, each with two operations").replace(
    "4 * most", "6 * most"
)
wrong("mean-rank", sentence="the time with perfect balance: the layer waits for the fullest rank").replace(
    "4 * most *", "4 * loads.float().mean().item() *"
)
wrong("one-source", sentence="the time for the rows of one source: rows arrive from all ranks").replace(
    "return 4 * most *", "return 4 * torch.tensor(routing).view(len(routing), num_ranks, -1).sum(2).max().item() *"
)
wrong("share-of-all", sentence="its share of all rows: divide by the mean of the ranks").replace(
    "(loads.sum().item() / num_ranks)", "loads.sum().item()"
)
wrong(
    "ratio-of-experts", sentence="the fullest expert's load over the mean of the experts; a rank has several"
).replace(
    "most / (loads.sum().item() / num_ranks)",
    "(lambda load: (load.max() / load.float().mean()).item())(torch.tensor(routing, dtype=torch.float64).sum(0))",
).replace("load.float().mean()", "load.mean()")
wrong("by-source", sentence="the time for the rows that one rank sends: what it receives is what it computes").replace(
    "torch.tensor(routing).sum(0).view(num_ranks, -1).sum(1)", "torch.tensor(routing).sum(1)"
)
wrong("in-turn", sentence="the time with the experts dealt out in turn; a rank has neighbours").replace(
    ".view(num_ranks, -1).sum(1)", ".view(-1, num_ranks).sum(0)"
)
wrong("over-the-least", sentence="the most over the least: divide by the mean of the ranks").replace(
    "(loads.sum().item() / num_ranks)", "loads.min().item()"
)
wrong("rows-for-itself", sentence="the time for the rows of a rank for itself: rows arrive from all ranks").replace(
    "return 4 * most *",
    "table = torch.tensor(routing).view(len(routing), num_ranks, -1).sum(2)\n"
    "return 4 * table.diagonal().max().item() *",
)
wrong(
    "all-ranks-together", sentence="the time for the rows of all ranks together: the ranks work at the same time"
).replace("4 * most *", "4 * loads.sum().item() *")
wrong("upside-down", sentence="the mean over the most: the other way round").replace(
    "most / (loads.sum().item() / num_ranks)", "(loads.sum().item() / num_ranks) / most"
)
wrong("mean-of-the-experts", sentence="the load over the mean of the experts: divide by the mean of the ranks").replace(
    "/ num_ranks)", "/ len(routing[0]))"
)
right("without-torch").body("""
    size = len(routing[0]) // num_ranks
    loads = [sum(sum(row[r * size : (r + 1) * size]) for row in routing) for r in range(num_ranks)]
    return 2 * (2 * dim * hidden) * max(loads) / flops, max(loads) * num_ranks / sum(loads)
""")

wrong, right = ANSWERS.to("balance-loss")
wrong("local", sentence="the loss of this rank's tokens alone: sum counts and probabilities over the ranks").replace(
    "sums = g(", "sums = ("
)
wrong(
    "mean-of-losses", sentence="the mean of the ranks' own losses: a product of means is not the mean of the products"
).body("""
    t, num_experts = probabilities.shape
    counts = torch.bincount(chosen.flatten(), minlength=num_experts).to(probabilities)
    loss = num_experts * (counts / counts.sum() * probabilities.mean(0)).sum()
    return g(loss) / g(torch.ones_like(loss))
""")
wrong(
    "too-few-counts",
    sentence="the loss with too few counts: bincount stops at the last expert that was chosen, so pass minlength",
    hidden=True,
).replace(", minlength=num_experts)", ")")
wrong("forgets-e", sentence="3 times too small: the factor E is missing").replace(
    "num_experts * (counts /", "(counts /"
)
wrong("shares-of-tokens", sentence="2 times too large: the shares are of all T k choices").replace(
    "counts / counts.sum()", "counts / total"
)
wrong("means-of-means", sentence="computed from the means of the ranks, which don't have equally many tokens").body("""
    t, num_experts = probabilities.shape
    share = torch.bincount(chosen.flatten(), minlength=num_experts).to(probabilities) / chosen.numel()
    size = g(torch.ones(()))
    return num_experts * (g(share) / size * g(probabilities.mean(0)) / size).sum()
""")
wrong(
    "sum-of-losses", sentence="the sum of the ranks' own losses: sum what goes into the product, not the product"
).body("""
    t, num_experts = probabilities.shape
    counts = torch.bincount(chosen.flatten(), minlength=num_experts).to(probabilities)
    return g(num_experts * (counts / counts.sum() * probabilities.mean(0)).sum())
""")
wrong("own-shares", sentence="computed from this rank's own shares: sum the counts over the ranks, too").replace(
    "counts, mass, total = sums[:num_experts], ", "mass, total = "
)
wrong(
    "own-probabilities", sentence="computed from this rank's own probabilities: sum them over the ranks, too"
).replace("mass / total", "probabilities.mean(0)")
wrong("own-mass", same_as="own-probabilities").replace("sums[num_experts:-1]", "probabilities.sum(0)")
wrong("first-choices", sentence="computed from the first choices alone: all k of each token count").replace(
    "chosen.flatten()", "chosen[:, 0]"
)
wrong(
    "sums-of-probabilities", sentence="8 times too large: the probabilities' mean is their sum divided by the tokens"
).replace("mass / total", "mass")
wrong("sums-multiplied", sentence="a product of two sums: multiply for each expert, then add up").replace(
    "(counts / counts.sum() * mass / total).sum()", "(counts / counts.sum()).sum() * (mass / total).sum()"
)
wrong("mean-of-mean-probabilities", same_as="means-of-means").replace(
    "mass / total", "g(probabilities.mean(0)) / g(torch.ones(()))"
)
wrong("own-tokens", sentence="computed with this rank's own number of tokens: sum that over the ranks, too").replace(
    "mass / total", "mass / t"
)
wrong("own-tokens-twice", same_as="own-tokens").replace(
    "counts / counts.sum() * mass / total", "counts / (t * chosen.shape[1]) * mass / t"
)
wrong(
    "probabilities-of-the-chosen",
    sentence="computed from the probabilities of the chosen experts alone: the mean is over all tokens",
).replace("probabilities.sum(0)", "(probabilities * torch.zeros_like(probabilities).scatter(1, chosen, 1)).sum(0)")
wrong("shares-squared", sentence="the shares times themselves: one of the two factors is the mean probability").replace(
    "counts / counts.sum() * mass / total", "(counts / counts.sum()).square() + 0 * mass"
)
right("three-sums").body("""
    num_experts = probabilities.shape[1]
    one_hot = torch.nn.functional.one_hot(chosen, num_experts).to(probabilities).flatten(0, 1)
    share = g(one_hot.sum(0)) / g(one_hot.sum())
    total = g(torch.tensor(float(len(probabilities)), dtype=probabilities.dtype))
    return torch.dot(share, g(probabilities.sum(0)) / total) * num_experts
""")

wrong, right = ANSWERS.to("balance-bias")
wrong("own-load", sentence="the biases by this rank's own load: the load is that of the whole group").replace(
    "all_reduce(load_local, group)", "load_local"
)
wrong("wrong-way", sentence="a step in the wrong direction: an expert with less than the mean load goes up").replace(
    "load.mean() - load", "load - load.mean()"
)
wrong("in-proportion", "whatever the difference").replace(".sign()", "")
wrong("votes", sentence="a step by the signs of the ranks' own loads, added up: add up the loads first").replace(
    "load = all_reduce(load_local, group)", "load = -all_reduce((load_local.mean() - load_local).sign(), group)"
).replace("load.mean() - load", "-load")
wrong("all-ranks", sentence="a step by the load of all ranks; the load is that of the group").replace(
    "all_reduce(load_local, group)", "all_reduce(load_local)"
)
wrong("without-the-old", sentence="the step alone, without the old bias").replace("return bias + rate", "return rate")
wrong("gathers", "called all_gather", caught_by="traffic").body("""
    loads = [torch.empty_like(load_local) for _ in range(dist.get_world_size(group))]
    dist.all_gather(loads, load_local, group=group)
    load = torch.stack(loads).sum(0)
    return bias + rate * (load.mean() - load).sign()
""")
wrong("never-rests", sentence="a step down for the expert with exactly the mean load: its bias stays").replace(
    "rate * (load.mean() - load).sign()", "torch.where(load < load.mean(), rate, -rate)"
)
wrong("up-alone", sentence="a step up alone: an expert with more than the mean load goes down").replace(
    "(load.mean() - load).sign()", "(load < load.mean())"
)
wrong("own-mean", sentence="a step by the mean of this rank's own load: take the mean of the sum").replace(
    "load.mean()", "load_local.mean()"
)
wrong(
    "mean-of-the-ranks", sentence="a step by the load of a rank on average: take load and mean from the same sum"
).replace("load.mean() - load", "load.mean() - load / dist.get_world_size(group)")
wrong("never-rests-up", sentence="a step up for the expert with exactly the mean load: its bias stays").replace(
    "rate * (load.mean() - load).sign()", "torch.where(load > load.mean(), -rate, rate)"
)
right("by-comparing").body("""
    load = load_local.clone()
    dist.all_reduce(load, group=group)
    mean = load.sum() / len(load)
    return torch.where(load < mean, bias + rate, torch.where(load > mean, bias - rate, bias))
""")

wrong, right = ANSWERS.to("moe-gradients")
wrong("not-divided", sentence="the sum: divide it by the tokens of all ranks").replace(
    "data_group) / total, all", "data_group), all"
)
wrong("own-tokens", sentence="divided by this rank's own tokens: divide by those of all ranks").replace(
    "all_reduce(torch.tensor(num_tokens), data_group)", "num_tokens"
)
wrong(
    "experts-over-all",
    sentence="the sum over all data ranks: the other ranks of the expert-parallel group have different experts",
).replace("(expert, replica_group)", "(expert, data_group)")
wrong("dense-over-replicas", sentence="the sum over the replica group: every data rank has this weight").replace(
    "(dense, data_group)", "(dense, replica_group)"
)
wrong(
    "tokens-of-the-replicas", sentence="divided by the tokens of the replica group: its tokens came from all ranks"
).replace(
    "(expert, replica_group) / total", "(expert, replica_group) / all_reduce(torch.tensor(num_tokens), replica_group)"
)
wrong("mean-of-the-replicas", sentence="the mean over the replica group").replace(
    "(expert, replica_group) / total", "(expert, replica_group) / dist.get_world_size(replica_group)"
)
wrong("experts-not-reduced", sentence="this rank's own: the other replicas have seen other tokens").replace(
    "all_reduce(expert, replica_group)", "expert"
)
wrong("dense-mean-over-ranks", sentence="the mean over the ranks: the ranks have different numbers of tokens").replace(
    "all_reduce(dense, data_group) / total", "all_reduce(dense, data_group) / dist.get_world_size(data_group)"
)
wrong(
    "as-if-all-had-as-many",
    sentence="the sum divided by this rank's tokens times the ranks: ranks have different numbers of tokens",
).replace("all_reduce(torch.tensor(num_tokens), data_group)", "num_tokens * dist.get_world_size(data_group)")
wrong("mean-of-means", sentence="the mean of the ranks' means: ranks have different numbers of tokens").body("""
    ranks, replicas = dist.get_world_size(data_group), dist.get_world_size(replica_group)
    return all_reduce(dense / num_tokens, data_group) / ranks, all_reduce(expert / num_tokens, replica_group) / replicas
""")
wrong("wrong-way-round", sentence="the right pair the wrong way round: the dense gradient comes first").replace(
    "return all_reduce(dense, data_group) / total, all_reduce(expert, replica_group) / total",
    "return all_reduce(expert, replica_group) / total, all_reduce(dense, data_group) / total",
)
right("in-place-on-copies").body("""
    dense, expert, total = dense.clone(), expert.clone(), torch.tensor([float(num_tokens)], dtype=dense.dtype)
    for tensor, group in [(dense, data_group), (expert, replica_group), (total, data_group)]:
        dist.all_reduce(tensor, group=group)
    return dense.div(total), expert.div(total)
""")

wrong, right = ANSWERS.to("two-level-exchange")
wrong("nothing-sent", sentence="x itself: nothing was exchanged").body("return x.clone()")
wrong("flat", "inside the node, and one between", caught_by="traffic").body("""
    size = dist.get_world_size()
    return all_to_all(x.view(size, -1), [1] * size, [1] * size).view(x.shape)
""")
wrong("flat-in-a-group-of-its-own", "a process group of the ranks").body("""
    size = dist.get_world_size()
    return all_to_all(x.view(size, -1), [1] * size, [1] * size, dist.new_group()).view(x.shape)
""")
wrong(
    "sorted-by-place",
    sentence="the right rows, sorted by place in the source's node: they must be sorted by rank, node by node",
).replace(".reshape(x.shape)", ".transpose(0, 1).reshape(x.shape)")
wrong(
    "not-transposed-back",
    sentence="what you get if the first level's result goes on as it is: before the second, sort it by node",
).replace("chunks = chunks.transpose(0, 1)", "chunks = chunks.view(nodes, local, -1, x.shape[-1])")
wrong(
    "no-reordering",
    sentence="what you get without any reordering: both levels want the targets that they serve side by side",
).replace(".transpose(0, 1)", "").replace(
    "x.view(nodes, local, -1, x.shape[-1])", "x.view(local, nodes, -1, x.shape[-1])"
).replace("return all_to_all(chunks,", "return all_to_all(chunks.reshape(nodes, -1),")
wrong("first-level-alone", sentence="what the first level gives: the rows have to go on to their nodes").replace(
    "return all_to_all(chunks, [1] * nodes, [1] * nodes, cross_group).reshape(x.shape)",
    "return chunks.transpose(0, 1).reshape(x.shape)",
)
wrong("not-by-node", same_as="not-transposed-back").replace(
    "chunks = chunks.transpose(0, 1)\n", "chunks = chunks.reshape(nodes, -1)\n"
)
wrong(
    "not-by-place", sentence="what you get if the rows go to the first level as they are: before it, sort them by place"
).replace("x.view(nodes, local, -1, x.shape[-1]).transpose(0, 1)", "x.view(local, nodes, -1, x.shape[-1])")
wrong(
    "second-level-alone",
    sentence="what the second level alone gives: first, rows go to the rank of this node that serves their place",
).replace("chunks = all_to_all(chunks, [1] * local, [1] * local, local_group)\n", "")
wrong(
    "second-level-first", sentence="what you get with the second level first, and no reordering between the two"
).body("""
    nodes, local = dist.get_world_size(cross_group), dist.get_world_size(local_group)
    there = all_to_all(x, [len(x) // nodes] * nodes, [len(x) // nodes] * nodes, cross_group)
    return all_to_all(there, [len(x) // local] * local, [len(x) // local] * local, local_group)
""")
wrong("four-dimensions", "in a different shape").replace(".reshape(x.shape)", "")
wrong("first-level-as-it-is", same_as="first-level-alone").replace(
    "return all_to_all(chunks, [1] * nodes, [1] * nodes, cross_group).reshape(x.shape)",
    "return chunks.reshape(x.shape)",
)
right("nodes-first").body("""
    local, nodes = dist.get_world_size(local_group), dist.get_world_size(cross_group)
    rows = x.reshape(nodes, -1).contiguous()
    arrived = torch.empty_like(rows)
    dist.all_to_all_single(arrived, rows, group=cross_group)
    rows = arrived.view(nodes, local, -1).transpose(0, 1).contiguous()
    arrived = torch.empty_like(rows)
    dist.all_to_all_single(arrived, rows, group=local_group)
    return arrived.transpose(0, 1).reshape(x.shape)
""")

wrong, right = ANSWERS.to("expert-placement")
wrong("in-order", "times par", caught_by="score").body(
    "return [expert * len(routing) // len(routing[0]) for expert in range(len(routing[0]))]"
)
wrong("no-room-left", "is out of the choice", caught_by="score", hidden=True).replace("room[node] -= 1", "pass")
wrong("round-robin", "times par", caught_by="score").body(
    "return [expert % len(routing) for expert in range(len(routing[0]))]"
)
right("swaps-pairs").replace(
    "return places",
    """
def estimate():  # seconds: products, and the busiest way in or out, twice
    nodes = range(len(routing))
    products = max(sum(n for n, place in zip(load, places) if place == node) for node in nodes)
    sent = [sum(n for n, place in zip(routing[node], places) if place != node) for node in nodes]
    came = [sum(routing[s][e] for s in nodes for e, p in enumerate(places) if p == node != s) for node in nodes]
    return products * 1.36e-7 + 2 * max(sent + came) * 1.64e-7

best = estimate()
for one in range(len(load)):
    for other in range(one):
        if places[one] != places[other]:
            places[one], places[other] = places[other], places[one]
            if estimate() < best:
                best = estimate()
            else:
                places[one], places[other] = places[other], places[one]
return places
""",
)
