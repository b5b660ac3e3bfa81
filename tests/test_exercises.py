"""The chapters' own checks, with answers that they must refuse and answers that they must take."""

import math

import numpy as np
import pytest

import labkit  # isort: skip
from numba import cuda, float32

from labkit import WrongAnswer, findings, notebooks


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


# --- 06.full, 06.rescale, 06.tiles, 06.window ------------------------------------------------------------------


def test_wrong_lengths():
    from labkit.findings import fills_up

    for wrong in (187_750, 46_937, 16_594, 32, np.nan):  # one plane, float16, half of it, planes
        with pytest.raises(WrongAnswer):
            labkit.check_value("", wrong, fills_up(planes=32), within=0.02)


def one_step(alpha_l=True, alpha_O=True, inverse=False, on_the_tile=False, guarded=True, divides=False):
    """A step of the online softmax: right, or with one of the mistakes."""

    def step(m, total, summed, s, V):
        new = max(m, s.max())
        shift = new if new > -np.inf or not guarded else 0.0
        p = np.exp(s - shift)
        alpha = np.exp(shift - m) if inverse else np.exp(m - shift)
        if on_the_tile:
            return new, total + alpha * p.sum(), summed + alpha * (p @ V)
        total = (alpha if alpha_l else 1) * total + p.sum()
        summed = (alpha if alpha_O else 1) * summed + p @ V
        return new, total, summed / total if divides else summed

    return step


def test_a_right_step():
    from labkit.findings import check_step

    check_step(one_step())


@pytest.mark.parametrize(
    "mistake",
    [
        {"alpha_l": False},
        {"alpha_O": False},
        {"alpha_l": False, "alpha_O": False},
        {"inverse": True},
        {"on_the_tile": True},
        {"guarded": False},
        {"divides": True},
    ],
    ids=str,
)
def test_wrong_steps(mistake):
    from labkit.findings import check_step

    with pytest.raises(WrongAnswer):
        check_step(one_step(**mistake))


def test_a_step_with_other_results():
    from labkit.findings import check_step

    with pytest.raises(WrongAnswer, match="three results"):
        check_step(lambda *state: None)


@pytest.fixture(scope="module")
def masks():
    needed = ["tiled-fill", "tiled-mask", "tiled-every", "exercise-tiles", "tiled-seen"]
    return cells("06", "naive-scores", *needed, "exercise-window", "exercise-window-solution")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda first, last, n_k, reach: (0, n_k), "would do"),
        (lambda first, last, n_k, reach: (0, min(n_k, last + reach)), "not visited"),
        (lambda first, last, n_k, reach: (0, min(n_k, first + reach + 1)), "not visited"),
        (lambda first, last, n_k, reach: (0, min(n_k, last + 1)), "queries"),
        (lambda first, last, n_k, reach: (0, last + reach + 1), "would do"),
    ],
)
def test_wrong_tiles(masks, wrong, why):
    from labkit.findings import check_visits

    with pytest.raises(WrongAnswer, match=why):
        check_visits(masks["causal"], wrong, masks["causal"])


@pytest.mark.parametrize(
    ("sees", "why"),
    [
        (lambda i, j, reach: i + reach - 24 <= j <= i + reach, "may not see"),
        (lambda i, j, reach: i + reach - 24 < j < i + reach, "hides it"),
        (lambda i, j, reach: j > i + reach - 24, "may not see"),
        (lambda i, j, reach: i - 24 < j <= i, "query"),
    ],
)
def test_wrong_windows(masks, sees, why):
    from labkit.findings import check_window

    with pytest.raises(WrongAnswer, match=why):
        check_window(sees, masks["window_tiles"], 24)


@pytest.mark.parametrize(
    ("tiles", "why"),
    [
        (lambda first, last, n_k, reach: (0, min(n_k, last + reach + 1)), "would do"),
        (lambda first, last, n_k, reach: (first + reach - 23, min(n_k, last + reach + 1)), "before the first"),
        (lambda first, last, n_k, reach: (max(0, last + reach - 23), min(n_k, last + reach + 1)), "not visited"),
        (lambda first, last, n_k, reach: (max(0, first + reach - 23), n_k), "would do"),
    ],
)
def test_wrong_tiles_of_a_window(masks, tiles, why):
    from labkit.findings import check_window

    with pytest.raises(WrongAnswer, match=why):
        check_window(masks["window"], tiles, 24)


def test_untouched_masks_are_not_attempted(masks, capsys):
    from labkit.findings import check_visits, check_window

    check_visits(masks["causal"], masks["my_tiles"], masks["causal"], exercise="06.tiles")
    check_window(masks["my_window"], masks["my_window_tiles"], 24, exercise="06.window")
    out = capsys.readouterr().out
    assert "06.tiles: not attempted" in out
    assert "06.window: not attempted" in out


# --- 07.hidden and 07.guard -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def check_decay():
    names = ["scale-made", "hidden-inputs", "hidden-check"]
    return cells("07", "scale", "targets", *names)["check_decay"]


@cuda.jit
def decay_by_steps(x, terms, out):
    i = cuda.grid(1)
    if i < x.size:
        step = math.exp(-x[i])
        power, total = float32(1), float32(0)
        for _ in range(terms):
            power *= step
            total += power
        out[i] = total


@cuda.jit
def decay_as_it_was(x, terms, out):
    i = cuda.grid(1)
    if i < x.size:
        u, total = x[i], float32(0)
        for p in range(1, terms + 1):
            total += math.exp(-u * p)
        out[i] = total


@cuda.jit
def decay_mended_in_half(x, terms, out):
    i = cuda.grid(1)
    if i < x.size:
        u, total = x[i], 0.0
        for p in range(1, terms + 1):
            total += math.exp(-u * float32(p))
        out[i] = total


@cuda.jit
def decay_without_the_last(x, terms, out):
    i = cuda.grid(1)
    if i < x.size:
        u, total = x[i], float32(0)
        for p in range(1, terms):
            total += math.exp(-u * float32(p))
        out[i] = total


def test_decay(check_decay, capsys):
    check_decay(decay_by_steps)
    assert "decay_by_steps: right" in capsys.readouterr().out


def test_a_decay_with_a_term_less(check_decay):
    with pytest.raises(WrongAnswer, match="elements are wrong"):
        check_decay(decay_without_the_last)


@pytest.mark.skipif(bool(labkit.device.toolkit_trouble()), reason=labkit.device.toolkit_trouble() or "it is here")
@pytest.mark.parametrize("wrong", [decay_as_it_was, decay_mended_in_half])
def test_decays_in_float64(check_decay, wrong):
    with pytest.raises(WrongAnswer, match=r"right, but \d+ instructions still compute in float64"):
        check_decay(wrong)


def guard_that_returns(made, instruction):
    return bool(made.instructions[instruction])


def guard_that_rejects_all(made, instruction):
    raise AssertionError("no")


def guard_of_another_error(made, instruction):
    if not made.instructions[instruction]:
        raise KeyError(instruction)


def guard_for_hopper_alone(made, instruction):
    assert made.instructions["HGMMA"]
    assert not made.float64
    assert not made.local_bytes
    assert not made.notes


def guard_by_ptx(made, instruction):
    assert made.count("wgmma")


WRONG_GUARDS = [
    guard_that_returns,
    guard_that_rejects_all,
    guard_of_another_error,
    guard_for_hopper_alone,
    guard_by_ptx,
]


@pytest.mark.parametrize("wrong", WRONG_GUARDS)
def test_wrong_guards(wrong):
    with pytest.raises(WrongAnswer):
        findings.check_guard(wrong)
