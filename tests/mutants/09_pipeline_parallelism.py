"""Wrong answers to lesson 09: at least two per exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import answers

MUTANTS, ALSO_RIGHT, mutant, also_right = answers()

# ---- split-layers

mutant(
    "split-layers",
    "pieces-of-ceil",
    says="pieces of ceil(layers / P)",
    body="""
    size = -(-len(weights) // world_size)
    return weights[rank * size : (rank + 1) * size]
    """,
)
mutant(
    "split-layers",
    "rest-on-the-last",
    says="all leftover layers on the last rank",
    body="""
    size = len(weights) // world_size
    return weights[rank * size :] if rank == world_size - 1 else weights[rank * size : (rank + 1) * size]
    """,
)
mutant("split-layers", "every-pth", says="every P-th layer", body="return weights[rank::world_size]")
mutant(
    "split-layers",
    "drops-the-rest",
    says="belong to no rank",
    body="""
    size = len(weights) // world_size
    return weights[rank * size : (rank + 1) * size]
    """,
)
mutant(
    "split-layers",
    "larger-last",
    says="the larger ones are not on the first ranks",
    body="return weights[rank * len(weights) // world_size : (rank + 1) * len(weights) // world_size]",
)
mutant(
    "split-layers",
    "never-empty",
    says="rank",
    hidden=True,
    replace=(
        "return weights[start : start + size + (rank < more)]",
        "return weights[start : start + size + (rank < more)] or weights[-1:]",
    ),
)
also_right(
    "split-layers",
    "deals-them-out",
    body="""
    sizes = [0] * world_size
    for number in range(len(weights)):
        sizes[number % world_size] += 1
    start = sum(sizes[:rank])
    return tuple(weights[start : start + sizes[rank]])
    """,
)

# ---- naive-forward

mutant(
    "naive-forward",
    "sends-its-input-on",
    says="each rank applies its layers before it sends",
    replace=("dist.send(y, dst=rank + 1)", "dist.send(x.contiguous(), dst=rank + 1)"),
)
mutant(
    "naive-forward",
    "rank-0-receives-too",
    says="Nothing comes before rank 0",
    replace=("if rank > 0:\n        dist.recv(x, src=rank - 1)", "dist.recv(x, src=max(rank - 1, 0))"),
)
mutant(
    "naive-forward",
    "never-receives",
    says="Rank 0 receives",
    replace=("dist.recv(x, src=rank - 1)", "pass"),
)
mutant(
    "naive-forward",
    "broadcasts",
    "traffic",
    says="your function calls broadcast",
    body="""
    x = x.clone()
    for stage in range(world_size):
        if rank == stage:
            x = mlp.forward(weights, x)
        dist.broadcast(x, src=stage)
    y = x
    return x if rank == world_size - 1 else None
    """,
)
mutant(
    "naive-forward",
    "receives-into-its-input",
    says="must stay as it was",
    replace=("dist.recv(x, src=rank - 1)", "dist.recv(x := batch, src=rank - 1)"),
)
mutant(
    "naive-forward",
    "buffer-of-one-dtype",
    says="to have the same dtype",
    hidden=True,
    replace=(
        "dist.recv(x, src=rank - 1)",
        "x = torch.empty(batch.shape, dtype=torch.float64)\n        dist.recv(x, src=rank - 1)",
    ),
)
also_right(
    "naive-forward",
    "irecv-isend",
    replace=(
        ("dist.recv(x, src=rank - 1)", "dist.irecv(x, src=rank - 1).wait()"),
        ("dist.send(y, dst=rank + 1)", "dist.isend(y, dst=rank + 1).wait()"),
    ),
)

# ---- microbatch-forward

mutant(
    "microbatch-forward",
    "equal-microbatches-only",
    says="the rest of that tensor stays as it was",
    replace=(
        "x = microbatch if rank == 0 else torch.empty_like(microbatch)",
        "x = microbatch if rank == 0 else torch.empty_like(batch[:micro_batch_size])",
    ),
)
mutant(
    "microbatch-forward",
    "sends-the-input-on",
    says="each rank applies its layers before it sends",
    replace=("dist.send(y, dst=rank + 1)", "dist.send(x, dst=rank + 1)"),
)
mutant(
    "microbatch-forward",
    "sends-at-the-end",
    "time",
    says="the time of one GPU",
    cell="""
    def microbatch_forward(batch, weights, micro_batch_size, rank, world_size):
        outputs = []
        inputs = [m if rank == 0 else torch.empty_like(m) for m in batch.split(micro_batch_size)]
        if rank > 0:
            for x in inputs:
                dist.recv(x, src=rank - 1)
        for x in inputs:
            outputs.append(mlp.forward(weights, x))
        if rank < world_size - 1:
            for y in outputs:
                dist.send(y, dst=rank + 1)
        return torch.cat(outputs) if rank == world_size - 1 else None
    """,
)
mutant(
    "microbatch-forward",
    "whole-batch-at-once",
    "time",
    says="the time of one GPU",
    cell="""
    def microbatch_forward(batch, weights, micro_batch_size, rank, world_size):
        return naive_forward(batch, weights, rank, world_size)
    """,
)
mutant(
    "microbatch-forward",
    "receives-once",
    says="What usually causes this here",
    replace=("if rank > 0:", "if rank > 0 and not outputs:"),
)
mutant(
    "microbatch-forward",
    "never-one-row",
    says="returned",
    hidden=True,
    replace=("dist.send(y, dst=rank + 1)", "dist.send(y if len(y) > 1 else 0 * y, dst=rank + 1)"),
)
also_right(
    "microbatch-forward",
    "isend-and-wait-later",
    cell="""
    def microbatch_forward(batch, weights, micro_batch_size, rank, world_size):
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
    """,
)

# ---- bubble-shares

mutant(
    "bubble-shares",
    "wrong-way-round",
    says="the wrong way round",
    replace=(
        "return idle / (num_microbatches + idle), idle / num_microbatches, enough",
        "return idle / num_microbatches, idle / (num_microbatches + idle), enough",
    ),
)
mutant("bubble-shares", "p-slots", says="P slots of bubble", replace=("idle = num_stages - 1", "idle = num_stages"))
mutant(
    "bubble-shares",
    "slots-are-m-plus-p",
    says="there are M + P - 1 slots",
    replace=("idle / (num_microbatches + idle),", "idle / (num_microbatches + num_stages),"),
)
mutant(
    "bubble-shares",
    "enough-for-the-ideal",
    says="here the total counts",
    replace=("while idle / (enough + idle) > most", "while idle / enough > most"),
)
mutant(
    "bubble-shares",
    "one-too-many",
    says="One fewer would do",
    replace=("while idle / (enough + idle) > most", "while idle / (enough + idle) >= most"),
)
mutant(
    "bubble-shares",
    "at-least-p",
    says="microbatches",
    hidden=True,
    replace=("enough = 1", "enough = min(num_stages, 3)"),
)
also_right(
    "bubble-shares",
    "by-formula",
    body="""
    from fractions import Fraction
    from math import ceil
    idle, share = num_stages - 1, Fraction(str(most))
    enough = max(1, ceil(idle * (1 - share) / share))
    return [idle / (num_microbatches + idle), idle / num_microbatches, enough]
    """,
)

# ---- backward-across

mutant(
    "backward-across",
    "sends-output-grad",
    says="Is it the .grad of a tensor that has none",
    replace=("dist.send(x.grad, dst=rank - 1)", "dist.send(y.grad, dst=rank - 1)"),
)
mutant(
    "backward-across",
    "sends-retained-output-grad",
    says="if each rank sends back that of its output",
    cell="""
    def backward_across(batch, weights, rank, world_size):
        leaves = [weight.detach().clone().requires_grad_() for weight in weights]
        x = batch.clone() if rank == 0 else torch.empty_like(batch)
        if rank > 0:
            dist.recv(x, src=rank - 1)
        y = mlp.forward(leaves, x)
        y.retain_grad()
        if rank < world_size - 1:
            dist.send(y.detach(), dst=rank + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=rank + 1)
            y.backward(gradient)
        else:
            mlp.loss_of(y).backward()
        if rank > 0:
            dist.send(y.grad, dst=rank - 1)
        return [leaf.grad for leaf in leaves]
    """,
)
mutant(
    "backward-across",
    "no-requires-grad",
    says="Is it the .grad of a tensor that has none",
    replace=("x.requires_grad_()", "pass"),
)
mutant(
    "backward-across",
    "own-loss-on-every-rank",
    says="the rank's own y is the loss",
    replace=("y.backward(gradient)", "mlp.loss_of(y).backward()"),
)
mutant(
    "backward-across",
    "gradient-of-ones",
    says="a gradient of ones",
    replace=("y.backward(gradient)", "y.sum().backward()"),
)
mutant(
    "backward-across",
    "receives-from-the-wrong-side",
    says="What usually causes this here",
    replace=("dist.recv(gradient, src=rank + 1)", "dist.recv(gradient, src=rank - 1 if rank else 1)"),
)
mutant(
    "backward-across",
    "first-rank-sends-too",
    says="can't send to itself",
    replace=(
        "if rank > 0:\n        dist.send(x.grad, dst=rank - 1)",
        "dist.send(x.grad if rank else batch.clone(), dst=max(rank - 1, 0))",
    ),
)
mutant(
    "backward-across",
    "twice-the-traffic",
    "traffic",
    says="bytes",
    cell="""
    def backward_across(batch, weights, rank, world_size):
        leaves = [weight.detach().clone().requires_grad_() for weight in weights]
        x = batch.clone() if rank == 0 else torch.empty_like(batch)
        if rank > 0:
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        y = mlp.forward(leaves, x)
        if rank < world_size - 1:
            dist.send(y.detach(), dst=rank + 1)
            both = torch.empty(2, *y.shape, dtype=y.dtype)
            dist.recv(both, src=rank + 1)
            y.backward(both[0])
        else:
            mlp.loss_of(y).backward()
        if rank > 0:
            dist.send(torch.stack([x.grad, x.detach()]), dst=rank - 1)
        return [leaf.grad for leaf in leaves]
    """,
)
also_right(
    "backward-across",
    "with-autograd-grad",
    cell="""
    def backward_across(batch, weights, rank, world_size):
        leaves = [weight.clone().requires_grad_() for weight in weights]
        x = batch.clone()
        if rank > 0:
            dist.recv(x, src=rank - 1)
        x.requires_grad_()
        y = mlp.forward(leaves, x)
        gradient = torch.empty_like(y)
        if rank < world_size - 1:
            sending = dist.isend(y.detach(), dst=rank + 1)
            dist.recv(gradient, src=rank + 1)
            sending.wait()
        else:
            [gradient] = torch.autograd.grad(mlp.loss_of(y), y, retain_graph=True)
        of_x, *of_leaves = torch.autograd.grad(y, [x, *leaves], gradient)
        if rank > 0:
            dist.send(of_x, dst=rank - 1)
        return of_leaves
    """,
)

# ---- accumulate-gradients

mutant(
    "accumulate-gradients",
    "not-divided",
    says="it is M times too large",
    replace=(" * (len(microbatch) / len(batch))", ""),
)
mutant(
    "accumulate-gradients",
    "divided-by-m",
    says="weighted by 1 / M",
    replace=(" * (len(microbatch) / len(batch))", " / len(batch.split(micro_batch_size))"),
)
mutant(
    "accumulate-gradients",
    "weights-by-size",
    says="weighted by micro_batch_size / B",
    replace=("len(microbatch) / len(batch)", "micro_batch_size / len(batch)"),
)
mutant(
    "accumulate-gradients",
    "zeroed-in-between",
    says="don't zero the gradients in between",
    replace=("loss.backward()", "[setattr(leaf, 'grad', None) for leaf in leaves]; loss.backward()"),
)
mutant(
    "accumulate-gradients",
    "loss-of-the-last",
    says="the last microbatch alone",
    replace=("total += loss.detach()", "total = loss.detach()"),
)
mutant(
    "accumulate-gradients",
    "large-microbatches",
    says="gradient is",
    hidden=True,
    replace=("len(microbatch) / len(batch)", "len(microbatch) / max(len(batch), micro_batch_size)"),
)
also_right(
    "accumulate-gradients",
    "sums-of-squares",
    body="""
    loss = mlp.forward(leaves, microbatch).square().sum() / batch.numel()
    loss.backward()
    total = total + loss.item()
    """,
)

# ---- gpipe

mutant(
    "gpipe",
    "backwards-reversed",
    says="That is the reverse order",
    body="""
    return [("F", m) for m in range(num_microbatches)] + [("B", m) for m in reversed(range(num_microbatches))]
    """,
)
mutant(
    "gpipe",
    "one-by-one",
    says="all forwards first",
    body="""
    return [(kind, m) for m in range(num_microbatches) for kind in ("F", "B")]
    """,
)
mutant(
    "gpipe",
    "one-microbatch-at-a-time",
    "time",
    says="The bubble is",
    body="""
    return [(kind, m) for m in range(num_microbatches) for kind in ("F", "B")]
    """,
)
mutant(
    "gpipe",
    "forgets-the-last",
    says="never does",
    body="""
    return [(kind, m) for kind in ("F", "B") for m in range(num_microbatches - 1)]
    """,
)
mutant(
    "gpipe",
    "backwards-only-on-the-last",
    says="never does B0",
    body="""
    kinds = ("F", "B") if rank == world_size - 1 else ("F",)
    return [(kind, m) for kind in kinds for m in range(num_microbatches)]
    """,
)
mutant(
    "gpipe",
    "names-only",
    says="a step is",
    body="""
    return [f"{kind}{m}" for kind in ("F", "B") for m in range(num_microbatches)]
    """,
)
also_right(
    "gpipe",
    "with-chunk-0",
    body="""
    return [["F", m, 0] for m in range(num_microbatches)] + [["B", m, 0] for m in range(num_microbatches)]
    """,
)

# ---- live-microbatches

mutant(
    "live-microbatches",
    "counts-forwards",
    says="the number of all forwards",
    body="""
    live += kind == "F"
    most = live
    """,
)
mutant(
    "live-microbatches",
    "at-the-end",
    says="keep track of the largest",
    body="""
    live += 1 if kind == "F" else -1
    most = live
    """,
)
mutant(
    "live-microbatches",
    "warm-up-only",
    says="the number of forwards before the first backward",
    body="""
    live += 1
    if kind == "F" and most == live - 1:
        most = live
    """,
)
mutant(
    "live-microbatches",
    "never-frees-more-than-two",
    says="it returned",
    hidden=True,
    body="""
    live += 1 if kind == "F" else -1
    most = min(3, max(most, live))
    """,
)
also_right(
    "live-microbatches",
    "looks-before-it-counts",
    body="""
    most = max(most, live)
    live += 1 if kind == "F" else -1
    """,
)
also_right(
    "live-microbatches",
    "a-set",
    cell="""
    def live_microbatches(steps):
        live, most = set(), 0
        for kind, *which in steps:
            (live.add if kind == "F" else live.remove)(tuple(which))
            most = max(most, len(live))
        return most
    """,
)

# ---- one-f-one-b

mutant(
    "one-f-one-b",
    "warm-up-one-too-long",
    "memory",
    says="Its warm-up is 1 too long",
    replace=("world_size - 1 - rank", "world_size - rank"),
)
mutant(
    "one-f-one-b",
    "warm-up-one-too-short",
    "time",
    says="is too short",
    replace=("world_size - 1 - rank", "max(world_size - 2 - rank, 0)"),
)
mutant(
    "one-f-one-b",
    "warm-up-not-capped",
    says="rank",
    replace=("ahead = min(world_size - 1 - rank, num_microbatches)", "ahead = world_size - 1 - rank"),
)
mutant(
    "one-f-one-b",
    "warm-up-by-rank",
    says="it is the other way round",
    replace=("min(world_size - 1 - rank, num_microbatches)", "min(rank, num_microbatches)"),
)
mutant(
    "one-f-one-b",
    "backward-first-in-the-pair",
    says="before F0",
    replace=("steps += [f, b]", "steps += [b, f]"),
)
mutant(
    "one-f-one-b",
    "no-cool-down",
    says="Are the backwards after the last forward missing",
    replace=("steps += backward[num_microbatches - ahead :]", "pass"),
)
mutant(
    "one-f-one-b",
    "gpipe-again",
    "memory",
    says="as in GPipe",
    replace=("ahead = min(world_size - 1 - rank, num_microbatches)", "ahead = num_microbatches"),
)
mutant(
    "one-f-one-b",
    "same-on-every-rank",
    "memory",
    says="too long",
    replace=("min(world_size - 1 - rank, num_microbatches)", "min(world_size - 1, num_microbatches)"),
)
mutant(
    "one-f-one-b",
    "two-by-two",
    says="two of the same kind in a row",
    body="""
    ahead = min(world_size - 1 - rank, num_microbatches)
    steps = forward[:ahead]
    f, b = forward[ahead:], backward[:]
    while f:
        steps += f[:2] + b[: len(f[:2])]
        f, b = f[2:], b[len(f[:2]) :]
    steps += b
    """,
)
mutant(
    "one-f-one-b",
    "knows-four-ranks",
    "memory",
    says="live on rank",
    hidden=True,
    replace=(
        "min(world_size - 1 - rank, num_microbatches)",
        "min(world_size - 1 - rank if world_size == 4 else world_size - rank, num_microbatches)",
    ),
)
also_right(
    "one-f-one-b",
    "as-in-torch",
    body="""
    ahead = min(world_size - rank, num_microbatches)
    steps = forward[:ahead]
    for b, f in zip(backward, forward[ahead:]):
        steps += [b, f]
    steps += backward[num_microbatches - ahead :]
    """,
)

# ---- run-schedule

mutant(
    "run-schedule",
    "blocking-sends",
    says="a send that waits",
    replace=(
        (
            'sends.append((dist.isend(message, dst=after, tag=tag("F", m, stage + 1)), message))',
            'dist.send(message, dst=after, tag=tag("F", m, stage + 1))',
        ),
        (
            'sends.append((dist.isend(x.grad, dst=before, tag=tag("B", m, stage - 1)), x.grad))',
            'dist.send(x.grad, dst=before, tag=tag("B", m, stage - 1))',
        ),
    ),
)
mutant(
    "run-schedule",
    "handle-dropped",
    "memory",
    says="never waited for it",
    replace=(
        'sends.append((dist.isend(x.grad, dst=before, tag=tag("B", m, stage - 1)), x.grad))',
        'dist.isend(x.grad, dst=before, tag=tag("B", m, stage - 1))',
    ),
)
mutant(
    "run-schedule",
    "sends-output-grad",
    says="Is it the .grad of a tensor that has none",
    replace=(
        'sends.append((dist.isend(x.grad, dst=before, tag=tag("B", m, stage - 1)), x.grad))',
        'sends.append((dist.isend(y.grad, dst=before, tag=tag("B", m, stage - 1)), y.grad))',
    ),
)
mutant(
    "run-schedule",
    "no-requires-grad",
    says="Is it the .grad of a tensor that has none",
    replace=("x.requires_grad_()", "pass"),
)
mutant(
    "run-schedule",
    "kept-for-ever",
    "memory",
    says="Is something kept after its backward",
    replace=("x, y = kept.pop((c, m))", "x, y = kept[c, m]"),
)
mutant(
    "run-schedule",
    "keeps-the-outputs",
    "memory",
    says="Is something kept after its backward",
    replace=("x, y = kept.pop((c, m))", "x, y = kept.pop((c, m)); kept[m] = x"),
)
mutant(
    "run-schedule",
    "zeroed-in-between",
    says="don't zero the gradients in between",
    replace=(
        "x, y = kept.pop((c, m))",
        "x, y = kept.pop((c, m))\n            for leaf in leaves[c]:\n                leaf.grad = None",
    ),
)
mutant(
    "run-schedule",
    "tag-of-the-sender",
    says="a tag that doesn't name the stage that needs the message",
    replace=('tag=tag("F", m, stage + 1)', 'tag=tag("F", m, stage)'),
)
mutant(
    "run-schedule",
    "backward-tag-of-the-sender",
    says="a tag that doesn't name the stage that needs the message",
    replace=('tag=tag("B", m, stage - 1)', 'tag=tag("B", m, stage)'),
)
mutant(
    "run-schedule",
    "detaches-what-it-keeps",
    says="rank",
    replace=("kept[c, m] = x, y", "kept[c, m] = x, y.detach().requires_grad_()"),
)
mutant(
    "run-schedule",
    "keeps-without-the-chunk",
    says="with the chunk in it",
    replace=(("kept[c, m] = x, y", "kept[m] = x, y"), ("kept.pop((c, m))", "kept.pop(m)")),
)
mutant(
    "run-schedule",
    "first-rank-instead-of-first-stage",
    says="rank",
    replace=("if stage > 0:\n                dist.recv(x", "if rank > 0:\n                dist.recv(x"),
)
mutant(
    "run-schedule",
    "buffer-of-one-dtype",
    says="same shape and dtype",
    hidden=True,
    replace=("gradient = torch.empty_like(y)", "gradient = torch.empty(y.shape, dtype=torch.float64)"),
)
also_right(
    "run-schedule",
    "receives-with-irecv-and-copies",
    replace=(
        (
            'dist.recv(x, src=before, tag=tag("F", m, stage))',
            'dist.irecv(x, src=before, tag=tag("F", m, stage)).wait()',
        ),
        ("message = y.detach()", "message = y.detach().clone()"),
        ("kept[c, m] = x, y", "kept[stage, m] = (x, y)"),
        ("kept.pop((c, m))", "kept.pop((stage, m))"),
    ),
)

# ---- overlapped-forward

mutant(
    "overlapped-forward",
    "handle-dropped",
    "time",
    says="never waited for it",
    replace=("handle.wait()", "pass"),
)
mutant(
    "overlapped-forward",
    "waits-at-once",
    "time",
    says="nothing overlaps",
    replace=("sends.append(dist.isend(y, dst=rank + 1))", "dist.isend(y, dst=rank + 1).wait()"),
)
mutant(
    "overlapped-forward",
    "receives-after-computing",
    "time",
    says="times as long as is needed",
    cell="""
    def overlapped_forward(batch, weights, micro_batch_size, rank, world_size):
        outputs, sends = [], []
        for microbatch in batch.split(micro_batch_size):
            x = microbatch if rank == 0 else torch.empty_like(microbatch)
            if rank > 0:
                dist.recv(x, src=rank - 1)
            y = mlp.forward(weights, x)
            if rank < world_size - 1:
                sends.append(dist.isend(y, dst=rank + 1))
            outputs.append(y)
        for handle in sends:
            handle.wait()
        return torch.cat(outputs) if rank == world_size - 1 else None
    """,
)
mutant(
    "overlapped-forward",
    "one-buffer",
    says="rank",
    cell="""
    def overlapped_forward(batch, weights, micro_batch_size, rank, world_size):
        microbatches = batch.split(micro_batch_size)
        buffer = torch.empty_like(microbatches[0])
        outputs, receives, sends = [], [], []
        if rank > 0:
            receives = [dist.irecv(buffer[: len(m)], src=rank - 1) for m in microbatches]
            for handle in receives:
                handle.wait()
        for m, microbatch in enumerate(microbatches):
            y = mlp.forward(weights, microbatch if rank == 0 else buffer[: len(microbatch)])
            if rank < world_size - 1:
                sends.append(dist.isend(y, dst=rank + 1))
            outputs.append(y)
        for handle in sends:
            handle.wait()
        return torch.cat(outputs) if rank == world_size - 1 else None
    """,
)
mutant(
    "overlapped-forward",
    "one-receive-too-many",
    says="rank",
    replace=("if m + 1 < len(microbatches):\n                receives", "if True:\n                receives"),
)
also_right(
    "overlapped-forward",
    "all-receives-at-once",
    cell="""
    def overlapped_forward(batch, weights, micro_batch_size, rank, world_size):
        microbatches = batch.split(micro_batch_size)
        buffers = [torch.empty_like(m) for m in microbatches]
        receives = [dist.irecv(b, src=rank - 1) for b in buffers] if rank > 0 else []
        outputs, sends = [], []
        for m, x in enumerate(microbatches):
            if rank > 0:
                receives[m].wait()
                x = buffers[m]
            outputs.append(mlp.forward(weights, x))
            if rank < world_size - 1:
                sends.append(dist.isend(outputs[-1], dst=rank + 1))
        [handle.wait() for handle in sends]
        return torch.cat(outputs) if rank == world_size - 1 else None
    """,
)

# ---- interleaved-layers

mutant(
    "interleaved-layers",
    "contiguous",
    says="chunks next to each other",
    replace=("c * world_size + rank", "rank * num_chunks + c"),
)
mutant(
    "interleaved-layers",
    "flat",
    says="one list for each chunk",
    replace=(
        "return [weights[stage * size : (stage + 1) * size] for stage in stages]",
        "return [w for stage in stages for w in weights[stage * size : (stage + 1) * size]]",
    ),
)
mutant(
    "interleaved-layers",
    "one-layer-each",
    says="rank",
    replace=("weights[stage * size : (stage + 1) * size]", "weights[stage : stage + 1]"),
)
mutant(
    "interleaved-layers",
    "two-chunks",
    says="rank",
    hidden=True,
    replace=(
        "stages = [c * world_size + rank for c in range(num_chunks)]",
        "stages = [c * world_size + rank for c in range(num_chunks)][: 3]",
    ),
)
also_right(
    "interleaved-layers",
    "cuts-all-then-picks",
    body="""
    stages = [weights[k : k + size] for k in range(0, len(weights), size)]
    return tuple(stages[rank::world_size])
    """,
)

# ---- interleaved

mutant(
    "interleaved",
    "backward-from-chunk-0",
    says="they go through the last chunk first",
    replace=("num_chunks - 1 - chunk", "chunk"),
)
mutant(
    "interleaved",
    "all-microbatches-through-chunk-0",
    says="Microbatches go in groups of P",
    replace=(
        ("chunk = k // world_size % num_chunks", "chunk = k // num_microbatches"),
        (
            "microbatch = k // (world_size * num_chunks) * world_size + k % world_size",
            "microbatch = k % num_microbatches",
        ),
    ),
)
mutant(
    "interleaved",
    "warm-up-of-1f1b",
    says="can't run",
    replace=("2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size", "world_size - 1 - rank"),
)
mutant(
    "interleaved",
    "warm-up-too-long",
    "memory",
    says="2 (P - 1 - rank) + (v - 1) P",
    replace=(
        "2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size",
        "2 * (world_size - 1 - rank) + num_chunks * world_size",
    ),
)
mutant(
    "interleaved",
    "all-forwards-first",
    "memory",
    says="go backward as soon as the warm-up is over",
    replace=("ahead = min(2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size, count)", "ahead = count"),
)
mutant(
    "interleaved",
    "not-capped",
    says="rank",
    hidden=True,
    replace=(
        "ahead = min(2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size, count)",
        "ahead = 2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size",
    ),
)
mutant(
    "interleaved",
    "no-way-up-and-back",
    "time",
    says="Is the warm-up too short",
    replace=("2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size", "(num_chunks - 1) * world_size"),
)
also_right(
    "interleaved",
    "in-groups",
    cell="""
    def interleaved(rank, world_size, num_microbatches, num_chunks):
        order = [
            (first + m, c)
            for first in range(0, num_microbatches, world_size)
            for c in range(num_chunks)
            for m in range(world_size)
        ]
        forward = [["F", m, c] for m, c in order]
        backward = [["B", m, num_chunks - 1 - c] for m, c in order]
        ahead = min(len(order), 2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size)
        steps, forward = forward[:ahead], forward[ahead:]
        for b in backward:
            steps += forward[:1] + [b]
            forward = forward[1:]
        return steps
    """,
)

mutant(
    "overlapped-forward",
    "waits-for-the-last-send-first",
    "time",
    says="nothing overlaps",
    replace=(
        "if rank > 0:\n            receives[m].wait()",
        "if sends:\n            sends[-1].wait()\n        if rank > 0:\n            receives[m].wait()",
    ),
)
mutant(
    "overlapped-forward",
    "receives-all-then-computes",
    "time",
    says="times as long as is needed",
    cell="""
    def overlapped_forward(batch, weights, micro_batch_size, rank, world_size):
        inputs = [m if rank == 0 else torch.empty_like(m) for m in batch.split(micro_batch_size)]
        for handle in [dist.irecv(x, src=rank - 1) for x in inputs] if rank > 0 else []:
            handle.wait()
        outputs, sends = [], []
        for x in inputs:
            outputs.append(mlp.forward(weights, x))
            if rank < world_size - 1:
                sends.append(dist.isend(outputs[-1], dst=rank + 1))
        for handle in sends:
            handle.wait()
        return torch.cat(outputs) if rank == world_size - 1 else None
    """,
)
mutant(
    "run-schedule",
    "sends-twice",
    "traffic",
    says="must use the same tag",
    replace=("kept[c, m] = x, y", "kept[c, m] = x, y; dist.send(y.detach(), dst=after) if stage < last else None"),
)
mutant(
    "run-schedule",
    "last-rank-instead-of-last-stage",
    says="What usually causes this here",
    replace=("if stage < last:\n                message", "if rank < world_size - 1:\n                message"),
)
also_right(
    "overlapped-forward",
    "in-batches",
    cell="""
    def overlapped_forward(batch, weights, micro_batch_size, rank, world_size):
        microbatches = batch.split(micro_batch_size)
        buffers = [m.clone() for m in microbatches]
        receives, sends, outputs = [], [], []
        if rank > 0:
            receives = [dist.batch_isend_irecv([dist.P2POp(dist.irecv, b, rank - 1)]) for b in buffers]
        for m, x in enumerate(buffers):
            for handle in receives[m] if rank > 0 else []:
                handle.wait()
            outputs.append(mlp.forward(weights, x))
            if rank < world_size - 1:
                sends += dist.batch_isend_irecv([dist.P2POp(dist.isend, outputs[-1], rank + 1)])
        for handle in sends:
            handle.wait()
        if rank == world_size - 1:
            return torch.cat(outputs)
    """,
)
also_right(
    "microbatch-forward",
    "naive-forward-for-each",
    cell="""
    def microbatch_forward(batch, weights, micro_batch_size, rank, world_size):
        outputs = [naive_forward(m, weights, rank, world_size) for m in batch.split(micro_batch_size)]
        return torch.cat(outputs) if rank == world_size - 1 else None
    """,
)
also_right(
    "split-layers",
    "halves-what-is-left",
    body="""
    for other in range(world_size):
        size = -(-len(weights) // (world_size - other))
        mine, weights = weights[:size], weights[size:]
        if other == rank:
            return mine
    """,
)
also_right(
    "accumulate-gradients",
    "scales-at-the-end",
    cell="""
    def accumulate_gradients(batch, weights, micro_batch_size):
        total, gradients = 0, [torch.zeros_like(w) for w in weights]
        for part in batch.split(micro_batch_size):
            leaves = [w.clone().requires_grad_() for w in weights]
            loss = mlp.loss_of(mlp.forward(leaves, part)) * len(part)
            for gradient, of_part in zip(gradients, torch.autograd.grad(loss, leaves)):
                gradient += of_part
            total = total + loss
        return total / len(batch), tuple(gradient / len(batch) for gradient in gradients)
    """,
)
also_right(
    "gpipe",
    "a-tuple-of-tuples",
    body="""
    return tuple(("FB"[k // num_microbatches], k % num_microbatches) for k in range(2 * num_microbatches))
    """,
)
also_right(
    "one-f-one-b",
    "counts-what-is-live",
    body="""
    steps, live = [], 0
    while forward or backward:
        if forward and live < world_size - rank:
            steps.append(forward.pop(0))
            live += 1
        else:
            steps.append(backward.pop(0))
            live -= 1
    """,
)
also_right(
    "interleaved",
    "counts-what-is-live",
    cell="""
    def interleaved(rank, world_size, num_microbatches, num_chunks):
        order = [
            (first + m, c)
            for first in range(0, num_microbatches, world_size)
            for c in range(num_chunks)
            for m in range(world_size)
        ]
        most = 2 * (world_size - 1 - rank) + (num_chunks - 1) * world_size + 1
        steps, live, done = [], 0, 0
        forward = list(order)
        while done < len(order):
            if forward and live < most:
                m, c = forward.pop(0)
                steps.append(("F", m, c))
                live += 1
            else:
                m, c = order[done]
                steps.append(("B", m, num_chunks - 1 - c))
                done, live = done + 1, live - 1
        return steps
    """,
)

mutant(
    "run-schedule",
    "keeps-the-graph-with-the-message",
    "memory",
    says="send y.detach()",
    replace=("message = y.detach()", "message = y"),
)
mutant(
    "run-schedule",
    "all-forwards-first-whatever-the-steps",
    "memory",
    says="Is something kept after its backward",
    cell="""
    def run_schedule(batch, weights, steps, micro_batch_size, rank, world_size):
        leaves = [[w.detach().requires_grad_() for w in chunk] for chunk in weights]
        microbatches, last = batch.split(micro_batch_size), world_size * len(weights) - 1
        before, after = (rank - 1) % world_size, (rank + 1) % world_size
        kept, sends, total = {}, [], None
        for kind, m, *chunk in sorted(steps, key=lambda step: step[0] == "B"):
            c = chunk[0] if chunk else 0
            stage = c * world_size + rank
            x = microbatches[m] if stage == 0 else torch.empty_like(microbatches[m])
            if kind == "F":
                if stage > 0:
                    dist.recv(x, src=before, tag=tag("F", m, stage))
                    x.requires_grad_()
                y = mlp.forward(leaves[c], x)
                if stage < last:
                    sends.append((dist.isend(y.detach(), dst=after, tag=tag("F", m, stage + 1)), y.detach()))
                kept[c, m] = x, y
                continue
            x, y = kept.pop((c, m))
            gradient = torch.empty_like(y)
            if stage < last:
                dist.recv(gradient, src=after, tag=tag("B", m, stage))
                y.backward(gradient)
            else:
                loss = mlp.loss_of(y) * (len(y) / len(batch))
                total = loss.detach() if total is None else total + loss.detach()
                loss.backward()
            if stage > 0:
                sends.append((dist.isend(x.grad, dst=before, tag=tag("B", m, stage - 1)), x.grad))
            del x, y
        for handle, _ in sends:
            handle.wait()
        return total, [[leaf.grad for leaf in chunk] for chunk in leaves]
    """,
)
mutant(
    "overlapped-forward",
    "microbatch-forward-again",
    "time",
    says="waited for on both sides",
    cell="""
    def overlapped_forward(batch, weights, micro_batch_size, rank, world_size):
        return microbatch_forward(batch, weights, micro_batch_size, rank, world_size)
    """,
)
