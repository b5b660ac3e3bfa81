"""Fixtures of all tests: a progress file of one's own, made-up records, Python in another process."""

import subprocess
import sys
from pathlib import Path

import labkit  # isort: skip  # before numba

import numpy as np
import pandas as pd
import pytest

from labkit import device, notebooks, records

ROOT = Path(__file__).resolve().parent.parent
PROVENANCE = {"device": "Test GPU 9000", "driver": "1.2.3", "utc": "2020-01-02T03:04:05+00:00"}


def made_up(variants=("unfused", "fused"), sizes=(16, 32), ms=2.0) -> pd.DataFrame:
    """A table that is a valid record and is measured by nobody."""
    rows = []
    for n in sizes:
        for variant in variants:
            timed = labkit.Timing(np.array([ms, ms * 1.1]), np.zeros(2, bool), "events", "cold")
            rows.append(labkit.row(variant, timed, labkit.elementwise(n), 1e-8, n=n))
    return pd.DataFrame(rows)


@pytest.fixture
def record(tmp_path) -> Path:
    """The CSV of a made-up record; its folder's parent is a data folder."""
    return records.write(made_up(), "made_up", PROVENANCE, tmp_path / "data")


@pytest.fixture
def progress_file(tmp_path, monkeypatch) -> Path:
    """A progress file for one test."""
    path = tmp_path / "progress" / "progress.json"
    monkeypatch.setenv("LABKIT_PROGRESS", str(path))
    return path


@pytest.fixture
def python():
    """Runs code in a new Python, with variables set (or, for None, unset); returns the finished process."""

    def run(code: str, **variables: str | None) -> subprocess.CompletedProcess:
        env = {k: v for k, v in {**device.ENVIRONMENT, **variables}.items() if v is not None}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)

    return run


@pytest.fixture(scope="session")
def chapter02() -> dict:
    """The kernels of chapter 02, as the chapter defines them."""
    cells = ["mode", "kernel", "check", "variants", "four", "variants-four"]
    return notebooks.namespace(notebooks.chapters(["02"])[0], cells)
