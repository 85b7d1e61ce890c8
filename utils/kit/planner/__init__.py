"""The planner: which way to spread a model over GPUs is the best, does it fit, and why did the others lose?

    found = find_plans("llama-3-70b", 1024, "dgx-h100", batch=2048)
    print(found)                                     the best plans, their bytes and seconds, and why others lost
    found.best[0].plan, found.best[0].total          Plan and seconds per step
    print(found.explain("tp 4, pp 4, cp 2, chunks 5"))
    find_plans("path/to/config.json", 24, batch=480)     a model of your own, as transformers describes it

`plan` as a subcommand is the same for a terminal (command.py). The search itself is in kit/plans/search.py.
"""

from .models import find_model, model_from_config
from .planning import Planning, find_plans

__all__ = ["Planning", "find_model", "find_plans", "model_from_config"]
