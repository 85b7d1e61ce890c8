"""FSDP2: a transformer initialised on the meta device, sharded, materialised; mixed precision, clipping, a sharded
checkpoint that a second model loads.

The kind of pytorch/examples, distributed/FSDP2/train.py.
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WORLD_SIZE = 2
WIDTH, WORDS = 16, 13


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def sharded_model():
    with torch.device("meta"):
        model = torch.nn.Sequential(
            torch.nn.Embedding(WORDS, WIDTH), Layer(), Layer(), Layer(), torch.nn.Linear(WIDTH, WORDS)
        )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    for this, following in zip(model, model[1:], strict=False):
        this.set_modules_to_forward_prefetch([following])
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


def loss_of(model, x):
    return torch.nn.functional.cross_entropy(model(x).float().flatten(0, 1), x.roll(1, 1).flatten())


def main(rank, world_size, folder):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = sharded_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    x = torch.randint(0, WORDS, (4, 10))
    losses, norms = [], []
    for _ in range(4):
        loss = loss_of(model, x)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    other = sharded_model()
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state["model"])
    assert loss_of(other, x).item() == loss_of(model, x).item()
    return losses, norms
