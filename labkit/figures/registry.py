"""The register of the course's figures, and drawing them all."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path

import pandas as pd

from labkit import plots, records
from labkit.errors import LabError
from labkit.plots import CourseFigure
from labkit.tables import of_one_source

FIGURES: dict[str, tuple[str, Callable]] = {}  # the figure's name -> the experiment it shows, the function


def figure(name: str, experiment: str):
    """Register a figure of the course and draw it in the course's style, from the rows of one source."""

    def register(draw: Callable[[pd.DataFrame], CourseFigure]):
        @wraps(draw)
        def styled(rows: pd.DataFrame, theme: str = "light") -> CourseFigure:
            with plots.style(theme):
                return draw(of_one_source(rows))

        FIGURES[name] = (experiment, styled)
        return styled

    return register


def draw_all(out: Path, formats: list[str], theme: str = "light", gpu: str | None = None) -> list[Path]:
    """Draw every figure of the course from data/ into `out`; returns the files. Raises LabError on damaged records."""
    if not formats:
        raise LabError("no format is named; it is png, svg, pdf, or several of them")
    written = []
    for name, (experiment, draw) in sorted(FIGURES.items()):
        fig = draw(records.read(experiment, gpu), theme)
        with plots.style(theme):
            fig.draw_without_rendering()
            fig.set_layout_engine("none")  # laid out once, for all formats
            for kind in formats:
                plots.save(fig, out / f"{name}.{kind}")
                written.append(out / f"{name}.{kind}")
    return written
