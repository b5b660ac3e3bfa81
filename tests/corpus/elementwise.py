"""One thread, one element: arithmetic and mathematical functions."""

import labkit  # isort: skip  # noqa: F401  # before numba

import math

import numpy as np
from numba import cuda, float32

from .entry import Entry, f64, normal, poison, uniform, whole

SLOPE = 0.25
OPTIONS = {"fastmath": True}


@cuda.jit
def vector_add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@cuda.jit
def saxpy(a, x, y):
    # in place
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i < x.shape[0]:
        y[i] = a * x[i] + y[i]


@cuda.jit
def relu_and_leaky(x, out, leaky):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = max(x[i], float32(0))
        # a module global as a constant
        leaky[i] = x[i] if x[i] > 0 else x[i] * float32(SLOPE)


@cuda.jit
def sigmoid(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 1.0 / (1.0 + math.exp(-x[i]))


@cuda.jit
def gelu_erf(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 0.5 * x[i] * (1.0 + math.erf(x[i] / math.sqrt(2.0)))


@cuda.jit
def gelu_tanh(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        inner = float32(math.sqrt(2 / math.pi)) * (v + float32(0.044715) * v * v * v)
        out[i] = float32(0.5) * v * (float32(1) + math.tanh(inner))


@cuda.jit(fastmath=True)
def silu_fastmath(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] / (float32(1) + math.exp(-x[i]))


@cuda.jit
def bias_and_clip(x, bias, low, high, out):
    # a row's bias reaches all columns
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = min(max(x[i, j] + bias[j], low), high)


@cuda.jit
def functions_f32(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        out[0, i] = math.sqrt(v)
        out[1, i] = math.exp(v)
        out[2, i] = math.log(v)
        out[3, i] = math.sin(v)
        out[4, i] = math.cos(v)
        out[5, i] = math.tanh(v)
        out[6, i] = math.erf(v)
        out[7, i] = math.pow(v, float32(1.5))
        out[8, i] = math.atan2(v, float32(2))
        out[9, i] = math.log1p(v)
        out[10, i] = math.expm1(v)
        out[11, i] = math.hypot(v, float32(3))


@cuda.jit
def functions_f64(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        out[0, i] = math.sqrt(v)
        out[1, i] = math.exp(v)
        out[2, i] = math.log(v)
        out[3, i] = math.sin(v)
        out[4, i] = math.cos(v)
        out[5, i] = math.tanh(v)
        out[6, i] = math.erf(v)
        out[7, i] = v**1.5
        out[8, i] = math.acos(v / 4)
        out[9, i] = math.log2(v)
        out[10, i] = math.exp(-v)
        out[11, i] = math.sinh(v)


@cuda.jit
def rounding(x, floors, ceilings, rounds, truncated):
    i = cuda.grid(1)
    if i < x.size:
        floors[i] = math.floor(x[i])
        ceilings[i] = math.ceil(x[i])
        # halves go to the even neighbour
        rounds[i] = round(x[i])
        truncated[i] = int(x[i])


@cuda.jit
def signs(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = math.fabs(x[i])
        out[1, i] = abs(x[i])
        out[2, i] = math.copysign(float32(2), x[i])
        out[3, i] = -x[i]
        out[4, i] = min(x[i], float32(0.5))
        out[5, i] = max(x[i], -x[i])


@cuda.jit
def not_numbers(x, nan, inf, safe):
    i = cuda.grid(1)
    if i < x.size:
        nan[i] = math.isnan(x[i])
        inf[i] = math.isinf(x[i])
        safe[i] = 0.0 if math.isnan(x[i]) or math.isinf(x[i]) else x[i]


@cuda.jit
def powers(x, n, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = x[i] ** 2
        out[1, i] = x[i] ** 3
        out[2, i] = x[i] ** n
        out[3, i] = x[i] ** 0.5
        out[4, i] = 2.0 ** x[i]


@cuda.jit
def polynomial(x, coefficients, out):
    # Horner's rule
    i = cuda.grid(1)
    if i < x.size:
        value = float32(0)
        for k in range(coefficients.size):
            value = value * x[i] + coefficients[k]
        out[i] = value


@cuda.jit
def fused_chain(x, bias, out):
    # bias, then GELU's cheap cousin, then a scale
    i = cuda.grid(1)
    n = bias.size
    if i < x.size:
        v = x[i] + bias[i % n]
        v = v * (float32(1) / (float32(1) + math.exp(float32(-1.702) * v)))
        out[i] = v * float32(0.5)


@cuda.jit
def fma_and_roots(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = cuda.fma(x[i], y[i], x[i])
        out[1, i] = cuda.cbrt(x[i])
        out[2, i] = cuda.selp(x[i] > y[i], x[i], y[i])


@cuda.jit
def fma_keeps_the_low_bits(x, out):
    # x * x rounds; the fused operation sees what was lost
    i = cuda.grid(1)
    if i < x.size:
        out[i] = cuda.fma(x[i], x[i], -float32(x[i] * x[i]))


@cuda.jit("void(float32[:], float32[:], float32)")
def signature_as_text(x, out, factor):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = factor * x[i]


@cuda.jit([(float32[::1], float32[::1])])
def signature_as_types(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] / 3


@cuda.jit(**OPTIONS, opt=True, inline=False, cache=False)
def with_options(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * x[i] + float32(1)


def _bias_and_clip(x, bias, low, high, out):
    return {4: np.clip(f64(x) + f64(bias), low, high)}


def _functions_f32(x, out):
    x = f64(x)
    rows = [np.sqrt(x), np.exp(x), np.log(x), np.sin(x), np.cos(x), np.tanh(x), _erf(x), x**1.5]
    return {1: np.stack([*rows, np.arctan2(x, 2), np.log1p(x), np.expm1(x), np.hypot(x, 3)])}


def _functions_f64(x, out):
    rows = [np.sqrt(x), np.exp(x), np.log(x), np.sin(x), np.cos(x), np.tanh(x), _erf(x), x**1.5]
    return {1: np.stack([*rows, np.arccos(x / 4), np.log2(x), np.exp(-x), np.sinh(x)])}


def _erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _rounding(x, floors, ceilings, rounds, truncated):
    whole_numbers = np.floor(x), np.ceil(x), np.rint(x), np.trunc(x)
    return {1 + k: v.astype(np.int64) for k, v in enumerate(whole_numbers)}


def _signs(x, out):
    return {
        1: np.stack([np.abs(x), np.abs(x), np.copysign(2, x), -x, np.minimum(x, 0.5), np.abs(x)]).astype(np.float32)
    }


def _some_not_numbers(rng):
    x = normal(rng, 120)
    x[3::7] = np.nan
    x[4::11] = np.inf
    x[5::13] = -np.inf
    return x, poison(120, np.bool_), poison(120, np.uint8), poison(120)


def _not_numbers(x, nan, inf, safe):
    return {1: np.isnan(x), 2: np.isinf(x).astype(np.uint8), 3: np.where(np.isfinite(x), x, 0).astype(np.float32)}


def _powers(x, n, out):
    x = f64(x)
    return {2: np.stack([x**2, x**3, x**n, np.sqrt(x), 2**x])}


def _fused_chain(x, bias, out):
    v = f64(x) + np.resize(f64(bias), x.size)
    return {2: 0.5 * v / (1 + np.exp(-1.702 * v))}


def _fma_and_roots(x, y, out):
    x, y = f64(x, y)
    return {2: np.stack([x * y + x, np.cbrt(x), np.maximum(x, y)])}


def _fma_low_bits(x, out):
    return {1: (f64(x) ** 2 - f64(x * x)).astype(np.float32)}


ENTRIES = [
    Entry(
        vector_add,
        4,
        128,
        lambda r: (normal(r, 500), normal(r, 500), poison(500)),
        lambda a, b, out: {2: a + b},
        ulp=0,
    ),
    Entry(
        saxpy,
        3,
        128,
        lambda r: (np.float32(2.5), normal(r, 333), normal(r, 333)),
        lambda a, x, y: {2: a * f64(x) + f64(y)},
        tolerance=1e-6,
        cancels=True,
    ),
    Entry(
        relu_and_leaky,
        3,
        64,
        lambda r: (normal(r, 190), poison(190), poison(190)),
        lambda x, out, leaky: {1: np.maximum(x, 0), 2: np.where(x > 0, x, x * np.float32(0.25))},
        ulp=0,
    ),
    Entry(
        sigmoid,
        3,
        64,
        lambda r: (normal(r, 190), poison(190)),
        lambda x, out: {1: 1 / (1 + np.exp(-f64(x)))},
        tolerance=1e-6,
    ),
    Entry(
        gelu_erf,
        3,
        64,
        lambda r: (normal(r, 190), poison(190)),
        lambda x, out: {1: 0.5 * f64(x) * (1 + _erf(f64(x) / np.sqrt(2)))},
        tolerance=2e-6,
        ulp=16,
        cancels=True,
    ),
    Entry(
        gelu_tanh,
        3,
        64,
        lambda r: (normal(r, 190), poison(190)),
        lambda x, out: {1: 0.5 * f64(x) * (1 + np.tanh(np.sqrt(2 / np.pi) * (f64(x) + 0.044715 * f64(x) ** 3)))},
        tolerance=2e-6,
        ulp=16,
        cancels=True,
    ),
    Entry(
        silu_fastmath,
        3,
        64,
        lambda r: (normal(r, 190), poison(190)),
        lambda x, out: {1: f64(x) / (1 + np.exp(-f64(x)))},
        tolerance=1e-5,
        ulp=64,
    ),
    Entry(
        bias_and_clip,
        (3, 2),
        (16, 8),
        lambda r: (normal(r, (13, 37)), normal(r, 37), np.float32(-1), np.float32(1.25), poison((13, 37))),
        _bias_and_clip,
        tolerance=1e-6,
    ),
    Entry(
        functions_f32,
        2,
        64,
        lambda r: (uniform(r, 101, low=0.3, high=2.9), poison((12, 101))),
        _functions_f32,
        tolerance=1e-6,
        ulp=8,
    ),
    Entry(
        functions_f64,
        2,
        64,
        lambda r: (uniform(r, 101, np.float64, 0.3, 2.9), poison((12, 101), np.float64)),
        _functions_f64,
        tolerance=1e-14,
        ulp=8,
    ),
    Entry(
        rounding,
        2,
        64,
        lambda r: (
            np.concatenate([np.arange(-4, 4.5, 0.5), r.uniform(-100, 100, 80)]),
            *(poison(97, np.int64) for _ in range(4)),
        ),
        _rounding,
    ),
    Entry(signs, 2, 64, lambda r: (normal(r, 99), poison((6, 99))), _signs, ulp=0),
    Entry(not_numbers, 2, 64, _some_not_numbers, _not_numbers, ulp=0),
    Entry(
        powers,
        2,
        64,
        lambda r: (uniform(r, 99, low=0.2, high=2), 4, poison((5, 99))),
        _powers,
        tolerance=1e-6,
        ulp=8,
    ),
    Entry(
        polynomial,
        2,
        64,
        lambda r: (uniform(r, 99, low=0, high=1), uniform(r, 6), poison(99)),
        lambda x, c, out: {2: np.polyval(f64(c), f64(x))},
        tolerance=1e-6,
        ulp=8,
    ),
    Entry(
        fused_chain,
        2,
        64,
        lambda r: (normal(r, 105), normal(r, 7), poison(105)),
        _fused_chain,
        tolerance=2e-6,
        ulp=16,
        cancels=True,
    ),
    Entry(
        fma_and_roots,
        2,
        64,
        lambda r: (uniform(r, 99), uniform(r, 99), poison((3, 99))),
        _fma_and_roots,
        tolerance=1e-6,
    ),
    Entry(
        fma_keeps_the_low_bits,
        2,
        64,
        lambda r: (uniform(r, 99), poison(99)),
        _fma_low_bits,
        ulp=0,
        simulator=False,  # it rounds the product first
    ),
    Entry(
        signature_as_text,
        2,
        64,
        lambda r: (normal(r, 99), poison(99), np.float32(1.5)),
        lambda x, out, factor: {1: x * factor},
        ulp=0,
    ),
    Entry(
        signature_as_types,
        2,
        64,
        lambda r: (normal(r, 99), poison(99)),
        lambda x, out: {1: f64(x) / 3},
        tolerance=1e-6,
        ulp=0,
    ),
    Entry(
        with_options,
        2,
        64,
        lambda r: (whole(r, 99, np.float32), poison(99)),
        lambda x, out: {1: x * x + np.float32(1)},
        ulp=0,
    ),
]
