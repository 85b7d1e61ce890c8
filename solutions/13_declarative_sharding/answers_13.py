"""Answers to lesson 13, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("my-part")
wrong(
    "floor", sentence="cut by floor(length / n): torch.chunk rounds up, so that only the last parts are short"
).replace("math.ceil((end[dim] - first[dim]) / n)", "(end[dim] - first[dim]) // n")
wrong(
    "rest-to-the-last",
    sentence="floor(length / n) rows, and the rest on the last rank: torch.chunk rounds up, so the last part is the "
    "shortest",
).replace("math.ceil((end[dim] - first[dim]) / n)", "(end[dim] - first[dim]) // n").replace(
    "end[dim] = min(first[dim] + each, end[dim])", "end[dim] = first[dim] + each if place < n - 1 else end[dim]"
)
wrong(
    "last-axis-first", sentence="cut by the last axis first: where two axes cut one dimension, the first one does"
).replace("zip(layout, mesh, coordinates)", "list(zip(layout, mesh, coordinates))[::-1]")
wrong(
    "of-the-whole", sentence="cut as if each axis had the whole dimension: the second one cuts what the first has left"
).replace("math.ceil((end[dim] - first[dim]) / n)", "math.ceil(shape[dim] / n)")
wrong("remainder-first", sentence="spread as numpy.array_split does, the remainder over the first ranks").body("""
    for placement, n, place in zip(layout, mesh, coordinates):
        if placement[0] == "S":
            dim = int(placement[1:])
            length = end[dim] - first[dim]
            sizes = [length // n + (k < length % n) for k in range(n)]
            first[dim] += sum(sizes[:place])
            end[dim] = first[dim] + sizes[place]
    return tuple(map(slice, first, end))
""")
wrong("all-is-cut", sentence='cut where it is a partial sum: "P" doesn\'t cut').replace(
    'if placement[0] == "S":', 'if placement != "R":'
).replace("dim = int(placement[1:])", "dim = int(placement[1:] or 0)")
wrong(
    "beyond-the-end",
    sentence="with a part of a neighbour: no part goes beyond the end of what the axis before has left",
).replace("end[dim] = min(first[dim] + each, end[dim])", "end[dim] = first[dim] + each")
wrong("every-nth", sentence="every n-th row: a part is contiguous").function("""
    cut = [slice(None)] * len(shape)
    for placement, n, place in zip(layout, mesh, coordinates):
        if placement[0] == "S":
            cut[int(placement[1:])] = slice(place, None, n)
    return tuple(cut)
""")
wrong(
    "from-the-start", sentence="counted from the start of the dimension: a part begins in what the axis before has left"
).replace("first[dim] + place * each", "place * each")
wrong("rows-only", sentence="cut along dimension 0 alone: any dimension can be cut").replace(
    'if placement[0] == "S":', 'if placement == "S0":'
)
wrong(
    "axis-as-dimension",
    sentence="cut as if axis k of the mesh always cut dimension k: the placement says which dimension an axis cuts",
).replace("dim = int(placement[1:])", "dim = layout.index(placement)")
right("by-chunks").function("""
    ranges = [torch.arange(length) for length in shape]
    for placement, n, place in zip(layout, mesh, coordinates):
        if placement[0] == "S":
            d = int(placement[1:])
            pieces = ranges[d].chunk(n)
            ranges[d] = pieces[place] if place < len(pieces) else ranges[d][:0]
    return tuple(slice(int(r[0]), int(r[-1]) + 1) if len(r) else slice(0, 0) for r in ranges)
""")

wrong, right = ANSWERS.to("conversion-bytes")
wrong(
    "gather-of-the-whole", sentence="counted as if `nbytes` were the whole tensor: before a gather, a rank has one part"
).replace("nbytes * (n - 1)) if dst", "nbytes // n * (n - 1)) if dst")
wrong(
    "all-to-all-as-gather",
    sentence="the bytes of an all-gather: in an all-to-all, each other rank gets one n-th of them",
).replace('("all_to_all", nbytes // n * (n - 1))', '("all_to_all", nbytes * (n - 1))')
wrong("scatter-as-all-reduce", sentence="twice too much: a reduce-scatter is the first half of an all-reduce").replace(
    '("reduce_scatter", each)', '("reduce_scatter", 2 * each)'
)
wrong("all-reduce-once", sentence="half of it: an all-reduce is a reduce-scatter and an all-gather").replace(
    "2 * each", "each"
)
wrong("own-part-too", sentence="with what a rank would send to itself: n - 1 parts of n travel").replace("(n - 1)", "n")
wrong("slice-is-sent", sentence="the bytes of an all-to-all: a rank that has everything just takes its part").replace(
    'if src == dst or src == "R":\n    return "", 0',
    'if src == dst:\n    return "", 0\nif src == "R":\n    return "all_to_all", nbytes // n * (n - 1)',
)
wrong("same-is-converted", sentence="a conversion to what the tensor is already").replace(
    'if src == dst or src == "R":', 'if src == "R":'
)
wrong("gather-of-one-part", sentence="one part: each rank's part travels to n - 1 others").replace(
    '"all_gather", nbytes * (n - 1)', '"all_gather", nbytes'
)
wrong(
    "everything-to-everyone",
    sentence="the bytes of sending everything to every other rank: the ring's all-reduce sends each part twice",
).replace("2 * each", "nbytes * (n - 1)")
wrong(
    "all-of-it-to-everyone",
    sentence="the bytes of sending everything to every other rank: each of them only needs its own n-th",
).replace('("reduce_scatter", each)', '("reduce_scatter", nbytes * (n - 1))')
wrong("reduce-scatter-of-one-part", sentence="the bytes for one other rank: there are n - 1 of them").replace(
    '("reduce_scatter", each)', '("reduce_scatter", nbytes // n)'
)
wrong("all-to-all-of-one-part", same_as="reduce-scatter-of-one-part").replace(
    '("all_to_all", nbytes // n * (n - 1))', '("all_to_all", nbytes // n)'
)
wrong("all-to-all-with-own-part", same_as="own-part-too").replace(
    '("all_to_all", nbytes // n * (n - 1))', '("all_to_all", nbytes)'
)
wrong(
    "scatter-of-nothing", sentence='the right number with a name too many: where nothing is sent, return "", 0'
).replace('return "", 0', 'return "scatter" if src == "R" and dst != "R" else "", 0')
wrong("cuts-are-alike", sentence="nothing, but S0 and S1 are different placements").replace(
    "src == dst or", "src[0] == dst[0] or"
)
wrong(
    "exchange-of-an-nth", sentence="an n-th of that: nbytes is what a rank has, its part, and it keeps an n-th of it"
).replace('("all_to_all", nbytes // n * (n - 1))', '("all_to_all", nbytes // n * (n - 1) // n)')
right("table").body("""
    known = {"PR": ("all_reduce", 2), "PS": ("reduce_scatter", 1), "SR": ("all_gather", n), "SS": ("all_to_all", 1)}
    op, share = known.get(src[0] + dst[0] if src != dst else "", ("", 0))
    return op, share * (n - 1) * nbytes // n
""")

wrong, right = ANSWERS.to("convert")
wrong("gathers-then-cuts", "throws most of that away", caught_by="traffic").replace(
    "pieces = [piece.contiguous() for piece in x_local.chunk(n, to)]\narrived = [torch.empty_like(piece) for piece "
    "in pieces]\ndist.all_to_all(arrived, pieces, group=group)\nreturn torch.cat(arrived, int(src[1:]))",
    "return all_gather(x_local, group, int(src[1:])).chunk(n, to)[me]",
)
wrong("reduces-then-cuts", "twice the bytes", caught_by="traffic").replace(
    "return reduce_scatter(x_local, group, to)", "return all_reduce(x_local, group).chunk(n, to)[me]"
)
wrong("forgets-the-sum", sentence="a part of its own summand: a partial sum must be added up over the ranks").replace(
    "return reduce_scatter(x_local, group, to)", "return x_local.chunk(n, to)[me]"
)
wrong("summand-as-whole", sentence="its own summand: a partial sum must be added up over the ranks").replace(
    'all_reduce(x_local, group) if src == "P"', 'x_local if src == "P"'
)
wrong(
    "joins-wrongly",
    sentence="joined along the dimension that is cut now: the pieces that arrive are parts along the other one",
).replace("torch.cat(arrived, int(src[1:]))", "torch.cat(arrived, to)")
wrong(
    "gathers-dimension-0", sentence="joined along dimension 0: the parts were cut along the dimension in `src`"
).replace("all_gather(x_local, group, int(src[1:]))", "all_gather(x_local, group, 0)")
wrong(
    "gathers-last-dimension", sentence="joined along the last dimension, the default: `src` says which one was cut"
).replace("all_gather(x_local, group, int(src[1:]))", "all_gather(x_local, group)")
wrong("scatters-dimension-0", sentence="cut along dimension 0: `dst` says which dimension to cut").replace(
    "reduce_scatter(x_local, group, to)", "reduce_scatter(x_local, group)"
)
wrong("chunks-dimension-0", same_as="scatters-dimension-0").replace(
    "return x_local.chunk(n, to)[me]", "return x_local.chunk(n)[me]"
)
wrong("same-is-converted", "nothing to do").replace("if src == dst:\n    return x_local", "pass")
wrong("strided", sentence="every n-th row or column: a part is contiguous, as torch.chunk cuts").replace(
    "return x_local.chunk(n, to)[me]", "return x_local.index_select(to, torch.arange(me, x_local.shape[to], n))"
)
wrong("next-part", sentence="the part of the next rank: rank r has part r").replace(
    "return x_local.chunk(n, to)[me]", "return x_local.chunk(n, to)[(me + 1) % n]"
)
wrong("backwards", sentence="joined from the last rank to the first").replace(
    "torch.cat(arrived, int(src[1:]))", "torch.cat(arrived[::-1], int(src[1:]))"
)
wrong("sends-for-nothing", "has its part already", caught_by="traffic").replace(
    "return x_local.chunk(n, to)[me]", "return reduce_scatter(x_local / n, group, to)"
)
wrong("adds-in-place", "after the call").replace(
    'all_reduce(x_local, group) if src == "P"', '(dist.all_reduce(x_local, group=group), x_local)[1] if src == "P"'
)
wrong("rank-in-the-world", "counts within the group", hidden=True).replace("dist.get_rank(group)", "dist.get_rank()")
right("all-to-all-single").replace(
    "arrived = [torch.empty_like(piece) for piece in pieces]\ndist.all_to_all(arrived, pieces, group=group)",
    "together = torch.stack(pieces)\nout = torch.empty_like(together)\ndist.all_to_all_single(out, together, "
    "group=group)\narrived = list(out)",
)
right("kits-all-to-all").replace(
    "pieces = [piece.contiguous() for piece in x_local.chunk(n, to)]\narrived = [torch.empty_like(piece) for piece "
    "in pieces]\ndist.all_to_all(arrived, pieces, group=group)\nreturn torch.cat(arrived, int(src[1:]))",
    "rows = torch.stack(x_local.chunk(n, to))\nreturn torch.cat(all_to_all(rows, [1] * n, [1] * n, group).unbind(), "
    "int(src[1:]))",
)

wrong, right = ANSWERS.to("convert-uneven")
wrong("no-padding", "all_gather", varies=True).replace("pad_to(x_local, each, before)", "x_local")
wrong("padding-left", sentence="with the zeros of the padding at the end: cut them off").replace(
    ".narrow(before, 0, shape[before])", ""
)
wrong("own-length-for-all", "rank", varies=True).replace(
    "for rows in chunks(torch.empty(shape[before]), n, 0):", "for rows in [torch.empty(x_local.shape[before])] * n:"
)
wrong(
    "pads-each-part",
    sentence="the sum of parts that were cut before they were padded: after rank r's rows come those of rank r + 1",
).replace(
    "return reduce_scatter(pad_to(x_local, n * each, after), group, after).narrow(after, 0, mine)",
    "whole = all_reduce(x_local, group)\nreturn torch.roll(whole, 1, after).narrow(after, 0, mine)",
)
wrong("mine-padded", sentence="with the zeros of the padding behind its part: cut them off").replace(
    ".narrow(after, 0, mine)", ""
)
wrong(
    "zero-padded-in-front",
    sentence="with zeros where a rank's numbers belong: padding goes behind them, and is cut off there",
).replace("pad_to(x_local, each, before)", "pad_to(x_local, each, before).roll(1, before)")
wrong(
    "joins-wrongly",
    sentence="joined along the dimension that is cut now: the pieces that arrive are parts along the other one",
).replace(
    "zip(flat.split(counts), sizes)], before)",
    "zip(flat.split(counts), sizes) if size[before] == sizes[0][before]], after)",
)
wrong(
    "rows-as-they-lie",
    sentence="sent in the order in which this rank's numbers lie: flatten piece after piece, those for rank 0 first",
).replace("torch.cat([x.flatten() for x in pieces])", "x_local.flatten()")
wrong("reduces-then-cuts", "twice the bytes", caught_by="traffic").replace(
    "return reduce_scatter(pad_to(x_local, n * each, after), group, after).narrow(after, 0, mine)",
    "return chunks(all_reduce(x_local, group), n, after)[me]",
)
wrong("gathers-then-cuts", "throws most of that away", caught_by="traffic").replace(
    "pieces, sizes = chunks(x_local, n, after), []",
    "each = math.ceil(shape[before] / n)\nwhole = all_gather(pad_to(x_local, each, before), group, before)\nreturn "
    "chunks(whole.narrow(before, 0, shape[before]), n, after)[me]",
)
wrong("fewer-chunks", "always gives n").replace(
    "return chunks(x_local, n, after)[me]", "return x_local.chunk(n, after)[me]"
)
wrong("fewer-pieces", "always gives n").replace(
    "pieces, sizes = chunks(x_local, n, after)", "pieces, sizes = x_local.chunk(n, after)"
)
wrong("floor", "negative dimension").replace("each = math.ceil(shape[before] / n)", "each = max(1, shape[before] // n)")
wrong("empty-returns-early", "rank", varies=True).replace(
    'if src == "R":', 'if not x_local.numel():\n    return x_local.new_empty(0)\nif src == "R":'
)
wrong("length-below-zero", "is empty, not negative").replace(
    "mine = chunks(torch.empty(shape[after]), n, 0)[me].numel()",
    "mine = min(math.ceil(shape[after] / n), shape[after] - me * math.ceil(shape[after] / n))",
)
wrong("joins-along-dst", "along the dimension that `src` cuts").replace("sizes)], before)", "sizes)], after)")
wrong("equal-counts", "one count for each rank").replace(
    "counts = [math.prod(size) for size in sizes]", "counts = [sum(x.numel() for x in pieces) // n] * n"
)
right("by-torch").replace(
    "flat = all_to_all(torch.cat([x.flatten() for x in pieces]), [x.numel() for x in pieces], counts, group)",
    "flat = x_local.new_empty(sum(counts))\n"
    "dist.all_to_all_single(flat, torch.cat([x.flatten() for x in pieces]), counts, [x.numel() for x in pieces], "
    "group=group)",
)

wrong, right = ANSWERS.to("redistribute")
wrong("whole-shape", "what the ranks of that axis have together").replace(
    "together = local_shape(shape, layout, mesh, coordinates)", "together = shape"
)
wrong("other-groups", sentence="converted within the groups of the other axis: groups[axis] belongs to a step").replace(
    "groups[axis]", "groups[len(groups) - 1 - axis]"
)
wrong("layout-stays", "what the ranks of that axis have together").replace("layout[axis] = new", "layout[axis] = old")
wrong("first-step-only", sentence="what the first step leaves: carry out all of them").replace(
    "for axis, old, new in steps:", "for axis, old, new in steps[:1]:"
)
wrong("last-step-left-out", same_as="first-step-only").replace(
    "for axis, old, new in steps:", "for axis, old, new in steps[:-1]:"
)
wrong("places-of-rank-0", "what the ranks of that axis have together").replace(
    "mesh, coordinates)", "mesh, (0,) * len(mesh))"
)
wrong("backwards", sentence="taken in reverse order: begin with the first step").replace("in steps:", "in steps[::-1]:")
wrong("still-cut", "what the ranks of that axis have together").replace('layout[axis] = "R"\n', "")
wrong("each-from-the-start", "what the previous step left").body("""
    layout, x = list(src), x_local
    for axis, old, new in steps:
        layout[axis] = "R"
        x = convert(x_local, old, new, local_shape(shape, layout, mesh, coordinates), groups[axis])
        layout[axis] = new
    x_local = x
""")
right("by-hand").body("""
    layout = src
    for axis, old, new in steps:
        undone = tuple("R" if k == axis else p for k, p in enumerate(layout))
        sizes = tuple(s.stop - s.start for s in my_part(shape, undone, mesh, coordinates))
        x_local = convert(x_local, old, new, sizes, groups[axis])
        layout = tuple(new if k == axis else p for k, p in enumerate(layout))
    return x_local
""")

wrong, right = ANSWERS.to("cheapest-steps")
wrong(
    "through-whole", sentence="what DTensor's default sends: it gathers the whole first. Look for a way round"
).body("""
    steps = [(axis, src[axis], "R") for axis in reversed(range(len(mesh))) if src[axis] != "R"]
    return steps + [(axis, "R", dst[axis]) for axis in range(len(mesh)) if dst[axis] != "R"]
""")
wrong(
    "left-to-right", sentence="a step that cuts or joins a dimension which a later axis cuts: undo that cut first"
).body("return [(axis, src[axis], dst[axis]) for axis in range(len(mesh)) if src[axis] != dst[axis]]")
wrong("any-cut", same_as="left-to-right").replace(
    "if new == old or cut_dim(old) in later or cut_dim(new) in later:", "if new == old:"
)
wrong(
    "joins-only",
    sentence="a step that cuts a dimension which a later axis cuts: to add such a cut is as impossible as to undo one",
).replace("or cut_dim(new) in later:", ":")
wrong(
    "fewest-steps",
    sentence="more than is needed: a step costs what it sends, and that depends on what the other axes leave",
).replace("(cost + more, layout", "(cost + 1, layout")
wrong("always-of-the-whole", same_as="fewest-steps").replace(
    "math.prod(shape) // math.prod(others)", "math.prod(shape)"
)
wrong("no-steps", sentence="where it began: there are no steps").body("return []")
wrong(
    "earlier-axes",
    sentence="a step that cuts or joins a dimension which a later axis cuts: it is the earlier axes that don't matter",
).replace("layout[axis + 1 :]}", "layout[:axis]}")
wrong(
    "partial-sums-block",
    sentence='more than is needed: "P" cuts nothing, so a later axis with "P" forbids no step',
).replace("{cut_dim(p) for p in layout[axis + 1 :]} - {None}\n", "set(layout[axis + 1 :]) - {'R'}\n").replace(
    "cut_dim(old) in later or cut_dim(new) in later", "old in later or new in later"
)
wrong(
    "partial-sums-share", sentence='more than is needed: "P" cuts nothing, so it leaves the whole to convert'
).replace("cut_dim(layout[k]) is not None", "layout[k] != 'R'")
wrong(
    "own-axis-too",
    sentence="more than is needed: what the ranks of an axis have together isn't divided by their own number",
).replace("if k != axis and cut_dim(layout[k]) is not None", "if cut_dim(layout[k]) is not None")
wrong(
    "final-when-pushed", sentence="more than is needed: a layout is final when it comes off the heap, not before"
).replace("if layout in done:\n    continue\ndone.add(layout)", "pass").replace(
    "heapq.heappush(",
    "after = layout[:axis] + (new,) + layout[axis + 1 :]\n"
    "if after in done:\n    continue\ndone.add(after)\nheapq.heappush(",
)
wrong("last-step-alone", sentence="more than is needed: order the heap by the cost of all steps so far").replace(
    "cost + more", "more"
)
right("all-distances").body("""
    best = {src: (0, [])}
    changed = True
    while changed:
        changed = False
        for layout, (cost, steps) in list(best.items()):
            for axis in range(len(mesh)):
                later = [p for p in layout[axis + 1:] if p[0] == "S"]
                for new in placements:
                    if new == layout[axis] or new in later or layout[axis] in later:
                        continue
                    size = math.prod(shape)
                    for k, p in enumerate(layout):
                        if k != axis and p[0] == "S":
                            size //= mesh[k]
                    after = layout[:axis] + (new,) + layout[axis + 1:]
                    total = cost + moved(size, layout[axis], new, mesh[axis])
                    if after not in best or total < best[after][0]:
                        best[after] = (total, steps + [(axis, layout[axis], new)])
                        changed = True
    return best[dst][1]
""")

wrong, right = ANSWERS.to("einsum-rule")
wrong("sum-forgotten", sentence='"R", but the label that is cut is summed over: each rank has only a summand').replace(
    'if label in output else "P"', 'if label in output else "R"'
)
wrong(
    "two-partials",
    sentence='"P", but (a + b)(c + d) is not ac + bd: a product is linear in one of its inputs, not in both',
).replace('return "convert" if partial_sums > 1 else', "return")
wrong("input-dimension", sentence="the dimension of an input: look where the label stands in the output").replace(
    'f"S{output.index(label)}"', 'next(p for p in placements if p[0] == "S")'
)
wrong(
    "any-label",
    sentence="a placement of the result, but two labels are cut along one axis: each rank has only the block of its "
    "own rows and columns",
).replace("if partial_sums or len(labels) > 1:", "if partial_sums:").replace(
    "label = labels.pop()", 'label = sorted(labels)[0]\nif len(labels) > 1:\n    return f"S{output.index(label)}"'
)
wrong("last-label", same_as="any-label").replace("if partial_sums or len(labels) > 1:", "if partial_sums:").replace(
    "label = labels.pop()", 'label = sorted(labels)[-1]\nif len(labels) > 1:\n    return f"S{output.index(label)}"'
)
wrong(
    "all-inputs-cut", sentence='"convert", but an input that doesn\'t have the label is used whole, by every rank'
).replace(
    "label = labels.pop()",
    'label = labels.pop()\nif label not in output and "R" in placements:\n    return "convert"',
)
wrong(
    "one-input-only", sentence='"P", but the label is cut in one input and whole in the other: the sizes don\'t match'
).replace('if list(placements) != [f"S{term.index(label)}" if label in term else "R" for term in terms]:', "if False:")
wrong(
    "partial-times-part",
    sentence="a placement, but each rank multiplies its own summand by its own part: nobody has the other products",
).replace("if partial_sums or len(labels) > 1:", "if len(labels) > 1:").replace(
    "if list(placements) != [", 'if partial_sums:\n    return "P"\nif list(placements) != ['
)
wrong("partial-is-ignored", same_as="partial-times-part").replace(
    "if partial_sums or len(labels) > 1:", "if len(labels) > 1:"
).replace(
    "if list(placements) != [",
    'if partial_sums:\n    return f"S{output.index(label)}" if label in output else "P"\nif list(placements) != [',
)
wrong(
    "partial-converts",
    sentence='"convert", but a product is linear in one input: the products of the summands add up to it',
).replace(
    'return "convert" if partial_sums > 1 else "P" if partial_sums else "R"',
    'return "convert" if partial_sums else "R"',
)
wrong(
    "summed-label-converts", sentence='"convert", but what each rank computes is a summand: that has a placement'
).replace('if label in output else "P"', 'if label in output else "convert"')
wrong(
    "third-not-compared", sentence="a placement, but an input that has the label isn't cut by it", hidden=True
).replace(
    'if list(placements) != [f"S{term.index(label)}" if label in term else "R" for term in terms]:',
    'if list(placements)[:2] != [f"S{term.index(label)}" if label in term else "R" for term in terms][:2]:',
)
right("by-cases").body("""
    cut = [(k, term[int(p[1:])]) for k, (term, p) in enumerate(zip(terms, placements)) if p[0] == "S"]
    summands = sum(p == "P" for p in placements)
    if summands + bool(cut) > 1 or len({label for _, label in cut}) > 1:
        return "convert"
    if cut:
        label = cut[0][1]
        if {k for k, term in enumerate(terms) if label in term} != {k for k, _ in cut}:
            return "convert"
        return "P" if label not in output else "S" + str(output.index(label))
    return "P" if summands else "R"
""")

wrong, right = ANSWERS.to("gradient-conversion")
wrong("just-back", sentence="the way back of the value: a gradient lies as the dual of its value").body(
    "return dst, src"
)
wrong("not-turned-round", sentence="the duals in the order of the forward pass: the gradient comes from dst").replace(
    "return dual.get(dst, dst), dual.get(src, src)", "return dual.get(src, src), dual.get(dst, dst)"
)
wrong("i-as-r", sentence='with "I" as if it were "R": each rank has the whole gradient of "I"').replace(
    'dual = {"R": "P", "P": "R"}', 'dual = {"R": "P", "P": "R", "I": "P"}'
)
wrong(
    "i-becomes-r",
    sentence='with "R" as the dual of "I": the gradient of "I" is the same on every rank, and it stays "I"',
).replace('dual = {"R": "P", "P": "R"}', 'dual = {"R": "P", "P": "R", "I": "R"}')
wrong("p-stays", sentence='with "P" as the dual of "P": each summand needs the whole gradient').replace(
    'dual = {"R": "P", "P": "R"}', 'dual = {"R": "P"}'
)
wrong("r-stays", sentence='with "R" as the dual of "R": each rank has only what its own use contributes').replace(
    'dual = {"R": "P", "P": "R"}', 'dual = {"P": "R"}'
)
wrong(
    "i-for-p", sentence='with "I" as the dual of "P": what becomes of a summand is the whole gradient, an "R"'
).replace('"P": "R"', '"P": "I"')
wrong("cuts-become-sums", sentence='with "P" as the dual of a cut: a part has the matching part of the gradient').body(
    'return "P" if dst[0] in "RS" else dst.replace("P", "R"), "P" if src[0] in "RS" else src.replace("P", "R")'
)
right("conditions").body("""
    turned = ["P" if p == "R" else "R" if p == "P" else p for p in (dst, src)]
    return turned[0], turned[1]
""")

wrong, right = ANSWERS.to("sharded-mlp")
wrong(
    "i-used-as-it-is",
    sentence="what this rank's own tokens contribute: convert the weight to what the label uses, though nothing is "
    "sent forward",
).replace("to(w, stored[name], use_w)", '(w if stored[name] == "I" else to(w, stored[name], use_w))')
wrong("weights-not-converted", same_as="i-used-as-it-is").replace("to(w, stored[name], use_w)", "w")
wrong("result-not-converted", sentence="a summand of the result: convert it to how x lies").replace(
    'return to(x, now, stored["x"])', "return x"
)
wrong("r-for-i", sentence='too large by the number of ranks: the result lies as "I", not as "R", if x does').replace(
    'return to(x, now, stored["x"])', 'return to(x, now, stored["x"].replace("I", "R"))'
)
wrong(
    "x-not-converted",
    sentence="what this rank's own columns contribute: convert x to what the label uses, though nothing is sent "
    "forward",
).replace("x = to(x, now, use_x)", "pass")
wrong("no-relu", sentence="the result without relu").replace("x = x.relu()", "pass")
wrong(
    "relu-of-summands",
    sentence="the sum of the relus of all summands, not the relu of their sum: if the first product is a partial sum, "
    "convert it before relu",
).replace("x = to(x, now, use_x)", "before = x.relu() if name == 'w2' else x; x = to(before, now, use_x)").replace(
    "x = x.relu()", "pass"
)
wrong("relu-of-x-too", sentence="the result with another relu before the first product").replace(
    'if name == "w2":', "if True:"
)
wrong("all-reduces-first", "once on the way back", caught_by="traffic").replace(
    "x = to(x, now, use_x)", 'x = to(to(x, "P", "R"), "R", use_x) if now == "P" else to(x, now, use_x)'
)
wrong("relu-at-the-end-too", sentence="with another relu after the second product").replace(
    'return to(x, now, stored["x"])', 'return to(x, now, stored["x"]).relu()'
)
wrong("all-whole", "once on the way back", caught_by="traffic").body("""
    x, w1, w2 = (
        to(v, stored[name], "R") for name, v in (("x", x_local), ("w1", w1_local), ("w2", w2_local))
    )
    mine = to(x, "R", "S0")
    y = (mine @ w1).relu() @ w2
    return to(y, "S0", stored["x"])
""")
wrong("detached", "no gradient").replace("to(w, stored[name], use_w)", "to(w.detach(), stored[name], use_w)")
wrong("always-back-to-s0", sentence="cut by rows: the result lies as x does, and that may be whole").replace(
    'return to(x, now, stored["x"])', 'return to(x, now, "S0")'
)
wrong("relu-at-the-end", sentence="with relu behind the second product: it belongs between the two").replace(
    'if name == "w2":\n    x = x.relu()', "pass"
).replace("return to(x, now, ", "return to(x.relu(), now, ")
right("written-out").body("""
    (a, b, c), (d, e, f) = USES[labels[0]], USES[labels[1]]
    h = to(x_local, stored["x"], a) @ to(w1_local, stored["w1"], b)
    y = torch.clamp(to(h, c, d), min=0) @ to(w2_local, stored["w2"], e)
    return to(y, f, stored["x"])
""")

wrong, right = ANSWERS.to("layer-bytes")
wrong("no-backward", sentence="nothing in the backward pass: gradients are converted, too").replace(
    "return forward, backward", "return forward, 0"
)
wrong(
    "same-backward",
    sentence='the same in both passes: the gradient of a weight that is stored as "I" must become "I" again, by an '
    "all-reduce or a gather",
).replace("return forward, backward", "return forward, forward")
wrong(
    "back-without-duals",
    sentence="Your backward pass takes the values themselves from new to old, or their duals from old to new. A "
    "gradient goes from the dual of new to the dual of old.",
).replace("moved(size, dual[new], dual[old], n)", "moved(size, new, old, n)")
wrong("duals-forward", same_as="back-without-duals").replace(
    "moved(size, dual[new], dual[old], n)", "moved(size, dual[old], dual[new], n)"
)
wrong("always-stored-as-s0", sentence='what a weight stored as "S0" takes, whatever `stored` says').replace(
    "(w, stored, use_w)", '(w, "S0", use_w)'
)
wrong(
    "size-of-a-part",
    sentence="an n-th of what is sent: `moved` takes the size of the tensor that all ranks have together",
).replace("moved(size,", "moved(size // n,")
wrong(
    "activations-only",
    sentence="without the weight: it is converted from how it is stored, and its gradient back to that",
).replace("(w, stored, use_w), ", "")
wrong("weights-only", sentence="what the weight alone takes: x and y are converted, too").replace(
    '((x, "S0", use_x), (w, stored, use_w), (y, made, "S0"))', "((w, stored, use_w),)"
)
wrong("y-stays", sentence="without what y takes to become S0 again").replace(', (y, made, "S0")', "")
wrong("x-stays", sentence="without what x takes to become what the label uses").replace('(x, "S0", use_x), ', "")
wrong("i-as-r", same_as="same-backward").replace('"I": "I"', '"I": "P"')
wrong("weight-not-gathered", sentence="without the weight's conversion in the forward pass").replace(
    "forward += moved(size, old, new, n)", "forward += size != w and moved(size, old, new, n)"
)
right("by-hand").body("""
    turn = lambda p: {"R": "P", "P": "R"}.get(p, p)
    use_x, use_w, made = USES[label]
    there = [(x, "S0", use_x), (w, stored, use_w), (y, made, "S0")]
    back = [(size, turn(b), turn(a)) for size, a, b in there]
    return sum(moved(*one, n) for one in there), sum(moved(*one, n) for one in back)
""")

wrong, right = ANSWERS.to("shard-model")
wrong(
    "layer-by-layer",
    sentence="more than is needed: the cheapest layers one by one, without what the layers save together",
).body("""
    chosen, held = [], 0
    for k, (rows, columns) in enumerate(zip(widths, widths[1:])):
        rest = sum(a * b // n for a, b in zip(widths[k + 1:], widths[k + 2:]))
        best = None
        for label, stored in product("bfd", ("I", "S0", "S1")):
            use_x, use_w, made = USES[label]
            more = rows * columns // (1 if stored == "I" else n)
            if held + more + rest > budget:
                continue
            price = both_passes(tokens * rows, "S0", use_x, n) + both_passes(rows * columns, stored, use_w, n)
            price += both_passes(tokens * columns, made, "S0", n)
            if best is None or price < best[0]:
                best = (price, label, stored, more)
        chosen.append((best[1], best[2]))
        held += best[3]
    return chosen
""")
wrong("no-budget", sentence="more weights than a rank has room for").replace(
    "if held <= budget and sent < least:", "if sent < least:"
)
wrong("always-fsdp", sentence="what FSDP sends: with few tokens, moving activations is cheaper").body(
    'return [("b", "S0")] * (len(widths) - 1)'
)
wrong("always-megatron", sentence="what Megatron's way sends: with many tokens, moving weights is cheaper").body(
    'return [("f", "S1") if k % 2 == 0 else ("d", "S0") for k in range(len(widths) - 1)]'
)
wrong("end-forgotten", sentence="more than is needed: the last y must become S0 again, and that has a price").replace(
    'sent += both_passes(tokens * widths[-1], now, "S0", n)\n', ""
)
wrong("forward-only", sentence="the cheapest forward pass: the backward pass has a price as well").replace(
    "both_passes(", "moved("
)
wrong("weights-for-free", same_as="always-fsdp").replace(" + both_passes(rows * columns, stored, use_w, n)", "")
wrong("dearest", sentence="the most that the ranks can send").replace("sent < least", "(best is None or sent > least)")
wrong("always-from-s0", sentence="more than is needed: a layer's x is widths[k] wide, and lies as it was made").replace(
    "now = made", "pass"
)
wrong("width-of-y", same_as="always-from-s0").replace(
    "both_passes(tokens * rows, now", "both_passes(tokens * columns, now"
)
wrong("budget-for-each-layer", sentence="more weights than a rank has room for", hidden=True).replace(
    'held += rows * columns // (1 if stored == "I" else n)',
    'held = max(held, rows * columns // (1 if stored == "I" else n))',
)
wrong(
    "end-without-backward",
    sentence="more than is needed: the last y's conversion has a backward pass, too",
    hidden=True,
).replace('both_passes(tokens * widths[-1], now, "S0", n)', 'moved(tokens * widths[-1], now, "S0", n)')
wrong(
    "best-for-each-placement",
    sentence="more than is needed: among ways to the same placement, one may send more and leave more room",
    hidden=True,
).body("""
    best = {"S0": (0, 0, [])}
    for rows, columns in zip(widths, widths[1:]):
        after = {}
        for (now, (sent, held, chosen)), label, stored in product(best.items(), "bfd", ("I", "S0", "S1")):
            use_x, use_w, made = USES[label]
            here = held + rows * columns // (1 if stored == "I" else n)
            more = both_passes(tokens * rows, now, use_x, n) + both_passes(rows * columns, stored, use_w, n)
            if here <= budget and (made not in after or sent + more < after[made][0]):
                after[made] = sent + more, here, chosen + [(label, stored)]
        best = after
    ends = [(s + both_passes(tokens * widths[-1], now, "S0", n), way) for now, (s, _, way) in best.items()]
    return min(ends)[1]
""")
right("never-whole").replace('("I", "S0", "S1")', '("S0", "S1")')
right("last-of-equals").replace("sent < least", "sent <= least")
right("layer-after-layer").body("""
    states = {("S0", 0): (0, [])}
    for rows, columns in zip(widths, widths[1:]):
        following = {}
        for (now, held), (sent, chosen) in states.items():
            for label, stored in product("bfd", ("I", "S0", "S1")):
                use_x, use_w, made = USES[label]
                key = made, held + rows * columns // (1 if stored == "I" else n)
                if key[1] > budget:
                    continue
                total = sent + both_passes(tokens * rows, now, use_x, n) + both_passes(rows * columns, stored, use_w, n)
                if key not in following or total < following[key][0]:
                    following[key] = total, chosen + [(label, stored)]
        states = following
    last = tokens * widths[-1]
    return min((sent + both_passes(last, now, "S0", n), done) for (now, _), (sent, done) in states.items())[1]
""")

wrong, right = ANSWERS.to("dtensor-mlp")
wrong("nothing-said", "needed", caught_by="traffic").body("""
    x, w1, w2 = (
        DTensor.from_local(v, mesh, [at(stored[name])])
        for name, v in (("x", x_local), ("w1", w1_local), ("w2", w2_local))
    )
    return (x @ w1).relu().matmul(w2).redistribute(placements=[at(stored["x"])]).to_local()
""")
wrong("summand", sentence="a summand of the result: redistribute it to how x lies before to_local()").replace(
    'return x.redistribute(placements=[at(stored["x"])]).to_local()', "return x.to_local()"
)
wrong("full-tensor", sentence="the whole result on each rank: it must lie as x does").replace(
    'return x.redistribute(placements=[at(stored["x"])]).to_local()', "return x.full_tensor()"
)
wrong("returns-a-dtensor", "DTensor", varies=True).replace(".to_local()", "")
wrong("no-relu", sentence="the result without relu").replace("x = x.relu()", "pass")
wrong("relu-of-a-partial-sum", "converted once", caught_by="traffic").body("""
    x = DTensor.from_local(x_local, mesh, [at(stored["x"])])
    for name, w_local, label in zip(("w1", "w2"), (w1_local, w2_local), labels):
        w = DTensor.from_local(w_local, mesh, [at(stored[name])])
        if name == "w2":
            x = x.relu()
        x = x.redistribute(placements=[at(USES[label][0])]) @ w.redistribute(placements=[at(USES[label][1])])
    return x.redistribute(placements=[at(stored["x"])]).to_local()
""")
wrong("distributes", "`distribute_tensor` sends rank 0's instead").replace(
    "DTensor.from_local(x_local", "distribute_tensor(x_local"
).replace("DTensor.from_local(w_local", "distribute_tensor(w_local")
wrong("mixed", "mixed torch.Tensor and DTensor").replace(
    "x @ w.redistribute(placements=[at(USES[label][1])])", "x @ w_local"
)
wrong("detached", "no gradient").replace("from_local(w_local", "from_local(w_local.detach()")
right("written-out").body("""
    def spread(v, name):
        return DTensor.from_local(v, mesh, [at(stored[name])])

    (a, b, _), (c, d, _) = USES[labels[0]], USES[labels[1]]
    h = spread(x_local, "x").redistribute(mesh, [at(a)]) @ spread(w1_local, "w1").redistribute(mesh, [at(b)])
    y = h.redistribute(mesh, [at(c)]).relu() @ spread(w2_local, "w2").redistribute(mesh, [at(d)])
    return y.redistribute(mesh, [at(stored["x"])]).to_local()
""")

wrong, right = ANSWERS.to("read-hlo")
wrong(
    "result-bytes",
    sentence="the bytes of the result: an all-gather's is n times what a device hands in, a reduce-scatter's the "
    "n-th part",
).replace('{"all-gather": nbytes // n, "reduce-scatter": nbytes * n}.get(call[2], nbytes)', "nbytes")
GIVEN = '{"all-gather": nbytes // n, "reduce-scatter": nbytes * n}.get(call[2], nbytes)'
wrong(
    "reduce-scatter-as-it-is",
    sentence="right for the all-gather, but a reduce-scatter's result is the n-th part of what a device hands in",
).replace(GIVEN, '{"all-gather": nbytes // n}.get(call[2], nbytes)')
wrong(
    "n-the-other-way",
    sentence="n the wrong way round: an all-gather's result is n times what a device hands in, a reduce-scatter's the "
    "n-th part",
).replace(GIVEN, '{"all-gather": nbytes * n, "reduce-scatter": nbytes // n}.get(call[2], nbytes)')
wrong("scalars-for-free", sentence="no bytes for a scalar: f32[] is one number, not none").replace(
    'math.prod(int(n) for n in dims.split(",") if n)', '(math.prod(map(int, dims.split(","))) if dims else 0)'
)
wrong(
    "first-axis-only",
    sentence="the length of one axis, where the groups lie along two: multiply the lengths of all names",
    hidden=True,
).replace("groups)[1]))", "groups)[1])[:1])")
wrong("numbers", sentence="numbers, not bytes: bf16 has 2 bytes, f32 4, f64 8").replace(
    "sizes[kind] * math.prod", "math.prod"
)
wrong("four-bytes-each", sentence="counted with 4 bytes for every number: bf16 has 2, f64 8").replace(
    "sizes[kind] *", "4 *"
)
wrong("number-of-groups", sentence="the number of groups in [2,4]: the second number is the size of one").replace(
    r"\[\d+,(\d+)\]", r"\[(\d+),\d+\]"
)
wrong("first-array-only", sentence="the first array of each tuple: add up all of them").replace(
    "in arrays)", "in arrays[:1])"
)
wrong(
    "all-devices",
    sentence="all devices of the mesh as the group: the names in the last {...} say along which axes the groups lie",
).replace("""re.findall(r"'(\\w+)'", re.search(r"\\{(.*?)\\}", groups)[1])""", "of_axis")
wrong("mentions", "you returned", varies=True).replace(
    r'r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all)\("',
    r'r"= (.*?)\b(all-gather|all-reduce|reduce-scatter|all-to-all)"',
).replace('groups = line.split("replica_groups=")[1]', 'groups = (line.split("replica_groups=") + ["{{0}}"])[1]')
wrong("listed-only", "IndexError").replace(
    'elif groups[0] == "[":\n    n = int', 'elif groups[0] == "[":\n    n = [][0]; n = int'
)
wrong("one-comma-less", sentence="with groups that lack a device: n numbers have n - 1 commas between them").replace(
    'count(",") + 1', 'count(",")'
)
wrong("all-groups-as-one", sentence="the devices of all groups: count those of the first").replace(
    'groups.split("}")[0].count(",")', 'groups.split("}}")[0].count(",")'
)
wrong("one-of-each-kind", sentence="one collective of each kind: a program may have several").replace(
    "found.append(", "if call[2] not in [one[0] for one in found]:\n    found.append("
)
right("one-by-one").body(r"""
    for line in text.split("\n"):
        for op in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all"):
            if f" {op}(" not in line or "replica_groups" not in line:
                continue
            before, after = line.split(f" {op}(")
            total = 0
            for kind, dims in re.findall(r"(\w+)\[(.*?)\]", before.split("= ")[1]):
                count = 1
                for length in filter(None, dims.split(",")):
                    count *= int(length)
                total += count * sizes[kind]
            groups = after.split("replica_groups=")[1]
            if groups.startswith("{{"):
                n = len(groups[2:groups.index("}")].split(","))
            elif groups.startswith("["):
                n = int(groups[1:groups.index("]")].split(",")[1])
            else:
                inside = groups[5:groups.index("]")]
                known = {name.strip("'"): int(size) for name, size in (axis.split("=") for axis in inside.split(","))}
                names = groups[groups.index("{") + 1 : groups.index("}")]
                n = 1
                for name in names.split(","):
                    n *= known[name.strip("'")]
            if op == "all-gather":
                total //= n
            if op == "reduce-scatter":
                total *= n
            found.append((op, total, n))
""")

wrong, right = ANSWERS.to("block-plan")
wrong("ignores-the-budget", "at most", caught_by="score").replace("held <= budget", "held <= 10 * budget")
wrong("weights-whole", "at most", caught_by="score").body('return uniform_plan("bt", "I", "")')
wrong("cuts-attention-by-d", "partial sums", caught_by="score").body("""
    plan = uniform_plan("bt", "S0", "")
    return plan | {"qkv": ("bd", ("S1", "S0"), "")}
""")
wrong("half-a-plan", "how up is computed", caught_by="score").body("""
    plan = uniform_plan("bt", "S0", "")
    return {"qkv": plan["qkv"], "out": plan["out"]}
""")
wrong("fsdp-everywhere", "times par", caught_by="score").body('return uniform_plan("b" * len(mesh), "S0", "")')
right("stored-across").body("""
    plans = [
        {
            name: (labels, ("S0", "S1") if labels == "bf" else ("S1", "S0"), kept)
            for name, labels, kept in zip(("qkv", "out", "up", "down"), ("bf", "bd", "bf", "bd"), keeps)
        }
        for keeps in product(("", "x", "w", "xw"), repeat=4)
    ]
    costs = [cost_of_plan(plan, tokens, sequences, width, hidden, mesh) for plan in plans]
    fitting = [(sent, number) for number, (sent, held) in enumerate(costs) if held <= budget]
    return plans[min(fitting)[1]]
""")
right("by-halves").body("""
    from utils.kit.block_plans import VALUE, WEIGHT, expect_attention, layouts_of, price, share, weights_of_block

    cut, weights = ("S0",) * len(mesh), weights_of_block(width, hidden)
    every = ["".join(labels) for labels in product("bfd", repeat=len(mesh))]

    def front(ways):
        best = []
        for way in sorted(ways, key=lambda way: (way[1], way[0])):
            if not best or way[0] < best[-1][0]:
                best.append(way)
        return best

    def ways_of_weight(size, used):
        for stored in product(("I", "S0", "S1"), repeat=len(mesh)):
            forward, both = price(size, stored, used, mesh)
            state = WEIGHT * share(size, stored, mesh)
            yield both + forward, state, stored, ""
            yield both, state + VALUE * share(size, used, mesh) * (forward > 0), stored, "w"

    def ways_of_x(size, old, used):
        forward, both = price(size, old, used, mesh)
        return [(both + forward, VALUE * share(size, old, mesh), ""), (both, VALUE * share(size, used, mesh), "x")]

    of_weights = {
        (name, labels): front(ways_of_weight(math.prod(weights[name]), layouts_of(labels)[1]))
        for name in weights for labels in every
    }

    def ways_of(name, labels, before):
        xs = ways_of_x(tokens * weights[name][0], before, layouts_of(labels)[0])
        return front(
            (a + b, c + d, {name: (labels, stored, x + w)})
            for a, c, x in xs for b, d, stored, w in of_weights[name, labels]
        )

    def half(first, second):
        found = []
        for one, two in product(every, repeat=2):
            between = layouts_of(one)[2]
            if first == "qkv":
                try:
                    expect_attention(between, sequences, mesh)
                except ValueError:
                    continue
            back = price(tokens * width, layouts_of(two)[2], cut, mesh)[1]
            for a, b in product(ways_of(first, one, cut), ways_of(second, two, between)):
                found.append((a[0] + b[0] + back, a[1] + b[1], a[2] | b[2]))
        return front(found)

    pairs = product(half("qkv", "out"), half("up", "down"))
    fitting = [(a[0] + b[0], a[2] | b[2]) for a, b in pairs if a[1] + b[1] <= budget]
    return min(fitting, key=lambda pair: pair[0])[1]
""")
