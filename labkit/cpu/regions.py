"""The shape of a kernel: stretches of single-thread code, the meetings between them, and what lives across them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from labkit.cpu.source import Unsupported
from labkit.cpu.tree import Scope, Together, synchronises


@dataclass
class Region:
    """Statements that a thread runs without meeting another."""

    body: list[ast.stmt]


@dataclass
class Meet:
    """A point that threads pass together."""

    at: Together


@dataclass
class Branch:
    """An `if` with a meeting point in it."""

    test: ast.expr
    body: list
    orelse: list


@dataclass
class Loop:
    """A `while` with a meeting point in it."""

    test: ast.expr
    body: list


@dataclass
class Inlined:
    """An inlined function's body; `key` is what a return in it leaves."""

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
    """Every meeting point."""
    for item in items:
        if isinstance(item, Meet):
            yield item.at
        elif not isinstance(item, Region):
            yield from meetings(item.body)
            yield from meetings(getattr(item, "orelse", []))


# liveness


def loads(node: ast.AST) -> set[str]:
    """The names that are read."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def stores(statements: list[ast.stmt]) -> set[str]:
    """The names that are written."""
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


def names(statements: list[ast.stmt]) -> set[str]:
    """All names."""
    return {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}
