"""grid_transformer.py on pipelined.py: the language model on a grid, against the same model in one process."""

import torch
import torch.distributed as dist

from utils import spawn
from utils.kit import grid_transformer, transformer
from utils.kit.pipelined import pipelined

SIZES = {"dp": 1, "pp": 2, "tp": 2}
HEADS = 4


def model() -> dict[str, torch.Tensor]:
    return transformer.make_language_model(8, 4, 8, 16, 2, dtype=torch.float64)


def tokens() -> torch.Tensor:
    return torch.randint(8, (4, 5), generator=torch.Generator().manual_seed(0))


def loss_and_gradients(rank, world_size):
    made = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    place = {"dp": 0, "pp": rank // 2, "tp": rank % 2}
    mine = {n: w.requires_grad_() for n, w in grid_transformer.cut_model(model(), place, SIZES).items()}
    parts = tokens().chunk(2)
    stage = grid_transformer.make_stage(mine, parts, place, SIZES, HEADS, made[place["pp"]])
    like = grid_transformer.between_stages(mine, parts[0], SIZES, 8)
    loss = pipelined(stage, 2, like, made[2 + place["tp"]])
    return loss, {name: weight.grad for name, weight in mine.items()}


def test_loss_and_gradients_are_those_of_one_process():
    weights = {name: weight.requires_grad_() for name, weight in model().items()}
    loss = transformer.language_model_loss(weights, tokens(), HEADS)
    loss.backward()
    results = spawn(loss_and_gradients, 4, backend="gloo").results
    assert results[0][0] is None
    assert torch.allclose(results[2][0] + results[3][0], loss.detach(), rtol=1e-9)
    for name, weight in weights.items():
        having = [(rank, found[name]) for rank, (_, found) in enumerate(results) if name in found]
        if grid_transformer.needs_tp_sum(name):
            assert torch.allclose(sum(grad for _, grad in having), weight.grad, rtol=1e-9), name
        else:
            for rank, grad in having:
                wanted = grid_transformer.cut(name, weight.grad, rank % 2, 2)
                assert torch.allclose(grad, wanted, rtol=1e-9), name
