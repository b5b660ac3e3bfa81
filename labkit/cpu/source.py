"""A kernel's source: its syntax tree, what its names mean, and what no kernel may contain."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import dataclass
from functools import cached_property

from labkit.errors import LabError


class BadKernel(LabError):
    """A kernel that no GPU would accept either: what is wrong with it, and where."""


class Unsupported(LabError):
    """Something that runs in numba's simulator or on a GPU, but that `labkit.cpu` does not compile."""


NEVER = {  # no kernel on any GPU may contain these
    ast.ListComp: "a list comprehension (a kernel can't allocate lists)",
    ast.SetComp: "a set comprehension (a kernel can't allocate sets)",
    ast.DictComp: "a dict comprehension (a kernel can't allocate dicts)",
    ast.GeneratorExp: "a generator expression",
    ast.List: "a list (a kernel can't allocate lists; take cuda.local.array)",
    ast.Dict: "a dict (a kernel can't allocate dicts)",
    ast.Set: "a set (a kernel can't allocate sets)",
    ast.Yield: "yield: a kernel can't be a generator",
    ast.YieldFrom: "yield: a kernel can't be a generator",
    ast.Await: "await: a kernel can't be a coroutine",
    ast.Global: "a global statement: a kernel can't write module variables; pass an array",
    ast.Nonlocal: "a nonlocal statement: a kernel can't write outer variables; pass an array",
    ast.Delete: "del",
    ast.Import: "an import",
    ast.ImportFrom: "an import",
    ast.ClassDef: "a class",
}
NOT_YET = {  # numba has ways to run these, we have none
    ast.Lambda: "a lambda",
    ast.FunctionDef: "a function inside a kernel",
    ast.Try: "try",
    ast.With: "with",
    ast.NamedExpr: "an assignment expression (:=)",
    ast.Match: "match",
}
ALLOCATORS = {"empty", "zeros", "ones", "full", "array", "arange", "linspace", "empty_like", "zeros_like", "dot"}


@dataclass(frozen=True)
class Source:
    """One function: its tree (line numbers are those of its file), its name and what its free names stand for."""

    function: object

    def __deepcopy__(self, memo) -> Source:
        return self

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    @cached_property
    def text(self) -> str:
        if not inspect.isfunction(self.function):
            raise BadKernel(f"{self.function!r} is not a Python function, so it can't be a kernel")
        if self.name == "<lambda>":
            raise BadKernel("a lambda can't be a kernel: write it as a function with def")
        try:
            return textwrap.dedent(inspect.getsource(self.function))
        except (OSError, TypeError) as e:
            raise BadKernel(f"{self.name}: its source can't be found ({e}); define it in a file or a cell") from e

    @cached_property
    def tree(self) -> ast.FunctionDef:
        try:
            found = ast.parse(self.text).body[0]
        except SyntaxError as e:  # a function cut out of something longer
            raise BadKernel(f"{self.name}: its source can't be read alone ({e.msg})") from e
        if not isinstance(found, ast.FunctionDef):
            raise BadKernel(f"{self.name}: expected a function with def, found {type(found).__name__}")
        ast.increment_lineno(found, self.function.__code__.co_firstlineno - 1)
        self._refuse(found)
        return found

    @property
    def parameters(self) -> list[str]:
        return [a.arg for a in self.tree.args.posonlyargs + self.tree.args.args]

    @cached_property
    def names(self) -> dict[str, object]:
        """What the free names stand for: builtins, module globals, closure variables."""
        outer = inspect.getclosurevars(self.function).nonlocals
        return {**self.function.__globals__, **outer}

    def line(self, number: int) -> str:
        """The text of a line of the file."""
        lines = self.text.splitlines()
        index = number - self.function.__code__.co_firstlineno
        return lines[index].strip() if 0 <= index < len(lines) else ""

    def at(self, node: ast.AST) -> str:
        """Where a node stands, for messages."""
        return f"{self.name}, line {node.lineno} ({self.line(node.lineno)})"

    def value(self, node: ast.expr) -> object:
        """What a name or a dotted name stands for, if it is free; else None."""
        if isinstance(node, ast.Name):
            return None if node.id in self.locals else self.names.get(node.id, getattr(_builtins(), node.id, None))
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            return getattr(owner, node.attr, None) if owner is not None else None
        return None

    @cached_property
    def locals(self) -> set[str]:
        """Parameters and every name that the function assigns."""
        stored = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return stored | set(self.parameters)

    def cuda_name(self, node: ast.expr) -> str:
        """`threadIdx.x` for `cuda.threadIdx.x`, however numba.cuda was imported; else an empty string.

        By name, not by object: in the simulator the module has no `threadIdx`.
        """
        parts = []
        while isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if owner is not None and owner is sys.modules.get("numba.cuda"):
                return ".".join([node.attr, *parts])
            parts.insert(0, node.attr)
            node = node.value
        found = self.value(node)
        module = getattr(found, "__module__", None) or getattr(found, "__name__", "")
        if not isinstance(found, type) and str(module).split(".")[:2] == ["numba", "cuda"]:
            own = getattr(found, "__name__", "").rsplit(".", 1)[-1]
            prefix = ["libdevice"] if str(module).endswith(".libdevice") and own != "libdevice" else []
            return ".".join([*prefix, own, *parts]) if own else ""
        return ""

    def _refuse(self, tree: ast.FunctionDef) -> None:
        for node in (n for statement in tree.body for n in ast.walk(statement)):
            where = f"{self.name}, line {getattr(node, 'lineno', tree.lineno)}"
            if type(node) in NEVER:
                raise BadKernel(f"{where}: {NEVER[type(node)]}")
            if type(node) in NOT_YET:
                raise Unsupported(f"{where}: {NOT_YET[type(node)]}")
            if isinstance(node, ast.Attribute) and node.attr in ALLOCATORS and _is_numpy(node.value, self):
                raise BadKernel(f"{where}: np.{node.attr} allocates; a kernel has cuda.local.array and shared.array")
        if tree.args.vararg or tree.args.kwarg or tree.args.kwonlyargs or tree.args.defaults:
            raise BadKernel(f"{self.name}: a kernel takes plain positional arguments, without defaults")


def _is_numpy(node: ast.expr, source: Source) -> bool:
    return isinstance(node, ast.Name) and getattr(source.names.get(node.id), "__name__", "") == "numpy"


def _builtins():
    import builtins

    return builtins
