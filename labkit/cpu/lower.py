"""From a kernel's tree to statements that are either free of synchronisation or built around it.

After `lower` a kernel knows no `cuda` any more: indices are names (`_tx`), shared and local arrays are declarations,
device functions that synchronise are inlined, and everything that threads do together (a barrier, a shuffle, a vote)
stands alone as a `Together` statement, its operands in variables of their own. The way is that of MCUDA (Stratton,
Stone, Hwu 2008) and PoCL: the code between two such statements becomes a loop over the threads of a block.
"""

from __future__ import annotations

import ast
import copy

from labkit.cpu.expressions import Expressions
from labkit.cpu.source import BadKernel, Source, Unsupported
from labkit.cpu.tree import Declaration, Lowered, as_list, assign, parse, synchronises


def lower(function, stack: tuple = (), numbers: dict | None = None) -> Lowered:
    """Lower a kernel or device function (a Python function). `numbers`: those of the device functions met so far."""
    source = Source(function)
    if function in stack:
        raise BadKernel(f"{source.name} calls itself: recursion doesn't run on a GPU in numba.cuda")
    result = Lowered(source, parameters=source.parameters)
    body = copy.deepcopy(source.tree.body)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and body[0].value.value is not ...:
        body = body[1:]  # the docstring
    body = _own_parameters(source, body)
    result.body = _Lowering(result, (*stack, function), {} if numbers is None else numbers).block(body)
    for statement in result.body:
        for node in ast.walk(statement):
            if not hasattr(node, "origin"):  # else it comes from an inlined function
                node.origin = source
    return result


def _own_parameters(source: Source, body: list[ast.stmt]) -> list[ast.stmt]:
    """Give each thread its own copy of the parameters that the kernel reassigns."""
    stored = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    owned = [p for p in source.parameters if p in stored]
    return [ast.copy_location(parse(f"{p} = _p_{p}"), source.tree) for p in owned] + body


class _Lowering:
    """Walks the statements; `before` collects what must run ahead of the statement at hand."""

    def __init__(self, result: Lowered, stack: tuple, numbers: dict):
        self.result, self.source, self.stack, self.numbers = result, result.source, stack, numbers
        self.before: list[ast.stmt] = []
        self.counter = 0

    def new(self, stem: str) -> str:
        """A name that no kernel has."""
        self.counter += 1
        return f"_{stem}{len(self.stack)}_{self.counter}"

    # statements

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            outer, self.before = self.before, []
            lowered = self.statement(statement)
            out += self.before + lowered
            self.before = outer
        return out

    def statement(self, s: ast.stmt) -> list[ast.stmt]:
        if isinstance(s, ast.Assign) and self.declares(s):
            return []
        if isinstance(s, ast.AnnAssign):
            if s.value is None:
                return []
            s = ast.copy_location(ast.Assign([s.target], s.value), s)
        if isinstance(s, ast.Return):
            if s.value is not None and not isinstance(s.value, ast.Constant) and len(self.stack) == 1:
                raise BadKernel(f"{self.source.at(s)}: a kernel returns nothing; write into an array")
            if s.value is not None:
                s.value = self.expression(s.value)
            return [s]
        if isinstance(s, ast.If):
            s.test = self.expression(s.test)
            s.body, s.orelse = self.block(s.body), self.block(s.orelse)
            return [s]
        if isinstance(s, (ast.While, ast.For)):
            return self.loop(s)
        if isinstance(s, (ast.Assign, ast.AugAssign, ast.Expr)):
            s.value = self.expression(s.value)
            for target in s.targets if isinstance(s, ast.Assign) else [getattr(s, "target", None)]:
                self.target(target)
            useless = isinstance(s, ast.Expr) and isinstance(s.value, (ast.Constant, ast.Name))
            return [] if useless else [s]
        if isinstance(s, (ast.Pass, ast.Break, ast.Continue, ast.Raise)):
            return [s]
        if isinstance(s, ast.Assert):
            s.test = self.expression(s.test)
            return [s]
        raise Unsupported(f"{self.source.at(s)}: {type(s).__name__}")

    def target(self, target: ast.expr | None) -> None:
        """Lower the indices of an assignment's target."""
        for node in ast.walk(target) if target is not None else ():
            if isinstance(node, ast.Subscript):
                node.slice = self.expression(node.slice)
                if not isinstance(node.value, ast.Name):
                    node.value = self.expression(node.value)

    def loop(self, s: ast.While | ast.For) -> list[ast.stmt]:
        """A loop; its `else`, where it meets a barrier, as an `if` on a flag that each `break` sets."""
        lower_it = self.while_loop if isinstance(s, ast.While) else self.for_loop
        if not s.orelse:
            return lower_it(s)
        plain = lower_it(copy.deepcopy(s))
        if not any(synchronises(x) for x in plain):
            return plain
        left = self.new("left")
        orelse, s.orelse = s.orelse, []
        s.body = [x for b in s.body for x in as_list(_FlaggedBreaks(left, s).visit(b))]
        otherwise = ast.copy_location(ast.If(parse(f"{left} == 0").value, orelse, []), s)
        ast.fix_missing_locations(otherwise)
        return [assign(left, ast.Constant(0), s), *lower_it(s), *self.block([otherwise])]

    def while_loop(self, s: ast.While) -> list[ast.stmt]:
        outer, self.before = self.before, []
        test = self.expression(copy.deepcopy(s.test))
        ahead, self.before = self.before, outer
        body, orelse = self.block(s.body), self.block(s.orelse)
        if ahead:  # the test itself synchronises: while True: test; if not test: break
            leave = ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), test), [ast.Break()], []), s)
            ast.fix_missing_locations(leave)
            body, test = [*ahead, leave, *body], ast.copy_location(ast.Constant(True), s)
        s.test, s.body, s.orelse = test, body, orelse
        return [s]

    def for_loop(self, s: ast.For) -> list[ast.stmt]:
        s.iter = self.expression(s.iter)
        s.body, s.orelse = self.block(s.body), self.block(s.orelse)
        if not any(synchronises(x) for x in s.body + s.orelse):
            return [s]
        is_range = isinstance(s.iter, ast.Call) and getattr(s.iter.func, "id", "") == "range"
        if s.orelse:
            return [s]  # seen to by `loop`
        if not is_range or not isinstance(s.target, ast.Name):
            raise Unsupported(f"{self.source.at(s)}: a barrier in a loop that isn't `for name in range(...)`")
        return self.as_while(s)

    def as_while(self, s: ast.For) -> list[ast.stmt]:
        """A counting loop with a barrier in it, as a while loop whose state each thread keeps."""
        arguments = s.iter.args
        start = arguments[0] if len(arguments) > 1 else ast.Constant(0)
        stop = arguments[1] if len(arguments) > 1 else arguments[0]
        step = arguments[2] if len(arguments) > 2 else ast.Constant(1)
        i, n, by = self.new("i"), self.new("n"), self.new("by")
        down = isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub)
        if isinstance(step, ast.Constant) or (down and isinstance(step.operand, ast.Constant)):
            test = f"{i} > {n}" if down else f"{i} < {n}"
        else:
            test = f"({i} < {n}) if {by} > 0 else ({i} > {n})"
        head = [assign(i, start, s), assign(n, stop, s), assign(by, step, s)]
        loop = parse(f"while {test}:\n    {s.target.id} = {i}\n    {i} = {i} + {by}")
        for node in ast.walk(loop):
            ast.copy_location(node, s)
        loop.body += s.body
        return [*head, loop]

    # declarations

    def declares(self, s: ast.Assign) -> bool:
        """Whether the statement declares a shared or local array; if so it is noted."""
        if not isinstance(s.value, ast.Call):
            return False
        what = self.source.cuda_name(s.value.func)
        if what not in ("shared.array", "local.array"):
            return False
        if len(s.targets) != 1 or not isinstance(s.targets[0], ast.Name):
            raise Unsupported(f"{self.source.at(s)}: an array declared into something that is not a plain name")
        self.declare(s.targets[0].id, what, s.value)
        return True

    def declare(self, target: str, what: str, node: ast.Call) -> None:
        given = dict(zip(("shape", "dtype", "alignment"), node.args, strict=False))
        given |= {k.arg: k.value for k in node.keywords}
        if not {"shape", "dtype"} <= given.keys():
            raise BadKernel(f"{self.source.at(node)}: cuda.{what} takes a shape and a dtype")
        for computed in _computed(given["shape"]):  # numba.cuda can't type it: it would run here alone
            raise BadKernel(
                f"{self.source.at(node)}: numba.cuda takes numbers and names as an array's shape, not {computed!r}; "
                f"give it a name outside the kernel, as in SIZE = {computed}"
            )
        shape, dtype = self.constant(given["shape"], node), self.constant(given["dtype"], node)
        shape = shape if isinstance(shape, tuple) else (shape,)
        if not all(hasattr(n, "__index__") for n in shape):
            raise BadKernel(f"{self.source.at(node)}: the shape of {what} must be constant integers, found {shape}")
        shape = tuple(int(n) for n in shape)
        known = self.result.arrays.get(target)
        if known and (known.shape, known.dtype) != (shape, dtype):
            raise Unsupported(f"{self.source.at(node)}: {target} is declared twice, differently")
        self.result.arrays[target] = Declaration(target, what.split(".")[0], shape, dtype, node.lineno)

    def constant(self, node: ast.expr, at: ast.AST) -> object:
        """The value of a constant expression: a literal, a free name, a tuple or arithmetic of them."""
        free = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & self.source.locals
        if free:
            raise BadKernel(f"{self.source.at(at)}: {sorted(free)[0]} is a variable; an array's shape must be constant")
        return eval(compile(ast.Expression(node), self.source.file, "eval"), dict(self.source.names))

    # expressions

    def expression(self, node: ast.expr) -> ast.expr:
        return Expressions(self).visit(node)


def _computed(shape: ast.expr) -> list[str]:
    """The parts of a shape that are computed from names, as they stand in the source."""
    parts = [n for n in ast.walk(shape) if isinstance(n, ast.BinOp | ast.UnaryOp | ast.Call)]
    return [ast.unparse(n) for n in parts if any(isinstance(m, ast.Name) for m in ast.walk(n))]


class _FlaggedBreaks(ast.NodeTransformer):
    """Sets a flag ahead of each `break` of one loop."""

    def __init__(self, flag: str, at: ast.AST):
        self.flag, self.at = flag, at

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return [assign(self.flag, ast.Constant(1), self.at), node]

    def visit_For(self, node):
        return node  # its breaks are its own

    visit_While = visit_For
