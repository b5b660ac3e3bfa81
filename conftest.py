"""How the chapters are validated: strictly against their stored outputs without a GPU, live and lax with one."""

import os
import tempfile
from pathlib import Path

# before any kernel starts: no test and no chapter touches the user's own progress
os.environ["LABKIT_PROGRESS"] = str(Path(tempfile.mkdtemp(prefix="labkit-tests-")) / "progress.json")

# a worker of pytest-xdist inherits what labkit set in the process that started it; let it find out by itself
os.environ["LABKIT_TESTS_ASKED"] = os.environ.get("LABKIT_TESTS_ASKED", os.environ.get("NUMBA_ENABLE_CUDASIM", "0"))
os.environ["NUMBA_ENABLE_CUDASIM"] = os.environ["LABKIT_TESTS_ASKED"]

import labkit  # before numba, whatever test comes first

collect_ignore = ["notebooks/drafts"]  # chapters that wait for their records
LONGEST = ("test_plots", "test_browser", "test_decode", "test_live", "test_cpu", "test_kept", "test_selection")


def pytest_xdist_auto_num_workers(config):
    """Tests run on all cores, but never side by side on one GPU."""
    return 0 if labkit.MACHINE.has_gpu else None


def pytest_collection_modifyitems(items):
    """Chapters first, since tests find kept what they compiled; then the longest, so that two workers end together."""

    def place(item) -> tuple:
        chapter = int(item.path.stem[:2]) if item.path.suffix == ".ipynb" else -1
        return -chapter, LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_configure(config):
    """Choose nbval's mode and name our markers."""
    config.addinivalue_line("markers", "gpu: needs a real GPU")
    config.addinivalue_line("markers", "browser: needs chromium, chromedriver and selenium")
    if config.pluginmanager.hasplugin("nbval"):
        config.option.nbval = not labkit.MACHINE.has_gpu
        config.option.nbval_lax = labkit.MACHINE.has_gpu
