"""Rewrites a kernel's memory accesses and arithmetic into calls of an instrument's functions.

Every subscript becomes a call that knows its site (line, array, what it does), so that checks.py can look for faults
and counts.py can count. The generated code carries the instrument's state in one tuple, `_S`.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass

import numpy as np

from labkit.cpu import private
from labkit.cpu.generate import Together, stores
from labkit.cpu.lower import Lowered, assign, call, name

LOCAL, UNKNOWN = -2, -1  # roots: an array of one thread; an array whose origin only its address tells
SPACES = ("global", "shared")


@dataclass(frozen=True)
class Site:
    """One place in the source that touches memory or makes threads meet."""

    line: int
    text: str
    function: str
    array: str
    does: str  # load, store, update, atomic


class Instrument:
    """What checks and counts have in common.

    `names` are the functions that generated code calls; `roots` numbers the arrays: arguments first, then shared.
    """

    mode = ""
    counts_flops = False

    def __init__(self):
        self.sites: list[Site] = []
        self.names: dict[str, object] = {}

    def prepare(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.shared = [d for d in lowered.arrays.values() if d.space == "shared"]
        self.roots = {p: i for i, p in enumerate(lowered.parameters)}
        self.roots |= {d.name: len(self.roots) + i for i, d in enumerate(self.shared)}
        self.roots |= {d.name: LOCAL for d in lowered.arrays.values() if d.space == "local"}
        self.roots |= {f"_p_{p}": i for p, i in self.roots.items() if p in lowered.parameters}
        for v in {v for s in lowered.body for v in stores([s])} & self.roots.keys():
            self.roots.pop(v)  # a parameter that is assigned anew may be another array by then
        self._aliases()

    def _aliases(self) -> None:
        """Views under another name: `row = a[i]`, assigned once."""
        made: dict[str, list[ast.Assign]] = {}
        for s in self.lowered.body:
            for n in ast.walk(s):
                if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name):
                    made.setdefault(n.targets[0].id, []).append(n)
        for v, statements in made.items():
            roots = {self.root(s.value) for s in statements if isinstance(s.value, (ast.Subscript, ast.Name))}
            if len(roots) == 1 and len(statements) == 1 and roots != {UNKNOWN}:
                self.roots[v] = roots.pop()

    def root(self, node: ast.expr) -> int:
        while isinstance(node, ast.Subscript):
            node = node.value
        return self.roots.get(node.id, UNKNOWN) if isinstance(node, ast.Name) else UNKNOWN

    @property
    def written(self) -> set[int]:
        """The roots that the kernel may write; UNKNOWN among them if that can't be told."""
        return self._written(self.lowered)

    def _written(self, lowered: Lowered, inside: bool = False) -> set[int]:
        targets = []
        for n in (n for s in lowered.body for n in ast.walk(s)):
            if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store):
                targets.append(n)
            elif isinstance(n, ast.Call) and getattr(n.func, "id", "").startswith("_atomic_"):
                targets.append(n.args[0])
            elif isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store):
                targets.append(n.value)
        roots = {UNKNOWN if inside else self.root(t) for t in targets}
        return roots.union(*(self._written(d, inside=True) for d in lowered.devices.values()))

    @property
    def dynamic_unit(self) -> int:
        """Bytes of the smallest element among the views of dynamic shared memory."""
        sizes = [private.dtype_of(d.dtype).itemsize for d in self.shared if d.shape == (0,)]
        return min(sizes, default=1)

    # what generated code contains besides the kernel

    def storage(self) -> list[str]:
        return [f"_place(_S, {self.roots[d.name]}, _pointer({d.name}), {d.name}.nbytes)" for d in self.shared]

    def block(self) -> list[str]:
        return ["_begin_block(_S, _b)"]

    def end_block(self) -> list[str]:
        return ["_end_block(_S)"]

    def region(self) -> list[str]:
        return []

    def thread(self) -> list[str]:
        return ["_begin_thread(_S, _t)"]

    def barrier(self, at: Together) -> list[str]:
        return [f"_barrier(_S, _off, {self.site(at, '', at.name)})"]

    def warp(self, at: Together) -> list[str]:
        return [f"_warp(_S, _off, {self.site(at, '', at.name)})"]

    def loop(self, s: ast.For | ast.While) -> list[ast.stmt]:
        """A loop inside a region."""
        return [s]

    # statements

    def site(self, node: ast.AST, array: str, does: str) -> int:
        origin = node.origin
        self.sites.append(Site(node.lineno, origin.line(node.lineno), origin.name, array, does))
        return len(self.sites) - 1

    def statements(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return _Accesses(self).block(statements)

    def device_statements(self, lowered: Lowered) -> list[ast.stmt]:
        """Of a device function, whose parameters may be any array."""
        mine, self.roots = self.roots, dict.fromkeys(lowered.arrays, LOCAL)
        body = self.statements(copy.deepcopy(lowered.body))
        self.roots = mine
        return body


class _Accesses(ast.NodeTransformer):
    def __init__(self, instrument: Instrument):
        self.instrument = instrument
        self.loops = 0

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
        value = f"_v{id(s) & 0xFFFFFF:x}"  # a[i], b[j] = x, y or a[i] = b[j] = x: the value first
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
        index = f"_k{id(s) & 0xFFFFFF:x}"  # the index is evaluated once
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
        if isinstance(node.value, ast.Name) and node.value.id.startswith("_v"):
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


def extents(arguments: tuple) -> list[tuple[int, int]]:
    """(first byte, byte past the last) of each argument that is an array; (0, 0) for others."""
    bounds = np.lib.array_utils.byte_bounds
    return [bounds(a) if isinstance(a, np.ndarray) and a.size else (0, 0) for a in arguments]


def place_arguments(arguments: tuple, written: set[int]) -> tuple[np.ndarray, int]:
    """The table of arrays (base, end, log2 of the unit, first shadow, space, watched) and how many shadows they take.

    Arguments that overlap in memory share their shadows, so that an array passed twice is one array. What the kernel
    never writes needs none.
    """
    table = np.zeros((len(arguments), 6), np.int64)
    groups: list[list[int]] = []
    spans = extents(arguments)
    for i in sorted((i for i, (a, b) in enumerate(spans) if b > a), key=lambda i: spans[i]):
        if groups and spans[i][0] < max(spans[j][1] for j in groups[-1]):
            groups[-1].append(i)
        else:
            groups.append([i])
    used = 0
    for group in groups:
        base, end = min(spans[i][0] for i in group), max(spans[i][1] for i in group)
        unit = min(unit_of(arguments[i].dtype) for i in group)
        watched = bool(written & set(group)) or UNKNOWN in written
        for i in group:
            table[i] = base, end, unit, used, 0, watched
        used += (((end - base) >> unit) + 1) * watched
    return table, used


def unit_of(dtype: np.dtype) -> int:
    """log2 of the bytes that a shadow stands for: the largest power of two that divides an element (or its fields)."""
    sizes = [dtype.itemsize, *(n for d, offset in (dtype.fields or {}).values() for n in (d.itemsize, offset) if n)]
    return min((n & -n).bit_length() - 1 for n in sizes)
