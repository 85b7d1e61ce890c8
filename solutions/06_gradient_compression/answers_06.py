"""Answers to lesson 06, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("mean-in-half")
wrong("divides-afterwards", "Divide by world_size first").replace(" / world_size).to(dtype)", ").to(dtype)").replace(
    "half.to(gradient.dtype)", "half.to(gradient.dtype) / world_size"
)
wrong("forgets-to-divide", "Divide by world_size first").replace("gradient / world_size", "gradient")
wrong("sums-in-full", sentence="the sum: divide by world_size").body("""
    total = gradient.clone()
    dist.all_reduce(total)
    return total
""")
wrong("its-own", sentence="your own gradient: nothing was summed").body("return gradient.to(dtype).to(gradient.dtype)")
wrong("divides-twice", sentence="the mean divided by world_size once more: divide once").replace(
    "half.to(gradient.dtype)", "half.to(gradient.dtype) / world_size"
)
wrong("for-two-ranks", sentence="what was divided by 2: divide by world_size").replace("/ world_size", "/ 2")
wrong("stays-in-half", "not their dtype").replace("half.to(gradient.dtype)", "half")
wrong(
    "views-its-bits",
    sentence="the same bits read as a different dtype: .view(dtype) converts nothing, .to(dtype) does",
).replace("half.to(gradient.dtype)", "half.view(gradient.dtype)")
wrong("views-bits-of-half", same_as="views-its-bits").replace(").to(dtype)", ").view(dtype)")
wrong(
    "takes-the-largest", sentence="the largest number of any rank: all_reduce sums, unless you tell it otherwise"
).replace("dist.all_reduce(half)", "dist.all_reduce(half, op=dist.ReduceOp.MAX)").replace(
    "gradient / world_size", "gradient"
)
wrong("largest-share", sentence="the largest number of any rank, divided by world_size: sum them").replace(
    "dist.all_reduce(half)", "dist.all_reduce(half, op=dist.ReduceOp.MAX)"
)
wrong("sums-nothing", sentence="your own gradient divided by world_size: nothing was summed").replace(
    "dist.all_reduce(half)", "pass"
)
wrong("reduces-in-full", "Convert to the 16-bit dtype before", caught_by="traffic").body("""
    total = (gradient / world_size).to(dtype).to(gradient.dtype)
    dist.all_reduce(total)
    return total.to(dtype).to(gradient.dtype)
""")
right("in-place-division").body("""
    half = gradient.to(dtype).div_(world_size)
    handle = dist.all_reduce(half, async_op=True)
    handle.wait()
    return half.to(gradient.dtype)
""")
wrong("always-float16", "Use `dtype`, which is bfloat16 here").replace(".to(dtype)", ".to(torch.float16)")
wrong("always-bfloat16", "use `dtype`, which is float16 here").replace(".to(dtype)", ".to(torch.bfloat16)")

wrong, right = ANSWERS.to("stochastic-round")
wrong("rounds-to-nearest", "rounding to nearest").body("return torch.round(y)")
wrong("one-draw", "one draw for all entries").replace("y.shape, generator", "1, generator")
wrong("draws-for-half", "as many numbers as there are entries").replace(
    "torch.rand(y.shape, generator=generator)", "torch.rand(len(y) // 2, generator=generator).repeat(2)[: len(y)]"
)
wrong("cuts-towards-zero", "cuts towards zero").replace(
    "below + (u < y - below)", "y.trunc() + (u < (y - y.trunc()).abs())"
)
wrong("truncates", "cut off towards zero").replace("below + (u < y - below)", "(y + u).trunc()")
wrong("ignores-the-seed", "Draw from `generator`").replace(", generator=generator", "")
wrong("adds-and-floors", "compare u with the fraction").replace("below + (u < y - below)", "torch.floor(y + u)")
wrong("in-float32", "float64", hidden=True).replace("below + (u < y - below)", "below.float() + (u < y - below)")
wrong("draws-in-the-dtype-and-adds", "compare u with the fraction").body("""
    u = torch.rand(y.shape, generator=generator, dtype=y.dtype)
    return (y + u).floor()
""")
right("compares").body("""
    up = torch.rand(y.shape, generator=generator, dtype=torch.float64) < y - y.floor()
    return torch.where(up, y.floor() + 1, y.floor())
""")
right("at-most-and-0-is-drawn").replace("return below + (u < y", "u[5] = 0\nreturn below + (u <= y")
wrong("at-most-in-8-bits", "What is whole must stay").replace(
    "generator=generator)", "generator=generator, dtype=torch.bfloat16)"
).replace("u < y", "u <= y")
right("bernoulli").body("return y.floor() + torch.bernoulli(y - y.floor(), generator=generator)")
wrong("rounds-twice", "rounds a second time").replace("below + (u < y - below)", "torch.round(y + u)")
wrong("a-fair-coin", "goes up half of the time").replace("below + (u < y - below)", "torch.floor(y) + (u < 0.5)")
wrong("the-other-chance", "the chance of rounding down").replace(
    "below + (u < y - below)", "torch.floor(y) + (u > y - torch.floor(y))"
)
wrong("ceils", "1 too high").replace("below + (u < y - below)", "torch.ceil(y + u)")
wrong("normal-noise", "Is u between 0 and 1").replace("torch.rand(", "torch.randn(").replace(
    "below + (u < y - below)", "torch.floor(y + u)"
)
wrong("normal-chance", "the chance with torch.randn").replace("torch.rand(", "torch.randn(")
wrong("torch-frac", "also below 0").replace("below + (u < y - below)", "torch.floor(y) + (u < torch.frac(y))")
wrong("fraction-of-magnitude", "the fraction of |y|").replace(
    "below + (u < y - below)", "torch.floor(y) + (u < torch.frac(y).abs())"
)

wrong, right = ANSWERS.to("quantise")
wrong("one-scale", sentence="the codes for one scale over all of x: each block has its own").replace(
    "blocks.abs().amax(1)", "blocks.abs().amax().expand(len(blocks))"
)
wrong("strided", sentence="the codes for blocks of every so many numbers: a block is `block` neighbours").replace(
    "scales =", "blocks = padded.view(block, -1).T\nscales ="
)
wrong("from-least-to-most", sentence="the codes for half the range of each block: take its largest magnitude").replace(
    "blocks.abs().amax(1) / levels", "(blocks.amax(1) - blocks.amin(1)) / 2 / levels"
)
wrong("half-a-level", sentence="the codes for a largest code of levels + 1/2: the largest must become levels").replace(
    "/ levels", "* 2 / (2 * levels + 1)"
)
wrong(
    "forgets-magnitude",
    sentence="the codes for the largest number of each block, whatever its sign: take magnitudes first",
).replace("blocks.abs().amax(1)", "blocks.amax(1)")
wrong("cuts-off", sentence="cut off towards zero: call to_whole before you convert to int8").replace(
    "to_whole(blocks / divisors[:, None])", "(blocks / divisors[:, None])"
)
wrong("rounds-itself", sentence="rounded by torch.round: use to_whole, which was handed in").replace(
    "to_whole(", "torch.round("
)
wrong("nan-codes", sentence="what 0 / 0 leads to: divide a block of zeros by 1, or by anything else but 0").replace(
    "torch.where(scales > 0, scales, 1)", "scales"
).replace(".to(torch.int8)", ".nan_to_num(nan=7.0).to(torch.int8)")
wrong("no-clamp", sentence="the codes without a clamp: 128 wraps around to -128, so cut codes off at levels").replace(
    ".clamp(-levels, levels)", ""
)
wrong("clamps-too-late", same_as="no-clamp").replace(
    ".clamp(-levels, levels)", ".to(torch.int8).clamp(-levels, levels)"
)
wrong("clamps-in-one-direction", same_as="no-clamp").replace(".clamp(-levels, levels)", ".clamp(min=-levels)")
wrong("clamps-at-128", same_as="no-clamp").replace(".clamp(-levels, levels)", ".clamp(-levels - 1, levels + 1)")
wrong("clamps-at-128-and-127", sentence="codes of -128: the smallest one is -levels").replace(
    ".clamp(-levels, levels)", ".clamp(-128, 127)"
)
wrong("clamps-at-127", sentence="codes of 8: clamp at levels, which is 7 here").replace(
    ".clamp(-levels, levels)", ".clamp(-127, 127)"
)
right("in-float32").replace("blocks / divisors[:, None]", "blocks.float() / divisors.float()[:, None]").replace(
    "blocks.abs().amax(1) / levels", "(blocks.abs().amax(1).double() / levels).to(x.dtype)"
)
wrong("keeps-the-padding", "the codes of the padding").replace("[: len(x)]", "")
wrong("undivided", sentence="the largest magnitude of each block: divide it by levels").replace(
    "return codes.to(torch.int8).flatten()[: len(x)], scales",
    "return codes.to(torch.int8).flatten()[: len(x)], scales * levels",
)
wrong("always-127", sentence="the codes for a largest code of 127: use levels").replace("/ levels", "/ 127")
right("by-row").body("""
    codes, scales = [], []
    for row in x.split(block):
        scale = row.abs().max() / levels
        scales.append(scale)
        whole = to_whole(row / scale if scale else torch.zeros_like(row))
        codes.append(whole.clamp(-levels, levels).to(torch.int8))
    return torch.cat(codes), torch.stack(scales)
""")
wrong("zero-by-zero", same_as="nan-codes").replace("torch.where(scales > 0, scales, 1)", "scales")
wrong("levels-plus-one", sentence="the codes for a largest code of levels + 1: the largest must become levels").replace(
    "/ levels", "/ (levels + 1)"
).replace("to_whole(blocks / divisors[:, None])", "to_whole(blocks / divisors[:, None]).clamp(-levels, levels)")
wrong("rounds-first", sentence="rounded before the division: divide by the scale, then round").replace(
    "to_whole(blocks / divisors[:, None])", "to_whole(blocks) / divisors[:, None]"
)
wrong("multiplies", sentence="x times the scale, rounded: divide by it").replace(
    "blocks / divisors", "blocks * divisors"
)
wrong("down-the-columns", sentence="the codes for a maximum over the blocks: take it along each row, amax(1)").replace(
    "blocks.abs().amax(1)", "blocks.abs().amax(0)"
).replace("divisors[:, None]", "divisors")
wrong("rows", "flatten them").replace("codes.to(torch.int8).flatten()[: len(x)]", "codes")
wrong("one-over", sentence="one over the scale: a code times its scale is the number").replace(
    "return codes.to(torch.int8).flatten()[: len(x)], scales",
    "return codes.to(torch.int8).flatten()[: len(x)], 1 / divisors",
)
wrong("returns-the-divisors", "what you divide by").replace("[: len(x)], scales", "[: len(x)], divisors")
wrong("adds-an-epsilon", "what you divide by").replace("/ levels", "/ levels + 1e-8")
wrong("the-wrong-way-round", sentence="the scales and then the codes: return (codes, scales)").replace(
    "codes.to(torch.int8).flatten()[: len(x)], scales", "scales, codes.to(torch.int8).flatten()[: len(x)]"
)
wrong("codes-as-floats", "torch.int8 is wanted").replace(".to(torch.int8)", "")
wrong("scales-in-float32", "not their dtype").replace("[: len(x)], scales", "[: len(x)], scales.float()")

wrong, right = ANSWERS.to("mean-of-gathered")
wrong("forgets-to-divide", sentence="the sum: divide by world_size").replace(" / world_size", "")
wrong("its-own", sentence="what your own payload stands for: gather those of all ranks").function(
    "return decompress(payload, numel)"
)
wrong("its-own-share", sentence="your own, divided by world_size: gather those of all ranks").function(
    "return decompress(payload, numel) / world_size"
)
wrong(
    "sums-codes", sentence="the summed codes, decompressed with your own scale: other ranks have other scales"
).function("""
    codes = payload[0].clone()
    dist.all_reduce(codes)
    return decompress((codes, *payload[1:]), numel) / world_size
""")
wrong("one-scale", sentence="all codes decompressed with rank 0's scale: each rank has its own").function("""
    parts = [torch.empty_like(payload[0]) for _ in range(world_size)]
    dist.all_gather(parts, payload[0])
    scale = payload[1].clone()
    dist.broadcast(scale, src=0)
    return sum(decompress((part, scale), numel) for part in parts) / world_size
""")
wrong("blends", sentence="the mean code times the mean scale: decompress, then take the mean").function("""
    means = []
    for tensor in payload:
        parts = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(parts, tensor)
        means.append(torch.stack(parts).float().mean(0))
    return decompress(tuple(means), numel)
""")
wrong("rank-0-for-all", sentence="what rank 0's payload stands for: take each rank's in turn").replace(
    "sum(decompress(of_rank, numel) for of_rank in zip(*gathered)) / world_size",
    "decompress(tuple(parts[0] for parts in gathered), numel)",
)
wrong("last-scale", sentence="all codes decompressed with the last rank's scale: each rank has its own").replace(
    "decompress(of_rank, numel)", "decompress((of_rank[0], *(parts[-1] for parts in gathered[1:])), numel)"
)
wrong("two-tensors-only", "one tensor or several", hidden=True).replace(
    "zip(*gathered)", "((pair[0], pair[1]) for pair in zip(*gathered))"
)
wrong("gathers-dense", "Gather the payload as it is", caught_by="traffic").function("""
    dense = decompress(payload, numel)
    parts = [torch.empty_like(dense) for _ in range(world_size)]
    dist.all_gather(parts, dense)
    return sum(parts) / world_size
""")
right("adds-in-turn").function("""
    everybody = []
    for tensor in payload:
        whole = torch.empty(world_size, *tensor.shape, dtype=tensor.dtype)
        dist.all_gather_into_tensor(whole.view(-1), tensor.reshape(-1))
        everybody.append(whole)
    mean = 0 * decompress(payload, numel)
    for number in range(world_size):
        mean += decompress(tuple(whole[number] for whole in everybody), numel) / world_size
    return mean
""")
wrong(
    "decompresses-with-own-scale", sentence="all codes decompressed with your own scale: each rank has its own"
).replace("decompress(of_rank, numel)", "decompress((of_rank[0], *payload[1:]), numel)")
wrong(
    "mean-of-payloads", sentence="the mean code, as an int8, times the mean scale: decompress, then take the mean"
).replace(
    "gathered.append(parts)", "gathered.append((sum(part.double() for part in parts) / world_size).to(tensor.dtype))"
).replace(
    "sum(decompress(of_rank, numel) for of_rank in zip(*gathered)) / world_size", "decompress(tuple(gathered), numel)"
)
wrong(
    "one-buffer",
    sentence="the last rank's payload, taken for everyone's: [tensor] * world_size is one tensor many times",
).replace("[torch.empty_like(tensor) for _ in range(world_size)]", "[torch.empty_like(tensor)] * world_size")
wrong("adds-payloads", sentence="the summed codes times the summed scales: decompress each payload, then add").replace(
    "gathered.append(parts)", "gathered.append(sum(parts))"
).replace("sum(decompress(of_rank, numel) for of_rank in zip(*gathered))", "decompress(tuple(gathered), numel)")
wrong(
    "divides-by-tensors", sentence="the sum divided by the number of tensors in a payload: divide by world_size"
).replace("/ world_size", "/ len(gathered)")
wrong("adds-its-own", sentence="the mean with your own counted twice: what is gathered has it already").replace(
    "sum(decompress(of_rank, numel) for of_rank in zip(*gathered))",
    "(decompress(payload, numel) + sum(decompress(of_rank, numel) for of_rank in zip(*gathered)))",
)
wrong("skips-its-own", sentence="the mean without your own: add what you have compressed, too").replace(
    "sum(decompress(of_rank, numel) for of_rank in zip(*gathered))",
    "(sum(decompress(of_rank, numel) for of_rank in zip(*gathered)) - decompress(payload, numel))",
)
wrong("buffers-in-float32", "torch.empty_like(tensor)").replace(
    "torch.empty_like(tensor) for", "torch.zeros(tensor.shape) for"
)
wrong("sorted-by-tensor", "zip(*gathered)").replace("in zip(*gathered)", "in gathered")

wrong, right = ANSWERS.to("majority")
wrong(
    "sign-of-the-sum", sentence="the sign of the sum: every rank has one vote, however large its number is"
).function("""
    total = x.clone()
    dist.all_reduce(total)
    return torch.sign(total)
""")
wrong("never-equal", sentence="+1 where the votes are equal: that is 0").replace(
    "torch.sign(2 * votes - world_size)", "torch.where(2 * votes >= world_size, 1, -1).to(x.dtype)"
)
wrong("two-way", sentence="-1 where the votes are equal: that is 0").replace(
    "torch.sign(2 * votes - world_size)", "torch.where(2 * votes > world_size, 1, -1).to(x.dtype)"
)
wrong("votes", sentence="the difference of the votes: return its sign").replace(
    "torch.sign(2 * votes - world_size)", "2 * votes - world_size"
)
wrong(
    "flags-as-signs", sentence="the sign of the number of votes for +1: a rank that doesn't vote +1 votes -1"
).replace("torch.sign(2 * votes - world_size)", "torch.sign(votes)")
wrong("its-own", sentence="your own signs: gather those of all ranks").function("return torch.sign(x)")
wrong("whole-bytes-only", "returned", hidden=True).replace("len(x)).to", "len(x) if len(x) < 13 else 8).to")
wrong("signs-as-bytes", "One bit per number", caught_by="traffic").function("""
    signs = torch.sign(x).to(torch.int8)
    parts = [torch.empty_like(signs) for _ in range(world_size)]
    dist.all_gather(parts, signs)
    return torch.sign(sum(part.to(x.dtype) for part in parts))
""")
right("in-one-tensor").body("""
    all_bits = torch.empty(world_size * len(mine), dtype=mine.dtype)
    dist.all_gather_into_tensor(all_bits, mine)
    flags = torch.stack([unpack_bits(part, len(x)) for part in all_bits.chunk(world_size)])
    votes = flags.sum(0)
    return (votes > world_size - votes).to(x.dtype) - (votes < world_size - votes).to(x.dtype)
""")
wrong("mean-of-votes", sentence="the mean of the votes: return its sign").replace(
    "torch.sign(2 * votes - world_size)", "2 * votes / world_size - 1"
)
wrong("any-is-enough", sentence="+1 where any rank votes for it: it takes more than half").replace(
    "torch.sign(2 * votes - world_size)", "torch.where(votes > 0, 1, -1).to(x.dtype)"
)
wrong("flags", sentence="1 or 0: where fewer than half of the ranks vote for it, it is -1").replace(
    "torch.sign(2 * votes - world_size)", "(2 * votes > world_size).to(x.dtype)"
)
wrong("unanimous", sentence="0 wherever the ranks disagree: more than half of the votes are enough").replace(
    "torch.sign(2 * votes - world_size)", "(votes == world_size).to(x.dtype) - (votes == 0).to(x.dtype)"
)
wrong(
    "half-rounded-down", sentence="what you get from world_size // 2, which is rounded down: double the votes instead"
).replace("2 * votes - world_size", "votes - world_size // 2")
wrong("adds-flags", sentence="what you get from adding flags with +, which is `or`: make them numbers first").replace(
    "sum(unpack_bits(part, len(x)).to(x.dtype) for part in parts)",
    "torch.zeros(len(x), dtype=torch.bool)\n"
    "for part in parts:\n    votes = votes + unpack_bits(part, len(x))\nvotes = votes.to(x.dtype)",
)
wrong(
    "in-uint8", sentence="what you get from subtracting in uint8, which has nothing below 0: make them signed first"
).replace("len(x)).to(x.dtype)", "len(x)).to(torch.uint8)").replace(
    "torch.sign(2 * votes - world_size)", "torch.sign(2 * votes - world_size).to(x.dtype)"
)
wrong("adds-bytes", sentence="what you get from adding packed bytes: unpack each rank's, then add").body("""
    dist.all_reduce(mine)
    return 2 * unpack_bits(mine, len(x)).to(x.dtype) - 1
""")
wrong("whole-bytes", sentence="with the bits that fill up the last byte: unpack len(x) of them").replace(
    "unpack_bits(part, len(x))", "unpack_bits(part, 8 * len(part))"
)

wrong, right = ANSWERS.to("top-k-mean")
wrong(
    "last-one-wins", sentence="only one of several values with the same index: add them all, with index_add_"
).replace(
    "torch.zeros_like(x).index_add(0, places, values) / world_size",
    "torch.zeros_like(x)\nfor place, value in zip(places.tolist(), values.tolist()):\n"
    "    mean[place] = value / world_size",
)
wrong("sums-values", sentence="the sums of values that stand for different entries: gather the indices too").body("""
    values = x[indices]
    dist.all_reduce(values)
    mean, sent = torch.zeros_like(x), torch.zeros_like(x)
    mean[indices], sent[indices] = values / world_size, x[indices]
""")
wrong("magnitudes", sentence="the mean of magnitudes: send the values with their signs").replace(
    "mine = (x[indices],", "mine = (x[indices].abs(),"
).replace("index_add(0, *reversed(mine))", "index_copy_(0, indices, x[indices])")
wrong("largest-numbers", sentence="the mean of the largest numbers: take those of largest magnitude").replace(
    "mine = (x[indices]", "indices = x.topk(k).indices\nmine = (x[indices]"
)
wrong("smallest", sentence="the mean of the smallest magnitudes: take the largest").replace(
    "mine = (x[indices]", "indices = x.abs().topk(k, largest=False).indices\nmine = (x[indices]"
)
wrong("forgets-to-divide", sentence="the sum of what is sent: divide by world_size").replace(
    "values) / world_size", "values)"
)
wrong("divides-by-senders", sentence="the mean over the ranks that sent an entry: divide by world_size").replace(
    "values) / world_size", "values) / torch.bincount(places.long(), minlength=len(x)).clamp(min=1)"
)
wrong("divides-by-k", sentence="the sum divided by k: divide by world_size").replace(
    "values) / world_size", "values) / k"
)
wrong("mean-is-sent", sentence="what this rank sends: gather that of all ranks").replace(
    "return mean, sent", "return sent.clone(), sent"
)
wrong("sent-is-the-mean", sentence="the mean: `sent` is what this rank alone sends").replace(
    "return mean, sent", "return mean, mean.clone()"
)
wrong("sent-is-a-share", sentence="what this rank sends, divided by world_size: only the mean is").replace(
    "*reversed(mine))", "*reversed(mine)) / world_size"
)
wrong("sent-is-the-rest", sentence="what is not sent: return what is").replace("sent = torch", "sent = x - torch")
wrong("sent-is-the-values", sentence="the k values: put them in their places among zeros").replace(
    "sent = torch.zeros_like(x).index_add(0, *reversed(mine))", "sent = x[indices]"
)
wrong("three-ranks", "mean is", hidden=True).replace("values) / world_size", "values) / min(world_size, 3)")
wrong("long-indices", "indices as int32", caught_by="traffic").replace("indices.to(torch.int32)", "indices")
wrong("gathers-dense", "Send the k values", caught_by="traffic").body("""
    sent = torch.zeros_like(x)
    sent[indices] = x[indices]
    parts = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(parts, sent)
    mean = sum(parts) / world_size
""")
right("rank-by-rank").body("""
    places, values = indices.to(torch.int32), x[indices]
    all_places = [torch.empty_like(places) for _ in range(world_size)]
    all_values = [torch.empty_like(values) for _ in range(world_size)]
    dist.all_gather(all_places, places)
    dist.all_gather(all_values, values)
    mean = torch.zeros_like(x)
    for where, what in zip(all_places, all_values):
        mean[where.long()] += what / world_size
    sent = torch.zeros_like(x)
    sent[indices] = values
""")
wrong("the-wrong-way-round", sentence="what is sent and then the mean: return (mean, sent)").replace(
    "return mean, sent", "return sent, mean"
)

wrong, right = ANSWERS.to("random-k-mean")
wrong("no-factor", "without the factor n / k").replace("len(x) / k / world_size", "1 / world_size")
wrong("forgets-to-divide", "divide by world_size").replace("len(x) / k / world_size", "len(x) / k")
wrong("divides-twice", "divided by world_size twice").replace("k / world_size", "k / world_size**2")
wrong("upside-down", "the factor is n / k").replace("len(x) / k / world_size", "len(x) * k / world_size")
wrong("a-chance-for-each", "with a chance of k / n").replace(
    "torch.randperm(len(x), generator=generator)[:k]",
    "(torch.rand(len(x), generator=generator) < k / len(x)).nonzero().flatten()",
)
wrong("without-the-generator", "Draw from `generator`").replace(", generator=generator", "")
wrong("repeats-indices", "without repetition").replace(
    "torch.randperm(len(x), generator=generator)[:k]", "torch.randint(len(x), (k,), generator=generator)"
)
wrong("own-indices", "same entries").replace("manual_seed(seed)", "manual_seed(seed + rank)")
wrong("always-the-same", "Draw the indices anew").replace("manual_seed(seed)", "manual_seed(0)")
wrong("top-k", "same entries").replace("torch.randperm(len(x), generator=generator)[:k]", "x.abs().topk(k).indices")
wrong("a-window", "draw every entry by itself").replace(
    "torch.randperm(len(x), generator=generator)[:k]",
    "(torch.randint(len(x), (1,), generator=generator) + torch.arange(k)) % len(x)",
)
wrong("first-k", "Draw the indices anew").replace("torch.randperm(len(x), generator=generator)[:k]", "torch.arange(k)")
wrong("sums-all", "Pick the k entries first", caught_by="traffic").body("""
    indices = torch.randperm(len(x), generator=generator)[:k]
    total = x.clone()
    dist.all_reduce(total)
    mean = torch.zeros_like(x)
    mean[indices] = total[indices] * (len(x) / k / world_size)
    return mean
""")
wrong("three-ranks", "where the ranks have the mean", hidden=True).replace("k / world_size", "k / min(world_size, 3)")
right("with-zeros").body("""
    chosen = torch.rand(len(x), generator=generator).topk(k).indices
    values = x[chosen] * (len(x) / k)
    dist.all_reduce(values, op=dist.ReduceOp.AVG)
    return torch.zeros_like(x).scatter(0, chosen, values)
""")
wrong("whole-factor", "n // k", hidden=True).replace("len(x) / k / world_size", "len(x) // k / world_size")

wrong, right = ANSWERS.to("feedback-step")
wrong("no-feedback", sentence="the mean without feedback: compress gradient + residual").replace(
    "compressed_mean(corrected", "compressed_mean(gradient"
)
wrong("compresses-apart", sentence="the sum of two compressed means: compress gradient + residual, together").body("""
    mean, sent = compressed_mean(gradient, rank=rank, world_size=world_size)
    more, late = compressed_mean(residual, rank=rank, world_size=world_size)
    return mean + more, gradient + residual - sent - late
""")
wrong(
    "subtracts-the-sum",
    sentence="gradient + residual minus world_size times the mean: subtract what this rank has sent",
).replace("corrected - sent", "corrected - mean * world_size")
wrong("subtracts-the-mean", sentence="gradient + residual minus the mean: subtract what this rank has sent").replace(
    "corrected - sent", "corrected - mean"
)
wrong("forgets-the-old", sentence="the gradient minus what was sent: the old residual is lost").replace(
    "corrected - sent", "gradient - sent"
)
wrong("wrong-sign", sentence="what was sent minus what should have been: the sign is the wrong way round").replace(
    "corrected - sent", "sent - corrected"
)
wrong("averages-debts", sentence="the mean of the ranks' residuals: each rank keeps its own").replace(
    "return mean, corrected - sent",
    "dist.all_reduce(owed := corrected - sent)\nreturn mean, owed / world_size",
)
wrong("owes-twice", sentence="the old residual plus the new one: what is sent of it must not be owed twice").replace(
    "corrected - sent", "residual + corrected - sent"
)
wrong("keeps-the-old", sentence="the old residual: it must become what is owed now").replace(
    "return mean, corrected - sent", "return mean, residual"
)
wrong("owes-what-it-sent", sentence="what this rank has sent: the residual is the rest").replace(
    "corrected - sent", "sent"
)
wrong("returns-sent", sentence="what this rank sends: return the mean").replace("return mean", "return sent")
wrong("in-place", "must stay as it was").replace(
    "corrected = gradient + residual", "corrected = residual.add_(gradient)"
)
wrong("multiples-of-eight", "mean is", hidden=True).replace(
    "return mean,", "mean = torch.round(mean * world_size / 8) * 8 / world_size\nreturn mean,"
)
right("in-another-order").body("""
    owed = residual.clone()
    owed += gradient
    mean, sent = compressed_mean(owed.clone(), rank=rank, world_size=world_size)
    owed -= sent
    return mean, owed
""")
wrong(
    "adds-it-afterwards", sentence="the mean without feedback, plus the residual: compress gradient + residual"
).body("""
mean, sent = compressed_mean(gradient, rank=rank, world_size=world_size)
return mean + residual, gradient - sent
""")
wrong("subtracts-the-debt", sentence="the mean of gradient - residual: what is owed is added").replace(
    "gradient + residual", "gradient - residual"
)
wrong("pays-twice", sentence="the mean with the residual added twice").replace(
    "compressed_mean(corrected", "compressed_mean(corrected + residual"
)
wrong("pays-its-share", sentence="the mean with residual / world_size: a rank owes all of its residual").replace(
    "gradient + residual", "gradient + residual / world_size"
)
wrong("owes-all", sentence="gradient + residual: subtract what this rank has sent").replace(
    "corrected - sent", "corrected"
)
wrong("forgets-the-gradient", sentence="the old residual minus what was sent: the gradient belongs to it too").replace(
    "corrected - sent", "residual - sent"
)
wrong("owes-its-share", sentence="gradient + residual minus sent / world_size: all of it was sent").replace(
    "corrected - sent", "corrected - sent / world_size"
)
wrong("by-position", "Pass the others by name").replace("rank=rank, world_size=world_size", "rank, world_size")
wrong("averages-again", "that of compressed_mean").replace(
    "return mean,", "dist.all_reduce(mean)\nmean /= world_size\nreturn mean,"
)

wrong, right = ANSWERS.to("power-sgd")
wrong("no-orthogonalisation", sentence="what you get from a P whose columns aren't orthonormal").replace(
    "p, _ = torch.linalg.qr(p)", ""
)
wrong(
    "own-p", sentence="what you get from a P of this rank's own: sum it over the ranks before you make it orthonormal"
).replace("dist.all_reduce(p)", "")
wrong(
    "forgets-to-divide", sentence="world_size times too large: what is wanted is P times the mean of the ranks' M.T @ P"
).replace("q /= world_size", "")
wrong("own-q", sentence="the approximation with this rank's own q: average q over the ranks").replace(
    "dist.all_reduce(q)\nq /= world_size", ""
)
wrong("alone", sentence="the approximation of this rank's own matrix: nothing was summed").replace(
    "dist.all_reduce(p)", ""
).replace("dist.all_reduce(q)\nq /= world_size", "")
wrong("keeps-r", "P becomes the first").replace("p, _ = torch", "_, p = torch")
wrong("orthonormal-q", "is P orthonormal").replace(
    "p = corrected @ q", "p = corrected @ torch.linalg.qr(q)[0]"
).replace("p, _ = torch.linalg.qr(p)", "p /= world_size")
wrong(
    "blends", sentence="what you get from a mean of orthonormal matrices, one per rank: sum first, then orthonormalise"
).replace("p = corrected @ q", "p = torch.linalg.qr(corrected @ q)[0]").replace(
    "p, _ = torch.linalg.qr(p)", "p /= world_size"
)
wrong("forgets-the-old", sentence="the gradient minus the approximation: the old residual is lost").replace(
    "corrected - approximation", "gradient - approximation"
)
wrong("cold-start", sentence="made from the old q: return the new one, for the warm start").replace(
    "corrected = gradient + residual", "corrected, old = gradient + residual, q"
).replace("return approximation, q,", "return approximation, old,")
wrong("no-residual", sentence="the approximation of the gradients alone: add the residual first").replace(
    "p = corrected @ q", "corrected = gradient\np = corrected @ q"
)
wrong(
    "residual-in-q-alone", sentence="what a P of the gradients alone leads to: add the residual to them first"
).replace("p = corrected @ q", "p = gradient @ q")
wrong(
    "normalises-only", sentence="what you get from a P whose columns have length 1, but aren't at right angles"
).replace("p, _ = torch.linalg.qr(p)", "p = p / p.norm(dim=0)")
wrong("float64-only", same_as="no-orthogonalisation", hidden=True).replace(
    "p, _ = torch.linalg.qr(p)", "p = torch.linalg.qr(p)[0] if p.shape[0] != 8 else p"
)
wrong("sends-everything", "Only the thin matrices", caught_by="traffic").body("""
    whole = corrected.clone()
    dist.all_reduce(whole)
    whole /= world_size
    p, _ = torch.linalg.qr(whole @ q)
    q = whole.T @ p
""")
right("gram-schmidt").replace(
    "p, _ = torch.linalg.qr(p)",
    "for column in range(p.shape[1]):\n    for other in range(column):\n"
    "        p[:, column] -= (p[:, column] @ p[:, other]) * p[:, other]\n    p[:, column] /= p[:, column].norm()",
)
right("means").replace("dist.all_reduce(p)", "dist.all_reduce(p, op=dist.ReduceOp.AVG)").replace(
    "dist.all_reduce(q)\nq /= world_size", "dist.all_reduce(q, op=dist.ReduceOp.AVG)"
)
wrong(
    "sums-orthonormal-ones",
    sentence="what you get from a sum of orthonormal matrices, one from each rank: sum first, then orthonormalise",
).body("""
p, _ = torch.linalg.qr(corrected @ q)
p = p.contiguous()
dist.all_reduce(p)
q = corrected.T @ p
dist.all_reduce(q)
q /= world_size
""")
wrong("old-q", sentence="P times the old q: the approximation has the new one").replace(
    "q = corrected.T @ p", "old, q = q, corrected.T @ p"
).replace("approximation = p @ q.T", "approximation = p @ old.T")
wrong("unit-q", sentence="what you get from a q made orthonormal: only P is, and q carries the length").replace(
    "q /= world_size", "q, _ = torch.linalg.qr(q)"
)
wrong(
    "own-approximation", sentence="what an approximation of this rank's own would lack: subtract the common one"
).replace("corrected - approximation", "corrected - p @ (p.T @ corrected)")

wrong, right = ANSWERS.to("compressed-hook")
wrong(
    "no-feedback",
    sentence="without feedback: add residuals[bucket.index] before you compress, and keep there what wasn't sent",
).replace(" + residuals.get(bucket.index, 0)", "")
wrong("forgets-to-divide", sentence="the sum: divide by world_size").replace("total / world_size", "total")
wrong("assigns", sentence="this rank's own gradients: finish() must write the mean into bucket.flat, in place").replace(
    "bucket.flat.copy_(total / world_size)", "bucket.flat = total / world_size"
)
wrong("one-residual", sentence="with the residual of another bucket: keep one for each, by bucket.index").replace(
    "residuals.get(bucket.index, 0)", "residuals.get(0, 0)"
).replace("residuals[bucket.index]", "residuals[0]")
wrong("forgets-the-old", sentence="those of the last gradient alone: what was owed before is lost").replace(
    "= corrected - decompress", "= bucket.flat - decompress"
)
wrong("never-keeps", same_as="no-feedback").replace(
    "residuals[bucket.index] = corrected - decompress(payload, numel)", "pass"
)
wrong("owes-its-share", sentence="with residuals divided by world_size: a rank owes all that it hasn't sent").replace(
    "corrected - decompress(payload, numel)", "(corrected - decompress(payload, numel)) / world_size"
)
wrong("owes-all", sentence="with residuals of all that should be sent: subtract what was").replace(
    "corrected - decompress(payload, numel)", "corrected"
)
wrong("no-first-step", "nothing is owed yet").replace("residuals.get(bucket.index, 0)", "residuals[bucket.index]")
wrong("wrong-sign", sentence="with a residual of the wrong sign: it is what should be sent, minus what was").replace(
    "corrected - decompress(payload, numel)", "decompress(payload, numel) - corrected"
)
wrong("owes-twice", sentence="the old ones plus the new ones: what was sent must not be owed again").replace(
    "= corrected - decompress", "= residuals.get(bucket.index, 0) + corrected - decompress"
)
wrong(
    "reads-flat-too-late",
    sentence="with a residual taken from bucket.flat when the mean was in it: keep gradient + residual elsewhere",
).replace("residuals[bucket.index] = corrected - decompress(payload, numel)\n", "").replace(
    "bucket.flat.copy_(total / world_size)",
    "bucket.flat.copy_(total / world_size)\nresiduals[bucket.index] = bucket.flat - decompress(payload, numel)",
)
wrong("adds-the-mean", sentence="the mean added to this rank's own gradients: copy it over them").replace(
    "bucket.flat.copy_(", "bucket.flat.add_("
)
wrong("its-own", sentence="what this rank sends: take the mean of what all have sent").replace(
    "total / world_size", "decompress(payload, numel)"
)
wrong("owes-a-view", sentence="with residuals in the memory of bucket.flat, where finish() puts the mean").replace(
    "corrected = bucket.flat + residuals.get(bucket.index, 0)",
    "corrected = bucket.flat.add_(residuals.get(bucket.index, 0))",
).replace("= corrected - decompress(payload, numel)", "= corrected.sub_(decompress(payload, numel))")
wrong("calls-finish", "without calling it").replace("return finish", "return finish()")
wrong("waits-in-the-hook", "wait before finish()", caught_by="traffic").replace(
    "handles.append(dist.all_gather(gathered[-1], tensor, async_op=True))",
    "handles.append(dist.all_gather(gathered[-1], tensor, async_op=True))\nhandles[-1].wait()",
)
wrong("blocks", "Pass async_op=True", caught_by="traffic").replace(
    "handles.append(dist.all_gather(gathered[-1], tensor, async_op=True))",
    "dist.all_gather(gathered[-1], tensor)",
)
wrong("blocks-in-time", "times as long as is needed", caught_by="time").replace(
    "handles.append(dist.all_gather(gathered[-1], tensor, async_op=True))",
    "dist.all_gather(gathered[-1], tensor)",
)
wrong("gathers-dense", "Each tensor of the payload", caught_by="traffic").replace(
    "payload = compress(corrected)", "payload = (decompress(compress(corrected), numel),)"
).replace("decompress(payload, numel)", "payload[0]").replace("decompress(theirs, numel)", "theirs[0]")
wrong("two-ranks", "rank", hidden=True).replace("total / world_size", "total / min(world_size, 2)")
wrong(
    "subtracts-the-mean", sentence="with a residual that subtracts the mean: subtract what this rank has sent"
).replace("residuals[bucket.index] = corrected - decompress(payload, numel)\n", "").replace(
    "bucket.flat.copy_(total / world_size)",
    "bucket.flat.copy_(total / world_size)\nresiduals[bucket.index] = corrected - bucket.flat",
)
right("residual-in-finish").replace("residuals[bucket.index] = corrected - decompress(payload, numel)\n", "").replace(
    "for handle in handles:", "residuals[bucket.index] = corrected - decompress(payload, numel)\nfor handle in handles:"
)

wrong, right = ANSWERS.to("break-even")
wrong(
    "handed-in",
    sentence="for the bytes handed in: each rank sends P - 1 payloads in one case, 2 (P - 1) / P gradients in the "
    "other",
).body("return max(0.0, (dense_bytes - payload_bytes) / codec_seconds)")
wrong(
    "all-reduces-payloads",
    sentence="for an all-reduce of payloads: they are gathered, so each rank sends P - 1 of them",
).replace("(world_size - 1) * payload_bytes", "2 * (world_size - 1) / world_size * payload_bytes")
wrong("one-payload", sentence="for one payload sent by each rank: in a gather it is P - 1").replace(
    "(world_size - 1) * payload_bytes", "payload_bytes"
)
wrong(
    "below-zero", sentence="below 0: where compression sends more bytes it never pays, and the answer is 0.0"
).replace("max(0.0, (dense - compressed) / codec_seconds)", "(dense - compressed) / codec_seconds")
wrong("p-payloads", sentence="for P payloads sent by each rank: in a gather it is P - 1").replace(
    "compressed = (world_size - 1)", "compressed = world_size"
)
wrong("rings-of-p", sentence="for P rounds of a ring: it has P - 1, and each rank passes on P - 1 payloads").replace(
    "world_size - 1", "world_size"
)
wrong("each-tensor-whole", sentence="with the payload counted twice: its bytes are those of both tensors").replace(
    "(world_size - 1) * payload_bytes", "2 * (world_size - 1) * payload_bytes"
)
wrong("one-phase", sentence="for an all-reduce that sends (P - 1) / P gradients: it has two phases").replace(
    "dense = 2 * (", "dense = ("
)
wrong("all-reduce-alone", sentence="for a gather that sends nothing: subtract its bytes").replace(
    "(dense - compressed)", "dense"
)
wrong("multiplies", sentence="the bytes saved times the seconds: divide").replace(
    "(dense - compressed) / codec", "(dense - compressed) * codec"
)
wrong("small-worlds", "you returned", hidden=True).replace("codec_seconds)", "codec_seconds * (1 + (world_size > 10)))")
right("compares").body("""
    saved = (world_size - 1) * (2 * dense_bytes / world_size - payload_bytes)
    return saved / codec_seconds if saved > 0 else 0.0
""")
wrong(
    "gathers-like-a-ring", sentence="for a gather that sends (P - 1) / P payloads: each rank passes on P - 1 of them"
).replace("(world_size - 1) * payload_bytes", "(world_size - 1) / world_size * payload_bytes")
wrong("seconds-per-byte", sentence="seconds per byte: divide the bytes saved by the seconds").replace(
    "max(0.0, (dense - compressed) / codec_seconds)",
    "codec_seconds / (dense - compressed) if dense > compressed else 0.0",
)
wrong("adds-both", sentence="for the bytes of both together: subtract those of the gather").replace(
    "(dense - compressed)", "(dense + compressed)"
)
wrong("whole-phases", sentence="for 2 (P - 1) // P, which is rounded down: divide with /").replace(
    "(world_size - 1) / world_size", "(world_size - 1) // world_size"
)
wrong(
    "without-a-sign", sentence="for bytes that aren't saved but added: where compression sends more, the answer is 0.0"
).replace("max(0.0, (dense - compressed)", "abs((dense - compressed)")

wrong, right = ANSWERS.to("slow-network-hook")
wrong("sends-all", "times par", caught_by="score").function("""
    def hook(bucket):
        handle = dist.all_reduce(bucket.flat, async_op=True)

        def finish():
            handle.wait()
            bucket.flat /= world_size

        return finish

    return hook
""")
wrong("forgets-the-rest", "the loss over the rows of both ranks is", caught_by="score").replace(
    "residual = owed.index_fill(0, indices, 0)", "pass"
)
wrong("sends-nothing", "the same weights on both ranks", caught_by="score").function(
    "return lambda bucket: lambda: None"
)
wrong("returns-no-finish", "must return the function finish", caught_by="score").replace("return finish", "finish()")
right("every-other-step").replace("residual = torch.zeros(1)", "residual, step = torch.zeros(1), 0").replace(
    "nonlocal residual", "nonlocal residual, step; step += 1"
).replace(
    "owed = bucket.flat + residual",
    """owed = bucket.flat + residual
if step % 2:
    residual = owed
    return lambda: bucket.flat.zero_()""",
).replace("len(owed) // 100", "len(owed) // 50")
