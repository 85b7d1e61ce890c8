"""Answers to lesson 10, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("kept-for-backward")
wrong("counts-twice", sentence="every saved tensor: memory that several of them share counts once").replace(
    "known.add(storage.data_ptr())", "pass"
)
wrong("counts-inputs", sentence="a list with the inputs in it: those would be there anyway").replace(
    "{x.untyped_storage().data_ptr() for x in inputs}", "set()"
)
wrong("counts-all", sentence="every saved tensor, the inputs too").replace(
    "if storage.data_ptr() not in known:", "if True:"
)
wrong("tensor-bytes", sentence="the bytes of the tensors: a slice keeps all of the memory behind it").replace(
    "storage.nbytes()", "tensor.nbytes"
)
wrong("backwards", "as they are saved").replace("return kept", "return kept[::-1]")
wrong(
    "address-of-a-slice",
    sentence="a list in which one memory counts twice, since two slices lie in it: compare the memory's address, "
    "untyped_storage().data_ptr()",
).replace("storage.data_ptr() not in", "tensor.data_ptr() not in").replace(
    "known.add(storage.data_ptr())", "known.add(tensor.data_ptr())"
)
wrong("one-input-alone", sentence="a list with the memory of a later input in it: none of the inputs counts").replace(
    "for x in inputs}", "for x in inputs[:1]}"
)
wrong(
    "trained-inputs-alone", sentence="a list with an input that requires no gradient in it: none of the inputs counts"
).replace("for x in inputs}", "for x in inputs if x.requires_grad}")
wrong(
    "sizes-once", sentence="a list in which each size stands once: pieces of memory are told apart by their address"
).replace("return kept", "return list(dict.fromkeys(kept))")
wrong("in-all", sentence="the sum: return one entry for each piece of memory").replace(
    "return kept", "return [sum(kept)]"
)
wrong(
    "as-many-as-inputs",
    sentence="a list that lacks an entry where two inputs lie in one memory: that is one address, not two",
    hidden=True,
).replace(
    "return kept", "places = {x.untyped_storage().data_ptr() for x in inputs}\nreturn kept[len(inputs) - len(places) :]"
)
wrong(
    "four-bytes",
    sentence="a list with four bytes for each number: dtypes differ, and memory knows its own .nbytes()",
    hidden=True,
).replace("storage.nbytes()", "4 * (storage.nbytes() // tensor.itemsize)")
wrong(
    "no-leaves",
    sentence="a list without a weight that isn't among the inputs: only the inputs' memory doesn't count",
    hidden=True,
).replace(
    "if storage.data_ptr() not in known:",
    "if storage.data_ptr() not in known and not (tensor.is_leaf and tensor.requires_grad):",
)
right("notes-first").body("""
    saved = []
    with saved_tensors_hooks(lambda x: saved.append(x) or len(saved) - 1, lambda place: saved[place]):
        output = function(*inputs)
    pieces = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in saved}
    for x in inputs:
        pieces.pop(x.untyped_storage().data_ptr(), None)
    return list(pieces.values())
""")

wrong, right = ANSWERS.to("checkpoint")
wrong("keeps-the-graph", "once in each", caught_by="memory").function("return function(*args)")
wrong("no-enable-grad", "torch.enable_grad()").replace("with torch.enable_grad():", "if True:")
wrong("not-detached", "from detached tensors").replace("tensor.detach().requires_grad_(tensor.requires_grad)", "tensor")
wrong("autograd-grad", "torch.autograd.grad does not").replace(
    "torch.autograd.backward(*zip(*pairs))",
    "wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]\n"
    "found = torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs])\n"
    "for a, g in zip(wanted, found):\n    a.grad = g",
)
wrong("all-outputs", "leave out outputs that need none").replace("if y.requires_grad", "")
wrong("tensors-only", "None where it isn't a tensor").replace(
    "[arg.grad if isinstance(arg, Tensor) else None for arg in args]",
    "[arg.grad for arg in args if isinstance(arg, Tensor)]",
)
wrong("all-need-gradients", "whole numbers", hidden=True).replace(
    "requires_grad_(tensor.requires_grad)", "requires_grad_()"
)
wrong("no-gradient-of-arguments", "each at its place").replace(
    "return None, *[arg.grad if isinstance(arg, Tensor) else None for arg in args]",
    "return None, *[None for _ in args]",
)
wrong("tensors-on-ctx", "where hooks don't see it", caught_by="memory").replace(
    "ctx.save_for_backward(*[args[place] for place in ctx.places])", "ctx.kept = [args[place] for place in ctx.places]"
).replace("ctx.saved_tensors", "ctx.kept")
wrong("keeps-args-in-closure", "alive although hooks", caught_by="memory").replace(
    "ctx.function = function", "ctx.function, ctx.again = function, lambda: function(*args)"
)
wrong("on-ctx-and-saved", "alive although hooks", caught_by="memory").replace(
    "ctx.function = function", "ctx.function, ctx.given = function, args"
)
wrong("sums-without-autograd", "inside torch.enable_grad()").replace(
    "torch.autograd.backward(*zip(*pairs))", "sum(y.sum() for y, _ in pairs).backward()"
)
wrong("keeps-clones", "where the originals do").replace(
    "[args[place] for place in ctx.places])", "[args[place].clone() for place in ctx.places])"
)
wrong("no-graph", "was not recorded").replace("with torch.enable_grad():", "if True:").replace(
    "torch.autograd.backward(*zip(*pairs))", "torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])"
)
wrong(
    "first-output",
    sentence="what the first output's gradient alone leads to: hand in all outputs, each with its own gradient",
).replace("zip(outputs, gradients)", "zip(outputs[:1], gradients)")
wrong(
    "starts-from-ones", sentence="a gradient that starts from ones: hand each output the gradient that came for it"
).replace("[(y, g) for y, g in", "[(y, torch.ones_like(y)) for y, _ in")
wrong("one-output", "may return a tuple").replace(
    "outputs = outputs if isinstance(outputs, tuple) else (outputs,)\n", ""
).replace("pairs = [(y, g) for y, g in zip(outputs, gradients) if y.requires_grad]\n", "").replace(
    "torch.autograd.backward(*zip(*pairs))", "outputs.backward(gradients[0])"
)
wrong("tensors-first", "back in its own place").replace(
    "args = list(ctx.args)\n",
    "args = [None] * len(ctx.places) + [a for n, a in enumerate(ctx.args) if n not in ctx.places]\n",
).replace(
    "for place, tensor in zip(ctx.places, ctx.saved_tensors)", "for place, tensor in enumerate(ctx.saved_tensors)"
)
wrong("others-on-ctx", "with or without gradient", caught_by="memory", hidden=True).replace(
    "if isinstance(arg, Tensor)]\n", "if isinstance(arg, Tensor) and arg.requires_grad]\n"
).replace("None if isinstance(arg, Tensor) else arg", "None if isinstance(arg, Tensor) and arg.requires_grad else arg")
wrong("keeps-the-result", "Keep the arguments", caught_by="memory", hidden=True).replace(
    "return function(*args)", "ctx.result = function(*args)\nreturn ctx.result"
)
wrong("once-for-each-output", "2 times in the backward pass", caught_by="memory").replace(
    "outputs = ctx.function(*args)", "outputs = ctx.function(*args)\noutputs = ctx.function(*args)"
)
right("keeps-places-in-a-dict").cell("""
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *args):
        tensors = {n: a for n, a in enumerate(args) if torch.is_tensor(a)}
        ctx.names, ctx.function = list(tensors), function
        ctx.rest = {n: a for n, a in enumerate(args) if n not in tensors}
        ctx.save_for_backward(*tensors.values())
        with torch.no_grad():
            return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        given = dict(ctx.rest)
        for n, x in zip(ctx.names, ctx.saved_tensors):
            given[n] = x.detach()
            given[n].requires_grad = x.requires_grad
        with torch.enable_grad():
            out = ctx.function(*[given[n] for n in sorted(given)])
        if torch.is_tensor(out):
            out = (out,)
        used = [n for n, y in enumerate(out) if y.grad_fn is not None]
        torch.autograd.backward([out[n] for n in used], [gradients[n] for n in used])
        return (None, *[getattr(given[n], "grad", None) for n in sorted(given)])

def checkpoint(function, *args):
    return Checkpoint.apply(function, *args)
""")
wrong("by-torch", "what this exercise is about").function(
    "return torch_checkpoint(function, *args, use_reentrant=False)"
)
wrong("by-torch-reentrant", "what this exercise is about").function(
    "return torch_checkpoint(function, *args, use_reentrant=True)"
)

wrong, right = ANSWERS.to("replayable")
wrong("new-masks", "random state of the first").replace("torch.set_rng_state(state)", "pass")
wrong(
    "never-puts-back",
    sentence="what comes after call 1 once more: put the random state back to what it was before the call",
).replace("torch.random.fork_rng(), ", "")
wrong("no-autocast", "so must this one").replace(', torch.autocast("cpu", dtype, enabled=enabled)', "")
wrong("always-autocast", "ran without autocast", hidden=True).replace(
    'torch.autocast("cpu", dtype, enabled=enabled)',
    'torch.autocast("cpu", dtype, enabled=enabled or torch.is_autocast_enabled("cpu"))',
)
wrong("fixed-seed", "doesn't give by itself").body("""
    def again(*args):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return function(*args)

    return again
""")
wrong("state-of-the-latest-call", "another mask").replace("if not noted:", "if len(noted) < 2:")
wrong(
    "first-call-undone",
    sentence="what you get without that call: the first call draws numbers as any other code does",
).replace("return function(*args)", "result = function(*args)\ntorch.set_rng_state(noted[0][0])\nreturn result")
wrong("always-on", "ran without autocast").replace("enabled=enabled", "enabled=True")
wrong("one-type", "note torch.get_autocast_dtype", hidden=True).replace('"cpu", dtype, enabled', '"cpu", enabled')
wrong(
    "noted-too-soon",
    sentence="a result with the mask of a random state before the first call, such as that in which the wrapper was "
    "made: note torch.get_rng_state() at the first call",
).replace("torch.get_rng_state()", "made").replace("noted = []", "noted, made = [], torch.get_rng_state()")
wrong(
    "remembers",
    sentence="the result for the arguments of the first call: again(*args) calls the function each time, with the "
    "arguments of this call",
).replace('torch.is_autocast_enabled("cpu")))', 'torch.is_autocast_enabled("cpu"), args))').replace(
    "state, dtype, enabled = noted[0]", "state, dtype, enabled, args = noted[0]"
)
wrong(
    "noted-after-the-first-call",
    sentence="a result with the mask of the random state in which the first call ended: note the state before the "
    "function runs",
).replace(
    "return function(*args)",
    "result = function(*args)\nif len(noted) < 2:\n    noted.insert(0, (torch.get_rng_state(), *noted[0][1:]))\n"
    "return result",
)
wrong("remembers-what-it-was-given", "too few").replace("def again(", "def anew(").replace(
    "return again",
    "known = {}\n\ndef again(*args):\n    if id(args[0]) not in known:\n        known[id(args[0])] = anew(*args)\n"
    "    return known[id(args[0])]\n\nreturn again",
)
right("as-a-class").body("""
    class Replay:
        state = None

        def __call__(self, *args):
            if self.state is None:
                self.dtype, self.on = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
                self.state = torch.get_rng_state()
                return function(*args)
            now = torch.get_rng_state()
            try:
                torch.set_rng_state(self.state)
                with torch.autocast(device_type="cpu", dtype=self.dtype, enabled=self.on):
                    return function(*args)
            finally:
                torch.set_rng_state(now)

    return Replay()
""")
wrong(
    "one-note-for-all",
    sentence="what the first wrapper has drawn: each wrapper needs a note of its own, made inside replayable",
).replace("noted = []", "noted = replayable.__dict__.setdefault('noted', [])")
wrong(
    "latest-note-of-all",
    sentence="what another wrapper has drawn: each wrapper needs a note of its own, made inside replayable",
).replace("noted.append((", "noted[:] = [0]\nreplayable.note = ((").replace("= noted[0]", "= replayable.note")

wrong, right = ANSWERS.to("forward-in-segments")
SEGMENT = "checkpoint(partial(run, layers[start : start + k]), x)"
wrong(
    "late-binding",
    sentence="what you get if every segment runs the last segment's layers again: a function made in a loop looks up "
    "its variables when it is called. Bind them: partial(run, segment)",
).replace("partial(run, layers[start : start + k])", "lambda x: run(layers[start : start + k], x)")
wrong("drops-the-rest", sentence="the output without the last layers: the last segment may be shorter").replace(
    "range(0, len(layers), k)", "range(0, len(layers) // k * k, k)"
)
wrong("every-layer", "one for each layer", caught_by="memory").replace("layers), k)", "layers))").replace(
    "start + k", "start + 1"
)
wrong("no-checkpoint", "hand each segment", caught_by="memory").replace(SEGMENT, "run(layers[start : start + k], x)")
wrong("k-segments", "number of layers in each segment", caught_by="memory").replace(
    "range(0, len(layers), k)", "range(0, len(layers), -(-len(layers) // k))"
).replace("start + k", "start + -(-len(layers) // k)")
wrong("overlap", sentence="the output if each segment goes on into the next: it ends before that begins").replace(
    "start + k]", "start + k + 1]"
)
wrong("one-short", sentence="the output without the last layer of each segment: a slice's end doesn't count").replace(
    "start + k]", "start + k - 1]"
)
wrong(
    "each-from-x", sentence="the last segment's output for x itself: each segment gets the output of the one before"
).replace("for start", "given = x\nfor start").replace("start + k]), x)", "start + k]), given)")
wrong("last-by-itself", "The last segment is a checkpoint", caught_by="memory").replace(
    "x = checkpoint(partial(run, layers[start : start + k]), x)",
    "part = partial(run, layers[start : start + k])\nx = checkpoint(part, x) if start + k < len(layers) else part(x)",
)
wrong("rest-in-the-last", "what is left over is a segment of its own", caught_by="memory").replace(
    "range(0, len(layers), k)", "range(0, max(len(layers) - k, 0) + 1, k)"
).replace("start + k]", "start + k if start + 2 * k <= len(layers) else len(layers)]")
wrong("inside-segments", "run in the ordinary way", caught_by="memory").replace("x = one(x)", "x = checkpoint(one, x)")
wrong("first-of-each", "outside of the checkpoints", caught_by="memory").replace(
    SEGMENT,
    "run(layers[start + 1 : start + k], checkpoint(layers[start], x))",
)
right("default-argument").body("""
    for start in range(0, len(layers), k):
        def run(x, segment=tuple(layers[start : start + k])):
            for one in segment:
                x = one(x)
            return x

        x = checkpoint(run, x)
    return x
""")
wrong("shorter-one-first", "The last segment is the one that is shorter", caught_by="memory").replace(
    "for start in range(0, len(layers), k):",
    "for start in range(len(layers) % k - k if len(layers) % k else 0, len(layers), k):",
).replace("layers[start : start + k]", "layers[max(start, 0) : start + k]")

wrong, right = ANSWERS.to("peak-bytes")
wrong(
    "boundaries-only",
    sentence="what is kept between forward and backward pass: while a segment is recomputed there is more",
).body("return -(-num_layers // k) * boundary")
wrong("input-twice", sentence="a sum that counts the segment's own input twice: its first layer keeps it").replace(
    "number * boundary", "(number + 1) * boundary"
)
wrong(
    "full-last",
    sentence="what is alive with the last segment as long as the others: it may be shorter, and then an earlier one "
    "may count",
).body("return (-(-num_layers // k) - 1) * boundary + k * keeps")
wrong(
    "last-only",
    sentence="what is alive in the last segment's backward pass: if that is shorter, an earlier one may need more",
).replace("max(peak, number * boundary + length * keeps)", "number * boundary + length * keeps")
wrong("no-checkpoints", sentence="what everything takes without checkpoints").body("return num_layers * keeps")
wrong("without-its-input", sentence="a sum without the segment's own input: what a layer keeps includes it").replace(
    "length * keeps", "length * keeps - boundary"
)
wrong(
    "one-segment",
    sentence="what the first segment keeps, the least of all: for a later one, the inputs before it are alive, too",
).body("return min(k, num_layers) * keeps")
wrong(
    "all-inputs-before",
    sentence="a sum with the inputs of all layers before: a segment keeps the input of its first layer alone",
).replace("number * boundary", "start * boundary")
wrong(
    "one-layer-at-a-time",
    sentence="a sum with one layer recomputed at a time: all layers of a segment are recorded together",
).replace("length * keeps", "keeps")
wrong(
    "no-inputs",
    sentence="a sum in which no layer keeps its input: the inputs before the segment are others, so take nothing off",
).replace("length * keeps", "length * (keeps - boundary)")
wrong(
    "all-but-input",
    sentence="a sum in which a segment's first layer alone keeps its input: each recorded layer keeps its own",
).replace("number * boundary + length * keeps", "(number + 1) * boundary + length * (keeps - boundary)")
wrong(
    "all-segments-plus-one",
    sentence="the inputs of all segments and what one layer keeps: the layers of a whole segment are recorded",
).body("return -(-num_layers // k) * boundary + keeps")
wrong("k-inputs", sentence="a sum with k inputs: one for each segment before is kept").replace(
    "number * boundary", "k * boundary"
)
wrong("sum-over-segments", sentence="the sum over all segments: the peak is the largest of them").replace(
    "max(peak, number * boundary + length * keeps)", "peak + number * boundary + length * keeps"
)
right("goes-through-segments").body("""
    alive, most, left = 0, 0, num_layers
    while left > 0:
        most = max(most, alive + min(k, left) * keeps)
        alive, left = alive + boundary, left - k
    return most
""")

wrong, right = ANSWERS.to("best-segments")
wrong("every-layer", "have a peak of").body("return list(range(len(keeps)))")
wrong("equal-lengths", "length of its own").body("""
    def peak(starts):
        ends = [*starts[1:], len(keeps)]
        return max(sum(boundaries[s] for s in starts if s < a) + sum(keeps[a:b]) for a, b in zip(starts, ends))

    return min((list(range(0, len(keeps), k)) for k in range(len(keeps), 0, -1)), key=peak)
""")
wrong("forgets-the-boundary", "Every layer is a segment").replace("boundaries[start] + least[end]", "least[end]")
wrong("adds-both", "one segment").replace("max(sum(keeps[start:end]), behind)", "sum(keeps[start:end]) + behind")
wrong(
    "input-of-the-next",
    sentence="a cut that miscounts a segment's input: while later segments run it is boundaries[start], and in the "
    "segment itself `keeps` includes it",
).replace("boundaries[start] + least[end]", "boundaries[end] + least[end]")
wrong("input-twice", same_as="input-of-the-next").replace(
    "max(sum(keeps[start:end]),", "max(boundaries[start] + sum(keeps[start:end]),"
)
wrong("without-its-input", sentence="the best cut if a segment's layers kept one input less: take nothing off").replace(
    "max(sum(keeps[start:end]),", "max(sum(keeps[start:end]) - boundaries[start],"
)
wrong(
    "one-layer-at-a-time",
    sentence="the best cut if only one layer of a segment were alive at a time: add up what all of them keep",
).replace("max(sum(keeps[start:end]),", "max(max(keeps[start:end]),")
wrong("last-input-too", "one segment").replace(
    "least, following = [0] * (count + 1)", "least, following = [0] * count + boundaries[-1:]"
).replace(" if end < count else 0", "")
wrong("ends", "0 first, then rising").replace("starts.append(start)", "starts.append(following[start])")
recursive = right("recursive")
recursive.body("""
    from functools import cache

    @cache
    def best(start):
        options = []
        for end in range(start + 1, len(keeps) + 1):
            later, starts = best(end) if end < len(keeps) else (0, ())
            behind = boundaries[start] + later if end < len(keeps) else 0
            options.append((max(sum(keeps[start:end]), behind), (start, *starts)))
        return min(options)

    return list(best(0)[1])
""")
wrong("tries-all-cuts", "Don't go through them").body("""
    from itertools import combinations

    count = len(keeps)

    def peak(starts):
        ends = [*starts[1:], count]
        segments = enumerate(zip(starts, ends))
        return max(sum(boundaries[s] for s in starts[:n]) + sum(keeps[a:b]) for n, (a, b) in segments)

    cuts = ((0, *inner) for size in range(count) for inner in combinations(range(1, count), size))
    return list(min(cuts, key=peak))
""")
wrong("tries-all-ends", "Don't go through them").like(recursive).replace("@cache", "")

wrong, right = ANSWERS.to("keep-expensive")
wrong("opposite", sentence="the opposite: keep what is expensive").replace(">= least", "< least").replace(
    "op in first and", "op not in first or"
)
wrong("above", sentence="wrong at the limit: an inner dimension of `least` is enough").replace(">= least", "> least")
wrong("bias-first", sentence="what the bias leads to: in addmm it is the first argument").replace(
    "aten.addmm.default: 1", "aten.addmm.default: 0"
)
wrong("no-bmm", sentence="what you get without bmm: it is a product, too").replace(
    "torch.ops.aten.bmm.default: 0, ", ""
)
wrong("no-addmm", sentence="what you get without addmm: it is a product, too").replace(
    ", torch.ops.aten.addmm.default: 1", ""
)
wrong("columns", sentence="what the last dimension of the result leads to: the inner one counts").replace(
    "args[first[op]].shape[-1]", "args[-1].shape[-1]"
)
wrong(
    "every-product", sentence="what you get by keeping every product: those with a small inner dimension are cheap"
).replace("args[first[op]].shape[-1] >= least", "True")
wrong("fixed-limit", "least = ", hidden=True).replace(">= least", ">= 128")
wrong("cheap-products", sentence="what you get by keeping the cheap products instead of the expensive ones").replace(
    ">= least", "< least"
)
wrong("first-dimension", sentence="what the left factor's first dimension leads to: the inner one is its last").replace(
    "shape[-1]", "shape[0]"
)
wrong("rows", sentence="what the left factor's rows lead to: the inner dimension is that of its columns").replace(
    "shape[-1]", "shape[-2]"
)
wrong("dimension-1", sentence="what dimension 1 leads to: in bmm the inner dimension comes after it").replace(
    "shape[-1]", "shape[1]"
)
wrong(
    "last-factor",
    sentence="what the right factor's first dimension leads to: in bmm that is the number of pairs",
).replace("args[first[op]].shape[-1]", "args[-1].shape[0]")
wrong(
    "without-default",
    sentence="what you get if no operation is recognised: `op` is torch.ops.aten.mm.default, not torch.ops.aten.mm",
).replace(".default", "")
wrong("any-operation", sentence="what you get by keeping other operations too: only products are expensive").replace(
    "if op in first and args[first[op]].shape",
    "left = args[first.get(op, 0)] if args else None\nif isinstance(left, Tensor) and left.shape",
)
wrong("all-but-products", same_as="any-operation").replace("op in first and", "op not in first or")
wrong(
    "by-flops",
    sentence="what the number of operations leads to: what counts is the inner dimension, however large the rest",
).replace("args[first[op]].shape[-1] >= least", "args[-2].numel() * args[-1].shape[-1] >= least**3")
wrong(
    "by-size", sentence="what the size of the left factor leads to: its last dimension alone, the inner one, counts"
).replace("args[first[op]].shape[-1] >= least", "args[first[op]].numel() >= least**2")
wrong("says-yes-or-no", "MUST_SAVE or").replace("CheckpointPolicy.MUST_SAVE", "True").replace(
    "CheckpointPolicy.PREFER_RECOMPUTE", "False"
)
right("by-right-factor").body("""
    aten = torch.ops.aten

    def decide(ctx, op, *args, **kwargs):
        product = op in (aten.mm.default, aten.bmm.default, aten.addmm.default)
        keep = product and args[-1].size(-2) >= least
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return decide
""")

wrong, right = ANSWERS.to("pieces-over")
wrong("a-view", "keep .clone() of the piece", caught_by="memory").replace(
    "flat = nn.functional.pad(tensor.detach().flatten(), (0, length * size - tensor.numel()))",
    "flat = torch.cat([tensor.detach().flatten(), tensor.new_zeros(length * size - tensor.numel())])",
).replace(".clone()", "")
wrong("keeps-all", "keep .clone() of the piece", caught_by="memory").replace(
    "flat[rank * length : (rank + 1) * length].clone()", "tensor.detach()"
).replace("flat = piece.new_empty(size * len(piece))", "return piece").replace(
    "dist.all_gather_single(flat, piece, group=group)", ""
).replace("return flat[: shape.numel()].view(shape)", "")
wrong("world-rank", "This rank's piece was empty").replace("dist.get_rank(group)", "dist.get_rank()")
wrong("whole-world", "must be handed the group").replace("flat, piece, group=group", "flat, piece")
wrong("no-padding", "Pad before you cut").replace("-(-tensor.numel() // size)", "tensor.numel() // size")
wrong("gathers-in-pack", "in unpack", caught_by="traffic").replace(
    "return tensor.shape, flat", "dist.all_reduce(flat.clone(), group=group)\nreturn tensor.shape, flat"
)
wrong(
    "world-rank-modulo",
    sentence="what you get from the wrong pieces: a rank's place in the group is "
    "dist.get_rank(group), not its number in the world",
).replace("dist.get_rank(group)", "dist.get_rank() % dist.get_world_size(group)")
wrong("float32", "in float32", hidden=True).replace("shape, piece = kept", "shape, piece = kept[0], kept[1].float()")
wrong("every-t-th", sentence="the numbers in a different order: unpack lays neighbours end to end").replace(
    "flat[rank * length : (rank + 1) * length]", "flat[rank::size]"
)
wrong("default-dtype", "the dtype of the pieces", hidden=True).replace("piece.new_empty", "torch.empty")
wrong("by-rows", "the same size").replace(
    "flat[rank * length : (rank + 1) * length]", "tensor.detach().chunk(size)[rank]"
).replace("size * len(piece)", "shape").replace("flat[: shape.numel()].view(shape)", "flat")
wrong("no-group", sentence="what the pieces of all ranks lead to: only those of the group belong together").replace(
    "get_rank(group)", "get_rank()"
).replace("get_world_size(group)", "get_world_size()").replace(", group=group", "")
wrong("keeps-the-padding", "cut off the padding").replace("flat[: shape.numel()].view(shape)", "flat")
wrong(
    "rounds-down",
    sentence="right but for the last numbers, which are 0: if t doesn't divide their number, pad, and round up",
).replace("-(-tensor.numel() // size)", "tensor.numel() // size").replace(
    "nn.functional.pad(tensor.detach().flatten(), (0, length * size - tensor.numel()))", "tensor.detach().flatten()"
).replace(
    "flat[: shape.numel()].view(shape)", "torch.cat([flat, flat.new_zeros(shape.numel() - len(flat))]).view(shape)"
)
wrong("views-the-padding", "Pad before you cut").replace("flat[: shape.numel()].view", "flat.view")
wrong("shape-of-a-tensor", "but not the tensor", caught_by="memory").replace(
    "return tensor.shape, flat", "return tensor, flat"
).replace("shape, piece = kept", "tensor, piece = kept\nshape = tensor.shape")
right("tensor-lists").body("""
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def pack(x):
        whole = x.detach().reshape(-1)
        length = (len(whole) + size - 1) // size
        mine = whole.new_zeros(length)
        part = whole[rank * length : (rank + 1) * length]
        mine[: len(part)] = part
        return mine, x.size()

    def unpack(kept):
        mine, shape = kept
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine, group=group)
        return torch.cat(parts)[: shape.numel()].reshape(shape)

    return pack, unpack
""")

wrong, right = ANSWERS.to("stage-peak")
wrong("gpipe", sentence="what GPipe keeps: 1F1B has at most P - p microbatches in flight").replace(
    "min(num_stages - stage, microbatches)", "microbatches"
)
wrong("all-stages", sentence="what P microbatches keep: stage p has only P - p of them in flight").replace(
    "num_stages - stage", "num_stages"
)
wrong("first-has-least", sentence="what p + 1 microbatches keep: the first stage has most").replace(
    "num_stages - stage", "stage + 1"
)
wrong("one-too-few", sentence="what P - p - 1 microbatches keep: the one that goes backward counts too").replace(
    "num_stages - stage", "num_stages - stage - 1"
)
wrong("one-too-many", sentence="what P - p + 1 microbatches keep: stages are numbered from 0").replace(
    "num_stages - stage", "num_stages - stage + 1"
)
wrong("more-than-there-are", sentence="more microbatches than there are").replace(
    "min(num_stages - stage, microbatches)", "num_stages - stage"
)
wrong("other-way-round", sentence="what the other value of recompute leads to").replace(
    "if recompute", "if not recompute"
)
wrong("leaves-out", sentence="a number that leaves out the layer that is being recomputed").replace(
    " + keeps - boundary", ""
)
wrong("input-twice", sentence="a sum with the recomputed layer's input in it twice").replace(
    " + keeps - boundary", " + keeps"
)
wrong(
    "whole-stage", sentence="a number with a whole stage recomputed at once: every layer is a checkpoint of its own"
).replace("keeps - boundary", "num_layers * (keeps - boundary)")
wrong(
    "in-each-microbatch",
    sentence="a sum with one layer of each microbatch recomputed: only one microbatch goes backward at a time",
).replace("+ keeps - boundary", "+ live * (keeps - boundary)")
wrong(
    "one-input", sentence="a sum with one input for each microbatch: every layer is a checkpoint, and keeps its own"
).replace("live * num_layers * boundary", "live * boundary")
wrong(
    "bubble",
    sentence="what M + P - 1 microbatches keep: as many slots as the schedule has, but stage p has P - p in flight",
).replace("min(num_stages - stage, microbatches)", "microbatches + num_stages - 1")
wrong(
    "slots-of-the-bubble",
    sentence="what P - 1 microbatches keep: stage p has P - p in flight, the bubble doesn't count",
).replace("min(num_stages - stage, microbatches)", "num_stages - 1")
right("one-sum").body("""
    live = min(microbatches, num_stages - stage)
    held = live * num_layers * (boundary if recompute else keeps)
    return held + (keeps - boundary) * recompute
""")

wrong, right = ANSWERS.to("recompute-plan")
wrong("recomputes-all", "times par", caught_by="score").body("return [(n, n + 1, True) for n in range(len(keeps))]")
wrong("keeps-all", "a peak of", caught_by="score").body("return [(0, len(keeps), False)]")
wrong("leaves-out-the-last", "the last segment ends", caught_by="score").body(
    "return [(n, n + 1, True) for n in range(len(keeps) - 1)]"
)
right("tries-segments").body("""
    count, plans = len(keeps), []
    for k in (1, 2, 3):
        starts = list(range(0, count, k))
        plan = [[a, min(a + k, count), True] for a in starts]

        def gain(one):
            a, b, _ = one
            return sum(seconds[a:b]) / max(sum(keeps[a:b]) - boundaries[a], 1)

        for one in sorted(plan, key=gain, reverse=True):
            one[2] = False
            if peak_of_plan(plan, boundaries, keeps) > memory:
                one[2] = True
        if peak_of_plan(plan, boundaries, keeps) <= memory:
            plans.append([tuple(one) for one in plan])
    return min(plans, key=lambda plan: seconds_of_plan(plan, seconds))
""")
