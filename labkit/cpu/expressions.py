"""Expressions of a kernel: what `cuda` stands for, device functions, and what threads do together."""

from __future__ import annotations

import ast
import copy

from labkit.cpu.source import BadKernel, Unsupported
from labkit.cpu.tree import TOGETHER, Declaration, Lowered, Scope, Together, assign, call, flat, name, synchronises

AXES = {"threadIdx": "_t", "blockIdx": "_b", "blockDim": "_bd", "gridDim": "_gd"}
SILENT = {"nanosleep": "", "threadfence": "_fence", "threadfence_block": "", "threadfence_system": "_fence"}
ATOMIC = ["add", "sub", "max", "min", "nanmax", "nanmin", "and_", "or_", "xor", "inc", "dec", "exch", "cas"]
ATOMIC += ["compare_and_swap"]


class Expressions(ast.NodeTransformer):
    """Replaces what `cuda` stands for, and moves what threads do together ahead of the statement."""

    def __init__(self, lowering):
        self.lowering, self.result, self.source = lowering, lowering.result, lowering.source
        self.conditional = 0

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        known = self.source.cuda_name(node)
        if not known:
            return self.generic_visit(node)
        return ast.copy_location(self.plain(known, node), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = self.source.cuda_name(node) if node.id not in self.source.locals else ""
        return ast.copy_location(self.plain(known, node), node) if known else node

    def plain(self, known: str, node: ast.expr) -> ast.expr:
        first, _, axis = known.partition(".")
        if first in AXES and axis in ("x", "y", "z"):
            self.result.indices.add(axis if first in ("threadIdx", "blockIdx") else "")
            return name(AXES[first] + axis)
        if known == "laneid":
            return name("_lane")
        if known == "warpsize":
            return name("_warpsize")
        if first == "types" and axis:
            return node
        raise Unsupported(f"{self.source.at(node)}: cuda.{known}")

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values[0] = self.visit(node.values[0])
        node.values[1:] = [self.in_condition(v) for v in node.values[1:]]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.visit(node.test)
        node.body, node.orelse = self.in_condition(node.body), self.in_condition(node.orelse)
        return node

    def in_condition(self, node: ast.expr) -> ast.expr:
        self.conditional += 1
        node = self.visit(node)
        self.conditional -= 1
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        known = self.source.cuda_name(node.func)
        if known:
            return ast.copy_location(self.cuda_call(known, node), node)
        target = self.source.value(node.func)
        function = _device_function(target)
        if function is not None:
            return ast.copy_location(self.device_call(function, node), node)
        if _is_intrinsic(target):
            raise BadKernel(
                f"{self.source.at(node)}: {ast.unparse(node.func)} is an instruction that only a GPU has; "
                "this kernel can't run on the CPU"
            )
        math = f"math.{target.__name__}" if getattr(target, "__module__", "") == "math" else ""
        builtin = f"builtins.{target.__name__}" if getattr(target, "__module__", "") == "builtins" else ""
        node.args = [self.visit(a) for a in node.args]
        for replaced in (math, builtin):
            if replaced in _functions():
                return ast.copy_location(call(self.helper(replaced), *node.args), node)
        return node

    def cuda_call(self, known: str, node: ast.Call) -> ast.expr:
        if known in ("grid", "gridsize"):
            return self.grid(known, node)
        if known in TOGETHER:
            return self.together(known, node)
        if known == "lanemask_lt":
            return name("_lanemask_lt")
        if known == "const.array_like":
            return self.visit(node.args[0])
        if known in SILENT:
            return call(SILENT[known]) if SILENT[known] else ast.Constant(0)
        if known.startswith("atomic.") and known[7:] in ATOMIC:
            self.result.atomics.add(getattr(node.args[0], "id", ""))
            return call(f"_atomic_{known[7:].strip('_')}", *(self.visit(a) for a in node.args))
        if known in ("shared.array", "local.array"):
            target = self.lowering.new("a")
            self.lowering.declare(target, known, node)
            return name(target)
        if known in _functions():
            return call(self.helper(known), *(self.visit(a) for a in node.args))
        kind = BadKernel if known.startswith("libdevice.") else Unsupported
        raise kind(f"{self.source.at(node)}: cuda.{known} doesn't run on the CPU")

    def helper(self, known: str) -> str:
        id = helper_name(known)
        self.result.helpers[id] = _functions()[known]
        return id

    def grid(self, known: str, node: ast.Call) -> ast.expr:
        n = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if n not in (1, 2, 3):
            raise BadKernel(f"{self.source.at(node)}: cuda.{known} takes 1, 2 or 3")
        self.result.indices.update("xyz"[:n])
        stem = "_g" if known == "grid" else "_gs"
        names = [name(stem + axis) for axis in "xyz"[:n]]
        return names[0] if n == 1 else ast.Tuple(names, ast.Load())

    def together(self, known: str, node: ast.Call) -> ast.expr:
        """Operands into variables, then the meeting point; what is left is the result's name."""
        if self.conditional:
            raise Unsupported(f"{self.source.at(node)}: cuda.{known} where only some threads may evaluate it")
        arguments = [self.visit(a) for a in node.args]
        if known == "syncwarp" and not arguments:
            arguments = [ast.Constant(0xFFFFFFFF)]
        if len(arguments) != TOGETHER[known]:
            raise BadKernel(
                f"{self.source.at(node)}: cuda.{known} takes {TOGETHER[known]} arguments, found {len(node.args)}"
            )
        operands = []
        for value in arguments:
            operands.append(self.lowering.new("o"))
            self.lowering.before.append(assign(operands[-1], value, node))
        result = self.lowering.new("w")
        self.lowering.before.append(Together.of(known, operands, result, node))
        return call("_match_all_pair", name(result)) if known == "match_all_sync" else name(result)

    def device_call(self, function, node: ast.Call) -> ast.expr:
        from labkit.cpu.lower import lower  # which lowers its expressions here

        lowered = lower(function, self.lowering.stack, self.lowering.numbers)
        given = [self.visit(a) for a in node.args]
        if node.keywords or len(given) != len(lowered.parameters):
            raise BadKernel(
                f"{self.source.at(node)}: {function.__name__} takes {len(lowered.parameters)} arguments, "
                f"found {len(given) + len(node.keywords)}"
            )
        if not any(synchronises(s) for s in lowered.body) and not _shared(lowered):
            return self.as_function(function, lowered, given)
        if self.conditional:
            raise Unsupported(f"{self.source.at(node)}: a function with a barrier where only some threads may call it")
        return self.inline(lowered, given, node)

    def as_function(self, function, lowered: Lowered, given: list[ast.expr]) -> ast.expr:
        numbers = self.lowering.numbers  # one function, one number; the same in every process
        id = f"_d_{function.__name__}_{numbers.setdefault(function, len(numbers))}"
        self.result.devices[id] = lowered
        if lowered.atomics:
            self.result.atomics.add("")  # of an array whose name is not known here
        return call(id, name("_context"), *given)

    def inline(self, lowered: Lowered, given: list[ast.expr], node: ast.Call) -> ast.expr:
        """The function's body in the caller's place, its variables renamed."""
        key = self.lowering.new("f")
        rename = {n: f"{key}_{n}" for n in lowered.source.locals | _stored(lowered.body)}
        for declaration in lowered.arrays.values():
            shared = f"_{lowered.source.name}_{declaration.name}"  # one array, however often it is called
            rename[declaration.name] = shared if declaration.space == "shared" else f"{key}_{declaration.name}"
            named = Declaration(rename[declaration.name], *list(vars(declaration).values())[1:])
            self.result.arrays[named.name] = named
        before = self.lowering.before
        for parameter, value in zip(lowered.parameters, given, strict=True):
            owned = any(
                isinstance(s, ast.Assign) and getattr(s.value, "id", "") == f"_p_{parameter}" for s in lowered.body
            )
            if isinstance(value, ast.Name) and not owned:
                rename[parameter] = value.id
            elif not owned:
                before.append(assign(rename[parameter], value, node))
            else:
                rename[f"_p_{parameter}"] = f"{key}_p_{parameter}"
                before.append(assign(rename[f"_p_{parameter}"], value, node))
        result = self.lowering.new("r")
        body = [_Inlined(rename, key, result).visit(s) for s in copy.deepcopy(lowered.body)]
        self.result.devices |= lowered.devices
        self.result.helpers |= lowered.helpers
        self.result.atomics |= {rename.get(a, a) for a in lowered.atomics}
        self.adopt_names(lowered, body, key)
        before.append(Scope.of(flat(body), key, node))
        return name(result)

    def adopt_names(self, lowered: Lowered, body, key: str) -> None:
        """Free names of the inlined function, which may mean something else in its caller."""
        for statement in flat(body):
            for n in ast.walk(statement):
                if isinstance(n, ast.Name) and n.id in lowered.source.names and n.id not in self.result.helpers:
                    mine, theirs = self.source.names.get(n.id, ...), lowered.source.names[n.id]
                    if mine is not theirs or n.id in self.source.locals:
                        self.result.helpers[f"{key}_g_{n.id}"] = theirs
                        n.id = f"{key}_g_{n.id}"


class _Inlined(ast.NodeTransformer):
    """Renames an inlined function's variables; its returns become results that leave the scope."""

    def __init__(self, rename: dict[str, str], key: str, result: str):
        self.rename, self.key, self.result = rename, key, result

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.rename.get(node.id, node.id)
        return node

    def visit_Scope(self, node: Scope) -> Scope:
        node.body = flat([self.visit(s) for s in node.body])
        return node

    def visit_Together(self, node: Together) -> Together:
        node.result = self.rename.get(node.result, node.result)
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        if hasattr(node, "scope"):  # of a function inlined further in
            return [node]
        value = self.visit(node.value) if node.value is not None else ast.Constant(0)
        leave = ast.copy_location(ast.Return(None), node)
        leave.scope = self.key
        return [assign(self.result, value, node), leave]


def helper_name(known: str) -> str:
    """The name in generated code of one of FUNCTIONS."""
    return "_f_" + known.replace(".", "_")


def _stored(statements: list[ast.stmt]) -> set[str]:
    found = {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found | {n.result for s in statements for n in ast.walk(s) if isinstance(n, Together)}


def _shared(lowered: Lowered) -> bool:
    return any(d.space == "shared" for d in lowered.arrays.values())


def _device_function(target):
    """The Python function under a device function, be it numba.cuda's, the simulator's or ours; else None."""
    function = getattr(target, "py_func", None) or getattr(target, "fn", None)
    return function if hasattr(function, "__code__") else None


def _is_intrinsic(target) -> bool:
    return type(target).__name__ == "_Intrinsic" or hasattr(target, "ptx")  # labkit.ptx's stand-ins


def _functions():
    from labkit.cpu.functions import FUNCTIONS  # built when first asked for

    return FUNCTIONS
