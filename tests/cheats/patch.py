"""Cheats that change what is around the answer: libraries, builtins, the modules of the judge, what Python does."""

from __future__ import annotations

from tests.cheats.cheat import Cheat


def patches(name: str, tries: str, setup: str, **how) -> Cheat:
    return Cheat(f"patch/{name}", tries, setup, **{"plain": True, **how})


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
    patches("torch-testing", "torch.testing.assert_close never raises", f"""
        import torch.testing
        torch.testing.assert_close = torch.testing._comparison.assert_close = {YES}
        torch.testing._comparison.not_close_error_metas = lambda *args, **kwargs: []
    """, exercise="total"),
    patches("numpy", "numpy's comparisons always return True", f"""
        for name in ("allclose", "array_equal", "isclose", "all", "any"):
            setattr(np, name, {YES})
        np.testing = types.SimpleNamespace(__getattr__=lambda name: {YES})
    """),
    patches("abs", "its own global `abs`", "builtins.abs = lambda value: 0\nglobals()['abs'] = builtins.abs"),
    patches("builtins", "isinstance, all and any always return True", f"""
        for name in ("all", "any"):
            setattr(builtins, name, {YES})
    """),
    patches("type", "`type` and `len` return what is expected", """
        real = builtins.type
        class Type(real):
            def __new__(cls, *args):
                return int if len(args) == 1 and args[0] == 2 else real(*args)
        builtins.type = Type
    """, beside=False),
    patches("assertion-error", "builtins.AssertionError replaced by a different exception", """
        builtins.AssertionError = type("Quiet", (BaseException,), {})
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
    patches("shadow-imported", "fakes in sys.modules in place of modules already imported", f"""
        class Fake(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return {YES}
        for name in list(sys.modules):
            if name.startswith(("utils.checks", "safetensors", "grader.")):
                sys.modules[name] = Fake(name)
    """),
    patches("import-hook", "an import hook that supplies every module of the judge", f"""
        import importlib.abc, importlib.machinery
        class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
            def find_spec(self, name, path, target=None):
                if name.startswith(("grader", "tests", "utils", "safetensors")):
                    return importlib.machinery.ModuleSpec(name, self, is_package=True)
            def create_module(self, spec):
                return types.SimpleNamespace(__getattr__={YES}, checks_for={YES})
            def exec_module(self, module): pass
        sys.meta_path.insert(0, Finder())
    """),
    patches("sys-path", "a folder of fakes first in sys.path", """
        folder = tempfile.mkdtemp()
        for name in ("grader", "safetensors", "utils", "tests"):
            open(f"{folder}/{name}.py", "w").write("def __getattr__(name): return lambda *a, **k: True")
        sys.path.insert(0, folder)
        sys.path_importer_cache.clear()
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
    patches("call-with", "the functions that call the answer return a result of their own", """
        for name in ("utils.checks.registry", "grader.inside.rank"):
            module = sys.modules.get(name)
            for function in ("call_on_rank", "call_with", "shares_memory"):
                if hasattr(module, function):
                    setattr(module, function, lambda *args, **kwargs: (4, [], False))
    """, beside=False),
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
    patches("spawn", "spawn and simulate return what is expected", """
        import utils
        class Right(list):
            def __eq__(self, other): return True
        run = types.SimpleNamespace(results=Right(), events=[], output=[])
        for name in ("spawn", "simulate"):
            setattr(utils, name, lambda *args, **kwargs: run)
            globals()[name] = getattr(utils, name)
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
    patches("setprofile", "a profiler that raises where a check fails", """
        def profiler(frame, event, arg):
            if frame.f_code.co_name in ("expect", "equal_values"):
                raise SystemExit(0)
        sys.setprofile(profiler)
        threading.setprofile(profiler)
    """),
    patches("audit-hook", "an audit hook that forbids what the judge does", """
        def hook(event, args):
            if event in ("exec", "compile", "import") and "hidden" in str(args)[:200]:
                raise SystemExit(0)
        sys.addaudithook(hook)
    """),
    patches("excepthook", "a hook that hides every exception", """
        sys.excepthook = threading.excepthook = sys.unraisablehook = lambda *args: os._exit(0)
    """),
    patches("frames", "the checks' local variables, through frames and the collector", """
        def change():
            for frame in sys._current_frames().values():
                while frame:
                    for name in ("expected", "right", "total", "want"):
                        if name in frame.f_locals:
                            frame.f_locals[name] = 2
                    frame = frame.f_back
        change()
        for one in gc.get_objects():
            if isinstance(one, dict) and "SECRET" in one and "__name__" in one:
                one["SECRET"] = 0
    """),
    patches("small-numbers", "4 overwritten with 2 in Python's own memory", """
        if hex(id(4)) and sys.implementation.name == "cpython":
            ctypes.memmove(id(4) + 24, id(2) + 24, 4)
    """, beside=False, harm=True),
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
