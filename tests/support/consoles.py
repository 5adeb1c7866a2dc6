"""`braid console` as a process, and a real browser that looks at it.

with console(config) as page_url, Browser() as browser:
    page = browser.open(page_url, width=390)
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect, sync_playwright

from tests.support.forked import braid_process

WITHIN_S: Final = 30
WIDTHS: Final = (1280, 390)

expect.set_options(timeout=WITHIN_S * 1000)


@contextmanager
def console(config: Path | None, *words: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Its address, without the slash. config: None if the words say what it shows."""
    which = [] if config is None else ["--config", str(config)]
    started = ["console", *which, "--listen", "0", "--json", *words]
    process = braid_process(started, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"].rstrip("/")
    finally:
        process.terminate()
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0


class Browser:
    """Debian's Chromium, without a window. complaints: errors that pages logged or raised so far."""

    def __init__(self) -> None:
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        found = shutil.which("chromium")
        if found is None:
            pytest.fail("chromium is not installed. Run: make setup")
        self._driver = sync_playwright().start()
        self._chromium = self._driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._chromium.close()
        self._driver.stop()

    def open(self, url: str, *, width: int = 1280, **options: Any) -> Page:
        """A new page in a context of its own."""
        context = self._chromium.new_context(viewport={"width": width, "height": 800}, **options)
        context.set_default_timeout(WITHIN_S * 1000)
        page = context.new_page()
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(url)
        return page

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)
