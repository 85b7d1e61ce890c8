"""Answers to lesson 14, wrong and right. `grader/authoring/variants.py` says how to write them."""

from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("first-guess")
wrong("always-recomputes", "It comes last").replace('("none", "full")', '("full",)')
wrong("all-as-stages", "One stage has more to do").replace(
    "shapes = [(tp, 1) for tp in range(1, node + 1)] + [(node, pp) for pp in range(2, model.layers + 1)]",
    "shapes = [(1, pp) for pp in range(model.layers, 0, -1)]",
)
wrong("over-the-node", "a node has 8 GPUs").replace("node = cluster.size, cluster.gpus_per_node", "node = cluster.size, 16").replace(
    "not problem_of(plan, model, batch, cluster)", "16 * model.parameters / tp / pp < cluster.gpu.memory"
)
