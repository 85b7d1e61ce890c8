"""Answers to lesson 14, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("first-guess")
wrong("always-recomputes", "It comes last").replace('("none", "full")', '("full",)')
wrong("all-as-stages", "One stage has more to do").replace(
    "shapes = [(tp, 1) for tp in range(1, node + 1)]", "shapes = [(1, pp) for pp in range(model.layers, 0, -1)]"
)
wrong("over-the-node", "a node has 8 GPUs").replace(
    "node = cluster.size, cluster.gpus_per_node", "node = cluster.size, 16"
).replace("not problem_of(plan, model, batch, cluster)", "16 * model.parameters / tp / pp < cluster.gpu.memory")
wrong("two-bytes", "The 2 bytes of each weight would fit").replace(
    "not problem_of(plan, model, batch, cluster)", "2 * model.parameters / tp / pp < cluster.gpu.memory"
)
wrong("idle", "but there are 96 GPUs").replace(
    "dp = gpus // (tp * pp)", "dp = 2 ** int(math.log2(gpus // (tp * pp)))"
).replace("not problem_of(plan, model, batch, cluster)", "16 * model.parameters / tp / pp < cluster.gpu.memory")
wrong("state-alone", "Activations need room, too").replace(
    "not problem_of(plan, model, batch, cluster)",
    "model.heads % tp == 0 and model.parameters / tp / pp * (6 + 12 / dp) < cluster.gpu.memory",
)
wrong("recomputes-before-stages", "It comes last, after more pipeline stages").replace(
    'for recompute in ("none", "full"):\n    for tp, pp in shapes:',
    'for tp, pp in shapes:\n    for recompute in ("none", "full"):',
)
right("by-bytes").replace(
    "not problem_of(plan, model, batch, cluster)",
    "sum(bytes_of(plan, model, batch).values()) < cluster.gpu.memory and not problem_of(plan, model, batch, cluster)",
)

wrong, right = ANSWERS.to("all-plans")
wrong("the-kits", "so it can't be called here").body(
    """
    return list(plans(model, batch, cluster, 4, 4, ("none", "full")))
    """
)
wrong("powers-of-two", "has a size that is no power of two").replace(
    "found.append(plan)",
    "if all(n & (n - 1) == 0 for n in (tp, cp, pp, ep, chunks, micro)):\n    found.append(plan)",
)
wrong("any-chunks", "with chunks, pp must divide the microbatches").replace(
    "if chunks == 1 or (pp > 1 and plan.microbatches(batch) % pp == 0):", "if chunks == 1 or pp > 1:"
)
wrong("chunks-without-pipeline", "chunks need a pipeline").replace(
    "(pp > 1 and plan.microbatches(batch) % pp == 0)", "plan.microbatches(batch) % pp == 0"
)
wrong("ep-takes-gpus", "ep takes no GPUs of its own").replace(
    "plan = Plan(gpus // ways,", "if gpus % (ways * ep):\n    continue\nplan = Plan(gpus // ways // ep,"
)
wrong("no-more-than-keys", "Keys can be repeated").replace(
    "if tp > cluster.gpus_per_node",
    "if tp > model.key_heads or tp > cluster.gpus_per_node",
)
wrong("even-layers", "stages with different numbers of layers").replace(
    "or gpus % ways:", "or gpus % ways or model.layers % pp:"
)
wrong("twice", "twice").replace("found.append(plan)", "found += [plan] if pp > 1 else [plan, plan]")
wrong("idle", "GPUs").replace("or gpus % ways:", "or gpus < ways:")
wrong("over-the-node", "a node has 8 GPUs").replace("tp > cluster.gpus_per_node or cp > 4", "cp > 4")
wrong("no-recomputing", "All that is missing recomputes").replace('("none", "full")', '("none",)')
wrong("micro-power-of-two", "has 3 sequences in a microbatch").replace("range(1, 5)", "(1, 2, 4)")
wrong("micro-1", "several sequences in a microbatch").replace("range(1, 5)", "[1]")
wrong("ep-within-dp", "an ep that doesn't divide dp").replace(
    "if chunks == 1 or", "if (gpus // ways) % ep:\n    continue\nif chunks == 1 or"
)
wrong("full-pipelines", "fewer microbatches than stages").replace(
    "if chunks == 1 or", "if plan.microbatches(batch) < pp:\n    continue\nif chunks == 1 or"
)
wrong("one-rank-for-experts", "several ranks for the experts").replace("divisors(max(1, model.experts))", "[1]")
right("filters-later").body("""
    for tp, cp, pp, dp in product(range(1, cluster.gpus_per_node + 1), range(1, 5), divisors(gpus), divisors(gpus)):
        if dp * tp * cp * pp == gpus:
            for micro, recompute, ep in product((1, 2, 3, 4), ("full", "none"), range(1, max(1, model.experts) + 1)):
                for chunks in range(1, math.ceil(model.layers / pp) + 1):
                    plan = Plan(dp=dp, tp=tp, cp=cp, pp=pp, micro=micro, recompute=recompute, ep=ep, chunks=chunks)
                    whole = math.ceil(model.layers / pp) % chunks == 0
                    if whole and (chunks == 1 or pp > 1 and not batch // dp // micro % pp):
                        found.append(plan)
""")

wrong, right = ANSWERS.to("plan-bytes")
wrong("the-kits", "so it can't be called here").body("return bytes_of(plan, model, batch, stage)")
wrong(
    "all-microbatches", sentence="what all microbatches take: at most pp - stage of them are begun and not finished"
).replace("min(count, behind + 1)", "count")
wrong(
    "mean-of-stages", sentence="the mean of all stages: the first keeps pp microbatches, the last one keeps one"
).replace("min(count, behind + 1)", "min(count, (plan.pp + 1) / 2)")
wrong(
    "all-as-the-first",
    sentence="what the first stage keeps: a later one has fewer microbatches under way",
).replace("min(count, behind + 1)", "min(count, plan.pp)")
wrong("more-than-there-are", sentence="pp - stage microbatches, but there are fewer").replace(
    "min(count, behind + 1)", "(behind + 1)"
)
wrong("chunks-for-nothing", sentence="what a stage keeps without chunks: with them it has begun more").replace(
    "if plan.chunks == 1:", "if True:"
)
wrong(
    "whole-stages", sentence="with each piece of work counted as a whole stage: it is one chunk of layers / chunks"
).replace("layers * pieces / plan.chunks", "layers * pieces")
wrong(
    "optimizer-whole", sentence="all of Adam's state: it is spread over the ranks that have the same parameter"
).replace("12 * dense / plan.replicas + 12 * of_experts / (plan.replicas / plan.ep)", "12 * (dense + of_experts)")
wrong("over-dp-only", sentence="spread over dp alone: ranks of cp have the same parameters, too").replace(
    "12 * dense / plan.replicas + 12 * of_experts / (plan.replicas / plan.ep)",
    "12 * dense / plan.dp + 12 * of_experts / (plan.dp / plan.ep)",
)
wrong(
    "experts-over-all",
    sentence="with the experts' state spread over all of dp x cp: 1 / ep of these ranks have the same expert",
).replace("/ (plan.replicas / plan.ep)", "/ plan.replicas")
wrong("no-logits", sentence="without the logits, which are larger than what a layer's backward needs").replace(
    "2 * entering + 6 * logits)", "2 * entering)"
)
wrong("logits-everywhere", sentence="with logits: only the last stage computes them").replace(
    "if stage == plan.pp - 1:", "if True:"
)
wrong("whole-logits", sentence="with the logits of the whole vocabulary: a tp rank has a part of them").replace(
    "model.vocabulary / plan.tp", "model.vocabulary"
)
wrong("logits-added", sentence="a sum: logits and a layer's backward don't exist at the same time").replace(
    "max(working, 2 * entering + 6 * logits)", "working + 2 * entering + 6 * logits"
)
wrong("keeps-all", sentence="all that a layer keeps: with recomputing only what enters it stays").replace(
    "entering if again else kept", "kept"
)
wrong("nothing-again", sentence="without the layer that is recomputed").replace(
    "besides + again * (kept - entering)", "besides"
)
wrong(
    "all-kept-again",
    sentence="with what enters the layer counted twice: it is kept already, only the rest is recomputed",
).replace("again * (kept - entering)", "again * kept")
wrong("16-bit-gradients", sentence="2 bytes per parameter: gradients are in 32 bits").replace(
    '"gradients": 4', '"gradients": 2'
)
wrong("divided-by-tp-again", sentence="divided by tp once more: `of_layer` says what this rank keeps").replace(
    "alive * (entering if again else kept)", "alive * (entering if again else kept) / plan.tp"
)
wrong("no-messages", sentence="without the two messages of a pipeline").replace("working += 2 * entering", "pass")
wrong(
    "one-message", sentence="with a single message of the pipeline: there are two, one that comes and one that goes"
).replace("working += 2 * entering", "working += entering")
wrong("besides-forgotten", sentence="the recomputed layer alone: its backward needs `besides` on top").replace(
    "besides + again * (kept - entering)", "kept - entering if again else besides"
)
wrong(
    "more-pieces-than-there-are",
    sentence="what more pieces of work would keep than there are: a stage has count x chunks in all",
).replace(
    "min(count * plan.chunks, 2 * behind + (plan.chunks - 1) * plan.pp + 1)",
    "2 * behind + (plan.chunks - 1) * plan.pp + 1",
)
wrong(
    "chunks-as-on-the-first", sentence="what the first stage keeps: a later one has begun fewer pieces of work"
).replace("2 * behind + (plan", "2 * (plan.pp - 1) + (plan")
right("one-formula").replace(
    "alive = layers * min(count, behind + 1)", "alive = sum(layers for _ in range(min(count, plan.pp - stage)))"
)

wrong, right = ANSWERS.to("measure-pieces")
wrong("every-plan", sentence="one for each plan: plans with the same key share a piece").replace(
    "if key not in pieces:", "if True:"
)
wrong("as-it-is", sentence="measured on all GPUs of the plan: dp, pp and chunks change nothing about a piece").replace(
    "measure(Plan(dp=dp, tp=plan.tp, cp=plan.cp, ep=plan.ep, micro=plan.micro))", "measure(plan)"
)
wrong("without-replicas", sentence="measured with dp 1: experts on ep ranks need ep ranks of dp x cp").replace(
    "dp=dp, tp", "dp=1, tp"
)
wrong(
    "dp-is-ep", sentence="measured with dp = ep: ranks of cp hold experts, too, so dp x cp is the least common multiple"
).replace("math.lcm(plan.cp, plan.ep) // plan.cp", "plan.ep")
wrong("experts-on-one-rank", sentence="measured with all experts on each rank: ep is a part of the key").replace(
    "ep=plan.ep, ", ""
).replace("dp = math.lcm(plan.cp, plan.ep) // plan.cp", "dp = 1")
wrong("one-sequence", sentence="measured with one sequence: micro is a part of the key", hidden=False).replace(
    ", micro=plan.micro))", "))"
)
wrong(
    "micro-not-in-the-key",
    sentence="of another microbatch size, with the same cuts: micro is a part of the key, so measure again",
).replace(
    "pieces[key] =",
    "same = [known for known in pieces if known[:3] == key[:3]]\npieces[key] = pieces[same[0]] if same else",
)
wrong("one-context", sentence="measured without cp, which is a part of the key").replace("cp=plan.cp, ep", "ep")
wrong("tp-alone", "the pieces").replace("key = plan.tp, plan.cp, plan.ep, plan.micro", "key = plan.tp")
wrong(
    "at-least-ep", sentence="measured with ep // cp replicas: if cp doesn't divide ep, that is too few", hidden=True
).replace("math.lcm(plan.cp, plan.ep) // plan.cp", "max(1, plan.ep // plan.cp)")
right("by-gcd").replace("math.lcm(plan.cp, plan.ep) // plan.cp", "plan.ep // math.gcd(plan.ep, plan.cp)")

wrong, right = ANSWERS.to("compose")
wrong("head-nowhere", sentence="without the output, which makes the last stage the slowest").replace(
    "stages[-1] += piece.output", "pass"
)
wrong("head-everywhere", sentence="with the output on every stage: only the last one has it").replace(
    "stages[-1] += piece.output", "stages = [each + piece.output for each in stages]"
)
wrong("all-stages", sentence="the sum over all stages: they work at the same time, so the busiest counts").replace(
    "count * max(stages)", "count * sum(stages)"
)
wrong("mean-stage", sentence="the mean of all stages: all wait for the busiest").replace(
    "count * max(stages)", "count * sum(stages) / plan.pp"
)
wrong(
    "all-layers",
    sentence="with layers / pp layers on each stage: a layer can't be cut",
).replace("plan.stage_layers(model, stage) * both", "model.layers / plan.pp * both")
wrong("four-thirds", sentence="4/3 of everything: recomputing adds the forward of layers alone").replace(
    "backward += forward", "forward, backward = forward * 4 / 3, backward * 4 / 3"
)
wrong("never-again", sentence="without recomputing").replace("backward += forward", "pass")
wrong(
    "bubble-per-microbatch", sentence="a bubble for each microbatch: the pipeline fills and empties once per step"
).replace("(plan.pp - 1) * layers / chunks * both", "count * (plan.pp - 1) * layers / chunks * both")
wrong("chunks-forgotten", sentence="the bubble without chunks: with them, a stage is filled by one chunk").replace(
    "(plan.pp - 1) * layers / chunks * both", "(plan.pp - 1) * layers * both"
)
wrong(
    "share-of-the-step",
    sentence="(pp - 1) / (m + pp - 1) of the work: that is the share of a step that has its bubble in it already",
).replace("(plan.pp - 1) * layers / chunks * both", "count * max(stages) * (plan.pp - 1) / (count + plan.pp - 1)")
wrong(
    "m-in-the-denominator",
    sentence="(pp - 1) / m of one microbatch's work: one chunk of one microbatch fills each stage, whatever m is",
).replace("(plan.pp - 1) * layers / chunks * both", "(plan.pp - 1) / count * layers * both")
wrong(
    "busiest-in-the-bubble", sentence="a bubble of the busiest stage, with embeddings or output: count layers only"
).replace("(plan.pp - 1) * layers / chunks * both", "(plan.pp - 1) * max(stages) / chunks")
wrong("pp-stages", sentence="filled pp times: the busiest stage waits for the other pp - 1").replace(
    "(plan.pp - 1) * layers / chunks * both", "plan.pp * layers / chunks * both"
)
wrong("always-waits", sentence="two messages for each microbatch: with chunks, these travel beside other work").replace(
    "(2 * count if chunks == 1 else 0)", "2 * count"
)
wrong(
    "never-waits",
    sentence="only the messages that fill and empty the pipeline: without chunks, each microbatch waits, too",
).replace(" + (2 * count if chunks == 1 else 0)", "")
wrong("one-way", sentence="messages in one direction: gradients go back").replace(
    "2 * (plan.pp * chunks - 1)", "(plan.pp * chunks - 1)"
)
wrong("all-exposed", sentence="all layers' gathers and scatters: all but the first hide behind computing").replace(
    '"exchange": seen',
    '"exchange": n * (gather + scatter)',
)
wrong(
    "nothing-exposed",
    sentence="nothing: the first layer's gather and the last one's scatter have nothing to hide behind",
).replace('"exchange": seen', '"exchange": 0.0')
wrong("one-each", sentence="one gather and one scatter: here they take longer than the computing beside them").replace(
    '"exchange": seen', '"exchange": gather + scatter'
)
wrong(
    "whole-stage-exchanged",
    sentence="an exchange of all the layers of a stage at once: they go chunk by chunk, so n is layers / chunks",
).replace("n = layers // chunks", "n = layers")
wrong(
    "one-end-each",
    sentence="without the output: a single stage has the embeddings and the output, too",
).replace("stages[-1] += piece.output", "stages[-1] += piece.output if plan.pp > 1 else 0")
wrong(
    "bubble-without-recomputing",
    sentence="a bubble without recomputing: while the pipeline empties, each backward begins with a forward, too",
).replace("layers / chunks * both", "layers / chunks * (piece.forward + piece.backward)")
right("fractions").replace("count * max(stages)", "max(count * each for each in stages)")

wrong, right = ANSWERS.to("search")
wrong("prices-all", sentence="Plans that don't fit were priced. Ask for bytes first.").replace(
    "guesses = {plan: guess(plan) for plan in fitting}", "guesses = {plan: guess(plan) for plan in plans}"
).replace("min(guesses.values(), default=0)", "min((guesses[plan] for plan in fitting), default=0)")
wrong("measures-all", sentence="with plans that the formula has ruled out: measure only what is left").replace(
    "left = [plan for plan in fitting if guesses[plan] <= most]", "left = fitting"
)
wrong("by-formula", sentence="in the formula's order: measured seconds decide").replace(
    "(measured(plan), need(plan))", "(guesses[plan], need(plan))"
)
wrong(
    "any-order",
    sentence="in the order of the list where plans are equally fast: the one that needs less memory comes first",
).replace("(measured(plan), need(plan))", "measured(plan)")
wrong("worst-first", sentence="in reverse order: the best come first").replace(
    "need(plan)))[:n]", "need(plan)), reverse=True)[:n]"
)
wrong("most-memory", sentence="with the one that needs most memory first, of equally fast ones").replace(
    "need(plan)))[:n]", "-need(plan)))[:n]"
)
wrong(
    "ties-by-formula",
    sentence="in the formula's order where plans are equally fast: the one that needs less memory comes first",
).replace("(measured(plan), need(plan))", "(measured(plan), guesses[plan])")
wrong("least-memory", sentence="in order of memory: that decides only between plans that are equally fast").replace(
    "(measured(plan), need(plan))", "(need(plan), measured(plan))"
)
wrong(
    "within-of-measured",
    sentence="what is within reach of the best measured plan: `within` is about guesses",
).body("""
    seconds = {plan: measured(plan) for plan in plans if need(plan) <= memory}
    most = (1 + within) * min(seconds.values(), default=0)
    return sorted((plan for plan in seconds if seconds[plan] <= most), key=lambda plan: (seconds[plan], need(plan)))[:n]
""")
wrong("measured-twice", "the number of plans measured again").replace(
    "left = [", "[measured(plan) for plan in fitting if guesses[plan] <= most]\nleft = ["
)
wrong("everything-left", sentence="all that are left: n of them are asked for").replace("[:n]", "")
wrong(
    "best-of-all",
    sentence="pruned against the best guess of all plans, and that one doesn't fit: compare among those that fit",
).replace("min(guesses.values(), default=0)", "min(map(guess, plans))")
wrong(
    "measures-n",
    sentence="chosen from the n best guesses alone: measure all that are within reach, then take n",
).replace("<= most]", "<= most]\nleft = sorted(left, key=guesses.get)[:n]")
wrong("must-fit-twice", sentence="plans that leave half of the memory free: all that fit count").replace(
    "<= memory", "<= memory / 2"
)
wrong(
    "one-axis-at-a-time", sentence="what a choice of one axis after the other leads to: axes depend on each other"
).body("""
    left = [plan for plan in plans if need(plan) <= memory]
    for axis in ("tp", "pp", "cp", "chunks", "micro"):
        if len({getattr(plan, axis) for plan in left}) > 1:
            best = min((plan for plan in left if plan.chunks == 1 or axis in ("chunks", "micro")), key=guess)
            left = [plan for plan in left if getattr(plan, axis) == getattr(best, axis)]
    return sorted(left, key=lambda plan: (guess(plan), need(plan)))[:n]
""")
right("in-steps").body("""
    priced = sorted((guess(plan), number) for number, plan in enumerate(plans) if need(plan) <= memory)
    most = priced[0][0] * (1 + within) if priced else 0
    found = [(measured(plans[number]), need(plans[number]), number) for price, number in priced if price <= most]
    return [plans[number] for *_, number in sorted(found)[:n]]
""")

wrong, right = ANSWERS.to("still-in-the-race")
SURELY = "surely = min(predicted.values()) * (1 + error)"
wrong("absolute", sentence="with the error in seconds: it is a part of each prediction, 0.1 is a tenth of it").replace(
    "* (1 + error)", "+ error"
).replace("s * (1 - error)", "s - error")
wrong(
    "fastest-is-exact",
    sentence="with the fastest prediction taken as exact: it may be off, too, and be slower than it looks",
).replace("* (1 + error)", "* 1")
wrong(
    "others-are-exact",
    sentence="with only the fastest one off: each of the others may be faster than it looks",
).replace("s * (1 - error)", "s")
wrong(
    "twice-the-error",
    sentence="within twice the error of the fastest: compare (1 - error) of one with (1 + error) of the other",
).replace("* (1 + error)", "* (1 + 2 * error)").replace("s * (1 - error)", "s")
wrong("the-mean", sentence="compared with the mean of the predictions: the fastest is the one to beat").replace(
    "min(predicted.values())", "statistics.mean(predicted.values())"
)
wrong("the-best-three", sentence="a fixed number of the best: how many are in the race depends on the error").body(
    "return sorted(predicted, key=predicted.get)[:3]"
)
wrong("fixed-ten-of-many", sentence="the ten best: how many are in the race depends on the error").body(
    "return sorted(predicted, key=predicted.get)[:10]"
)
wrong("any-order", sentence="the right plans, but not in order of their predictions, fastest first").replace(
    "return sorted((name for name, s in predicted.items() if s * (1 - error) <= surely), key=predicted.get)",
    "return [name for name, s in predicted.items() if s * (1 - error) <= surely]",
)
wrong("by-name", sentence="sorted by name: put the fastest prediction first").replace(", key=predicted.get)", ")")
wrong("slowest-first", sentence="in reverse order: put the fastest prediction first").replace(
    "key=predicted.get)", "key=predicted.get, reverse=True)"
)
wrong("without-the-winner", sentence="without the fastest one itself: it is in the race, too").replace(
    "<= surely)", "<= surely and s > min(predicted.values()))"
)
wrong(
    "pessimist",
    sentence="those that are sure to beat the fastest one's worst case: a plan is out only if even its best case loses",
).replace("s * (1 - error) <= surely", "s * (1 + error) <= surely")
wrong("against-the-slowest", sentence="compared with the slowest prediction: the fastest is the one to beat").replace(
    "min(predicted.values())", "max(predicted.values())"
)
right("by-interval").body("""
    worst_of_best = min(s + error * s for s in predicted.values())
    order = sorted(predicted, key=lambda name: predicted[name])
    return [name for name in order if not predicted[name] - error * predicted[name] > worst_of_best]
""")

wrong, right = ANSWERS.to("margin")
wrong(
    "upside-down",
    sentence="from predicted by measured: the factor goes on the prediction, so it is measured by predicted",
).replace("m / p for", "p / m for")
wrong("mean", sentence="the mean of the ratios, which covers about half of the runs").body(
    "return statistics.mean(m / p for p, m in zip(predicted, measured))"
)
wrong("largest", sentence="the largest ratio, which covers all of them: `coverage` asks for less").replace(
    "[math.ceil(coverage * len(ratios)) - 1]", "[-1]"
)
wrong("median", sentence="the median of the ratios: `coverage` of them must be covered").body(
    "return statistics.median(m / p for p, m in zip(predicted, measured))"
)
wrong("one-too-few", sentence="one run too few: round the number of runs to cover up, and count from 0").replace(
    "math.ceil(coverage * len(ratios)) - 1", "math.floor(coverage * len(ratios)) - 1"
)
wrong("one-too-many", sentence="one run too many: a smaller factor covers enough").replace(
    "[math.ceil(coverage * len(ratios)) - 1]", "[min(len(ratios) - 1, math.ceil(coverage * len(ratios)))]"
)
wrong(
    "between-two", sentence="a ratio between those of two runs: whatever covers the higher one has to be as high"
).body("""
    ratios = sorted(m / p for p, m in zip(predicted, measured))
    place = coverage * (len(ratios) - 1)
    low = int(place)
    return ratios[low] + (place - low) * (ratios[min(low + 1, len(ratios) - 1)] - ratios[low])
""")
wrong("by-size", sentence="the ratio of a run that is large enough in bytes: sort the ratios, not the runs").replace(
    "sorted(m / p for p, m in zip(predicted, measured))", "[m / p for p, m in sorted(zip(predicted, measured))]"
)
wrong("unsorted", sentence="the ratio of a run by its place in the list: sort the ratios first").replace(
    "sorted(m / p for p, m in zip(predicted, measured))", "[m / p for p, m in zip(predicted, measured)]"
)
wrong("excess", sentence="what is missing, as a part of the prediction: the factor is 1 more").replace(
    "sorted(m / p for", "sorted(m / p - 1 for"
)
wrong("part-of-memory", sentence="which part of a GPU may be planned for: the factor is 1 by that").replace(
    "return ratios[math.ceil(coverage * len(ratios)) - 1]", "return 1 / ratios[math.ceil(coverage * len(ratios)) - 1]"
)
wrong("in-bytes", sentence="a number of bytes: a factor is wanted, so divide").replace("m / p for", "m - p for")
wrong("separately", sentence="a quantile of all needs by one of all predictions: divide run by run").body("""
    last = math.ceil(coverage * len(measured)) - 1
    return sorted(measured)[last] / sorted(predicted)[last]
""")
wrong("from-below", sentence="counted from the largest ratio down: most runs would need more").replace(
    "sorted(m / p for p, m in zip(predicted, measured))",
    "sorted((m / p for p, m in zip(predicted, measured)), reverse=True)",
)
right("tries-each").body("""
    enough = coverage * len(measured)
    ratios = [m / p for p, m in zip(predicted, measured)]
    return min(f for f in ratios if sum(r <= f for r in ratios) >= enough)
""")

wrong, right = ANSWERS.to("tokens-per-tier")
wrong(
    "own-tokens-sent", sentence="with rows that a rank would send to itself: where a token is already, nothing is sent"
).replace("len(owners - doors)", "len(owners)")
wrong("sent-where-it-arrives", same_as="own-tokens-sent").replace("len(owners - doors)", "len(owners - {rank})")
wrong(
    "home-node-crossed", sentence="with a row to its own node among those between nodes: a token is there already"
).replace("len(reached - {rank // gpus_per_node})", "len(reached)")
wrong(
    "a-row-per-expert",
    sentence="a row for each expert: a rank or a node with several of a token's experts gets it once",
).body("""
    inside = between = 0
    for token in chosen:
        for owner in (expert // experts_per_rank for expert in token):
            door = owner // gpus_per_node * gpus_per_node + rank % gpus_per_node
            between += owner // gpus_per_node != rank // gpus_per_node
            inside += owner != door
    return 4 * inside * row_bytes, 4 * between * row_bytes
""")
wrong(
    "straight-to-each-rank",
    sentence="with a row across for each rank that has an expert: a token crosses once to each node",
).body("""
    inside = between = 0
    for token in chosen:
        for owner in {expert // experts_per_rank for expert in token} - {rank}:
            if owner // gpus_per_node == rank // gpus_per_node:
                inside += 1
            else:
                between += 1
    return 4 * inside * row_bytes, 4 * between * row_bytes
""")
wrong(
    "a-row-per-expert-inside",
    sentence="a row inside a node for each expert: a rank with several of a token's experts gets it once",
).replace("inside += len(owners - doors)", "inside += sum(e // experts_per_rank not in doors for e in token)")
wrong("no-passing-on", sentence="without what is passed on inside the other nodes").replace(
    "inside += len(owners - doors)",
    "inside += len({o for o in owners - doors if o // gpus_per_node == rank // gpus_per_node})",
)
wrong(
    "forward-only", sentence="half of it: dispatch and combine, in forward and in backward, are four times the rows"
).replace("4 * inside * row_bytes, 4 * between", "2 * inside * row_bytes, 2 * between")
wrong("dispatch-only", sentence="a quarter of it: results come back, and backward does both again").replace(
    "4 * inside * row_bytes, 4 * between", "inside * row_bytes, between"
)
wrong("rows", sentence="rows: bytes are wanted, so multiply by row_bytes").replace(
    "4 * inside * row_bytes, 4 * between * row_bytes", "4 * inside, 4 * between"
)
wrong("swapped", sentence="right, the wrong way round: inside nodes comes first").replace(
    "4 * inside * row_bytes, 4 * between * row_bytes", "4 * between * row_bytes, 4 * inside * row_bytes"
)
wrong("of-all-ranks", sentence="as much for 16 ranks: only this rank's own tokens count").replace(
    "4 * inside * row_bytes, 4 * between", "64 * inside * row_bytes, 64 * between"
)
wrong(
    "door-is-rank-0", sentence="through the first rank of a node: a token arrives at the rank with the same place"
).replace("+ rank % gpus_per_node for", "for")
wrong("experts-as-ranks", sentence="with experts taken for ranks: several experts are on one rank").replace(
    "expert // experts_per_rank", "expert"
)
wrong("last-token", sentence="of the last token: add them all up").replace("between += len", "between = len").replace(
    "inside += len", "inside = len"
)
right("by-pairs").body("""
    sent = set()
    for number, token in enumerate(chosen):
        for expert in token:
            owner = expert // experts_per_rank
            door = owner - owner % gpus_per_node + rank % gpus_per_node
            sent |= {(number, rank, door), (number, door, owner)}
    moves = [(a, b) for _, a, b in sent if a != b]
    crossing = sum(a // gpus_per_node != b // gpus_per_node for a, b in moves)
    return 4 * row_bytes * (len(moves) - crossing), 4 * row_bytes * crossing
""")

wrong, right = ANSWERS.to("checkpoint-every")
wrong("one-gpu", sentence="for a single GPU: a cluster fails as many times as often as it has GPUs").replace(
    "3600 * mtbf_hours / gpus", "3600 * mtbf_hours"
)
wrong("hours", "math range error").replace("3600 * mtbf_hours / gpus", "mtbf_hours / gpus")
wrong("minutes", sentence="with hours turned into minutes: everything else is in seconds").replace(
    "3600 * mtbf_hours", "60 * mtbf_hours"
)
young = wrong(
    "no-two",
    sentence="the square root of write x M, without the 2 of Young's rule: on average half of a segment is lost",
)
young.replace("return low, goodput(low)", "low = math.sqrt(write * between); return low, goodput(low)")
wrong(
    "young", sentence="Young's rule, which is good only if a write is much shorter than M: find the peak itself"
).replace("return low, goodput(low)", "low = math.sqrt(2 * write * between); return low, goodput(low)")
wrong("no-restart", sentence="as if a restart took no time").replace("math.exp(restart / between) * ", "")
wrong(
    "restart-per-segment",
    sentence="with a restart in each segment: it takes one only after a failure",
).replace(
    "math.exp(restart / between) * math.expm1((interval + write) / between)",
    "math.expm1((interval + write + restart) / between)",
)
wrong(
    "nothing-lost",
    sentence="without the work that a failure destroys",
).replace(
    "segment = between * math.exp(restart / between) * math.expm1((interval + write) / between)",
    "segment = interval + write + restart * (interval + write) / between",
)
wrong("write-is-free", "division by zero").replace("(interval + write) / between", "interval / between")
wrong("write-is-work", sentence="with writing counted as useful").replace(
    "return interval / segment", "return (interval + write) / segment"
)
wrong(
    "with-the-write", sentence="from one checkpoint's start to the next, its writing included: count the work"
).replace("return low, goodput(low)", "return low + write, goodput(low)")
wrong("m", sentence="M itself, the time between two failures: most segments would not get to their end").replace(
    "return low, goodput(low)", "return between, goodput(between)"
)
wrong("slowdown", sentence="how many seconds a second of work takes: goodput is 1 by that").replace(
    "return low, goodput(low)", "return low, 1 / goodput(low)"
)
wrong("times-gpus", sentence="as if more GPUs failed less often: divide by their number").replace(
    "3600 * mtbf_hours / gpus", "3600 * mtbf_hours * gpus"
)
wrong("swapped", sentence="right, the wrong way round: the interval comes first").replace(
    "return low, goodput(low)", "return goodput(low), low"
)
right("newton").body("""
    between = 3600 * mtbf_hours / gpus
    x = math.sqrt(2 * write / between)
    for _ in range(50):
        grows = math.exp(x + write / between)
        x -= (grows * (1 - x) - 1) / (-x * grows)
    interval = x * between
    return interval, interval / (between * math.exp(restart / between) * math.expm1((interval + write) / between))
""")
right("daly").body("""
    m = 3600 * mtbf_hours / gpus
    interval = math.sqrt(2 * write * m) * (1 + math.sqrt(write / m / 2) / 3 + write / m / 18) - write
    return interval, interval / (m * math.exp(restart / m) * math.expm1((interval + write) / m))
""")
right("grid").body("""
    m = 3600 * mtbf_hours / gpus
    def goodput(t):
        return t / (m * math.exp(restart / m) * (math.exp((t + write) / m) - 1))
    best = max((1.002**n for n in range(8000)), key=lambda t: goodput(t) if t < 50 * m else 0)
    return best, goodput(best)
""")

wrong, right = ANSWERS.to("newest-checkpoint")
wrong("newest-of-any", sentence="the newest step of any rank: all ranks must have finished theirs").replace(
    "if ranks >= set(range(world_size))", "if ranks"
)
wrong("parts-too", sentence="counted with files that end in .part: these aren't finished").replace(
    "re.fullmatch", "re.match"
)
wrong("rank-0-only", sentence="the newest step of rank 0 alone: all ranks must have finished theirs").replace(
    "if ranks >= set(range(world_size))", "if 0 in ranks"
)
wrong(
    "counts-files",
    sentence="a step with enough files: they must be those of ranks 0 to world_size - 1",
).replace("ranks >= set(range(world_size))", "len(ranks) >= world_size")
wrong("as-text", sentence="the last in alphabetical order: as text, 96 comes after 100. Compare numbers").replace(
    "default=0)", "default=0, key=str)"
)
wrong("oldest", sentence="the oldest checkpoint").replace("return max(", "return min(")
wrong(
    "same-ranks-only",
    sentence="without steps that more ranks have saved: those of the ranks there are now suffice",
    hidden=True,
).replace("ranks >= set", "ranks == set")
wrong("last-rank-only", sentence="the newest step of the last rank alone: all ranks must have finished theirs").replace(
    "if ranks >= set(range(world_size))", "if world_size - 1 in ranks"
)
wrong(
    "oldest-of-the-newest",
    sentence="the smallest of the ranks' newest steps: other ranks may have no file of that step",
).body("""
    newest = [0] * world_size
    for name in files:
        match = re.fullmatch(r"step-(\\d+)-rank-(\\d+)\\.pt", name)
        if match and int(match[2]) < world_size:
            newest[int(match[2])] = max(newest[int(match[2])], int(match[1]))
    return min(newest)
""")
wrong("one-digit", sentence="what follows if ranks of two digits are overlooked", hidden=True).replace(
    r"rank-(\d+)", r"rank-(\d)"
)
wrong("next-step", sentence="one step more than was saved: the number in the name counts steps that are done").replace(
    "return max((step for", "return max((step + 1 for"
)
wrong("first-file", sentence="the step of the first file in the list: the order means nothing").body(
    'return int(re.search(r"step-(\\d+)", files[0])[1])'
)
wrong("minus-one", sentence="-1 where there is no checkpoint: 0 steps are done then").replace("default=0", "default=-1")
wrong("raises", "empty").replace(", default=0)", ")")
right("by-rank").body("""
    have = [
        {int(name.split("-")[1]) for name in files if name.endswith(f"-rank-{rank}.pt")} for rank in range(world_size)
    ]
    return max(set.intersection(*have) | {0})
""")

wrong, right = ANSWERS.to("campaign")
wrong("multiplied-goodput", sentence="with goodput multiplied: a low goodput makes a run longer, so divide").replace(
    "step_seconds / goodput", "step_seconds * goodput"
)
wrong("no-goodput", sentence="as if nothing ever failed: divide by goodput").replace(
    "step_seconds / goodput", "step_seconds"
)
wrong("per-node", sentence="for nodes of 8 GPUs: price is for a GPU and hour").replace(
    '"dollars": gpus *', '"dollars": gpus / 8 *'
)
wrong(
    "chip-only", sentence="the energy of the chips alone: hosts, network and cooling make it `overhead` times as much"
).replace("watts * overhead", "watts")
wrong("overhead-added", sentence="overhead added in watts: it is a factor").replace(
    "watts * overhead", "(watts + overhead)"
)
wrong(
    "critical-twice",
    sentence="with the critical batch counted twice: more tokens already mean more steps",
).replace("hours = needed / batch", "hours = needed * (1 + batch / critical) / batch")
wrong(
    "no-critical", sentence="the tokens of a tiny batch: a batch of this size needs 1 + batch / critical times as many"
).replace("tokens * (1 + batch / critical)", "tokens")
wrong("critical-upside-down", sentence="1 + critical / batch times the tokens, which is the factor for steps").replace(
    "batch / critical)", "critical / batch)"
)
wrong("critical-for-time-only", sentence="of a tiny batch, although days are right: report what is needed").replace(
    '"tokens": needed', '"tokens": tokens'
)
wrong("gpu-days", sentence="days of a single GPU: all of them work at the same time").replace(
    "hours / 24", "gpus * hours / 24"
)
wrong("hours-as-days", sentence="hours: 24 of them are a day").replace("hours / 24", "hours")
wrong("one-gpu", sentence="of one GPU: multiply by their number").replace('"dollars": gpus * hours', '"dollars": hours')
wrong("kilowatt-hours", sentence="kilowatt-hours: a megawatt-hour has a thousand of them").replace("/ 1e6", "/ 1e3")
wrong("joules", sentence="megajoules: a watt for an hour is a watt-hour").replace(
    "watts * overhead / 1e6", "watts * overhead * 3600 / 1e6"
)
wrong("price-per-day", sentence="with price taken per day: it is for an hour").replace(
    "hours * price", "hours / 24 * price"
)
wrong("energy-of-work", sentence="with energy for useful hours alone: GPUs draw power while they wait, too").replace(
    "gpus * hours * watts", "gpus * hours * goodput * watts"
)
right("by-steps").body("""
    steps = tokens / batch + tokens / critical
    seconds = steps * step_seconds / goodput
    gpu_hours = seconds * gpus / 3600
    return {
        "tokens": steps * batch,
        "days": seconds / 86400,
        "dollars": gpu_hours * price,
        "megawatt_hours": gpu_hours * watts * overhead * 1e-6,
    }
""")

wrong, right = ANSWERS.to("held-out-error")
FITTED = 'factor = calibrate([row for row in rows if not is_held_out(row["workload"])])'
ALL_ROWS = "fitted on all rows: leave out those whose workload is held out, all rows of it"
wrong("fits-all", sentence=ALL_ROWS).replace(FITTED, "factor = calibrate(rows)")
wrong("fits-held-out", sentence="fitted on the rows that are held out: fit on the others, and judge these").replace(
    "if not is_held_out", "if is_held_out"
)
wrong("factor-per-row", sentence="a factor for each row: fit one, once, on the rows that aren't held out").replace(
    "errors = [factor * predict_row", "errors = [calibrate([row]) * predict_row"
)
wrong("to-the-prediction", sentence="relative to what was predicted: divide by measured seconds").replace(
    'factor * predict_row(row) / row["seconds"] - 1', '1 - row["seconds"] / (factor * predict_row(row))'
)
wrong("wrong-sign", sentence="with the signs turned round: a prediction that is too long counts as positive").replace(
    'factor * predict_row(row) / row["seconds"] - 1', '1 - factor * predict_row(row) / row["seconds"]'
)
wrong("signs-cancel", sentence="the median of errors with their signs: +9 % and -9 % are not 0").replace(
    "statistics.median(map(abs, errors))", "statistics.median(errors)"
)
wrong(
    "size-of-the-median",
    sentence="the size of the median: take each error's size first, then the median",
).replace("statistics.median(map(abs, errors))", "abs(statistics.median(errors))")
wrong("mean-for-median", sentence="the mean size: the median is wanted").replace(
    "statistics.median(map(abs, errors))", "statistics.mean(map(abs, errors))"
)
wrong(
    "worst-is-largest", sentence="the largest error with its sign: the one that is largest in size may be negative"
).replace("max(errors, key=abs)", "max(errors)")
wrong("worst-without-sign", sentence="without its sign: too short and too long are different").replace(
    "max(errors, key=abs)", "max(map(abs, errors))"
)
wrong("bias-without-sign", sentence="the mean size of the errors: a bias is their mean with the signs").replace(
    "statistics.mean(errors)", "statistics.mean(map(abs, errors))"
)
wrong("no-factor", sentence="of predictions without the factor: it goes on all of them").replace(
    "factor * predict_row(row)", "predict_row(row)"
)
wrong("divides", sentence="of predictions divided by the factor: it is measured by predicted, so multiply").replace(
    "factor * predict_row(row)", "predict_row(row) / factor"
)
wrong(
    "judges-all", sentence="of all rows, those that the factor was fitted to included: only those held out count"
).replace('judged = [row for row in rows if is_held_out(row["workload"])]', "judged = rows")
wrong("judges-fitted", sentence="of the rows that the factor was fitted to: those held out count").replace(
    "for row in rows if is_held_out", "for row in rows if not is_held_out"
)
wrong("by-row", same_as="fits-all").replace('is_held_out(row["workload"])])', 'is_held_out(row["name"])])')
wrong(
    "looks-first",
    sentence="read too early, although the errors are right: until the factor is fixed, ask a held-out row for its "
    "workload alone",
).replace(FITTED, f'measured = [row["seconds"] for row in rows]\n{FITTED}')
wrong("better-half", sentence="chosen from two factors, after a look at the rows that judge it: fit one, once").replace(
    FITTED,
    f"""{FITTED}
other = calibrate([row for row in rows if is_held_out(row["workload"])])
if abs(other - 1) < abs(factor - 1):
    factor = other""",
)
wrong("percent", sentence="in per cent: parts of 1 are wanted").replace(
    'factor * predict_row(row) / row["seconds"] - 1', '100 * (factor * predict_row(row) / row["seconds"] - 1)'
)
right("in-loops").body("""
    fitting, judging = [], []
    for row in rows:
        (judging if is_held_out(row["workload"]) else fitting).append(row)
    k = calibrate(fitting)
    errors = []
    for row in judging:
        errors.append((k * predict_row(row) - row["seconds"]) / row["seconds"])
    sizes = sorted(abs(e) for e in errors)
    half = len(sizes) // 2
    median = sizes[half] if len(sizes) % 2 else (sizes[half - 1] + sizes[half]) / 2
    return median, sorted(errors, key=abs)[-1], sum(errors) / len(errors)
""")

wrong, right = ANSWERS.to("cheapest-campaign")
PUBLISHED = 'return {"plan": run.plan, "batch": run.batch, "interval": interval}'
wrong("every-four-hours", "times par", caught_by="score").replace('"interval": interval}', '"interval": 14_400}')
wrong("every-minute", "at most", caught_by="score").replace('"interval": interval}', '"interval": 30}')
wrong("does-not-fit", "would need", caught_by="score").replace(
    PUBLISHED, 'return {"plan": Plan(most_gpus), "batch": most_gpus, "interval": interval}'
)
wrong("too-few-gpus", "The deadline is part of the task", caught_by="score").replace(
    PUBLISHED, 'return {"plan": Plan(8, 4, 4, 2, chunks=5), "batch": run.batch, "interval": interval}'
)
wrong("too-many-gpus", "at most", caught_by="score").replace(
    PUBLISHED, 'return {"plan": Plan(64, 4, 4, 2, chunks=5), "batch": 2048, "interval": interval}'
)
wrong("a-tuple", 'a dict with "plan"', caught_by="score").replace(PUBLISHED, "return run.plan, run.batch, interval")
wrong("breaks-a-rule", "the plan doesn't work", caught_by="score").replace(
    PUBLISHED, 'return {"plan": replace(run.plan, chunks=3), "batch": run.batch, "interval": interval}'
)
wrong("half-a-sequence", "a whole number", caught_by="score").replace('"batch": run.batch', '"batch": run.batch / 2')
right("smaller-batch").replace('"batch": run.batch', '"batch": run.batch // 2')
right("searches").body("""
    model, gpus, found = MODELS[name], most_gpus // 2, []
    between, write = 3600 * failures["mtbf_hours"] / gpus, failures["write"]
    interval = math.sqrt(2 * write * between) - write
    lost = math.exp(failures["restart"] / between) * math.expm1((interval + write) / between) * between / interval
    cluster = find_cluster("dgx-h100", gpus, rates="achieved")
    for batch in (128, 256):
        for plan in plans(model, batch, cluster, 1, 4, ("none",)):
            if not problem_of(plan, model, batch, cluster):
                steps = tokens * (1 / (batch * model.length) + 1 / critical)
                days = steps * sum(seconds_of(plan, model, batch, cluster).values()) * lost / 86_400
                if days <= most_days:
                    found.append((days, str(plan), plan, batch))
    _, _, plan, batch = min(found)
    return {"plan": plan, "batch": batch, "interval": interval}
""")
