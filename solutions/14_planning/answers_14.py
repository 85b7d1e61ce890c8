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
wrong("two-bytes", "With the 2 bytes of each weight alone it would fit").replace(
    "not problem_of(plan, model, batch, cluster)", "2 * model.parameters / tp / pp < cluster.gpu.memory"
)
wrong("idle", "but there are 240 GPUs").replace(
    "dp = gpus // (tp * pp)", "dp = 2 ** int(math.log2(gpus // (tp * pp)))"
).replace("not problem_of(plan, model, batch, cluster)", "16 * model.parameters / tp / pp < cluster.gpu.memory")
right("by-bytes").replace(
    "not problem_of(plan, model, batch, cluster)",
    "sum(bytes_of(plan, model, batch).values()) < cluster.gpu.memory and not problem_of(plan, model, batch, cluster)",
)

wrong, right = ANSWERS.to("all-plans")
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
wrong("micro-1", "several sequences in a microbatch").replace("range(1, 5)", "[1]")
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
wrong("16-bit-gradients", sentence="2 bytes per parameter: gradients are in 32 bits").replace(
    '"gradients": 4', '"gradients": 2'
)
wrong("divided-by-tp-again", sentence="divided by tp once more: `of_layer` says what this rank keeps").replace(
    "alive * (entering if again else kept)", "alive * (entering if again else kept) / plan.tp"
)
wrong("no-messages", sentence="without the two messages of a pipeline").replace("working += 2 * entering", "pass")
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
wrong("measured-twice", "the number of plans measured again").replace(
    "left = [", "[measured(plan) for plan in fitting if guesses[plan] <= most]\nleft = ["
)
wrong("everything-left", sentence="all that are left: n of them are asked for").replace("[:n]", "")
wrong("best-of-all", "the best plans").replace("min(guesses.values(), default=0)", "min(map(guess, plans))")
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
