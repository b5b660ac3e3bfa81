"""Tables of measurements and where they come from: validate, write, read; live or recorded."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from labkit import device
from labkit.doctor import installed
from labkit.errors import LabError

COLUMNS = (
    "median_ms", "min_ms", "p25_ms", "p75_ms", "samples", "method", "cache",
    "bytes", "flops", "gbps", "tflops", "error", "flags",
)  # fmt: skip
NUMBERS = [c for c in COLUMNS if c not in ("method", "cache", "flags")]
TIMES = ("min_ms", "p25_ms", "median_ms", "p75_ms")
PACKAGES = ("numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "torch", "triton")
DEFAULT_DEVICE = "nvidia-h200"


def validate(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """The table itself if it is a record; else LabError says what is wrong in `where`, in one line.

    A record is tidy: `variant`, the experiment's parameters, then COLUMNS; one row a measurement.
    """
    missing = [c for c in ("variant", *COLUMNS) if c not in table.columns]
    if missing:
        raise LabError(
            f"{where}: column{'s' * (len(missing) > 1)} {', '.join(missing)} missing; found {', '.join(table.columns)}"
        )
    if table.empty:
        raise LabError(f"{where}: no rows")
    for column in NUMBERS:
        if not pd.api.types.is_numeric_dtype(table[column]):
            bad = pd.to_numeric(table[column], errors="coerce").isna() & table[column].notna()
            found = table[column][bad].iloc[0] if bad.any() else table[column].iloc[0]
            raise LabError(f"{where}: column {column} holds {found!r}, expected a number")
    times = table[list(TIMES)]
    if times.isna().any(axis=None) or (times <= 0).any(axis=None):
        raise LabError(f"{where}: a time is missing or not above 0 ms; no GPU yields that, record it again")
    if (times.diff(axis=1).iloc[:, 1:] < 0).any(axis=None):
        raise LabError(f"{where}: min, p25, median and p75 are out of order in some row; record it again")
    keys = ["variant", *parameters(table)]
    if table.duplicated(keys).any():
        twice = table[table.duplicated(keys)].iloc[0]
        raise LabError(f"{where}: two rows for {', '.join(f'{k}={twice[k]}' for k in keys)}; record it again")
    return table


def parameters(table: pd.DataFrame) -> list[str]:
    """The experiment's own columns: all that are neither the variant, nor measured, nor the source."""
    return [c for c in table.columns if c not in ("variant", "source", *COLUMNS)]


def write(table: pd.DataFrame, experiment: str, provenance: dict, root: Path | None = None) -> Path:
    """Store a record as `<root>/<device>/<experiment>.csv` and `.json`; returns the CSV's path.

    An older record is replaced only when both new files have been written whole.
    """
    folder = (root or device.data_dir()) / device.slug(provenance["device"])
    validate(table, experiment)
    text = table.drop(columns="source", errors="ignore").to_csv(index=False, float_format="%.6g", lineterminator="\n")
    provenance = {**provenance, "rows": len(table), "csv_sha256": _digest(text)}
    files = {
        folder / f"{experiment}.csv": text,
        folder / f"{experiment}.json": json.dumps(provenance, indent=2) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            path.with_suffix(path.suffix + ".new").write_text(content, encoding="utf-8", newline="\n")
        for path in files:
            path.with_suffix(path.suffix + ".new").replace(path)
    except OSError as e:
        raise LabError(
            f"cannot write the record to {folder} ({e.strerror}); set LABKIT_DATA to a folder you own"
        ) from e
    return folder / f"{experiment}.csv"


def read(experiment: str, gpu: str | None = None, root: Path | None = None) -> pd.DataFrame:
    """The recorded rows of an experiment, with a `source` column that names the GPU and the date.

    `gpu` is the slug of a folder in data/ (default: $LABKIT_DEVICE, or nvidia-h200). Raises LabError for a record
    that is missing, cut short, edited, or saved by a spreadsheet.
    """
    root = root or device.data_dir()
    gpu = _chosen(gpu)
    path = root / gpu / f"{experiment}.csv"
    text = _text(path, root)
    source = read_provenance(experiment, gpu, root)
    if ";" in text.split("\n", 1)[0]:
        raise LabError(
            f"{path}: separated by semicolons, as spreadsheets save in some languages; expected commas. "
            f"Restore it: git checkout -- {path}"
        )
    try:
        table = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values={c: [""] for c in NUMBERS})
    except (ValueError, pd.errors.ParserError) as e:
        raise LabError(f"{path}: not a CSV table ({str(e).strip()}); restore it: git checkout -- {path}") from e
    validate(table, str(path))
    if len(table) != source["rows"] or _digest(text) != source["csv_sha256"]:
        raise LabError(
            f"{path}: cut short or edited: {len(table)} rows found, {source['rows']} recorded on {source['utc'][:10]}, "
            f"and the checksum differs. Restore it (git checkout -- {path}) or record anew (labkit run --record)"
        )
    return table.assign(source=f"recorded: {source['device']}, driver {source['driver']}, {source['utc'][:10]}")


def read_provenance(experiment: str, gpu: str | None = None, root: Path | None = None) -> dict:
    """Where a record comes from: the content of `<experiment>.json`. Raises LabError where it is damaged."""
    root = root or device.data_dir()
    path = root / _chosen(gpu) / f"{experiment}.json"
    try:
        found = json.loads(_text(path, root))
    except ValueError as e:
        raise LabError(f"{path}: not JSON ({e}); restore it: git checkout -- {path}") from e
    kinds = {"device": str, "driver": str, "utc": str, "rows": int, "csv_sha256": str}
    found = found if isinstance(found, dict) else {}
    lost = [k for k, kind in kinds.items() if not isinstance(found.get(k), kind)]
    if lost:
        raise LabError(f"{path}: no {', '.join(lost)} in it; a record needs its provenance. Record it anew")
    return found


def _chosen(gpu: str | None) -> str:
    return (os.environ.get("LABKIT_DEVICE") or DEFAULT_DEVICE) if gpu is None else gpu


def devices(experiment: str, root: Path | None = None) -> list[str]:
    """The slugs of the GPUs on which this experiment has been recorded."""
    return sorted(p.parent.name for p in (root or device.data_dir()).glob(f"*/{experiment}.csv"))


def is_there(experiment: str, gpu: str | None = None) -> bool:
    """Whether the experiment has been recorded on the GPU that `read` would show."""
    return _chosen(gpu) in devices(experiment)


def provenance(clocks_before: dict | None = None) -> dict:
    """Of this machine, now: device, driver, toolkit and package versions, clocks, UTC time, commit, command."""
    machine, state = device.MACHINE, device.gpu_state()
    if not machine.has_gpu:
        raise LabError(f"nothing to record: {machine.reason}. Records come from a real GPU alone")
    return {
        "device": machine.name,
        "compute_capability": ".".join(map(str, machine.compute_capability)),
        "sms": machine.sms,
        "l2_bytes": machine.l2_bytes,
        "driver": state["driver"] or "unknown",
        "driver_cuda": ".".join(map(str, machine.driver_cuda)),
        "toolkit": ".".join(map(str, device.toolkit_version())),
        "python": sys.version.split()[0],
        "packages": {p: installed(p) for p in PACKAGES if installed(p)},
        "clocks_mhz_before": clocks_before or {},
        "clocks_mhz_after": clocks(state),
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        **_git(),
        "command": without_folders(os.environ.get("LABKIT_COMMAND") or " ".join(sys.argv)),
    }


def without_folders(command: str) -> str:
    """A command without the folders of this machine: of an absolute path only the last name."""
    return " ".join(Path(word).name if Path(word).is_absolute() else word for word in command.split(" "))


def clocks(state: dict) -> dict:
    """The clocks of `device.gpu_state()`, in MHz."""
    return {"sm": state["sm_clock_mhz"], "memory": state["memory_clock_mhz"]}


def _git() -> dict:
    """The commit that was measured; `$LABKIT_COMMIT` names it where the working tree travels without git."""

    def ask(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=device.ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit, changed = ask("rev-parse", "HEAD"), ask("status", "--porcelain", "--untracked-files=no")
    except OSError:
        commit, changed = "", ""
    return {
        "commit": os.environ.get("LABKIT_COMMIT") or commit or "unknown",
        "uncommitted_changes": bool(changed),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


def _text(path: Path, root: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = sorted(f"{p.parent.name}/{p.stem}" for p in root.glob("*/*.csv"))
        raise LabError(
            f"no record {path.name} for {path.parent.name} in {root}; there are: {', '.join(known) or 'none'}"
        ) from None
    except UnicodeDecodeError as e:
        raise LabError(f"{path}: cannot be read ({e}); restore it: git checkout -- {path}") from e
    except OSError as e:
        raise LabError(f"{path}: cannot be read ({e.strerror}); is the folder yours, and LABKIT_DATA right?") from e
