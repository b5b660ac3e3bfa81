"""The chapters' own checks, with answers that they must refuse and answers that they must take."""

import math

import numpy as np
import pytest

import labkit  # isort: skip
from numba import cuda, float32

from labkit import WrongAnswer, notebooks


def cells(number: str, *ids: str) -> dict:
    return notebooks.namespace(notebooks.chapters([number])[0], ["mode", *ids])


# --- 00.axpy --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def check_axpy():
    return cells("00", "blocks", "add", "check", "exercise-axpy-check")["check_axpy"]


@cuda.jit
def axpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def axpy_with_a_constant(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = float32(2.5) * x[i] + y[i]


@cuda.jit
def axpy_swapped(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + a * y[i]


@cuda.jit
def axpy_without_guard(a, x, y, out):
    i = cuda.grid(1)
    out[i] = a * x[i] + y[i]


@cuda.jit
def axpy_into_y(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        y[i] = a * x[i] + y[i]
        out[i] = y[i]


def test_axpy(check_axpy):
    check_axpy(axpy)


@pytest.mark.parametrize("wrong", [axpy_with_a_constant, axpy_swapped, axpy_without_guard, axpy_into_y])
def test_wrong_axpys(check_axpy, wrong):
    with pytest.raises(WrongAnswer):
        check_axpy(wrong)


# --- 01.one-launch --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def check_rows():
    return cells("01", "batch-exercise", "batch-check")["check_rows"]


@cuda.jit
def rows_by_column(x, factors, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, column] * factors[min(column, factors.size - 1)]


@cuda.jit
def rows_without_the_lower_guard(x, factors, out):
    column, row = cuda.grid(2)
    if column < x.shape[1]:
        out[row, column] = x[row, column] * factors[row]


@cuda.jit
def rows_by_thread(x, factors, out):
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, column] * factors[row]


@pytest.mark.parametrize("wrong", [rows_by_column, rows_without_the_lower_guard, rows_by_thread])
def test_wrong_rows(check_rows, wrong):
    with pytest.raises(WrongAnswer):
        check_rows(wrong)


# --- 02.chain -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain():
    return cells(
        "02", "kernel", "check", "exercise-gelu", "exercise-kernel", "exercise-check", "exercise-kernel-solution"
    )


@cuda.jit(device=True)
def gelu(v):
    u = float32(0.7978845608) * (v + float32(0.044715) * v * v * v)
    return v / (float32(1) + math.exp(float32(-2) * u))


@cuda.jit
def no_bias(x, bias, residual, factor, out):
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[r, c] = (gelu(x[r, c]) + residual[r, c]) * factor


@cuda.jit
def no_residual(x, bias, residual, factor, out):
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[r, c] = gelu(x[r, c] + bias[c]) * factor


@cuda.jit
def no_factor(x, bias, residual, factor, out):
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[r, c] = gelu(x[r, c] + bias[c]) + residual[r, c]


@cuda.jit
def constant_factor(x, bias, residual, factor, out):
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[r, c] = (gelu(x[r, c] + bias[c]) + residual[r, c]) * float32(0.5)


@cuda.jit
def no_gelu(x, bias, residual, factor, out):
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[r, c] = (x[r, c] + bias[c] + residual[r, c]) * factor


@cuda.jit
def factor_too_early(x, bias, residual, factor, out):
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[r, c] = gelu(x[r, c] + bias[c]) * factor + residual[r, c]


@cuda.jit
def bias_by_row(x, bias, residual, factor, out):
    c, r = cuda.grid(2)
    if r < x.shape[0] and c < x.shape[1]:
        out[r, c] = (gelu(x[r, c] + bias[min(r, bias.size - 1)]) + residual[r, c]) * factor


def test_the_chains_solution_passes(chain):
    chain["check_chain"](chain["chain"], chain["one_each"])


@pytest.mark.parametrize(
    "wrong", [no_bias, no_residual, no_factor, constant_factor, no_gelu, factor_too_early, bias_by_row]
)
def test_wrong_chains(chain, wrong):
    with pytest.raises(WrongAnswer, match="elements are wrong"):
        chain["check_chain"](wrong, chain["one_each"])


def test_wrong_ratios(chain):
    from labkit.findings import chain_ratio

    for wrong in (2, 4, 8 / 3, 1 / 3, np.nan):
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, chain_ratio(), within=0.02)


# --- 05.bytes, 05.width, 05.epilogue ---------------------------------------------------------------------------


def test_wrong_budgets():
    from labkit.findings import mlp_ratio, widest

    for wrong in (4, 7, 0.1, 20, np.inf):
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, mlp_ratio(layers=4), within=0.01)
    for wrong in (128, 144, 176, 168, 170.3):  # 168 fits, but is no multiple of 16
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, widest(layers=4), within=0)


@pytest.fixture(scope="module")
def epilogues():
    needed = ["blocks", "plain-row-times", "epilogue", "epilogue-answers", "epilogue-inputs", "epilogue-check"]
    return cells("05", *needed)


@cuda.jit(device=True)
def row_times(x, r, w, c):
    total = float32(0)
    for i in range(x.shape[1]):
        total += x[r, i] * w[c, i]
    return total


@cuda.jit
def residual_left_out(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        out[r, c] = row_times(x, r, w, c)


@cuda.jit
def residual_of_another_row(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        out[r, c] = row_times(x, r, w, c) + other[0, c]


@cuda.jit
def residual_without_guard(x, w, other, out):
    c, r = cuda.grid(2)
    out[r, c] = row_times(x, r, w, c) + other[r, c]


@cuda.jit
def swiglu_with_the_other_gate(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        gate = row_times(x, r, other, c)
        out[r, c] = gate / (float32(1) + math.exp(-gate)) * row_times(x, r, w, c)


@cuda.jit
def swiglu_with_a_sigmoid_alone(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        gate = row_times(x, r, w, c)
        out[r, c] = row_times(x, r, other, c) / (float32(1) + math.exp(-gate))


@cuda.jit
def swiglu_without_its_second_product(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        gate = row_times(x, r, w, c)
        out[r, c] = gate / (float32(1) + math.exp(-gate)) * other[c, 0]


@cuda.jit
def int8_that_wraps(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        out[r, c] = round(row_times(x, r, w, c) / other[c]) & 0xFF


@cuda.jit
def int8_cut_off(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        out[r, c] = int(min(max(row_times(x, r, w, c) / other[c], float32(-127)), float32(127)))


@cuda.jit
def int8_down_to_minus_128(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        out[r, c] = min(max(round(row_times(x, r, w, c) / other[c]), -128), 127)


@cuda.jit
def int8_times_the_scale(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        out[r, c] = min(max(round(row_times(x, r, w, c) * other[c]), -127), 127)


@cuda.jit
def int8_with_one_scale(x, w, other, out):
    c, r = cuda.grid(2)
    if r < out.shape[0] and c < out.shape[1]:
        out[r, c] = min(max(round(row_times(x, r, w, c) / other[0]), -127), 127)


@pytest.mark.parametrize(
    ("choice", "wrong"),
    [
        ("residual", residual_left_out),
        ("residual", residual_of_another_row),
        ("residual", residual_without_guard),
        ("swiglu", swiglu_with_the_other_gate),
        ("swiglu", swiglu_with_a_sigmoid_alone),
        ("swiglu", swiglu_without_its_second_product),
        ("int8", int8_that_wraps),
        ("int8", int8_cut_off),
        ("int8", int8_down_to_minus_128),
        ("int8", int8_times_the_scale),
        ("int8", int8_with_one_scale),
    ],
)
def test_wrong_epilogues(epilogues, choice, wrong):
    with pytest.raises(WrongAnswer):
        epilogues["check_epilogue"](choice, wrong)


def test_a_right_epilogue_for_another_choice_is_wrong(epilogues):
    with pytest.raises(WrongAnswer):
        epilogues["check_epilogue"]("residual", int8_down_to_minus_128)


def test_an_untouched_epilogue_is_not_attempted(epilogues, capsys):
    epilogues["check_epilogue"](epilogues["my_choice"], epilogues["my_epilogue"], exercise="05.epilogue")
    assert "05.epilogue: not attempted" in capsys.readouterr().out
