"""ipyparallel: persistent engines that have imported torch; a new process group per call"""

import logging
import tempfile

import ipyparallel

from tests.bench.programs import all_reduce


def start(world_size):
    global cluster, engines
    cluster = ipyparallel.Cluster(n=world_size, log_level=logging.ERROR)
    engines = cluster.start_and_connect_sync()[:]
    engines.execute("from tests.bench import programs", block=True)


def call(world_size):
    with tempfile.TemporaryDirectory() as folder:
        ranks, rendezvous = range(world_size), f"{folder}/store"
        return engines.map_sync(all_reduce, ranks, [world_size] * world_size, [rendezvous] * world_size)


def stop():
    cluster.stop_cluster_sync()
