"""Number types: what mixes with what, what overflows, what a cast keeps, what a store rounds."""

import labkit  # isort: skip  # noqa: F401  # before numba

import math

import numpy as np
from numba import boolean, cuda, float32, float64, int8, int16, int32, int64, uint8, uint32, uint64

from .entry import Entry, f64, normal, poison, uniform, whole

INT32_MIN = np.iinfo(np.int32).min


@cuda.jit
def overflow_on_store(a, b, out):
    # int32 and int32 make int64; only the store cuts it
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = a[i] + b[i]
        out[1, i] = a[i] * b[i]
        out[2, i] = (a[i] + b[i]) // 2
        out[3, i] = -a[i]
        out[4, i] = a[i] << 3
        out[5, i] = abs(a[i]) - 1


@cuda.jit
def narrow_integers(i8, u8, i16, u16, wide, i8_out, u8_out, i16_out, u16_out):
    i = cuda.grid(1)
    if i < i8.size:
        wide[i] = i8[i] * u8[i] + i16[i] * u16[i]
        i8_out[i] = i8[i] + u8[i]
        u8_out[i] = i8[i] * 3
        i16_out[i] = u16[i] - i16[i]
        u16_out[i] = i16[i] << 2


@cuda.jit
def integers_wrap(a, out):
    # int64 wraps by itself; uint64 too
    i = cuda.grid(1)
    if i < a.size:
        x = uint64(a[i])
        x ^= x >> uint64(33)
        x *= uint64(0xFF51AFD7ED558CCD)
        x ^= x >> uint64(29)
        out[0, i] = int64(x)
        out[1, i] = a[i] * int64(6364136223846793005) + int64(1442695040888963407)


@cuda.jit
def hash_u32(a, out):
    # products of uint32 are wide until they are cast or stored
    i = cuda.grid(1)
    if i < a.size:
        x = uint32(a[i])
        x = uint32((x ^ (x >> uint32(16))) * uint32(0x45D9F3B))
        x = uint32((x ^ (x >> uint32(16))) * uint32(0x45D9F3B))
        out[i] = x ^ (x >> uint32(16))


@cuda.jit
def division_of_integers(a, b, quotients, rests, ratios):
    # rounds down, the rest has the divisor's sign
    i = cuda.grid(1)
    if i < a.size:
        quotients[i] = a[i] // b[i]
        rests[i] = a[i] % b[i]
        ratios[i] = a[i] / b[i]


@cuda.jit
def division_of_floats(a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = a[i] // b[i]
        out[1, i] = a[i] % b[i]
        q, r = divmod(a[i], b[i])
        out[2, i] = q * b[i] + r


@cuda.jit
def remainders_of_c(a, b, out):
    # the sign is the dividend's
    i = cuda.grid(1)
    if i < a.size:
        out[i] = math.fmod(a[i], b[i])


@cuda.jit
def division_by_zero(a, zero, out, safe):
    # nothing is raised in a kernel
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] / zero
        safe[i] = 1 if zero == 0 else a[i]


@cuda.jit
def bit_operators(a, b, k, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = a[i] & b[i]
        out[1, i] = a[i] | b[i]
        out[2, i] = a[i] ^ b[i]
        out[3, i] = ~a[i]
        out[4, i] = a[i] >> k[i]
        out[5, i] = (a[i] & 0xFFFF) << k[i]


@cuda.jit
def shifts_without_sign(a, k, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = a[i] >> k[i]
        out[1, i] = (a[i] << k[i]) & uint32(0xFFFFFFFF)
        out[2, i] = (a[i] << k[i] | a[i] >> (uint32(32) - k[i])) & uint32(0xFFFFFFFF)


@cuda.jit
def creep_to_float64(x, k, out):
    # a constant with a point is a float64, and int64 pulls float32 up
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = x[i] * 0.1
        out[1, i] = x[i] * float32(0.1)
        out[2, i] = x[i] + 1
        out[3, i] = x[i] / 3
        out[4, i] = x[i] / float32(3)
        out[5, i] = k[i] * x[i]
        out[6, i] = x[i] - np.float32(0.7)


@cuda.jit
def creep_of_functions(x, k, out):
    # of a float32 a float32, of an integer a float64
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = math.sqrt(x[i])
        out[1, i] = math.sqrt(float64(x[i]))
        out[2, i] = math.sqrt(k[i])
        out[3, i] = x[i] * x[i]
        out[4, i] = abs(x[i]) + abs(k[i])
        out[5, i] = math.pi
        out[6, i] = math.floor(x[i]) + 0.5  # of a float32 a float32


@cuda.jit
def creep_of_accumulators(x, out):
    # a total that starts as 0.0 is a float64, one that starts as float32(0) is not
    i = cuda.grid(1)
    if i < x.shape[0]:
        wide = 0.0
        narrow = float32(0)
        for j in range(x.shape[1]):
            wide += x[i, j]
            narrow += x[i, j]
        out[i, 0] = wide
        out[i, 1] = narrow


@cuda.jit
def mixed_integers(i32, i64, u32, u64, out, out_f):
    i = cuda.grid(1)
    if i < i32.size:
        out[0, i] = i32[i] + i64[i]
        out[1, i] = i32[i] * u32[i]
        out[2, i] = u32[i] - i32[i]
        out[3, i] = u32[i] * u32[i]
        # uint64 and int64 make int64; uint64 alone stays unsigned
        out_f[0, i] = u64[i] + i64[i]
        out_f[1, i] = u64[i] * 2
        out_f[2, i] = u64[i] + u64[i]
        out_f[3, i] = i32[i] / u32[i]


@cuda.jit
def casts(x, k, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = int32(x[i])
        out[1, i] = int(x[i])
        out[2, i] = float32(k[i])
        out[3, i] = np.float32(x[i])
        out[4, i] = float(k[i]) / 3
        out[5, i] = np.int16(k[i])
        out[6, i] = uint8(k[i])
        out[7, i] = int8(k[i])
        out[8, i] = np.float64(np.float32(0.1)) * k[i]
        out[9, i] = int16(k[i] * 7) + int64(x[i])
        out[10, i] = bool(k[i] % 3)
        out[11, i] = int32(x[i] > 0) + boolean(k[i])


@cuda.jit
def truths(a, b, out, numbers):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = a[i] and b[i]
        out[1, i] = a[i] or b[i]
        out[2, i] = not a[i]
        out[3, i] = a[i] != b[i]
        out[4, i] = a[i] & b[i]
        out[5, i] = a[i] ^ b[i]
        numbers[i] = a[i] + b[i] + (2 if a[i] else 4)


@cuda.jit
def halves(a, b, out, wide):
    # loads, float16 arithmetic, stores
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = a[i] + b[i]
        out[1, i] = a[i] * b[i]
        out[2, i] = a[i] - b[i]
        out[3, i] = -a[i]
        wide[0, i] = float32(a[i]) * float32(b[i])
        wide[1, i] = a[i]
        wide[2, i] = 1 if a[i] < b[i] else 0


@cuda.jit
def halves_and_singles(a, x, out):
    # the sum is made in float32 and rounded once
    i = cuda.grid(1)
    if i < a.shape[0]:
        total = float32(0)
        for j in range(a.shape[1]):
            total += float32(a[i, j]) * x[j]
        out[i] = total


@cuda.jit
def halves_by_name(a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = cuda.fp16.hadd(a[i], b[i])
        out[1, i] = cuda.fp16.hsub(a[i], b[i])
        out[2, i] = cuda.fp16.hmul(a[i], b[i])
        out[3, i] = cuda.fp16.hneg(a[i])
        out[4, i] = cuda.fp16.habs(b[i])
        out[5, i] = cuda.fp16.hmax(a[i], b[i])
        out[6, i] = cuda.fp16.hmin(a[i], b[i])


@cuda.jit
def halves_fused(a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = cuda.fp16.hfma(a[i], b[i], a[i])
        out[1, i] = cuda.fp16.hsqrt(b[i])
        out[2, i] = cuda.fp16.hdiv(a[i], b[i])


@cuda.jit
def complex_numbers(a, b, out, parts):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = a[i] * b[i]
        out[1, i] = a[i] + b[i] - 1j
        out[2, i] = a[i].conjugate()
        parts[0, i] = a[i].real
        parts[1, i] = a[i].imag
        parts[2, i] = a[i].real ** 2 + a[i].imag ** 2


@cuda.jit
def least_and_greatest(a, x, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = min(a[i], 3)
        out[1, i] = max(a[i], x[i])
        out[2, i] = min(a[i], x[i], 1.5)
        out[3, i] = max(0, a[i])
        out[4, i] = abs(a[i])
        out[5, i] = round(x[i], 1)


@cuda.jit
def bits_32(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i] = cuda.popc(a[i])
        out[1, i] = cuda.clz(a[i])
        out[2, i] = cuda.brev(a[i])
        out[3, i] = cuda.ffs(a[i])


@cuda.jit
def bits_of_other_widths(i32, i64, u64, u8, out):
    i = cuda.grid(1)
    if i < i32.size:
        out[0, i] = cuda.popc(i32[i])
        out[1, i] = cuda.popc(i64[i])
        out[2, i] = cuda.popc(u8[i])
        out[3, i] = cuda.clz(i32[i])
        out[4, i] = cuda.clz(i64[i])
        out[5, i] = cuda.ffs(i64[i])
        out[6, i] = cuda.ffs(i32[i])
        out[7, i] = int64(cuda.brev(u64[i]))
        out[8, i] = cuda.clz(u64[i])


@cuda.jit
def libdevice_functions(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = cuda.libdevice.expf(x[i])
        out[1, i] = cuda.libdevice.rsqrtf(x[i])
        out[2, i] = cuda.libdevice.fmaf(x[i], y[i], x[i])
        out[3, i] = cuda.libdevice.sinf(x[i])
        out[4, i] = cuda.libdevice.powf(x[i], y[i])
        out[5, i] = cuda.libdevice.hypotf(x[i], y[i])
        out[6, i] = cuda.libdevice.exp2f(y[i])
        out[7, i] = cuda.libdevice.log2f(x[i])
        out[8, i] = cuda.libdevice.fmaxf(x[i], y[i])
        out[9, i] = cuda.libdevice.erff(x[i])


@cuda.jit
def libdevice_conversions(x, k, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = cuda.libdevice.float2int_rn(x[i])
        out[1, i] = cuda.libdevice.float2int_rz(x[i])
        out[2, i] = cuda.libdevice.float_as_int(x[i])
        out[3, i] = cuda.libdevice.popc(k[i])
        out[4, i] = cuda.libdevice.mulhi(k[i], k[i])
        out[5, i] = cuda.libdevice.float2int_rn(
            cuda.libdevice.int_as_float(k[i] & 0x7F7FFFFF | 0x3F800000) * float32(0)
        )
        out[6, i] = cuda.libdevice.float2int_ru(cuda.libdevice.rintf(x[i]))


@cuda.jit
def numpy_functions(x, out):
    # NumPy's functions of numbers, as far as numba.cuda knows them (no sqrt, exp, floor)
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = np.sin(x[i])
        out[1, i] = np.maximum(x[i], float32(1))
        out[2, i] = np.log(x[i])
        out[3, i] = np.hypot(x[i], float32(2))
        out[4, i] = np.pi * x[i]


@cuda.jit
def scalars(i8, i32, u32, i64, f32, f64_, b, pair, out):
    # arguments that are no arrays, and a tuple of two types
    if cuda.grid(1) == 0:
        count, scale = pair
        out[0] = i8 + i32
        out[1] = u32 * i64
        out[2] = f32 * f64_
        out[3] = 1.0 if b else -1.0
        out[4] = count * scale
        out[5] = pair[0] - f32
        out[6] = f32 / i32


def _overflow(a, b, out):
    x, y = a.astype(np.int64), b.astype(np.int64)
    return {2: np.stack([x + y, x * y, (x + y) // 2, -x, x << 3, abs(x) - 1]).astype(np.int32)}


def _narrow(i8, u8, i16, u16, wide, *outputs):
    a, b, c, d = (v.astype(np.int64) for v in (i8, u8, i16, u16))
    values = a * b + c * d, a + b, a * 3, d - c, c << 2
    return {4 + k: v.astype(o.dtype) for k, (v, o) in enumerate(zip(values, (wide, *outputs), strict=True))}


def _integers_wrap(a, out):
    for i, v in enumerate(a.tolist()):
        x = v % (1 << 64)
        x ^= x >> 33
        x = x * 0xFF51AFD7ED558CCD % (1 << 64)
        x ^= x >> 29
        out[0, i] = np.uint64(x).astype(np.int64)
        out[1, i] = np.uint64((v * 6364136223846793005 + 1442695040888963407) % (1 << 64)).astype(np.int64)
    return {1: out}


def _hash(a, out):
    for i, x in enumerate(a.tolist()):
        for _ in range(2):
            x = (x ^ x >> 16) * 0x45D9F3B % (1 << 32)
        out[i] = x ^ x >> 16
    return {1: out}


def _division_of_floats(a, b, out):
    return {2: np.stack([np.floor(a / b), a - b * np.floor(a / b), a])}


def _bit_operators(a, b, k, out):
    return {3: np.stack([a & b, a | b, a ^ b, ~a, a >> k, (a & 0xFFFF) << k])}


def _shifts(a, k, out):
    left = a << k
    return {2: np.stack([a >> k, left, left | a >> (32 - k)]).astype(np.uint32)}


def _creep(x, k, out):
    w = f64(x)
    tenth, third = x * np.float32(0.1), x / np.float32(3)
    return {2: np.stack([w * 0.1, tenth, w + 1, w / 3, third, k * w, x - np.float32(0.7)])}


def _creep_functions(x, k, out):
    w = f64(x)
    rows = [np.sqrt(x), np.sqrt(w), np.sqrt(f64(k)), x * x, w + np.abs(k), 0 * w + np.pi, np.floor(w) + 0.5]
    return {2: np.stack(rows).astype(np.float64)}


def _creep_accumulators(x, out):
    wide, narrow = np.zeros(len(x)), np.zeros(len(x), np.float32)
    for j in range(x.shape[1]):
        wide += x[:, j]
        narrow += x[:, j]
    return {1: np.stack([wide, narrow], 1)}


def _mixed(i32, i64, u32, u64, out, out_f):
    a, b = i32.astype(np.int64), u32.astype(np.int64)
    exact = np.stack([a + i64, a * b, b - a, (u32.astype(np.uint64) ** 2).astype(np.int64)])
    return {4: exact, 5: np.stack([f64(u64.view(np.int64) + i64), f64((u64 * 2).view(np.int64)), f64(u64 * 2), a / b])}


def _casts(x, k, out):
    t, w = np.trunc(x), f64(k)
    rows = [t, t, k.astype(np.float32), x.astype(np.float32), w / 3]
    rows += [k.astype(np.int16), k.astype(np.uint8), k.astype(np.int8), f64(np.float32(0.1)) * w]
    rows += [f64((k.astype(np.int64) * 7).astype(np.int16)) + t, k % 3 != 0, (x > 0) + f64(k != 0)]
    return {2: np.stack([f64(row) for row in rows])}


def _truths(a, b, out, numbers):
    return {
        2: np.stack([a & b, a | b, ~a, a != b, a & b, a ^ b]),
        3: (a.astype(int) + b + np.where(a, 2, 4)).astype(np.int32),
    }


def _halves(a, b, out, wide):
    w = np.stack([a.astype(np.float32) * b.astype(np.float32), a.astype(np.float32), (a < b).astype(np.float32)])
    return {2: np.stack([a + b, a * b, a - b, -a]), 3: w}


def _halves_by_name(a, b, out):
    return {2: np.stack([a + b, a - b, a * b, -a, abs(b), np.maximum(a, b), np.minimum(a, b)])}


def _halves_fused(a, b, out):
    x, y = f64(a, b)
    return {2: np.stack([x * y + x, np.sqrt(y), x / y])}


def _complex(a, b, out, parts):
    c, d = a.astype(np.complex128), b.astype(np.complex128)
    return {2: np.stack([c * d, c + d - 1j, c.conj()]), 3: np.stack([c.real, c.imag, abs(c) ** 2])}


def _least(a, x, out):
    w = f64(x)
    rows = [np.minimum(a, 3), np.maximum(a, w), np.minimum(np.minimum(a, w), 1.5), np.maximum(a, 0), np.abs(a)]
    return {2: np.stack([*(f64(row) for row in rows), np.round(w, 1)])}


def _reversed(v, width):
    return int(f"{v:0{width}b}"[::-1], 2)


def _bits_of(v, width):
    """Set bits, leading zeros, and the lowest set bit's place from 1."""
    v %= 1 << width
    return v.bit_count(), width - v.bit_length(), (v & -v).bit_length()


def _bits_32(a, out):
    for i, v in enumerate(a.tolist()):
        popc, clz, ffs = _bits_of(v, 32)
        out[:, i] = popc, clz, _reversed(v, 32), ffs
    return {1: out}


def _bits_of_other_widths(i32, i64, u64, u8, out):
    for i in range(i32.size):
        narrow, wide, unsigned = _bits_of(int(i32[i]), 32), _bits_of(int(i64[i]), 64), _bits_of(int(u64[i]), 64)
        back = np.uint64(_reversed(int(u64[i]), 64)).astype(np.int64)
        out[:, i] = (
            narrow[0],
            wide[0],
            int(u8[i]).bit_count(),
            narrow[1],
            wide[1],
            wide[2],
            narrow[2],
            back,
            unsigned[1],
        )
    return {4: out}


def _libdevice(x, y, out):
    x, y = f64(x, y)
    rows = [np.exp(x), 1 / np.sqrt(x), x * y + x, np.sin(x), x**y, np.hypot(x, y), np.exp2(y), np.log2(x)]
    return {2: np.stack([*rows, np.maximum(x, y), np.vectorize(math.erf)(x)])}


def _libdevice_conversions(x, k, out):
    rows = [np.rint(x), np.trunc(x), x.view(np.int32), [int(v).bit_count() for v in k.view(np.uint32)]]
    return {2: np.stack([*rows, k.astype(np.int64) ** 2 >> 32, 0 * k, np.rint(x)]).astype(np.int32)}


def _scalars(i8, i32, u32, i64, f32, f64_, b, pair, out):
    values = [int(i8) + int(i32), int(u32) * int(i64), float(f32) * f64_, 1.0 if b else -1.0, pair[0] * pair[1]]
    return {8: np.array([*values, pair[0] - float(f32), float(f32) / int(i32)])}


def _edges(rng, n, dtype=np.int32):
    """Any integers, the extreme ones among them."""
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
    a[:4] = info.min, info.max, 0, 1
    return a


def _complexes(rng, n):
    return (rng.uniform(0.5, 1, n) + 1j * rng.uniform(1.5, 2, n)).astype(np.complex64)


def _not_zero(rng, n, dtype):
    a = whole(rng, n, dtype, -9, 9)
    a[a == 0] = 4
    return a


ENTRIES = [
    Entry(
        overflow_on_store,
        2,
        64,
        lambda r: (_edges(r, 99), _edges(r, 99)[::-1].copy(), poison((6, 99), np.int32)),
        _overflow,
        simulator=False,  # NumPy's int32 overflows at once
    ),
    Entry(
        narrow_integers,
        2,
        64,
        lambda r: (
            _edges(r, 99, np.int8),
            _edges(r, 99, np.uint8),
            _edges(r, 99, np.int16),
            _edges(r, 99, np.uint16),
            poison(99, np.int64),
            poison(99, np.int8),
            poison(99, np.uint8),
            poison(99, np.int16),
            poison(99, np.uint16),
        ),
        _narrow,
        simulator=False,  # NumPy's narrow integers overflow at once
    ),
    Entry(
        integers_wrap,
        2,
        64,
        lambda r: (_edges(r, 99, np.int64), poison((2, 99), np.int64)),
        _integers_wrap,
        simulator=False,  # numba's types cast nothing there
    ),
    Entry(
        hash_u32,
        2,
        64,
        lambda r: (_edges(r, 99, np.uint32), poison(99, np.uint32)),
        _hash,
        simulator=False,  # numba's types cast nothing there
    ),
    Entry(
        division_of_integers,
        2,
        64,
        lambda r: (
            whole(r, 99),
            _not_zero(r, 99, np.int32),
            poison(99, np.int32),
            poison(99, np.int32),
            poison(99, np.float64),
        ),
        lambda a, b, quotients, rests, ratios: {2: a // b, 3: a % b, 4: a / b},
        ulp=0,
    ),
    Entry(
        division_of_floats,
        2,
        64,
        lambda r: (
            normal(r, 99, np.float64) * 20,
            np.where(r.random(99) < 0.5, -1, 1) * r.uniform(1, 5, 99),
            poison((3, 99), np.float64),
        ),
        _division_of_floats,
        tolerance=1e-13,
        ulp=16,
        cancels=True,
    ),
    Entry(
        remainders_of_c,
        2,
        64,
        lambda r: (normal(r, 99, np.float64) * 20, r.uniform(1, 5, 99), poison(99, np.float64)),
        lambda a, b, out: {2: np.fmod(a, b)},
        ulp=0,
    ),
    Entry(
        division_by_zero,
        1,
        64,
        lambda r: (np.array([1, -2, 0, np.inf, 5], np.float32), np.float32(0), poison(5), poison(5, np.int32)),
        lambda a, zero, out, safe: {
            2: np.array([np.inf, -np.inf, np.nan, np.inf, np.inf], np.float32),
            3: np.ones(5, np.int32),
        },
        ulp=0,
        simulator=False,  # NumPy warns
    ),
    Entry(
        bit_operators,
        2,
        64,
        lambda r: (_edges(r, 99), _edges(r, 99), whole(r, 99, low=0, high=15), poison((6, 99), np.int32)),
        _bit_operators,
    ),
    Entry(
        shifts_without_sign,
        2,
        64,
        lambda r: (_edges(r, 99, np.uint32), whole(r, 99, np.uint32, 1, 31), poison((3, 99), np.uint32)),
        _shifts,
        simulator=False,  # numba's types cast nothing there
    ),
    Entry(
        creep_to_float64,
        2,
        64,
        lambda r: (uniform(r, 99), whole(r, 99), poison((7, 99), np.float64)),
        _creep,
        ulp=0,
        simulator=False,  # NumPy's float32 stays float32 beside Python's numbers
    ),
    Entry(
        creep_of_functions,
        2,
        64,
        lambda r: (uniform(r, 99), whole(r, 99, low=1), poison((7, 99), np.float64)),
        _creep_functions,
        ulp=0,
        simulator=False,  # math makes float64 of everything there
    ),
    Entry(
        creep_of_accumulators,
        2,
        64,
        lambda r: (uniform(r, (70, 30)), poison((70, 2), np.float64)),
        _creep_accumulators,
        ulp=0,
        simulator=False,  # 0.0 + float32 is a float32 there
    ),
    Entry(
        mixed_integers,
        2,
        64,
        lambda r: (
            _edges(r, 99),
            r.integers(-(1 << 40), 1 << 40, 99),
            _edges(r, 99, np.uint32) | np.uint32(1),
            r.integers(0, 1 << 63, 99, dtype=np.uint64) * np.uint64(2),
            poison((4, 99), np.int64),
            poison((4, 99), np.float64),
        ),
        _mixed,
        ulp=0,
        simulator=False,  # NumPy's uint32 overflows at once
    ),
    Entry(
        casts,
        2,
        64,
        lambda r: (normal(r, 99, np.float64) * 50, whole(r, 99, low=-999, high=999), poison((12, 99), np.float64)),
        _casts,
        ulp=0,
        simulator=False,  # numba's types cast nothing there
    ),
    Entry(
        truths,
        2,
        64,
        lambda r: (r.random(99) < 0.5, r.random(99) < 0.5, poison((6, 99), np.bool_), poison(99, np.int32)),
        _truths,
        simulator=False,  # NumPy's True + True is True
    ),
    Entry(
        halves,
        2,
        64,
        lambda r: (
            uniform(r, 99, np.float16),
            uniform(r, 99, np.float16),
            poison((4, 99), np.float16),
            poison((3, 99)),
        ),
        _halves,
        ulp=0,
    ),
    Entry(
        halves_and_singles,
        2,
        32,
        lambda r: (uniform(r, (41, 19), np.float16), uniform(r, 19), poison(41, np.float16)),
        lambda a, x, out: {2: f64(a) @ f64(x)},
        tolerance=1e-3,
        ulp=1,
    ),
    Entry(
        halves_by_name,
        2,
        64,
        lambda r: (normal(r, 99, np.float16), normal(r, 99, np.float16), poison((7, 99), np.float16)),
        _halves_by_name,
        ulp=0,
    ),
    Entry(
        halves_fused,
        2,
        64,
        lambda r: (uniform(r, 99, np.float16), uniform(r, 99, np.float16), poison((3, 99), np.float16)),
        _halves_fused,
        tolerance=2e-3,
        ulp=1,
    ),
    Entry(
        complex_numbers,
        2,
        64,
        lambda r: (_complexes(r, 99), _complexes(r, 99), poison((3, 99), np.complex64), poison((3, 99))),
        _complex,
        tolerance=1e-6,
        cancels=True,
    ),
    Entry(
        least_and_greatest,
        2,
        64,
        lambda r: (whole(r, 99, low=-6, high=6), normal(r, 99, np.float64) * 3, poison((6, 99), np.float64)),
        _least,
        ulp=0,
    ),
    Entry(
        bits_32,
        2,
        64,
        lambda r: (_edges(r, 99, np.uint32), poison((4, 99), np.uint32)),
        _bits_32,
    ),
    Entry(
        bits_of_other_widths,
        2,
        64,
        lambda r: (
            _edges(r, 99),
            _edges(r, 99, np.int64) << r.integers(0, 50, 99),
            _edges(r, 99, np.uint64) >> r.integers(0, 50, 99, dtype=np.uint64),
            _edges(r, 99, np.uint8),
            poison((9, 99), np.int64),
        ),
        _bits_of_other_widths,
        simulator=False,  # it counts in 32 bits
    ),
    Entry(
        libdevice_functions,
        2,
        64,
        lambda r: (uniform(r, 99), uniform(r, 99, low=1.6, high=3), poison((10, 99))),
        _libdevice,
        tolerance=1e-6,
        ulp=8,
        simulator=False,  # it has no libdevice
    ),
    Entry(
        libdevice_conversions,
        2,
        64,
        lambda r: (normal(r, 99) * np.float32(9), _edges(r, 99), poison((7, 99), np.int32)),
        _libdevice_conversions,
        simulator=False,  # it has no libdevice
    ),
    Entry(
        numpy_functions,
        2,
        64,
        lambda r: (uniform(r, 99), poison((5, 99))),
        lambda x, out: {
            1: np.stack([np.sin(f64(x)), np.maximum(x, 1), np.log(f64(x)), np.hypot(f64(x), 2), np.pi * f64(x)])
        },
        tolerance=1e-6,
        cancels=True,
    ),
    Entry(
        scalars,
        2,
        32,
        lambda r: (
            np.int8(-100),
            np.int32(7),
            np.uint32(4000000000),
            -12,
            np.float32(0.1),
            0.1,
            True,
            (3, 2.5),
            poison(7, np.float64),
        ),
        _scalars,
        ulp=0,
        simulator=False,  # NumPy's scalars overflow and stay narrow
    ),
]
