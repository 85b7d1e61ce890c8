"""Headless Chromium opens our pages and records what they try to do behind the reader's back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

PATIENCE = 120_000  # milliseconds until a step counts as failed, enough for a busy machine
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Visit:
    """An open page and what it has tried: requests to other places, dialogs, console messages.

    page         playwright's
    own          what it may load: addresses that begin so
    """

    def __init__(self, page: Page, own: str):
        self.page, self.own = page, own
        self.left_the_machine: list[str] = []
        self.dialogs: list[str] = []
        self.console: list[str] = []
        page.context.route("**/*", self.route)
        page.on("dialog", self.dialog)
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))

    def route(self, route: Route) -> None:
        if route.request.url.startswith(self.own):
            route.continue_()
        else:
            self.left_the_machine.append(route.request.url)
            route.abort()

    def dialog(self, dialog: object) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def what_ran(self) -> list[str]:
        """What a submission's active content did: it sets `window.hacked` wherever it runs."""
        flags = [frame.evaluate("String(window.hacked)") for frame in self.page.frames]
        return [*self.dialogs, *self.left_the_machine, *(flag for flag in flags if flag != "undefined")]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Chromium. Without it, the tests are skipped, except on CI, where they fail."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(playwright.chromium.executable_path))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Browser, own: str, **options: object) -> Iterator[Visit]:
    """A browser window without any history."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    try:
        yield Visit(context.new_page(), own)
    finally:
        context.close()


def find_chromium(of_playwright: str) -> str:
    found = [path for path in map(shutil.which, NAMES) if path]
    found += [of_playwright] if Path(of_playwright).exists() else []
    if not found:
        reason = "there is no Chromium: `make system` installs it"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return found[0]
