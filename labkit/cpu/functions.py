"""CUDA's device functions for numba's CPU target: what ``cuda.popc``, ``cuda.fp16.hadd``, ``libdevice.expf`` mean.

``FUNCTIONS`` maps dotted names (below ``cuda``: "popc", "fp16.hadd", "libdevice.expf"; "math.floor" and "builtins.min"
where numba's two targets differ) to functions that njit compiles; ``REFUSED`` holds the names that can't run here.
Meanings are those of the CUDA math API and of the libdevice user's guide. Those written out here look at the types of
their arguments to give what numba-cuda gives. Half functions need ``half.install()`` first.
"""

import builtins
import math
from collections.abc import Mapping

import numpy as np
from numba import types
from numba.extending import overload

from labkit.cpu import fp16, libdevice
from labkit.cpu.llvm import bitreverse, ctlz, ctpop, fused
from labkit.cpu.plain import PLAIN, cbrt, fmax, fmin


class Lazily(Mapping):
    """A read-only dict of functions, each made (for numba, it takes a while) when it's first asked for."""

    def __init__(self, makers: dict):
        self._makers, self.made = makers, {}

    def add(self, name: str, maker) -> None:
        self._makers[name] = maker

    def __getitem__(self, name: str):
        if name not in self.made:
            self.made[name] = self._makers[name]()
        return self.made[name]

    def __contains__(self, name) -> bool:
        return name in self._makers

    def __iter__(self):
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


FUNCTIONS = Lazily(
    {f"libdevice.{name}": make for name, make in libdevice.MAKERS.items()}
    | {f"fp16.{name}": make for name, make in fp16.MAKERS.items()}
)
REFUSED = {"fp16.atomicAdd", "math.gcd"}  # there are no pointers here, and numba-cuda has no gcd
REFUSED |= {f"libdevice.{name}" for name in libdevice.REFUSED}
# float32 holds the values of these:
SMALL = {types.float32, types.float16, types.int8, types.int16, types.uint8, types.boolean}


def _real(*arguments):
    """float32 where numba-cuda would choose the float32 form for arguments of these types, else float64."""
    return np.float32 if {types.unliteral(argument) for argument in arguments} <= SMALL else np.float64


def by_type(name: str):
    """Register in FUNCTIONS a function, which the decorated chooser implements for given argument types."""

    def register(choose):
        def function(*args):
            raise NotImplementedError(f"{name} is for compiled code")

        FUNCTIONS.add(name, lambda: function)
        overload(function)(choose)
        return choose

    return register


def _is_integer(kind) -> bool:
    return isinstance(kind, (types.Integer, types.Boolean))


def _keeps_type(name, operation):
    @by_type(name)
    def choose(x):
        if isinstance(x, types.Integer):
            return lambda x: operation(x)
        if isinstance(x, types.Boolean):
            return lambda x: operation(np.int8(x))


_keeps_type("popc", ctpop)
_keeps_type("clz", ctlz)


@by_type("ffs")
def _choose_ffs(x):
    find = PLAIN["ffs"]
    if _is_integer(x):
        return lambda x: np.uint32(find(x))


@by_type("brev")
def _choose_brev(x):
    give = np.uint64 if x == types.uint64 else np.uint32  # of an int64 it takes the lower 32 bits, as numba-cuda does
    if _is_integer(x):
        return lambda x: bitreverse(give(x))


@by_type("cbrt")
def _choose_cbrt(x):
    give = _real(x)
    return lambda x: give(cbrt(give(x)))


@by_type("fma")
def _choose_fma(x, y, z):
    give = _real(x, y, z)
    return lambda x, y, z: fused(give(x), give(y), give(z))


@by_type("selp")
def _choose_selp(test, a, b):
    if isinstance(test, types.Boolean) and a == b and getattr(a, "bitwidth", 0) >= 16 and a != types.float16:
        return lambda test, a, b: a if test else b


def _rounds(name):
    in_floats, in_half = getattr(np, name), getattr(math, name)

    @by_type(f"math.{name}")
    def choose(x):  # of an integer: float64, of a float its type (numba's CPU target: int64)
        if x == types.float16:
            return lambda x: in_half(x)
        give = np.float32 if x == types.float32 else np.float64
        return lambda x: in_floats(give(x))


for _name in ("ceil", "floor", "trunc"):
    _rounds(_name)


@by_type("math.frexp")
def _choose_frexp(x):
    give = _real(x)
    return lambda x: math.frexp(give(x))


def _of_two(name, function):
    @by_type(f"math.{name}")
    def choose(x, y):
        give = _real(x, y)
        return lambda x, y: give(function(give(x), give(y)))


_of_two("fmod", np.fmod)
_of_two("remainder", PLAIN["remainder"])


@by_type("math.modf")
def _choose_modf(x):
    give = np.float32 if x == types.float32 else np.float64
    split = FUNCTIONS["libdevice.modff" if x == types.float32 else "libdevice.modf"]
    return lambda x: split(give(x))


@by_type("math.ldexp")
def _choose_ldexp(x, n):
    give = _real(x)
    return lambda x, n: math.ldexp(give(x), np.int32(n))


@by_type("math.pow")
def _choose_pow(x, y):
    give = _real(x) if types.unliteral(y) == types.int32 else _real(x, y)
    if _is_integer(y):
        return lambda x, y: give(math.pow(np.float64(x), np.float64(y)))
    return lambda x, y: math.pow(give(x), give(y))


def _extremum(name, of_floats):
    own = getattr(builtins, name)

    @by_type(f"builtins.{name}")
    def choose(*args):  # a number before NaN, as fminf; for integers, halves, and more than two: numba's own
        kinds = {types.unliteral(argument) for argument in args}
        if len(args) != 2 or not kinds & {types.float32, types.float64}:
            return lambda *args: own(*args)
        give = _real(*args)
        return lambda *args: of_floats(give(args[0]), give(args[1]))


_extremum("min", fmin)
_extremum("max", fmax)
