"""A Jupyter server with formgrader, and formgrader as an instructor uses it."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

from tests.tiny_course import LESSON


@contextmanager
def jupyter(course):
    """A Jupyter server with formgrader for a course; yields its address and token."""
    own = course / "jupyter"
    places = {name: str(own / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "JUPYTER"))}
    token = secrets.token_hex(16)
    options = ["--no-browser", "--port=0", "--ip=127.0.0.1", f"--IdentityProvider.token={token}", "--allow-root"]
    command = [sys.executable, "-m", "jupyter_server", *options]
    log = own / "log"
    (own / "JUPYTER_CONFIG_DIR").mkdir(parents=True)
    others = dict.fromkeys(("jupyterlab", "jupyter_lsp", "jupyter_server_terminals", "notebook", "jupytext"), False)
    settings = {"ServerApp": {"jpserver_extensions": others}}  # it starts the sooner without these
    (own / "JUPYTER_CONFIG_DIR" / "jupyter_server_config.json").write_text(json.dumps(settings))
    with log.open("w") as output:
        server = subprocess.Popen(
            command, cwd=course, env={**env, **places, "HOME": str(own)}, stdout=output, stderr=output
        )
    try:
        yield address_of(server, log), token
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def address_of(server, log):
    """Wait until the server listens, and return its address; it chooses the port itself."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", log.read_text())
        if found and listens(int(found[1])):
            return found[0]
        try:
            server.wait(0.1)  # also notices its end
            break
        except subprocess.TimeoutExpired:
            pass
    raise AssertionError(log.read_text()[-3000:])


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Formgrader:
    """Formgrader as an instructor uses it, logged in."""

    def __init__(self, seen, address, token):
        self.seen, self.page, self.address = seen, seen.page, address
        self.page.goto(f"{address}login?next=%2Fformgrader%2Fmanage_submissions%2F{LESSON}")
        self.page.locator("#password_input").fill(token)
        self.page.locator("#login_submit").click()
        self.page.wait_for_url("**/manage_submissions/**")

    def press(self, button, student):
        """Press a submission's button; returns the text of the dialog that appears."""
        self.page.goto(f"{self.address}formgrader/manage_submissions/{LESSON}")
        row = self.page.locator("tr", has=self.page.locator("td", has_text=re.compile(f"^{student}$")))
        row.locator(f".glyphicon-{button}").click()
        window = self.page.locator(".modal-content")
        window.locator(".modal-title").wait_for()
        return f"{window.locator('.modal-title').inner_text()}: {window.inner_text()}"

    def open_submission(self, student):
        self.page.goto(f"{self.address}formgrader/gradebook/{LESSON}/{LESSON}")
        self.page.locator("tr", has_text=student).locator("a.name-hidden").click()
        self.page.wait_for_function("window.formgrader?.grades?.loaded && window.formgrader.comments.loaded")

    def write(self, field, text, what):
        """Fill in a field and leave it, which saves it."""
        with self.page.expect_response(lambda answer: f"/api/{what}/" in answer.url and answer.ok):
            self.page.locator(field).fill(text)
            self.page.locator(field).blur()
