"""From lowered statements to the Python function that runs a range of blocks.

Each stretch between two meeting points becomes a loop over the threads of a block. One array says which threads take
part: `_off[t]` is 0 for a thread that runs, else the depth of the construct (branch, loop, inlined function) whose end
it waits for; 1 means that it has returned. So a branch, a `break` or a `return` around a barrier is a number, and the
barrier knows who is missing.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field

from labkit.cpu.lower import Lowered, Scope, Together, synchronises
from labkit.cpu.source import Unsupported

RETURNED = 1
SCALARS = ["_bdx", "_bdy", "_bdz", "_gdx", "_gdy", "_gdz"]
PER_THREAD = {
    "_tx": "np.int32(_x)",
    "_ty": "np.int32(_y)",
    "_tz": "np.int32(_z)",
    "_gx": "np.int64(_bx) * _bdx + _x",
    "_gy": "np.int64(_by) * _bdy + _y",
    "_gz": "np.int64(_bz) * _bdz + _z",
    "_gsx": "np.int64(_bdx) * _gdx",
    "_gsy": "np.int64(_bdy) * _gdy",
    "_gsz": "np.int64(_bdz) * _gdz",
    "_lane": "np.int32(_t % 32)",
    "_warpsize": "np.int32(32)",
    "_lanemask_lt": "np.uint32((1 << (_t % 32)) - 1)",
}
CONTEXT = ["_tx", "_ty", "_tz", "_bx", "_by", "_bz", *SCALARS, "_t"]
DERIVED = {n: e.replace("_x", "_tx").replace("_y", "_ty").replace("_z", "_tz") for n, e in PER_THREAD.items()}


# the shape of a kernel


@dataclass
class Region:
    """Statements that a thread runs without meeting another."""

    body: list[ast.stmt]


@dataclass
class Meet:
    at: Together


@dataclass
class Branch:
    test: ast.expr
    body: list
    orelse: list


@dataclass
class Loop:
    test: ast.expr
    body: list


@dataclass
class Inlined:
    key: str
    body: list


def shape(statements: list[ast.stmt]) -> list:
    """Statements as regions and the constructs that hold meeting points."""
    items: list = []
    for s in statements:
        if not synchronises(s):
            if not items or not isinstance(items[-1], Region):
                items.append(Region([]))
            items[-1].body.append(s)
        elif isinstance(s, Together):
            items.append(Meet(s))
        elif isinstance(s, ast.If):
            items.append(Branch(s.test, shape(s.body), shape(s.orelse)))
        elif isinstance(s, ast.While):
            items.append(Loop(s.test, shape(s.body)))
        elif isinstance(s, Scope):
            items.append(Inlined(s.key, shape(s.body)))
        else:
            raise Unsupported(f"line {s.lineno}: a barrier inside {type(s).__name__}")
    return items


def regions(items: list):
    """Every stretch of single-thread code: regions, and the tests of branches and loops."""
    for item in items:
        if isinstance(item, Region):
            yield item.body
        elif isinstance(item, (Branch, Loop)):
            yield [ast.Expr(item.test)]
            yield from regions(item.body)
            yield from regions(getattr(item, "orelse", []))
        elif isinstance(item, Inlined):
            yield from regions(item.body)


def meetings(items: list):
    for item in items:
        if isinstance(item, Meet):
            yield item.at
        elif not isinstance(item, Region):
            yield from meetings(item.body)
            yield from meetings(getattr(item, "orelse", []))


# liveness


def loads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def stores(statements: list[ast.stmt]) -> set[str]:
    return {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


@dataclass
class Flow:
    """What a stretch of code may read before it writes it, and what it has written for certain at its end."""

    exposed: set[str] = field(default_factory=set)

    def through(self, statements: list[ast.stmt], defined: set[str] | None) -> set[str] | None:
        """The names surely written after the statements; None where the end can't be reached."""
        for s in statements:
            if defined is None:
                return None
            defined = self.step(s, defined)
        return defined

    def read(self, node: ast.AST, defined: set[str]) -> None:
        self.exposed |= loads(node) - defined

    def step(self, s: ast.stmt, defined: set[str]) -> set[str] | None:
        if isinstance(s, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
            self.read(s, defined)
            return None
        if isinstance(s, ast.If):
            self.read(s.test, defined)
            ends = [
                e for e in (self.through(s.body, set(defined)), self.through(s.orelse, set(defined))) if e is not None
            ]
            return set.intersection(*ends) if ends else None
        if isinstance(s, ast.While):
            self.read(s.test, defined)
            self.through(s.body, set(defined))
            self.through(s.orelse, set(defined))
            return defined
        if isinstance(s, ast.For):
            self.read(s.iter, defined)
            self.through(s.body, defined | stores([ast.Expr(s.target)]))
            self.through(s.orelse, set(defined))
            return defined
        if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name):
            self.exposed |= {s.target.id} - defined
        self.read(s, defined)
        return defined | stores([s])


def flow(statements: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """(exposed, surely written at the end)."""
    found = Flow()
    end = found.through(statements, set())
    return found.exposed, end if end is not None else stores(statements)


# code


class Code:
    """Lines of Python with an indentation."""

    def __init__(self):
        self.lines: list[str] = []
        self.depth = 0

    def add(self, *lines: str) -> None:
        for text in lines:
            self.lines += ["    " * self.depth + line for line in text.splitlines()]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class Generator:
    """Writes the function of one kernel.

    types      name -> NumPy dtype of variables that live across a meeting point (asked when needed)
    instrument  what to add around memory accesses and meeting points (see instrument.py), or None
    """

    def __init__(self, lowered: Lowered, instrument=None):
        self.lowered, self.instrument = lowered, instrument
        self.items = shape(lowered.body)
        self.meets = list(meetings(self.items))
        self.kept = self._kept()
        self.names = set().union(
            *(_names(r) for r in regions(self.items)), *map(_device_names, lowered.devices.values())
        )
        self.code = Code()

    @property
    def synchronises(self) -> bool:
        return bool(self.meets)

    def _kept(self) -> list[str]:
        """Variables that must outlive a region: read in one that has not written them before, or at a meeting."""
        assigned = set().union(*(stores(r) for r in regions(self.items)))
        uniform = {m.result for m in self.meets if m.whole_block}
        results = {m.result for m in self.meets} - uniform
        exposed = set().union(*(flow(r)[0] for r in regions(self.items)), *(loads(m) for m in self.meets))
        if not self.meets:
            return []
        return sorted((exposed & assigned | results & exposed) - uniform)

    def function(self, name: str, types: dict[str, object], remade: dict[str, ast.expr]) -> str:
        """The source of the function. `remade`: kept variables that can't be stored, and how to make them again."""
        self.types, self.remade = types, remade
        add, code = self.code.add, self.code
        owned = {f"_p_{p}" for p in self.lowered.parameters} & self.names
        parameters = [f"_p_{p}" if f"_p_{p}" in owned else p for p in self.lowered.parameters]
        extra = ["_S"] if self.instrument else []
        add(f"def {name}({', '.join(['_first', '_last', *SCALARS, '_dynamic', '_fault', *extra, *parameters])}):")
        code.depth = 1
        add("_T = np.int64(_bdx) * _bdy * _bdz")
        self._storage()
        add("for _b in range(_first, _last):")
        code.depth = 2
        add("_bx = np.int32(_b % _gdx)", "_by = np.int32(_b // _gdx % _gdy)", "_bz = np.int32(_b // _gdx // _gdy)")
        if self.instrument:
            add(*self.instrument.block())
        if self.synchronises:
            add("_off[:] = 0")
        self.emit(self.items, 2, None)
        if self.instrument:
            add(*self.instrument.end_block())
        if not self.items:
            add("pass")
        return code.text()

    def _storage(self) -> None:
        add = self.code.add
        for d in self.lowered.arrays.values():
            if d.space == "shared" and d.shape == (0,):
                add(f"{d.name} = _dynamic_view(_dynamic, _dt_{d.name}, _dt_{d.name}_itemsize)")
            elif d.space == "shared" or not self.synchronises:
                add(f"{d.name} = np.empty({d.shape}, _dt_{d.name})")
            else:
                add(f"{d.name}_ = np.empty((_T, {', '.join(map(str, d.shape))}), _dt_{d.name})")
        if self.synchronises:
            add("_off = np.empty(_T, np.int16)")
        for v in self.kept:
            if v not in self.remade:
                add(f"{v}_ = np.empty(_T, _dt_{v})")
        if self.instrument:
            add(*self.instrument.storage())

    # structure

    def emit(self, items: list, depth: int, loop: int | None, scopes: dict[str, int] | None = None) -> None:
        scopes = scopes or {}
        for item in items:
            if isinstance(item, Region):
                self.region(item.body, loop, scopes)
            elif isinstance(item, Meet):
                self.meet(item.at)
            elif isinstance(item, Branch):
                self.branch(item, depth, loop, scopes)
            elif isinstance(item, Loop):
                self.loop(item, depth, scopes)
            else:
                self.emit(item.body, depth + 1, None, scopes | {item.key: depth})
                self.code.add(f"_resume(_off, {depth})")

    def branch(self, item: Branch, depth: int, loop: int | None, scopes) -> None:
        self.test(item.test, "", f"_off[_t] = {depth}")
        self.emit(item.body, depth + 1, loop, scopes)
        if item.orelse:
            self.code.add(f"_swap(_off, {depth})")
            self.emit(item.orelse, depth + 1, loop, scopes)
        self.code.add(f"_resume(_off, {depth})")

    def loop(self, item: Loop, depth: int, scopes) -> None:
        add, code = self.code.add, self.code
        add("while True:")
        code.depth += 1
        if not (isinstance(item.test, ast.Constant) and item.test.value):
            self.test(item.test, "", f"_off[_t] = {depth}")
        add("if not _any_active(_off):", "    break")
        self.emit(item.body, depth + 2, depth, scopes)
        add(f"_resume(_off, {depth + 1})")
        code.depth -= 1
        add(f"_resume(_off, {depth})")

    def test(self, test: ast.expr, then: str, otherwise: str) -> None:
        expression = self._instrumented([ast.copy_location(ast.Expr(test), test)])
        *ahead, last = expression

        def body():
            self.code.add(*map(_unparse, ahead))
            self.code.add(f"if not ({_unparse(last.value)}):", f"    {otherwise}")

        self.threads([ast.Expr(test)], body, writes=set())

    def region(self, statements: list[ast.stmt], loop: int | None, scopes: dict[str, int]) -> None:
        written = stores(statements) & set(self.kept) - set(self.remade)
        save = [ast.parse(f"{v}_[_t] = {v}").body[0] for v in sorted(written)]
        exits = _Exits(loop, scopes, save, self.synchronises)
        body = exits.rewrite(self._instrumented(statements))

        def write():
            if exits.flagged:
                self.code.add("_left = 0")
            self.code.add(*map(_unparse, body))
            self.code.add(*(_unparse(s) for s in save))

        self.threads(statements, write, written, early=exits.early)

    def threads(self, statements: list[ast.stmt], write, writes: set[str], early: bool = False) -> None:
        """A loop over the threads that take part, with what they kept at hand."""
        add, code = self.code.add, self.code
        exposed, sure = flow(statements)
        wanted = set(self.kept) & (exposed | (writes if early else writes - sure))
        outer = code.depth
        if self.instrument:
            add(*self.instrument.region())
        add("_t = -1")
        for axis in "zyx":
            add(f"for _{axis} in range(_bd{axis}):")
            code.depth += 1
        add("_t += 1")
        if self.synchronises:
            add("if _off[_t] != 0:", "    continue")
        used = _names(statements) | set().union(
            *(_names([ast.Expr(self.remade[v])]) for v in wanted & self.remade.keys())
        )
        if "_context" in used:
            used |= set(CONTEXT)
        for index, value in PER_THREAD.items():
            if index in used:
                add(f"{index} = {value}")
        if "_context" in used:
            add(f"_context = ({', '.join(CONTEXT)}, {'_S' if self.instrument else '0'})")
        if self.instrument:
            add(*self.instrument.thread())
        for d in self.lowered.arrays.values():
            if d.space == "local" and self.synchronises and d.name in used:
                add(f"{d.name} = {d.name}_[_t]")
        for v in self._in_order(wanted):
            add(f"{v} = {_unparse(self.remade[v])}" if v in self.remade else f"{v} = {v}_[_t]")
        write()
        code.depth = outer

    def _in_order(self, wanted: set[str]) -> list[str]:
        """What to load or remake, what a remade variable is made of ahead of it."""
        order: list[str] = []

        def visit(v: str) -> None:
            for other in sorted(loads(self.remade[v]) & set(self.kept)) if v in self.remade else ():
                visit(other)
            if v not in order:
                order.append(v)

        for v in sorted(wanted):
            visit(v)
        return order

    def meet(self, at: Together) -> None:
        add = self.code.add
        operands = [f"{o.id}_" for o in at.operands]
        if at.whole_block:
            add(f"if _diverged(_off, _fault, {at.lineno}, _b):", "    raise _Stop")
            if self.instrument:
                add(*self.instrument.barrier(at))
            if operands:
                add(f"{at.result} = _{at.name}(_off, {', '.join(operands)})")
            return
        add(
            f"if _lanes_missing(_off, {operands[0] if operands else '_off'}, {bool(operands)}, _fault, {at.lineno}, _b):",
            "    raise _Stop",
        )
        if self.instrument:
            add(*self.instrument.warp(at))
        if at.result in self.kept:
            add("for _t in range(_T):", "    if _off[_t] == 0:")
            add(f"        {at.result}_[_t] = _{at.name}({', '.join(['_off', '_t', *operands])})")
            if at.name.startswith("shfl"):
                near = at.name in ("shfl_up_sync", "shfl_down_sync")
                source = f"_source_{at.name}(_t, {operands[2]})"
                add(f"        if _lane_absent(_off, {source}, _t, {operands[0]}, {near}, _fault, {at.lineno}, _b):")
                add("            raise _Stop")

    def _instrumented(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        statements = copy.deepcopy(statements)
        return self.instrument.statements(statements) if self.instrument else statements


class _Exits(ast.NodeTransformer):
    """Rewrites what leaves a region: `return`, and `break` and `continue` of the loop around it."""

    def __init__(self, loop: int | None, scopes: dict[str, int], save: list[ast.stmt], marks: bool):
        self.loop, self.scopes, self.save, self.marks = loop, scopes, save, marks
        self.native = 0  # loops of the region itself around the statement at hand
        self.flagged = self.early = False

    def rewrite(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return self.visit(ast.Module(statements, [])).body

    def leave(self, depth: str) -> list[ast.stmt]:
        self.early = self.early or depth != str(RETURNED)
        mark = [ast.parse(f"_off[_t] = {depth}").body[0]] if self.marks else []
        return [*mark, *(self.save if depth != str(RETURNED) else []), ast.Continue()]

    def visit_Return(self, node: ast.Return):
        depth = self.scopes[node.scope] if hasattr(node, "scope") else RETURNED
        if not self.native:
            return self.leave(str(depth))
        self.flagged = True
        return [ast.parse(f"_left = {depth}").body[0], ast.Break()]

    def visit_Break(self, node):
        return node if self.native else self.leave(str(self.loop))

    def visit_Continue(self, node):
        return node if self.native else self.leave(str(self.loop + 1))

    def visit_loop(self, node):
        leaves = any(isinstance(n, ast.Return) for n in ast.walk(node))
        self.native += 1
        self.generic_visit(node)
        self.native -= 1
        if not leaves:
            return node
        then = [ast.Break()] if self.native else self.leave("_left")
        return [node, ast.If(ast.parse("_left != 0", mode="eval").body, then, [])]

    visit_For = visit_While = visit_loop


def device_function(id: str, lowered: Lowered, instrument=None) -> str:
    """The source of a device function that its callers call."""
    code = Code()
    owned = {f"_p_{p}" for p in lowered.parameters} & _names(lowered.body)
    parameters = [f"_p_{p}" if f"_p_{p}" in owned else p for p in lowered.parameters]
    code.add(f"def {id}({', '.join(['_context', *parameters])}):")
    code.depth = 1
    body = copy.deepcopy(lowered.body)
    used = _names(body)
    if instrument:
        code.add(f"_S = _context[{len(CONTEXT)}]")
        body = instrument.device_statements(lowered)
    if used & PER_THREAD.keys() | used & set(CONTEXT):
        code.add(*(f"{n} = _context[{i}]" for i, n in enumerate(CONTEXT)))
        code.add(*(f"{n} = {e}" for n, e in DERIVED.items() if n in used and n not in CONTEXT))
    for d in lowered.arrays.values():
        code.add(f"{d.name} = np.empty({d.shape}, _dt_{id}_{d.name})")
    code.add(*map(_unparse, body or [ast.Pass()]))
    return code.text()


def flat_function(lowered: Lowered) -> ast.FunctionDef:
    """The kernel as one thread sees it, without meeting points: for numba to find its variables' types."""
    owned = {f"_p_{p}" for p in lowered.parameters} & _names(lowered.body)
    parameters = [f"_p_{p}" if f"_p_{p}" in owned else p for p in lowered.parameters]
    arrays = [ast.parse(f"{d.name} = np.empty({d.shape}, _dt_{d.name})").body[0] for d in lowered.arrays.values()]
    context = [ast.parse(f"_context = ({', '.join([*CONTEXT, '_S'])})").body[0]] if lowered.devices else []
    body = [*arrays, *context, *_flatten(copy.deepcopy(lowered.body)), ast.Return(None)]
    template = ast.parse(f"def flat({', '.join([*FLAT, *parameters])}):\n    pass")
    function = template.body[0]
    function.body = body
    for node in ast.walk(function):
        if isinstance(node, (ast.stmt, ast.expr)) and not hasattr(node, "lineno"):
            node.lineno = node.end_lineno = lowered.source.tree.lineno
            node.col_offset = node.end_col_offset = 0
    return function


FLAT = [*dict.fromkeys([*CONTEXT, *PER_THREAD]), "_S"]


def _flatten(statements: list[ast.stmt]) -> list[ast.stmt]:
    out: list[ast.stmt] = []
    for s in statements:
        if isinstance(s, Together):
            stub = f"{s.result} = _type_{s.name}({', '.join(o.id for o in s.operands)})"
            out.append(ast.copy_location(ast.parse(stub).body[0], s))
        elif isinstance(s, Scope):
            out += _flatten(s.body)
        elif isinstance(s, ast.Return) and hasattr(s, "scope"):
            continue
        else:
            for part in ("body", "orelse"):
                if getattr(s, part, None):
                    setattr(s, part, _flatten(getattr(s, part)) or [ast.copy_location(ast.Pass(), s)])
            out.append(s)
    return out


def _names(statements: list[ast.stmt]) -> set[str]:
    return {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}


def _device_names(lowered: Lowered) -> set[str]:
    return set().union(*map(_device_names, lowered.devices.values()))


def _unparse(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node))
