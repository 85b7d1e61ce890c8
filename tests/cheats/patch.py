"""Cheats that change what is around the answer: libraries, builtins, the modules of the judge, what Python does."""

from __future__ import annotations

from tests.cheats.cheat import Cheat


def patches(name: str, tries: str, setup: str, **how) -> Cheat:
    return Cheat(f"patch/{name}", tries, setup, **how)


YES = "lambda *args, **kwargs: True"

CHEATS = [
    patches("torch", "torch.allclose, equal, eq and isclose always return True", f"""
        for name in ("allclose", "equal", "eq", "isclose", "is_same_size"):
            setattr(torch, name, {YES})
    """, exercise="total"),
    patches("tensor-eq", "Tensor.__eq__, all and item always return True", f"""
        for name in ("__eq__", "all", "any", "equal", "allclose", "__bool__"):
            setattr(torch.Tensor, name, {YES})
    """, exercise="total", beside=False),
    patches("builtins", "isinstance, all and any always return True", f"""
        for name in ("all", "any"):
            setattr(builtins, name, {YES})
    """),
    patches("check-failed", "CheckFailed shows nothing", """
        for module in list(sys.modules.values()):
            if getattr(module, "CheckFailed", None):
                module.CheckFailed = type("CheckFailed", (Warning,), {"__init__": lambda self, *a: None})
                module.expect = module.expect_calls = lambda *args, **kwargs: None
    """),
    patches("pre-import", "fakes in sys.modules before the real modules are imported", f"""
        class Fake(types.ModuleType):
            __path__, __spec__, __file__ = [], None, "/tmp/fake.py"
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return {YES}
        names = ["gradelib", "grader.hidden", "grader.judging.judge", "grader.judging.hub", "tests", "checks_90", "checks_91",
                 "tests.cheats", "utils.checks.rooms", "sitecustomize", "usercustomize"]
        for name in names:
            sys.modules[name] = Fake(name)
    """),
    # the rank's own modules, changed under whatever name they have
    patches("codec", "the codec doubles what it writes", """
        for name, module in list(sys.modules.items()):
            if name.startswith("grader.") and hasattr(module, "Packer"):
                real = module.Packer.pack
                module.Packer.pack = lambda self, value, depth: real(self, value, depth)
                module.pack_result = module.encode = module.send_result = lambda *a: b""
    """, beside=False),
    patches("json", "json writes something else", """
        real = json.dumps
        json.dumps = lambda value, *args, **kwargs: real(value, *args, **kwargs).replace('"shared": true', '"shared": 0')
        json.JSONEncoder.default = lambda self, value: 4
    """),
    patches("safetensors", "safetensors writes other numbers", """
        import safetensors.torch
        real = safetensors.torch.save
        safetensors.torch.save = lambda tensors, *a, **k: real({name: t + 1 for name, t in tensors.items()}, *a, **k)
    """, exercise="total", beside=False),
    patches("call-with-yes", "the same, in exactly the form of a right answer", """
        module = sys.modules.get("grader.inside.rank") or sys.modules.get("utils.checks.registry")
        for function in ("call_on_rank", "call_with"):
            if hasattr(module, function):
                setattr(module, function, lambda function, mine, same, catch, *rest: (same, list(mine), False))
    """, beside=False),
    patches("world", "a forged last message from the rank's world", """
        for module in list(sys.modules.values()):
            world = getattr(module, "RankWorld", None)
            if isinstance(world, type):
                world.claims = lambda self: {"clock": 0.0, "busy": [], "memory": [], "printed": "", "passed": True}
    """),
    patches("hub-names", "everything in grader.* and utils.* that is called expect, judge, check or similar", f"""
        for name, module in list(sys.modules.items()):
            if name.startswith(("grader", "utils", "tests")):
                for key in list(vars(module)):
                    if re.match("expect|judge|check|equal_values|verdict|compare", key):
                        setattr(module, key, {YES})
    """),
    patches("recorder", "the recorder writes that all_reduce was called", """
        for module in list(sys.modules.values()):
            for name in ("Recorder", "HubNetwork", "VirtualRank"):
                kind = getattr(module, name, None)
                if isinstance(kind, type):
                    kind.op = kind.calls = "all_reduce"
        import utils.events.event
        utils.events.event.Event.op = property(lambda self: "all_reduce")
    """, exercise="total", beside=False),
    patches("process-group", "all_reduce does nothing and claims that it did", """
        dist.all_reduce = dist.distributed_c10d.all_reduce = lambda tensor, *args, **kwargs: tensor.mul_(world)
        world = 3
    """, exercise="total", beside=False),
    # Python itself
    patches("settrace", "a tracer that changes what comparison functions see and return", """
        def tracer(frame, event, arg):
            if event == "return" and frame.f_code.co_name in ("expect", "equal_values", "double"):
                frame.f_locals.update(got=4, left=4)
            return tracer
        sys.settrace(tracer)
        threading.settrace(tracer)
    """),
    patches("excepthook", "a hook that hides every exception", """
        sys.excepthook = threading.excepthook = sys.unraisablehook = lambda *args: os._exit(0)
    """),
    patches("small-numbers", "4 overwritten with 2 in Python's own memory", """
        if hex(id(4)) and sys.implementation.name == "cpython":
            ctypes.memmove(id(4) + 24, id(2) + 24, 4)
    """, beside=False),
    patches("code-objects", "comparison functions with their code replaced", """
        def yes(*args, **kwargs): return True
        for one in gc.get_objects():
            if isinstance(one, types.FunctionType) and one.__name__ in ("equal_values", "expect", "expect_calls", "allclose"):
                try:
                    one.__code__ = yes.__code__
                except ValueError:
                    pass
    """),
    patches("signature", "a forged name and signature", "return None", act="""
        double.__signature__ = inspect.Signature([])
        double.__name__ = double.__qualname__ = "total"
    """),
    patches("dist-group", "a default group that is destroyed", "return dist.distributed_c10d._update_default_pg",
            act="prepared(None)", exercise="total", beside=False),
]  # fmt: skip
