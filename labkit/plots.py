"""What the course's figures are made of: the style, the primitives, and files that are the same every time.

Figures are made without pyplot: no global state, and no backend that a notebook's environment could impose.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit import device
from labkit.colours import colour, linestyle, marker
from labkit.errors import LabError
from labkit.tables import power

STYLE = Path(__file__).with_name("labkit.mplstyle")
DARK = {
    "figure.facecolor": "#121212", "savefig.facecolor": "#121212", "axes.facecolor": "#121212",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#eeeeee"),
}  # fmt: skip


# --- primitives -----------------------------------------------------------------------------------------------


def sweep(ax: Axes, rows: pd.DataFrame, x: str, y: str, variants: list[str], names_at: str = "end") -> None:
    """One line a variant against a size on a log2 axis, each named at its end (or start, where they differ more)."""
    points = {}
    ax.margins(y=0.08)
    for variant in variants:
        line = rows[rows["variant"] == variant].sort_values(x)
        if line.empty:
            continue
        ax.plot(line[x], line[y], color=colour(variant), marker=marker(variant), linestyle=linestyle(variant))
        points[variant] = tuple(line[[x, y]].iloc[0 if names_at == "start" else -1])
    log2_axis(ax, sorted(rows[x].unique()))
    name_lines(ax, points, names_at)


def log2_axis(ax: Axes, sizes: list[int]) -> None:
    """A size axis in powers of two, with ticks at sizes that were measured."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes[:: -(-len(sizes) // 8)])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: power(v)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.tick_params(axis="x", labelsize=20)  # the exponents are small


def log10_axis(axis: Axis) -> None:
    """A log axis with plain numbers at its tens: 0.1, 1, 10."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def name_lines(ax: Axes, points: dict[str, tuple[float, float]], at: str) -> None:
    """Names beside the ends (or starts) of lines, moved apart where they would overlap."""
    if at == "start":
        low, high = ax.get_xlim()
        ax.set_xlim(low / (high / low) ** 0.2)  # room for the names
    ax.figure.draw_without_rendering()  # so that the lines' ends are where they will be
    scale = 72 / ax.figure.dpi
    heights = {name: ax.transData.transform(xy)[1] * scale for name, xy in points.items()}
    placed = spread(heights, gap=22)
    aside, align = (-14, "right") if at == "start" else (14, "left")
    for name, xy in points.items():
        ax.annotate(
            name, xy, (aside, placed[name] - heights[name]), textcoords="offset points", color=colour(name),
            va="center", ha=align, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def spread(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Move heights apart to at least `gap`, keeping their order and, as nearly as can be, their places."""
    placed = dict(sorted(heights.items(), key=lambda item: item[1]))
    names = list(placed)
    for _ in range(200):
        moved = False
        for below, above in pairwise(names):
            lack = gap - (placed[above] - placed[below])
            if lack > 1e-6:
                placed[below] -= lack / 2
                placed[above] += lack / 2
                moved = True
        if not moved:
            break
    return placed


def speedup(ax: Axes, ratios: dict[str, float], predicted: dict[str, float], how: str = "{:.2f}×") -> None:
    """A bar a variant with its value at the end; a black line where the prediction was."""
    names = list(ratios)[::-1]
    ax.barh(names, [ratios[n] for n in names], color=[colour(n) for n in names], height=0.6)
    for i, name in enumerate(names):
        end = max(ratios[name], predicted.get(name, 0))
        ax.text(end, i, "  " + how.format(ratios[name]), va="center", fontweight="bold")
        if name in predicted:
            ax.plot([predicted[name]] * 2, [i - 0.42, i + 0.42], color=mpl.rcParams["text.color"], linewidth=3)
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.15)


def roofline(ax: Axes, points: pd.DataFrame, gpu: device.Gpu | None, precision: str = "fp32") -> None:
    """FLOP/s against FLOPs a byte, both log: the measured points under the two roofs of the GPU's data sheet.

    Of a GPU without a data-sheet row (None) there is one roof only, the best bandwidth of the points.
    """
    intensity = points["flops"] / points["bytes"]
    gbps = gpu.bandwidth_gbps if gpu else points["gbps"].max()
    peak = gpu.tflops[precision] if gpu else gbps / 1e3 * intensity.max() * 16
    ridge = peak * 1e3 / gbps
    x = np.geomspace(intensity.min() / 4, ridge * 8 if gpu else ridge, 200)
    ax.plot(x, np.minimum(x * gbps / 1e3, peak), color=mpl.rcParams["text.color"])
    log10_axis(ax.xaxis)
    log10_axis(ax.yaxis)
    for (_, row), value in zip(points.iterrows(), intensity, strict=True):
        ax.plot(value, row["tflops"], marker(row["variant"]), color=colour(row["variant"]), markersize=14)
        ax.annotate(row["variant"], (value, row["tflops"]), (16, -22), textcoords="offset points",
                    color=colour(row["variant"]), fontweight="bold")  # fmt: skip
    origin = "data sheet" if gpu else "best measured"
    ax.annotate(f"{gbps / 1e3:.3g} TB/s ({origin})", (ridge / 8, gbps / 1e3 * ridge / 8), (-16, 0),
                textcoords="offset points", ha="right")  # fmt: skip
    if gpu:
        ax.annotate(f"{peak:g} TFLOP/s {precision} ({origin})", (x[-1], peak), (0, 10),
                    textcoords="offset points", ha="right")  # fmt: skip
    ax.set_ylim(top=3 * peak)
    ax.set_xlabel("FLOPs per byte")
    ax.set_ylabel("TFLOP/s")


def heatmap(ax: Axes, table: pd.DataFrame, unit: str) -> None:
    """A map of values: rows and columns of `table` are the axes, each cell shows its number."""
    values = table.to_numpy(float)
    ax.imshow(np.log(values), cmap="cividis", aspect="auto")
    ax.set_xticks(range(table.shape[1]), table.columns)
    ax.set_yticks(range(table.shape[0]), table.index)
    ax.grid(visible=False)
    image = ax.images[0]
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.to_rgba(np.log(value))
            tone = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
            ax.text(j, i, f"{value:.1f} {unit}", ha="center", va="center", color=tone, fontweight="bold")


class CourseFigure(Figure):
    """A figure with one axes that shows itself in a notebook, and is known there by what it found."""

    def _repr_png_(self) -> tuple[bytes, dict]:
        """A sharp picture that is shown 800 pixels wide, so that title and axis fit on a small screen."""
        buffer = io.BytesIO()
        with style():
            self.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue(), {"width": 800, "height": 450}

    def __repr__(self) -> str:
        return f"<Figure: {' '.join(self.axes[0].get_title(loc='left').split())}>"


def new(title: str, rows: pd.DataFrame) -> tuple[CourseFigure, Axes]:
    """An empty figure under the finding that it shows, stamped with the source of its rows."""
    fig = CourseFigure()
    ax = fig.add_subplot()
    ax.set_title(title, wrap=True)
    stamp = " · ".join(sorted(rows["source"].unique()))
    fig.supxlabel(stamp, fontsize=16, alpha=0.7, x=0.99, ha="right")
    return fig, ax


@contextmanager
def style(theme: str = "light"):
    """The course's style sheet, and nothing of the user's own settings."""
    if theme not in ("light", "dark"):
        raise LabError(f"theme {theme!r} is not known; it is light or dark")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.style.use(STYLE)
        if theme == "dark":
            mpl.rcParams.update(DARK)
        yield


def save(fig: Figure, path: Path) -> None:
    """Write a figure; the same data gives the same bytes (no date, no random ids)."""
    title = repr(fig)
    undated = {
        "png": {"Software": None, "Title": title},
        "svg": {"Date": None, "Creator": None, "Title": title},
        "pdf": {"CreationDate": None, "Title": title},
    }
    kind = path.suffix.removeprefix(".")
    if kind not in undated:
        raise LabError(f"{path.name}: format {kind!r} is not known; it is one of {', '.join(undated)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, metadata=undated[kind])
    except OSError as e:
        raise LabError(f"cannot write {path} ({e.strerror}); choose another folder with --out") from e
