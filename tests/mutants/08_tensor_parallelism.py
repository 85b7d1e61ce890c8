"""Wrong answers to lesson 08: at least two per exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import answers

MUTANTS, ALSO_RIGHT, mutant, also_right = answers()

# ---- shard-of-weight

mutant(
    "shard-of-weight",
    "shards-alike",
    says="makes the shards of all ranks equal",
    body="""
    rows, columns = (fan_in // tp_size, fan_out) if dim == 0 else (fan_in, fan_out // tp_size)
    return torch.randn(rows, columns, generator=generator) / fan_in**0.5
    """,
)
mutant(
    "shard-of-weight",
    "seed-of-its-own",
    says="drawn with its own seed",
    body="""
    rows, columns = (fan_in // tp_size, fan_out) if dim == 0 else (fan_in, fan_out // tp_size)
    return torch.randn(rows, columns, generator=generator.manual_seed(seed + tp_rank)) / fan_in**0.5
    """,
)
mutant(
    "shard-of-weight",
    "scale-of-the-outputs",
    says="scaled by fan_out",
    replace=("/ fan_in**0.5", "/ fan_out**0.5"),
)
mutant(
    "shard-of-weight",
    "scale-of-the-shard",
    says="scaled by the inputs of the shard",
    replace=("/ fan_in**0.5", "/ (fan_in // tp_size if dim == 0 else fan_in) ** 0.5"),
)
mutant(
    "shard-of-weight",
    "other-dimension",
    says="along the other dimension",
    replace=("chunk(tp_size, dim)", "chunk(tp_size, 1 - dim)"),
)
mutant(
    "shard-of-weight",
    "keeps-the-view",
    "memory",
    says="a view keeps the whole weight",
    replace=("[tp_rank].clone()", "[tp_rank]"),
)

# ---- column-parallel

mutant(
    "column-parallel",
    "no-sum-of-grad-x",
    says="the contribution of this rank's columns",
    replace=("all_reduce(grad_local @ w_local.T, tp_group)", "grad_local @ w_local.T"),
)
mutant(
    "column-parallel",
    "mean-of-grad-x",
    says="the mean over the ranks",
    replace=("w_local.T, tp_group)", "w_local.T, tp_group) / dist.get_world_size(tp_group)"),
)
mutant(
    "column-parallel",
    "sums-all-gradients",
    says="each rank has its own columns",
    replace=("x.T @ grad_local", "all_reduce(x.T @ grad_local, tp_group)"),
)
mutant(
    "column-parallel",
    "gathers-y",
    says="the whole y",
    replace=("y_local = x @ w_local + b_local", "y_local = all_gather(x @ w_local + b_local, tp_group)"),
)
mutant(
    "column-parallel",
    "sums-the-bias-too",
    "traffic",
    says="which of these results did the rank have already",
    replace=("grad_local.sum(0)", "all_reduce(grad_local.sum(0), tp_group)"),
)
mutant(
    "column-parallel",
    "forgets-the-group",
    says="grad_x is",
    hidden=True,
    replace=("w_local.T, tp_group)", "w_local.T)"),
)

# ---- row-parallel

mutant(
    "row-parallel",
    "bias-on-every-rank",
    says="the bias added 2 times",
    replace=("all_reduce(x_local @ w_local, tp_group) + bias", "all_reduce(x_local @ w_local + bias, tp_group)"),
)
mutant(
    "row-parallel",
    "bias-on-rank-0-after-the-sum",
    says="without the bias, on this rank",
    replace=(
        "y = all_reduce(x_local @ w_local, tp_group) + bias",
        "y = all_reduce(x_local @ w_local, tp_group)\n    if dist.get_rank(tp_group) == 0:\n        y = y + bias",
    ),
)
mutant(
    "row-parallel",
    "bias-on-rank-0-before-the-sum",
    says="every copy needs its gradient",
    body="""
    first = dist.get_rank(tp_group) == 0
    y = all_reduce(x_local @ w_local + (bias if first else 0), tp_group)
    grad_x_local = grad @ w_local.T
    grad_w_local = x_local.T @ grad
    grad_bias = grad.sum(0) if first else torch.zeros_like(bias)
    """,
)
mutant(
    "row-parallel",
    "no-sum",
    says="a partial sum",
    replace=("all_reduce(x_local @ w_local, tp_group)", "x_local @ w_local"),
)
mutant(
    "row-parallel",
    "sums-grad-first",
    says="so add nothing up",
    replace=("grad_x_local = grad @", "grad = all_reduce(grad, tp_group)\n    grad_x_local = grad @"),
)
mutant(
    "row-parallel",
    "sums-the-bias-gradient",
    says="so add nothing up",
    replace=("grad_bias = grad.sum(0)", "grad_bias = all_reduce(grad.sum(0), tp_group)"),
)
mutant(
    "row-parallel",
    "gathers-the-inputs",
    "traffic",
    says="will do",
    body="""
    x, w = all_gather(x_local, tp_group, dim=1), all_gather(w_local, tp_group, dim=0)
    y = x @ w + bias
    grad_x_local, grad_w_local, grad_bias = grad @ w_local.T, x_local.T @ grad, grad.sum(0)
    """,
)
mutant(
    "row-parallel",
    "all-ranks-for-the-group",
    says="y is",
    hidden=True,
    replace=("x_local @ w_local, tp_group)", "x_local @ w_local)"),
)

# ---- copy-to-shards

mutant(
    "copy-to-shards",
    "forgets-to-sum",
    says="this rank's own part",
    replace=("all_reduce(grad_partial, ctx.tp_group), None", "grad_partial, None"),
)
mutant(
    "copy-to-shards",
    "sums-in-place",
    says="It is not yours",
    replace=(
        "return all_reduce(grad_partial, ctx.tp_group), None",
        "dist.all_reduce(grad_partial, group=ctx.tp_group)\n        return grad_partial, None",
    ),
)
mutant(
    "copy-to-shards",
    "sums-forward-too",
    says="forward hands on x as it is",
    replace=("return x.view_as(x)", "return all_reduce(x, tp_group)"),
)
mutant(
    "copy-to-shards",
    "averages",
    says="the mean over the ranks",
    replace=(
        "all_reduce(grad_partial, ctx.tp_group), None",
        "all_reduce(grad_partial, ctx.tp_group) / dist.get_world_size(ctx.tp_group), None",
    ),
)
mutant(
    "copy-to-shards",
    "sums-in-place-what-is-contiguous",
    says="It is not yours",
    replace=(
        "return all_reduce(grad_partial, ctx.tp_group), None",
        "total = grad_partial.contiguous()\n"
        "        dist.all_reduce(total, group=ctx.tp_group)\n"
        "        return total, None",
    ),
)
mutant(
    "copy-to-shards",
    "all-ranks-for-the-group",
    says="the gradient of x is",
    hidden=True,
    replace=("all_reduce(grad_partial, ctx.tp_group)", "all_reduce(grad_partial)"),
)

# ---- reduce-from-shards

mutant(
    "reduce-from-shards",
    "dual-of-the-library",
    says="it counts once",
    cell="""
    class ReduceFromShards(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x_partial, tp_group):
            ctx.tp_group = tp_group
            return all_reduce(x_partial, tp_group)

        @staticmethod
        def backward(ctx, grad):
            return all_reduce(grad, ctx.tp_group), None

    def reduce_from_shards(x_partial, tp_group):
        return ReduceFromShards.apply(x_partial, tp_group)
    """,
)
mutant(
    "reduce-from-shards",
    "torch-distributed-nn",
    says="it counts once",
    cell="""
    def reduce_from_shards(x_partial, tp_group):
        from torch.distributed.nn.functional import all_reduce as of_torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return of_torch(x_partial.contiguous(), group=tp_group)
    """,
)
mutant(
    "reduce-from-shards",
    "returns-what-it-did-not-sum",
    says="in a different tensor from the one you return",
    replace=(
        "return all_reduce(x_partial, tp_group)",
        "dist.all_reduce(x_partial.contiguous().clone(), group=tp_group)\n        return x_partial.clone()",
    ),
)
mutant(
    "reduce-from-shards",
    "sums-its-input",
    says="Something writes in place",
    replace=(
        "return all_reduce(x_partial, tp_group)",
        "dist.all_reduce(x_partial, group=tp_group)\n        return x_partial.clone()",
    ),
)
mutant(
    "reduce-from-shards",
    "bare-verb",
    says="has no gradient",
    cell="""
    def reduce_from_shards(x_partial, tp_group):
        return all_reduce(x_partial, tp_group)
    """,
)
mutant(
    "reduce-from-shards",
    "shares-the-gradient-out",
    says="with factor 1",
    cell="""
    class ReduceFromShards(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x_partial, tp_group):
            ctx.size = dist.get_world_size(tp_group)
            return all_reduce(x_partial, tp_group)

        @staticmethod
        def backward(ctx, grad):
            return grad / ctx.size, None

    def reduce_from_shards(x_partial, tp_group):
        return ReduceFromShards.apply(x_partial, tp_group)
    """,
)

# ---- gather-from-shards

mutant(
    "gather-from-shards",
    "sums-the-gradient",
    says="so add nothing up",
    replace=(
        "return grad.chunk(tp_size, dim=-1)[tp_rank], None",
        "return all_reduce(grad, ctx.tp_group).chunk(tp_size, dim=-1)[tp_rank], None",
    ),
)
mutant(
    "gather-from-shards",
    "reduce-scatters",
    says="so add nothing up",
    replace=(
        "return grad.chunk(tp_size, dim=-1)[tp_rank], None",
        "return reduce_scatter(grad, ctx.tp_group, dim=-1), None",
    ),
)
mutant(
    "gather-from-shards",
    "first-dimension",
    says="features are the last dimension",
    replace=("all_gather(x_local, tp_group, dim=-1)", "all_gather(x_local, tp_group, dim=0)"),
)
mutant(
    "gather-from-shards",
    "slice-of-rank-0",
    says="rank 0's slice",
    replace=("grad.chunk(tp_size, dim=-1)[tp_rank]", "grad.chunk(tp_size, dim=-1)[0]"),
)
# ---- megatron-mlp

mutant("megatron-mlp", "forgets-f", says="f is missing", replace=("gelu(f(x) @", "gelu(x @"))
mutant("megatron-mlp", "forgets-g", says="Where is g?", replace=("g(y_partial) + b_down", "y_partial + b_down"))
mutant(
    "megatron-mlp",
    "bias-before-g",
    says="it belongs after g, once",
    replace=("g(y_partial) + b_down", "g(y_partial + b_down)"),
)
mutant(
    "megatron-mlp",
    "gelu-of-the-sum",
    says="y without gelu",
    replace=("gelu(f(x) @ w_up_local + b_up_local)", "f(x) @ w_up_local + b_up_local"),
)
mutant(
    "megatron-mlp",
    "f-after-the-product",
    says="with f after the product",
    replace=("gelu(f(x) @ w_up_local + b_up_local)", "f(gelu(x @ w_up_local + b_up_local))"),
)
mutant(
    "megatron-mlp",
    "f-for-the-bias",
    says="b_down's gradient was summed over the ranks",
    replace=("g(y_partial) + b_down", "g(y_partial) + f(b_down)"),
)
mutant(
    "megatron-mlp",
    "sums-forward-twice",
    "traffic",
    says="which of these results did the rank have already",
    replace=("return g(y_partial) + b_down", "g(h_local)\n    return g(y_partial) + b_down"),
)
mutant(
    "megatron-mlp",
    "f-twice",
    "time",
    says="one more all_reduce",
    body="""
    ones = torch.ones(x.shape[-1], dtype=x.dtype)
    f(x)
    g(x * ones)
    h_local = gelu(f(x) @ w_up_local + b_up_local)
    return g(h_local @ w_down_local) + b_down
    """,
)

# ---- parallel-embedding

mutant(
    "parallel-embedding",
    "no-mask",
    says="those of other ranks' tokens included",
    replace=("torch.where(mine.unsqueeze(-1), found, 0.0)", "found"),
)
mutant(
    "parallel-embedding",
    "mask-off-by-one-at-the-end",
    says="the row after its last counts as its own",
    replace=("(index < rows)", "(index <= rows)"),
)
mutant(
    "parallel-embedding",
    "mask-off-by-one-at-the-start",
    says="its first row belongs to no rank",
    replace=("(index >= 0)", "(index > 0)"),
)
mutant(
    "parallel-embedding",
    "global-index",
    says="parallel_embedding",
    replace=("found = table_local[index.clamp(0, rows - 1)]", "found = table_local[tokens]"),
)
mutant(
    "parallel-embedding",
    "masks-only-the-value",
    says="the gradient of all tokens",
    replace=(
        "torch.where(mine.unsqueeze(-1), found, 0.0)",
        "found + (torch.where(mine.unsqueeze(-1), found, 0.0) - found).detach()",
    ),
)
mutant(
    "parallel-embedding",
    "sums-twice",
    "traffic",
    says="2 calls where 1 will do",
    replace=(
        "y_partial = torch.where(mine.unsqueeze(-1), found, 0.0)",
        "y_partial = torch.where(mine.unsqueeze(-1), found, 0.0)\n    all_reduce(y_partial.detach())",
    ),
)

# ---- parallel-cross-entropy

mutant(
    "parallel-cross-entropy",
    "no-maximum",
    says="something overflows",
    replace=("logits_local - largest.unsqueeze(-1)", "logits_local"),
)
mutant(
    "parallel-cross-entropy",
    "maximum-of-its-own",
    says="all must subtract the same",
    replace=(
        "all_reduce(logits_local.max(dim=-1).values, tp_group, op=dist.ReduceOp.MAX)",
        "logits_local.max(dim=-1).values.detach()",
    ),
)
mutant(
    "parallel-cross-entropy",
    "sum-of-its-own-words",
    says="without the sum over the other ranks' words",
    replace=("total = g(shifted.exp().sum(-1))", "total = shifted.exp().sum(-1)"),
)
mutant(
    "parallel-cross-entropy",
    "no-mask",
    says="a rank that doesn't have the target adds 0",
    replace=("torch.where(mine, found, 0.0)", "found"),
)
mutant(
    "parallel-cross-entropy",
    "mask-off-by-one",
    says="a target counted twice",
    replace=("(index < words)", "(index <= words)"),
)
mutant(
    "parallel-cross-entropy",
    "target-of-this-rank-alone",
    says="the ranks without the target need it, too",
    replace=("g(torch.where(mine, found, 0.0))", "torch.where(mine, found, 0.0)"),
)
mutant(
    "parallel-cross-entropy",
    "gathers-the-logits",
    "traffic",
    says="and no other logits",
    body="""
    logits = g(torch.cat([
        logits_local if rank == dist.get_rank(tp_group) else torch.zeros_like(logits_local)
        for rank in range(dist.get_world_size(tp_group))
    ], dim=-1))
    largest = logits.max(-1).values.detach()
    shifted = logits - largest.unsqueeze(-1)
    total = shifted.exp().sum(-1)
    of_target = shifted.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    """,
)
# ---- parallel-attention

mutant(
    "parallel-attention",
    "blocks-of-columns",
    says="blocks of neighbouring columns",
    replace=(
        "w_local = [part.chunk(tp_size, dim=1)[tp_rank] for part in w_qkv.chunk(3, dim=1)]",
        "w_local = w_qkv.chunk(tp_size, dim=1)[tp_rank].chunk(3, dim=1)",
    ),
)
mutant("parallel-attention", "forgets-f", says="where is f?", replace=("h = f(x)", "h = x"))
mutant(
    "parallel-attention",
    "forgets-g",
    says="Where is g?",
    replace=("g(found @ w_out.chunk(tp_size, dim=0)[tp_rank])", "found @ w_out.chunk(tp_size, dim=0)[tp_rank]"),
)
mutant(
    "parallel-attention",
    "f-three-times",
    "traffic",
    says="3 calls where 1 will do",
    replace=("split_heads(h @ part, heads_local)", "split_heads(f(x) @ part, heads_local)"),
)
mutant(
    "parallel-attention",
    "every-rank-computes-everything",
    says="each rank computes all heads",
    body="""
    h = f(x)
    q, k, v = (split_heads(h @ part, num_heads) for part in w_qkv.chunk(3, dim=1))
    return g(merge_heads(attend(q, k, v)) @ w_out)
    """,
)
mutant(
    "parallel-attention",
    "rows-of-rank-0",
    says="rank 0's rows of w_out",
    replace=("w_out.chunk(tp_size, dim=0)[tp_rank]", "w_out.chunk(tp_size, dim=0)[0]"),
)

# ---- across-sequence

mutant(
    "across-sequence",
    "gather-without-a-sum-backward",
    says="add the partial sums first",
    replace=(
        "return reduce_scatter(grad_partial, ctx.tp_group, dim=1), None",
        "rank, size = dist.get_rank(ctx.tp_group), dist.get_world_size(ctx.tp_group)\n"
        "        return grad_partial.chunk(size, dim=1)[rank], None",
    ),
)
mutant(
    "across-sequence",
    "scatter-without-a-sum",
    says="add the partial sums first",
    replace=(
        "return reduce_scatter(x_partial, tp_group, dim=1)",
        "rank, size = dist.get_rank(tp_group), dist.get_world_size(tp_group)\n"
        "        return x_partial.chunk(size, dim=1)[rank].clone()",
    ),
)
mutant(
    "across-sequence",
    "gathers-along-the-batch",
    says="tokens are dimension 1",
    replace=("all_gather(x_local, tp_group, dim=1)", "all_gather(x_local, tp_group, dim=0)"),
)
mutant(
    "across-sequence",
    "zeros-for-the-others",
    says="zeros for the others",
    replace=(
        "return all_gather(grad_local, ctx.tp_group, dim=1), None",
        "rank, size = dist.get_rank(ctx.tp_group), dist.get_world_size(ctx.tp_group)\n"
        "        parts = [grad_local if r == rank else torch.zeros_like(grad_local) for r in range(size)]\n"
        "        return torch.cat(parts, dim=1), None",
    ),
)
mutant(
    "across-sequence",
    "all-reduce-and-a-slice",
    "traffic",
    says="Not the collective that is needed",
    replace=(
        "return reduce_scatter(x_partial, tp_group, dim=1)",
        "rank, size = dist.get_rank(tp_group), dist.get_world_size(tp_group)\n"
        "        return all_reduce(x_partial, tp_group).chunk(size, dim=1)[rank].contiguous()",
    ),
)

# ---- sequence-parallel-mlp

mutant(
    "sequence-parallel-mlp",
    "norm-gradients-not-summed",
    says="the gradients must be summed over the ranks",
    replace=("f(norm_weight), f(norm_bias)", "norm_weight, norm_bias"),
)
mutant(
    "sequence-parallel-mlp",
    "bias-gradient-not-summed",
    says="the gradient of b_down",
    replace=("f(b_down)", "b_down"),
)
mutant(
    "sequence-parallel-mlp",
    "bias-before-scatter",
    says="it belongs after scatter, once",
    replace=(
        (
            "gelu(h @ w_up_local + b_up_local) @ w_down_local",
            "gelu(h @ w_up_local + b_up_local) @ w_down_local + b_down",
        ),
        ("x_local + scatter(y_partial) + f(b_down)", "x_local + scatter(y_partial)"),
    ),
)
mutant(
    "sequence-parallel-mlp",
    "no-residual",
    says="without the residual",
    replace=("return x_local + scatter(y_partial)", "return scatter(y_partial)"),
)
mutant(
    "sequence-parallel-mlp",
    "norm-after-the-gather",
    "memory",
    says="LayerNorm first, then gather",
    body="""
    h = layer_norm(gather(x_local), f(norm_weight), f(norm_bias))
    y_partial = gelu(h @ w_up_local + b_up_local) @ w_down_local
    return x_local + scatter(y_partial) + f(b_down)
    """,
)
mutant(
    "sequence-parallel-mlp",
    "f-for-the-shards-too",
    says="the gradient of w_up_local",
    replace=("gelu(h @ w_up_local", "gelu(h @ f(w_up_local)"),
)
mutant(
    "sequence-parallel-mlp",
    "gathers-x-as-well",
    "traffic",
    says="One gather where the MLP begins",
    replace=("h = gather(h_local)", "gather(x_local)\n    h = gather(h_local)"),
)

# ---- dropout-generators

mutant(
    "dropout-generators",
    "same-mask-in-all-shards",
    says="all shards the same mask",
    replace=("sharded.manual_seed(seed + 2718 + tp_rank)", "sharded.manual_seed(seed + 2718)"),
)
mutant(
    "dropout-generators",
    "rank-0-has-one-seed",
    says="add a constant as well",
    replace=("sharded.manual_seed(seed + 2718 + tp_rank)", "sharded.manual_seed(seed + tp_rank)"),
)
mutant(
    "dropout-generators",
    "whole-tensors-differ",
    says="their copies differ from then on",
    replace=("whole.manual_seed(seed)", "whole.manual_seed(seed + tp_rank)"),
)
mutant(
    "dropout-generators",
    "seeds-by-chance",
    says="can't be repeated",
    replace=("sharded.manual_seed(seed + 2718 + tp_rank)", "sharded.seed()"),
)

# ---- more of them, found by attacking the checks

mutant(
    "copy-to-shards",
    "hook-on-x-itself",
    says="only the gradient that comes back through f",
    cell="""
    def copy_to_shards(x, tp_group):
        x.register_hook(lambda grad: all_reduce(grad, tp_group))
        return x
    """,
)
mutant(
    "row-parallel",
    "a-share-of-the-bias-gradient",
    says="so it needs the whole gradient",
    replace=("grad_bias = grad.sum(0)", "grad_bias = grad.sum(0) / dist.get_world_size(tp_group)"),
)
mutant(
    "parallel-embedding",
    "shifts-the-tokens-in-place",
    says="Something writes in place",
    replace=("index = tokens - tp_rank * rows", "index = tokens.sub_(tp_rank * rows)"),
)
mutant(
    "parallel-cross-entropy",
    "sum-by-the-verb",
    says="autograd does not see the sum over the words",
    replace=("total = g(shifted.exp().sum(-1))", "total = all_reduce(shifted.exp().sum(-1), tp_group)"),
)
mutant(
    "parallel-cross-entropy",
    "target-without-the-maximum",
    says="subtract the maximum there too",
    replace=("found = shifted.gather", "found = logits_local.gather"),
)
mutant(
    "across-sequence",
    "all-ranks-for-the-group",
    says="raised",
    hidden=True,
    replace=("reduce_scatter(grad_partial, ctx.tp_group, dim=1)", "reduce_scatter(grad_partial, dim=1)"),
)
mutant(
    "sequence-parallel-mlp",
    "f-for-x",
    says="f is for weights only",
    replace=("layer_norm(x_local, f(", "layer_norm(f(x_local), f("),
)
mutant(
    "sequence-parallel-mlp",
    "x-through-the-doors",
    says="x added 2 times",
    replace=(
        ("@ w_down_local  # (B, S, D), a partial sum", "@ w_down_local + gather(x_local)"),
        ("x_local + scatter(y_partial)", "scatter(y_partial)"),
    ),
)
mutant(
    "dropout-generators",
    "seed-times-rank",
    says="all shards the same mask",
    hidden=True,
    replace=("seed + 2718 + tp_rank", "seed * (tp_rank + 2) + 1"),
)

# ---- right answers in another form

also_right(
    "shard-of-weight",
    "scales-last-and-narrows",
    body="""
    whole = torch.randn(fan_in, fan_out, generator=generator)
    size = whole.shape[dim] // tp_size
    return torch.narrow_copy(whole, dim, tp_rank * size, size).mul_(fan_in**-0.5)
    """,
)
also_right(
    "column-parallel",
    "asynchronous",
    body="""
    grad_x = torch.einsum("bf,df->bd", grad_local, w_local).contiguous()
    handle = dist.all_reduce(grad_x, group=tp_group, async_op=True)  # beside the weight's gradient
    y_local = torch.addmm(b_local, x, w_local)
    grad_w_local = torch.einsum("bd,bf->df", x, grad_local)
    grad_b_local = torch.ones(len(x), dtype=x.dtype) @ grad_local
    handle.wait()
    """,
)
also_right(
    "row-parallel",
    "in-place-on-its-own",
    body="""
    y = x_local @ w_local
    dist.all_reduce(y, group=tp_group)
    y += bias
    grad_x_local, grad_w_local, grad_bias = grad @ w_local.T, (grad.T @ x_local).T, grad.sum(dim=0)
    """,
)
also_right(
    "copy-to-shards",
    "by-a-hook",
    cell="""
    def copy_to_shards(x, tp_group):
        y = x.clone()
        y.register_hook(lambda grad: all_reduce(grad, tp_group))
        return y
    """,
)
also_right(
    "copy-to-shards",
    "clones-first",
    cell="""
    class CopyToShards(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, tp_group):
            ctx.tp_group = tp_group
            return x

        @staticmethod
        def backward(ctx, grad_partial):
            total = grad_partial.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=ctx.tp_group)
            return total, None

    def copy_to_shards(x, tp_group):
        return CopyToShards.apply(x, tp_group)
    """,
)
also_right(
    "reduce-from-shards",
    "detached-difference",
    cell="""
    def reduce_from_shards(x_partial, tp_group):
        others = all_reduce(x_partial, tp_group) - x_partial.detach()
        return x_partial + others
    """,
)
also_right(
    "gather-from-shards",
    "plain-list",
    cell="""
    class GatherFromShards(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x_local, tp_group):
            ctx.width, ctx.tp_group = x_local.shape[-1], tp_group
            parts = [torch.empty(x_local.shape, dtype=x_local.dtype) for _ in range(dist.get_world_size(tp_group))]
            dist.all_gather(parts, x_local.contiguous(), group=tp_group)
            return torch.cat(parts, dim=-1)

        @staticmethod
        def backward(ctx, grad):
            first = dist.get_rank(ctx.tp_group) * ctx.width
            return grad[..., first : first + ctx.width], None

    def gather_from_shards(x_local, tp_group):
        return GatherFromShards.apply(x_local, tp_group)
    """,
)
also_right(
    "gather-from-shards",
    "own-shard-keeps-its-graph",
    cell="""
    def gather_from_shards(x_local, tp_group):
        parts = list(all_gather(x_local, tp_group).chunk(dist.get_world_size(tp_group), dim=-1))
        parts[dist.get_rank(tp_group)] = x_local  # the shard that autograd knows
        return torch.cat(parts, dim=-1)
    """,
)
also_right(
    "megatron-mlp",
    "by-linear",
    body="""
    linear = torch.nn.functional.linear
    h = linear(f(x), w_up_local.T, b_up_local)
    return b_down + g(linear(gelu(h), w_down_local.T))
    """,
)
also_right(
    "parallel-embedding",
    "in-place-zeros",
    body="""
    first = tp_rank * rows
    others = (tokens < first) | (tokens > first + rows - 1)
    index = tokens - first
    index[others] = 0
    y_partial = torch.nn.functional.embedding(index, table_local)
    y_partial = y_partial.masked_fill(others[..., None], 0)
    """,
)
also_right(
    "parallel-embedding",
    "one-hot",
    body="""
    words = torch.arange(tp_rank * rows, (tp_rank + 1) * rows)
    y_partial = (tokens.unsqueeze(-1) == words).to(table_local.dtype) @ table_local
    """,
)
also_right(
    "parallel-cross-entropy",
    "both-sums-in-one-call",
    body="""
    largest = logits_local.detach().amax(-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=tp_group)
    shifted = logits_local - largest[:, None]
    mine = targets[:, None] == torch.arange(first, first + words)
    total, of_target = g(torch.stack([shifted.exp().sum(1), (shifted * mine).sum(1)]))
    """,
)
also_right(
    "parallel-attention",
    "one-product",
    body="""
    D, d = len(x[0, 0]), len(x[0, 0]) // num_heads
    mine = slice(tp_rank * heads_local, (tp_rank + 1) * heads_local)
    w_local = w_qkv.view(D, 3, num_heads, d)[:, :, mine].reshape(D, -1)
    q, k, v = (f(x) @ w_local).unflatten(-1, (3, heads_local, d)).permute(2, 0, 3, 1, 4)
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return g(found.transpose(1, 2).flatten(2) @ w_out[tp_rank * heads_local * d : (tp_rank + 1) * heads_local * d])
    """,
)
also_right(
    "across-sequence",
    "one-class",
    cell="""
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
    """,
)
also_right(
    "sequence-parallel-mlp",
    "one-sum-for-all-three",
    body="""
    norm_weight, norm_bias, b_down = f(torch.stack([norm_weight, norm_bias, b_down]))
    h = gather(layer_norm(x_local, norm_weight, norm_bias))
    y_partial = gelu(torch.nn.functional.linear(h, w_up_local.T, b_up_local)) @ w_down_local
    return scatter(y_partial) + (x_local + b_down)
    """,
)
also_right(
    "dropout-generators",
    "other-constants",
    body="""
    whole.manual_seed(3 * seed + 1)
    sharded.manual_seed(10**9 + 1000 * seed + 7 * (tp_rank + 1))
    """,
)
