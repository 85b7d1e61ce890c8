"""Every picture of the course, drawn by matplotlib; notebooks call these functions and show what they return.

collective("broadcast", world_size=4, root=1)    before and after, ranks as columns
halves(world_size=4)                             all-reduce as reduce-scatter and all-gather
transpose(world_size=2, rows=2, columns=3)       the bands of a matrix and of its transpose
stages([before, after], ["before", "after"])     any of the above is made of these
timeline(run)                                    who computed and who communicated when: a lane for each rank
traffic(run, "broadcast by hand")                who sent how many bytes to whom
live_bytes(run.memory())                         how many bytes each rank held when
cluster(find_cluster("dgx-h100", 64))            nodes, GPUs and links of a cluster, with their speeds
pipeline(["layers 0-3", "layers 4-7"])           the stages of a pipeline, and what travels between them
schedule([[("F", 0), ("B", 0)]] * 2)             which rank takes which step of a pipeline when
"""

from utils.figures.clusters import cluster
from utils.figures.collectives import cells_of, collective, halves, stages, transpose
from utils.figures.heatmaps import heatmap, traffic
from utils.figures.memories import live_bytes
from utils.figures.picture import COLOURS, KINDS, Picture
from utils.figures.schedules import pipeline, schedule
from utils.figures.timelines import timeline

__all__ = [
    "COLOURS",
    "KINDS",
    "Picture",
    "cells_of",
    "cluster",
    "collective",
    "halves",
    "heatmap",
    "live_bytes",
    "pipeline",
    "schedule",
    "stages",
    "timeline",
    "traffic",
    "transpose",
]
