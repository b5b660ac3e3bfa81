"""The command line: doctor, lab, run, plots, progress."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from labkit import device
from labkit.errors import LabError


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns 0, or 2 after one line on stderr that says what is wrong and what to do."""
    arguments = _parser().parse_args(argv)
    os.environ["LABKIT_COMMAND"] = " ".join(["labkit", *(sys.argv[1:] if argv is None else argv)])
    try:
        return arguments.command(arguments) or 0
    except LabError as e:
        print(f"labkit: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("labkit", description="A hands-on course in CUDA kernels: launch, select, fuse.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(command, **kwargs):
        sub = commands.add_parser(command.__name__.strip("_"), help=command.__doc__.splitlines()[0], **kwargs)
        sub.set_defaults(command=command)
        return sub

    add(_doctor)
    lab = add(_lab)
    lab.add_argument("--desk", type=Path, default=Path("work"), help="the desk's folder (default: work)")
    lab.add_argument("jupyter", nargs=argparse.REMAINDER, help="after --: options for JupyterLab itself")
    run = add(_run)
    run.add_argument("chapters", nargs="*", metavar="CHAPTER", help="such as 02 (default: all)")
    run.add_argument("--record", action="store_true", help="store what is measured in data/ (needs a GPU)")
    run.add_argument("--only", metavar="RECORDS", help="with --record: renew these alone, several with commas")
    run.add_argument("--inplace", action="store_true", help="store the outputs in the chapter (needs no GPU)")
    run.add_argument("--out", type=Path, default=Path("out"), help="folder of results (default: out)")
    plots = add(_plots)
    plots.add_argument("--out", type=Path, default=Path("slides"), help="folder of figures (default: slides)")
    plots.add_argument("--format", default="png", help="svg, png, pdf, or several with commas (default: png)")
    plots.add_argument("--theme", default="light", help="light or dark (default: light)")
    plots.add_argument("--device", help="slug of a folder in data/ (default: nvidia-h200)")
    add(_progress)
    return parser


def _doctor(arguments) -> int:
    """say what this machine is, and how to mend what is wrong with it"""
    from labkit import doctor

    findings = doctor.examine()
    print(doctor.report(findings))
    return 1 if any(f.fix for f in findings) else 0


def _lab(arguments) -> None:
    """lay a desk of chapters to work on, and open JupyterLab on it"""
    from labkit import notebooks

    desk = arguments.desk.resolve()
    for line in notebooks.lay_desk(desk):
        print(line)
    options = [o for o in arguments.jupyter if o != "--"]
    command = [sys.executable, "-m", "jupyter", "lab", f"--ServerApp.root_dir={desk}", *options]
    print(f"JupyterLab starts on {desk}; Ctrl-C ends it", flush=True)
    if os.name == "posix":
        os.execve(sys.executable, command, notebooks.environment())
    sys.exit(subprocess.call(command, env=notebooks.environment()))


def _run(arguments) -> None:
    """run chapters from top to bottom, print their answer, write their figures"""
    from labkit import notebooks

    _check_run(arguments)
    before = _recorded_at(arguments.only.split(",") if arguments.only else [])
    if arguments.record:
        os.environ["LABKIT_RECORD"] = "1"
        os.environ["LABKIT_ONLY"] = arguments.only or ""
    for path in notebooks.chapters(arguments.chapters):
        _run_chapter(path, arguments)
    _check_renewed(before)


def _check_run(arguments) -> None:
    if arguments.record and not device.MACHINE.has_gpu:
        raise LabError(f"--record needs a GPU: {device.MACHINE.reason}. See `labkit doctor`")
    if arguments.only and not arguments.record:
        raise LabError("--only names the records that --record renews; add --record")
    if arguments.inplace and device.MACHINE.has_gpu:
        raise LabError(
            "--inplace stores what a machine without a GPU shows, and this one has one; "
            "set NUMBA_ENABLE_CUDASIM=1 for it"
        )


def _run_chapter(path: Path, arguments) -> None:
    from labkit import notebooks

    folder = arguments.out / path.stem
    if not arguments.inplace:
        _make_folder(folder)  # before minutes of work that could not be stored
    notebook = notebooks.execute(path)
    if arguments.inplace:
        notebooks.write(notebook, path)
        print(f"{path.stem}: outputs stored")
        return
    notebooks.write(notebook, folder / path.name)
    written = notebooks.save_figures(notebook, folder)
    print(notebooks.answer(notebook))
    print(f"{len(written)} figures and the executed chapter are in {folder}{os.sep}")


def _recorded_at(only: list[str]) -> dict[str, str]:
    """When each of these was recorded on this GPU. Raises LabError where one was not."""
    from labkit import records

    for name in only:
        if device.MACHINE.slug not in records.devices(name):
            raise LabError(
                f"--only {name}: {device.MACHINE.name} has no such record to renew. Without --only all are taken"
            )
    return {name: records.read_provenance(name, device.MACHINE.slug)["utc"] for name in only}


def _check_renewed(before: dict[str, str]) -> None:
    same = [name for name, utc in _recorded_at(list(before)).items() if utc == before[name]]
    if same:
        raise LabError(f"not renewed: {', '.join(same)}. None of these chapters takes such a record")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise LabError(f"cannot make {folder} ({e.strerror}); choose another folder with --out") from e


def _plots(arguments) -> None:
    """draw every figure of the course from the records in data/"""
    from labkit import figures

    formats = [f.strip() for f in arguments.format.split(",") if f.strip()]
    written = figures.draw_all(arguments.out, formats, arguments.theme, arguments.device)
    print(f"{len(written)} figures are in {arguments.out}{os.sep}")
    absent = sorted(set(figures.FIGURES) - set(figures.recorded(arguments.device)))
    if absent:
        print(
            f"not recorded, so left out: {', '.join(absent)}. `labkit run --record` on that GPU measures what they show"
        )


def _progress(arguments) -> None:
    """list the exercises, solved and open"""
    from labkit import notebooks, progress

    done = progress.load()["solved"]
    solved = total = 0
    for path in notebooks.chapters():
        for name in notebooks.exercises(path):
            when = done.get(name, "")
            solved, total = solved + bool(when), total + 1
            print(f"{'✓' if when else '·'} {path.stem:24} {name:28} {when[:10]}".rstrip())
    print(f"{solved} of {total} solved")


if __name__ == "__main__":
    sys.exit(main())
