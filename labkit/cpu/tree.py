"""What a lowered kernel is made of: statements (two of them our own), arrays, and helpers to build them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import ClassVar

from labkit.cpu.source import Source

BLOCK = {"syncthreads": 0, "syncthreads_count": 1, "syncthreads_and": 1, "syncthreads_or": 1}  # name: operands
WARP = {
    "syncwarp": 1,
    "activemask": 0,
    "all_sync": 2,
    "any_sync": 2,
    "eq_sync": 2,
    "ballot_sync": 2,
    "match_any_sync": 2,
    "match_all_sync": 2,
    "shfl_sync": 3,
    "shfl_up_sync": 3,
    "shfl_down_sync": 3,
    "shfl_xor_sync": 3,
}
TOGETHER = BLOCK | WARP


class Together(ast.stmt):
    """A point that the threads of a block (or warp) pass together."""

    _fields: ClassVar = ("operands",)
    _field_types: ClassVar = {"operands": list[ast.expr]}

    @classmethod
    def of(cls, name: str, operands: list[str], result: str, at: ast.AST) -> Together:
        node = cls(operands=[ast.Name(o, ast.Load()) for o in operands])
        node.name, node.result = name, result
        return ast.copy_location(node, at)

    @property
    def whole_block(self) -> bool:
        return self.name in BLOCK


class Scope(ast.stmt):
    """An inlined function's body; a `return` in it leaves it."""

    _fields: ClassVar = ("body",)
    _field_types: ClassVar = {"body": list[ast.stmt]}

    @classmethod
    def of(cls, body: list[ast.stmt], key: str, at: ast.AST) -> Scope:
        node = cls(body=body)
        node.key = key
        return ast.copy_location(node, at)


@dataclass(frozen=True)
class Declaration:
    """An array that a kernel declares: `space` is shared or local; shape 0 in shared memory is the dynamic part."""

    name: str
    space: str
    shape: tuple[int, ...]
    dtype: object
    line: int


@dataclass
class Lowered:
    """A kernel after lowering."""

    source: Source
    body: list[ast.stmt] = field(default_factory=list)
    arrays: dict[str, Declaration] = field(default_factory=dict)
    helpers: dict[str, object] = field(default_factory=dict)  # names in generated code -> functions and values
    devices: dict[str, Lowered] = field(default_factory=dict)  # device functions called as functions
    indices: set[str] = field(default_factory=set)  # of threadIdx.y and the like: which were used
    atomics: set[str] = field(default_factory=set)  # roots of arrays that are updated atomically
    parameters: list[str] = field(default_factory=list)


def parse(text: str) -> ast.stmt:
    """One statement."""
    return ast.parse(text).body[0]


def name(id: str) -> ast.Name:
    """A name that is read."""
    return ast.Name(id, ast.Load())


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """A call of a function by its name."""
    return ast.Call(name(function), list(arguments), [])


def assign(target: str, value: ast.expr, at: ast.AST) -> ast.Assign:
    """An assignment to a name, placed where `at` stands."""
    node = ast.Assign([ast.Name(target, ast.Store())], value)
    ast.copy_location(node, at)
    return ast.fix_missing_locations(node)


def synchronises(node: ast.AST) -> bool:
    """Whether anything that threads do together stands in a lowered statement."""
    return any(isinstance(n, (Together, Scope)) for n in ast.walk(node))


def as_list(x) -> list:
    """What a transformer returned, as a list."""
    return x if isinstance(x, list) else [x]


def flat(statements: list) -> list[ast.stmt]:
    """What a transformer made of each statement, in one list."""
    return [s for x in statements for s in as_list(x)]
