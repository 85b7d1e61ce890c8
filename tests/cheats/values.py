"""Cheats in the returned value: objects that claim to be equal, that run code when read, that are not there."""

from __future__ import annotations

from tests.cheats.cheat import Cheat, clean

FRIENDLY = """
    def yes(self, *args, **kwargs):
        return True
    def same(self, *args, **kwargs):
        return self
    friendly = dict.fromkeys("__eq__ __le__ __lt__ __ge__ __gt__ __bool__ __contains__ __isinstance__".split(), yes)
    friendly |= dict.fromkeys("__ne__".split(), lambda self, other: False)
    friendly |= dict.fromkeys("__sub__ __rsub__ __abs__ __add__ __mul__ __truediv__ __getitem__".split(), same)
    friendly |= {"__hash__": lambda self: 0, "__array__": lambda self, *a, **k: np.zeros(())}
"""


def friendly(rest: str) -> str:
    return clean(FRIENDLY) + "\n" + clean(rest)


def returns(name: str, tries: str, gives: str, setup: str = "", **how) -> Cheat:
    return Cheat(f"values/{name}", tries, setup, gives=gives, **how)


CHEATS = [
    # values that nbgrader's own tests of equality accept, and innocent ones like them
    returns("always-equal", "an object that equals everything (__eq__, __sub__)", "prepared",
            friendly('return type("Always", (), friendly)()')),
    returns("nan-score", "score -> nan", "float('nan')"),
    returns("over-max", "a score above the maximum", "10**9"),
    returns("numpy-float", "np.float64(-999), the innocent one", "np.float64(-999)"),
    returns("numpy-right", "the right number as a numpy type", "np.float64(2 * x)"),
    # types that are almost right
    returns("int-subclass", "an int subclass that equals everything", "prepared",
            friendly('return type("Int", (int,), friendly)(3)')),
    returns("metaclass", "a class whose metaclass says yes to isinstance and ==", "prepared",
            friendly("""
                Meta = type("Meta", (type,), {**friendly, "__instancecheck__": lambda *a: True})
                return Meta("int", (), {})
            """)),
    returns("boolean", "True for a number", "True"),
    returns("float-for-int", "the number as a float, which == accepts", "2.0 * x"),
    returns("mock", "a Mock that allows everything", "prepared",
            "from unittest.mock import ANY\nreturn ANY"),
    returns("one-tensor", "a tensor with one element, which == and bool accept", "torch.tensor(2 * x)"),
    returns("generator", "a generator that would compute it later", "(2 * x for _ in range(1))"),
    # values that run code where they are read
    returns("reduce-runs-code", "an object that runs a command when it is unpickled", "prepared", """
        class Bomb:
            def __reduce__(self):
                return os.system, ("touch /tmp/pwned-by-a-cheat; touch pwned-by-a-cheat",)
        return Bomb()
    """),
    returns("pickled-bytes", "bytes that are a pickle", "pickle.dumps(2 * x)"),
    returns("tensor-reduce", "a tensor whose __reduce_ex__ runs a command", "prepared", """
        class Bomb(torch.Tensor):
            def __reduce_ex__(self, protocol):
                return os.system, ("touch /tmp/pwned-by-a-cheat",)
        return torch.ones(2).as_subclass(Bomb)
    """),
    returns("code-in-repr", "an object whose repr and str loop forever", "prepared", """
        class Loops:
            def __repr__(self):
                while True: pass
            __str__ = __format__ = __repr__
        return Loops()
    """),
    # too deep, too long, too strange
    returns("deep-list", "a list 100,000 deep", "prepared", """
        deep = []
        for _ in range(100_000):
            deep = [deep]
        return deep
    """),
    returns("list-in-itself", "a list that holds itself", "prepared", "l = []\nl.append(l)\nreturn l"),
    returns("huge-number", "a number of a million digits", "1 << 4_000_000"),
    returns("huge-text", "200 MB of text", "'x' * 200_000_000"),
    returns("long-list", "a list of 5 million numbers", "[0] * 5_000_000"),
    returns("lone-surrogate", "text that is not valid Unicode", "'\\ud800'"),
    returns("zero-bytes", "text with zero bytes, line ends and terminal codes", "'\\0\\x1b]0;title\\x07\\r\\u202e\\n4'"),
    returns("strange-keys", "a dict whose keys are of every type", "{1: 1, 'b': 2, None: 3, (1, 2): 4, 1.5: 5}"),
    returns("keys-of-the-codec", "dicts and lists that look like a codec's own tags", "prepared", """
        marks = ["tensor", "__tensor__", "$tensor", "dtype", "shape", "type", "tuple", "error", "result", "values", "ok"]
        return [{mark: value} for mark in marks for value in (0, -1, 10**12, "x", None, [1], {"tensor": 0})]
    """),
    returns("exception-as-value", "an exception object, returned", "prepared",
            "class Fine(ValueError):\n    def __str__(self): return '4'\nreturn Fine(4)"),
    returns("module", "a module", "sys"),
    # tensors, in an exercise that wants one
    *[
        returns(name, tries, gives, setup, exercise="total")
        for name, tries, gives, setup in [
            ("tensor-subclass", "a tensor subclass whose __torch_function__ always returns True", "x.as_subclass(prepared)",
             """
                class Yes(torch.Tensor):
                    @classmethod
                    def __torch_function__(cls, function, types, args=(), kwargs=None):
                        return True
                return Yes
             """),
            ("dispatch-subclass", "a wrapper subclass whose __torch_dispatch__ equals everything", "prepared(x)", """
                class Wrapper(torch.Tensor):
                    @staticmethod
                    def __new__(cls, x):
                        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)
                    @classmethod
                    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                        return torch.ones((), dtype=torch.bool)
                return Wrapper
             """),
            ("no-tensor-at-all", "an object with shape, dtype and a friendly __torch_function__", "prepared", """
                class Duck:
                    shape, dtype, device, layout = torch.Size([4]), torch.float32, torch.device("cpu"), torch.strided
                    __class__ = torch.Tensor
                    __torch_function__ = classmethod(lambda *a, **k: True)
                    def __getattr__(self, name): return lambda *a, **k: self
                return Duck()
             """),
            ("parameter", "a Parameter", "torch.nn.Parameter(x)", ""),
            ("nan-tensor", "NaN everywhere", "x * float('nan')", ""),
            ("meta", "a tensor without values", "torch.empty_like(x, device='meta')", ""),
            ("fake", "a FakeTensor", "prepared(x)", """
                from torch._subclasses.fake_tensor import FakeTensorMode
                return FakeTensorMode(allow_non_fake_inputs=True).from_tensor
             """),
            ("sparse", "a sparse tensor", "x.to_sparse()", ""),
            ("quantized", "a quantized tensor", "torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)", ""),
            ("complex-tensor", "a complex tensor", "x.to(torch.complex64)", ""),
            ("lazily-conjugated", "a tensor whose conjugation is still pending", "x.to(torch.complex64).conj()", ""),
            ("nested", "a nested tensor", "torch.nested.nested_tensor([x, x])", ""),
            ("bits", "a tensor of a bit dtype", "torch.empty(4, dtype=torch.bits8)", ""),
            ("one-number", "a tensor that broadcasts", "torch.zeros(())", ""),
            ("empty-tensor", "an empty tensor, for which all() is true", "x[:0]", ""),
            ("many-dimensions", "a tensor of 60 dimensions", "x.reshape([1] * 60 + [-1])", ""),
            ("input-itself", "the input itself", "x", ""),
            ("numpy-array", "an array", "x.numpy()", ""),
            ("storage", "the memory of a tensor", "x.untyped_storage()", ""),
        ]
    ],
    *[
        returns(name, tries, gives, setup, exercise="total")
        for name, tries, gives, setup in [
            ("ten-gigabytes-by-stride", "10 GB of numbers in 4 bytes", "torch.zeros(1).expand(2_500_000_000)", ""),
            ("overlapping", "a view whose elements overlap", "torch.zeros(3).as_strided((2, 2), (1, 1))", ""),
            ("many-tensors", "a list of 20,000 tensors", "[x] * 20_000", ""),
            ("wild-pointer", "a tensor that points at unmapped memory", "prepared()", """
                def wild():
                    array = (ctypes.c_float * 4).from_address(8)
                    return torch.frombuffer(array, dtype=torch.float32)
                return wild
             """),
            ("beyond-its-storage", "a tensor that extends past its memory", "prepared(x)", """
                def beyond(x):
                    y = x.clone()
                    y.untyped_storage().resize_(4)
                    return y
                return beyond
             """),
        ]
    ],
]  # fmt: skip
