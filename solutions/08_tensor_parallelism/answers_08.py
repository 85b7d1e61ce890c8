"""Answers to lesson 08, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()
T = "dist.get_world_size(tp_group)"
MY_TOKENS = ".chunk(dist.get_world_size(tp_group), 1)[dist.get_rank(tp_group)].contiguous()"

wrong, right = ANSWERS.to("shard-of-weight")
wrong("not-scaled", sentence="this rank's part before scaling: divide by the square root of fan_in").replace(
    " / fan_in**0.5", ""
)
wrong(
    "divides-by-fan-in", sentence="this rank's part divided by fan_in: its square root keeps activations at their size"
).replace("fan_in**0.5", "fan_in")
wrong("the-whole", sentence="the whole weight: keep this rank's part").replace(".chunk(tp_size, dim)[tp_rank]", "")
wrong("every-tth", sentence="every t-th row or column: a part is a block of consecutive ones").replace(
    "whole.chunk(tp_size, dim)[tp_rank]", "(whole[tp_rank::tp_size] if dim == 0 else whole[:, tp_rank::tp_size])"
)
wrong(
    "shards-alike", sentence="a shard drawn by itself with the same seed: that makes the shards of all ranks equal"
).body("""
    rows, columns = (fan_in // tp_size, fan_out) if dim == 0 else (fan_in, fan_out // tp_size)
    return torch.randn(rows, columns, generator=generator) / fan_in**0.5
""")
wrong(
    "seed-of-its-own",
    sentence="a shard drawn with its own seed: put together, the shards are not the weight of one process",
).body("""
    rows, columns = (fan_in // tp_size, fan_out) if dim == 0 else (fan_in, fan_out // tp_size)
    return torch.randn(rows, columns, generator=generator.manual_seed(seed + tp_rank)) / fan_in**0.5
""")
wrong(
    "one-shard-after-another",
    sentence="a shard drawn after those of earlier ranks: one process draws whole rows, so draw all, then cut",
).body("""
    rows, columns = (fan_in // tp_size, fan_out) if dim == 0 else (fan_in, fan_out // tp_size)
    return [torch.randn(rows, columns, generator=generator) for _ in range(tp_rank + 1)][-1] / fan_in**0.5
""")
wrong(
    "scale-of-the-outputs",
    sentence="this rank's part scaled by fan_out: a sum over fan_in products needs 1 / sqrt(fan_in)",
).replace("/ fan_in**0.5", "/ fan_out**0.5")
wrong(
    "scale-of-the-shard",
    sentence="this rank's part divided by sqrt(rows of the shard): divide by sqrt(fan_in) of the whole weight",
).replace("/ fan_in**0.5", "/ (fan_in // tp_size if dim == 0 else fan_in) ** 0.5")
wrong("split-takes-a-size", "the size of a part").replace("chunk(tp_size, dim)", "split(tp_size, dim)")
wrong("other-dimension", sentence="a part cut along the other dimension").replace(
    "chunk(tp_size, dim)", "chunk(tp_size, 1 - dim)"
)
wrong("draws-the-transpose", sentence="a part of the transpose: draw (fan_in, fan_out)").replace(
    "torch.randn(fan_in, fan_out, generator=generator)", "torch.randn(fan_out, fan_in, generator=generator).T"
)
wrong("without-the-generator", "pass generator=generator").replace(", generator=generator", "")
wrong("contiguous-rows", "contiguous() doesn't copy a slice of rows", caught_by="memory").replace("clone", "contiguous")
right("scales-last-and-narrows").body("""
    whole = torch.randn(fan_in, fan_out, generator=generator)
    size = whole.shape[dim] // tp_size
    return torch.narrow_copy(whole, dim, tp_rank * size, size).mul_(fan_in**-0.5)
""")

wrong, right = ANSWERS.to("column-parallel")
wrong("forgets-the-bias", "without the bias").replace(" + b_local", "")
wrong("bias-not-summed", "sum it over the batch").replace("grad_local.sum(0)", "grad_local.clone()")
wrong("no-sum-of-grad-x", "the contribution of this rank's columns").replace("all_reduce(", "(lambda x, _: x)(")
wrong("mean-of-grad-x", "the mean over the ranks").replace(", tp_group)", ", tp_group) / dist.get_world_size(tp_group)")
wrong("sums-all-gradients", "so only grad_x").replace("x.T @ grad_local", "all_reduce(x.T @ grad_local, tp_group)")
wrong("gathers-y", "of all ranks, joined").replace("x @ w_local + b_local", "all_gather(x @ w_local + b_local)")
wrong("sums-the-bias-too", "the others need no message", caught_by="traffic").replace(
    "grad_local.sum(0)", "all_reduce(grad_local.sum(0), tp_group)"
)
wrong("forgets-the-group", "pass tp_group to each").replace("w_local.T, tp_group)", "w_local.T)")
wrong("sums-grad-first", "multiply first").replace(" @ w_local.T, tp_group)", ", tp_group) @ w_local.T")
wrong("grad-x-side-by-side", "side by side: add them up").replace("all_reduce(", "all_gather(")
wrong("mean-of-the-bias", "the mean over the batch").replace("grad_local.sum(0)", "grad_local.mean(0)")
wrong("weight-before-x", "in the order of the docstring").replace(
    "grad_b_local = grad_local.sum(0)", "grad_b_local = grad_local.sum(0); grad_x, grad_w_local = grad_w_local, grad_x"
)
right("asynchronous").body("""
    grad_x = torch.einsum("bf,df->bd", grad_local, w_local).contiguous()
    handle = dist.all_reduce(grad_x, group=tp_group, async_op=True)  # beside the weight's gradient
    y_local = torch.addmm(b_local, x, w_local)
    grad_w_local = torch.einsum("bd,bf->df", x, grad_local)
    grad_b_local = torch.ones(len(x), dtype=x.dtype) @ grad_local
    handle.wait()
""")

wrong, right = ANSWERS.to("row-parallel")
wrong("bias-not-summed", "sum it over the batch").replace("grad.sum(0)", "grad.clone()")
wrong("bias-on-every-rank", "the bias added 2 times").replace("w_local, tp_group) + bias", "w_local + bias, tp_group)")
wrong("bias-on-rank-0-after-the-sum", "without the bias, on this rank").replace(
    "y = all_reduce(x_local @ w_local, tp_group) + bias",
    "y = all_reduce(x_local @ w_local, tp_group)\nif dist.get_rank(tp_group) == 0:\n    y = y + bias",
)
wrong("bias-on-rank-0-before-the-sum", "every copy needs its gradient").replace(
    "y = all_reduce(x_local @ w_local, tp_group) + bias",
    "first = dist.get_rank(tp_group) == 0\ny = all_reduce(x_local @ w_local + (bias if first else 0), tp_group)",
).replace("grad.sum(0)", "grad.sum(0) if first else torch.zeros_like(bias)")
wrong("no-sum", "a partial sum").replace("all_reduce(x_local @ w_local, tp_group)", "x_local @ w_local")
wrong("sums-grad-first", "so add nothing up").replace(
    "grad_x_local = grad @", "grad = all_reduce(grad, tp_group)\ngrad_x_local = grad @"
)
wrong("sums-grad-x", "so only y is summed").replace("grad @ w_local.T", "all_reduce(grad @ w_local.T, tp_group)")
wrong("sums-the-bias-gradient", "so add nothing up").replace("grad.sum(0)", "all_reduce(grad.sum(0), tp_group)")
wrong("gathers-the-inputs", "a partial sum, y", caught_by="traffic").body("""
    x, w = all_gather(x_local, tp_group, dim=1), all_gather(w_local, tp_group, dim=0)
    y = x @ w + bias
    grad_x_local, grad_w_local, grad_bias = grad @ w_local.T, x_local.T @ grad, grad.sum(0)
""")
wrong("all-ranks-for-the-group", "pass tp_group to each").replace("x_local @ w_local, tp_group)", "x_local @ w_local)")
wrong("mean-of-the-products", "the mean of the products").replace("w_local, tp_group)", f"w_local, tp_group) / {T}")
wrong("shares-grad-out", "needs no share of it").replace("grad_x_local =", f"grad = grad / {T}\ngrad_x_local =")
wrong("a-share-of-the-bias-gradient", "so it needs the whole gradient").replace("grad.sum(0)", f"grad.sum(0) / {T}")
wrong("mean-over-the-batch", "the mean over the batch").replace("grad_bias = grad.sum(0)", "grad_bias = grad.mean(0)")
right("a-share-of-the-bias-before-the-sum").replace(
    "x_local @ w_local, tp_group) + bias", f"torch.addmm(bias / {T}, x_local, w_local), tp_group)"
)
right("in-place-on-its-own").body("""
    y = x_local @ w_local
    dist.all_reduce(y, group=tp_group)
    y += bias
    grad_x_local, grad_w_local, grad_bias = grad @ w_local.T, (grad.T @ x_local).T, grad.sum(dim=0)
""")

wrong, right = ANSWERS.to("copy-to-shards")
wrong("forgets-to-sum", "this rank's own part").replace("all_reduce(grad_partial, ctx.tp_group)", "grad_partial")
wrong("sums-forward-too", "forward passes x on as it is").replace("x.view_as(x)", "all_reduce(x, tp_group)")
wrong("averages", "the mean over the ranks").replace(".tp_group), ", ".tp_group) / dist.get_world_size(ctx.tp_group), ")
wrong("sums-in-place-what-is-contiguous", "It is not yours").replace(
    "return all_reduce(grad_partial, ctx.tp_group), None",
    "total = grad_partial.contiguous()\ndist.all_reduce(total, group=ctx.tp_group)\nreturn total, None",
)
wrong("all-ranks-for-the-group", "pass tp_group to each").replace("(grad_partial, ctx.tp_group)", "(grad_partial)")
wrong("times-t", "add up all ranks' parts").replace(
    "all_reduce(grad_partial, ctx.tp_group)", "grad_partial * dist.get_world_size(ctx.tp_group)"
)
wrong("one-gradient", "None for tp_group").replace("ctx.tp_group), None", "ctx.tp_group)")
wrong("mean-forward", "every rank has all of x already", caught_by="traffic").replace(
    "x.view_as(x)", "all_reduce(x, tp_group) / dist.get_world_size(tp_group)"
)
wrong("hook-on-x-itself", "only the gradient that comes back through f").function("""
    x.register_hook(lambda grad: all_reduce(grad, tp_group))
    return x
""")
right("by-a-hook").function("""
    y = x.clone()
    y.register_hook(lambda grad: all_reduce(grad, tp_group))
    return y
""")
right("clones-first").replace("x.view_as(x)", "x").replace(
    "return all_reduce(grad_partial, ctx.tp_group), None",
    "total = grad_partial.clone(memory_format=torch.contiguous_format)\n"
    "dist.all_reduce(total, group=ctx.tp_group)\n"
    "return total, None",
)

wrong, right = ANSWERS.to("reduce-from-shards")
wrong("torch-distributed-nn", "it counts once").function("""
    from torch.distributed.nn.functional import all_reduce as of_torch
    with warnings.catch_warnings(action="ignore"):
        return of_torch(x_partial.contiguous(), group=tp_group)
""")
wrong("returns-what-it-did-not-sum", "in a different tensor from the one you return").replace(
    "return all_reduce(x_partial, tp_group)",
    "dist.all_reduce(x_partial.contiguous().clone(), group=tp_group)\nreturn x_partial.clone()",
)
wrong("sums-its-input", "Something writes in place").replace(
    "return all_reduce(x_partial, tp_group)", "dist.all_reduce(x_partial, group=tp_group)\nreturn x_partial.clone()"
)
wrong("clone-keeps-the-strides", "keeps the layout of a transpose").replace(
    "return all_reduce(x_partial, tp_group)", "y = x_partial.clone()\ndist.all_reduce(y, group=tp_group)\nreturn y"
)
wrong("mean-backward", "so pass it on", caught_by="traffic").replace(
    "return all", "ctx.g = tp_group\nreturn all"
).replace("grad, None", "all_reduce(grad, ctx.g) / dist.get_world_size(ctx.g), None")
wrong("bare-verb", "That is no gradient").function("return all_reduce(x_partial, tp_group)")
wrong("gradient-for-rank-0", "zero on this rank").replace(
    "return all_reduce", "ctx.first = dist.get_rank(tp_group) == 0\nreturn all_reduce"
).replace("grad, None", "grad * ctx.first, None")
wrong("all-ranks-for-the-group", "pass tp_group to each").replace("reduce(x_partial, tp_group)", "reduce(x_partial)")
wrong("shares-the-gradient-out", "with factor 1").replace(
    "return all_reduce", "ctx.size = dist.get_world_size(tp_group)\nreturn all_reduce"
).replace("grad, None", "grad / ctx.size, None")
right("detached-difference").function("""
    others = all_reduce(x_partial, tp_group) - x_partial.detach()
    return x_partial + others
""")

wrong, right = ANSWERS.to("gather-from-shards")
wrong("reduce-scatters", "so add nothing up").replace(
    "return grad.chunk(tp_size, dim=-1)[tp_rank], None", "return reduce_scatter(grad, ctx.tp_group, dim=-1), None"
)
wrong("mean-by-reduce-scatter", "so take its slice", caught_by="traffic").replace(
    "grad.chunk(tp_size, dim=-1)[tp_rank]", "reduce_scatter(grad, ctx.tp_group, dim=-1) / tp_size"
)
wrong("one-buffer", "one tensor, not t").replace(
    "return all_gather(x_local, tp_group, dim=-1)",
    "parts = [x_local.new_empty(x_local.shape)] * dist.get_world_size(tp_group)\n"
    "dist.all_gather(parts, x_local.contiguous(), group=tp_group)\nreturn torch.cat(parts, -1)",
)
wrong("into-one-tensor", "torch.cat(parts, dim=-1)").replace(
    "return all_gather(x_local, tp_group, dim=-1)",
    "y = x_local.new_empty(*x_local.shape[:-1], dist.get_world_size(tp_group) * x_local.shape[-1])\n"
    "dist.all_gather_into_tensor(y, x_local.contiguous(), group=tp_group)\nreturn y",
)
wrong("first-dimension", "features are the last dimension").replace(", tp_group, dim=-1)", ", tp_group, dim=0)")
wrong("adds-up", "the sum of the shards").replace("gather(x_local, tp_group, dim=-1)", "reduce(x_local, tp_group)")
wrong("cuts-dimension-0", "along dimension 0, the default").replace(
    "grad.chunk(tp_size, dim=-1)", "grad.chunk(tp_size)"
)
wrong("the-whole-gradient", "as backward is given it").replace("grad.chunk(tp_size, dim=-1)[tp_rank]", "grad")
wrong("a-share-of-the-gradient", "this rank's in full").replace("[tp_rank], None", "[tp_rank] / tp_size, None")
wrong("two-gradients", "and None for tp_group").replace("[tp_rank], None", "[tp_rank], grad")
wrong("slice-of-rank-0", "rank 0's slice").replace(".chunk(tp_size, dim=-1)[tp_rank]", ".chunk(tp_size, dim=-1)[0]")
wrong("along-dimension-1", "along dimension 1").replace("tp_group, dim=-1)", "tp_group, dim=1)").replace(
    "chunk(tp_size, dim=-1)", "chunk(tp_size, dim=1)"
)
wrong("without-moving-dimensions", "in a different order").replace(
    "return all_gather(x_local, tp_group, dim=-1)",
    "rows = all_gather(x_local.unsqueeze(0), tp_group, dim=0)\nreturn rows.reshape(*x_local.shape[:-1], -1)",
)
wrong("every-tth-number", "every t-th number").replace(".chunk(tp_size, dim=-1)[tp_rank]", "[..., tp_rank::tp_size]")
wrong("all-ranks-for-the-group", "pass tp_group to each").replace("x_local, tp_group, dim=-1", "x_local, dim=-1")
wrong("rank-among-all", "dist.get_rank(tp_group)").replace("dist.get_rank(ctx.tp_group)", "dist.get_rank()")
right("plain-list").replace(
    "return all_gather(x_local, tp_group, dim=-1)",
    "parts = [x_local.new_empty(x_local.shape) for _ in range(dist.get_world_size(tp_group))]\n"
    "dist.all_gather(parts, x_local.contiguous(), group=tp_group)\nreturn torch.cat(parts, dim=-1)",
).replace("grad.chunk(tp_size, dim=-1)[tp_rank]", "grad.unflatten(-1, (tp_size, -1)).select(-2, tp_rank)")
right("own-shard-keeps-its-graph").function("""
    parts = list(all_gather(x_local, tp_group).chunk(dist.get_world_size(tp_group), dim=-1))
    parts[dist.get_rank(tp_group)] = x_local  # the shard that autograd knows
    return torch.cat(parts, dim=-1)
""")

wrong, right = ANSWERS.to("megatron-mlp")
wrong("forgets-the-bias", sentence="y without b_down").replace("g(y_partial) + b_down", "g(y_partial) + 0 * b_down")
wrong("no-g-no-bias", sentence="the output of this rank's rows: a partial sum. Where is g?").replace(
    "g(y_partial) + b_down", "y_partial + 0 * b_down"
)
wrong("returns-nothing", "without a `return`").replace("return g", "g")
wrong("forgets-f", sentence="the contribution of this rank's columns: f is missing").replace("gelu(f(x) @", "gelu(x @")
wrong("forgets-g", sentence="the output of this rank's rows plus b_down: a partial sum. Where is g?").replace(
    "g(y_partial) + b_down", "y_partial + b_down"
)
wrong("bias-before-g", sentence="y with b_down added t times: it belongs after g, once").replace(
    "g(y_partial) + b_down", "g(y_partial + b_down)"
)
wrong("gelu-of-the-sum", sentence="y without gelu").replace("gelu(", "(")
wrong(
    "a-share-of-the-bias",
    sentence="the right one divided by t, the number of ranks: b_down / t before g gives each rank's copy only "
    "1/t of its gradient. Add b_down once, after g",
).replace("al) + b_down", "al + b_down / dist.get_world_size())")
wrong("bias-on-rank-0", "add b_down on every rank").replace("+ b_down", "+ b_down * (dist.get_rank() < 1)")
wrong("f-after-the-product", sentence="the gradient with f after a product: f belongs where x enters").replace(
    "gelu(f(x) @ w_up_local + b_up_local)", "f(gelu(x @ w_up_local + b_up_local))"
)
wrong("f-before-gelu", same_as="f-after-the-product").replace("f(x) @ w_up_local", "f(x @ w_up_local)")
wrong(
    "f-between-too", sentence="the gradient with an f between the two products, too: f belongs only where x enters"
).replace("h_local @", "f(h_local) @")
wrong(
    "f-for-the-shards", sentence="the sum over the ranks: each rank has its own part of this weight, so no f"
).replace("@ w_up_local", "@ f(w_up_local)")
wrong(
    "g-in-the-middle-alone", sentence="y with g between the two products: ranks have different features there"
).replace("gelu(f(x) @ w_up_local + b_up_local)", "g(gelu(f(x) @ w_up_local + b_up_local))").replace(
    "g(y_partial)", "y_partial"
)
wrong(
    "f-for-the-bias", sentence="t times too large: b_down's gradient was summed over the ranks, which all have it"
).replace(") + b_down", ") + f(b_down)")
wrong("sums-forward-twice", "One g, for y", caught_by="traffic").replace("return", "g(h_local)\nreturn")
wrong("sums-y-twice", "one more all_reduce", caught_by="time").replace("return", "g(y_partial)\nreturn")
wrong("f-after-both-products", same_as="f-after-the-product").replace("f(x)", "x").replace(
    "g(y_partial)", "g(f(y_partial))"
)
wrong("gelu-at-the-end", sentence="y with gelu at the end: it stands between the two products").body(
    "return gelu(g((f(x) @ w_up_local + b_up_local) @ w_down_local) + b_down)"
)
wrong("approximate-gelu", sentence="y with gelu's approximation by tanh: call gelu(h)").replace(
    "b_up_local)", 'b_up_local, approximate="tanh")'
)
wrong("relu", sentence="y with relu in place of gelu").replace("gelu(", "torch.relu(")
wrong("g-before-gelu", same_as="g-in-the-middle-alone").replace("gelu(f(x) @ w_up_local", "gelu(g(f(x) @ w_up_local)")
wrong("f-and-g-exchanged", sentence="y with f and g exchanged: f stands where x enters, g at the end").replace(
    "f(x)", "g(x)"
).replace("g(y_partial)", "f(y_partial)")
wrong("f-twice", sentence="t times too large: f sums it over the ranks once").replace("f(x)", "f(f(x))")
wrong("f-after-g", sentence="t times too large: g passes its gradient on, once").replace(
    "g(y_partial)", "f(g(y_partial))"
)
wrong("f-for-w-down", same_as="f-for-the-shards").replace("@ w_down_local", "@ f(w_down_local)")
wrong("f-for-b-up", same_as="f-for-the-shards").replace("b_up_local)", "f(b_up_local))")
right("by-linear").body("""
    linear = torch.nn.functional.linear
    h = linear(f(x), w_up_local.T, b_up_local)
    return b_down + g(linear(gelu(h), w_down_local.T))
""")

wrong, right = ANSWERS.to("parallel-embedding")
wrong("forgets-g", sentence="this rank's lookups: add up all ranks'").replace("g(y_partial)", "y_partial")
wrong(
    "starts-too-early",
    sentence="the sum with a mask that takes one row too many: a rank's rows begin at tp_rank * rows, and the "
    "one before isn't its own",
).replace("(index >= 0)", "(index >= -1)")
wrong(
    "ends-too-early",
    sentence="the sum with a mask that leaves out each rank's last row: a rank's rows end before (tp_rank + 1) * "
    "rows, so the test is < (tp_rank + 1) * rows",
).replace("(index < rows)", "(index < rows - 1)")
wrong("no-mask", sentence="the sum without a mask: a rank adds zeros for what isn't its own").replace(
    "torch.where(mine.unsqueeze(-1), found, 0.0)", "found"
)
wrong(
    "mask-off-by-one-at-the-end",
    sentence="the sum with a mask that takes one row too many: a rank's rows end before (tp_rank + 1) * rows, so "
    "the test is <, not <=",
).replace("index < rows", "index <= rows")
wrong(
    "off-by-one-remainder",
    sentence="the sum with a mask that takes one row too many, and with the remainder as index: a rank's rows "
    "end before (tp_rank + 1) * rows, so the test is <, not <=",
).replace("index < rows", "index <= rows").replace("index.clamp(0, rows - 1)", "tokens % rows")
wrong(
    "mask-off-by-one-at-the-start",
    sentence="the sum with a mask that leaves out each rank's first row: a rank's rows begin at tp_rank * rows, "
    "so the test is >=, not >",
).replace("(index >= 0)", "(index > 0)")
wrong("global-index", "subtract tp_rank * rows").replace("index.clamp(0, rows - 1)", "tokens")
wrong("masks-only-the-value", sentence="the gradient of all tokens, other ranks' included").replace(
    "torch.where(mine.unsqueeze(-1), found, 0.0)",
    "found + (torch.where(mine.unsqueeze(-1), found, 0.0) - found).detach()",
)
wrong(
    "padding-index",
    sentence="the gradient without each rank's first row: that is the row that padding_idx=0 leaves out",
).replace(
    "table_local[index.clamp(0, rows - 1)]", "torch.nn.functional.embedding(index * mine, table_local, padding_idx=0)"
)
wrong("sums-twice", "2 calls where 1 will do", caught_by="traffic").replace(
    "return", "all_reduce(y_partial.detach())\nreturn"
)
wrong("shifts-the-tokens-in-place", "Something writes in place").replace(" - tp_rank * rows", ".sub_(tp_rank * rows)")
wrong(
    "remainder",
    sentence="the sum without a mask, and with the remainder as index: a rank adds zeros for what isn't its own",
).body("y_partial = table_local[tokens % rows]")
wrong(
    "masks-later-ranks-alone",
    sentence="the sum without a mask for what earlier ranks have: an index below 0 isn't this rank's either",
).replace("(index >= 0) & ", "")
wrong(
    "masks-earlier-ranks-alone",
    sentence="the sum without a mask for what later ranks have: an index past this rank's last isn't its own either",
).replace(" & (index < rows)", "")
wrong("float-mask", "made by .float() is float32").replace(
    "torch.where(mine.unsqueeze(-1), found, 0.0)", "found * mine.unsqueeze(-1).float()"
)
wrong("one-rank-on", sentence="the row of the rank before: rank r's first row is r * V/t").replace(
    "tp_rank * rows", "(tp_rank + 1) * rows"
)
wrong("one-rank-back", sentence="the row of the rank after: rank r's first row is r * V/t").replace(
    "tp_rank * rows", "(tp_rank - 1) * rows"
)
wrong("f-after-g", sentence="t times too large: g passes the gradient on, once").replace(
    "return g(y_partial)", "return copy_to_shards(g(y_partial), None)"
)
right("masked-fill").body("""
    others = (tokens < tp_rank * rows) | (tokens > tp_rank * rows + rows - 1)
    found = torch.nn.functional.embedding((tokens - tp_rank * rows).masked_fill(others, 0), table_local)
    y_partial = found.masked_fill(others[..., None], 0)
""")
right("one-hot").body("""
    words = torch.arange(tp_rank * rows, (tp_rank + 1) * rows)
    y_partial = (tokens.unsqueeze(-1) == words).to(table_local.dtype) @ table_local
""")

wrong, right = ANSWERS.to("parallel-cross-entropy")
wrong(
    "starts-too-early",
    sentence="the loss with a mask that takes one word too many: a rank's words begin at tp_rank * words, and "
    "the one before isn't its own",
).replace("(index >= 0)", "(index >= -1)")
wrong(
    "starts-too-late",
    sentence="the loss with a mask that leaves out each rank's first word: a rank's words begin at tp_rank * "
    "words, so the test is >=, not >",
).replace("(index >= 0)", "(index > 0)")
wrong(
    "ends-too-early",
    sentence="the loss with a mask that leaves out each rank's last word: a rank's words end before (tp_rank + "
    "1) * words, so the test is < (tp_rank + 1) * words",
).replace("(index < words)", "(index < words - 1)")
wrong("no-maximum", "an exponential overflows").replace("logits_local - largest.unsqueeze(-1)", "logits_local")
wrong(
    "maximum-of-its-own", sentence="the loss when each rank subtracts its own maximum: all must subtract the same one"
).replace("all_reduce(", "(lambda x, *_, op: x.detach())(")
wrong("maximum-over-all-groups", "pass tp_group to each").replace("tp_group, op=", "None, op=")
wrong("sum-of-its-own-words", sentence="the loss without the sum over the other ranks' words").replace(
    "g(shifted", "(shifted"
)
wrong("no-mask", sentence="the loss without a mask: a rank adds zeros for what isn't its own").replace(
    "torch.where(mine, found, 0.0)", "found"
)
wrong(
    "mask-off-by-one",
    sentence="the loss with a mask that takes one word too many: a rank's words end before (tp_rank + 1) * "
    "words, so the test is <, not <=",
).replace("(index < words)", "(index <= words)")
wrong(
    "target-of-this-rank-alone",
    sentence="the loss with the target's logit of this rank alone: the ranks without the target need it, too",
).replace("g(torch", "(torch")
wrong("gathers-the-logits", "and no other logits", caught_by="traffic").replace(
    "total =", "all_gather(logits_local, tp_group)\ntotal ="
)
wrong(
    "maximum-with-a-gradient",
    sentence="the gradient with one through the maximum: detach() the logits of which you take it",
).replace(
    "all_reduce(logits_local.max(dim=-1).values, tp_group, op=dist.ReduceOp.MAX)",
    "logits_local.max(dim=-1).values\ndist.all_reduce(largest, op=dist.ReduceOp.MAX, group=tp_group)",
)
wrong(
    "remainder",
    sentence="the loss without a mask, and with the remainder as index: a rank adds zeros for what isn't its own",
).replace("targets - first", "(targets - first) % words").replace("torch.where(mine, found, 0.0)", "found")
wrong(
    "masks-later-ranks-alone",
    sentence="the loss without a mask for what earlier ranks have: an index below 0 isn't this rank's either",
).replace("(index >= 0) & (index < words)", "index < words")
wrong(
    "masks-earlier-ranks-alone",
    sentence="the loss without a mask for what later ranks have: an index past this rank's last isn't its own either",
).replace("(index >= 0) & (index < words)", "index >= 0")
wrong(
    "sum-by-verb",
    sentence="the gradient of the target's logit alone: autograd does not see the sum over the words. Where is g?",
).replace("g(sh", "partial(all_reduce, group=tp_group)(sh")
wrong(
    "target-without-the-maximum", sentence="the loss with the target's raw logit: subtract the maximum there too"
).replace("shifted.gather", "logits_local.gather")
wrong(
    "target-by-verb",
    sentence="the gradient of the sum over the words alone: autograd does not see the target's logit. Where is g?",
).replace("g(torch", "partial(all_reduce, group=tp_group)(torch")
wrong(
    "maximum-off-on-every-rank",
    sentence="the loss with the maximum subtracted on every rank: the ranks without the target add 0",
).replace("shifted.gather", "logits_local.gather").replace(
    "g(torch.where(mine, found, 0.0))", "g(torch.where(mine, found, 0.0) - largest)"
)
wrong("sum-of-the-maxima", "the logarithm of 0").replace(", op=dist.ReduceOp.MAX", "")
wrong("rank-among-all", "dist.get_rank(tp_group)").replace(" = targets - first", " = targets - dist.get_rank() * words")
wrong("one-maximum-for-all-tokens", "the logarithm of 0").replace("(dim=-1).values,", "().repeat(len(logits_local)),")
wrong("sum-of-the-losses", sentence="the sum of the tokens' losses: return the mean").replace(".mean()", ".sum()")
wrong("f-after-g", sentence="t times too large: g passes its gradient on, once").replace(
    "g(shifted.exp().sum(-1))", "copy_to_shards(g(shifted.exp().sum(-1)), tp_group)"
).replace("g(torch.where(mine, found, 0.0))", "copy_to_shards(g(torch.where(mine, found, 0.0)), tp_group)")
right("both-sums-in-one-call").body("""
    largest = logits_local.detach().amax(-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=tp_group)
    shifted = logits_local - largest[:, None]
    mine = targets[:, None] == torch.arange(first, first + words)
    total, of_target = g(torch.stack([shifted.exp().sum(1), (shifted * mine).sum(1)]))
""")

wrong, right = ANSWERS.to("parallel-attention")
wrong(
    "every-t-th-row",
    sentence="the result with every t-th row of w_out: a rank's heads are neighbours, so their rows are too",
).replace("w_out.chunk(tp_size, dim=0)[tp_rank]", "w_out[tp_rank::tp_size]")
OWN = "[part.chunk(tp_size, dim=1)[tp_rank] for part in w_qkv.chunk(3, dim=1)]"
wrong(
    "blocks-of-columns",
    sentence="the output for w_qkv cut into blocks of neighbouring columns: rank 0 would have mostly q",
).replace(OWN, "w_qkv.chunk(tp_size, 1)[tp_rank].chunk(3, 1)")
wrong("forgets-f", sentence="the contribution of this rank's heads: where is f?").replace("h = f(x)", "h = x")
wrong("forgets-g", sentence="the output of this rank's heads: a partial sum. Where is g?").replace(
    "g(found @", "(found @"
)
wrong("f-three-times", "call f(x) once", caught_by="traffic").replace("h @ part", "f(x) @ part")
wrong("every-rank-computes-everything", sentence="t times too large: each rank computes all heads").body("""
    h = f(x)
    q, k, v = (split_heads(h @ part, num_heads) for part in w_qkv.chunk(3, dim=1))
    return g(merge_heads(attend(q, k, v)) @ w_out)
""")
wrong("rows-of-rank-0", sentence="the output if all take rank 0's rows of w_out").replace(
    "(tp_size, dim=0)[tp_rank]", "(tp_size, dim=0)[0]"
)
wrong("other-heads-thrown-away", "computed, then thrown away").body("""
    q, k, v = (split_heads(part, num_heads) for part in (f(x) @ w_qkv).chunk(3, dim=-1))
    mine = attend(q, k, v).chunk(tp_size, dim=1)[tp_rank]
    return g(merge_heads(mine) @ w_out.chunk(tp_size, dim=0)[tp_rank])
""")
wrong("one-head-per-rank", sentence="the output with one head on each rank: it has heads_local heads").replace(
    "h @ part, heads_local", "h @ part, 1"
)
wrong(
    "all-heads-of-its-columns",
    sentence="the output with num_heads heads on each rank: split its columns into heads_local heads",
).replace(" @ part, heads_local", " @ part, num_heads")
wrong("f-for-q-alone", sentence="the gradient with f for only some of q, k and v: all three are made of f(x)").replace(
    "split_heads(h @ part, heads_local) for part in w_local",
    """
    split_heads(source @ part, heads_local) for source, part in zip((h, x, x), w_local)""",
)
wrong(
    "head-after-head",
    sentence="the output for q, k and v of one head after the other in w_qkv: all columns of q come first",
).replace(
    OWN, "w_qkv.unflatten(1, (num_heads, 3, -1)).chunk(tp_size, 1)[tp_rank].transpose(1, 2).flatten(1).chunk(3, 1)"
)
every_tth_head = wrong(
    "every-tth-head", sentence="the output with every t-th head or column on a rank: its heads are consecutive"
).replace(OWN, "[w.unflatten(1, (num_heads, -1))[:, tp_rank::tp_size].flatten(1) for w in w_qkv.chunk(3, dim=1)]")
wrong(
    "k-before-q",
    sentence="the output with q, k and v in a different order: w_qkv has the columns of q, then of k, then of v",
).replace("q, k, v = (", "k, q, v = (")
wrong("heads-and-rows-apart", sentence="the gradient of every t-th head: a rank's heads are consecutive").like(
    every_tth_head
).replace("w_out.chunk(tp_size, dim=0)[tp_rank]", "w_out.unflatten(0, (num_heads, -1))[tp_rank::tp_size].flatten(0, 1)")
wrong("f-before-w-out", sentence="the gradient with f after a product: f belongs where x enters").replace(
    "h = f(x)", "h = x"
).replace("g(found @", "g(f(found) @")
wrong("f-for-q-k-and-v", same_as="f-before-w-out").replace("h = f(x)", "h = x").replace("h @ part", "f(h @ part)")
wrong(
    "f-between-too", sentence="the gradient with an f between the products, too: f belongs only where x enters"
).replace("h @ part", "f(h @ part)")
wrong("g-before-w-out", sentence="the gradient of all rows: g stands after the product with this rank's rows").replace(
    "g(found @ w_out.chunk(tp_size, dim=0)[tp_rank])",
    "g(torch.nn.functional.pad(found, (tp_rank * found.shape[-1], (tp_size - 1 - tp_rank) * found.shape[-1]))) @ w_out",
)
wrong("columns-of-w-out", sentence="the output with columns of w_out: the merged heads meet its rows").replace(
    "(tp_size, dim=0)[tp_rank]", "(tp_size, dim=1)[tp_rank].T"
)
wrong("f-twice", sentence="t times too large: f sums it over the ranks once").replace("f(x)", "f(f(x))")
wrong("every-tth-column", same_as="every-tth-head").replace(
    OWN, "[part[:, tp_rank::tp_size] for part in w_qkv.chunk(3, dim=1)]"
)
for sources in ("hhx", "hxh", "xhh", "xhx", "xxh"):
    wrong(f"from-{sources}", same_as="f-for-q-alone").replace(
        "split_heads(h @ part, heads_local) for part in w_local",
        f"split_heads(source @ part, heads_local) for source, part in zip(({', '.join(sources)}), w_local)",
    )
for order in ("qvk", "vkq", "kvq", "vqk"):
    wrong(f"order-{order}", same_as="k-before-q").replace("q, k, v = (", f"{', '.join(order)} = (")
right("one-product").body("""
    D, d = len(x[0, 0]), len(x[0, 0]) // num_heads
    mine = slice(tp_rank * heads_local, (tp_rank + 1) * heads_local)
    w_local = w_qkv.view(D, 3, num_heads, d)[:, :, mine].reshape(D, -1)
    q, k, v = (f(x) @ w_local).unflatten(-1, (3, heads_local, d)).permute(2, 0, 3, 1, 4)
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return g(found.transpose(1, 2).flatten(2) @ w_out[tp_rank * heads_local * d : (tp_rank + 1) * heads_local * d])
""")

wrong, right = ANSWERS.to("across-sequence")
wrong(
    "gather-without-a-sum-backward",
    sentence="a slice of the gradient that GatherSequence.backward gets, a partial sum: call reduce_scatter, which "
    "adds up all ranks' first",
).replace("reduce_scatter(grad_partial, ctx.tp_group, dim=1)", "grad_partial" + MY_TOKENS.replace("tp_g", "ctx.tp_g"))
wrong(
    "scatter-without-a-sum",
    sentence="a slice of the x_partial of ScatterSequence.forward, a partial sum: call reduce_scatter, which adds up "
    "all ranks' first",
).replace("reduce_scatter(x_partial, tp_group, dim=1)", "x_partial" + MY_TOKENS)
wrong(
    "gathers-the-batch", sentence="the concatenation of the tokens along dimension 0: tokens are dimension 1"
).replace("x_local, tp_group, dim=1", "x_local, tp_group, dim=0")
wrong("joins-features", "joined along dimension 2").replace("_local, ctx.tp_group, dim=1", "_local, ctx.tp_group")
wrong(
    "zeros-for-the-others",
    sentence="this rank's own tokens, with zeros for the others: every rank's tokens belong there",
).replace(
    "all_gather(grad_local, ctx.tp_group, dim=1)",
    "torch.cat([grad_local * (r == dist.get_rank(ctx.tp_group)) for r in range(dist.get_world_size(ctx.tp_group))], 1)",
)
wrong("all-reduce-and-a-slice", "gives every rank the whole sum, reduce_scatter", caught_by="traffic").replace(
    "reduce_scatter(x_partial, tp_group, dim=1)", "all_reduce(x_partial, tp_group)" + MY_TOKENS
)
wrong("all-ranks-for-the-group", "pass tp_group to each").replace("(grad_partial, ctx.tp_group, ", "(grad_partial, ")
wrong(
    "lined-up-along-the-batch",
    sentence="the shards lined up along dimension 0, whatever shape you give the tensor that they fill: gather into a "
    "list, and join it with torch.cat(parts, dim=1)",
).replace("(x_local, tp_group, dim=1)", "(x_local, tp_group, dim=0).view(len(x_local), -1, x_local.shape[2])")
wrong(
    "flat-sum-cut",
    sentence="the sum cut along dimension 0, whatever shape you give it: pass reduce_scatter chunks along dim=1",
).replace(
    "(x_partial, tp_group, dim=1)", "(x_partial.flatten(), tp_group).view(len(x_partial), -1, x_partial.shape[2])"
)
wrong("scatters-into-one-tensor", "reduce_scatter_tensor cuts along dimension 0").replace(
    "return reduce_scatter(x_partial, tp_group, dim=1)",
    "mine = x_partial" + MY_TOKENS + "\n"
    "dist.reduce_scatter_tensor(mine, x_partial.contiguous(), group=tp_group)\nreturn mine",
)
wrong("features-joined", sentence="the concatenation of the tokens along dimension 2: tokens are dimension 1").replace(
    "x_local, tp_group, dim=1", "x_local, tp_group"
)
wrong("scatters-a-shard", "A shard can't be scattered").replace("all_gather(x_local, ", "reduce_scatter(x_local, ")
wrong("scatters-the-batch", "pass dim=1").replace("(x_partial, tp_group, dim=1)", "(x_partial, tp_group)")
wrong("one-buffer", sentence="the last rank's shard, t times: [tensor] * t holds one tensor, not t").replace(
    "return all_gather(x_local, tp_group, dim=1)",
    f"parts = [torch.empty_like(x_local)] * {T}\ndist.all_gather(parts, x_local, group=tp_group)\n"
    "return torch.cat(parts, 1)",
)
wrong("mean-of-the-sums", sentence="the mean: partial sums add up").replace(
    "(x_partial, tp_group, dim=1)", f"(x_partial, tp_group, dim=1) / {T}"
)
right("one-class").cell("""
    class Door(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, there, back):
            ctx.back = back
            return there(x)

        @staticmethod
        def backward(ctx, grad):
            return ctx.back(grad), None, None

    def across_sequence(x, direction, tp_group):
        gather, scatter = (partial(verb, group=tp_group, dim=1) for verb in (all_gather, reduce_scatter))
        return Door.apply(x, *((gather, scatter) if direction == "gather" else (scatter, gather)))
""")

wrong, right = ANSWERS.to("sequence-parallel-mlp")
wrong("returns-all-tokens", sentence="the whole y: return this rank's tokens").replace(
    "x_local + scatter(y_partial) + f(b_down)", "gather(x_local + scatter(y_partial) + f(b_down))"
)
wrong(
    "norm-gradients-not-summed",
    sentence="the contribution of this rank's tokens: every rank has used its copy for its own tokens, so the "
    "gradients must be summed over the ranks",
).replace("f(norm_", "(norm_")
wrong("bias-gradient-not-summed", same_as="norm-gradients-not-summed").replace("f(b_down)", "b_down")
wrong(
    "a-share-of-b-down",
    sentence="the right one divided by t, the number of ranks: b_down / t before scatter gives each rank's copy "
    "only 1/t of its gradient. Add f(b_down) once, after scatter",
).replace("l) + f(b_down)", "l + b_down / dist.get_world_size())")
wrong("bias-before-scatter", sentence="y with b_down added t times: it belongs after scatter, once").replace(
    "gelu(h @ w_up_local + b_up_local) @ w_down_local", "gelu(h @ w_up_local + b_up_local) @ w_down_local + b_down"
).replace("x_local + scatter(y_partial) + f(b_down)", "x_local + scatter(y_partial)")
wrong("no-residual", sentence="y without the residual x").replace(
    "return x_local + scatter(y_partial)", "return scatter(y_partial)"
)
after_gather = wrong("norm-after-the-gather", "LayerNorm first, then gather", caught_by="memory").replace(
    "h_local = layer_norm(x_local, f(norm_weight), f(norm_bias))\nh = gather(h_local)",
    "h = layer_norm(gather(x_local), f(norm_weight), f(norm_bias))",
)
wrong(
    "norm-after-the-gather-without-f",
    sentence="the contribution of this rank's columns to all tokens: LayerNorm comes before gather",
).like(after_gather).replace("f(norm_", "(norm_")
wrong(
    "f-after-the-norm", sentence="the gradient mixed with those of other ranks' tokens: f is for weights only"
).replace("gather(h_local)", "gather(f(h_local))")
wrong("f-after-the-gather", sentence="the gradient summed twice: gather adds it up already, without f").replace(
    "gather(h_local)", "f(gather(h_local))"
)
wrong("residual-after-the-norm", sentence="y with x after LayerNorm as the residual: the residual is x itself").replace(
    "return x_local +", "return h_local +"
)
wrong("no-statistics", sentence="y without LayerNorm's mean and variance").replace(
    "layer_norm(x_local, f(norm_weight), f(norm_bias))", "x_local * f(norm_weight) + f(norm_bias)"
)
wrong(
    "f-for-the-shards-too", sentence="the sum over the ranks: each rank has its own part of this weight, so no f"
).replace("gelu(h @ w_up_local", "gelu(h @ f(w_up_local)")
wrong("gathers-x-as-well", "One gather where the MLP begins", caught_by="traffic").replace(
    "h = gather(h_local)", "gather(x_local)\nh = gather(h_local)"
)
wrong("f-for-x", same_as="f-after-the-norm").replace("layer_norm(x_local, f(", "layer_norm(f(x_local), f(")
wrong("x-through-the-doors", sentence="y with x added t times: x goes past gather and scatter, straight to y").replace(
    "@ w_down_local", "@ w_down_local + gather(x_local)"
).replace("x_local + scatter(y_partial)", "scatter(y_partial)")
wrong("b-up-through-f", same_as="f-for-the-shards-too").replace("+ b_up_local", "+ f(b_up_local)")
wrong("f-for-the-norm-twice", sentence="t times too large: it has already been summed over the ranks").replace(
    "f(norm_weight), f(norm_bias)", "f(f(norm_weight)), f(f(norm_bias))"
)
wrong("f-for-b-down-twice", same_as="f-for-the-norm-twice").replace("f(b_down)", "f(f(b_down))")
wrong("f-after-scatter", same_as="f-after-the-norm").replace("scatter(y_partial)", "f(scatter(y_partial))")
wrong("f-for-w-down", same_as="f-for-the-shards-too").replace("@ w_down_local", "@ f(w_down_local)")
right("one-sum-for-all-three").body("""
    norm_weight, norm_bias, b_down = f(torch.stack([norm_weight, norm_bias, b_down]))
    h = gather(layer_norm(x_local, norm_weight, norm_bias))
    y_partial = gelu(torch.nn.functional.linear(h, w_up_local.T, b_up_local)) @ w_down_local
    return scatter(y_partial) + (x_local + b_down)
""")

wrong, right = ANSWERS.to("dropout-generators")
wrong("same-mask-in-all-shards", "all shards the same mask").replace("seed + 2718 + tp_rank", "seed + 2718")
wrong("no-seed", "seed it from `seed`").replace("whole.manual_seed(seed)", "whole.manual_seed(2)")
wrong("exchanged", "they are exchanged").replace("seed(seed)", "seed(seed + tp_rank)").replace("18 + tp_rank", "18")
wrong("rank-0-has-one-seed", "add a constant").replace("seed + 2718", "seed")
wrong("whole-tensors-differ", "their copies differ from then on").replace("(seed)", "(seed + tp_rank)")
wrong("seeds-by-chance", "can't be repeated").replace("sharded.manual_seed(seed + 2718 + tp_rank)", "sharded.seed()")
wrong("seed-times-rank", "A multiple of seed 0 is 0").replace("seed + 2718 + tp_rank", "seed * (tp_rank + 2) + 1")
wrong("one-generator-twice", "one generator twice").replace(
    "sharded.manual_seed(seed + 2718 + tp_rank)",
    "sharded = sharded.manual_seed(seed + 2718 + tp_rank) if tp_rank else whole",
)
right("other-constants").replace("whole.manual_seed(seed)", "whole.manual_seed(3 * seed + 1)").replace(
    "seed + 2718 + tp_rank", "10**9 + 1000 * seed + 7 * (tp_rank + 1)"
)

wrong, right = ANSWERS.to("gathered-product")
wrong("saves-the-gathered", "times par", caught_by="score").replace(
    "ctx.save_for_backward(x_local, w_local)", "ctx.save_for_backward(all_gather(x_local, tp_group, dim=1), w_local)"
).replace("x = all_gather(x_local, ctx.tp_group, dim=1)", "x = x_local")
wrong("plain-gather", "gather inside the autograd function", caught_by="score").replace(
    "return GatheredProduct.apply(x_local, w_local, tp_group)", "return all_gather(x_local, tp_group, dim=1) @ w_local"
)
wrong("takes-a-slice", "sum over the ranks", caught_by="score").replace(
    "reduce_scatter(grad @ w_local.T, ctx.tp_group, dim=1)",
    "(grad @ w_local.T)" + MY_TOKENS.replace("tp_g", "ctx.tp_g"),
)
wrong("exchanged", "in the order of", caught_by="score").replace(
    "return reduce_scatter", "return grad_w, reduce_scatter"
).replace("grad_w, None", "None")
wrong("forgets-the-weight", "a gradient for each argument", caught_by="score").replace(", grad_w, None", ", None, None")
own_tokens = wrong("own-tokens", "the contribution of this rank's own tokens", caught_by="score").replace(
    "x.flatten(0, 1).T @ grad.flatten(0, 1)",
    "x_local.flatten(0, 1).T @ grad.split(x_local.shape[1], 1)[dist.get_rank(ctx.tp_group)].flatten(0, 1)",
)
wrong("sums-the-own-tokens", "as in data parallelism", caught_by="score").like(own_tokens).replace(
    "del x", "dist.all_reduce(grad_w, group=ctx.tp_group)"
)
wrong("sums-the-weight's-gradient", "as in data parallelism", caught_by="score").replace(
    "x.flatten(0, 1).T @ grad.flatten(0, 1)", "all_reduce(x.flatten(0, 1).T @ grad.flatten(0, 1), ctx.tp_group)"
)
wrong("joins-the-batch", "joined along the batch", caught_by="score").replace(", tp_group, dim=1", ", tp_group, dim=0")
PIECES = "torch.cat([{}(x, {}tp_group, dim=1) for x in ({}).chunk(2, 1)], 1)"
wrong("pieces-in-turn", "its tokens in a different order", caught_by="score").replace(
    "all_gather(x_local, tp_group, dim=1)", PIECES.format("all_gather", "", "x_local")
)
wrong("pieces-backward", "tokens that are not all this rank's", caught_by="score").replace(
    "reduce_scatter(grad @ w_local.T, ctx.tp_group, dim=1)", PIECES.format("reduce_scatter", "ctx.", "grad @ w_local.T")
)
wrong("pieces-of-the-weight's", "that don't belong together", caught_by="score").replace(
    "all_gather(x_local, ctx.tp_group, dim=1)", PIECES.format("all_gather", "ctx.", "x_local")
)
wrong("mean-of-the-partial-sums", "the mean over the ranks", caught_by="score").replace(", grad_w", " / 4, grad_w")
wrong("all-ranks", "pass tp_group to each", caught_by="score").replace(", tp_group, dim=1) @", ", None, dim=1) @")
wrong("four-ranks", "the gradient of w_local", caught_by="score", hidden=True).replace(
    "del x", "grad_w = grad_w * (1 if dist.get_world_size() == 4 else 2); del x"
)
right("some-tokens-at-a-time").replace(
    "return all_gather(x_local, tp_group, dim=1) @ w_local",
    "(B, rows, _), t = x_local.shape, dist.get_world_size(tp_group)\n"
    "y = x_local.new_empty(B, t, rows, w_local.shape[1])\n"
    "for row in range(rows):\n"
    "    y[:, :, row] = all_gather(x_local[:, row : row + 1], tp_group, dim=1) @ w_local\n"
    "return y.view(B, t * rows, -1)",
)
