"""Answers to lesson 02, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("naive-all-reduce")
wrong("overwrites-instead-of-adding", "add what arrives, don't overwrite").replace(
    "total += arrived", "total.copy_(arrived)"
)
wrong("place-taken-for-a-rank", "only the team takes part").replace(
    "root, others = team[0], team[1:]", "others = range(1, dist.get_world_size())"
).replace("rank == root", "rank == 0").replace("dst=root", "dst=0").replace("src=root", "src=0")
wrong("adds-in-place", "must stay as it was").replace("x.clone()", "x")
wrong("everybody-adds-in-its-own-order", "different orders", varies=True).body("""
    place, size = team.index(rank), len(team)
    for step in range(1, size):
        sending = dist.isend(x, dst=team[(place + step) % size])
        dist.recv(arrived, src=team[place - step])
        sending.wait()
        total += arrived
""")
wrong("uses-the-library", "your function calls all_reduce", caught_by="traffic").body("dist.all_reduce(total)")
wrong("for-in-team-with-itself", "no connection to itself").replace(
    "for other in others:\n    dist.recv", "for other in team:\n    dist.recv"
)
right("from-whoever-comes").replace("dist.recv(arrived, src=other)", "dist.recv(arrived)").replace(
    "for other in others:\n    dist.send(total, dst=other)",
    "for handle in [dist.isend(total, dst=other) for other in others]:\n    handle.wait()",
)
wrong("sends-before-all-is-added", "must be the whole sum").replace(
    "others:\n    dist.recv(arrived, src=other)\n    total += arrived\nfor other in others:\n",
    "others:\n    dist.recv(arrived, src=other)\n    total += arrived\n",
)
wrong("keeps-the-sum-to-itself", "although rank 0 has it").replace(
    "for other in others:\n    dist.send(total, dst=other)", "pass"
).replace("dist.recv(total, src=root)", "pass")
wrong("one-buffer-in-a-list", "a buffer that is filled again").replace("total += arrived", "total = total + 0").replace(
    "for other in others:\n    dist.send",
    "total = torch.stack([x] + [arrived] * len(others)).sum(0).to(x.dtype)\nfor other in others:\n    dist.send",
)
wrong("float-buffer", "with the dtype of the input").replace("torch.empty_like(x)", "torch.empty(len(x))")

wrong, right = ANSWERS.to("tree-all-reduce")
wrong("goes-on-sending", "A place that has sent its sum up is done").replace(
    "if place % (2 * distance) == distance:\n    dist.send", "if place % (2 * distance):\n    dist.send"
)
wrong(
    "down-in-the-order-of-up",
    sentence="not the sum, which others have: on the way down the distances go in reverse, the furthest child first, "
    "since no place may send before it has the sum",
).replace("in reversed(distances)", "in distances")
wrong("sends-to-places-not-ranks", "In the teams [1, 2] and [3, 0, 4] a place is not a rank").replace(
    "dst=team[place + distance]", "dst=place + distance"
)
wrong("all-to-one-rank", "what the naive way takes", caught_by="time").function(
    "return naive_all_reduce(x, team, rank)"
)
wrong("a-bit-for-a-multiple", "only multiples of d take part", caught_by="traffic").replace(
    "place % (2 * distance) == distance", "place & distance"
).replace("place % (2 * distance) == 0", "not place & distance")
wrong("both-partners-send", "one of a pair sends, the other receives", caught_by="traffic").replace(
    "dist.send(total, dst=team[place - distance])",
    "dist.send(total, dst=team[place - distance])\ndist.recv(arrived, src=team[place - distance])",
).replace("total += arrived", "total += arrived\ndist.send(total, dst=team[place + distance])")
wrong("near-places-first-on-the-way-down", "the largest distance comes first", caught_by="time").replace(
    "reversed(distances)", "sorted(distances, key=lambda d: place % (2 * d) != d)"
)
wrong("down-by-place-0-alone", "place 0 alone the other way", caught_by="time").replace(
    "for distance in reversed(distances):",
    "if place:\n    dist.recv(total, src=team[0])\n"
    "for other in team[1:] if place == 0 else []:\n    dist.send(total, dst=other)\nfor distance in []:",
)
wrong("shares-memory-when-alone", "shares memory with its input", hidden=True).function(
    "return x if len(team) == 1 else naive_all_reduce(x, team, rank)"
)
wrong("adds-on-the-way-down", "don't add it again").replace(
    "dist.recv(total, src=team[place - distance])", "dist.recv(arrived, src=team[place - distance])\ntotal += arrived"
)
right("largest-distance-first").replace(
    "for distance in distances:\n    if place % (2 * distance) == distance:",
    "for distance in reversed(distances):\n    if distance <= place < 2 * distance:",
).replace("place % (2 * distance) == 0", "place < distance").replace(
    "for distance in reversed(distances):\n    if place % (2 * distance) == distance:",
    "for distance in distances:\n    if distance <= place < 2 * distance:",
)
wrong("a-heap", "partners are 1, 2, 4, ... places apart", caught_by="time").body("""
    children, parent = [team[child] for child in (2 * place + 1, 2 * place + 2) if child < size], team[(place - 1) // 2]
    for child in children:
        dist.recv(arrived, src=child)
        total += arrived
    if place:
        dist.send(total, dst=parent)
        dist.recv(total, src=parent)
    for child in children:
        dist.send(total, dst=child)
""")
wrong("asks-the-world-for-a-child", "that has no partner in the team does nothing").replace(
    "distance < size", "distance < dist.get_world_size()"
)

wrong, right = ANSWERS.to("ring-reduce-scatter")
wrong("adds-to-what-was-sent", "add what arrives to your chunk of that number").replace(
    "chunks[incoming] += arrived", "chunks[outgoing] += arrived"
)
wrong("the-whole-sum", "return chunk `place` of it").function("return naive_all_reduce(x, team, rank)")
wrong("everybody-sends-first", "Everyone sends first").replace(
    "exchange(chunks[outgoing], right, arrived, left)",
    "dist.send(chunks[outgoing], dst=right)\ndist.recv(arrived, src=left)",
)
wrong("in-two-turns", "send and receive at the same time", caught_by="time").replace(
    "exchange(chunks[outgoing], right, arrived, left)",
    "for turn in (0, 1):\n"
    "    dist.send(chunks[outgoing], right) if place % 2 == turn else dist.recv(arrived, src=left)",
)
wrong("straight-to-everybody", "In a ring every message goes to the next place", caught_by="traffic").replace(
    "place - 1 - step", "place + 1 + step"
).replace("(outgoing - 1) % size", "place").replace(
    "right, arrived, left", "team[outgoing], arrived, team[place - 1 - step]"
)
wrong("chunks-are-views", "must stay as it was").replace(
    "[chunk.clone() for chunk in x.tensor_split(size)]", "x.tensor_split(size)"
).replace("chunks[incoming] += arrived", "chunks[incoming].add_(arrived)")
wrong("forgets-the-handle", "thrown away the handle", varies=True).replace(
    "exchange(chunks[outgoing], right, arrived, left)",
    "dist.isend(chunks[outgoing], dst=right)\ndist.recv(arrived, src=left)",
)
wrong("other-direction", "not a sum of chunk 3").replace(
    "exchange(chunks[outgoing], right, arrived, left)", "exchange(chunks[outgoing], left, arrived, right)"
)
wrong("sends-its-own-numbers", "that the step before added to").replace(
    "exchange(chunks[outgoing], right", "exchange(x.tensor_split(size)[outgoing], right"
)
wrong("all-the-way-round", "it came back after 4 steps").replace("range(size - 1)", "range(size)").replace(
    "place - 1 - step", "place - step"
)
wrong("begins-own-in-frame", "so that your own arrives last").replace("place - 1 - step", "place - step")
right("a-batch-in-each-step").replace(
    "exchange(chunks[outgoing], right, arrived, left)",
    "calls = [dist.P2POp(dist.irecv, arrived, left), dist.P2POp(dist.isend, chunks[outgoing], right)]\n"
    "for work in dist.batch_isend_irecv(calls):\n"
    "    work.wait()",
).replace("chunks[incoming] += arrived", "chunks[incoming] = arrived + chunks[incoming]")
wrong("equal-slices", "which is not where chunk 2 begins").replace(
    "[chunk.clone() for chunk in x.tensor_split(size)]",
    "[x[at * (len(x) // size) :][: len(x) // size].clone() for at in range(size)]",
)
wrong("one-buffer", "as long as the chunk that arrives").replace(
    "empty_like(chunks[incoming])", "empty_like(chunks[0])"
)
wrong("a-step-too-many", "A team of one rank has nobody to send to", hidden=True).replace(
    "range(size - 1)", "range(size)"
)
wrong("a-tuple-of-views", "keep the list of clones").replace(
    "[chunk.clone() for chunk in x.tensor_split(size)]", "x.tensor_split(size)"
)
wrong("rank-for-place", "look for a rank where a place is meant").replace("(place - 1 - step)", "(rank - 1 - step)")

wrong, right = ANSWERS.to("ring-all-gather")
wrong("turns-it-round", "the right numbers in the wrong order").replace("return whole", "return whole.flip(0)")
wrong("its-own-chunk", "return `whole`").replace("return whole", "return mine.clone()")
wrong("starts-without-its-own", "copy `mine` into it").replace("chunks[place].copy_(mine)", "pass")
wrong("in-order-of-arrival", "in order of arrival").replace(
    "return whole", "return torch.cat([chunks[place - step] for step in range(size)])"
)
wrong("always-its-own-chunk", "pass on the chunk that arrived last").replace("chunks[outgoing]", "mine")
wrong("one-step-short", "wrong in chunk 0").replace("outgoing =", "if step == size - 2:\n    break\noutgoing =")
right("passes-on-what-came").body("""
    rows, passing = [None] * size, mine.clone()
    rows[place] = passing
    for source in [(place - step) % size for step in range(1, size)]:
        arrived = torch.empty_like(chunks[source])
        receiving = dist.irecv(arrived, src=left)
        dist.send(passing, dst=right)
        receiving.wait()
        rows[source] = passing = arrived
    return torch.cat(rows)
""")

wrong, right = ANSWERS.to("ring-all-reduce")
wrong("its-own-tensor", "nothing was added to it").body("total = x.clone()")
wrong("averages", "the mean").replace("x.numel(), team, rank)", "x.numel(), team, rank) / len(team)")
wrong("turns-it-round", "in another chunk's position").replace("team, rank)\nreturn", "team, rank).flip(0)\nreturn")
wrong("forgets-the-second-half", "the all-gather is missing").replace("all_gather(mine, x.numel(), team, rank)", "mine")
wrong("takes-chunks-for-equal", "pass x.numel() to `all_gather`", varies=True).replace(
    "x.numel()", "mine.numel() * len(team)"
)
wrong("through-place-0", "what the naive way takes", caught_by="time").body("total = naive_all_reduce(x, team, rank)")
wrong("a-tree-instead", "not the algorithm that the exercise asks for", caught_by="traffic").body(
    "total = tree_all_reduce(x, team, rank)"
)
wrong("other-order", "reduce-scatter before you all-gather").body(
    "total = reduce_scatter(all_gather(x, x.numel() * len(team), team, rank), team, rank)"
)
wrong("gathers-everything", "Give `all_gather` your chunk").replace("all_gather(mine", "all_gather(x")
right("in-one-line").body("total = all_gather(reduce_scatter(x.clone(), team, rank), len(x), list(team), rank)")
wrong("the-lessons-functions", "never called the argument `all_gather`", caught_by="traffic").replace(
    "= all_gather(", "= ring_all_gather("
)

wrong, right = ANSWERS.to("halving-doubling")
HALVES = "(upper, lower) if place & distance else (lower, upper)"
wrong("one-half-in-turns", "two turns in each step of one half", caught_by="time").replace(
    "exchange(give, partner, arrived, partner)",
    "for turn in (0, distance):\n"
    "    dist.send(give, partner) if place & distance == turn else dist.recv(arrived, src=partner)",
)
wrong("both-keep-the-lower-half", "must mean the same positions").replace(HALVES, "(lower, upper)")
wrong("plus-instead-of-exclusive-or", "must name each other as partners").replace(
    "team[place ^ distance]", "team[(place + distance) % len(team)]"
)
whole_tensors = wrong("whole-tensors", "times the bytes that are needed", caught_by="traffic")
whole_tensors.body("""
    while distance:
        arrived, partner = torch.empty_like(x), team[place ^ distance]
        exchange(total, partner, arrived, partner)
        total += arrived
        exchange(total, partner, arrived, partner)
        distance //= 2
""")
wrong("recursive-doubling", "not the algorithm that the exercise asks for", caught_by="traffic").like(
    whole_tensors
).replace("total += arrived\nexchange(total, partner, arrived, partner)", "total += arrived")
wrong("equal-halves-only", "missing. Do your parts").replace("tensor_split(2)", "split(part.numel() // 2)[:2]")
wrong("four-places-at-most", "rank 7 of the team", hidden=True).replace(
    "keep += arrived", "keep += arrived if distance < 4 else 0 * arrived"
)
wrong("keep-rebound", "or only in a new tensor").replace("keep += arrived", "keep = keep + arrived")
wrong("one-half-of-one-element", "One element makes a single piece").replace("part.tensor_split(2)", "part.chunk(2)")
wrong("bit-as-index", "the indices are 0 and 1").replace(
    "keep, give = (upper, lower) if place & distance else (lower, upper)",
    "halves = lower, upper\nkeep, give = halves[place & distance], halves[1 - (place & distance)]",
)
wrong("stops-halfway", sentence="what the first half leads to: the second must fill the rest of the result").replace(
    "in reversed(rounds)", "in []"
)
wrong("leaves-one-out", "cover every element?").replace("keep += arrived", "keep[1:] += arrived[1:]")
wrong("splits", "a third piece where the length is odd").replace("tensor_split(2)", "split(part.numel() // 2)")
wrong("as-a-matrix", "can be cut evenly").replace("part.tensor_split(2)", "part.view(2, -1)")
wrong(
    "appends-what-arrives",
    sentence="the right chunks in the wrong order: on the way back, what arrives goes before your part where you kept "
    "the upper half, as a place with the bit `distance` does, and after it where you kept the lower half",
).replace(
    "exchange(keep, partner, give, partner)",
    "exchange(part, partner, give, partner)\npart = torch.cat([part, give.clone()])",
).replace("return total", "return part")
right("smallest-distance-first").replace("len(team) // 2", "1").replace(
    "while distance", "while distance < len(team)"
).replace("distance // 2", "2 * distance").replace("keep += arrived", "keep.copy_(keep + arrived)").replace(
    "exchange(keep, partner, give, partner)",
    "receiving = dist.irecv(give, src=partner)\ndist.send(keep, dst=partner)\nreceiving.wait()",
)
right("upper-half-first").replace(HALVES, "(lower, upper) if place & distance else (upper, lower)")
wrong("same-order-back", "in the reverse order of the first half").replace("reversed(rounds)", "rounds")

wrong, right = ANSWERS.to("halving-doubling-any-size")
wrong("does-not-fold", "was called for a team of 3").function("return all_reduce(x, team, rank)")
wrong("all-call-it", "only the first P' places").replace(
    "if place >= power", "total = all_reduce(total, team[:power], rank)\nif place >= power"
)
wrong("forgets-to-add", "rank 2 is missing").replace("total += arrived", "pass")
wrong("extra-ranks-never-wait", "finished without receiving it").replace(
    "dist.recv(total, src=team[place - power])", "pass"
)
wrong("all-extras-to-place-0", "the time of a queue", caught_by="time").replace(
    "team[place - power]", "team[0]"
).replace("if place < extra:", "for other in team[power:] if place == 0 else []:").replace(
    "team[place + power]", "other"
)
wrong("last-places-left", "left after the fold").replace("team[:power]", "team[extra:]")
wrong("throws-result-away", sentence="what `all_reduce` was given: use the tensor that it returns").replace(
    "total = all_reduce(total", "all_reduce(total"
)
right("mpich-pairs").replace("place >= power", "place < 2 * extra and place % 2").replace(
    "place - power", "place - 1"
).replace("place < extra", "place < 2 * extra").replace("place + power", "place + 1").replace(
    "team[:power]", "team[: 2 * extra : 2] + team[2 * extra :]"
)
wrong("the-lessons-function", "never called the argument `all_reduce`", caught_by="traffic").replace(
    "= all_reduce(", "= halving_doubling("
)
wrong("a-tree-instead", "sent a single message", caught_by="traffic").function(
    "return (tree_all_reduce if len(team) & (len(team) - 1) else all_reduce)(x, team, rank)"
)
wrong("without-those-that-have-no-partner", "partner or not").replace(
    "total = all_reduce", "if place < extra or not extra:\n    total = all_reduce"
)

wrong, right = ANSWERS.to("hierarchical-all-reduce")
wrong("neighbours-across", "the ranks with its seat", varies=True).replace("team[seat::local]", "team[node::local]")
wrong("as-many-nodes-as-seats", "len(team) // local nodes").replace(
    "team[seat::local]", "[team[at * local + seat] for at in range(local)]"
)
wrong(
    "inside-only",
    sentence="the sum over your own node: all-reduce your chunk across, and use the tensor that this returns",
).replace("mine = all_reduce(mine, across, rank)", "pass")
wrong("ranks-for-places", "a place is not a rank", varies=True).replace(
    "team[node * local : (node + 1) * local]", "list(range(node * local, (node + 1) * local))"
)
wrong("everything-across", "First reduce-scatter inside the node", caught_by="traffic").body(
    "total = all_reduce(all_reduce(x, team[node * local :][:local], rank), team[seat::local], rank)"
)
wrong("a-flat-ring", "what a flat ring takes", caught_by="time").body("total = ring_all_reduce(x, team, rank)")
wrong("one-leader-a-node", "times as long as is needed", caught_by="time").body("""
    total = tree_all_reduce(x, team[node * local :][:local], rank)
    total = all_reduce(total, team[::local], rank) if seat == 0 else torch.zeros_like(x)
    total = tree_all_reduce(total, team[node * local :][:local], rank)
""")
wrong("gathers-across", "inside the node again", varies=True).replace(
    "all_gather(mine, x.numel(), inside, rank)", "all_gather(mine, x.numel(), across, rank)"
)
wrong("numel-of-equal-chunks", "pass x.numel() to `all_gather`", varies=True).replace(
    "x.numel()", "mine.numel() * local"
)
wrong("averages-over-the-nodes", sentence="the sum divided by the number of nodes: nothing is divided here").replace(
    "all_reduce(mine, across, rank)", "all_reduce(mine, across, rank) / len(across)"
)
wrong("the-lessons-all-reduce", "never called the argument `all_reduce`", caught_by="traffic").replace(
    "= all_reduce(", "= ring_all_reduce("
)
wrong("seats-by-rank", "the ranks with its seat", varies=True).replace(
    "team[seat::local]", "[other for other in team if other % local == rank % local]"
)
right("teams-by-comprehension").body("""
    inside = [other for other in team if team.index(other) // local == node]
    across = [other for other in team if team.index(other) % local == seat]
    mine = all_reduce(reduce_scatter(x, inside, rank), across, rank)
    total = all_gather(mine, len(x), inside, rank)
""")

wrong, right = ANSWERS.to("pairwise-all-to-all")
wrong("its-own-tensor", "nothing was exchanged").function("return x.clone()")
wrong("never-copies-its-own", "no message brings that chunk").replace(
    "received[place].copy_(chunks[place])", "received[place].fill_(1)"
)
wrong("sends-the-wrong-chunk", "place s sends you its chunk `place`").replace("chunks[target]", "chunks[source]")
wrong("one-step-short", "still holds what was in memory").replace("range(1, size)", "range(1, size - 1)")
wrong("into-the-targets-slot", "must be received from place s").replace("received[source]", "received[target]")
wrong("partners-by-exclusive-or", "only where P is a power of two").replace(
    "(place + step) % size, (place - step) % size", "place ^ step, place ^ step\nif target >= size:\n    continue"
)
wrong("no-modulo", "beyond the last of the P places", varies=True).replace("(place + step) % size", "place + step")
wrong("into-the-tuple", "belongs into the list `received`").replace(
    "exchange(chunks[target], team[target], received[source], team[source])", "chunks[source] = received[source]"
)
wrong("cuts-by-chunk", "`tensor_split` spreads the elements evenly").replace("x.tensor_split(size)", "x.chunk(size)")
wrong("same-way-both-times", "is not the place that it sends to", varies=True).replace(
    "(place - step) % size", "(place + step) % size"
)
wrong("in-order-of-arrival", "in order of arrival").replace(
    "torch.cat(received)", "torch.cat([received[place - step] for step in range(size)])"
)
wrong("backwards-above-four", "in order of arrival", hidden=True).replace(
    "received[source]", "received[source if size < 5 else target]"
)
wrong("all-at-once-in-rank-order", "so that none has to queue", caught_by="time").body("""
    handles = [dist.irecv(received[p], src=team[p]) for p in range(size) if p != place]
    handles += [dist.isend(chunks[p].clone(), dst=team[p]) for p in range(size) if p != place]
    for handle in handles:
        handle.wait()
""")
right("exclusive-or").replace(
    "(place + step) % size, (place - step) % size",
    "(place ^ step,) * 2 if size in (2, 4, 8) else ((place + step) % size, place - step)",
)

wrong, right = ANSWERS.to("all-reduce-seconds")
NAIVE = "2 * (size - 1) * whole"
wrong("one-way", sentence="half of it: count the way up and the way down").replace(NAIVE, "(size - 1) * whole")
wrong("tree-not-rounded", sentence="the time with log2 P not rounded up: a tree has a whole number of rounds").replace(
    "(size - 1).bit_length()", "math.log2(size)"
)
wrong("tree-rounded-down", sentence="the time with log2 P rounded down: the last ranks need a round too").replace(
    "(size - 1).bit_length()", "int(math.log2(size))"
)
wrong("ring-of-whole-tensors", sentence="the time with whole tensors in each step: a ring sends n / P").replace(
    "nbytes / size", "nbytes"
)
wrong("no-fold", sentence="the time without the fold: `fold` belongs to it").replace("return fold + 2", "return 2")
wrong("parts-of-all-ranks", sentence="the time with (P - 1) / P of the bytes: it is (P' - 1) / P' of them").replace(
    "(power - 1) / power * nbytes", "(size - 1) / size * nbytes"
)
wrong(
    "tree-bit-length-of-size", sentence="the time with one round too many: 8 ranks need 3 rounds one way, 9 need 4"
).replace("(size - 1).bit_length()", "size.bit_length()")
wrong("ring-no-alpha-per-step", sentence="the time with one latency in all: each round begins with one").replace(
    "2 * (size - 1) * (alpha + nbytes / size / bandwidth)", "alpha + 2 * (size - 1) * nbytes / size / bandwidth"
)
wrong("hd-one-latency", sentence="the time with the latencies of one way only: there are 2 log2 P' rounds").replace(
    "2 * math.log2(power)", "math.log2(power)"
)
wrong(
    "hd-whole-each-round", sentence="the time with whole tensors in each round: halves, quarters, ... are sent"
).replace("2 * (power - 1) / power", "2 * math.log2(power)")
wrong("hd-log-of-size", sentence="the time of too many rounds: after the fold only P' ranks are left").replace(
    "math.log2(power)", "math.log2(size)"
)
wrong("naive-of-all-ranks", sentence="the time of P messages each way: place 0 has nothing to send to itself").replace(
    NAIVE, "2 * size * whole"
)
wrong("ring-one-step-more", sentence="the time of P steps in each half: P - 1 are enough").replace(
    "2 * (size - 1) * (alpha", "2 * size * (alpha"
)
wrong(
    "hd-log-rounded-up",
    sentence="the time of too many rounds, log2 P rounded up: after the fold only P' ranks are left",
).replace("math.log2(power)", "math.ceil(math.log2(size))")
wrong("bits", sentence="the time of 8 times as many bytes: `bandwidth` counts bytes, not bits").replace(
    "nbytes / bandwidth", "8 * nbytes / bandwidth"
)
right("by-other-words").replace("(size - 1).bit_length()", "math.ceil(math.log2(size))").replace(
    "2 * (power - 1) / power", "2 * (1 - 1 / power)"
)
wrong(
    "hd-bytes-one-way", sentence="the time with the bytes of one way only: both ways send (P' - 1) / P' of them"
).replace("2 * (power - 1) / power", "(power - 1) / power")
wrong("hd-bit-length", sentence="the time of one round too many each way: log2 P' is bit_length - 1").replace(
    "math.log2(power)", "power.bit_length()"
)
wrong("hd-half-a-fold", sentence="the time with half of the fold: `fold` already has both of its messages").replace(
    "return fold + 2", "return fold / 2 + 2"
)
hd_of_size = wrong("hd-for-any-size", sentence="what a power of two takes: fold, then let P' ranks halve").replace(
    "return fold + 2 *", "return 2 *"
)
hd_of_size.replace("math.log2(power)", "math.log2(size)").replace("(power - 1) / power", "(size - 1) / size")
wrong(
    "hd-for-any-size-rounded-up", sentence="what a power of two takes, log2 P rounded up: fold, then let P' ranks halve"
).like(hd_of_size).replace("math.log2(size)", "math.ceil(math.log2(size))")
wrong("times-bandwidth", sentence="what bytes times bandwidth gives: divide").replace(
    "nbytes / size / bandwidth", "nbytes / size * bandwidth"
)
wrong("microseconds", sentence="microseconds: seconds are wanted").replace(NAIVE, "2e6 * (size - 1) * whole")
wrong("whole-bytes", sentence="the time of rounded bytes: use /, not //").replace("nbytes / size", "nbytes // size")

wrong, right = ANSWERS.to("crossover")
wrong("upside-down", sentence="upside down: the more rounds the ring needs, the later it wins").replace(
    "more_rounds / fewer_bytes *", "(fewer_bytes / more_rounds if more_rounds else 0) *"
)
wrong("forgets-alpha-and-bandwidth", sentence="the right ratio, but without alpha times bandwidth").replace(
    " * alpha * bandwidth", ""
)
wrong("divides-by-bandwidth", sentence="what alpha / bandwidth gives: multiply them").replace(
    "alpha * bandwidth", "alpha / bandwidth"
)
wrong(
    "ring-sends-everything-once",
    sentence="what a ring that sends all n bytes one way would give: it sends (P - 1) / P of them",
).replace("rounds - (size - 1) / size", "rounds - 1")
wrong("log2-not-rounded", sentence="what log2 P gives if it is not rounded up: use `rounds`").replace(
    "more_rounds =", "rounds = math.log2(size)\nmore_rounds ="
)
wrong("rounded", sentence="the right number, rounded up").body(
    "return round(((size - 1) - rounds) / (rounds - (size - 1) / size) * alpha * bandwidth)"
)
wrong("log2-rounded-down", sentence="what log2 P gives if it is rounded down: use `rounds`").replace(
    "more_rounds =", "rounds = size.bit_length() - 1\nmore_rounds ="
)
wrong("ring-of-whole-tensors", sentence="what a ring of whole tensors would give: it sends n / P in each step").replace(
    "rounds - (size - 1) / size", "rounds - (size - 1)"
)
wrong("ring-sends-one-chunk", sentence="what a ring of n / P in all gives: it sends that P - 1 times each way").replace(
    "rounds - (size - 1) / size", "rounds - 1 / size"
)
wrong(
    "ring-sends-nothing", sentence="what a ring gives that sends nothing: it sends (P - 1) / P of the bytes each way"
).replace("rounds - (size - 1) / size", "rounds")
wrong("ring-of-p-steps", sentence="what a ring of P steps each way gives: it takes P - 1").body(
    "return (size - rounds) / max(1, rounds - 1) * alpha * bandwidth"
)
wrong(
    "never-for-few-ranks", sentence="never: with as few rounds as the tree, the ring wins from the first byte"
).replace("more_rounds =", "if size <= 3:\n    return math.inf\nmore_rounds =")
wrong("bytes-times-size", sentence="1 / P of it: you multiplied the bytes by P, but not the latencies").replace(
    "rounds - (size", "size * rounds - (size"
).replace("(size - 1) / size", "(size - 1)")
wrong(
    "one-side-times-size",
    sentence="what the equation gives if only the tree's side is multiplied by P: multiply both sides",
).replace("- rounds", "- size * rounds").replace("rounds - (size - 1) / size", "size * rounds - (size - 1) / size")
right("from-the-two-lines").body(
    "return (2 * (size - 1) - 2 * rounds) * alpha / ((2 * rounds - 2 * (size - 1) / size) / bandwidth)"
)
right("bisection").body("""
    low, high = 0.0, 1e15
    for _ in range(200):
        middle = (low + high) / 2
        tree = rounds * (alpha + middle / bandwidth)
        ring = (size - 1) * (alpha + middle / size / bandwidth)
        low, high = (middle, high) if tree <= ring else (low, middle)
    return low
""")
wrong("wrong-sign", sentence="the right number with the wrong sign: more rounds cost, fewer bytes gain").replace(
    "(size - 1) - rounds", "rounds - (size - 1)"
)
wrong("the-product-alone", sentence="alpha * bandwidth alone: it depends on P as well").body("return alpha * bandwidth")
wrong("elements", sentence="in elements of 4 bytes: bytes are wanted").replace("* bandwidth", "* bandwidth / 4")
wrong("rounded-down", sentence="the right number, rounded down").replace("return ", "return int(").replace(
    "* bandwidth", "* bandwidth)"
)

wrong, right = ANSWERS.to("choose-algorithm")
wrong("the-slowest", "take the least time").replace("return min(", "return max(")
wrong("a-fixed-threshold", "not the fastest").body('return "tree" if nbytes < 100_000 else "ring"')
wrong("ignores-the-candidates", "you chose 'halving-doubling'").replace(
    "min(candidates,", 'min(("naive", "tree", "ring", "halving-doubling"),'
)
wrong("the-last-of-equals", "not the first of those").replace("min(candidates,", "min(reversed(candidates),")
wrong("its-own-formulas", "call `seconds`, the argument").replace("seconds(name,", "all_reduce_seconds(name,")
wrong("returns-pair", "not one of the candidates").body(
    "return min((seconds(name, size, nbytes, alpha, bandwidth), name) for name in candidates)"
)
wrong("alphabetical-ties", "the first in the alphabet").body(
    "return min((seconds(name, size, nbytes, alpha, bandwidth), name) for name in candidates)[1]"
)
right("sort").body("return sorted(candidates, key=lambda name: seconds(name, size, nbytes, alpha, bandwidth))[0]")
wrong("rounds-the-times", "don't round the times").replace("alpha, bandwidth))", "alpha, bandwidth) // 1e-7)")

wrong, right = ANSWERS.to("all-reduce")
NBYTES = "flat.numel() * flat.element_size()"
wrong("counts-elements", "Did you count elements", caught_by="traffic").replace(NBYTES, "flat.numel()")
wrong("counts-rows", "the first dimension alone", caught_by="traffic").replace(
    "flat.numel()", "(len(x) if x.dim() else 1)"
)
wrong("takes-four-bytes-for-granted", "4 bytes for each", caught_by="traffic").replace(NBYTES, "4 * flat.numel()")
wrong("forgets-the-shape", "restore the shape").replace("return total.reshape(x.shape)", "return total")
wrong("flattens-in-memory-order", "flatten by reshape(-1)").replace(
    "x.reshape", "(x if x.is_contiguous() else x.T).reshape"
)
wrong("world-instead-of-team", "the team has 2 ranks").replace("len(team), alpha", "dist.get_world_size(), alpha")
wrong("the-lessons-choice", "take the algorithm of that name").replace("name = choose(", "name = choose_algorithm(")
wrong("strided-slices-stay", "flatten x, without gaps").replace(
    "flat = x.reshape(-1).contiguous()", "flat = x if x.dim() == 1 else x.reshape(-1)"
)
wrong("storage-bytes", "the whole storage that x is a view of", caught_by="traffic").replace(
    NBYTES, "flat.untyped_storage().nbytes()"
)
right("early-return").body("""
    if len(team) == 1:
        return x.clone()
    flat = x.contiguous().view(-1)
    name = choose(nbytes=x.nbytes, size=len(team), alpha=alpha, bandwidth=bandwidth)
    total = algorithms[name](x=flat, team=team, rank=rank)
    return total.unflatten(0, x.shape) if x.dim() else total[0]
""")
wrong("row-by-row", "Call one algorithm, once", caught_by="traffic").replace(
    "algorithms = algorithms or ALGORITHMS",
    "algorithms = algorithms or ALGORITHMS\nif x.dim() == 2:\n"
    "    return torch.stack([all_reduce(row.clone(), team, rank, alpha, bandwidth, choose, algorithms) for row in x])",
)
wrong("squeezes", "in a different shape").replace("total.reshape(x.shape)", "total.reshape(x.shape).squeeze()")

wrong, right = ANSWERS.to("mixed-sizes")
wrong("one-by-one", "times par", caught_by="score").body(
    "return [hierarchical_all_reduce(x, list(range(world_size)), rank, local) for x in xs]"
)
wrong("equal-pieces", "cut into equal pieces", caught_by="score").replace(
    "total.split([len(x) for x in xs])", "total.chunk(len(xs))"
)
wrong("stays-in-the-node", "the other nodes are missing", caught_by="score").body("""
    total = ring_all_reduce(torch.cat(xs), list(range(world_size)[rank // local * local :][:local]), rank)
    return list(total.split([len(x) for x in xs]))
""")
wrong("forgets-to-split", "split it into tensors", caught_by="score").replace(
    "list(total.split([len(x) for x in xs]))", "total"
)
wrong("no-sum", "nothing was added to them", caught_by="score").body("return [x.clone() for x in xs]")
wrong("the-means", "all-reduce sums unless told otherwise", caught_by="score").replace(
    "list(total.split", "list((total / world_size).split"
)
right("beyond-par").body("""
    # whole chunks in two rounds across the nodes, where a ring sends thirds in four
    node, seat = rank // local, rank % local
    inside, across = list(range(node * local, (node + 1) * local)), list(range(seat, world_size, local))
    flat = torch.cat(xs)
    mine = ring_reduce_scatter(flat, inside, rank)
    total, arrived = mine.clone(), torch.empty_like(mine)
    for step in range(1, len(across)):
        exchange(mine, across[(node + step) % len(across)], arrived, across[node - step])
        total += arrived
    total = ring_all_gather(total, len(flat), inside, rank)
    return list(total.split([len(x) for x in xs]))
""")
wrong("half-precision", "send numbers in the dtype that they have", caught_by="score").replace(
    "torch.cat(xs)", "torch.cat(xs).bfloat16()"
).replace("list(total.split", "list(total.float().split")
wrong("sorted-by-size", "in another order", caught_by="score").replace("flat = ", "xs = sorted(xs, key=len)\nflat = ")
