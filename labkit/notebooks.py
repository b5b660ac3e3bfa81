"""Find, execute and copy the chapters; what `labkit run` and `labkit lab` are made of."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import linecache
import os
import sys
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tqdm import tqdm

from labkit import device
from labkit.errors import LabError

CHAPTERS = device.ROOT / "notebooks"
DRAFTS = "drafts"  # a folder of chapters that wait for their records: found by name, not among the chapters yet
LAID = ".laid.json"  # in the desk: what was laid there, so that the learner's own work is told apart


def chapters(wanted: list[str] | None = None) -> list[Path]:
    """The chapters whose names start with each of `wanted`, drafts among them; by default all that are no drafts.

    Raises LabError for an unknown one.
    """
    every = sorted(CHAPTERS.glob("[0-9][0-9]_*.ipynb"))
    if not every:
        raise LabError(f"no chapters in {CHAPTERS}; run labkit from a clone of the course (pip install -e .)")
    if not wanted:
        return every
    every += sorted((CHAPTERS / DRAFTS).glob("[0-9][0-9]_*.ipynb"))
    found = []
    for name in wanted:
        matches = [p for p in every if name and p.stem.startswith(Path(name).stem)]
        if not matches:
            raise LabError(f"no chapter {name!r}; there are: {', '.join(p.stem for p in every)}")
        found += [p for p in matches if p not in found]
    return found


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook, validated. Raises LabError for a broken one."""
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise LabError(f"no notebook {path}") from None
    except Exception as e:  # nbformat lets through whatever its parsers raise
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise LabError(f"{path}: not a notebook ({reason}); restore it: git checkout -- {path}") from e


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook canonically and at once, so that a second run makes no difference and a crash no damage."""
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    new = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8", newline="\n")
        new.replace(path)
    except OSError as e:
        raise LabError(f"cannot write {path} ({e.strerror}); is the folder yours?") from e


class _ThisPython(KernelSpecManager):
    """Runs kernels with the Python that runs labkit, whatever kernels the user has installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


class _Kernels(AsyncKernelManager):
    def __init__(self, **kwargs):
        super().__init__(**kwargs, kernel_spec_manager=_ThisPython())


def execute(path: Path, timeout_s: int = 600) -> nbformat.NotebookNode:
    """Run a chapter in a fresh kernel, with a progress bar on stderr. Raises LabError naming the cell that failed."""
    notebook = read(path)
    cells = sum(c.cell_type == "code" for c in notebook.cells)
    with tqdm(total=cells, desc=path.stem, unit="cell", file=sys.stderr) as bar:
        client = NotebookClient(
            notebook,
            kernel_manager_class=_Kernels,
            kernel_name="python3",
            timeout=timeout_s,
            record_timing=False,
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_executed=lambda **_: bar.update(),
        )
        try:
            asyncio.run(client.async_execute(env=environment()))
        except CellExecutionError as e:
            raise LabError(f"{path}: {e.ename}: {_one_line(e.evalue)} (in the cell {_failed(notebook)})") from None
        except Exception as e:  # a kernel that dies or hangs, a notebook that nbclient cannot take
            what = _one_line(str(e)) if str(e) else "the kernel died or was stopped"
            raise LabError(f"{path}: {type(e).__name__}: {what}") from None
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def environment() -> dict[str, str]:
    """The user's environment and labkit's own variables: a chapter finds out itself whether there is a GPU."""
    return {**device.ENVIRONMENT, **{k: v for k, v in os.environ.items() if k.startswith("LABKIT_")}}


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def _failed(notebook: nbformat.NotebookNode) -> str:
    for cell in notebook.cells:
        if any(out.output_type == "error" for out in cell.get("outputs", [])):
            return f"`{cell.id}`: {cell.source.splitlines()[0]}"
    return "unknown"


def answer(notebook: nbformat.NotebookNode) -> str:
    """The text of the cells tagged `answer`: what someone in a hurry wants of the chapter."""
    texts = []
    for cell in notebook.cells:
        if "answer" in cell.metadata.get("tags", []):
            for out in cell.outputs:
                texts.append(out.get("text") or out.get("data", {}).get("text/plain", ""))
    return "\n".join(t.rstrip() for t in texts if t)


def save_figures(notebook: nbformat.NotebookNode, folder: Path) -> list[Path]:
    """Write the PNGs among a notebook's outputs as <cell id>.png; returns the files."""
    written = []
    for cell in notebook.cells:
        pngs = [out["data"]["image/png"] for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
        for number, png in enumerate(pngs):
            path = folder / f"{cell.id}{f'-{number + 1}' if number else ''}.png"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(png))
            except OSError as e:
                raise LabError(f"cannot write {path} ({e.strerror}); choose another folder with --out") from e
            written.append(path)
    return written


def namespace(path: Path, cells: list[str]) -> dict:
    """Run the named code cells of a chapter in this process and return what they define.

    So that tests and tools use the chapters' own kernels instead of copies.
    """
    found = {cell.id: cell.source for cell in read(path).cells if cell.cell_type == "code"}
    unknown = [cell for cell in cells if cell not in found]
    if unknown:
        raise LabError(f"{path}: no code cell {', '.join(unknown)}; there are: {', '.join(found)}")
    names: dict = {"__name__": path.stem}
    for cell in cells:
        filename = f"{path.stem}:{cell}"
        linecache.cache[filename] = (len(found[cell]), None, found[cell].splitlines(keepends=True), filename)
        exec(compile(found[cell], filename, "exec"), names)
    return names


def without_outputs(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook as a learner gets it: nothing run yet."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def lay_desk(desk: Path) -> list[str]:
    """Copy the chapters, without outputs, to the learner's desk; returns a line for each thing done.

    What the learner has touched is never overwritten: a newer chapter is laid beside it as <name>.new.ipynb.
    """
    try:
        desk.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise LabError(f"cannot make the desk {desk} ({e.strerror}); choose another folder with --desk") from e
    laid, done = _laid(desk), []
    for chapter in chapters():
        fresh, target = without_outputs(read(chapter)), desk / chapter.name
        if target.exists() and _written(target) != laid.get(chapter.name):
            if laid.get(chapter.name) == _digest(fresh):
                done.append(f"{target.name}: yours, kept")
                continue
            target = _beside(target, laid)
            done.append(f"{chapter.name}: yours, kept; the course's newer one is {target.name}")
        elif target.exists() and laid[chapter.name] == _digest(fresh):
            continue
        else:
            done.append(f"{target.name}: laid")
        write(fresh, target)
        laid[chapter.name] = laid[target.name] = _digest(fresh)
    try:
        (desk / LAID).write_text(json.dumps(laid, indent=1) + "\n", encoding="utf-8")
    except OSError as e:
        raise LabError(f"cannot write to the desk {desk} ({e.strerror}); choose another folder with --desk") from e
    return done


def _beside(target: Path, laid: dict[str, str]) -> Path:
    """Where a newer chapter goes: <name>.new.ipynb, or the next number if the learner has written in that one too."""
    for number in itertools.count(1):
        path = target.with_suffix(f".new{number if number > 1 else ''}.ipynb")
        if not path.exists() or _written(path) == laid.get(path.name):
            return path


def _laid(desk: Path) -> dict[str, str]:
    try:
        return dict(json.loads((desk / LAID).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}  # nothing known: every chapter there counts as the learner's own


def _written(path: Path) -> str:
    """The digest of what stands in a desk's notebook; of its bytes, if it is none any more."""
    try:
        return _digest(read(path))
    except LabError:
        return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(notebook: nbformat.NotebookNode) -> str:
    """Of what a learner writes: the cells' sources. JupyterLab changes metadata as soon as it opens a file."""
    return hashlib.sha256(json.dumps([(c.cell_type, c.source) for c in notebook.cells]).encode()).hexdigest()


def exercises(path: Path) -> list[str]:
    """The names of a chapter's exercises, as its check cells give them: `exercise="02.chain"` and the like."""
    return [name for cell in read(path).cells for name in cell.metadata.get("exercise", [])]
