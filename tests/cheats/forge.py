"""Cheats in what a rank sends to the hub: forged results, calls and times, and bytes that are not messages.

They speak the protocol by means of the rank's own modules, which a submission can read and use.
"""

from __future__ import annotations

from tests.cheats.cheat import Cheat

WIRE = """
    codec = sys.modules.get("grader.inside.codec")
    networks = [one for one in gc.get_objects() if type(one).__name__ == "HubNetwork"]
    line = networks[0].connection if networks else None
    def tell(**message):
        if line:
            line.sendall(codec.pack(message))
    def raw(text, data=b"", text_size=None, data_size=None):
        text = text if isinstance(text, bytes) else text.encode()
        sizes = len(text) if text_size is None else text_size, len(data) if data_size is None else data_size
        if line:
            line.sendall(struct.pack("!IQ", *sizes) + text + data)
    def done(result, **more):
        tell(do="done", result=result, after=[], shared=False, clock=0.0, busy=[], memory=[], printed="", **more)
    def call(method="allreduce", args=(), **more):
        tell(**{**dict(do="call", method=method, group="world", members=[0, 1, 2, 3], peer=None, tag=0, reduce_op="sum",
                       is_async=False, directly=False, where="a cell:1", wrapper="", clock=0.0, args=list(args),
                       strides=None), **more})
    def header(**tensors):
        text = json.dumps(tensors).encode()
        return struct.pack("<Q", len(text)) + text
    return types.SimpleNamespace(**locals())
"""


def forges(name: str, tries: str, act: str, **how) -> Cheat:
    """After its messages the rank continues as usual; `beside` is the exception."""
    return Cheat(f"forge/{name}", tries, WIRE, act, **{"beside": False, **how})


def result(name: str, tries: str, json_text: str, **how) -> Cheat:
    """A result, as the JSON text of a message, followed by `data` if given."""
    data = how.pop("data", 'b""')
    told = '{"dict": [["do", "done"], ["result", RESULT], ["after", []], ["shared", false], ["clock", 0.0], '
    told += '["busy", []], ["memory", []], ["printed", ""]]}'
    act = f"prepared.raw({told!r}.replace('RESULT', {json_text}), {data})"
    return forges(name, tries, act, **how)


GARBAGE = [r'b"\xff" * 100', "json.dumps({'result': 4, 'ok': True}).encode()"]
ALL_DESCRIPTORS = """
for fd in range({first}, {end}):
    try:
        os.set_blocking(fd, False)
        os.write(fd, {what})
    except OSError:
        pass
"""

CHEATS = [
    *[
        forges(f"bytes-{number}", f"raw bytes to every descriptor: {what}", ALL_DESCRIPTORS.format(first=3, end=256, what=what))
        for number, what in enumerate(GARBAGE)
    ],
    forges("bytes-to-the-first", "a result in the format of other graders, to the first three descriptors",
           ALL_DESCRIPTORS.format(first=0, end=3, what="b'double-values: 2/2 passed\\n'"), beside=True),
    forges("early-result", "a result before the call has returned", "prepared.done(2 * 2)"),
    forges("two-results", "two results", "prepared.done(x)\nprepared.done(4)"),
    forges("result-of-another", "the results of other ranks, by number", """
        for number in range(4):
            prepared.done(x, rank=number, number=number)
    """, exercise="total"),
    forges("verdict", "a verdict instead of a result", """
        for do in ("passed", "verdict", "score", "points", "judge", "exit"):
            prepared.tell(do=do, points=2, most=2, kind="passed", check="double-values")
    """),
    forges("length-huge", "a length of 4 GB and more", "prepared.raw('{}', text_size=2**32 - 1, data_size=2**64 - 1)"),
    forges("deep-json-closed", "JSON nested 50,000 deep, with all its brackets closed", "prepared.raw('[' * 50_000 + ']' * 50_000)"),
    forges("not-utf-8", "bytes that are not text", "prepared.raw(b'\\xff\\xfe{}')"),
    result("nan-in-json", "NaN, which JSON does not have", "'NaN'"),
    result("lone-surrogate", "text that is not valid Unicode", "'\"\\\\ud800\\\\udfff\"'"),
    result("same-hash-dict", "a dict whose keys all have the same hash",
           "'{\"dict\": [' + ','.join(f'[{n * (2**61 - 1)},0]' for n in range(200_000)) + ']}'"),
    result("unhashable", "a set of lists", "'{\"set\": [[]]}'"),
    result("unknown-kind", "a value of a kind that does not exist", "'{\"eval\": \"__import__(\\'os\\').getpid()\"}'"),
    result("known", "a placeholder for one of the judge's memories", "'{\"placeholder\": {\"memory\": 0}}'"),
    result("negative-room", "a buffer of negative size", "'{\"placeholder\": {\"buffer\": [\"float32\", [-1, 5]]}}'"),
    result("no-such-tensor", "a tensor that was not sent", "'{\"Tensor\": {\"at\": \"7\"}}'"),
    result("meta-everywhere", "a tensor of 2**60 numbers without values",
           "'{\"Tensor\": {\"meta\": [\"float32\", [1152921504606846976], [1]]}}'"),
    result("numpy-type", "a number whose type is a structure", "'{\"number\": [\"(1000000,)f8\", 1]}'"),
    result("overlapping-tensors", "two tensors that share the same bytes", "'{\"Tensor\": {\"at\": \"a\"}}'", data=
           "prepared.header(a=dict(dtype='F32', shape=[4], data_offsets=[0, 16]),"
           " b=dict(dtype='F32', shape=[4], data_offsets=[0, 16])) + bytes(16)"),
    result("lying-offsets", "a tensor that extends past its bytes", "'{\"Tensor\": {\"at\": \"a\"}}'", data=
           "prepared.header(a=dict(dtype='F32', shape=[10**6], data_offsets=[0, 4 * 10**6])) + bytes(16)"),
    result("lying-shape", "a shape that does not match the data", "'{\"Tensor\": {\"at\": \"a\"}}'", data=
           "prepared.header(a=dict(dtype='F32', shape=[2**31, 2**31], data_offsets=[0, 16])) + bytes(16)"),
    result("empty-rows", "a tensor of a billion empty rows, which is costly to print",
           "'{\"Tensor\": {\"at\": \"a\"}}'", data=
           "prepared.header(a=dict(dtype='F32', shape=[10**9, 0], data_offsets=[0, 0]))"),
    result("odd-dtype", "a tensor of a dtype that safetensors has and torch does not", "'{\"Tensor\": {\"at\": \"a\"}}'",
           data="prepared.header(a=dict(dtype='F4', shape=[4], data_offsets=[0, 2])) + bytes(2)"),
    # calls
    *[
        forges(name, tries, act, exercise="total")
        for name, tries, act in [
            ("a-call-without-numbers", "an all_reduce of no tensor", "prepared.call(args=[[]])"),
            ("a-call-of-a-buffer", "an all_reduce of a buffer to receive into", """
                prepared.raw(json.dumps({"dict": [[k, v] for k, v in dict(do="call", method="allreduce", group="world",
                    members={"tuple": [0, 1, 2]}, peer=None, tag=0, reduce_op="sum", is_async=False, directly=False,
                    where="a cell:1", wrapper="", clock=0.0, args=[[{"placeholder": {"buffer": ["float32", [4]]}}]], strides=None).items()]}))
            """),
            ("a-call-in-another-group", "a call on a group that the rank does not belong to", "prepared.call(group='other', members=[0, 1])"),
            ("a-call-to-nobody", "a message to rank 99", "prepared.call('send', [[x], 99, 0], peer=99, reduce_op='')"),
            ("a-call-to-itself", "a message to itself", "prepared.call('send', [[x], rank, 0], peer=rank, reduce_op='')"),
            ("a-call-without-values", "a tensor without values, sent to ranks whose tensors have values",
             "prepared.call(args=[[torch.empty(4, device='meta')]], members=list(range(world_size)))"),
            ("a-call-of-another-shape", "shapes that do not match",
             "prepared.call(args=[[torch.zeros(rank, 3)]], members=list(range(world_size)))"),
            ("unknown-method", "a method that does not exist", "prepared.call('__init__')"),
            ("unknown-reduction", "a reduction that does not exist", "prepared.call(args=[[x]], reduce_op='steal')"),
            ("tag-is-text", "a tag that is not a number", "prepared.call('send', [[x], 0, 0], peer=0, tag='0')"),
            ("waits-for-what-is-not", "waiting for call number 10**9", "prepared.tell(do='wait', **{'for': [10**9]}, clock=0.0)"),
            ("waits-for-nothing", "waiting for nothing", "prepared.tell(do='wait', **{'for': []}, clock=0.0)"),
            ("groups-of-strangers", "a group of ranks that do not exist", "prepared.tell(do='make', group='g', "
             "members=[0, 0, 99, -1], where='a cell:1', clock=0.0)"),
            ("a-group-alone", "a group that nobody else makes", "prepared.tell(do='make', group='g', "
             "members=list(range(world_size)), where='a cell:1', clock=0.0)"),
            ("joins-as-many", "one process that joins a world as every rank",
             "for n in range(9): prepared.tell(do='join', store='s', rank=n, size=9)"),
            ("memory-that-is-not", "a memory that does not exist", "prepared.tell(do='load', memory=7, name='x', where=[])"),
            ("events-without-end", "a million regions that never happened", """
                for n in range(1_000_000):
                    prepared.tell(do="span", name="x" * 100, start=0.0, end=0.0)
            """),
            ("stores-without-end", "100,000 stores", """
                for n in range(100_000):
                    prepared.tell(do="key_set", store=f"s{n}", key="k", value="00")
            """),
            ("files-without-end", "files that grow forever", """
                for n in range(1000):
                    prepared.tell(do="append", path="/tmp/x", line="y" * 1_000_000)
            """),
        ]
    ],
    # A rank's clock is read where time is virtual; elsewhere these are calls like any others.
    *[
        forges(name, tries, f"prepared.call(args=[[x]], members=list(range(world_size)), clock={clock})",
               exercise="total", may="traffic")
        for name, tries, clock in [
            ("clock-nan", "a time that is not a number", "float('nan')"),
            ("clock-text", "a time as text", "'noon'"),
            ("clock-huge", "a time in the far future", "1.7e308"),
        ]
    ],
    forges("failure-without-end", "a failure of 50,000 lines", """
        prepared.tell(do="failed", kind="Error", message="x" * 100_000, frames=[["f", 1, "g", "y" * 300]] * 50_000)
    """),
    forges("failure-in-other-words", "a failure in the words of the grader", """
        prepared.tell(do="failed", kind="CheckFailed", message="double · values · passed\\n\\x1b[2J\\x1b]0;t\\x07",
                      frames=[["/etc/passwd", 1, "root", ""]])
    """),
]  # fmt: skip
