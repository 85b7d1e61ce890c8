"""Dumps of torch's flight recorder: real ones of Gloo, those of other versions made by hand, and hostile ones."""

from __future__ import annotations

import json
import os
import pickle
import struct

import pytest
import torch.distributed as dist
from torch import zeros

from utils import __main__ as command
from utils import spawn
from utils.worlds.dumps import explain
from utils.worlds.dumps.read import BadDump, read_dump


def leaves_a_dump(rank, world_size):
    """Rank 0 waits in its second all_reduce when rank 1 has called none after the first."""
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    x, token = zeros(3), zeros(1)
    dist.all_reduce(x)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
    enqueued, completed = 0, 0
    while not enqueued or completed != enqueued - (rank == 0):  # Gloo notes the end of a call a moment after it
        [status] = pickle.loads(_dump_fr_trace())["pg_status"].values()
        enqueued, completed = status["last_enqueued_collective"], status["last_completed_collective"]
    both = _dump_fr_trace(), _dump_fr_trace_json()
    if rank == 0:
        dist.send(token, 1)
        work.wait()
    else:
        dist.recv(token, 0)
        dist.all_reduce(x)
    return both


@pytest.fixture(scope="module")
def real():
    """[(pickle, JSON) of each rank]"""
    return spawn(leaves_a_dump, 2).results


def entry(number, name="nccl:all_reduce", state="completed", line=1, **more):
    frames = [
        {"name": "all_reduce", "filename": "/usr/lib/python3.12/site-packages/torch/distributed/x.py", "line": 9},
        {"name": "main", "filename": "/job/train.py", "line": line},
    ]
    fields = {"collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": name, "state": state, "frames": frames}
    sizes = {"input_sizes": [[4]], "input_dtypes": ["Float"], "process_group": ["0", "default_pg"]}
    return {"time_created_ns": number * 10**9, **fields, **sizes, **more}


def job(folder, *ranks, size=None):
    """Write the dumps of a job: for each rank its entries, or None if it left none."""
    size = size or len(ranks)
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}}
    for rank, entries in enumerate(ranks):
        if entries is not None:
            dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


# --- what they say


def test_real_dumps_name_the_line_the_rank_and_the_mistake(real, tmp_path):
    for rank, (pickled, _) in enumerate(real):
        (tmp_path / f"rank_{rank}").write_bytes(pickled)
    said = explain(tmp_path)
    assert "rank 0  waits in all_reduce               " in said and "work = dist.all_reduce(x, async_op=True)" in said
    assert "Rank 1 has finished, and called all_reduce in the whole world only from other lines." in said
    assert '"Has finished" means here' in said


def test_real_dumps_in_json_have_no_lines_and_say_the_rest(real, tmp_path):
    for rank, (_, text) in enumerate(real):
        (tmp_path / f"rank_{rank}.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    said = explain(tmp_path)
    assert "  rank 0  waits in all_reduce\n" in said
    assert "Rank 1 has finished after 1 call of this all_reduce; rank 0 is in its 2nd." in said


def test_nccls_names_and_states_are_understood(tmp_path):
    gather = [entry(1, "nccl:_all_gather_base", "started", 7), entry(2, "nccl:all_reduce", "scheduled", 8)]
    said = explain(job(tmp_path, gather, [entry(1, "nccl:_reduce_scatter_base", "started", 9)]))
    assert "rank 0  waits in all_gather               /job/train.py, line 7" in said
    assert "rank 0 called all_gather, rank 1 called reduce_scatter." in said


def test_messages_are_understood(tmp_path):
    sends = [[entry(0, f"nccl:send {r}->{1 - r}", "started", 5, p2p_seq_id=1, is_p2p=True)] for r in range(2)]
    assert "Everyone sends first, and waits for the next: 0 → 1 → 0." in explain(job(tmp_path, *sends))


def test_the_first_parting_is_told_though_the_ranks_wait_much_later(tmp_path):
    zero = [entry(1), entry(2, line=30), entry(3, line=31), entry(4, "nccl:barrier", "started", 40)]
    one = [entry(1), entry(2, line=31), entry(3, line=31)]
    said = explain(job(tmp_path, zero, one))
    assert "parted earlier, at the 2nd collective of the whole world:\n  rank 0  all_reduce" in said
    assert "/job/train.py, line 30" in said and "Rank 1 never called this barrier" in said


def test_recorders_that_have_forgotten_their_oldest_calls_are_aligned(tmp_path):
    zero = [*(entry(n, line=n) for n in range(8, 12)), entry(12, state="started", line=12)]
    one = [*(entry(n, line=n) for n in range(3, 12)), entry(12, "nccl:broadcast", "started", 50)]
    assert "rank 0 called all_reduce, rank 1 called broadcast." in explain(job(tmp_path, zero, one))


def test_a_rank_without_a_dump_is_the_one_to_look_at_if_all_others_agree(tmp_path):
    waits = [entry(1), entry(2, state="started", line=5)]
    said = explain(job(tmp_path, waits, None, waits))
    assert said.startswith("2 dumps, of ranks 0 and 2. Rank 1 left none.")
    assert "ranks 0 and 2" in said and "what they wait for is a rank without a dump" in said


def test_what_another_version_lacks_is_left_open(tmp_path):
    bare = [{"profiling_name": "nccl:all_reduce", "state": "started"}]
    for rank, entries in enumerate((bare, [])):
        (tmp_path / f"dump{rank}").write_bytes(pickle.dumps({"version": "1.1", "entries": entries}))
    assert "rank 0  waits in all_reduce" in explain(tmp_path)


def test_gloos_groups_have_the_ranks_that_called_something_on_them(tmp_path):
    """Their `pg_config` is empty, and `pg_status` goes by numbers that each rank gives out itself."""
    calls = [[("1", 0)], [("1", 0), ("2", 1)], [("2", 0)]]
    for rank, groups in enumerate(calls):
        name = "gloo:broadcast" if rank == 2 else "gloo:all_reduce"
        entries = [entry(1, name, "scheduled", process_group=[group, "undefined"], pg_id=i) for group, i in groups]
        dump = {"pg_config": {"": {"name": "", "ranks": "[]"}}, "pg_status": {}, "entries": entries}
        if rank < 2:
            dump["pg_status"] = {"0": {"last_completed_collective": 1}}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump))
    said = explain(tmp_path)
    assert "rank 0  has finished\n  rank 1  waits in all_reduce" in said
    assert "rank 1 called all_reduce, rank 2 called broadcast." in said


# --- reading


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_hostile_pickle_is_not_carried_out(tmp_path):
    victim = tmp_path / "victim"
    hostile = job(tmp_path, [entry(1, state="started")], [entry(1, "nccl:barrier", "started")]) / "rank_2"
    hostile.write_bytes(pickle.dumps({"entries": [Hostile(victim)]}))
    said = explain(tmp_path)
    assert "Not read: rank_2: it asks for posix.system, which a dump has no use for." in said
    assert "rank 0 called all_reduce, rank 1 called barrier." in said and not victim.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02" + b"]" * 100,
        b"\x80\x02N" + b"r" + struct.pack("<I", 2**31 - 1) + b".",  # the quick reader would reserve 16 GB for this
        b"\x80\x04\x8d" + struct.pack("<Q", 2**62),
        b"(" * 10**5,
        b"[" * 10**5,
        b"\x80\x02\x82\x01.",
        pickle.dumps([1, 2]),
        json.dumps({"entries": 3}).encode(),
    ],
)
def test_broken_bytes_are_refused(data, tmp_path):
    path = tmp_path / "rank_0"
    path.write_bytes(data)
    with pytest.raises(BadDump, match="rank_0: "):
        read_dump(path)


BROKEN = {
    "entries": [entry(1, input_sizes="no")],
    "sizes": [entry(1, input_sizes=[4])],
    "frames": [entry(1, frames=["train.py:3"])],
    "line": [entry(1, frames=[{"filename": "/job/train.py", "line": "x"}])],
}


@pytest.mark.parametrize("entries", BROKEN.values(), ids=BROKEN)
def test_a_dump_with_broken_fields_is_left_out(entries, tmp_path):
    with pytest.raises(BadDump, match="rank 0's dump can't be understood"):
        explain(job(tmp_path, entries))
    waits = [entry(1), entry(2, state="started", line=5)]
    said = explain(job(tmp_path, entries, waits))
    assert said.startswith("1 dump, of rank 1. Rank 0 left none.\n\nNot read: rank 0's dump can't be understood (")


def test_numbers_may_be_text(tmp_path):
    def as_text(value):
        if isinstance(value, dict):
            return {name: as_text(inner) for name, inner in value.items()}
        return [*map(as_text, value)] if isinstance(value, list) else str(value)

    job(tmp_path, [entry(1), entry(2, state="started")], [entry(1), entry(2, "nccl:barrier", "started")])
    for path in tmp_path.iterdir():
        path.write_text(json.dumps(as_text(pickle.loads(path.read_bytes()))))
    assert "rank 0 called all_reduce, rank 1 called barrier." in explain(tmp_path)


def test_a_file_that_a_dump_names_is_read_only_if_it_is_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer without end
    frames = [{"filename": str(tmp_path / "pipe"), "line": 3}]
    said = explain(job(tmp_path, [entry(1, state="started", frames=frames)], [entry(1, "nccl:barrier", "started")]))
    assert f"waits in all_reduce               {tmp_path}/pipe, line 3\n" in said


def test_calls_that_are_not_known_are_named(tmp_path):
    ranks = [[entry(1, "nccl:all_reduce_of_tomorrow"), entry(2, name, "started")] for name in ("barrier", "reduce")]
    assert "nothing is known of such calls: all_reduce_of_tomorrow." in explain(job(tmp_path, *ranks))


def test_dumps_of_two_jobs_in_one_folder_are_refused(tmp_path):
    job(tmp_path, [entry(1)])
    (tmp_path / "other_0").write_bytes((tmp_path / "nccl_trace_rank_0").read_bytes())
    with pytest.raises(BadDump, match="are both of rank 0"):
        explain(tmp_path)


def test_the_command(tmp_path, capsys):
    assert command.main(["explain", "--live"]) == 0
    assert "export TORCH_FR_BUFFER_SIZE=" in capsys.readouterr().out
    assert command.main(["explain", str(tmp_path)]) == 2
    assert "holds no dump" in capsys.readouterr().err
    assert command.main(["explain", str(job(tmp_path, [entry(1, state="started")], [entry(1)]))]) == 0
    assert "waits in all_reduce" in capsys.readouterr().out
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [entry(1, "\x1b[2Jnew")]}))
    assert command.main(["explain", str(tmp_path)]) == 0
    assert "such calls: ?[2jnew." in capsys.readouterr().out
