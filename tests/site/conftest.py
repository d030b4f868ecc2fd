"""Chromium, which shows pages; without it the tests that need it skip."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[Callable[..., Browser]]:
    """Return what opens a browser of a width that prefers a scheme; it is closed after the test."""
    if PROGRAM is None:
        pytest.skip("Chromium is missing, which shows the site")
    opened: list[Browser] = []

    def browse(width: int, scheme: str = "light") -> Browser:
        opened.append(Browser(PROGRAM, tmp_path, width))
        opened[-1].prefer(scheme)
        return opened[-1]

    yield browse
    for browser in opened:
        browser.close()
