"""Every picture of the course, drawn by matplotlib; notebooks call these functions and show what they return.

collective("broadcast", world_size=4, root=1)    before and after, ranks as columns
halves(world_size=4)                             all-reduce as reduce-scatter and all-gather
transpose(world_size=2, rows=2, columns=3)       the bands of a matrix and of its transpose
stages([before, after], ["before", "after"])     any of the above is made of these
timeline(run)                                    who computed and who communicated when: a lane for each rank
traffic(run, "broadcast by hand")                who sent how many bytes to whom
live_bytes(run.memory())                         how many bytes each rank held when
cluster(find_cluster("dgx-h100", 64))            nodes, GPUs and links of a cluster, with their speeds
data_parallel_step([3, 3, 2])                    rows, weights and gradients of each rank, and their mean
buckets([[2], [1, 0]], [8, 8, 8])                which parameter's gradient goes in which bucket
overlap({"one": ([2.0], [1.0])}, backward=2.0)   backward above the all-reduces of its buckets
norms(world_size=2)                              which numbers of a batch share a mean
"""

from utils.figures.clusters import cluster
from utils.figures.collectives import cells_of, collective, halves, stages, transpose
from utils.figures.data_parallel import buckets, data_parallel_step, norms, overlap
from utils.figures.heatmaps import heatmap, traffic
from utils.figures.memories import live_bytes
from utils.figures.picture import COLOURS, KINDS, Picture
from utils.figures.timelines import timeline

__all__ = [
    "COLOURS",
    "KINDS",
    "Picture",
    "buckets",
    "cells_of",
    "cluster",
    "collective",
    "data_parallel_step",
    "halves",
    "heatmap",
    "live_bytes",
    "norms",
    "overlap",
    "stages",
    "timeline",
    "traffic",
    "transpose",
]
