"""What the learner predicted and solved; kept in a JSON file in the user's data folder."""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path

from filelock import FileLock
from platformdirs import user_data_path

from labkit.errors import LabError


def file() -> Path:
    """`$LABKIT_PROGRESS`, or progress.json in the user's data folder."""
    return Path(os.environ.get("LABKIT_PROGRESS") or user_data_path("labkit") / "progress.json")


def load() -> dict[str, dict]:
    """{"solved": {exercise: UTC time}, "predicted": {question: value}}; empty at first.

    A damaged file is put aside, never overwritten, and the learner is told where it lies.
    """
    empty = {"solved": {}, "predicted": {}}
    path = file()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(when, str) for when in found["solved"].values()):
            raise ValueError("a time of day is no text")
        return {key: dict(found[key]) for key in empty}
    except FileNotFoundError:
        return empty
    except OSError as e:
        raise LabError(f"cannot read the progress in {path} ({e.strerror}); set LABKIT_PROGRESS to another file") from e
    except (ValueError, KeyError, TypeError, AttributeError):
        aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}")
        try:
            path.replace(aside)
        except OSError as e:
            raise LabError(f"{path} is damaged and cannot be put aside ({e.strerror}); move it away") from e
        print(f"labkit: {path} was damaged; it lies at {aside} now, and progress starts anew", file=sys.stderr)
        return empty


def solved(exercise: str) -> None:
    """Remember that an exercise is solved (the first time counts); nothing for an exercise without a name."""
    if exercise:
        _remember("solved", exercise, datetime.now(UTC).isoformat(timespec="seconds"), keep=True)


def predict(question: str, value) -> float | None:
    """The learner's prediction, remembered; None (and a reminder) while it still is `...`."""
    if value is ...:
        print(f"{question}: no prediction yet (replace the `...`, then measure)")
        return None
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise LabError(f"{question}: found {value!r}, expected a number")
    _remember("predicted", question, float(value), keep=False)
    return float(value)


def confront(question: str, predicted: float | None, measured: float, unit: str = "") -> None:
    """Print the prediction beside what was measured, and how far apart they are."""
    found = f"{measured:.3g}{unit}"
    if predicted is None:
        print(f"{question}: {found}; you made no prediction")
    else:
        print(f"{question}: you said {predicted:.3g}{unit}, it is {found} ({predicted / measured - 1:+.0%})")


def _remember(part: str, key: str, value, *, keep: bool) -> None:
    path = file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            state = load()
            if not (keep and key in state[part]):
                state[part][key] = value
                new = path.with_suffix(".new")
                new.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
                new.replace(path)
    except OSError as e:
        print(f"labkit: progress is not saved, {path} cannot be written ({e.strerror})", file=sys.stderr)
