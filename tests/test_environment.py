"""Set-up: one list of requirements, the README's commands, the style."""

import re
import subprocess
import sys
import tomllib

import pytest

from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PIP_ONLY = {"numba-cuda", "cuda-core"}  # not for every platform of conda-forge; pip's markers choose


def bounds(requirement: str) -> tuple[str, set[str]]:
    requirement = requirement.split(";")[0].strip()
    name = re.match(r"[\w-]+", requirement)[0]
    return name, set(filter(None, requirement.removeprefix(name).strip().split(",")))


def conda() -> dict[str, set[str]]:
    lines = (ROOT / "environment.yml").read_text(encoding="utf-8").splitlines()
    return dict(bounds(line.strip()[2:]) for line in lines if re.match(r"  - [\w-]+[<>=]", line))


def test_environment_yml_has_the_bounds_of_pyproject():
    wanted = dict(bounds(r) for r in PROJECT["dependencies"])
    found = conda()
    assert {name: b for name, b in found.items() if name != "python"} == {
        name: b for name, b in wanted.items() if name not in PIP_ONLY
    }
    assert PROJECT["requires-python"] in found["python"]


def test_environment_yml_installs_this_project():
    assert "- -e .[test]" in (ROOT / "environment.yml").read_text(encoding="utf-8")


def test_numpy_stays_below_what_breaks_numba_cuda():
    assert "<2.5" in dict(bounds(r) for r in PROJECT["dependencies"])["numpy"]


def test_macos_gets_no_cuda():
    for requirement in PROJECT["dependencies"]:
        if bounds(requirement)[0] in PIP_ONLY:
            assert "sys_platform != 'darwin'" in requirement


def test_the_extras_are_numba_cudas_own():
    extras = PROJECT["optional-dependencies"]
    assert extras["cu12"][0].startswith("numba-cuda[cu12]")
    assert extras["cu13"][0].startswith("numba-cuda[cu13]")
    assert any(r.startswith("torch") for r in extras["baselines"])


def readme_commands() -> list[str]:
    block = re.search(r"## Start\n\n```\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)[1]
    return [line.split("   ")[0].strip() for line in block.splitlines()]


def test_ci_runs_the_readmes_two_commands():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = readme_commands()
    assert len(commands) == 2
    for command in commands:
        assert command in ci


def test_the_readmes_links_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md"):
        prose = re.sub(
            r"(?s)```.*?```", "", (ROOT / name).read_text(encoding="utf-8")
        )  # kernel[grid, block](x) is code
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_the_readme_names_every_chapter():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{path.name}" in readme


@pytest.mark.parametrize("command", [["check", "."], ["format", "--check", "."]])
def test_the_style_is_ruffs(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


LAYERS = ("decoder", "findings", "figures", "kernels", "ptx", "roofs")  # packages that are one layer each


def test_modules_are_small_and_import_one_way():
    order = "errors device cpu ptx traffic doctor clocks timing records progress checks experiment fingerprint autotune"
    order += " kernels roofs tables findings decoder colours plots rooflines pictures figures notebooks cli"
    rank = {name: i for i, name in enumerate(order.split())}
    files = [*(ROOT / "labkit").glob("*.py"), *(p for d in LAYERS for p in (ROOT / "labkit" / d).glob("*.py"))]
    for path in files:
        module = path.parent.name if path.parent.name in LAYERS else path.stem
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 300, path.name
        if path.stem == "__init__":
            continue
        imported = re.findall(r"(?m)^from labkit\.(\w+)[\w.]* import", source)
        imported += re.findall(r"\w+", " ".join(re.findall(r"(?m)^from labkit import (.+)$", source)))
        for name in imported:
            assert name == module or rank[name] < rank[module], f"{path.name} imports {name}"
