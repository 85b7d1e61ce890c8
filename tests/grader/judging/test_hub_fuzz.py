"""The hub against ranks that send anything at all: it ends soon, with a run or with the reason why there is none."""

from __future__ import annotations

import math
import resource
import socket
import struct
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.inside import codec
from grader.judging import hub, hub_storage
from grader.judging.hub import REQUESTS, Hub
from grader.judging.rank_connection import RankConnection, RunTime
from utils.cluster.hardware import links
from utils.diagnosis.errors import RankError, RankFailed
from utils.kit.slow_memory import SlowMemory
from utils.kit.witness import Witness

SECONDS = 5  # a run's time; what is sent here takes a few hundredths
SIZE = 2  # ranks
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


class Dice(Witness):
    def __call__(self, sides: int) -> int:
        return range(1, sides + 1)[-1]


def told(said: list[bytes], virtual: bool) -> object:
    """The outcome of a run whose ranks send these bytes and end: a Run, or the error instead."""
    pairs = [socket.socketpair() for _ in said]
    for (_, theirs), data in zip(pairs, said, strict=True):
        theirs.setblocking(False)
        theirs.send(data)
        theirs.shutdown(socket.SHUT_WR)
    stays = [SlowMemory({"x": torch.ones(4)}, 8), Dice()]
    stays[1].rank = 0
    cluster = links(len(said), alpha=1e-6, bandwidth=1e9)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    over = RunTime(lambda waited, number: waited > SECONDS)
    hub = Hub([RankConnection(ours, over) for ours, _ in pairs], cluster, virtual, stays)
    try:
        return hub.run()
    except RankError as error:
        assert len(str(error)) < 100_000
        return error
    finally:
        for pair in pairs:
            for one in pair:
                one.close()
        assert time.monotonic() - began < SECONDS
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, "kB"


# ---- messages that are nearly right ----------------------------------------------------------------------------------

WORDS = [
    "",
    "world",
    "group",
    "sum",
    "a cell:1",
    "cell 1:1",
    "cell of x:7",
    "/etc/passwd:1",
    "x",
    "activations",
    "\ud800",
]
NUMBERS = st.sampled_from([0, 1, 2, -1, 3, 10**6, 2**31, 2**63, -(2**63), 0.5, -0.5, 1e308, math.nan, math.inf])
TENSORS = st.sampled_from(
    [
        *(torch.zeros(shape) for shape in ((2,), (3,), (), (0,), (2, 3))),
        *(torch.zeros(2, dtype=dtype) for dtype in (torch.int64, torch.bool, torch.bfloat16)),
        torch.empty(2, device="meta"),
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | TENSORS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=8,
)
METHODS = [
    "allreduce", "broadcast", "reduce", "gather", "scatter", "allgather",
    "reduce_scatter", "alltoall", "barrier", "send", "recv", "recv_anysource",
    "all_to_all_single", "_allgather_base", "allreduce_coalesced",
]  # fmt: skip
CALL = {
    "do": "call", "method": "allreduce", "group": "world", "members": [0, 1], "peer": None, "tag": 0,
    "reduce_op": "sum", "is_async": False, "directly": True, "where": "cell 1:1", "wrapper": "DDP", "clock": 0.0,
    "args": [[torch.zeros(2)]], "strides": None,
}  # fmt: skip
RIGHT = [
    CALL,
    {**CALL, "method": "send", "args": [[torch.zeros(2)], 1, 0], "peer": 1, "reduce_op": ""},
    {**CALL, "method": "recv", "args": [[torch.zeros(2)], 0, 0], "peer": 0, "reduce_op": ""},
    {**CALL, "method": "broadcast", "reduce_op": "", "peer": 0},
    {**CALL, "method": "allgather", "reduce_op": "", "args": [[[torch.zeros(2), torch.zeros(2)]], [torch.zeros(2)]]},
    {"do": "wait", "for": [0], "clock": 0.0},
    {"do": "catch_up", "clock": 0.0},
    {"do": "asked_for_result", "index": 0},
    {"do": "began_to_wait", "index": 0, "where": "cell 1:2", "clock": 0.0},
    {"do": "make_group", "group": "pair", "members": [0, 1], "where": "cell 1:1", "clock": 0.0},
    {"do": "join", "store": "s", "rank": 0, "size": 2},
    {"do": "key_set", "store": "s", "key": "k", "value": "00"},
    {"do": "key_add", "store": "s", "key": "n", "amount": 1},
    {"do": "key_check", "store": "s", "key": "k"},
    {"do": "key_get", "store": "s", "key": "k"},
    {"do": "append", "path": "/tmp/x", "line": "a line"},
    {"do": "lines", "path": "/tmp/x"},
    {"do": "let_go", "memory": 0, "number": 0},
    {"do": "dropped_handle", "index": 0},
    {"do": "ask", "witness": 1, "question": [6]},
    {"do": "load", "memory": 0, "name": "x", "where": [[0, 2, None]]},
    {"do": "store", "memory": 0, "name": "x", "where": [[0, 2, None]], "tile": torch.zeros(2)},
    {"do": "mark", "clock": 0.0},
    {"do": "span", "name": "forward", "start": 0, "end": 0},
    {"do": "done", "result": 4, "after": [], "shared": False, "clock": 0.0, "busy": [], "memory": [], "printed": ""},
    {"do": "failed", "kind": "ValueError", "message": "no", "frames": [["f", 1, "g", "x"]]},
]  # fmt: skip


@st.composite
def nearly_right(draw) -> dict:
    """A message of the protocol in which one or two fields are replaced or missing."""
    message = dict(draw(st.sampled_from(RIGHT)))
    if message["do"] == "call" and draw(st.booleans()):
        message["method"] = draw(st.sampled_from(METHODS))
    for _ in range(draw(st.integers(0, 2)) if len(message) > 1 else 0):
        field = draw(st.sampled_from(sorted(message)))
        if draw(st.integers(0, 9)):
            message[field] = draw(ANYTHING)
        else:
            del message[field]
    return message


def packed(message: dict) -> bytes:
    return codec.pack(message)


@st.composite
def damaged(draw) -> bytes:
    """Messages with a few bytes changed, removed or inserted."""
    data = bytearray(b"".join(map(packed, draw(st.lists(st.sampled_from(RIGHT), min_size=1, max_size=3)))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
        if not data:
            break
    return bytes(data)


@QUICK
@given(st.lists(st.lists(nearly_right(), max_size=6), min_size=1, max_size=SIZE), st.booleans())
def test_messages_that_are_nearly_right(messages, virtual):
    told([b"".join(map(packed, one)) for one in messages], virtual)


@QUICK
@given(st.lists(damaged() | st.binary(max_size=200), min_size=1, max_size=SIZE), st.booleans())
def test_bytes_that_are_nearly_messages(said, virtual):
    told(said, virtual)


def text(json: str, data: bytes = b"") -> bytes:
    return codec.HEADER.pack(len(json), len(data)) + json.encode() + data


def test_messages_that_would_take_hours_or_gigabytes_are_refused():
    same_hash = ",".join(str(n * (2**61 - 1)) for n in range(5_500))
    tensors = ",".join(f'"{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(2_000))
    lying = struct.pack("<Q", 2**40) + b"{" + tensors.encode() + b"}"
    for said in (
        text('{"set":[' + same_hash + "]}"),
        text("[" * 50_000),
        text("[" + "[]," * 40_000 + "[]]"),
        text("9" * 100_000),
        text('{"Tensor":{"at":"0"}}', lying),
        text('{"placeholder":{"buffer":["float32",[1000000000000]]}}'),
        codec.HEADER.pack(2**32 - 1, 2**64 - 1),
        codec.HEADER.pack(codec.MAX_TEXT, codec.MAX_TENSORS),
    ):
        assert isinstance(told([said], False), RankError)


def test_the_unchanged_messages_make_a_run():
    """So the messages above are not refused for a reason of their own."""
    done = RIGHT[-2]
    run = told([b"".join(map(packed, [CALL, {"do": "wait", "for": [0], "clock": 0.0}, done]))] * 2, True)
    assert run.results and [event.op for event in run.events] == ["all_reduce"] * 2


@pytest.mark.parametrize("reduce_op, dtype", [("min", torch.complex64), ("sum", torch.uint16), ("max", torch.uint16)])
@pytest.mark.parametrize("virtual", [False, True])
def test_a_reduction_that_nothing_can_carry_out_is_the_ranks_own_error(reduce_op, dtype, virtual):
    """Neither has Gloo an answer to these."""
    call = {**CALL, "reduce_op": reduce_op, "args": [[torch.ones(2, dtype=dtype)]]}
    error = told([b"".join(map(packed, [call, {"do": "wait", "for": [0], "clock": 0.0}]))] * 2, virtual)
    assert isinstance(error, RankFailed) and str(error).startswith("all_reduce failed on ranks 0 and 1: ")


def test_what_ranks_use_besides_messages_is_in_the_record():
    """With its bytes, so that it counts wherever traffic is judged."""
    uses = [
        {"do": "key_set", "store": "s", "key": "key", "value": "0011"},
        {"do": "key_get", "store": "s", "key": "key"},
        {"do": "key_add", "store": "s", "key": "n", "amount": 1},
        {"do": "key_check", "store": "s", "key": "k"},
        {"do": "append", "path": "/tmp/x", "line": "a line"},
        {"do": "lines", "path": "/tmp/x"},
    ]
    run = told([b"".join(map(packed, [*uses, RIGHT[-2]]))], False)
    assert [(event.op, event.bytes) for event in run.events] == [
        *[("dist.Store", nbytes) for nbytes in (3 + 2, 3, 2, 1 + 8, 1)],
        *[("SharedFile", 6)] * 2,
    ]
    assert run.traffic().messages == [[0]]


@pytest.mark.parametrize("where", ["busy", "memory"])
def test_claims_beyond_what_a_rank_can_have_done_are_refused_before_they_are_read(where, monkeypatch):
    monkeypatch.setattr(hub, "MAX_CLAIMS", 1000)
    for count, refused in ((2000, False), (2002, True)):
        times = torch.zeros(count, dtype=torch.float64)
        claims = {"busy": times} if where == "busy" else {"memory": [times, times.long(), times.long()]}
        done = {**RIGHT[-2], "memory": [[], [], []], **claims}
        ended = told([packed(done)], True)
        assert ("more times than any program has" in str(ended)) is refused, ended


def test_a_store_is_for_meeting():
    uses = [{"do": "key_set", "store": "s", "key": str(number), "value": "00"} for number in range(101)]
    refused = []

    class Watched(RankConnection):
        def answer(self, answer):
            refused.append("error" in answer)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"".join(map(packed, [*uses, RIGHT[-2]])))
        connection = Watched(ours, RunTime(lambda waited, number: waited > SECONDS))
        Hub([connection], links(1, alpha=1e-6, bandwidth=1e9), False).run()
    assert refused == [False] * 100 + [True]


# ---- the protocol is a table


def test_every_request_of_the_protocol_is_fuzzed():
    assert {message["do"] for message in RIGHT} == {*REQUESTS, *hub_storage.REQUESTS}


@pytest.mark.parametrize(
    "word", ["__init__", "run", "outcome", "answer", "handle", "read_call", "do_call", "", None, ["done"]]
)
def test_no_word_outside_the_table_reaches_anything(word):
    """Not even the name of a method of the hub, or of a function in its module."""
    error = told([packed({**RIGHT[-2], "do": word})], False)
    assert isinstance(error, RankError) and "a request of an unknown kind" in str(error)
