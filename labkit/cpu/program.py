"""One kernel, compiled for the argument types that it was launched with: built once, then run over a grid."""

from __future__ import annotations

import ast
import linecache
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property, lru_cache

import numpy as np
from numba import njit, typeof
from numba.core.errors import NumbaError

from labkit.cpu import generate, half, inferred, kept, keys, one_thread, private, runtime
from labkit.cpu.expressions import helper_name
from labkit.cpu.functions import FUNCTIONS
from labkit.cpu.lower import lower
from labkit.cpu.source import BadKernel, Source, Unsupported
from labkit.cpu.tree import Lowered

half.install()
LOCK = threading.RLock()  # numba compiles one thing at a time


class Program:
    """A kernel for one list of argument types.

    `source` is the generated Python; `run` runs blocks. In mode "checked" or "counted" an instrument adds to both.
    """

    def __init__(self, function, types: tuple, fastmath: bool = False, mode: str = ""):
        self.function, self.types, self.fastmath = function, types, fastmath
        self.instrument = instrument = _instrument(mode)
        self.lowered = lower(function)
        if len(types) != len(self.lowered.parameters):
            raise BadKernel(
                f"{self.name} takes {len(self.lowered.parameters)} arguments "
                f"({', '.join(self.lowered.parameters)}), found {len(types)}"
            )
        if instrument:
            instrument.prepare(self.lowered)
        self.generator = generate.Generator(self.lowered, instrument)
        self.source = self._write()
        self.run = self._compile()

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def serial(self) -> bool:
        """Whether blocks must run one after another: where they update global memory atomically."""
        shared = {d.name for d in self.lowered.arrays.values() if d.space == "shared"}
        return bool(self.lowered.atomics - shared)

    @property
    def shared_bytes(self) -> int:
        """Bytes of static shared memory."""
        return sum(
            int(np.prod(d.shape)) * private.dtype_of(d.dtype).itemsize
            for d in self.lowered.arrays.values()
            if d.space == "shared"
        )

    @cached_property
    def names(self) -> dict[str, object]:
        """What the generated code's free names stand for."""
        names = {k: private.as_core_type(v) for k, v in self.lowered.source.names.items()}
        names |= runtime.NAMES | self.lowered.helpers
        for d in self.lowered.arrays.values():
            names[f"_dt_{d.name}"] = dtype = private.dtype_of(d.dtype)
            names[f"_dt_{d.name}_itemsize"] = dtype.itemsize
        return names

    def _write(self) -> str:
        self.devices = self._device_functions(self.lowered, self.names)
        types, remade = self._kept()
        self.names |= {f"_dt_{v}": dtype for v, dtype in types.items()}
        return self.devices + self.generator.function(self._generated_name, types, remade)

    @property
    def _generated_name(self) -> str:
        return f"{self.name}_blocks"

    def _device_functions(self, lowered: Lowered, names: dict) -> str:
        text = ""
        for id, device in lowered.devices.items():
            own = {k: private.as_core_type(v) for k, v in device.source.names.items()}
            own |= runtime.NAMES | device.helpers
            own |= {f"_dt_{id}_{d.name}": private.dtype_of(d.dtype) for d in device.arrays.values()}
            if self.instrument:
                own |= self.instrument.names
            text += self._device_functions(device, own)
            source = one_thread.device_function(id, device, self.instrument)
            names[id] = self._jit(source, id, own, inline_it=True)
            text += source + "\n"
        return text

    def _kept(self) -> tuple[dict[str, np.dtype], dict[str, ast.expr]]:
        """The dtypes of variables that live across a meeting point; those that no array can keep are made again."""
        found = self._infer() if self.generator.kept else {}
        types = {v: f.dtype for v, f in found.items() if f.dtype is not None}
        return types, {v: self._recipe(v, f.type) for v, f in found.items() if f.dtype is None}

    def _infer(self) -> dict[str, inferred.Found]:
        return inferred.infer(self.lowered, self.names, self._own(), self.types, self.generator.kept)

    def _recipe(self, variable: str, found) -> ast.expr:
        """How to make again a variable that holds an array or a tuple: its one assignment, if it has only one."""
        assignments = [
            n
            for s in self.lowered.body
            for n in ast.walk(s)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == variable
        ]
        made = [
            n
            for s in self.lowered.body
            for n in ast.walk(s)
            if isinstance(n, ast.Assign) and len(n.targets) == 1 and getattr(n.targets[0], "id", "") == variable
        ]
        if len(assignments) != 1 or len(made) != 1:
            raise Unsupported(
                f"{self.name}: {variable} ({found}) lives across a barrier and is assigned more than once"
            )
        return made[0].value

    def _own(self) -> dict[str, object]:
        """The names in generated code that stand for functions of this package."""
        made = {helper_name(known): function for known, function in FUNCTIONS.made.items()}
        return runtime.NAMES | made | (self.instrument.names if self.instrument else {})

    def _jit(self, source: str, name: str, names: dict, inline_it: bool = False):
        """The compiled function that the source defines; kept on disk, unless it is compiled into its callers."""
        options = {
            "nogil": True,
            "no_cfunc_wrapper": True,
            "error_model": "numpy",
            "boundscheck": not self.instrument,
            "fastmath": True if self.fastmath else {"contract"},  # a GPU contracts a * b + c as well
            "forceinline": inline_it,
        }
        try:
            key = kept.key_of(source, names, self._own(), repr(options))
        except keys.Unknown:
            return njit(**options)(_execute(source, name, names, str(next(_counter))))
        function = njit(**options)(_execute(source, name, names, key[:12]))
        keys.compiled[function] = key
        return function if inline_it else kept.keep(function, "kernels", key)

    def _compile(self):
        if self.instrument:
            self.names |= self.instrument.names
        return self._jit(self.source[len(self.devices) :], self._generated_name, self.names)

    def compile(self, part) -> None:
        """Let numba compile the function: `part` runs no block."""
        with LOCK:
            if self.run.signatures:
                return
            try:
                part()
            except NumbaError as e:
                self._infer()  # which names the kernel's own line, if that is at fault
                raise Unsupported(str(private.one_line(e, self.name))) from e


_counter = iter(range(1 << 62))


def _execute(source: str, name: str, names: dict, label: str):
    """The function `name` that the source defines; its lines can be shown in tracebacks and by numba."""
    file = f"<labkit.cpu {label}: {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {**names, "__name__": __name__}  # a module that is there when the code is loaded again
    exec(compile(source, file, "exec"), names)
    return names[name]


_programs: dict[tuple, Program] = {}


def _instrument(mode: str):
    if mode == "checked":
        from labkit.cpu.checks import Checks

        return Checks()
    if mode == "counted":
        from labkit.cpu.counts import Counts

        return Counts()
    return None


def program(function, arguments: tuple, fastmath: bool = False, mode: str = "") -> Program:
    """The program for these arguments: compiled once per source text, free names, argument types and options."""
    types = tuple(_typeof(a, function, i) for i, a in enumerate(arguments))
    with LOCK:
        key = (fingerprint(function), types, fastmath, mode)
        if key not in _programs:
            _programs[key] = Program(function, types, fastmath, mode)
        return _programs[key]


def _typeof(argument, function, position: int):
    if isinstance(argument, np.ndarray) and argument.dtype.kind == "O":
        raise BadKernel(
            f"{function.__name__}: argument {position} is an array of Python objects; a GPU has numbers only"
        )
    try:
        found = typeof(argument)
    except ValueError:
        found = None
    if not private.is_argument(found):
        raise BadKernel(
            f"{function.__name__}: argument {position} is a {type(argument).__name__}, which no kernel takes; "
            "pass arrays and numbers"
        )
    return found


@lru_cache(maxsize=1024)
def fingerprint(function, seen: tuple = ()) -> tuple:
    """What a kernel's code depends on: its text, and the free names that it uses.

    As on a GPU the values are those of the first launch; a kernel defined anew is another function.
    """
    source = Source(function)
    values = []
    for name, value in sorted(keys.free(source.tree, source.names).items()):
        inner = getattr(value, "py_func", None) or getattr(value, "fn", None)
        if inner is not None and hasattr(inner, "__code__"):
            value = fingerprint(inner, (*seen, function)) if inner not in seen and inner is not function else name
        elif isinstance(value, np.ndarray):
            value = (value.shape, str(value.dtype), value.tobytes())
        else:
            constant = isinstance(value, (int, float, complex, str, bytes, tuple, bool, np.number))
            value = repr(value) if constant else id(value)  # 0.0 == -0.0 and (1,) == (1.0,), but not their texts
        values.append((name, type(value).__name__, value))
    return (source.text, source.function.__code__.co_firstlineno, source.file, tuple(values))


WORKERS = os.cpu_count() or 1
_pool = ThreadPoolExecutor(WORKERS, "labkit.cpu")


def run_blocks(
    program: Program, grid: tuple, block: tuple, dynamic: int, arguments: tuple, states: list[tuple]
) -> None:
    """Run all blocks, in as many equal parts as there are `states`."""
    blocks = grid[0] * grid[1] * grid[2]
    bounds = [blocks * i // len(states) for i in range(len(states) + 1)]
    parts = [[bounds[i : i + 2]] for i in range(len(states))]
    run_parts(program, grid, block, dynamic, arguments, parts, states)


def run_parts(program: Program, grid: tuple, block: tuple, dynamic: int, arguments: tuple, parts, states) -> None:
    """Run some blocks, each part (a list of ranges) in its order and beside the others.

    states  one a part: (fault record, the instrument's state if any)

    The first part that stops is the one whose exception is raised.
    """
    sizes = tuple(map(np.int32, (*block, *grid)))

    def run(ranges, state: tuple) -> None:
        for first, last in ranges:
            program.run(first, last, *sizes, np.empty(dynamic, np.uint8), *state, *arguments)

    program.compile(lambda: run([(0, 0)], states[0]))
    if len(parts) == 1:
        run(parts[0], states[0])
        return
    running = [_pool.submit(run, part, state) for part, state in zip(parts, states, strict=True)]
    wait(running)
    for done in running:
        done.result()
