"""JupyterLab, as a student uses it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nbformat

from tests.browser import open_browser, visit
from tests.formgrader import address_of

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
