"""Every picture of the course, drawn by matplotlib; notebooks call these functions and show what they return.

collective("broadcast", world_size=4, root=1)    before and after, ranks as columns
halves(world_size=4)                             all-reduce as reduce-scatter and all-gather
transpose(world_size=2, rows=2, columns=3)       the bands of a matrix and of its transpose
stages([before, after], ["before", "after"])     any of the above is made of these
timeline(run)                                    who computed and who communicated when: a lane for each rank
traffic(run, "broadcast by hand")                who sent how many bytes to whom
live_bytes(run.memory())                         how many bytes each rank held when
cluster(find_cluster("dgx-h100", 64))            nodes, GPUs and links of a cluster, with their speeds
sharded_matmul("columns", tp_size=2)             x @ w with w cut in columns, or in rows; sharded_mlp: both, one after
                                                 the other; qkv_columns: of attention
doors("f", "g")                                  what the two ends of a sharded region do; layer_doors: in a whole layer
"""

from utils.figures.clusters import cluster
from utils.figures.collectives import cells_of, collective, halves, stages, transpose
from utils.figures.heatmaps import heatmap, traffic
from utils.figures.memories import live_bytes
from utils.figures.picture import COLOURS, KINDS, Picture
from utils.figures.shardings import doors, layer_doors, qkv_columns, sharded_matmul, sharded_mlp
from utils.figures.timelines import timeline

__all__ = [
    "COLOURS",
    "KINDS",
    "Picture",
    "cells_of",
    "cluster",
    "collective",
    "doors",
    "halves",
    "heatmap",
    "layer_doors",
    "live_bytes",
    "qkv_columns",
    "sharded_matmul",
    "sharded_mlp",
    "stages",
    "timeline",
    "traffic",
    "transpose",
]
