"""The page of `gpupool plot` draws its picture in Chromium, within what the page allows itself.

`make docs` runs this; without Chromium it says so and tries nothing.
"""

import os
import subprocess
import sys
from pathlib import Path

from waiting import wait_until

LOG = Path(__file__).parents[1] / "data/two_streams-1.csv.gz"
TEXTS = "[...document.querySelectorAll('#picture text')].map(text => text.textContent)"


def test_a_page_draws_its_picture(tmp_path, browse):
    browser = browse(1200)
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "gpupool", "plot", str(LOG), "-o", str(page)]
    subprocess.run(command, check=True, env={**os.environ, "GPUPOOL_RUNTIME": "host"}, stdout=subprocess.DEVNULL)
    browser.open(page)
    wait_until(lambda: "Memory over time" in browser.evaluate(TEXTS), "the picture is drawn")
    shown = browser.evaluate(TEXTS)
    assert "two_streams-1.csv.gz" in shown
    assert "Address map at the peak, 10.54 s" in shown
    assert "free then, used at another time" in shown
