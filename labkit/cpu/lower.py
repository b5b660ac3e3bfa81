"""From a kernel's tree to statements that are either free of synchronisation or built around it.

After `lower` a kernel knows no `cuda` any more: indices are names (`_tx`), shared and local arrays are declarations,
device functions that synchronise are inlined, and everything that threads do together (a barrier, a shuffle, a vote)
stands alone as a `Together` statement, its operands in variables of their own. The way is that of MCUDA (Stratton,
Stone, Hwu 2008) and PoCL: the code between two such statements becomes a loop over the threads of a block.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field

from labkit.cpu.source import BadKernel, Source, Unsupported

AXES = {"threadIdx": "_t", "blockIdx": "_b", "blockDim": "_bd", "gridDim": "_gd"}
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
SILENT = {"nanosleep": "", "threadfence": "_fence", "threadfence_block": "", "threadfence_system": "_fence"}
ATOMIC = "add sub max min nanmax nanmin and_ or_ xor inc dec exch cas compare_and_swap".split()


class Together(ast.stmt):
    """A point that the threads of a block (or warp) pass together."""

    _fields = ("operands",)
    _field_types = {"operands": list[ast.expr]}

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

    _fields = ("body",)
    _field_types = {"body": list[ast.stmt]}

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


def lower(function, stack: tuple = ()) -> Lowered:
    """Lower a kernel or device function (a Python function)."""
    source = Source(function)
    if function in stack:
        raise BadKernel(f"{source.name} calls itself: recursion doesn't run on a GPU in numba.cuda")
    result = Lowered(source, parameters=source.parameters)
    body = copy.deepcopy(source.tree.body)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and body[0].value.value is not ...:
        body = body[1:]  # the docstring
    body = _own_parameters(source, body)
    result.body = _Lowering(result, (*stack, function)).block(body)
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


def parse(text: str) -> ast.stmt:
    """One statement."""
    return ast.parse(text).body[0]


def name(id: str) -> ast.Name:
    return ast.Name(id, ast.Load())


def call(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(name(function), list(arguments), [])


def assign(target: str, value: ast.expr, at: ast.AST) -> ast.Assign:
    node = ast.Assign([ast.Name(target, ast.Store())], value)
    ast.copy_location(node, at)
    return ast.fix_missing_locations(node)


def synchronises(node: ast.AST) -> bool:
    """Whether anything that threads do together stands in a lowered statement."""
    return any(isinstance(n, (Together, Scope)) for n in ast.walk(node))


class _Lowering:
    """Walks the statements; `before` collects what must run ahead of the statement at hand."""

    def __init__(self, result: Lowered, stack: tuple):
        self.result, self.source, self.stack = result, result.source, stack
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
        s.body = [x for b in s.body for x in _as_list(_FlaggedBreaks(left, s).visit(b))]
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
        return _Expressions(self).visit(node)


class _FlaggedBreaks(ast.NodeTransformer):
    """Sets a flag ahead of each `break` of one loop."""

    def __init__(self, flag: str, at: ast.AST):
        self.flag, self.at = flag, at

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return [assign(self.flag, ast.Constant(1), self.at), node]

    def visit_For(self, node):
        return node  # its breaks are its own

    visit_While = visit_For


def _as_list(x) -> list:
    return x if isinstance(x, list) else [x]


class _Expressions(ast.NodeTransformer):
    """Replaces what `cuda` stands for, and moves what threads do together ahead of the statement."""

    def __init__(self, lowering: _Lowering):
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
        id = "_f_" + known.replace(".", "_")
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
        lowered = lower(function, self.lowering.stack)
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
        id = f"_d_{function.__name__}_{id_of(function)}"
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
        before.append(Scope.of(_flat(body), key, node))
        return name(result)

    def adopt_names(self, lowered: Lowered, body, key: str) -> None:
        """Free names of the inlined function, which may mean something else in its caller."""
        for statement in _flat(body):
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
        node.body = _flat([self.visit(s) for s in node.body])
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


def _flat(statements: list) -> list[ast.stmt]:
    return [s for x in statements for s in _as_list(x)]


def _stored(statements: list[ast.stmt]) -> set[str]:
    found = {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found | {n.result for s in statements for n in ast.walk(s) if isinstance(n, Together)}


def _shared(lowered: Lowered) -> bool:
    return any(d.space == "shared" for d in lowered.arrays.values())


def id_of(function) -> str:
    """A short name for a function that no other function of the process has."""
    return format(id(function) & 0xFFFFFF, "x")


def _device_function(target):
    """The Python function under a device function of numba.cuda (or of its simulator); else None."""
    function = getattr(target, "py_func", None) or getattr(target, "fn", None)
    return (
        function
        if callable(function)
        and "cuda" in type(target).__module__.split(".") + ["cuda"]
        and function is not target
        and hasattr(function, "__code__")
        else None
    )


def _is_intrinsic(target) -> bool:
    return type(target).__name__ == "_Intrinsic"


def _functions() -> dict[str, object]:
    try:
        from labkit.cpu.functions import FUNCTIONS
    except ImportError:  # TEMPORARY
        FUNCTIONS = {}

    return FUNCTIONS
