"""What calls of `dist` return, where a program takes that for their result: the first mistake of every newcomer.

    misused_value("dist.all_reduce(x)\\ntotal += dist.recv(y, src=0)")
        -> "`total += dist.recv(y, src=0)` takes what recv returns: the sender's rank. ..."

Read from the source, since the values say little: a rank number that was added is a number like any other.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from ..events.collectives import COLLECTIVES

NOTHING, SENDER, HANDLE = "None", "the sender's rank", "a handle"
WHAT_TO_DO = {
    NOTHING: "{op} works on what you pass: call it on a line of its own, and go on with that.",
    SENDER: "What came is in the tensor that you pass: call {op} on a line of its own, and go on with that tensor.",
    HANDLE: "Call wait() on it, and go on with the tensor that you passed.",
}
ONLY_ASYNC = "Only with async_op=True does {op} return a handle, to wait for."
KEEPS = ("grad", "data")  # attributes that hold a tensor; others may well hold handles
LONGEST = 60  # characters of a quoted line


def misused_value(source: str, line: int = 0) -> str:
    """A sentence on the first value of a `dist` call that is taken for its result; "" if there is none.

    source  of a function or of a cell; "" is said of what isn't Python, such as a cell with a magic
    line    only look into the function around this line, counted from 1; 0 for everywhere
    """
    try:
        tree: ast.AST = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return ""
    for node in ast.walk(tree) if line else ():  # outer functions come before inner ones
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            tree = node
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for call in sorted(calls_of_dist(tree), key=lambda one: one.lineno):
        op, returns = call.func.attr, what_returns(call)  # type: ignore[attr-defined]
        if user := misuse(call, returns, tree, parents):
            code = ast.unparse(user).split("\n")[0]
            code = code if len(code) <= LONGEST else code[: LONGEST - 4] + " ..."
            kept = isinstance(user, ast.Attribute | ast.Call) or isinstance(parents[call], ast.Tuple)  # to wait for it
            what_to_do = (ONLY_ASYNC if kept and returns == NOTHING else WHAT_TO_DO[returns]).format(op=op)
            return f"`{code}` takes what {op} returns: {returns}. {what_to_do}"
    return ""


def calls_of_dist(tree: ast.AST) -> Iterator[ast.Call]:
    """Messages and collectives, called as dist.name(...) or torch.distributed.name(...)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, of = node.func.attr, ast.unparse(node.func.value)
            moves = name.startswith((*COLLECTIVES, "send", "recv")) or name in ("isend", "irecv")
            if of in ("dist", "torch.distributed") and moves:
                yield node


def what_returns(call: ast.Call) -> str:
    name = call.func.attr  # type: ignore[attr-defined]
    waits = [one.value for one in call.keywords if one.arg == "async_op"]
    if name in ("isend", "irecv") or any(not isinstance(one, ast.Constant) or one.value for one in waits):
        return HANDLE
    return SENDER if name.startswith("recv") else NOTHING


def misuse(call: ast.Call, returns: str, tree: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST | None:
    """The statement or expression that takes the value of a call for its result; None if nothing does."""
    value: ast.AST = call
    user = parents.get(call)
    while isinstance(user, ast.IfExp | ast.NamedExpr | ast.Tuple):
        value, user = user, parents.get(user)
    if isinstance(user, ast.BinOp | ast.AugAssign):
        return user
    if isinstance(user, ast.Assign):
        [target, *_] = user.targets
        if isinstance(target, ast.Attribute) and target.attr in KEEPS:
            return user
        if isinstance(target, ast.Subscript) and returns != HANDLE:
            return user
        named = isinstance(target, ast.Name) and any(taken_for_a_tensor(call, returns, target.id, user, tree, parents))
        return user if named else None
    if returns == HANDLE or isinstance(user, ast.Expr):
        return None
    if isinstance(user, ast.ListComp | ast.GeneratorExp) and user.elt is value:
        outer = parents.get(user)
        while isinstance(outer, ast.IfExp | ast.BoolOp):
            outer = parents.get(outer)
        return None if isinstance(outer, ast.Expr) else user
    appends = isinstance(user, ast.Call) and isinstance(user.func, ast.Attribute) and user.func.attr == "append"
    return user if appends or isinstance(user, ast.Return | ast.Attribute) else None


def taken_for_a_tensor(
    call: ast.Call, returns: str, name: str, kept: ast.Assign, tree: ast.AST, parents: dict[ast.AST, ast.AST]
) -> Iterator[bool]:
    """For each place that reads the name before it gets another value: whether it must mean a tensor there."""
    if returns == SENDER and len(call.args) < 2 and not any(one.arg in ("src", "group_src") for one in call.keywords):
        return  # from anybody: then the sender's rank is worth keeping
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    later = [node.lineno for node in names if isinstance(node.ctx, ast.Store) and node.lineno > kept.lineno]
    for node in names:
        if isinstance(node.ctx, ast.Load) and kept.lineno < node.lineno <= min(later, default=node.lineno):
            computes = isinstance(parents.get(node), ast.BinOp | ast.AugAssign)
            is_tested = isinstance(parents.get(node), ast.If | ast.Compare | ast.BoolOp | ast.IfExp | ast.Expr)
            yield computes if returns == HANDLE else not is_tested
