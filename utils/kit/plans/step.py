"""A plan's training step as one program: all its parallelism carried out, nothing derived.

    simulate(step, plan.gpus, model, plan, batch, cluster="dgx-h100", alike=alike(plan))

Interleaved 1F1B if the plan has chunks, else 1F1B. Activations are passed on, parameters gathered and gradients
scattered beside computing, layer by layer. What each piece computes is in layers.py. With `alike`, one rank runs for
each stage and each place on the ring of cp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...recording.regions import region
from .attention import Place
from .layers import Embeddings, Layer, Output, Piece
from .model import Model
from .plan import Plan, bad_stages, indivisible
from .products import DTYPE
from .schedule import Task, schedule
from .weights import update

Kept = tuple[Tensor | None, GradientEdge | None]  # a piece's input, and where its backward begins


def alike(plan: Plan) -> Callable[[int], tuple[int, int]]:
    """What ranks differ by: stage, and place among neighbours that don't do the same."""
    stage, places = plan.tp * plan.replicas, plan.cp if plan.ep % plan.cp == 0 else math.lcm(plan.cp, plan.ep)
    return lambda rank: (rank // stage, rank // plan.tp % places)


def step(rank: int, world_size: int, model: Model, plan: Plan, batch: int) -> None:
    """One step: forward and backward of all microbatches, then the optimizer. batch: sequences.

    Raises ValueError for a plan that breaks a rule.
    """
    broken = "" if plan.gpus == world_size else f"dp x tp x pp x cp is {plan.gpus}, but there are {world_size} ranks"
    if broken := broken or indivisible(plan, model, batch) or bad_stages(plan, model, batch):
        raise ValueError(broken)
    mine = Stage(rank, model, plan, batch)
    with region("step"):
        mine.gather_parameters()
        mine.run(schedule(mine.stage, plan.pp, plan.microbatches(batch), plan.chunks))
        mine.finish_gradients()
        update([weights for chunk in mine.chunks for piece in chunk for weights in piece.weights])


def group_of(ranks: range) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(list(ranks), use_local_synchronization=True)
    return group


class Stage:
    """What one rank has and does.

    chunks   the pieces of each
    kept     {(chunk, microbatch): what each piece's backward needs}
    """

    def __init__(self, rank: int, model: Model, plan: Plan, batch: int):
        self.rank, self.plan = rank, plan
        self.ranks = plan.tp * plan.replicas  # ranks per stage
        self.stage, within = divmod(rank, self.ranks)
        self.count, self.shape = plan.microbatches(batch), (plan.tokens(model) // plan.tp, model.width)
        self.chunks, self.tables = self.pieces(model, within), model.vocabulary > 0
        self.tied = self.group_of_tied(model)
        self.kept: dict[tuple[int, int], list[Kept]] = {}
        self.gathering: dict[Piece, list[dist.Work | None]] = {}
        self.scattering: list[dist.Work | None] = []
        self.sending: dist.Work | None = None
        self.here: dict[tuple[bool, int, int], Tensor] = {}  # passed on from one chunk of this rank to another

    def pieces(self, model: Model, within: int) -> list[list[Piece]]:
        plan = self.plan
        first, row, (place, column) = self.stage * self.ranks, self.rank - self.rank % plan.tp, divmod(within, plan.tp)
        context = place - place % plan.cp
        neighbours = [context + (place + way) % plan.cp for way in (-1, 1)] if plan.cp > 1 else [place, place]
        before, after = (first + neighbour * plan.tp + column for neighbour in neighbours)
        every = range(first + column, first + self.ranks, plan.tp)  # the same dense weights
        start = place - place % plan.ep
        talk = Place(group_of(range(row, row + plan.tp)), group_of(every[start : start + plan.ep]), before, after)
        data, same_experts = group_of(every), group_of(every[place % plan.ep :: plan.ep])
        chunks: list[list[Piece]] = [
            [Layer(model, plan, talk, data, same_experts) for _ in range(number)]
            for number in plan.chunk_layers(model, self.stage)
        ]
        table = Embeddings(model, plan, talk, data) if model.vocabulary and self.stage == 0 else None
        if table is not None:
            chunks[0].insert(0, table)
        if model.vocabulary and self.stage == plan.pp - 1:
            chunks[-1].append(Output(model, plan, talk, data, table if model.tied else None))
        return chunks

    def group_of_tied(self, model: Model) -> dist.ProcessGroup | None:
        """The first and the last stage, if they have the same table."""
        last = self.plan.pp - 1
        if not model.tied or not model.vocabulary or not last or self.stage not in (0, last):
            return None
        first = self.rank % self.ranks
        return group_of(range(first, first + last * self.ranks + 1, last * self.ranks))

    # ---- what dp exchanges

    def gather_parameters(self) -> None:
        for piece in (piece for chunk in self.chunks for piece in chunk):
            self.gathering[piece] = [weights.gather() for weights in piece.weights]

    def scatter_gradients(self, piece: Piece) -> None:
        if self.tied is None or "table" not in piece.grads:
            self.scattering += [weights.scatter() for weights in piece.weights]

    def finish_gradients(self) -> None:
        """Wait for them; first add up those of a table that two stages have."""
        for piece in (piece for chunk in self.chunks for piece in chunk):
            if self.tied is not None and "table" in piece.grads:
                dist.all_reduce(piece.grads["table"], group=self.tied)
                self.scattering += [weights.scatter() for weights in piece.weights]
        for handle in filter(None, self.scattering):
            handle.wait()

    # ---- the schedule

    def run(self, tasks: list[Task]) -> None:
        """Each message is asked for before the task that comes before its own: it travels beside that one."""
        coming = self.ask_for(tasks[0])
        for task, following in pairwise([*tasks, None]):
            assert task is not None
            x, handle = coming
            coming = self.ask_for(following) if following is not None else (None, None)
            if handle is not None:
                handle.wait()
            self.carry_out(task, x)
            del x

    def carry_out(self, task: Task, x: Tensor | None) -> None:
        back, chunk, microbatch = task
        if x is None:
            x = self.here.pop((back, self.depth(chunk), microbatch), None)
        y = (self.backward if back else self.forward)(chunk, microbatch, x)
        if y is not None:
            self.send(back, chunk, microbatch, y)

    def depth(self, chunk: int) -> int:
        """The chunk's place in the whole model."""
        return chunk * self.plan.pp + self.stage

    def neighbour(self, chunk: int, way: int) -> int | None:
        """The rank with the chunk before this one (-1) or behind it (1); None at the ends."""
        there = self.depth(chunk) + way
        if not 0 <= there < self.plan.pp * self.plan.chunks:
            return None
        return self.rank + (there % self.plan.pp - self.stage) * self.ranks

    def tag(self, back: bool, depth: int, microbatch: int) -> int:
        """Of the message that is for the chunk at this depth."""
        return (depth * self.count + microbatch) * 2 + back

    def ask_for(self, task: Task) -> tuple[Tensor | None, dist.Work | None]:
        """(where the message for this task arrives, its handle), if it needs one."""
        back, chunk, microbatch = task
        source = self.neighbour(chunk, 1 if back else -1)
        if source is None or source == self.rank:
            return None, None
        x = torch.empty(self.shape, dtype=DTYPE)
        return x, dist.irecv(x, source, tag=self.tag(back, self.depth(chunk), microbatch))

    def send(self, back: bool, chunk: int, microbatch: int, x: Tensor) -> None:
        way = -1 if back else 1
        peer, there = self.neighbour(chunk, way), self.depth(chunk) + way
        if self.sending is not None:
            self.sending.wait()
        if peer == self.rank:
            self.here[back, there, microbatch] = x
        elif peer is not None:
            self.sending = dist.isend(x, peer, tag=self.tag(back, there, microbatch))

    def forward(self, chunk: int, microbatch: int, x: Tensor | None) -> Tensor:
        kept: list[Kept] = []
        self.kept[chunk, microbatch] = kept
        if x is None and self.depth(chunk) == 0 and not self.tables:
            x = torch.empty(self.shape, dtype=DTYPE)
        for piece in self.chunks[chunk]:
            for handle in filter(None, self.gathering.pop(piece, [])):
                handle.wait()
            x = None if x is None else x.requires_grad_()
            again = self.plan.recompute == "full" and isinstance(piece, Layer)
            with torch.set_grad_enabled(not again):
                y = piece(x)
            kept.append((x, None if again else get_gradient_edge(y)))
            x = y.detach()
            del y
        assert x is not None
        return x

    def backward(self, chunk: int, microbatch: int, grad: Tensor | None) -> Tensor | None:
        kept = self.kept.pop((chunk, microbatch))
        if grad is None:  # the loss's gradient, or the last layer's
            grad = torch.empty(()) if self.tables else torch.empty(self.shape, dtype=DTYPE)
        for piece in reversed(self.chunks[chunk]):
            x, edge = kept.pop()
            if edge is None:
                edge = get_gradient_edge(piece(x))
            torch.autograd.backward([edge], [grad])
            del edge
            grad, x = (None, None) if x is None else (x.grad, None)
            if microbatch == self.count - 1:
                self.scatter_gradients(piece)
        return grad
