"""labkit.cpu's float16 and device functions against NumPy, Python's integers and fractions, and math."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numba import njit, types

from labkit.cpu import half
from labkit.cpu.functions import FUNCTIONS, REFUSED

half.install()
RNG = np.random.default_rng(7)
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]
INTEGERS = {
    width: np.array([0, 1, 2 ** (width - 1), 2**width - 1, *RNG.integers(0, 2**width, 60, np.uint64)], np.uint64)
    for width in (8, 32)
}
INTEGERS[64] = np.array([0, 1, 2**63, 2**64 - 1, *RNG.integers(0, 2**64, 60, np.uint64)], np.uint64)


def source(text: str, **names):
    """The function ``f`` of a source text, compiled."""
    names |= {"np": np, "math": math, "types": types}
    exec(text, names)
    return njit(error_model="numpy")(names["f"])


def tabulate(functions: dict, dtype, *arguments: np.ndarray) -> np.ndarray:
    """A row of results for each function, over the arguments' elements, from one compiled loop."""
    values = ", ".join(f"x{k}[i]" for k in range(len(arguments)))
    rows = "; ".join(f"out[{k}, i] = {name}({values})" for k, name in enumerate(functions))
    xs = ", ".join(f"x{k}" for k in range(len(arguments)))
    out = np.empty((len(functions), arguments[0].size), dtype)
    source(f"def f(out, {xs}):\n    for i in range(x0.size):\n        {rows}", **functions)(out, *arguments)
    return out


def same_halves(got, want) -> bool:
    nan = np.isnan(want)
    return np.array_equal(np.isnan(got), nan) and np.array_equal(got[~nan].view(np.uint16), want[~nan].view(np.uint16))


def kind(function, *arguments) -> str:
    compiled = njit(error_model="numpy", no_cpython_wrapper=True)(function)
    compiled.compile(arguments)
    return str(compiled.nopython_signatures[0].return_type)


def kind_of(name: str, *arguments) -> str:
    """The result type of one of our functions."""
    names = ", ".join("xyz"[: len(arguments)])
    return kind(source(f"def f({names}):\n    return function({names})", function=FUNCTIONS[name]).py_func, *arguments)


def assert_close(got, want, ulps, dtype):
    with np.errstate(over="ignore"):
        want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    unit = np.spacing(np.abs(want).astype(dtype)).astype(np.float64)
    close = (np.abs(got - want) <= ulps * unit) | (got == want) | (np.isnan(got) & np.isnan(want))
    assert close.all(), (got[~close][:4], want[~close][:4])


# -------------------------------------------------------------------------------------------------------- float16
@pytest.fixture(params=[True, False], ids=["hardware", "software"])
def conversions(request, monkeypatch):
    if request.param and not half.has_conversion_instructions():
        pytest.skip("this processor has no conversions of float16")
    monkeypatch.setitem(half._state, "hardware", request.param)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_half_converts_exactly(conversions):
    widen = source(
        "def f(h, s, d, i, b):\n for k in range(h.size):\n"
        "  s[k] = h[k]; d[k] = h[k]; i[k] = int(h[k]); b[k] = bool(h[k])"
    )
    out = [np.empty(2**16, dtype) for dtype in (np.float32, np.float64, np.int64, np.bool_)]
    widen(HALVES, *out)
    finite = np.isfinite(HALVES)
    for got in out:
        chosen = slice(None) if got.dtype != np.int64 else finite
        np.testing.assert_array_equal(got[chosen], HALVES[chosen].astype(got.dtype))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rounding_to_half_is_to_nearest_even_and_happens_once(conversions):
    narrow = source("def f(x, h):\n for k in range(x.size):\n  h[k] = x[k]")
    middle = (FINITE.astype(np.float64) + np.nextafter(FINITE, np.float16(np.inf))) / 2
    beside = [np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    doubles = np.concatenate(
        [middle, *beside, [65520, 65519.99999999999, 1e300, -1e300, 5e-324, -0.0, np.nan, -np.inf]]
    )
    singles = RNG.integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    for x in (doubles, singles, middle.astype(np.float32), np.arange(-70_000, 70_000), np.array([True, False])):
        got = np.empty(x.size, np.float16)
        narrow(x, got)
        assert same_halves(got, x.astype(np.float16)), x.dtype


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_arithmetic_is_numpys():
    lines = [
        f"o[{k}, i] = x[i] {sign} y[i]; o[{k + 4}, i] = x[i]; o[{k + 4}, i] {sign}= y[i]"
        for k, sign in enumerate("+-*/")
    ]
    lines += ["o[8, i] = min(x[i], y[i]); o[9, i] = max(x[i], y[i]); o[10, i] = -x[i]; o[11, i] = abs(x[i])"]
    lines += [
        f"o[{12 + k}, i] = math.{f}(x[i])" for k, f in enumerate(("sqrt", "floor", "ceil", "trunc", "exp", "log2"))
    ]
    loop = source("def f(x, y, o):\n for i in range(x.size):\n  " + "\n  ".join(lines))
    x, y = HALVES[RNG.integers(0, 2**16, (2, 300_000))]
    got = np.empty((18, x.size), np.float16)
    loop(x, y, got)
    four = [np.add(x, y), np.subtract(x, y), np.multiply(x, y), np.divide(x, y)]
    for k, want in enumerate(four + four):
        assert same_halves(got[k], want), k
    np.testing.assert_array_equal(got[8:10], [np.fmin(x, y), np.fmax(x, y)])
    for k, want in enumerate([-x, np.abs(x), np.sqrt(x), np.floor(x), np.ceil(x), np.trunc(x)]):
        assert same_halves(got[10 + k], want), k
    assert_close(got[16], np.exp(x), 1, np.float16)
    assert_close(got[17], np.log2(x), 1, np.float16)


TYPES = {"h": types.float16, "f": types.float32, "d": types.float64, "i": types.int32, "b": types.boolean}


@pytest.mark.parametrize(
    ("expression", "arguments", "result"),
    [
        ("x + y", "hh", "float16"),
        ("x / y", "bh", "float16"),
        ("x * y", "hf", "float32"),
        ("x - y", "hi", "float64"),
        ("x // y", "hh", "float32"),
        ("x ** 2 + 0 * y", "hf", "float64"),
        ("1.5 * x + 0 * y", "hh", "float64"),
        ("max(x, y)", "hh", "float16"),
        ("max(x, y)", "hd", "float64"),
        ("math.sqrt(x) + float(y)", "hh", "float16"),
        ("math.tan(x) + math.sin(y)", "hh", "float32"),
        ("np.float16(x) + types.float16(y)", "di", "float16"),
        ("round(x) + int(y)", "hh", "int64"),
        ("x < y or not x", "hh", "bool"),
    ],
)
def test_half_result_types_are_numba_cudas(expression, arguments, result):  # as cuda.compile gives them
    function = source(f"def f(x, y):\n    return {expression}").py_func
    assert kind(function, *(TYPES[letter] for letter in arguments)) == result


CONSTANT = np.float16(0.1)


def test_half_arrays_of_any_shape_and_layout_and_scalars():
    @njit(boundscheck=True)
    def work(a, scale):
        out = np.empty(a.shape, np.float16)
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                out[i, j] = a[i, j] * scale
                out[i, j] += np.float32(1)
                out[i, j] -= CONSTANT
        return out

    a = np.asfortranarray(HALVES[15_360:15_400].reshape(5, 8))
    for view in (a, a[::-1, 1::3], a.T):
        want = ((view * np.float16(0.5)).astype(np.float32) + 1).astype(np.float16) - CONSTANT
        np.testing.assert_array_equal(work(view, np.float16(0.5)), want)
    assert njit(lambda h: h)(CONSTANT) == float(CONSTANT)
    with pytest.raises(IndexError):
        njit(boundscheck=True)(lambda a: a[5, 0])(a)


# -------------------------------------------------------------------------------------------------- bit functions
def reference_bits(name, value, width):
    value %= 2**width
    text = f"{value:0{width}b}"
    return {
        "popc": text.count("1"),
        "clz": width - value.bit_length(),
        "ffs": (value & -value).bit_length(),
        "brev": int(text[::-1], 2),
    }[name]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64, np.int8])
def test_bits(dtype):
    width = np.dtype(dtype).itemsize * 8
    x = INTEGERS[width].astype(dtype)
    names = ["popc", "clz", "ffs", *(["brev"] if dtype in (np.int32, np.uint32, np.uint64) else [])]
    for name, got in zip(names, tabulate({name: FUNCTIONS[name] for name in names}, dtype, x), strict=True):
        assert [int(v) % 2**width for v in got] == [reference_bits(name, int(value), width) for value in x], name


def test_types_of_bit_functions():
    assert kind_of("popc", types.int8) == "int8"
    assert kind_of("brev", types.int64) == "uint32"  # numba-cuda's choice: it drops the upper half


def signed(value, width):
    return (value + 2 ** (width - 1)) % 2**width - 2 ** (width - 1)


def byte_perm(s, u):
    both = (u[0] | u[1] << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(both[u[2] >> 4 * k & 7] for k in range(4)), "little")


INTEGER_FUNCTIONS = {  # of signed and unsigned readings of the arguments; results are read as signed
    "abs": lambda s, u: abs(s[0]),
    "mulhi": lambda s, u: s[0] * s[1] >> 32,
    "umulhi": lambda s, u: u[0] * u[1] >> 32,
    "mul24": lambda s, u: signed(s[0] % 2**24, 24) * signed(s[1] % 2**24, 24),
    "umul24": lambda s, u: (u[0] % 2**24) * (u[1] % 2**24),
    "hadd": lambda s, u: (s[0] + s[1]) >> 1,
    "uhadd": lambda s, u: (u[0] + u[1]) >> 1,
    "rhadd": lambda s, u: (s[0] + s[1] + 1) >> 1,
    "urhadd": lambda s, u: (u[0] + u[1] + 1) >> 1,
    "sad": lambda s, u: abs(s[0] - s[1]) + s[2],
    "usad": lambda s, u: abs(u[0] - u[1]) + u[2],
    "umin": lambda s, u: min(u[:2]),
    "max": lambda s, u: max(s[:2]),
    "byte_perm": byte_perm,
}


COUNTS = {"abs": 1, "sad": 3, "usad": 3, "byte_perm": 3}


def test_integer_functions_of_libdevice():
    values = [[int(v) for v in RNG.permutation(INTEGERS[32])] for _ in range(3)]
    columns = [np.array(v, np.uint64).astype(np.uint32).view(np.int32) for v in values]
    for count in (1, 2, 3):
        names = [name for name in INTEGER_FUNCTIONS if COUNTS.get(name, 2) == count]
        table = tabulate({n: FUNCTIONS[f"libdevice.{n}"] for n in names}, np.int32, *columns[:count])
        for name, got in zip(names, table, strict=True):
            want = [INTEGER_FUNCTIONS[name]([signed(v, 32) for v in u], u) for u in zip(*values, strict=True)]
            assert got.tolist() == [signed(v, 32) for v in want], name
    x = INTEGERS[64].view(np.int64)
    (high,) = tabulate({"mul64hi": FUNCTIONS["libdevice.mul64hi"]}, np.int64, x, x[::-1].copy())
    assert high.tolist() == [int(a) * int(b) >> 64 for a, b in zip(x, x[::-1], strict=True)]


# ------------------------------------------------------------------------------------------------- real functions
ONE = {  # the reference in float64, and where to look
    "exp10": (lambda x: 10.0**x, -4, 4),
    "expm1": (math.expm1, -2, 2),
    "sin": (math.sin, -9, 9),
    "cbrt": (np.cbrt, -9, 9),
    "rcbrt": (lambda x: 1 / np.cbrt(x), 0.1, 9),
    "rsqrt": (lambda x: x**-0.5, 0.1, 9),
    "erf": (math.erf, -3, 3),
    "tgamma": (math.gamma, 0.1, 9),
    "lgamma": (math.lgamma, 3, 9),
    "log1p": (math.log1p, -0.5, 2),
    "normcdf": (lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), -3, 3),
    "round": (lambda x: math.copysign(math.floor(abs(x) + 0.5), x), -9, 9),
    "rint": (np.rint, -9, 9),
    "logb": (lambda x: math.frexp(x)[1] - 1, 0.001, 9),
    "sinpi": (lambda x: math.sin(math.pi * x), -0.9, 0.9),
    "cospi": (lambda x: math.cos(math.pi * x), -0.4, 0.4),
}


@pytest.mark.parametrize("single", [True, False], ids=["float32", "float64"])
def test_real_functions_of_libdevice(single):
    dtype = np.float32 if single else np.float64
    unit = np.concatenate([RNG.random(200), [0.5]])
    for name, (reference, low, high) in ONE.items():
        x = (low + (high - low) * unit).astype(dtype)
        name += "f" * single
        function = FUNCTIONS[f"libdevice.{name}"]
        got = [function(value) for value in x]
        assert_close(got, [reference(float(value)) for value in x], 3 if single else 32, dtype)


def test_inverses_and_special_values():
    x = np.concatenate([np.linspace(-0.999, 0.999, 401), [1e-10, 1 - 1e-12]])
    erfinv, erfcinv, erfcx = (FUNCTIONS[f"libdevice.{name}"] for name in ("erfinv", "erfcinv", "erfcx"))
    assert_close([math.erf(erfinv(v)) for v in x], x, 4, np.float64)
    assert erfcinv(1e-300) == pytest.approx(26.209469960516, rel=1e-12)
    assert [erfcinv(0.0), erfcinv(2.0), erfinv(0.0)] == [math.inf, -math.inf, 0.0]
    assert erfcx(2.999999999) == pytest.approx(erfcx(3.000000001), rel=1e-8)
    assert erfcx(1e9) == pytest.approx(1 / (math.sqrt(math.pi) * 1e9), rel=1e-15)
    remquo, remainder = FUNCTIONS["libdevice.remquo"], FUNCTIONS["libdevice.remainder"]
    for a, b in RNG.standard_normal((300, 2)) * [100, 1]:
        rest, quotient = remquo(a, b)
        assert rest == remainder(a, b) == math.remainder(a, b)
        assert abs(quotient) == abs(round(Fraction(a) / Fraction(b))) % 8
    assert FUNCTIONS["libdevice.ilogbf"](np.float32(0)) == -(2**31)
    assert FUNCTIONS["libdevice.saturatef"](np.float32(np.nan)) == 0
    assert FUNCTIONS["libdevice.frexp"](12.0) == (0.75, 4)
    assert FUNCTIONS["libdevice.modff"](np.float32(-2.5)) == (-0.5, -2)


# ------------------------------------------------------------------------------------- directed rounding and casts
EXACT = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}


@pytest.mark.parametrize("operation", ["fadd", "fdiv", "dmul"])
def test_directed_rounding_brackets_the_exact_result(operation):
    dtype, scale = (np.float32, 18) if operation[0] == "f" else (np.float64, 150)
    a, b = (RNG.standard_normal((2, 300)) * 10.0 ** RNG.integers(-scale, scale, (2, 300))).astype(dtype)
    names = {mode: FUNCTIONS[f"libdevice.{operation}_{mode}"] for mode in ("rd", "rn", "ru", "rz")}
    for x, y, down, near, up, zero in zip(a, b, *tabulate(names, dtype, a, b), strict=True):
        value = EXACT[operation[1:]](Fraction(float(x)), Fraction(float(y)))
        assert down <= value <= up
        assert up in (down, np.nextafter(down, dtype(np.inf)))
        assert zero == (down if value > 0 else up)
        assert near in (down, up)


def test_directed_rounding_of_special_results():
    root = FUNCTIONS["libdevice.dsqrt_ru"]
    assert Fraction(root(2.0)) ** 2 > 2 > Fraction(np.nextafter(root(2.0), 0.0)) ** 2
    assert math.copysign(1, FUNCTIONS["libdevice.dadd_rd"](1.0, -1.0)) == -1
    assert FUNCTIONS["libdevice.dmul_rz"](1e300, 1e300) == np.finfo(float).max
    assert FUNCTIONS["libdevice.ll2float_rz"](2**25 - 1) == 2**25 - 2
    assert FUNCTIONS["libdevice.double2float_ru"](1e-60) == np.float32(1e-45)


def test_conversions_to_integers_saturate():
    got = {
        name: FUNCTIONS[f"libdevice.{name}"]
        for name in ("float2int_rn", "double2int_rz", "float2uint_rd", "double2ll_ru")
    }
    assert [got["float2int_rn"](np.float32(x)) for x in (2.5, -3.5, 3e9, -np.inf, np.nan)] == [
        2,
        -4,
        2**31 - 1,
        -(2**31),
        0,
    ]
    assert [got["double2int_rz"](x) for x in (-2.9, 1e10, np.nan)] == [-2, 2**31 - 1, -(2**31)]
    assert [got["float2uint_rd"](np.float32(x)) for x in (-1, 3e9, 1e20)] == [0, 3_000_000_000 - 2**32, -1]
    assert [got["double2ll_ru"](x) for x in (0.1, -0.9, 1e30)] == [1, 0, 2**63 - 1]


def test_bit_casts():
    assert FUNCTIONS["libdevice.float_as_int"](np.float32(-1)) == 0xBF800000 - 2**32
    assert FUNCTIONS["libdevice.longlong_as_double"](0x3FF0 << 48) == 1.0
    assert FUNCTIONS["libdevice.hiloint2double"](0x3FF00000, -1) == np.int64(0x3FF00000FFFFFFFF).view(np.float64)
    assert FUNCTIONS["libdevice.half2float"](0x3C01) == np.int16(0x3C01).view(np.float16)


# ------------------------------------------------------------------------------------------------ cuda.fp16, fma...
def test_half_functions():
    h, nan = np.float16, np.float16(np.nan)
    call = {
        name: FUNCTIONS[f"fp16.{name}"]
        for name in ("hadd", "hfma", "__hadd_sat", "hne", "__hneu", "__hmin_nan", "hmin")
    }
    assert call["hadd"](h(0.1), 1) == float(h(0.1) + h(1))
    exact = float(h(1.33)) ** 2 - float(h(1.77))  # one rounding; a rounded product would lose it
    assert call["hfma"](h(1.33), h(1.33), h(-1.77)) == float(h(exact)) != float(h(1.33) * h(1.33) - h(1.77))
    assert [call["__hadd_sat"](h(a), h(0.5)) for a in (-3, 0.25, 9)] == [0, 0.75, 1]
    assert [call["hne"](nan, h(1)), call["__hneu"](nan, h(1)), call["hmin"](nan, h(1))] == [False, True, 1]
    assert math.isnan(call["__hmin_nan"](nan, h(1)))
    assert [FUNCTIONS[f"fp16.__int2half_{m}"](2049) for m in ("rn", "rd", "ru", "rz")] == [2048, 2048, 2050, 2048]
    assert FUNCTIONS["fp16.__float2half_rd"](-1e-9) == -float(np.finfo(h).smallest_subnormal)
    assert FUNCTIONS["fp16.__half2uint_rn"](h(-2)) == 0
    assert FUNCTIONS["fp16.__hisinf"](h(-np.inf)) == -1
    assert FUNCTIONS["fp16.__short_as_half"](0x3C00) == 1.0


def test_fma_cbrt_selp():
    fma, f = FUNCTIONS["fma"], np.float32
    call = njit(lambda x, y, z: fma(x, y, z))
    tiny = 2.0**-30
    assert call(1 + tiny, 1 - tiny, -1.0) == -(tiny**2)
    assert call(f(1 + 2**-12), f(1 - 2**-12), f(-1)) == -(2.0**-24)
    assert kind(call.py_func, *[types.float32] * 3) == "float32"
    assert kind(call.py_func, types.float32, types.int32, types.float32) == "float64"
    cbrt, selp = FUNCTIONS["cbrt"], FUNCTIONS["selp"]
    assert njit(lambda x: cbrt(x))(-27.0) == -3
    assert njit(lambda t, x: selp(t, x, -x))(False, 2.5) == -2.5


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("libdevice.expf", "d", "float32"),  # the argument is converted
        ("libdevice.ffsll", "i", "int32"),
        ("math.floor", "f", "float32"),
        ("math.trunc", "i", "float64"),
        ("math.ceil", "h", "float16"),
        ("math.fmod", "ff", "float32"),
        ("math.fmod", "fi", "float64"),
        ("math.modf", "f", "UniTuple(float32 x 2)"),
        ("math.frexp", "h", "Tuple(float32, int32)"),
        ("math.pow", "fi", "float32"),
        ("math.ldexp", "hi", "float32"),
        ("builtins.min", "fd", "float64"),
        ("builtins.max", "iii", "int32"),
    ],
)
def test_math_has_numba_cudas_result_types(name, arguments, result):
    assert kind_of(name, *(TYPES[letter] for letter in arguments)) == result


def test_min_and_max_prefer_a_number_to_nan():
    low, high = FUNCTIONS["builtins.min"], FUNCTIONS["builtins.max"]
    call = njit(lambda x, y: (low(x, y), high(x, y), low(y, x), high(y, x)))
    assert call(np.nan, 1.0) == (1, 1, 1, 1)
    assert [math.copysign(1, v) for v in call(0.0, -0.0)] == [-1, 1, -1, 1]
    assert njit(lambda x, y: high(x, y, 7))(3, 5) == 7


def test_every_function_of_libdevice_runs_or_is_refused():
    from numba.cuda import libdevicefuncs

    names = {f"libdevice.{name.removeprefix('__nv_')}" for name in libdevicefuncs.functions}
    assert names == {name for name in {*FUNCTIONS, *REFUSED} if name.startswith("libdevice.")}
    assert not REFUSED & set(FUNCTIONS)
    assert "libdevice.j0" in REFUSED
    assert "libdevice.fma_rz" in REFUSED
