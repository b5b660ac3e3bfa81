"""The roofline chart: what a machine can do at each intensity, and what kernels do under it."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.text import Text

from labkit.colours import GREY, PURPLE, colour, marker
from labkit.findings.roofline import Roofs
from labkit.plots import log10_axis

# where a name may stand beside its point (in 1/72 inch), the nearest first: below to the right, then to the left
DOWN = [-14 - 11 * i for i in range(30)]
UP = [(-14 - 6 * i, 18 + 8 * i, "right") for i in range(20)]
ACROSS = [(12, "left"), (50, "left"), (90, "left"), (-12, "right"), (-50, "right")]
PLACES = [(dx, dy, side) for dy in DOWN for dx, side in ACROSS]


def chart(ax: Axes, roofs: Roofs, points: pd.DataFrame, *, unit: str = "TFLOP/s", other: Roofs | None = None) -> None:
    """The roofs with their values on the lines; kernels hollow where they could be, filled where they are.

    points  columns variant, precision, intensity, tflops and text, the name beside the point (may be empty)
    unit    TFLOP/s or GFLOP/s
    other   another machine's roofs, dotted
    """
    page = _Page(ax, unit)
    machines = [roofs, *([other] if other else [])]
    low = min(points["intensity"].min() / 4, 0.2)
    high = 6 * max([points["intensity"].max(), *(r.ridge(p) for r in machines for p in r.tflops)])
    bottom = min([points["tflops"].min() / 25, *(low * r.gbps / 1e3 for r in machines)])
    top = 4 * max(max(r.tflops.values()) for r in machines)
    log10_axis(ax.xaxis)
    log10_axis(ax.yaxis)
    ax.set(xlim=(low, high), ylim=(page.scale * bottom, page.scale * top), xlabel="FLOPs per byte", ylabel=unit)
    ax.figure.draw_without_rendering()  # so that places on the page are known
    ink = mpl.rcParams["text.color"]
    page.roof(roofs, ink, "-", above=True)
    if other:
        page.roof(other, PURPLE, ":", above=False)
    rows = [row for _, row in points.sort_values("intensity", ascending=False, kind="stable").iterrows()]
    for row in rows:
        page.kernel(row, roofs.reachable(row["intensity"], row["precision"]))
    for row in rows:
        if row["text"]:
            page.name(row["text"], (row["intensity"], row["tflops"]), colour(row["variant"]))


class _Page:
    """An axes, and the places on it that are taken."""

    def __init__(self, ax: Axes, unit: str):
        self.ax, self.unit = ax, unit
        self.scale = {"TFLOP/s": 1.0, "GFLOP/s": 1e3}[unit]
        self.taken: list[tuple[float, float, float, float]] = []

    def at(self, x, tflops) -> np.ndarray:
        """Where (x, TFLOP/s) lies on the page, in pixels."""
        return self.ax.transData.transform(np.column_stack([x, self.scale * np.asarray(tflops)]))

    def line(self, x, tflops, **look) -> None:
        """A straight line; names keep off it, unless it is another machine's."""
        self.ax.plot(x, self.scale * np.asarray(tflops), **look)
        if look.get("linestyle") == ":":
            return
        (x0, y0), (x1, y1) = self.at(x, tflops)
        steps = np.linspace(0, 1, 2 + int(np.hypot(x1 - x0, y1 - y0) / 6))
        self.taken += [_box(x0 + s * (x1 - x0), y0 + s * (y1 - y0), 3) for s in steps]

    def roof(self, roofs: Roofs, tone, style: str, above: bool) -> None:
        """One machine: its slope up to the highest ridge, and a flat line for each precision."""
        origin, right = f"({roofs.origin})", self.ax.get_xlim()[1]
        if roofs.l2_gbps:
            self.slope(roofs.l2_gbps, max(roofs.tflops.values()), f"L2 {origin}", GREY, "--", UP, at=0.65)
        self.slope(
            roofs.gbps, max(roofs.tflops.values()), f"DRAM {origin}", tone, style, UP if above else PLACES, at=0.55
        )
        for precision, peak in roofs.tflops.items():
            self.line([roofs.ridge(precision), right], [peak] * 2, color=tone, linestyle=style)
        for precision, peak in roofs.tflops.items():
            text = f"{precision} {origin} {self.scale * peak:.3g} {self.unit}"
            self.put(text, (right, peak), [(-4, dy, "right") for dy in ((16, -18) if above else (-18, 16))], color=tone)

    def slope(self, gbps: float, peak: float, name: str, tone, style: str, places, at: float) -> None:
        """A line of constant bandwidth; its name beside it (`at`: where along the line)."""
        x = np.array([self.ax.get_xlim()[0], peak * 1e3 / gbps])
        self.line(x, x * gbps / 1e3, color=tone, linestyle=style)
        rate = f"{gbps / 1e3:.3g} TB/s" if self.unit == "TFLOP/s" else f"{gbps:.3g} GB/s"
        start = x[0] * (x[1] / x[0]) ** at
        self.put(f"{name} {rate}", (start, start * gbps / 1e3), places, color=tone, line=True)

    def kernel(self, row: pd.Series, could: float) -> None:
        """A point: hollow where it could be, filled where it is, and what lies between."""
        x, look = row["intensity"], {"color": colour(row["variant"]), "marker": marker(row["variant"])}
        self.line([x, x], [row["tflops"], could], color=look["color"], linewidth=1.5)
        self.ax.plot(x, self.scale * could, **look, markersize=13, markerfacecolor="none", markeredgewidth=2)
        self.ax.plot(x, self.scale * row["tflops"], **look, markersize=11)
        self.taken += [_box(*self.at(x, y)[0], 7) for y in (row["tflops"], could)]

    def name(self, text: str, xy: tuple[float, float], tone) -> None:
        """A point's name at the nearest free place, with a thin line to it where that is not beside the point."""
        self.put(text, xy, PLACES, color=tone, fontweight="bold", line=True)

    def put(self, text: str, xy: tuple[float, float], places, line: bool = False, **look) -> None:
        """Text at the first of the places that is free and inside the axes, else at the first."""
        (at,) = self.at([xy[0]], [xy[1]])
        probe = self.ax.annotate(text, (0.5, 0.5), xycoords="axes fraction", fontsize=16, **look)
        size = Text.get_window_extent(probe)
        probe.remove()
        boxes = [self._at_place(at, size.width, size.height, place) for place in places]
        place, box = next(((p, b) for p, b in zip(places, boxes, strict=True) if self._free(b)), (places[0], boxes[0]))
        dx, dy, side = place
        thin = {
            "arrowstyle": "-", "color": look["color"], "linewidth": 1, "shrinkA": 0, "shrinkB": 6,
            "relpos": (float(side == "right"), 0.5),
        }  # fmt: skip
        self.ax.annotate(
            text, (xy[0], self.scale * xy[1]), (dx, dy), textcoords="offset points", ha=side, va="center", fontsize=16,
            arrowprops=thin if line and (abs(dx) > 12 or dy < -30) else None, annotation_clip=False, **look,
        )  # fmt: skip
        self.taken.append(box)

    def _at_place(self, at, width: float, height: float, place) -> tuple[float, float, float, float]:
        """The box of a text of this size at a place beside a point, in pixels."""
        dx, dy, side = place
        pixels = self.ax.figure.dpi / 72
        left = at[0] + dx * pixels - (width if side == "right" else 0)
        middle = at[1] + dy * pixels
        return left, middle - height / 2, left + width, middle + height / 2

    def _free(self, box) -> bool:
        """Whether a box lies inside the axes, and on nothing that is there already."""
        inside, taken = self.ax.get_window_extent(), np.array(self.taken)
        x0, y0, x1, y1 = box
        within = inside.x0 <= x0 and x1 <= inside.x1 and inside.y0 <= y0
        return within and not np.any((taken[:, 0] < x1) & (x0 < taken[:, 2]) & (taken[:, 1] < y1) & (y0 < taken[:, 3]))


def _box(x: float, y: float, half: float) -> tuple[float, float, float, float]:
    return x - half, y - half, x + half, y + half
