"""How a PTX instruction becomes a function that a kernel can call: typed, named, refused where the GPU lacks it."""

from __future__ import annotations

from llvmlite import ir
from numba import config, types
from numba.core.targetconfig import ConfigStack

from labkit.errors import LabError

# a register's letter in PTX inline assembly, by the type of the value it holds
LETTERS = {"float32": "f", "float64": "d", "int32": "r", "uint32": "r", "int64": "l", "uint64": "l"}


class NotOnThisGpu(LabError):
    """An instruction was compiled for a GPU that does not have it."""


def stand_in(name: str, doc: str, plain=None):
    """What takes an instruction's place where kernels don't run on a GPU: its plain meaning, or a clear refusal.

    labkit.cpu inlines the plain meaning, as it does with any device function.
    """

    def instead(*arguments):
        if plain is None:
            raise LabError(f"ptx.{name} is an instruction that only a GPU has; this kernel can't run without one")
        return plain(*arguments)

    instead.__name__, instead.__qualname__, instead.__module__, instead.__doc__ = name, name, "labkit.ptx", doc
    instead.ptx = name
    if plain is not None:
        instead.py_func = plain
    return instead


def nothing():
    """What an instruction means without a GPU that orders or hastens only what is done at once there."""


def instruction(
    name: str, text: str, returns, *takes, since=(7, 5), only=None, effect: bool = True, doc: str = "", plain=None
):
    """A function for kernels that emits one PTX instruction.

    text     PTX, its operands as in inline assembly: results first ($0, $1, ...), then the arguments
    returns  a type by its numba name, a tuple of them, or None
    takes    the arguments' types
    since    the compute capability that has it first; `only` names the one GPU generation that has it (wgmma: 9.0)
    effect   False for arithmetic, which the compiler may move, merge and drop
    plain    what it means in Python, for kernels that run without a GPU
    """
    results = () if returns is None else (returns,) if isinstance(returns, str) else returns
    constraints = [f"={LETTERS[t]}" for t in results] + [LETTERS[t] for t in takes] + ["~{memory}"] * effect
    signature = _numba(returns)(*map(_numba, takes))

    def codegen(context, builder, sig, arguments):
        require(f"ptx.{name}", since, only)
        value = assembly(builder, text, ",".join(constraints), [_llvm(t) for t in results], arguments, effect)
        if returns is None:
            return context.get_dummy_value()
        if isinstance(returns, str):
            return value
        return context.make_tuple(builder, sig.return_type, split(builder, value, len(results)))

    return typed(name, len(takes), lambda *_: signature, codegen, doc, plain)


def typed(name: str, arity: int, signature_of, codegen, doc: str, plain=None):
    """An intrinsic of `arity` arguments from its typing and its code generation; `plain` is its meaning in Python."""
    if config.ENABLE_CUDASIM:
        return stand_in(name, doc, plain)
    from numba.cuda.extending import intrinsic  # plain numba (as on macOS) lacks it, and runs the simulator

    names = ", ".join(f"a{i}" for i in range(arity))
    scope = {"signature_of": signature_of, "codegen": codegen}
    # numba reads an intrinsic's number of arguments from its signature
    exec(f"def {name}(typingctx{', ' + names if names else ''}):\n return signature_of({names}), codegen", scope)
    function = scope[name]
    function.__doc__, function.__module__ = doc, "labkit.ptx"
    made = intrinsic(function)
    made.__doc__ = doc
    return made


def assembly(builder, text: str, constraints: str, results, arguments, effect: bool = True):
    """Inline assembly with any number of results: nothing, one value, or a struct of them."""
    kind = ir.VoidType() if not results else results[0] if len(results) == 1 else ir.LiteralStructType(results)
    function = ir.FunctionType(kind, [a.type for a in arguments])
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect=effect), arguments)


def split(builder, struct, count: int) -> list:
    """The members of a struct."""
    return [builder.extract_value(struct, i) for i in range(count)]


def require(name: str, since: tuple[int, int], only: tuple[int, int] | None = None) -> None:
    """Raise NotOnThisGpu where the kernel is being compiled for a GPU that does not have the instruction."""
    target = tuple(ConfigStack().top().compute_capability)
    if only and target[:2] != only:
        raise NotOnThisGpu(
            f"{name} exists on compute capability {_dotted(only)} only; this kernel is compiled for {_dotted(target)}. "
            "Select another kernel for this GPU (ptx.mma_m16n8k16 runs on 8.0 and newer)"
        )
    if target[:2] < since:
        raise NotOnThisGpu(
            f"{name} needs compute capability {_dotted(since)} or newer; this kernel is compiled for {_dotted(target)}"
        )


def _dotted(capability) -> str:
    return ".".join(str(c) for c in capability[:2])


def _numba(name):
    if name is None:
        return types.void
    if isinstance(name, str):
        return getattr(types, name)
    return types.UniTuple(getattr(types, name[0]), len(name))


def _llvm(name: str):
    return {
        "float32": ir.FloatType(), "float64": ir.DoubleType(),
        "int32": ir.IntType(32), "uint32": ir.IntType(32), "int64": ir.IntType(64), "uint64": ir.IntType(64),
    }[name]  # fmt: skip
