"""Rewrites statements so that every subscript, and where asked every operation, becomes a call."""

from __future__ import annotations

import ast
import copy

from labkit.cpu.tree import assign, call, name


class Accesses(ast.NodeTransformer):
    """Rewrites a list of statements for an instrument."""

    def __init__(self, instrument):
        self.instrument = instrument
        self.loops = 0

    def new(self, stem: str) -> str:
        """A name that no kernel has; the accesses that follow, each a site, make the next one another."""
        return f"_{stem}_{len(self.instrument.sites)}"

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [new for s in statements for new in self.statement(s)]

    def statement(self, s: ast.stmt) -> list[ast.stmt]:
        if isinstance(s, ast.Assign):
            return self.assignment(s)
        if isinstance(s, ast.AugAssign):
            return self.update(s)
        if isinstance(s, (ast.For, ast.While)):
            return self.loop(s)
        if isinstance(s, ast.If):
            s.test = self.visit(s.test)
            s.body, s.orelse = self.block(s.body), self.block(s.orelse)
            return [s]
        return [self.generic_visit(s)]

    def loop(self, s) -> list[ast.stmt]:
        if isinstance(s, ast.For):
            s.iter = self.visit(s.iter)
        else:
            s.test = self.visit(s.test)
        s.body, s.orelse = self.block(s.body), self.block(s.orelse)
        return self.instrument.loop(s)

    def assignment(self, s: ast.Assign) -> list[ast.stmt]:
        s.value = self.visit(s.value)
        s.targets = [_field(t) if _is_field(t) else t for t in s.targets]
        plain = [t for t in s.targets if not self.writes(t)]
        if len(plain) == len(s.targets):
            return [s]
        if len(s.targets) == 1 and isinstance(s.targets[0], ast.Subscript) and not _is_name(s.targets[0].slice):
            return [self.store(s.targets[0], s.value, s)]
        value = self.new("assigned")  # a[i], b[j] = x, y or a[i] = b[j] = x: the value first
        return [assign(value, s.value, s), *self.spread(s.targets, name(value), s)]

    def spread(self, targets: list[ast.expr], value: ast.expr, s: ast.stmt) -> list[ast.stmt]:
        out = []
        for t in targets:
            if isinstance(t, (ast.Tuple, ast.List)):
                for i, element in enumerate(t.elts):
                    part = ast.Subscript(copy.deepcopy(value), ast.Constant(i), ast.Load())
                    out += self.spread([element], part, s)
            elif isinstance(t, ast.Subscript) and not _is_name(t.slice):
                out.append(self.store(t, copy.deepcopy(value), s))
            else:
                out.append(ast.fix_missing_locations(ast.copy_location(ast.Assign([t], copy.deepcopy(value)), s)))
        return out

    @staticmethod
    def writes(target: ast.expr) -> bool:
        return any(isinstance(n, ast.Subscript) for n in ast.walk(target))

    def store(self, target: ast.Subscript, value: ast.expr, s: ast.stmt) -> ast.stmt:
        return self.as_statement(self.access("_st", target, "store", value), s)

    def update(self, s: ast.AugAssign) -> list[ast.stmt]:
        s.value = self.visit(s.value)
        if isinstance(s.target, ast.Name):
            if not self.instrument.counts_flops:
                return [s]
            new = ast.BinOp(name(s.target.id), s.op, s.value)
            return [assign(s.target.id, call("_flop", name("_S"), new), s)]
        if not isinstance(s.target, ast.Subscript):
            return [s]
        index = self.new("index")  # the index is evaluated once
        ahead = assign(index, self.visit(_Slices().visit(s.target.slice)), s)
        target = ast.copy_location(ast.Subscript(s.target.value, name(index), ast.Load()), s.target)
        target.origin = s.target.origin
        old = self.access("_ld", copy.deepcopy(target), "load")
        new = self.flop(ast.copy_location(ast.BinOp(old, s.op, s.value), s))
        return [ahead, self.as_statement(self.access("_st", target, "store", new), s)]

    def as_statement(self, expression: ast.expr, s: ast.stmt) -> ast.stmt:
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(expression), s))

    # expressions

    def access(self, function: str, node: ast.Subscript, does: str, *more: ast.expr) -> ast.Call:
        root = self.instrument.root(node.value)
        site = self.instrument.site(node, ast.unparse(node.value), does)
        base, index = self.visit(node.value), self.visit(_Slices().visit(node.slice))
        return call(function, name("_S"), base, index, _number(root), _number(site), *more)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self.visit(_field(node)) if _is_field(node) else self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            return node
        if _is_name(node.slice):
            if isinstance(node.value, ast.Subscript) and not _is_name(node.value.slice):
                return self.visit(_field(node))
            node.value = self.visit(node.value)
            return node
        if isinstance(node.value, ast.Name) and node.value.id.startswith("_assigned_"):
            return node
        return ast.copy_location(self.access("_ld", node, "load"), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = getattr(node.func, "id", "")
        if function.startswith("_atomic_"):
            index = node.args[1] if function != "_atomic_compare_and_swap" else ast.Constant(0)
            target = ast.copy_location(ast.Subscript(node.args[0], index, ast.Load()), node)
            target.origin = node.origin
            node.args = [self.access("_at", copy.deepcopy(target), "atomic"), *map(self.visit, node.args[1:])]
            return node
        if function == "_fence":
            node.args = [name("_S")]
            return node
        if function.startswith("_d_") and self.instrument.mode == "counted":
            return self.counted_call(node)
        if isinstance(node.func, ast.Attribute):  # a method is no field
            node.func.value = self.visit(node.func.value)
            node.args = [self.visit(a) for a in node.args]
            return node
        return self.generic_visit(node)

    def counted_call(self, node: ast.Call) -> ast.expr:
        """A call of a device function, whose accesses are told apart by where it was called."""
        site = _number(self.instrument.site(node, "", "call"))
        arguments = [self.visit(a) for a in node.args[1:]]
        context = call("_entering", name("_S"), node.args[0], site)
        return call("_leaving", name("_S"), site, call(node.func.id, context, *arguments))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self.flop(self.generic_visit(node))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        return self.generic_visit(node)

    def flop(self, node: ast.BinOp) -> ast.expr:
        counted = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod, ast.FloorDiv))
        if not (self.instrument.counts_flops and counted):
            return node
        return ast.copy_location(call("_flop", name("_S"), node), node)


NOT_FIELDS = {"real", "imag", "shape", "strides", "size", "ndim", "dtype", "itemsize", "nbytes", "T", "flat"}


def _is_name(index: ast.expr) -> bool:
    """Whether a subscript names a record's field."""
    return isinstance(index, ast.Constant) and isinstance(index.value, str)


def _is_field(node: ast.expr) -> bool:
    """`a[i].x` or `a[i]["x"]`: a field of one record of an array."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Subscript) and node.attr not in NOT_FIELDS
    return isinstance(node, ast.Subscript) and _is_name(node.slice) and isinstance(node.value, ast.Subscript)


def _field(node: ast.Attribute | ast.Subscript) -> ast.Subscript:
    """The same as one element of the array of that field: `a["x"][i]`."""
    field = node.attr if isinstance(node, ast.Attribute) else node.slice.value
    of = ast.Subscript(node.value.value, ast.Constant(field), ast.Load())
    element = ast.copy_location(ast.Subscript(of, node.value.slice, node.ctx), node)
    element.origin = node.origin
    return ast.fix_missing_locations(element)


class _Slices(ast.NodeTransformer):
    """`a:b` as `slice(a, b)`, which may stand in a call's arguments."""

    def visit_Slice(self, node: ast.Slice) -> ast.expr:
        parts = [node.lower or ast.Constant(None), node.upper or ast.Constant(None)]
        return call("slice", *parts, *([node.step] if node.step else []))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node  # inside an index: another access, which sees to itself


def _number(n: int) -> ast.expr:
    return ast.parse(str(n), mode="eval").body
