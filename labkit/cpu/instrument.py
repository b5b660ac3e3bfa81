"""What checks and counts have in common: which accesses there are, and what generated code contains besides the kernel.

Every subscript becomes a call that knows its site (line, array, what it does). The generated code carries the address
of the instrument's state, `_S`.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass

from labkit.cpu import private
from labkit.cpu.accesses import Accesses
from labkit.cpu.arrays import LOCAL, UNKNOWN
from labkit.cpu.regions import stores
from labkit.cpu.tree import Lowered, Together


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
        return Accesses(self).block(statements)

    def device_statements(self, lowered: Lowered) -> list[ast.stmt]:
        """Of a device function, whose parameters may be any array."""
        mine, self.roots = self.roots, dict.fromkeys(lowered.arrays, LOCAL)
        body = self.statements(copy.deepcopy(lowered.body))
        self.roots = mine
        return body
