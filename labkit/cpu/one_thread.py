"""A kernel or device function as one thread sees it."""

from __future__ import annotations

import ast
import copy

from labkit.cpu.code import Code, unparse
from labkit.cpu.generate import CONTEXT, PER_THREAD
from labkit.cpu.regions import names
from labkit.cpu.tree import Lowered, Scope, Together

DERIVED = {n: e.replace("_x", "_tx").replace("_y", "_ty").replace("_z", "_tz") for n, e in PER_THREAD.items()}
FLAT = [*dict.fromkeys([*CONTEXT, *PER_THREAD]), "_S"]


def device_function(id: str, lowered: Lowered, instrument=None) -> str:
    """The source of a device function that its callers call."""
    code = Code()
    owned = {f"_p_{p}" for p in lowered.parameters} & names(lowered.body)
    parameters = [f"_p_{p}" if f"_p_{p}" in owned else p for p in lowered.parameters]
    code.add(f"def {id}({', '.join(['_context', *parameters])}):")
    code.depth = 1
    body = copy.deepcopy(lowered.body)
    used = names(body)
    if instrument:
        code.add(f"_S = _context[{len(CONTEXT)}]")
        body = instrument.device_statements(lowered)
    if used & PER_THREAD.keys() | used & set(CONTEXT):
        code.add(*(f"{n} = _context[{i}]" for i, n in enumerate(CONTEXT)))
        code.add(*(f"{n} = {e}" for n, e in DERIVED.items() if n in used and n not in CONTEXT))
    for d in lowered.arrays.values():
        code.add(f"{d.name} = np.empty({d.shape}, _dt_{id}_{d.name})")
    code.add(*map(unparse, body or [ast.Pass()]))
    return code.text()


def flat_function(lowered: Lowered) -> ast.FunctionDef:
    """The kernel as one thread sees it, without meeting points: for numba to find its variables' types."""
    owned = {f"_p_{p}" for p in lowered.parameters} & names(lowered.body)
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
