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


def recorded(gpu: str | None = None) -> list[str]:
    """The figures whose experiments have been recorded on a GPU (default: as `records.read`)."""
    return [name for name, (experiment, _) in sorted(FIGURES.items()) if records.is_there(experiment, gpu)]


def draw_all(out: Path, formats: list[str], theme: str = "light", gpu: str | None = None) -> list[Path]:
    """Draw every figure that there is a record for into `out`; returns the files.

    Raises LabError on damaged records, and where nothing has been recorded.
    """
    if not formats:
        raise LabError("no format is named; it is png, svg, pdf, or several of them")
    written = []
    for name in recorded(gpu) or sorted(FIGURES):  # of none: what the first one's record lacks is said
        experiment, draw = FIGURES[name]
        fig = draw(records.read(experiment, gpu), theme)
        with plots.style(theme):
            fig.draw_without_rendering()
            fig.set_layout_engine("none")  # laid out once, for all formats
            for kind in formats:
                plots.save(fig, out / f"{name}.{kind}")
                written.append(out / f"{name}.{kind}")
    return written
