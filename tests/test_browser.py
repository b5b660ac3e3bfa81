"""A new learner in a real browser: lays a desk, runs chapter 02 from the menu, solves its first exercise."""

import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[browser]'")

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and CHROMEDRIVER),
        reason="needs chromium and chromedriver: apt-get install chromium chromium-driver",
    ),
]

CHAPTER = "02_fused_vs_unfused"
SETTINGS = {  # JupyterLab's, for this test: no pop-ups, nothing fetched, every cell in the page
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/extensionmanager-extension/plugin": {"enabled": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}
CHROMIUM_OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1200",
]

RED = ("application/vnd.jupyter.stderr", "application/vnd.jupyter.error")
CODE_CELLS = """
return [...document.querySelectorAll('.jp-Notebook .jp-CodeCell')].map(cell => ({
    source: [...cell.querySelectorAll('.cm-line')].map(line => line.textContent).join('\\n'),
    prompt: cell.querySelector('.jp-InputPrompt')?.textContent ?? '',
    outputs: [...cell.querySelectorAll('.jp-OutputArea-output')].map(
        output => ({type: output.dataset.mimeType ?? '', text: output.textContent})),
}))
"""
KERNEL_STATUS = "return document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status"
DIALOGS = "return [...document.querySelectorAll('.jp-Dialog')].map(dialog => dialog.textContent)"
BY_TEXT = "return [...document.querySelectorAll(arguments[0])].filter(e => e.textContent.trim() === arguments[1])"
OUTPUT_WITH = """
return [...document.querySelectorAll('.jp-OutputArea-output')].filter(
    output => arguments[0].every(word => output.textContent.includes(word)))
"""
FIGURES = """
return [...document.querySelectorAll('.jp-OutputArea-output img')].filter(
    image => image.src.startsWith('data:image/png') && image.complete && image.naturalWidth > 500)
"""
# What is painted at the middle of the element: the element itself, unless it is hidden or something lies over it
IS_ON_SCREEN = """
const element = arguments[0];
element.scrollIntoView({block: 'center'});
const box = element.getBoundingClientRect();
const painted = document.elementFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
return box.left >= 0 && box.right <= innerWidth && element.contains(painted);
"""


class Lab(NamedTuple):
    """A running JupyterLab on a desk: where it answers, and the environment that it was started with."""

    url: str
    token: str
    desk: Path
    environment: dict[str, str]


@pytest.fixture
def lab(tmp_path):
    """`labkit lab` as a learner starts it; whatever it keeps for its user lies in `tmp_path`."""
    port, token, environment = free_port(), secrets.token_hex(16), private_environment(tmp_path)
    command = [sys.executable, "-m", "labkit.cli", "lab", "--desk", str(tmp_path / "work"), "--", "--no-browser"]
    command += ["--ip=127.0.0.1", "--port", str(port), "--ServerApp.port_retries=0"]
    command += [f"--IdentityProvider.token={token}", *(["--allow-root"] if os.geteuid() == 0 else [])]
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until("JupyterLab to answer", lambda: answers(server, port), seconds=90)
        yield Lab(f"http://127.0.0.1:{port}", token, tmp_path / "work", environment)
    finally:
        end(server)
        print((tmp_path / "lab.log").read_text(encoding="utf-8", errors="replace")[-4000:])


@pytest.fixture
def browser(tmp_path):
    """A headless Chromium without a past; its last screen is kept as `screen.png`."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in [*CHROMIUM_OPTIONS, f"--user-data-dir={tmp_path / 'chromium'}"]:
        options.add_argument(option)
    service = webdriver.ChromeService(CHROMEDRIVER, env={**os.environ, "HOME": str(tmp_path)})
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        try:
            driver.save_screenshot(str(tmp_path / "screen.png"))
            print(f"the last screen: {tmp_path / 'screen.png'}; dialogs on it: {driver.execute_script(DIALOGS)}")
        finally:
            driver.quit()


def test_a_learner_runs_a_chapter_and_solves_an_exercise(lab, browser):
    open_chapter(lab, browser)
    run_all_cells(browser)
    assert_nothing_red(browser)
    assert has_run(code_cells(browser)[-1]), "the last cell has not run, though no cell shows an error"
    assert_on_screen(browser, "a figure", FIGURES)
    assert_on_screen(browser, "the answer's table", OUTPUT_WITH, ["variant", "speedup", "predicted", "fused-4"])
    assert solved(lab) == (0, []), "running the chapter, with its solutions, must not count as solving an exercise"

    replace_line(browser, "my_ratio = ...", "my_ratio = 3")
    press(browser, webdriver.Keys.SHIFT, webdriver.Keys.ENTER)
    wait_until("02.bytes to be called right", lambda: "02.bytes: right" in output_under(browser, "my_ratio = 3"))
    assert_nothing_red(browser)
    assert solved(lab) == (1, ["02.bytes"])


# --- what the learner does ------------------------------------------------------------------------------------


def open_chapter(lab, browser) -> None:
    notebook = json.loads((lab.desk / f"{CHAPTER}.ipynb").read_text(encoding="utf-8"))
    cells = sum(cell["cell_type"] == "code" for cell in notebook["cells"])
    browser.get(f"{lab.url}/lab/tree/{CHAPTER}.ipynb?token={lab.token}")
    wait_until(f"{cells} code cells to be shown", lambda: len(code_cells(browser)) == cells, seconds=90)
    wait_until("the kernel to start", lambda: browser.execute_script(KERNEL_STATUS) == "idle", seconds=90)


def run_all_cells(browser) -> None:
    for _ in range(3):  # JupyterLab drops a run that is asked for before its connection to the kernel stands
        click(browser, ".lm-MenuBar-itemLabel", "Run")
        click(browser, ".lm-Menu-itemLabel", "Run All Cells")
        if soon(lambda: any("*" in cell["prompt"] or has_run(cell) for cell in code_cells(browser))):
            break
    wait_until("the chapter to run", lambda: has_run(code_cells(browser)[0]) and is_idle(browser), seconds=180)


def click(browser, selector: str, text: str) -> None:
    def shown():
        return [e for e in browser.execute_script(BY_TEXT, selector, text) if e.is_displayed()]

    wait_until(f"{text!r} to be shown", shown)[0].click()


def replace_line(browser, old: str, new: str) -> None:
    """Type `new` in place of the one line `old`; no brackets in it, for the editor closes them by itself."""
    lines = browser.execute_script(BY_TEXT, ".jp-CodeCell .cm-line", old)
    assert len(lines) == 1, f"{len(lines)} lines read {old!r}, expected one"
    wait_until(f"{old!r} to be on screen", lambda: browser.execute_script(IS_ON_SCREEN, lines[0]))
    lines[0].click()
    editing = "return document.activeElement.contains(arguments[0])"
    wait_until(f"the cursor to be at {old!r}", lambda: browser.execute_script(editing, lines[0]))
    press(browser, webdriver.Keys.HOME)
    press(browser, webdriver.Keys.SHIFT, webdriver.Keys.END)
    webdriver.ActionChains(browser).send_keys(new).perform()
    wait_until(f"{new!r} to be typed", lambda: browser.execute_script(BY_TEXT, ".jp-CodeCell .cm-line", new))


def press(browser, *keys: str) -> None:
    """The last of the keys, the others held down."""
    chain = webdriver.ActionChains(browser)
    for key in keys[:-1]:
        chain.key_down(key)
    chain.send_keys(keys[-1])
    for key in keys[:-1]:
        chain.key_up(key)
    chain.perform()


def solved(lab) -> tuple[int, list[str]]:
    """What `labkit progress` tells: the number that it gives, and the exercises that it ticks off."""
    command = [sys.executable, "-m", "labkit.cli", "progress"]
    told = subprocess.run(command, env=lab.environment, capture_output=True, encoding="utf-8", timeout=60)
    assert told.returncode == 0, f"labkit progress: {told.stderr}"
    number = re.search(r"^(\d+) of \d+ solved$", told.stdout, re.MULTILINE)
    assert number, f"labkit progress gives no number: {told.stdout}"
    return int(number[1]), re.findall(rf"^✓ {CHAPTER} +(\S+)", told.stdout, re.MULTILINE)


# --- what the learner sees ------------------------------------------------------------------------------------


def code_cells(browser) -> list[dict]:
    return browser.execute_script(CODE_CELLS)


def has_run(cell: dict) -> bool:
    return re.fullmatch(r"\[\d+\]:", cell["prompt"]) is not None


def is_idle(browser) -> bool:
    running = any("*" in cell["prompt"] for cell in code_cells(browser))
    return not running and browser.execute_script(KERNEL_STATUS) == "idle"


def output_under(browser, line: str) -> str:
    """The text under the cell that has this line."""
    cells = [cell for cell in code_cells(browser) if line in cell["source"].splitlines()]
    assert len(cells) == 1, f"{len(cells)} cells have the line {line!r}, expected one"
    return "\n".join(output["text"] for output in cells[0]["outputs"])


def assert_nothing_red(browser) -> None:
    """No error, no warning, nothing on stderr: JupyterLab shows them alike."""
    red = [o["text"] for cell in code_cells(browser) for o in cell["outputs"] if o["type"] in RED]
    if red:
        browser.execute_script(IS_ON_SCREEN, browser.execute_script(OUTPUT_WITH, [red[0]])[0])  # for the screenshot
        pytest.fail("cells show red text:\n" + "\n".join(red))


def assert_on_screen(browser, what: str, script: str, *arguments) -> None:
    found = wait_until(f"{what} to be in the page", lambda: browser.execute_script(script, *arguments))
    wait_until(f"{what} to be on screen", lambda: browser.execute_script(IS_ON_SCREEN, found[0]))


# --- the machinery --------------------------------------------------------------------------------------------


def soon(condition, seconds: float = 10) -> bool:
    """Whether something becomes true within so many seconds."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.2)
    return bool(found)


def wait_until(what: str, condition, seconds: float = 30):
    """Ask again and again; returns the first thing that is true. Fails after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds} s for {what}, in vain")
        time.sleep(0.2)
    return found


def private_environment(folder: Path) -> dict[str, str]:
    """Today's environment, but Jupyter's, IPython's and labkit's files lie in `folder`."""
    settings = folder / "settings"
    for name, values in SETTINGS.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("JUPYTER")},
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
        "LABKIT_PROGRESS": str(folder / "progress.json"),
    }


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(server: subprocess.Popen, port: int) -> bool:
    if server.poll() is not None:
        pytest.fail(f"labkit lab ended by itself, with code {server.returncode}; its output is below")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", "/api")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def end(server: subprocess.Popen) -> None:
    """Stop the server and its process group; a kernel whose server is gone ends by itself."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=20)
