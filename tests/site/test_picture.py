"""The page of `gpupool plot` draws its picture in Chromium, within what the page allows itself.

`make docs` runs this; without Chromium it says so and tries nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser
from waiting import wait_until

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
LOG = Path(__file__).parents[1] / "data/two_streams-1.csv.gz"
TEXTS = "[...document.querySelectorAll('#picture text')].map(text => text.textContent)"

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is missing, which shows the site")


def test_a_page_draws_its_picture(tmp_path):
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "gpupool", "plot", str(LOG), "-o", str(page)]
    subprocess.run(command, check=True, env={**os.environ, "GPUPOOL_RUNTIME": "host"}, stdout=subprocess.DEVNULL)
    browser = Browser(PROGRAM, tmp_path, 1200)
    try:
        browser.open(page)
        wait_until(lambda: "Memory over time" in browser.evaluate(TEXTS), "the picture is drawn")
        shown = browser.evaluate(TEXTS)
    finally:
        browser.close()
    assert "two_streams-1.csv.gz" in shown
    assert "Address map at the peak, 10.54 s" in shown
    assert "free then, used at another time" in shown
