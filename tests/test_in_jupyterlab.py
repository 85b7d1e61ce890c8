"""JupyterLab, as a student uses it: predictions by a click, explorers, and what is saved of both.

One start of JupyterLab and of a browser for all, since these take most of the time.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

from tests.browser import open_browser, visit
from tests.figures.test_explorers import SOURCE
from tests.formgrader import address_of

pytestmark = pytest.mark.long
ENDS = ["an error", "a deadlock"]
PREDICT = f"""from utils.kit.predictions import predict, reveal
predict("how it ends", ..., choices={ENDS})
predict("bytes", ...)
predict("ranks", ...)"""
REVEAL = """reveal("how it ends", "a deadlock")
reveal("bytes", 96, unit="B")
reveal("ranks", 4)"""

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def jupyterlab(folder):
    """JupyterLab on a folder, with the settings of nobody; yields its address and token."""
    own, log, token = folder / "own", folder / "log", secrets.token_hex(16)
    places = {name: str(own) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "HOME")}
    env = {**os.environ, **places, "PYTHONPATH": str(ROOT)}
    options = ["--no-browser", "--port=0", "--ip=127.0.0.1", f"--IdentityProvider.token={token}", "--allow-root"]
    with log.open("w") as output:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
    try:
        yield address_of(server, log), token
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def write_notebook(path, *cells):
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)], metadata=about), path)


@contextmanager
def open_notebook(folder, *cells):
    """A page of JupyterLab on a notebook of these cells, in a folder. Its kernel is idle, its first cell active."""
    write_notebook(folder / "one.ipynb", *cells)
    with (
        jupyterlab(folder) as (address, token),
        open_browser() as browser,
        visit(browser, address, viewport={"width": 1366, "height": 768}) as seen,
    ):
        seen.page.goto(f"{address}lab/tree/one.ipynb?token={token}")
        seen.page.locator(".jp-CodeCell .cm-content").first.click()
        # The notebook's own indicator is idle before there is any kernel.
        seen.page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()
        yield seen.page


def test_clicks_sliders_and_what_is_saved(tmp_path):
    with open_notebook(tmp_path, PREDICT, REVEAL, SOURCE + "one") as page:
        click_predictions(page)
        with page.expect_response(lambda one: one.request.method == "PUT" and "one.ipynb" in one.url):
            page.keyboard.press("Control+s")
        saved = (tmp_path / "one.ipynb").read_text()
        assert "how it ends? You say a deadlock." in saved and "model_id" not in saved
        move_a_slider(page)


def click_predictions(page):
    """`reveal` compares what was clicked."""
    page.keyboard.press("Shift+Enter")
    page.get_by_role("button", name="a deadlock").click()
    page.get_by_text("how it ends? You say a deadlock.").wait_for()
    page.locator(".jp-OutputArea input").first.fill("64")
    page.keyboard.press("Enter")
    page.get_by_text("bytes? You say 64.").wait_for()
    page.get_by_role("button", name="I don't know").click()
    page.get_by_text("ranks? You say that you don't know.").wait_for()
    assert page.locator(".jp-OutputArea button").count() == 0
    page.locator(".jp-CodeCell .cm-content").nth(1).click()
    page.keyboard.press("Shift+Enter")
    page.get_by_text("You said a deadlock: right.").wait_for()
    page.get_by_text("You said 64 B: 33 % too low.").wait_for()
    page.get_by_text("ranks: 4.").wait_for()
    assert page.locator(".jp-OutputArea img.manyranks").count() == 1


def move_a_slider(page):
    """It moves the number and the picture."""
    cell = page.locator(".jp-CodeCell").nth(2)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    cell.locator("td", has_text="30 B").first.wait_for()
    before = cell.locator("img").get_attribute("src")
    cell.locator("[role=slider]").first.focus()
    page.keyboard.press("ArrowRight")
    cell.locator("td", has_text="300 B").first.wait_for()
    assert cell.locator("img").get_attribute("src") != before
