"""From lowered statements to the Python function that runs a range of blocks.

Each stretch between two meeting points becomes a loop over the threads of a block. One array says which threads take
part: `_off[t]` is 0 for a thread that runs, else the depth of the construct (branch, loop, inlined function) whose end
it waits for; 1 means that it has returned. So a branch, a `break` or a `return` around a barrier is a number, and the
barrier knows who is missing.
"""

from __future__ import annotations

import ast
import copy

from labkit.cpu.code import Code, unparse
from labkit.cpu.regions import Branch, Loop, Meet, Region, flow, loads, meetings, names, regions, shape, stores
from labkit.cpu.tree import Lowered, Together

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
            *(names(r) for r in regions(self.items)), *map(_device_names, lowered.devices.values())
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
            self.code.add(*map(unparse, ahead))
            self.code.add(f"if not ({unparse(last.value)}):", f"    {otherwise}")

        self.threads([ast.Expr(test)], body, writes=set())

    def region(self, statements: list[ast.stmt], loop: int | None, scopes: dict[str, int]) -> None:
        written = stores(statements) & set(self.kept) - set(self.remade)
        save = [ast.parse(f"{v}_[_t] = {v}").body[0] for v in sorted(written)]
        exits = _Exits(loop, scopes, save, self.synchronises)
        body = exits.rewrite(self._instrumented(statements))

        def write():
            if exits.flagged:
                self.code.add("_left = 0")
            self.code.add(*map(unparse, body))
            self.code.add(*(unparse(s) for s in save))

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
        used = names(statements) | set().union(
            *(names([ast.Expr(self.remade[v])]) for v in wanted & self.remade.keys())
        )
        if "_context" in used:
            used |= set(CONTEXT)
        for index, value in PER_THREAD.items():
            if index in used:
                add(f"{index} = {value}")
        if "_context" in used:
            add(f"_context = ({', '.join(CONTEXT)}, {'_S' if self.instrument else 'np.int64(0)'})")
        if self.instrument:
            add(*self.instrument.thread())
        for d in self.lowered.arrays.values():
            if d.space == "local" and self.synchronises and d.name in used:
                add(f"{d.name} = {d.name}_[_t]")
        for v in self._in_order(wanted):
            add(f"{v} = {unparse(self.remade[v])}" if v in self.remade else f"{v} = {v}_[_t]")
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
        masks = operands[0] if operands else "_off"
        add(f"if _lanes_missing(_off, {masks}, {bool(operands)}, _fault, {at.lineno}, _b):", "    raise _Stop")
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


def _device_names(lowered: Lowered) -> set[str]:
    return set().union(*map(_device_names, lowered.devices.values()))
