"""Every picture of the course. A notebook shows what these functions return.

collective("broadcast", world_size=4, root=1)    before and after, ranks as columns
halves(world_size=4)                             all-reduce as reduce-scatter and all-gather
transpose(world_size=2, rows=2, columns=3)       the bands of a matrix and of its transpose
stages([before, after], ["before", "after"], "")  what collective and halves are made of
timeline(run)                                    who computed and who communicated when: a lane per rank
deadlock(run, error.waiting)                     the same until nobody could move: who waits for whom, at which line
traffic(run, "broadcast by hand")                who sent how many bytes to whom; heatmap: of a Traffic
breakdown(run.breakdown())                       where each rank's time went
live_bytes(run.memory())                         how many bytes each rank held over time
sweep(sizes, seconds, bandwidths, "all_reduce")  time and bandwidth over size, with a fitted line and limits
cluster(find_cluster("dgx-h100", 64))            a cluster's nodes, GPUs and links, with their speeds
rendezvous(world_size=4)                         ranks that know only a store, then each other
bandwidths(nbytes, seconds, levels)              how fast one core copies, from its caches to memory
roofline(peak, bandwidth, {"x + y": 1 / 6}, "")  attainable FLOP/s at each arithmetic intensity; several links: a dict
tiles(tiles_a_side=4, row=1, column=2, step=0)   what one step of a tiled matrix product needs
topology(matrix, "a machine", ring=[0, 2, 1])    how GPUs are wired
ring(size=4, step=0)                             one step; also tree, halving, folding, two_levels, pairwise
time_curves({"ring": [(1000, 2e-5)]}, "title")   time against size, and where the fastest changes
data_parallel_step([3, 3, 2])                    each rank's rows, weights and gradient, and the mean
buckets([[2], [1, 0]], [8, 8, 8])                which gradients go into which bucket
overlap({"one": ([2.0], [1.0])}, backward=2.0)   backward, and below it the all-reduces of its buckets
norms(world_size=2)                              which numbers of a batch share a mean
compressed([0.9, -0.1], {"int4": [1, 0]})        the entries of a gradient, and what arrives of them
over_steps({"SGD": [0.4, 0.3]}, "loss", "loss")  a line over the training steps for each name
intervals({"a plan": (7.7, 8.4, 10.4)}, "", "s")  a bar from low to high for each name, and a dot for a value
pipeline(["layers 0-3", "layers 4-7"])           the stages of a pipeline, and what travels between them
schedule([[("F", 0), ("B", 0)]] * 2)             each rank's steps of a pipeline over time
sharded_matmul("columns", tp_size=2)             x @ w with w cut into columns or rows; sharded_mlp: both in turn;
                                                 qkv_columns: those of attention
zero_stages(world_size=4)                        what each stage of ZeRO leaves on a rank; flat_pieces, recut: how a
                                                 flat tensor is cut; gather_compute_free: when weights have memory
dispatch([[[0, 2], [1, 3]]] * 2, num_experts=4)  which rows of a mixture of experts go where
memory_and_time({"every k": [("1", 1e9, 1.3)]}, "")  what recomputing saves in memory and costs in time
layouts(["S0 R", "S0 S1"], mesh=(2, 3))          which rank of a mesh has which part; summands: a partial sum
rank_grid({"dp": 2, "pp": 2, "tp": 3})           which ranks of a grid share a group, for each axis
ring_blocks({"zigzag": [[0, 3], [1, 2]]})        who computes which block of a causal mask, at which hop of a ring
stage_bytes({"stage 0": {"kind": 1e9}}, 80e9)    bytes of a plan by kind, on each stage; plan_cloud: bytes and seconds
explore(show, P=[2, 4, 8])                       sliders, closed forms and your own answer beside them, a picture
doors("f", "g")                                  what the two ends of a sharded region do; layer_doors: in a layer
"""

from .algorithms import folding, halving, pairwise, ring, tree, two_levels
from .breakdowns import breakdown
from .clusters import cluster
from .collectives import cells_of, collective, halves, stages, transpose
from .compression import compressed, over_steps
from .curves import time_curves
from .data_parallel import buckets, data_parallel_step, norms, overlap
from .deadlocks import deadlock
from .experts import dispatch
from .explorers import explore
from .grids import rank_grid, ring_blocks
from .heatmaps import heatmap, traffic
from .intervals import intervals
from .layouts import layout_ways, layouts, summands
from .living import Timeline
from .machines import bandwidths, rendezvous, roofline, tiles, topology
from .memories import live_bytes
from .picture import COLOURS, KINDS, Picture
from .planning import plan_cloud, stage_bytes
from .recomputing import memory_and_time
from .schedules import pipeline, schedule
from .shardings import doors, layer_doors, qkv_columns, sharded_matmul, sharded_mlp
from .sweeps import sweep
from .timelines import timeline
from .work import WORK
from .zero import flat_pieces, gather_compute_free, recut, zero_stages

__all__ = [
    "COLOURS",
    "KINDS",
    "WORK",
    "Picture",
    "Timeline",
    "bandwidths",
    "breakdown",
    "buckets",
    "cells_of",
    "cluster",
    "collective",
    "compressed",
    "data_parallel_step",
    "deadlock",
    "dispatch",
    "doors",
    "explore",
    "flat_pieces",
    "folding",
    "gather_compute_free",
    "halves",
    "halving",
    "heatmap",
    "intervals",
    "layer_doors",
    "layout_ways",
    "layouts",
    "live_bytes",
    "memory_and_time",
    "norms",
    "over_steps",
    "overlap",
    "pairwise",
    "pipeline",
    "plan_cloud",
    "qkv_columns",
    "rank_grid",
    "recut",
    "rendezvous",
    "ring",
    "ring_blocks",
    "roofline",
    "schedule",
    "sharded_matmul",
    "sharded_mlp",
    "stage_bytes",
    "stages",
    "summands",
    "sweep",
    "tiles",
    "time_curves",
    "timeline",
    "topology",
    "traffic",
    "transpose",
    "tree",
    "two_levels",
    "zero_stages",
]
