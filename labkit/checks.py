"""Exercise checks that a wrong kernel cannot pass."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit import cpu, device, progress
from labkit.errors import LabError

GUARD = 1024  # elements before and after an output that nobody may touch: a whole block of the largest size
NAN_BITS = {2: 0x7EAD, 4: 0x7FC0DEAD, 8: 0x7FF8DEADDEADDEAD}


class WrongAnswer(LabError):
    """An exercise's kernel or value is wrong: what was found, what was expected, where to look."""


def tolerance(dtype, reduction: int, magnitude: float) -> float:
    """The largest error that rounding explains: absolute, for values of this `magnitude`.

    A chain of `reduction` roundings errs by about √reduction half-ulps; 16 leaves room for the order of additions
    and for fast math, and none for a missing term. The bound follows the data: zeros fail, however small the answer.
    """
    return 16 * float(np.finfo(dtype).eps) * np.sqrt(reduction) * magnitude


def poisoned(shape, dtype) -> np.ndarray:
    """An output to be filled: a NaN that no arithmetic makes, or for integers the smallest value, so that gaps show."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.full(shape, NAN_BITS[dtype.itemsize], f"u{dtype.itemsize}").view(dtype)
    return np.full(shape, np.iinfo(dtype).min, dtype)


def is_poison(values: np.ndarray) -> np.ndarray:
    """Which values are as `poisoned` left them, bit by bit (a NaN that a kernel computed is another one)."""
    bits = f"u{values.dtype.itemsize}"
    return values.view(bits) == poisoned(1, values.dtype).view(bits)[0]


def _in_blocks(function: Callable, *arrays: np.ndarray) -> list:
    """function(*blocks) for equal blocks of flat arrays, over the cores: a GiB is compared in about a second."""
    flat = [a.reshape(-1) for a in arrays]
    size, step = flat[0].size, 1 << 20
    if size <= step:
        return [function(*flat)]
    with ThreadPoolExecutor() as pool:  # NumPy lets go of Python's lock
        return list(pool.map(lambda i: function(*(a[i : i + step] for a in flat)), range(0, size, step)))


def assert_close(found, expected, *, reduction: int = 1, where: str = "", dtype=None) -> float:
    """Raise WrongAnswer unless `found` is `expected` but for rounding; returns the relative error.

    expected   float64, the reference
    reduction  how many terms each element sums (1 for elementwise work)
    dtype      the precision of the arithmetic (default: that of `found`)

    NaN, zeros, an untouched or partly filled output, another shape or an integer output for a float answer fail.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    prefix = f"{where}: " if where else ""
    if found.shape != expected.shape:
        raise WrongAnswer(f"{prefix}the shape is {found.shape}, expected {expected.shape}")
    if found.dtype.kind != "f" and expected.dtype.kind == "f":
        raise WrongAnswer(f"{prefix}the values are {found.dtype}, expected floats")
    if found.dtype.kind != "f":
        wrong, error = (found != expected).reshape(-1), 0.0
    else:
        wrong, error = _compare(found, expected, tolerance(dtype or found.dtype, reduction, 1.0))
    if wrong.any():
        raise WrongAnswer(prefix + _first_difference(found, expected, np.flatnonzero(wrong)))
    return error


def _compare(found: np.ndarray, expected: np.ndarray, allowed: float) -> tuple[np.ndarray, float]:
    """Which elements (flat) are wrong, and ‖found − expected‖ / ‖expected‖; infinities that were expected are right."""
    squares, count = np.sum(_in_blocks(_squares, expected), axis=0)
    magnitude = np.sqrt(squares / count) if count else 0.0

    def compare(found: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, float]:
        with np.errstate(invalid="ignore"):  # inf − inf
            difference = np.subtract(found, expected, dtype=np.float64)
        # not (≤) rather than (>): NaN compares false either way
        wrong = ~(np.abs(difference) <= allowed * np.maximum(np.abs(expected), magnitude))
        if wrong.any():
            wrong &= found != expected
        return wrong, _squares(difference)[0]

    wrong, differences = zip(*_in_blocks(compare, found, expected), strict=True)
    return np.concatenate(wrong), float(np.sqrt(sum(differences) / squares if squares else sum(differences)))


def _squares(values: np.ndarray) -> tuple[float, int]:
    """The sum of the squares of the finite values, and how many they are."""
    values = values.astype(np.float64, copy=False)
    if not np.isfinite(values).all():
        values = values[np.isfinite(values)]
    return float(np.einsum("i,i->", values, values)), values.size  # np.dot would start threads of its own


def _first_difference(found, expected, wrong) -> str:
    index = tuple(int(i) for i in np.unravel_index(wrong[0], expected.shape))
    at = f"[{', '.join(map(str, index))}]"
    share = f"{wrong.size} of {expected.size} elements are wrong"
    got = found[index]
    if is_poison(np.array([got]))[0]:
        return f"{share}; the first is {at}: never written, expected {expected[index]:.8g}"
    return f"{share}; the first is {at}: found {got:.8g}, expected {expected[index]:.8g}"


def assert_unchanged(device_arrays: Sequence, originals: Sequence[np.ndarray], where: str = "") -> None:
    """Raise WrongAnswer if a kernel wrote into one of its inputs."""
    for position, (array, original) in enumerate(zip(device_arrays, originals, strict=True)):
        now = array.copy_to_host() if hasattr(array, "copy_to_host") else np.asarray(array)
        bits = f"u{original.dtype.itemsize}"  # bit by bit: a NaN among the inputs equals itself
        if not all(_in_blocks(np.array_equal, now.reshape(-1).view(bits), original.reshape(-1).view(bits))):
            prefix = f"{where}: " if where else ""
            raise WrongAnswer(f"{prefix}input number {position} was changed; a kernel writes its output only")


def check_kernel(
    kernel,
    *,
    inputs: Callable[..., tuple],
    reference: Callable[..., np.ndarray],
    launches: Sequence[tuple],
    cases: Sequence[tuple],
    dtype: str = "float32",
    reduction: int = 1,
    exercise: str = "",
) -> None:
    """Check a kernel(*inputs, out) on every case with every launch configuration.

    inputs     inputs(rng, *case) -> the arrays and scalars before `out`
    reference  reference(*inputs) -> the answer, computed in float64 (arrays arrive as float64)
    launches   launch(*case) -> (grid, block), one function a configuration
    cases      the shapes; take odd ones
    exercise   the exercise's name: solved is remembered as progress

    Each output is poisoned, and guarded on both sides; every access is checked (`labkit.cpu`): indices, races,
    barriers. An untouched skeleton (its `...` still there) prints
    "not attempted". A wrong kernel raises WrongAnswer.
    """
    if device.MACHINE.mode == "none":
        raise LabError(device.TOO_LATE)
    if not cases or not launches:
        raise LabError("check_kernel needs at least one case and one launch configuration; nothing was checked")
    name = _function(kernel).__name__
    if is_skeleton(kernel):
        print(f"{exercise or name}: not attempted (replace the `...` in {name})")
        return
    for case in cases:
        for launch in launches:
            _check_launch(kernel, case, launch(*case), inputs, reference, dtype, reduction)
    progress.solved(exercise)
    shapes, configurations = _count(len(cases), "shape"), _count(len(launches), "launch configuration")
    print(f"{exercise or name}: right, on {shapes} with {configurations}{' each' * (len(cases) > 1)}")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _check_launch(kernel, case, configuration, inputs, reference, dtype, reduction) -> None:
    from numba import cuda

    grid, block = configuration
    arguments = inputs(np.random.default_rng(sum(case)), *case)
    exact = [a.astype(np.float64) if _is_float_array(a) else a for a in arguments]
    expected = np.asarray(reference(*exact))
    where = f"{_function(kernel).__name__}[{grid}, {block}] on {case[0] if len(case) == 1 else case}"
    on_device = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments]
    fence, out = guarded(expected.shape, dtype)
    if device.MACHINE.has_gpu:
        _check_on_cpu(kernel, configuration, arguments, expected.shape, dtype, where)
    try:
        with cpu.checked():
            kernel[grid, block](*on_device, out)
        cuda.synchronize()
    except cpu.KernelFault as e:
        raise WrongAnswer(f"{where}: {e}") from e
    except Exception as e:  # the learner's kernel may fail in any way that Python or numba knows
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        raise WrongAnswer(f"{where}: does not run ({type(e).__name__}: {' '.join(lines[:3])})") from e
    assert_close(out.copy_to_host(), expected, reduction=reduction, where=where)
    assert_fence(fence, expected.size, where)
    arrays = [(d, a) for d, a in zip(on_device, arguments, strict=True) if isinstance(a, np.ndarray)]
    assert_unchanged([d for d, _ in arrays], [a for _, a in arrays], where)


def _check_on_cpu(kernel, configuration, arguments, shape, dtype, where) -> None:
    """What a GPU does not tell: races, bad indices and barriers that not all threads reach, found on the CPU."""
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]  # a wrong kernel may write into them
    try:
        cpu.run(kernel, *configuration, *copies, poisoned(shape, dtype), checks=True)
    except cpu.KernelFault as e:
        raise WrongAnswer(f"{where}: {e}") from e
    except LabError:
        return  # a kernel that only a GPU can run


def guarded(shape, dtype):
    """A poisoned output on the device, and the larger array that holds it between two guard bands."""
    from numba import cuda

    size = int(np.prod(shape))
    fence = cuda.to_device(poisoned(size + 2 * GUARD, dtype))
    return fence, fence[GUARD : GUARD + size].reshape(shape)


def assert_fence(fence, size: int, where: str = "") -> None:
    """Raise WrongAnswer if anything was written beside a guarded output."""
    host = fence.copy_to_host()
    bands = np.concatenate([host[:GUARD], host[GUARD + size :]])
    written = ~is_poison(bands)
    if written.any():
        side = "before the start" if np.flatnonzero(written)[0] < GUARD else "past the end"
        raise WrongAnswer(f"{where}: the kernel wrote {side} of its output; is the bounds guard there?")


def check_value(exercise: str, answer, expected: float, *, within: float = 0.1, unit: str = "") -> None:
    """Check a number that the learner worked out: `within` (relative) of what is expected, or exactly it for 0.

    `...` prints "not attempted"; a wrong number raises WrongAnswer; a right one is remembered as progress.
    """
    name, unit = exercise or "the solution", f" {unit}" if unit else ""
    if answer is ...:
        print(f"{name}: not attempted (replace the `...`)")
        return
    if not isinstance(answer, (int, float, np.number)) or isinstance(answer, bool) or not np.isfinite(answer):
        raise WrongAnswer(f"{name}: found {answer!r}, expected a number")
    if abs(answer - expected) > within * abs(expected):
        near = f"within {within:.0%} of the answer" if within else "the answer"
        raise WrongAnswer(f"{name}: {answer:g}{unit} is not {near}; count again")
    progress.solved(exercise)
    print(f"{name}: right ({expected:g}{unit})" if exercise else f"{name}: right")


def is_skeleton(kernel) -> bool:
    """Whether the statement `...` still stands in the kernel's (or function's) body."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(_function(kernel))))
    except (OSError, TypeError, SyntaxError):
        return False
    return any(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...
        for node in ast.walk(tree)
    )


def _function(kernel):
    """The Python function under a kernel, be it numba.cuda's, the simulator's or njit's."""
    return getattr(kernel, "py_func", kernel)


def _is_float_array(a) -> bool:
    return isinstance(a, np.ndarray) and a.dtype.kind == "f"
