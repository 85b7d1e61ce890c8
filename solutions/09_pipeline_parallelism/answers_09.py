"""Answers to lesson 09, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("split-layers")
wrong("pieces-of-ceil", "pieces of ceil(layers / P)").body("""
    size = -(-len(weights) // world_size)
    return weights[rank * size : (rank + 1) * size]
""")
wrong("rest-on-the-last", "all leftover layers on the last rank").body("""
    size = len(weights) // world_size
    return weights[rank * size :] if rank == world_size - 1 else weights[rank * size : (rank + 1) * size]
""")
wrong("every-pth", "every P-th layer").body("return weights[rank::world_size]")
wrong("drops-the-rest", "belong to no rank").body("""
    size = len(weights) // world_size
    return weights[rank * size : (rank + 1) * size]
""")
wrong("larger-last", "the larger ones are not on the first ranks").body(
    "return weights[rank * len(weights) // world_size : (rank + 1) * len(weights) // world_size]"
)
wrong("never-empty", "rank", hidden=True).replace("(rank < more)]", "(rank < more)] or weights[-1:]")
wrong("starts-not-shifted", "after all stages before it").replace(" + min(rank, more)", "")
wrong("one-rank-too-many", "until none is left over").replace("(rank < more)", "(rank <= more)")
right("deals-them-out").body("""
    sizes = [len(weights[r::world_size]) for r in range(world_size)]
    start = sum(sizes[:rank])
    return tuple(weights[start : start + sizes[rank]])
""")

wrong, right = ANSWERS.to("naive-forward")
wrong("sends-its-input-on", "each rank applies its layers before it sends").replace("send(y", "send(x.contiguous()")
wrong("rank-0-receives-too", "Nothing comes before rank 0").replace(
    "if rank > 0:\n    dist.recv(x, src=rank - 1)", "dist.recv(x, src=max(rank - 1, 0))"
)
wrong("never-receives", "finished without receiving it").replace("dist.recv(x, src=rank - 1)", "pass")
wrong("broadcasts", "your function calls broadcast", caught_by="traffic").body("""
    x = x.clone()
    for stage in range(world_size):
        if rank == stage:
            x = mlp.forward(weights, x)
        dist.broadcast(x, src=stage)
    y = x
    return x if rank == world_size - 1 else None
""")
wrong("barrier", "leave the barrier out", caught_by="traffic").replace("return y", "dist.barrier()\nreturn y")
wrong("receives-into-its-input", "must stay as it was. `x = batch`").replace("recv(x", "recv(x := batch")
wrong("buffer-of-one-dtype", "to have the same dtype", hidden=True).replace(
    "dist.recv(x, src=rank - 1)", "x = torch.empty(batch.shape, dtype=torch.float64)\ndist.recv(x, src=rank - 1)"
)
wrong("last-rank-idle", "it applies its layers, too").replace(
    "mlp.forward(weights, x)", "mlp.forward(weights, x) if rank < world_size - 1 else x.clone()"
)
wrong("own-batch", "its input is what arrives").replace("mlp.forward(weights, x)", "mlp.forward(weights, batch)")
right("irecv-isend").replace("dist.recv(x, src=rank - 1)", "dist.irecv(x, src=rank - 1).wait()").replace(
    "dist.send(y, dst=rank + 1)", "dist.isend(y, dst=rank + 1).wait()"
)

wrong, right = ANSWERS.to("microbatch-forward")
wrong("equal-lengths", "that tensor stays as it was").replace("like(microbatch)", "like(batch[:micro_batch_size])")
wrong("sends-the-input-on", "each rank applies its layers before it sends").replace("send(y", "send(x")
wrong("sends-at-the-end", "one after another. Send", caught_by="time").replace(
    "dist.send(y, dst=rank + 1)", "pass"
).replace(
    "return torch", "for y in outputs if rank < world_size - 1 else []:\n    dist.send(y, dst=rank + 1)\nreturn torch"
)
wrong("twice", "compute each microbatch twice", caught_by="time").replace(
    "append(y)", "append(mlp.forward(weights, x))"
)
wrong("one-behind", "rank 0 computes more than its first microbatch", caught_by="time").replace(
    "dist.send(y, dst=rank + 1)", "[dist.send(x, dst=rank + 1) for x in outputs[-1:]]"
).replace("return torch", "if rank < world_size - 1:\n    dist.send(y, dst=rank + 1)\nreturn torch")
wrong("one-behind-later", "rank 1 receives the next microbatch before", caught_by="time").replace(
    "dist.send(y, dst=rank + 1)", "[dist.send(x, dst=rank + 1) for x in ([y] if rank == 0 else outputs[-1:])]"
).replace("return torch", "if 0 < rank < world_size - 1:\n    dist.send(y, dst=rank + 1)\nreturn torch")
wrong("whole-batch", "the whole batch at once").function("return naive_forward(batch, weights, rank, world_size)")
wrong("pieces-by-their-number", "the number of rows in a microbatch").replace("batch.split", "batch.chunk")
wrong("keeps-the-last-alone", "the last microbatch alone").replace("outputs.append(y)", "outputs = [y]")
wrong("receives-once", "finished without receiving it").replace("if rank > 0:", "if rank > 0 and not outputs:")
wrong("never-one-row", "returned", hidden=True).replace("send(y", "send(y if len(y) > 1 else 0 * y")
wrong("last-first", "in reverse order").replace("torch.cat(outputs)", "torch.cat(outputs[::-1])")
wrong("full-ones-alone", "without the last rows").replace(
    "in batch.split(micro_batch_size):", "in batch.split(micro_batch_size)[: len(batch) // micro_batch_size]:"
)
wrong("receives-into-a-view", "that `split` gives are views").replace("torch.empty_like(microbatch)", "microbatch")
wrong("stacks", "torch.cat").replace("torch.cat(outputs)", "torch.stack(outputs)")
right("isend-and-wait-later").function("""
    outputs, handles = [], []
    for start in range(0, len(batch), micro_batch_size):
        x = batch[start : start + micro_batch_size].clone()
        if rank > 0:
            dist.recv(x, src=rank - 1, tag=start)
        outputs.append(mlp.forward(weights, x))
        if rank < world_size - 1:
            handles.append(dist.isend(outputs[-1], dst=rank + 1, tag=start))
    for handle in handles:
        handle.wait()
    if rank == world_size - 1:
        return torch.cat(outputs)
""")

wrong, right = ANSWERS.to("bubble-shares")
wrong("the-busy-share", "the bubble is the rest").replace("return idle", "return num_microbatches")
wrong("one-too-few", "one too few").replace("microbatches, enough", "microbatches, enough - 1")
wrong("wrong-way-round", "the wrong way round").replace(
    "return idle / (num_microbatches + idle), idle / num_microbatches, enough",
    "return idle / num_microbatches, idle / (num_microbatches + idle), enough",
)
wrong("p-slots", "P slots of bubble").replace("idle = num_stages - 1", "idle = num_stages")
wrong("slots-are-m-plus-p", "there are M + P - 1 slots").replace("microbatches + idle", "microbatches + num_stages")
wrong("enough-for-the-ideal", "here the total counts").replace("idle / (enough + idle)", "idle / enough")
wrong("one-too-many", "one fewer would do").replace("microbatches, enough", "microbatches, enough + 1")
wrong("int-plus-one", "is exactly `most`, which is enough").replace(
    "return idle", "enough = int(idle * (1 - most) / most) + 1\nreturn idle"
)
wrong("begins-at-m", "begin with one").replace("enough = 1", "enough = num_microbatches")
wrong("at-least-p", "the smallest M", hidden=True).replace("enough = 1", "enough = min(num_stages, 3)")
wrong("percent", "a percentage").replace("idle / (num_microbatches + idle)", "100 * idle / (num_microbatches + idle)")
right("by-formula").body("""
    from fractions import Fraction
    from math import ceil
    idle, share = num_stages - 1, Fraction(str(most))
    enough = max(1, ceil(idle * (1 - share) / share))
    return [idle / (num_microbatches + idle), idle / num_microbatches, enough]
""")

wrong, right = ANSWERS.to("backward-across")
wrong("sends-output-grad", "Is it the .grad of a tensor that has none").replace("x.grad", "y.grad")
wrong("sends-retained-output-grad", "if each rank sends back the one of its output").replace(
    "x.requires_grad_()", ""
).replace("if rank <", "y.retain_grad()\nif rank <").replace("x.grad", "y.grad")
wrong("no-requires-grad", "Is it the .grad of a tensor that has none").replace("x.requires_grad_()", "pass")
wrong("own-loss", "the rank's own y is the loss").replace("y.backward(gradient)", "mlp.loss_of(y).backward()")
wrong("passes-on-what-it-received", "if a rank passes on the one that it received").replace(
    "dist.send(x.grad", "dist.send(x.grad if rank == world_size - 1 else gradient"
)
wrong("sends-back-x", "if a rank sends back x itself").replace("dist.send(x.grad", "dist.send(x.detach()")
wrong("sends-x-on", "if each rank sends on its x").replace("dist.send(y.detach()", "dist.send(x.detach()")
wrong("sends-in-float32", "the batch's dtype", caught_by="traffic").replace("x.grad", "x.grad.float()").replace(
    "torch.empty_like(y)", "torch.empty(y.shape)"
).replace("y.backward(gradient)", "y.backward(gradient.to(y.dtype))")
wrong("gradient-of-ones", "a gradient of ones").replace("y.backward(gradient)", "y.sum().backward()")
wrong("receives-from-the-wrong-side", "is a src or a dst wrong").replace("src=rank + 1", "src=rank - 1 if rank else 1")
wrong("first-rank-sends-too", "can't send to itself").replace(
    "if rank > 0:\n    dist.send(x.grad, dst=rank - 1)",
    "dist.send(x.grad if rank else batch.clone(), dst=max(rank - 1, 0))",
)
wrong("twice-the-traffic", "bytes", caught_by="traffic").replace(
    "gradient = torch.empty_like(y)", "both = torch.empty(2, *y.shape, dtype=y.dtype)"
).replace("dist.recv(gradient, src=rank + 1)", "dist.recv(both, src=rank + 1)").replace("gradient", "both[0]").replace(
    "x.grad", "torch.stack([x.grad, x.detach()])"
)
wrong("gradients-of-the-given-weights", "differentiate copies").function("""
    leaves = [weight.requires_grad_() for weight in weights]
    x = batch.clone() if rank == 0 else torch.empty_like(batch)
    if rank > 0:
        dist.recv(x, src=rank - 1)
        x.requires_grad_()
    y = mlp.forward(leaves, x)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
    else:
        mlp.loss_of(y).backward()
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)
    return [leaf.grad for leaf in leaves]
""")
right("with-autograd-grad").function("""
    leaves = [weight.clone().requires_grad_() for weight in weights]
    x = batch.clone()
    if rank > 0:
        dist.recv(x, src=rank - 1)
    x.requires_grad_()
    y = mlp.forward(leaves, x)
    gradient = torch.empty_like(y)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        dist.recv(gradient, src=rank + 1)
    else:
        [gradient] = torch.autograd.grad(mlp.loss_of(y), y, retain_graph=True)
    of_x, *of_leaves = torch.autograd.grad(y, [x, *leaves], gradient)
    if rank > 0:
        dist.send(of_x, dst=rank - 1)
    return of_leaves
""")

SHARE = "(len(microbatch) / len(batch))"
wrong, right = ANSWERS.to("accumulate-gradients")
wrong("not-divided", "it is M times too large").replace(" * (len(microbatch) / len(batch))", "")
wrong("divided-by-m", "weighted by 1 / M").replace(SHARE, "(1 / len(batch.split(micro_batch_size)))")
wrong("weights-by-size", "weighted by micro_batch_size / B").replace("len(microbatch)", "micro_batch_size")
wrong("zeroed-in-between", "don't zero the gradients in between").replace(
    "loss.backward()", "[setattr(leaf, 'grad', None) for leaf in leaves]; loss.backward()"
)
wrong("loss-of-the-last", "the last microbatch alone").replace("total += loss.detach()", "total = loss.detach()")
wrong("keeps-every-graph", "still holds a tensor").replace(
    "total += loss.detach()",
    "total += loss.detach(); accumulate_gradients.__dict__.setdefault('losses', []).append(loss)",
)
wrong("one-backward", "one backward() for all", caught_by="memory").replace("loss.backward()", "pass").replace(
    "total += loss.detach()", "total = total + loss"
).replace("return total", "total.backward()\nreturn total.detach()")
wrong("retains-the-graph", "retain_graph=True keep", caught_by="memory").replace(
    "backward()", "backward(retain_graph=True)"
).replace("total += loss.detach()", "total = total + loss")
wrong("row-by-row", "shorter ones take longer", caught_by="memory").replace("split(micro_batch_size)", "split(1)")
wrong("by-torch-func", "torch.func doesn't say", caught_by="memory").function("""
    value = torch.func.grad_and_value(lambda of, part: mlp.loss_of(mlp.forward(of, part)) * len(part) / len(batch))
    of_parts = [value(list(weights), part) for part in batch.split(micro_batch_size)]
    return sum(loss for _, loss in of_parts), [sum(of) for of in zip(*(gradients for gradients, _ in of_parts))]
""")
wrong("large-microbatches", "weights[0] is", hidden=True).replace("len(batch)", "max(len(batch), micro_batch_size)")
wrong("by-the-rows-alone", "weighted by 1 / B").replace(SHARE, "(1 / len(batch))")
wrong("by-the-full-ones", "one over the full microbatches").replace(
    SHARE, "(1 / max(1, len(batch) // micro_batch_size))"
)
right("scales-at-the-end").function("""
    total, gradients = 0, [torch.zeros_like(w) for w in weights]
    for part in batch.split(micro_batch_size):
        leaves = [w.clone().requires_grad_() for w in weights]
        loss = mlp.loss_of(mlp.forward(leaves, part)) * len(part)
        for gradient, of_part in zip(gradients, torch.autograd.grad(loss, leaves)):
            gradient += of_part
        total = total + loss
    return total / len(batch), tuple(gradient / len(batch) for gradient in gradients)
""")

wrong, right = ANSWERS.to("gpipe")
wrong("backwards-reversed", "That is the reverse order").body(
    'return [("F", m) for m in range(num_microbatches)] + [("B", m) for m in reversed(range(num_microbatches))]'
)
pairs = 'return [(kind, m) for m in range(num_microbatches) for kind in "FB"]'
wrong("one-by-one", "all forwards first").body(pairs)
wrong("one-at-a-time", "The bubble is", caught_by="time").body(pairs)
wrong("forgets-the-last", "never does").replace("range(num_microbatches)", "range(num_microbatches - 1)")
wrong("backwards-only-on-the-last", "never does B0").body("""
    kinds = ("F", "B") if rank == world_size - 1 else ("F",)
    return [(kind, m) for kind in kinds for m in range(num_microbatches)]
""")
wrong("names-only", "a step is").replace("(kind, m)", 'f"{kind}{m}"')
wrong("as-many-as-ranks", "neither forward nor backward").replace("range(num_microbatches)", "range(world_size)")
right("with-chunk-0").body(
    'return [["F", m, 0] for m in range(num_microbatches)] + [["B", m, 0] for m in range(num_microbatches)]'
)

wrong, right = ANSWERS.to("live-microbatches")
wrong("counts-the-steps", "the number of steps").body("most += 1")
wrong("counts-forwards", "the number of all forwards").body('live += kind == "F"\nmost = live')
wrong("at-the-end", "keep track of the largest").replace("max(most, live)", "live")
wrong("warm-up-only", "the number of forwards before the first backward").body("""
    live += 1
    if kind == "F" and most == live - 1:
        most = live
""")
wrong("never-more-than-four", "it returned", hidden=True).replace("max(most, live)", "min(4, max(most, live))")
wrong("longest-run", "the most forwards in a row").body('live = live + 1 if kind == "F" else 0\nmost = max(most, live)')
wrong("after-its-end", "already live during its F").replace("max(most, live)", 'max(most, live * (kind == "B"))')
wrong("one-more", "one too many").replace("max(most, live)", "max(most, live + 1)")
right("looks-before-it-counts").body('most = max(most, live)\nlive += 1 if kind == "F" else -1')

AHEAD = "min(world_size - 1 - rank, num_microbatches)"
COOL_DOWN = "backward[num_microbatches - ahead :]"
wrong, right = ANSWERS.to("one-f-one-b")
wrong("warm-up-one-too-long", "Its warm-up is 1 too long", caught_by="memory").replace("world_size - 1", "world_size")
wrong("warm-up-one-too-short", "is too short", caught_by="time").replace(
    "world_size - 1 - rank", "max(world_size - 2 - rank, 0)"
)
wrong("warm-up-not-capped", "never more than the forwards").replace(AHEAD, "world_size - 1 - rank")
wrong("warm-up-by-rank", "it is the other way round").replace("world_size - 1 - rank", "rank")
wrong("backward-first-in-the-pair", "before F0").replace("steps += [f, b]", "steps += [b, f]")
wrong("newest-first", "in reverse order").replace("backward):", "backward[::-1]):").replace(
    COOL_DOWN, "backward[:ahead][::-1]"
)
wrong("no-cool-down", "Are the backwards after the last forward missing").replace(f"steps += {COOL_DOWN}", "pass")
wrong("gpipe-again", "as in GPipe", caught_by="memory").replace(AHEAD, "num_microbatches")
wrong("same-on-every-rank", "too long", caught_by="memory").replace("world_size - 1 - rank", "world_size - 1")
wrong("two-by-two", "two of the same kind in a row").body("""
    ahead = min(world_size - 1 - rank, num_microbatches)
    steps, pairs = forward[:ahead], list(zip(forward[ahead:], backward))
    for start in range(0, len(pairs), 2):
        steps += [step for same_kind in zip(*pairs[start : start + 2]) for step in same_kind]
    steps += backward[num_microbatches - ahead :]
""")
wrong("knows-four-ranks", "live on rank", caught_by="memory", hidden=True).replace(
    "world_size - 1", "world_size - 1 - rank if world_size == 4 else world_size"
)
wrong("whole-list", "is the whole list").replace(COOL_DOWN, "backward[-ahead:]")
wrong("cool-down-too-long", "only the last `ahead`").replace(COOL_DOWN, "backward[ahead:]")
right("as-in-torch").replace("world_size - 1", "world_size").replace(
    "for f, b in zip(forward[ahead:], backward):", "for b, f in zip(backward, forward[ahead:]):"
).replace("[f, b]", "[b, f]")

BATCH = "handles = dist.batch_isend_irecv(outgoing + receive)"
wrong, right = ANSWERS.to("run-schedule")
wrong("one-call-each-way", "would be stuck on NCCL", caught_by="traffic").replace(
    BATCH,
    "handles = dist.batch_isend_irecv(outgoing) if outgoing else []\nif receive:\n"
    "    handles += dist.batch_isend_irecv(receive)",
)
wrong("isend-and-recv", "would be stuck on NCCL", caught_by="traffic").replace(
    BATCH,
    "handles = [dist.isend(op.tensor, op.peer) for op in outgoing]\nfor op in receive:\n"
    "    handles.append(dist.irecv(op.tensor, op.peer))",
)
wrong("with-tags", "NCCL ignores tags", caught_by="traffic").replace("x.grad, before", "x.grad, before, tag=m").replace(
    "gradient, after", "gradient, after, tag=m"
)
wrong("sends-first-and-waits", "Everyone sends first").replace(
    BATCH,
    "for op in outgoing:\n    dist.send(op.tensor, op.peer)\n"
    "handles = dist.batch_isend_irecv(receive) if receive else []",
).replace("sends += zip(handles, outgoing)", "pass")
wrong("never-hands-over-the-last", "after the last step handed over").replace("hand_over(outgoing, [], sends)", "pass")
wrong("handles-dropped", "never waited for it", caught_by="memory").replace("sends += zip(handles, outgoing)", "pass")
wrong("reads-before-it-arrives", "rank").replace("handles[-1].wait()", "sends.append((handles[-1], receive))")
wrong("waits-for-the-first-handle", "rank").replace("handles[-1].wait()", "handles[0].wait()")
wrong("sends-output-grad", "is it the .grad of x").replace("P2POp(dist.isend, x.grad", "P2POp(dist.isend, y.grad")
wrong("passes-on-what-it-received", "if a rank passes on the one that it received").replace(
    "dist.isend, x.grad", "dist.isend, x.grad if stage == last else gradient"
)
wrong("sends-x-on", "if each rank sends on its x").replace("y.detach(), after", "x.detach(), after")
wrong("no-requires-grad", "did x require a gradient").replace("x.requires_grad_(stage > 0)", "pass")
wrong("last-in-first-out", "take out what its own F has kept").replace(
    "kept[c, m] = x, y", "kept[len(kept)] = x, y"
).replace("kept.pop((c, m))", "kept.popitem()[1]")
wrong("pieces-of-equal-length", "rank 0 sent messages of", caught_by="traffic", hidden=True).replace(
    "batch.split(micro_batch_size)", "batch.chunk(-(-len(batch) // micro_batch_size))"
)
wrong("keeps-gradients", "keep what is sent in `sends` alone", caught_by="memory").replace(
    "gradient = torch.empty_like(y)", "gradient = kept[c, m, 0] = torch.empty_like(y)"
)
wrong("gradient-by-rank", "every stage but the last receives one").replace(
    "gradient, after)] if stage < last", "gradient, after)] if rank < world_size - 1"
).replace("gradient = torch.empty_like(y)\n", "if rank < world_size - 1:\n    gradient = torch.empty_like(y)\n")
wrong("kept-for-ever", "kept[...] or a list", caught_by="memory").replace("kept.pop((c, m))", "kept[c, m]")
wrong("zeroed-in-between", "don't zero the gradients in between").replace(
    "x, y = kept.pop((c, m))", "x, y = kept.pop((c, m))\nfor leaf in leaves[c]:\n    leaf.grad = None"
)
wrong("keeps-without-the-chunk", "with the chunk in it").replace("kept[c, m]", "kept[m]").replace("(c, m)", "m")
wrong("first-rank-instead-of-first-stage", "Ask for `stage`").replace(
    "x, before)] if stage > 0", "x, before)] if rank > 0"
)
wrong("buffer-of-one-dtype", "have different dtypes", hidden=True).replace(
    "gradient = torch.empty_like(y)", "gradient = torch.empty(y.shape, dtype=torch.float64)"
)
wrong("last-rank", "only stage 5 sends no output").replace(
    "(), after)] if stage < last", "(), after)] if rank < world_size - 1"
)
wrong("all-forwards-first-whatever-the-steps", "doesn't take its steps in the order", caught_by="traffic").replace(
    "in steps:", 'in sorted(steps, key=lambda step: step[0] == "B"):'
)
wrong("detaches-y", "send y.detach()").replace("kept[c, m] = x, y", "kept[c, m] = x, y.detach()")
right("sends-y-with-its-graph").replace("y.detach(), after", "y, after")
wrong("first-rank-takes-the-batch", "only stage 0 takes its input from the batch").replace(
    "if stage == 0", "if rank == 0"
).replace("x, before)] if stage > 0", "x, before)] if rank > 0").replace(
    "x.grad, before)] if stage", "x.grad, before)] if rank"
)
wrong("asks-for-the-rank-everywhere", "rank 0 sent 4 messages").replace("stage > 0", "rank > 0").replace(
    "stage == 0", "rank == 0"
).replace("stage < last", "rank < world_size - 1")
wrong("first-chunk-takes-the-batch", "an x that required no gradient").replace("if stage == 0", "if rank == 0").replace(
    "x, before)] if stage > 0", "x, before)] if rank > 0"
).replace("requires_grad_(stage > 0)", "requires_grad_(rank > 0)")
wrong("always-receives", "No message goes between ranks 0 and 2").replace(
    "x, before)] if stage > 0 else []", "x, before)]"
)
wrong("key-of-two-arguments", "is one tuple: pop((m, c))").replace("kept.pop((c, m))", "kept.pop(c, m)")
wrong("list-in-the-key", "take its number, c").replace("kept[c, m]", "kept[m, chunk]").replace("(c, m)", "(m, chunk)")
wrong("gradient-in-float32", "have different dtypes").replace("torch.empty_like(y)", "torch.empty(y.shape)")
wrong("waits-for-every-handle", "Each waits for the next: rank 0 sends to rank 1").replace(
    "handles[-1].wait()", "[handle.wait() for handle in handles]"
).replace("sends += zip(handles, outgoing)", "sends += zip(handles, outgoing) if not receive else []")
right("receives-first-and-copies").replace("outgoing + receive", "receive + outgoing").replace(
    "sends += zip(handles, outgoing)", "sends += zip(handles[len(receive) :], outgoing)"
).replace("handles[-1]", "handles[0]").replace("y.detach()", "y.detach().clone()").replace(
    "kept[c, m] = x, y", "kept[stage, m] = (x, y)"
).replace("(c, m)", "(stage, m)")

RECEIVE_NEXT = "if m + 1 < len(microbatches):\n    receives.append(dist.irecv(buffers[m + 1], src=rank - 1))"
wrong, right = ANSWERS.to("overlapped-forward")
wrong("handle-dropped", "never waited for it", caught_by="time").replace("handle.wait()", "pass")
wrong("waits-at-once", "waits for its send", caught_by="time").replace(
    "sends.append(dist.isend(y, dst=rank + 1))", "dist.isend(y, dst=rank + 1).wait()"
)
wrong("receives-after-computing", "starts to receive", caught_by="time").replace(RECEIVE_NEXT, "pass").replace(
    "outputs.append(y)", f"outputs.append(y)\nif rank > 0 and {RECEIVE_NEXT[3:]}"
)
wrong("one-behind", "rank 0 computes more than its first", caught_by="time").replace(
    "isend(y", "isend(outputs[-1]"
).replace("world_size - 1:\n", "world_size - 1 and m:\n").replace(
    "for handle", "if rank < world_size - 1:\n    sends.append(dist.isend(y, dst=rank + 1))\nfor handle"
)
wrong("waits-again", "waited for before").replace("for handle in sends:", "for handle in receives + sends:")
wrong("one-receive-too-many", "rank").replace("m + 1 < len(microbatches)", "True")
wrong("waits-for-the-last-send-first", "waits for its send", caught_by="time").replace(
    "range(len(microbatches)):", "range(len(microbatches)):\n    if sends:\n        sends[-1].wait()"
)
all_first = wrong("receives-all-then-computes", "has done everything", caught_by="time")
all_first.replace(f"receives[m].wait()\n{RECEIVE_NEXT}", "pass").replace(
    "for m in",
    "receives += [dist.irecv(x, src=rank - 1) for x in buffers[1:] if rank > 0]\n"
    "for handle in receives:\n    handle.wait()\nfor m in",
)
wrong("one-buffer", "rank").like(all_first).replace(
    "[torch.empty_like(microbatch) for microbatch in microbatches]",
    "[x[: len(microbatch)] for x in [torch.empty_like(batch)] for microbatch in microbatches]",
)
wrong("microbatch-forward-again", "microbatch, and starts to receive", caught_by="time").function(
    "return microbatch_forward(batch, weights, micro_batch_size, rank, world_size)"
)
right("all-receives-at-once").replace(RECEIVE_NEXT, "pass").replace(
    "receives.append(dist.irecv(buffers[0], src=rank - 1))",
    "receives = [dist.irecv(x, src=rank - 1) for x in buffers]",
)
right("in-batches").replace(
    "dist.isend(y, dst=rank + 1)", "*dist.batch_isend_irecv([dist.P2POp(dist.isend, y, rank + 1)])"
).replace(
    "dist.irecv(buffers[0], src=rank - 1)", "*dist.batch_isend_irecv([dist.P2POp(dist.irecv, buffers[0], rank - 1)])"
).replace(
    "dist.irecv(buffers[m + 1], src=rank - 1)",
    "*dist.batch_isend_irecv([dist.P2POp(dist.irecv, buffers[m + 1], rank - 1)])",
)

wrong, right = ANSWERS.to("interleaved-layers")
wrong("reversed", "the chunks in reverse order").replace("range(num_chunks)", "reversed(range(num_chunks))")
wrong("contiguous", "chunks next to each other").replace("c * world_size + rank", "rank * num_chunks + c")
wrong("flat", "one list for each chunk").replace(
    "return [weights[stage * size : (stage + 1) * size] for stage in stages]",
    "return [w for stage in stages for w in weights[stage * size : (stage + 1) * size]]",
)
wrong("one-layer-each", "has 1 layer, but each").replace("stage * size : (stage + 1) * size", "stage : stage + 1")
wrong("two-chunks", "rank", hidden=True).replace("range(num_chunks)", "range(num_chunks)][: 3")
wrong("far-apart", "don't follow one another").body("""
    return [weights[c * world_size + rank :: world_size * num_chunks] for c in range(num_chunks)]
""")
wrong("one-chunk-too-many", "count the chunks from 0").replace("range(num_chunks)", "range(num_chunks + 1)")
wrong("times-chunks", "Stage 4, chunk 1 of rank 0, should begin with").replace(
    "c * world_size + rank", "c * num_chunks + rank"
)
wrong("all-stages", "of all ranks").replace(
    "[c * world_size + rank for c in range(num_chunks)]", "range(world_size * num_chunks)"
)
right("cuts-all-then-picks").body("""
    stages = [weights[k : k + size] for k in range(0, len(weights), size)]
    return tuple(stages[rank::world_size])
""")

WARM_UP = "2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size"
wrong, right = ANSWERS.to("interleaved")
wrong("backward-from-chunk-0", "they go through the last chunk first").replace("num_chunks - 1 - chunk", "chunk")
wrong("all-microbatches-through-chunk-0", "Microbatches go in groups of P").replace(
    "k // world_size % num_chunks", "k // num_microbatches"
).replace("k // (world_size * num_chunks) * world_size + k % world_size", "k % num_microbatches")
wrong("warm-up-of-1f1b", "first v - 1 chunks").replace(WARM_UP, "world_size - 1 - rank")
wrong("warm-up-too-long", "Its warm-up is 4 too long: 2 (P - 1", caught_by="memory").replace(
    "(num_chunks - 1) * world_size", "num_chunks * world_size"
)
wrong("all-forwards-first", "go backward as soon as the warm-up is over", caught_by="memory").replace(
    f"ahead = min({WARM_UP}, count)", "ahead = count"
)
wrong("not-capped", "never more than the forwards").replace(
    f"ahead = min({WARM_UP}, count)",
    f"ahead = {WARM_UP}",
)
wrong("no-way-up-and-back", "Is the warm-up too short", caught_by="time").replace(
    WARM_UP, "(num_chunks - 1) * world_size"
)
right("counts-what-is-live").function("""
    groups = range(0, num_microbatches, world_size)
    order = [(first + m, c) for first in groups for c in range(num_chunks) for m in range(world_size)]
    forward = [["F", m, c] for m, c in order]
    backward = [["B", m, num_chunks - 1 - c] for m, c in order]
    ahead = min(len(order), 2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size)
    steps, live = [], 0
    while backward:
        goes_on = bool(forward) and live <= ahead
        steps.append((forward if goes_on else backward).pop(0))
        live += 1 if goes_on else -1
    return steps
""")
wrong("forwards-in-reverse", "in reverse order").replace(
    "ahead = min(2", "backward = [('B', *step[1:]) for step in reversed(forward)]\nahead = min(2"
)
wrong("number-of-the-group", "counts P microbatches").replace("* num_chunks) * world_size", "* num_chunks)")
wrong("microbatch-by-microbatch", "Microbatches go in groups of P").replace(
    "k // world_size % num_chunks", "k % num_chunks"
).replace("k // (world_size * num_chunks) * world_size + k % world_size", "k // num_chunks")
wrong("chunk-before-microbatch", "in this order").replace("microbatch, chunk)", "chunk, microbatch)").replace(
    "microbatch, num_chunks - 1 - chunk)", "num_chunks - 1 - chunk, microbatch)"
)
wrong("backward-first", "begins with its forward").replace("steps += [f, b]", "steps += [b, f]")
wrong("one-chunk", "is the whole list").replace("backward[count - ahead :]", "backward[-ahead:]")

wrong, right = ANSWERS.to("split-backward")
wrong("forwards-first", "before the first backward", caught_by="score").body("""
    count = num_microbatches
    return [("F", m) for m in range(count)] + [(kind, m) for m in range(count) for kind in "BW"]
""")
wrong("weights-last", "too many W's are held back", caught_by="score").replace(
    'steps += [("B", m), ("W", m)]', 'steps.append(("B", m))'
).replace("return steps", 'return steps + [("W", m) for m in range(num_microbatches)]')
wrong("never-weights", "has no W", caught_by="score").replace('[("B", m), ("W", m)]', '[("B", m)]')
wrong("weights-before", "W needs what B saved", caught_by="score").replace(
    '[("B", m), ("W", m)]', '[("W", m), ("B", m)]'
)
wrong("no-warm-up", "times par", caught_by="score").replace(AHEAD, "0")
wrong("longest-on-the-last", "the other way round", caught_by="score").replace("world_size - 1 - rank", "rank")
wrong("for-eight-microbatches", "the schedule can't run", caught_by="score", hidden=True).replace(
    AHEAD, "world_size - 1 - rank"
).replace("if ahead + m < num_microbatches:", "if ahead + m < max(num_microbatches, world_size - 1):")
right("holds-weights-back").body("""
    ahead = min(world_size - 1 - rank, num_microbatches)
    steps, held = [("F", m) for m in range(ahead)], []
    for m in range(num_microbatches):
        if ahead + m < num_microbatches:
            steps.append(("F", ahead + m))
        steps.append(("B", m))
        held.append(("W", m))
        if len(held) > rank:
            steps.append(held.pop(0))
    return steps + held
""")
