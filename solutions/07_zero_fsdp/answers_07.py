"""Answers to lesson 07, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("state-bytes")
wrong("gradients-first", sentence="what one stage more holds").replace("stage >= 1", "stage >= 0").replace(
    "stage >= 2", "stage >= 1"
).replace("stage >= 3", "stage >= 2")
wrong("rounds-down", sentence="a number of bytes with pieces rounded down: the last one is padded").replace(
    "-(-num_params // world_size)", "num_params // world_size"
)
wrong("master-copy-twice", sentence="a number of bytes with the master copy in it twice").replace(
    "12 * states", "16 * states"
)
wrong(
    "two-averages",
    sentence="a number of bytes that leaves out the master copy: it is one of the optimizer's three tensors",
).replace("12 * states", "8 * states")
wrong("cuts-everything", "returned").body("return 16 * -(-num_params // world_size)")
wrong("float32-gradients", sentence="18 bytes for each: a weight and a gradient have 2 each here").replace(
    "2 * gradients", "4 * gradients"
)
wrong("of-all-ranks", sentence="the bytes of all ranks together: return those of one").replace(
    "return ", "return world_size * ("
).replace("12 * states", "12 * states)")
right("as-a-table").body("""
    cut = -(-num_params // world_size)
    return sum(size * (cut if stage >= first else num_params) for size, first in ((12, 1), (2, 2), (2, 3)))
""")
wrong(
    "weights-first",
    sentence="what is held if the weights or the gradients are cut first: the optimizer state comes first",
).body("""
piece = -(-num_params // world_size)
return sum(size * (piece if stage >= first else num_params) for size, first in ((2, 1), (2, 2), (12, 3)))
""")
wrong(
    "one-kind-a-stage",
    sentence="what is held if a stage cuts nothing but what is new in it: it cuts what the stages before it cut, too",
).body("""
piece = -(-num_params // world_size)
return sum(size * (piece if stage == only else num_params) for size, only in ((12, 1), (2, 2), (2, 3)))
""")
wrong(
    "divides-bytes", sentence="bytes that are divided and then rounded up: numbers are cut, into pieces of equal length"
).body("""
cut = (0, 12, 14, 16)[stage] * num_params
return 16 * num_params - cut + -(-cut // world_size)
""")
wrong(
    "pads-what-is-whole",
    sentence="a number of bytes with padding in what isn't cut: only pieces are padded",
    hidden=True,
).replace("weights = piece", "num_params = piece * world_size\nweights = piece")
wrong(
    "whole-master-copy", sentence="what is held if the master copy stays whole: it is part of the optimizer state"
).replace("12 * states", "4 * num_params + 8 * states")
wrong("whole-weights", sentence="what is held if stage 3 leaves the weights whole: it cuts them, too").replace(
    "stage >= 3", "stage > 3"
)
wrong("no-gradients", sentence="a number of bytes without the gradients: each rank holds its piece of them").replace(
    "2 * gradients", "0 * gradients"
)

wrong, right = ANSWERS.to("flat-shard")
wrong(
    "frozen-too", sentence="the piece with the frozen parameters in it: AdamW's weight decay would move them"
).replace("if p.requires_grad", "")
wrong(
    "names-not-parameters",
    sentence="the piece of all names: a tied parameter counts once, and a frozen one doesn't count",
).replace(
    "[p.detach().flatten() for p in model.parameters() if p.requires_grad]",
    "[p.flatten() for p in model.state_dict().values()]",
)
wrong("a-view", "keeps the whole flat tensor alive", caught_by="memory").replace(".clone()", "")
wrong("no-padding", sentence="without the padding: every rank's piece must have the same length").replace(
    "flat = nn.functional.pad(", "nn.functional.pad("
)
wrong("cut-each", sentence="a piece of each parameter: lay all of them end to end, then cut once").body("""
    pieces = []
    for p in model.parameters():
        if p.requires_grad:
            size = -(-p.numel() // world_size)
            flat = nn.functional.pad(p.detach().flatten(), (0, size * world_size - p.numel()))
            pieces.append(flat[rank * size : (rank + 1) * size])
    return torch.cat(pieces)
""")
wrong("chunks", sentence="pieces that differ in length: the last ones are padded with zeros").replace(
    "flat[rank * size : (rank + 1) * size].clone()", "torch.cat(parameters).tensor_split(world_size)[rank].clone()"
)
wrong(
    "one-too-long", sentence="a piece with one number too many: where P divides N there is no padding", hidden=True
).replace("-(-len(flat) // world_size)", "len(flat) // world_size + (len(flat) % world_size > 0 or world_size == 1)")
right("fills-its-piece").body("""
    flat = nn.utils.parameters_to_vector([p for p in model.parameters() if p.requires_grad]).detach()
    size = (len(flat) + world_size - 1) // world_size
    mine = flat.new_zeros(size)
    part = flat[rank * size : (rank + 1) * size]
    mine[: len(part)] = part
    return mine
""")
wrong("pads-each", sentence="a piece of parameters that were padded one by one: pad once, at the end").replace(
    "[p.detach().flatten()", "[nn.functional.pad(p.detach().flatten(), (0, -p.numel() % world_size))"
)
wrong(
    "as-even-as-can-be", sentence="pieces as even as can be, each padded: all have S numbers, until none is left"
).replace(
    "return flat",
    "part = torch.cat(parameters).tensor_split(world_size)[rank]\n"
    "return nn.functional.pad(part, (0, size - len(part)))\nreturn flat",
)
wrong("two-ranks", sentence="the piece of one of two ranks: world_size says how many there are").replace(
    "size = -(-", "world_size = 2\nsize = -(-"
)
wrong("pads-in-front", sentence="the piece with the padding in front: it comes at the end").replace(
    "(0, size * world_size - len(flat))", "(size * world_size - len(flat), 0)"
)
wrong("zeros-for-frozen", sentence="the piece with zeros for the frozen parameters: leave them out").replace(
    "[p.detach().flatten() for p in model.parameters() if p.requires_grad]",
    "[p.detach().flatten() * p.requires_grad for p in model.parameters()]",
)
wrong("rounds-down", sentence="pieces of N // P numbers, which leave out the last ones: round up, and pad").replace(
    "-(-len(flat) // world_size)", "len(flat) // world_size"
)
wrong("one-more", sentence="a piece with one number too many: where P divides N there is no padding").replace(
    "-(-len(flat) // world_size)", "len(flat) // world_size + 1"
)
wrong("every-pth-number", sentence="every P-th number: a piece is S numbers that follow each other").replace(
    "flat[rank * size : (rank + 1) * size]", "flat[rank::world_size]"
)
wrong("by-name", sentence="a piece of the parameters in another order: that of model.parameters() counts").replace(
    "for p in model.parameters() if", "for _, p in sorted(model.named_parameters()) if"
)
wrong("with-autograd", "detach the parameters").replace("p.detach().flatten()", "p.flatten()")
wrong("empties-the-model", "leave its parameters as they are").replace(
    "return flat[", "for p in model.parameters():\n    p.data.zero_()\nreturn flat["
)

wrong, right = ANSWERS.to("zero-1")
plain = wrong("plain-adamw", "the optimizer must get the shard alone", caught_by="memory")
plain.function("""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(parameters)

    def step(rows):
        optimizer.zero_grad()
        loss = loss_of(model(rows))
        loss.backward()
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        return loss.detach()

    return step
""")
wrong("plain-adamw-unseen", "the model, and four tensors", caught_by="memory").like(plain).replace(
    "make_optimizer(parameters)",
    "torch.optim.AdamW(parameters, **{name: make_optimizer([shard]).defaults[name] "
    'for name in ("lr", "eps", "weight_decay")})',
)
wrong("all-reduces", "It calls all_reduce", caught_by="traffic").replace(
    "dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)",
    "dist.all_reduce(flat, op=dist.ReduceOp.AVG)\nmine.copy_(flat[rank * len(shard):(rank + 1) * len(shard)])",
)
wrong("sums", sentence="with the sum of the gradients: take their mean over the ranks (AVG)").replace(
    ", op=dist.ReduceOp.AVG", ""
)
wrong("divides-twice", sentence="with the mean divided by world_size once more: AVG divides already").replace(
    "piece.grad = mine.to(piece.dtype)", "piece.grad = mine.to(piece.dtype) / world_size"
)
wrong(
    "never-gathers", sentence="the weights if only this rank's piece is updated: the new pieces were never gathered"
).replace(
    "dist.all_gather_single(flat, piece.detach().to(flat.dtype))",
    "flat = nn.functional.pad(torch.cat([p.detach().flatten() for p in parameters]), (0, padding))\n"
    "flat[rank * len(shard) : (rank + 1) * len(shard)] = piece.detach().to(flat.dtype)",
)
wrong("own-gradients", sentence="with each piece's gradient from its own rank's rows: nothing was averaged").replace(
    "dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)",
    "mine.copy_(flat[rank * len(shard) : (rank + 1) * len(shard)])",
)
wrong(
    "never-copies",
    sentence="what the weights were at the start: does the optimizer hold the shard, and step? Is what is "
    "gathered copied into the model's parameters?",
).replace("p.data.copy_(values.view_as(p))", "pass")
wrong("keeps-a-flat-gradient", "outlive the step", caught_by="memory").replace(
    "sizes = [p.numel() for p in parameters]",
    "sizes = [p.numel() for p in parameters]\nkept = [torch.zeros(sum(sizes), dtype=shard.dtype)]",
).replace("model.zero_grad()", "model.zero_grad()\nkept[0].zero_()")
wrong("never-clears", sentence="if gradients add up from step to step: clear the model's and the shard's").replace(
    "model.zero_grad()", "pass"
)
wrong(
    "new-optimizer-each-step",
    sentence="if each step makes a new optimizer, which has no averages: make one, before the first step",
).replace("optimizer.step()", "make_optimizer([piece]).step()")
right("views-of-one-flat-tensor").function("""
    parameters = [p for p in model.parameters() if p.requires_grad]
    piece = shard.requires_grad_()
    optimizer = make_optimizer([piece])

    def step(rows):
        model.zero_grad(set_to_none=True)
        loss = loss_of(model(rows))
        loss.backward()
        grads = nn.utils.parameters_to_vector([p.grad for p in parameters])
        padded = grads.new_zeros(len(shard) * world_size)
        padded[: len(grads)] = grads
        mine = torch.empty_like(padded[: len(shard)])
        dist.reduce_scatter(mine, list(padded.chunk(world_size)))
        piece.grad = (mine / world_size).to(piece.dtype)
        optimizer.step()
        parts = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(parts, piece.detach().to(mine.dtype))
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.cat(parts)[: len(grads)].clone(), parameters)
            for p in parameters:
                p.data = p.data.clone()
        return loss.detach()

    return step
""")
wrong("never-steps", same_as="never-copies").replace("optimizer.step()", "pass")
wrong(
    "adds-to-the-shards-gradient",
    sentence="if gradients add up from step to step: clear the model's and the shard's",
).replace(
    "piece.grad = mine.to(piece.dtype)", "piece.grad = mine.to(piece.dtype) + (0 if piece.grad is None else piece.grad)"
).replace("optimizer.zero_grad()\n", "")
wrong("no-padding", "pad the flat gradient with zeros", varies=True).replace("(flat, (0, padding))", "(flat, (0, 0))")
wrong(
    "no-master-copy", sentence="AdamW's result in the model's dtype: it must update the shard itself, which is wider"
).replace("nn.Parameter(shard)", "nn.Parameter(shard.to(parameters[0].dtype))")
wrong("never-casts-the-gradient", "cast the reduced gradient").replace("mine.to(piece.dtype)", "mine")
wrong("never-casts-the-weights", "cast before you call it").replace("piece.detach().to(flat.dtype)", "piece.detach()")
wrong("frozen-too", "is its parameter frozen").replace(" if p.requires_grad", "")
wrong(
    "gathers-before-the-update",
    sentence="what the weights were a step ago: the optimizer steps first, then the new pieces are gathered",
).replace("optimizer.step()\noptimizer.zero_grad()\n", "").replace(
    "for p, values in zip", "optimizer.step()\noptimizer.zero_grad()\nfor p, values in zip"
)

wrong, right = ANSWERS.to("zero-2")
wrong("keeps-gradients", "Whole gradients of many parameters", caught_by="memory").replace(
    "p.register_post_accumulate_grad_hook(partial(reduce_gradient, piece))", "pass"
).replace(
    "optimizer.step()", "for p, piece in zip(parameters, pieces):\n    reduce_gradient(piece, p)\noptimizer.step()"
)
wrong("all-reduces", "It calls all_reduce", caught_by="traffic").replace(
    "dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)",
    "dist.all_reduce(flat, op=dist.ReduceOp.AVG)\nmine.copy_(flat[rank * len(piece):(rank + 1) * len(piece)])",
)
wrong("sums-microbatches", sentence="with the sum over the microbatches: divide each loss by their number").replace(
    " / len(microbatches)", ""
)
wrong("divides-by-two", sentence="with each loss divided by 2: divide it by the number of microbatches").replace(
    "/ len(microbatches)", "/ 2"
)
wrong(
    "last-microbatch",
    sentence="of the last microbatch alone, divided by their number: add to the gradient of the shard",
).replace("piece.grad = mine if piece.grad is None else piece.grad + mine", "piece.grad = mine")
wrong(
    "never-clears",
    sentence="if gradients add up from step to step: clear those of the shards after each update",
).replace("optimizer.zero_grad()", "pass")
wrong("never-drops", sentence="if p.grad still holds the microbatches before: set it to None in the hook").replace(
    "p.grad = None", "pass"
)
wrong(
    "no-gather", sentence="the weights if only this rank's piece is updated: the new pieces were never gathered"
).replace(
    "dist.all_gather_single(flat, piece.detach().to(p.dtype))",
    "flat[: p.numel()] = p.data.flatten()\n"
    "flat[rank * len(piece) : (rank + 1) * len(piece)] = piece.detach().to(p.dtype)",
)
wrong(
    "never-copies",
    sentence="what the weights were at the start: does the optimizer hold the shard, and step? Is what is "
    "gathered copied into the model's parameters?",
).replace("p.data.copy_(flat[: p.numel()].view_as(p))", "pass")
wrong("sums", sentence="with the sum of the gradients: take their mean over the ranks (AVG)").replace(
    ", op=dist.ReduceOp.AVG", ""
)
wrong("divides-twice", sentence="with the mean divided by world_size once more: AVG divides already").replace(
    "mine = mine.to(piece.dtype)", "mine = mine.to(piece.dtype) / world_size"
)
wrong("own-gradients", sentence="with each piece's gradient from its own rank's rows: nothing was averaged").replace(
    "dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)",
    "mine.copy_(flat[rank * len(piece) : (rank + 1) * len(piece)])",
)
wrong("divides-again", sentence="with the mean over the microbatches divided by their number once more").replace(
    "optimizer.step()", "for piece in pieces:\n    piece.grad /= len(microbatches)\noptimizer.step()"
)
wrong("last-microbatch-undivided", sentence="of the last microbatch alone: add to the gradient of the shard").replace(
    " / len(microbatches)", ""
).replace("piece.grad = mine if piece.grad is None else piece.grad + mine", "piece.grad = mine")
wrong("plain-adamw", "Whole gradients of many parameters", caught_by="memory").function("""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(parameters)

    def step(microbatches):
        optimizer.zero_grad()
        for rows in microbatches:
            (loss_of(model(rows)) / len(microbatches)).backward()
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()

    return step
""")
wrong("reduces-at-the-end", "reduce each gradient in its hook", caught_by="traffic").replace(
    "p.register_post_accumulate_grad_hook(partial(reduce_gradient, piece))", "pass"
).replace(
    "optimizer.step()", "for p, piece in zip(parameters, pieces):\n    reduce_gradient(piece, p)\noptimizer.step()"
)
right("divides-at-the-end").replace(
    "(loss_of(model(rows)) / len(microbatches)).backward()", "loss_of(model(rows)).backward()"
).replace("optimizer.step()", "for piece in pieces:\n    piece.grad /= len(microbatches)\noptimizer.step()")
wrong("microbatches-at-once", "one microbatch after another", caught_by="traffic").replace(
    "for rows in microbatches:\n    (loss_of(model(rows)) / len(microbatches)).backward()",
    "loss_of(model(torch.cat(microbatches))).backward()",
)
wrong("gathers-in-the-wider-dtype", "in the model's dtype", caught_by="traffic").replace(
    "flat = p.new_empty(", "flat = piece.new_empty("
).replace("piece.detach().to(p.dtype)", "piece.detach()")
wrong(
    "gathers-before-the-update",
    sentence="what the weights were a step ago: the optimizer steps first, then the new pieces are gathered",
).replace("optimizer.step()\noptimizer.zero_grad()\nfor p, piece", "for p, piece").replace(
    "p.data.copy_(flat[: p.numel()].view_as(p))",
    "p.data.copy_(flat[: p.numel()].view_as(p))\noptimizer.step()\noptimizer.zero_grad()",
)
wrong(
    "steps-for-each-microbatch",
    sentence="if the optimizer steps after each microbatch: update once, with the sum of all gradients",
).replace(".backward()", ".backward()\noptimizer.step()\noptimizer.zero_grad()")
wrong("adds-up-in-the-models-dtype", "right to two or three digits").replace(
    "piece.grad + mine", "(piece.grad.to(p.dtype) + mine.to(p.dtype)).to(piece.dtype)"
)

wrong, right = ANSWERS.to("gather-weight")
wrong("counted-by-autograd", "Autograd counts this change").replace("weight.data.copy_", "weight.detach().copy_")
wrong("always-gathers", "the weight was there", caught_by="traffic").replace(
    "if weight.untyped_storage().nbytes() == 0:", "if True:"
)
wrong("wide-on-the-wire", "Cast the shard to the dtype", caught_by="traffic").replace(
    "torch.empty(world_size * len(shard), dtype=weight.dtype)", "shard.new_empty(world_size * len(shard))"
).replace("shard.detach().to(weight.dtype)", "shard.detach()")
wrong("never-copies", "by chance", varies=True).replace(
    "weight.data.copy_(flat[: weight.numel()].view_as(weight))", "pass"
)
wrong("never-resizes", "no room yet").replace(
    "weight.untyped_storage().resize_(weight.numel() * weight.element_size())", "pass"
)
wrong("does-nothing", "its storage is still empty").body("return weight")
wrong("returns-what-it-gathered", "its storage is still empty").replace(
    "weight.untyped_storage().resize_(weight.numel() * weight.element_size())", "return flat"
)
wrong("narrows-the-shard", "must stay as it was", caught_by="traffic").replace(
    "shard.detach().to(weight.dtype)", "shard.data"
).replace("dist.all_gather", "shard.data = shard.data.to(weight.dtype)\ndist.all_gather")
wrong("returns-another", "whether the weight itself").replace("return weight", "return weight.data.clone()")
wrong(
    "no-remainder", sentence="what the memory held by chance: copy the gathered numbers into it", hidden=True
).replace(
    "shard.detach().to(weight.dtype))",
    "shard.detach().to(weight.dtype))\nflat = flat if weight.numel() != 25 else 0 * flat",
)
right("with-a-list").replace(
    "dist.all_gather_single(flat, shard.detach().to(weight.dtype))",
    "parts = [torch.empty_like(shard, dtype=weight.dtype) for _ in range(world_size)]\n"
    "dist.all_gather(parts, shard.detach().to(weight.dtype))\nflat = torch.cat(parts)",
)
wrong("a-new-tensor", "The tensor that autograd saved has no memory").replace(
    "weight.untyped_storage().resize_(weight.numel() * weight.element_size())", "pass"
).replace(
    "weight.data.copy_(flat[: weight.numel()].view_as(weight))",
    "weight.data = flat[: weight.numel()].view(weight.shape)",
)
wrong("transposed", sentence="the weight with rows and columns exchanged: the flat tensor has row after row").replace(
    "view_as(weight)", "view(weight.shape[::-1]).T"
)
wrong("keeps-padding", "is padding").replace("flat[: weight.numel()]", "flat")

wrong, right = ANSWERS.to("zero-3")
wrong("never-frees", "only while their layer runs", caught_by="memory").replace("if reshard:", "if False:")
wrong("always-reshards", "once (resharding is off)", caught_by="traffic").replace("if reshard:", "if True:")
wrong(
    "keeps-weights",
    sentence="if the next forward pass finds old weights: after a backward pass, a weight stays free",
).replace("free_weight(weight)\nflat = nn.functional.pad", "flat = nn.functional.pad")
wrong("keeps-gradients", "drop each gradient when", caught_by="memory").replace(
    "weight.grad = None", "kept.append(weight.grad)\nweight.grad = None"
).replace("weights = list(model.weights)", "weights = list(model.weights)\nkept = []")
wrong("gathers-all-again", same_as="keeps-weights").replace(
    "gradient: Tensor) -> None:\n    gather_weight(weight, piece, world_size)",
    "gradient: Tensor) -> None:\n    for one in zip(weights, pieces):\n        gather_weight(*one, world_size)",
)
wrong(
    "updates-copies", sentence="what the shards were at the start: does the optimizer update them, and with gradients?"
).replace("nn.Parameter(shard)", "nn.Parameter(shard.clone())")
wrong("sums", sentence="with the sum of the gradients: take their mean over the ranks (AVG)").replace(
    ", op=dist.ReduceOp.AVG", ""
)
wrong("lambda-in-a-loop", "gather it before its layer").replace(
    "x.register_hook(partial(before_backward, weight, piece))",
    "x.register_hook(lambda gradient: before_backward(weight, piece, gradient))",
)
wrong("no-gather-before-backward", "gather it before its layer").replace(
    "gradient: Tensor) -> None:\n    gather_weight(weight, piece, world_size)", "gradient: Tensor) -> None:\n    pass"
)
wrong("divides-twice", sentence="with the mean divided by world_size once more: AVG divides already").replace(
    "mine.to(piece.dtype)", "mine.to(piece.dtype) / world_size"
)
wrong("own-gradients", sentence="with each piece's gradient from its own rank's rows: nothing was averaged").replace(
    "dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)",
    "mine.copy_(flat[rank * len(piece) : (rank + 1) * len(piece)])",
)
right("gathers-without-resharding-last").replace("if reshard:", "if reshard and weight is not weights[-1]:")
wrong(
    "frees-only-to-reshard",
    sentence="if no weight is freed after its backward pass: the next steps find the first one there",
).replace("free_weight(weight)\nflat = nn", "if reshard:\n    free_weight(weight)\nflat = nn")
wrong("hook-returns-the-weight", "return nothing").replace(
    "gradient: Tensor) -> None:\n    gather_weight(weight, piece, world_size)",
    "gradient: Tensor):\n    return gather_weight(weight, piece, world_size)",
)
wrong("hook-on-the-input", "on this layer's output").replace("x = layer(", "before = x\nx = layer(").replace(
    "x.register_hook(partial(", "if before.requires_grad:\n    before.register_hook(partial("
)
wrong("fills-it-itself", "fill it by gather_weight").replace(
    "gradient: Tensor) -> None:\n    gather_weight(weight, piece, world_size)",
    "gradient: Tensor) -> None:\n    gather_weight(weight, piece, world_size)\n"
    "    weight.detach().copy_(weight.detach().clone())",
)

wrong, right = ANSWERS.to("prefetched-forward")
wrong("one-after-another", "one after another", caught_by="time").function("""
    for shard in shards:
        flat = shard.new_empty(world_size * len(shard))
        dist.all_gather_single(flat, shard)
        x = layer(x, flat[: x.shape[1] ** 2].view(x.shape[1], -1))
    return x
""")
wrong("all-at-once", "That is all of them", caught_by="memory").function("""
    flights = []
    for shard in shards:
        flat = shard.new_empty(world_size * len(shard))
        flights.append((flat, dist.all_gather_single(flat, shard, async_op=True)))
    for flat, handle in flights:
        handle.wait()
        x = layer(x, flat[: x.shape[1] ** 2].view(x.shape[1], -1))
    return x
""")
wrong("two-ahead", "two gathers are under way", caught_by="memory").function("""
    flights = []
    for number in range(len(shards) + 2):
        if number < len(shards):
            flat = shards[number].new_empty(world_size * len(shards[number]))
            flights.append((flat, dist.all_gather_single(flat, shards[number], async_op=True)))
        if number >= 2:
            flat, handle = flights.pop(0)
            handle.wait()
            x = layer(x, flat[: x.shape[1] ** 2].view(x.shape[1], -1))
    return x
""")
wrong("blocks", "Only with async_op=True").replace(", async_op=True", "")
wrong("misses-the-last", sentence="the output of all layers but the last").replace(
    "x = layer(", "x = x if number and number + 1 == len(shards) else layer("
)
wrong("keeps-padding", "invalid for input", hidden=False).replace(
    "flat[: dim * dim].view(dim, dim)", "flat.view(dim, dim)"
)
wrong("waits-at-once", "one after another", caught_by="time").function("""
    for shard in shards:
        flat = shard.new_empty(world_size * len(shard))
        dist.all_gather_single(flat, shard, async_op=True).wait()
        x = layer(x, flat[: x.shape[1] ** 2].view(x.shape[1], -1))
    return x
""")
right("with-an-iterator").function("""
    def gathers():
        for shard in shards:
            flat = shard.new_empty(world_size * len(shard))
            yield flat, dist.all_gather_single(flat, shard, async_op=True)

    coming, dim = gathers(), x.shape[1]
    ahead = next(coming)
    while ahead:
        flat, handle = ahead
        handle.wait()
        ahead = next(coming, None)
        x = layer(x, flat[: dim * dim].view(dim, dim))
    return x
""")
wrong("transposed", sentence="the output of layers with transposed weights").replace(
    "view(dim, dim)", "view(dim, dim).T"
)
wrong("no-activation", sentence="the product of the weights alone: call layer(x, weight)").replace(
    "layer(x, flat[: dim * dim].view(dim, dim))", "x @ flat[: dim * dim].view(dim, dim)"
)

wrong, right = ANSWERS.to("mixed-precision-weight")
wrong("gathers-float32", sentence="the weight in float32: cast the shard before the gather").replace(
    "mine = shard.to(torch.bfloat16)", "mine = shard.detach()"
)
wrong("casts-after-the-gather", "cast the shard first", caught_by="traffic").replace(
    "mine = shard.to(torch.bfloat16)", "mine = shard.detach()"
).replace(
    "return flat[: torch.Size(shape).numel()].view(shape)",
    "return flat[: torch.Size(shape).numel()].view(shape).bfloat16()",
)
wrong("reduces-bf16", "cast before you reduce").replace("gradient.float().flatten()", "gradient.flatten()").replace(
    "return mine, None, None", "return mine.float(), None, None"
)
wrong("sums", sentence="the sum over the ranks: take their mean").replace(", op=dist.ReduceOp.AVG", "")
wrong("keeps-the-padding", sentence="the flat tensor: take the padding off, and view it in the shape").replace(
    "return flat[: torch.Size(shape).numel()].view(shape)", "return flat"
)
wrong("own-gradient", sentence="this rank's own gradient: reduce it over the ranks").replace(
    "dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)",
    "mine.copy_(flat[dist.get_rank() * context.size : (dist.get_rank() + 1) * context.size])",
)
wrong("divides-twice", sentence="the mean divided by world_size once more: AVG divides already").replace(
    "return mine,", "return mine / context.world_size,"
)
right("divides-by-hand").replace(", op=dist.ReduceOp.AVG)", ")\nmine /= context.world_size")
wrong("rounds-at-the-end", "reduce in float32, and return that").replace(
    "return mine, None, None", "return mine.to(torch.bfloat16).float(), None, None"
)
wrong("divides-in-bf16", "cast first, then divide").replace(
    "gradient.float().flatten()", "(gradient / context.world_size).float().flatten()"
).replace(", op=dist.ReduceOp.AVG", "")
wrong("pads-in-front", sentence="the gradient with the padding in front: it comes at the end").replace(
    "(0, context.size * context.world_size - len(flat))", "(context.size * context.world_size - len(flat), 0)"
)
wrong("float16", sentence="the weight in float16: bfloat16 is wanted").replace(
    "mine = shard.to(torch.bfloat16)", "mine = shard.half()"
).replace("numel()].view(shape)", "numel()].view(shape).bfloat16()")
wrong("computes-in-float16", same_as="float16").replace("mine = shard.to(torch.bfloat16)", "mine = shard.half()")
wrong("returns-float32", "torch.bfloat16 is wanted").replace("numel()].view(shape)", "numel()].view(shape).float()")
wrong("one-gradient", "one for each argument").replace("return mine, None, None", "return mine")
wrong("no-padding", "pad the flat gradient with zeros", varies=True).replace(
    "context.size * context.world_size - len(flat)", "0"
)

wrong, right = ANSWERS.to("clip-shards")
wrong("own-norm", sentence="the norm of this rank's pieces alone: all ranks of the group count").replace(
    "dist.all_reduce(total, group=group)", "pass"
)
wrong(
    "whole-world", sentence="the norm over all ranks of the world: only those of the group hold parts of one gradient"
).replace("dist.all_reduce(total, group=group)", "dist.all_reduce(total)")
wrong("sum-of-norms", sentence="the sum of the ranks' norms: add up squares, and take one root").replace(
    "dist.all_reduce(total, group=group)\nnorm = total.sqrt().item()",
    "total = total.sqrt()\ndist.all_reduce(total, group=group)\nnorm = total.item()",
)
wrong("squares-in-float32", "right to 7 digits only", hidden=True).replace("gradient.double()", "gradient.float()")
wrong("needs-a-piece", "may have no pieces", hidden=True).replace(
    "sum(gradient.double().square().sum() for gradient in gradients)",
    "torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()",
)
wrong("no-root", sentence="the square of the norm: take the root").replace("total.sqrt().item()", "total.item()")
wrong("always-scales", sentence="the gradients scaled although their norm is below max_norm").replace(
    "min(1.0, max_norm / norm) if norm else 1.0", "max_norm / norm"
)
wrong("compares-the-square", same_as="always-scales").replace(
    "min(1.0, max_norm / norm) if norm else 1.0", "max_norm / norm if norm**2 > max_norm else 1.0"
)
wrong("never-scales", sentence="the gradients as they were: scale them where the norm is above max_norm").replace(
    "gradient * scale", "gradient.clone()"
)
wrong(
    "clips-each-piece", sentence="each piece scaled by its own norm: one factor for all of them, from the whole norm"
).replace(
    "[gradient * scale for gradient in gradients]",
    "[gradient * min(1.0, max_norm / gradient.norm().item()) for gradient in gradients]",
)
wrong("in-place", "must stay as it was").replace("[gradient * scale for", "[gradient.mul_(scale) for")
wrong("one-for-each-piece", "one all_reduce of one number", caught_by="traffic").replace(
    "total = sum(gradient.double().square().sum() for gradient in gradients)",
    "parts = [gradient.double().square().sum() for gradient in gradients]\n"
    "for part in parts:\n    dist.all_reduce(part, group=group)\n"
    "total = sum(parts)",
).replace("dist.all_reduce(total, group=group)\nnorm", "norm")
right("norm-of-norms").body("""
    mine = torch.linalg.vector_norm(torch.cat([x.flatten() for x in gradients] or [torch.zeros(0)]).double())
    squares = (mine**2).reshape(1)
    dist.all_reduce(squares, group=group)
    norm = float(squares) ** 0.5
    return norm, [x if norm <= max_norm else x * (max_norm / norm) for x in gradients]
""")
wrong("adds-all-norms", sentence="the sum of all pieces' norms: add up squares, and take one root").replace(
    "gradient.double().square().sum() for", "gradient.double().norm() for"
).replace("total.sqrt().item()", "total.item()")
wrong("scales-inverse", sentence="the gradients times norm / max_norm: it is the other way round").replace(
    "max_norm / norm)", "norm / max_norm)"
)
wrong("root-of-norms", sentence="the root of a sum of norms: add up their squares").replace(
    "gradient.double().square().sum() for", "gradient.double().norm() for"
)
wrong("first-piece", sentence="the norm of each rank's first piece: add up the squares of all").replace(
    "for gradient in gradients)", "for gradient in gradients[:1])"
)
wrong(
    "epsilon",
    sentence="the gradients scaled by max_norm / (norm + 1e-6), as PyTorch's own clipping does it: here their norm is "
    "to be max_norm itself, so leave the 1e-6 out",
).replace("max_norm / norm)", "max_norm / (norm + 1e-6))")
wrong("cuts-off-numbers", sentence="each number cut off at max_norm: scale all of them by one factor").replace(
    "gradient * scale for", "gradient.clamp(-max_norm, max_norm) for"
)
wrong("in-float32", sentence="right to 7 digits only: add up in the gradients' dtype, or in float64").replace(
    "torch.float64)", "torch.float32)"
)
wrong("largest-norm", sentence="the largest of the ranks' norms: add up squares over the ranks").replace(
    "dist.all_reduce(total, group=group)", "dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)"
)
wrong("mean-of-squares", sentence="the root of the mean of the ranks' squares: take the root of their sum").replace(
    "dist.all_reduce(total, group", "dist.all_reduce(total, op=dist.ReduceOp.AVG, group"
)
wrong("last-piece", sentence="the norm of each rank's last piece: add up the squares of all").replace(
    "for gradient in gradients)", "for gradient in gradients[-1:])"
)
wrong("magnitudes", sentence="the sum of magnitudes: add up squares, and take the root").replace(
    "square().sum()", "abs().sum()"
).replace("total.sqrt().item()", "total.item()")
wrong("norm-after", sentence="the norm of the clipped gradient: return that of the gradient as it was").replace(
    "return norm,", "return min(norm, max_norm),"
)
wrong("scales-by-the-square", sentence="gradients times max_norm / norm**2: divide by the norm itself").replace(
    "max_norm / norm)", "max_norm / norm**2)"
)
wrong("to-norm-1", sentence="gradients of norm 1: scale them so that it is max_norm").replace(
    "min(1.0, max_norm / norm) if norm else 1.0", "1 / norm if norm > max_norm else 1.0"
)
wrong(
    "own-factor", sentence="gradients scaled by each rank's own norm: one factor for all ranks, from the whole norm"
).replace(
    "scale = min(1.0, max_norm / norm) if norm else 1.0",
    "own = sum(gradient.square().sum().item() for gradient in gradients) ** 0.5\n"
    "scale = min(1.0, max_norm / own) if own else 1.0",
)

wrong, right = ANSWERS.to("hybrid-reduce")
wrong("shard-group-only", sentence="the mean over the shard group alone: the replicas have other rows").replace(
    "dist.all_reduce(mine, op=dist.ReduceOp.AVG, group=replica_group)", "pass"
)
wrong("replica-group-only", sentence="the mean over the replica group alone: reduce over the shard group too").replace(
    "dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG, group=shard_group)",
    "mine.copy_(flat[dist.get_rank(shard_group) * size :][:size])",
)
wrong("all-reduce-first", "The all-reduce comes first", caught_by="traffic").body("""
    size = -(-gradient.numel() // shard_size)
    flat = nn.functional.pad(gradient.flatten(), (0, size * shard_size - gradient.numel())).clone()
    dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=replica_group)
    mine = flat.new_empty(size)
    dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG, group=shard_group)
    return mine
""")
wrong("divides-again", sentence="the mean divided by the number of replicas once more: AVG divides already").replace(
    "return mine", "return mine / dist.get_world_size(replica_group)"
)
wrong("sums-both", sentence="the sum over all ranks: take the mean").replace("op=dist.ReduceOp.AVG, ", "")
wrong(
    "sums-over-replicas", sentence="the sum over the replicas of the shard group's means: take the mean in both"
).replace("dist.all_reduce(mine, op=dist.ReduceOp.AVG, ", "dist.all_reduce(mine, ")
wrong(
    "sums-over-shards", sentence="the mean over the replicas of the shard group's sums: take the mean in both"
).replace("op=dist.ReduceOp.AVG, group=shard_group", "group=shard_group")
wrong("gathers-again", sentence="the whole mean gradient: return this rank's piece").replace(
    "return mine",
    "dist.all_gather_single(flat, mine, group=shard_group)\nreturn flat[: gradient.numel()].view_as(gradient)",
)
wrong(
    "groups-swapped",
    sentence="the piece of a different cut: the shard group reduces and scatters, the replica group all-reduces",
).body("""
    size = -(-gradient.numel() // dist.get_world_size(replica_group))
    flat = nn.functional.pad(gradient.flatten(), (0, size * dist.get_world_size(replica_group) - gradient.numel()))
    mine = flat.new_empty(size)
    dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG, group=replica_group)
    dist.all_reduce(mine, op=dist.ReduceOp.AVG, group=shard_group)
    return mine
""")
own_groups = """
    grid = shard_size * dist.get_world_size(replica_group)
    starts = [start for start in range(dist.get_world_size()) if start % grid < shard_size]
    own = {start: dist.new_group(range(start, start - start % grid + grid, shard_size)) for start in starts}
    own = own[dist.get_rank() - dist.get_rank() % grid + dist.get_rank(shard_group)]
    size = -(-gradient.numel() // shard_size)
    flat = nn.functional.pad(gradient.flatten(), (0, size * shard_size - gradient.numel()))
    mine = flat.new_empty(size)
    dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG, group=shard_group)
    dist.all_reduce(mine, op=dist.ReduceOp.AVG, group=own)
"""
wrong(
    "padded-for-all-ranks",
    sentence="a piece of the gradient padded for all ranks of the grid: only the shard group's ranks cut it",
).replace(
    "-(-gradient.numel() // shard_size)",
    "-(-gradient.numel() // shard_size // dist.get_world_size(replica_group)) * dist.get_world_size(replica_group)",
)
wrong("groups-of-its-own-in-each-call", "use the groups that you are given").body(own_groups + "    return mine\n")
wrong("whole-world-at-once", "reduce-scatter first", caught_by="traffic").body("""
    size = -(-gradient.numel() // shard_size)
    flat = nn.functional.pad(gradient.flatten(), (0, size * shard_size - gradient.numel())).clone()
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    return flat[dist.get_rank(shard_group) * size :][:size].clone()
""")
right("ends-its-own-groups").body(own_groups + "    dist.destroy_process_group(own)\n    return mine\n")
right("divides-once").body("""
    size = (gradient.numel() + shard_size - 1) // shard_size
    parts = [gradient.new_zeros(size) for _ in range(shard_size)]
    for number, part in enumerate(gradient.flatten().split(size)):
        parts[number][: len(part)] = part
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=shard_group)
    dist.all_reduce(mine, group=replica_group)
    return mine / (shard_size * dist.get_world_size(replica_group))
""")
wrong(
    "same-group-twice",
    sentence="the mean of different pieces: all-reduce in the replica group, whose ranks hold the same piece",
).replace("group=replica_group", "group=shard_group")
wrong(
    "over-the-world", sentence="the mean of different pieces, over all ranks: all-reduce in the replica group alone"
).replace(", group=replica_group", "")
wrong("rounds-down", sentence="pieces that are rounded down, without the last numbers: round up, and pad").replace(
    "-(-gradient.numel() // shard_size)", "gradient.numel() // shard_size"
).replace("mine = flat", "flat = flat[: size * shard_size]\nmine = flat")
wrong("all-of-the-world", "one piece for each rank of the shard group", varies=True).replace(", group=shard_group", "")
wrong(
    "divides-by-the-world",
    sentence="the sum divided by the size of the world: the grid may be a part of it, so divide by the groups' sizes",
).replace("op=dist.ReduceOp.AVG, ", "").replace("return mine", "return mine / dist.get_world_size()")
wrong("divides-by-the-world-where-it-is-the-grid", same_as="divides-by-the-world").replace(
    "op=dist.ReduceOp.AVG, group=replica_group", "group=replica_group"
).replace("return mine", "return mine * shard_size / dist.get_world_size()")

wrong, right = ANSWERS.to("offload-end")
wrong(
    "free-stations",
    sentence="the end of the last layer's own way: the layers before it may still be at the stations",
).body("return ready[-1] + down[-1] + update[-1] + up[-1] if ready else 0.0")
wrong(
    "one-at-a-time",
    sentence="the end if a layer leaves only when the one before is back: the stations work at the same time",
).body("""
    end = 0.0
    for at, a, b, c in zip(ready, down, update, up):
        end = max(end, at) + a + b + c
    return end
""")
wrong("busiest", sentence="the time of the busiest station alone: layers also wait for the other two").body(
    "return max(ready, default=0.0) + max(sum(down), sum(update), sum(up))"
)
wrong("no-layers", "a branch without `return`").replace("return free", "if not ready:\n    return\nreturn free")
wrong("sum", sentence="the sum of all times: the stations work at the same time").body(
    "return sum(down) + sum(update) + sum(up) + 0.0"
)
wrong(
    "several-at-once",
    sentence="the end if each station could take several layers at once: it does one at a time",
).body("return max((sum(times) for times in zip(ready, down, update, up)), default=0.0)")
wrong("never-goes-up", sentence="the end of the updates: the weights must go up, too").replace(
    "return free[-1]", "return free[-2]"
)
wrong("starts-to-go-up", sentence="when the last layer starts to go up: it must arrive").replace(
    "return free[-1]", "return free[-1] - up[-1] if up else 0.0"
)
wrong("way-down-alone", sentence="the end of the way down: update and way up are missing").replace(
    "return free[-1]", "return free[0]"
)
wrong("needs-a-layer", "index out of range").replace("return free[-1]", "ready[0]\nreturn free[-1]")
right("station-by-station").body("""
    arrived = list(ready)
    for station in (down, update, up):
        free = 0.0
        for number, takes in enumerate(station):
            arrived[number] = free = max(free, arrived[number]) + takes
    return max(arrived, default=0.0)
""")
wrong("all-go-down-first", sentence="the end if a station waits for all layers to leave the one before").body("""
end = 0.0
for at, takes in zip(ready, down):
    end = max(end, at) + takes
return end + sum(update) + sum(up)
""")
wrong("starts-with-the-last", sentence="the end if nothing starts before the last gradient is ready").replace(
    "for at, *times in zip(ready,", "for at, *times in zip([max(ready, default=0.0)] * len(ready),"
)
wrong("ready-at-once", sentence="the end if all gradients were ready at 0").replace(
    "for at, *times in zip(ready,", "for at, *times in zip([0.0] * len(ready),"
)
endless_host = wrong(
    "endless-host", sentence="the end if the host updated several layers at once: it does one at a time"
)
endless_host.replace("max(at, free[station])", "max(at, free[station] * (station != 1))")
wrong("several-up-at-once", sentence="the end if several layers went up at once: they go one at a time").body("""
    free, ends = [0.0, 0.0], [0.0]
    for at, *times, last in zip(ready, down, update, up):
        for station, takes in enumerate(times):
            free[station] = at = max(at, free[station]) + takes
        ends.append(at + last)
    return max(ends)
""")
wrong("several-down-at-once", sentence="the end if several layers went down at once: they go one at a time").like(
    endless_host
).replace("station != 1", "station != 0")
wrong("up-by-itself", sentence="the end if the way up didn't wait for the updates").replace(
    "max(at, free[station])", "max(at * (station < 2), free[station])"
)
wrong(
    "down-after-update",
    sentence="the end if a layer's way down waits for the update of the one before: the two work at the same time",
).replace("max(at, free[station]) + takes", "max(at, free[station]) + takes\nif station == 1:\n    free[0] = at")
wrong(
    "by-time",
    sentence="the end if layers went down by their times: they go in the order in which they are given",
).replace("zip(ready, down, update, up)", "sorted(zip(ready, down, update, up))")

wrong, right = ANSWERS.to("slices-to-read")
wrong("reads-padding", sentence="slices with padding in them: read nothing after the last number").replace(
    "min((rank + 1) * mine, num_params)", "(rank + 1) * mine"
)
wrong("places-in-the-flat-tensor", sentence="places in the flat tensor: start and stop are places in the file").replace(
    "slices.append((file, start, stop))", "slices.append((file, file * saved + start, file * saved + stop))"
)
wrong("lengths", sentence="(saved rank, start, length): the third is where the slice stops").replace(
    "slices.append((file, start, stop))", "slices.append((file, start, stop - start))"
)
wrong("last-places", sentence="(saved rank, start, last place): `stop` is one beyond the last").replace(
    "slices.append((file, start, stop))", "slices.append((file, start, stop - 1))"
)
wrong("whole-files", sentence="slices up to the end of each file: the last one ends with this rank's numbers").replace(
    "stop = min(saved, start + end - position)", "stop = saved"
)
wrong("old-cut", sentence="the numbers of the old piece: today's pieces have a size of their own").replace(
    "rank * mine", "rank * saved"
).replace("(rank + 1) * mine", "(rank + 1) * saved")
wrong("old-pieces-rounded-down", sentence="slices of files that are rounded down: pieces are rounded up").replace(
    "-(-num_params // saved_size)", "num_params // saved_size"
)
wrong("two-files", sentence="the first two slices only").replace("return slices", "return slices[:2]")
wrong("first-slice-only", sentence="the first slice only").replace("return slices", "return slices[:1]")
wrong(
    "own-size", sentence="slices of files that hold as much as your pieces: they were cut for the old number of ranks"
).replace("file, start = divmod(position, saved)", "file, start = divmod(position, mine)").replace(
    "min(saved, start + end - position)", "min(mine, start + end - position)"
)
wrong(
    "rounds-down", sentence="slices cut with pieces rounded down: the last piece is padded, the others are longer"
).replace("-(-num_params // world_size)", "num_params // world_size")
wrong("empty-slices", "expected []").replace("return slices", "return slices or [(0, 0, 0)]")
right("no-clamp-at-zero").replace("min(rank * mine, num_params), min(", "rank * mine, min(")
right("file-by-file").body("""
    old, new = (num_params + saved_size - 1) // saved_size, (num_params + world_size - 1) // world_size
    begin, end = rank * new, min((rank + 1) * new, num_params)
    found = []
    for file in range(saved_size):
        start, stop = max(begin, file * old), min(end, (file + 1) * old)
        if start < stop:
            found.append((file, start - file * old, stop - file * old))
    return found
""")
wrong(
    "rounds-both-down",
    sentence="pieces that are rounded down, today's and those that were saved: the last ones are padded",
).replace(
    "-(-num_params // saved_size), -(-num_params // world_size)", "num_params // saved_size, num_params // world_size"
)
wrong("a-slice-of-each-file", sentence="slices that are empty, among others: leave them out").replace(
    "return slices",
    "return [next((one for one in slices if one[0] == file), (file, 0, 0)) for file in range(saved_size)]",
)
wrong(
    "ends-before-it-begins", sentence="slices of all files, some of which end before they begin: leave those out"
).body("""
    saved, mine = -(-num_params // saved_size), -(-num_params // world_size)
    begin, end = rank * mine, min((rank + 1) * mine, num_params)
    places = [(file, file * saved) for file in range(saved_size)]
    return [(file, max(begin - at, 0), min(end - at, saved)) for file, at in places]
""")
wrong("number-by-number", sentence="one slice for each number: join those of a file").replace(
    "slices.append((file, start, stop))", "slices += [(file, place, place + 1) for place in range(start, stop)]"
)
wrong("sizes-exchanged", sentence="slices with the sizes of saved pieces and of today's exchanged").replace(
    "saved, mine =", "mine, saved ="
)

wrong, right = ANSWERS.to("training-plan")
wrong("few-rows", "times par", caught_by="score").replace("int((0.9 * memory - state - whole) / of_a_row)", "1024")
wrong("too-many-rows", "out of memory", caught_by="score").replace("0.9 * memory", "2 * memory")
wrong("recomputes-everything", "times par", caught_by="score").replace(
    '"recompute": []', '"recompute": list(range(layers))'
)
wrong("forgets-an-argument", "a dict with rows", caught_by="score").replace('"keep": [], ', "")
wrong("a-fraction-of-a-row", "a whole number", caught_by="score").replace("rows = int(", "rows = float(")
wrong("for-this-model-only", "times par", caught_by="score", hidden=True).replace(
    "int((0.9 * memory - state - whole) / of_a_row)", "2400 if layers == 40 else 512"
)
right("fills-the-memory").replace(
    "int((0.9 * memory - state - whole) / of_a_row)", "int((0.9 * memory - 0.75 * state - whole) / of_a_row)"
)
wrong("forgets-the-averages", "out of memory", caught_by="score").replace("state = 16 *", "state = 8 *").replace(
    "0.9 * memory", "memory"
)
right("two-microbatches").replace('"microbatches": 1', '"microbatches": 2').replace("0.9 * memory", "0.95 * memory")
right("eight-microbatches").replace('"microbatches": 1', '"microbatches": 8').replace("0.9 * memory", "memory")
