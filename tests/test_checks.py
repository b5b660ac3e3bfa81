"""Every check has wrong answers that it must reject, in the simulator and on a GPU alike."""

import numpy as np
import pytest
from numba import cuda, float32

from labkit import LabError, WrongAnswer, check_kernel, check_value, checks, progress

# --- a kernel on one axis -------------------------------------------------------------------------------------


@cuda.jit
def right(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor


@cuda.jit
def thread_for_grid(x, factor, out):
    i = cuda.threadIdx.x
    if i < x.size:
        out[i] = x[i] * factor


@cuda.jit
def no_guard(x, factor, out):
    i = cuda.grid(1)
    out[i] = x[i] * factor


@cuda.jit
def guard_off_by_one(x, factor, out):
    i = cuda.grid(1)
    if i < x.size - 1:
        out[i] = x[i] * factor


@cuda.jit
def writes_nothing(x, factor, out):
    i = cuda.grid(1)
    if i > 1_000_000:
        out[i] = x[i] * factor


@cuda.jit
def writes_zeros(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float32(0)


@cuda.jit
def writes_nan(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float32(np.nan)


@cuda.jit
def in_place(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor
        out[i] = x[i]


@cuda.jit
def only_in_place(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor


@cuda.jit
def slightly_off(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor * float32(1.0001)


def check_scale(kernel, exercise=""):
    check_kernel(
        kernel,
        inputs=lambda rng, n: (rng.standard_normal(n, dtype=np.float32), np.float32(6)),
        reference=lambda x, factor: x * factor,
        launches=[lambda n: (-(-n // 32), 32), lambda n: (-(-n // 64), 64)],
        cases=[(1,), (31,), (100,)],
        exercise=exercise,
    )


def test_the_right_kernel_passes(capsys):
    check_scale(right)
    assert capsys.readouterr().out == "right: right, on 3 shapes with 2 launch configurations each\n"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (thread_for_grid, "writes what block"),
        (no_guard, "out-of-range index: x"),
        (guard_off_by_one, "never written"),
        (writes_nothing, "never written"),
        (writes_zeros, "found 0, expected"),
        (writes_nan, "found nan, expected"),
        (in_place, "input number 0 was changed"),
        (only_in_place, "never written"),
        (slightly_off, "elements are wrong"),
    ],
)
def test_wrong_kernels_are_rejected(wrong, says):
    with pytest.raises(WrongAnswer, match=says) as e:
        check_scale(wrong)
    assert wrong.__name__ in str(e.value)  # names the kernel and its launch
    assert "\n" not in str(e.value)


def test_a_wrong_answer_shows_where_and_what():
    with pytest.raises(WrongAnswer, match=r"^guard_off_by_one\[1, 32\] on 1: 1 of 1 elements are wrong; the first"):
        check_scale(guard_off_by_one)


# --- a kernel on two axes -------------------------------------------------------------------------------------


@cuda.jit
def transpose(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = x[row, column]


@cuda.jit
def swapped_axes(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[min(row, x.shape[0] - 1), min(column, x.shape[1] - 1)]


def check_transpose(kernel, cases):
    check_kernel(
        kernel,
        inputs=lambda rng, rows, columns: (rng.standard_normal((rows, columns), dtype=np.float32),),
        reference=lambda x: x.T,
        launches=[lambda rows, columns: ((-(-columns // 8), -(-rows // 4)), (8, 4))],
        cases=cases,
    )


def test_axes_may_be_swapped_when_they_should():
    check_transpose(transpose, [(5, 5), (3, 9)])


@pytest.mark.parametrize("case", [(5, 5), (3, 9)])
def test_swapped_axes_are_rejected_even_on_a_square(case):
    with pytest.raises(WrongAnswer, match="elements are wrong"):
        check_transpose(swapped_axes, [case])


# --- a reduction, and what cannot run -------------------------------------------------------------------------


@cuda.jit
def matmul(a, b, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        out[row, column] = total


@cuda.jit
def matmul_last_term_lost(a, b, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = float32(0)
        for k in range(a.shape[1] - 1):
            total += a[row, k] * b[k, column]
        out[row, column] = total


def check_matmul(kernel):
    check_kernel(
        kernel,
        inputs=lambda rng, m, n, k: (
            rng.standard_normal((m, k), dtype=np.float32),
            rng.standard_normal((k, n), dtype=np.float32),
        ),
        reference=lambda a, b: a @ b,
        launches=[lambda m, n, k: ((-(-n // 8), -(-m // 8)), (8, 8))],
        cases=[(3, 5, 64), (9, 9, 257)],
        reduction=257,
    )


def test_a_sequential_float32_sum_passes():
    check_matmul(matmul)


def test_a_lost_term_of_hundreds_is_rejected():
    with pytest.raises(WrongAnswer, match="elements are wrong"):
        check_matmul(matmul_last_term_lost)


@cuda.jit
def too_few_arguments(x):
    x[0] = 1


def test_a_kernel_that_does_not_run_is_one_line():
    with pytest.raises(WrongAnswer, match="does not run") as e:
        check_scale(too_few_arguments)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("nothing", [{"cases": []}, {"launches": []}])
def test_a_check_of_nothing_is_no_check(nothing):
    options = {"cases": [(1,)], "launches": [lambda n: (1, 32)]} | nothing
    with pytest.raises(LabError, match="nothing was checked"):
        check_kernel(right, inputs=lambda rng, n: (), reference=lambda: 0, **options)


def test_a_function_that_is_no_kernel():
    def plain(x, factor, out):
        out[:] = x * factor

    with pytest.raises(WrongAnswer, match="does not run"):
        check_scale(plain)


# --- skeletons and progress -----------------------------------------------------------------------------------


@cuda.jit
def skeleton(x, factor, out):
    i = cuda.grid(1)  # noqa: F841
    ...


@cuda.jit
def hardly_begun(x, factor, out):
    i = cuda.grid(1)  # noqa: F841


def test_an_untouched_skeleton_is_not_attempted(progress_file, capsys):
    check_scale(skeleton, exercise="t.scale")
    assert capsys.readouterr().out == "t.scale: not attempted (replace the `...` in skeleton)\n"
    assert not progress_file.exists()


def test_an_empty_answer_is_wrong_not_unattempted(progress_file):
    with pytest.raises(WrongAnswer, match="never written"):
        check_scale(hardly_begun, exercise="t.scale")
    assert not progress_file.exists()


def test_a_right_answer_is_progress(progress_file, capsys):
    check_scale(right, exercise="t.scale")
    assert "t.scale: right" in capsys.readouterr().out
    assert "t.scale" in progress.load()["solved"]


@pytest.mark.parametrize("answer", [3, 3.0, np.float64(3), 2.9])
def test_a_number_near_the_answer_is_right(progress_file, answer):
    check_value("t.n", answer, 3.0, within=0.05)
    assert "t.n" in progress.load()["solved"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (2.5, "2.5 ms is not within 5% of the answer"),
        (np.nan, "expected a number"),
        (np.inf, "expected a number"),
        ("3", "expected a number"),
        (True, "expected a number"),
        (None, "expected a number"),
        (-3, "is not within"),
        (0, "is not within"),
    ],
)
def test_other_answers_are_wrong(progress_file, answer, says):
    with pytest.raises(WrongAnswer, match=says):
        check_value("t.n", answer, 3.0, within=0.05, unit="ms")
    assert not progress_file.exists()


def test_counts_are_exact_on_request(progress_file):
    check_value("t.n", 3, 3, within=0)
    with pytest.raises(WrongAnswer, match="4 is not the answer"):
        check_value("t.n", 4, 3, within=0)


def test_dots_are_not_attempted(progress_file, capsys):
    check_value("t.n", ..., 3.0)
    assert "not attempted" in capsys.readouterr().out


# --- arrays that a loose comparison would let through ---------------------------------------------------------


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def wide():
    return softmax(np.random.default_rng(0).standard_normal((4, 65536)))


def test_a_wide_softmax_in_float32_passes(wide):
    x = np.random.default_rng(0).standard_normal((4, 65536)).astype(np.float32)
    checks.assert_close(softmax(x), softmax(x.astype(np.float64)), reduction=65536)


def test_zeros_for_a_wide_softmax_are_rejected_although_they_are_near(wide):
    assert np.allclose(np.zeros_like(wide), wide, atol=1e-2)  # as a loose comparison would have it
    with pytest.raises(WrongAnswer, match="found 0, expected"):
        checks.assert_close(np.zeros(wide.shape, np.float32), wide, reduction=65536)


def attention(q, k, v, scale):
    return softmax(q @ k.T * scale) @ v


def test_attention_without_its_scale_is_rejected():
    q, k, v = np.random.default_rng(0).standard_normal((3, 32, 64)).astype(np.float32)
    exact = [a.astype(np.float64) for a in (q, k, v)]
    expected = attention(*exact, 1 / 8)
    checks.assert_close(attention(q, k, v, np.float32(1 / 8)), expected, reduction=64)
    with pytest.raises(WrongAnswer, match="elements are wrong"):
        checks.assert_close(attention(q, k, v, np.float32(1)), expected, reduction=64)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (np.ones(4, np.float32), r"the shape is \(4,\), expected \(3,\)"),
        (np.ones((3, 1), np.float32), r"the shape is \(3, 1\)"),
        (np.float32(1), r"the shape is \(\)"),
        (np.ones(3, np.int32), "the values are int32, expected floats"),
        (np.array([1, 1, np.nan], np.float32), r"1 of 3 elements are wrong; the first is \[2\]: found nan"),
        (np.array([1, np.inf, 1], np.float32), r"the first is \[1\]: found inf"),
        (checks.poisoned(3, np.float32), "never written"),
    ],
)
def test_wrong_arrays(found, says):
    with pytest.raises(WrongAnswer, match=says):
        checks.assert_close(found, np.ones(3))


def test_integers_are_compared_exactly():
    checks.assert_close(np.array([1, 2]), np.array([1, 2]))
    with pytest.raises(WrongAnswer, match=r"\[1\]: found 3, expected 2"):
        checks.assert_close(np.array([1, 3]), np.array([1, 2]))
    with pytest.raises(WrongAnswer, match="never written"):
        checks.assert_close(checks.poisoned(2, np.int32), np.array([1, 2]))


def test_infinities_that_are_expected_pass():
    checks.assert_close(np.array([-np.inf, 1], np.float32), np.array([-np.inf, 1.0]))


def test_half_precision_has_its_own_tolerance():
    exact = np.random.default_rng(0).standard_normal(1000)
    assert checks.assert_close(exact.astype(np.float16), exact) > 1e-5
    with pytest.raises(WrongAnswer):
        checks.assert_close(exact.astype(np.float16).astype(np.float32), exact)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
def test_poison_is_told_from_every_computed_value(dtype):
    poison = checks.poisoned((2, 3), dtype)
    assert poison.shape == (2, 3)
    assert checks.is_poison(poison).all()
    if np.dtype(dtype).kind == "f":
        assert np.isnan(poison).all()
        assert not checks.is_poison(np.full(3, np.nan, dtype)).any()


def test_a_nan_written_past_the_end_is_seen():
    fence, out = checks.guarded(5, "float32")
    host = fence.copy_to_host()
    host[checks.GUARD + 5] = np.nan
    with pytest.raises(WrongAnswer, match="past the end"):
        checks.assert_fence(cuda.to_device(host), 5, "here")
    host = checks.poisoned(5 + 2 * checks.GUARD, "float32")
    host[checks.GUARD - 1] = 0
    with pytest.raises(WrongAnswer, match="before the start"):
        checks.assert_fence(cuda.to_device(host), 5, "here")
    assert out.shape == (5,)


def test_the_error_is_that_of_the_norms():
    found = np.array([3.0, 4.0 + 1e-15])
    assert checks.assert_close(found, np.array([3.0, 4.0])) == pytest.approx((found[1] - 4) / 5)


def test_a_large_array_is_compared_in_blocks_and_its_last_element_too():
    expected = np.random.default_rng(0).standard_normal((3 << 20) + 7)
    found = expected.astype(np.float32)
    assert 1e-9 < checks.assert_close(found, expected) < 1e-7
    found[-1] += 1
    with pytest.raises(
        WrongAnswer, match=rf"1 of {expected.size} elements are wrong; the first is \[{expected.size - 1}\]"
    ):
        checks.assert_close(found, expected)
