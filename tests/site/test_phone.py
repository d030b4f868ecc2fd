"""The built site on a phone: no page is wider than the screen, and no name in a table breaks in its middle.

`make docs` runs this over what it has built; without Chromium, which shows the pages, it says so and tries nothing.
"""

from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "site"
# Pixels of the layout: among the narrowest phones in use.
WIDTH = 360
# How many pixels are beside the screen, and what is code in a cell, has no space, and stands on more than one line.
FAULTS = r"""(() => {
  const broken = [];
  for (const code of document.querySelectorAll("td code, th code")) {
    const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/\S+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].filter(part => part.width).map(part => Math.round(part.top)));
        if (lines.size > 1) broken.push(word[0]);
      }
    }
  }
  return { beside: Math.max(0, document.scrollingElement.scrollWidth - innerWidth), broken };
})()"""

pytestmark = pytest.mark.skipif(not SITE.exists(), reason="the site is not built: make docs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(browse, scheme):
    browser, faults = browse(WIDTH, scheme), {}
    pages = sorted(SITE.glob("**/index.html"))
    for page in pages:
        browser.open(page)
        found = browser.evaluate(FAULTS)
        if found["beside"] or found["broken"]:
            faults[str(page.parent.relative_to(SITE))] = found
    assert browser.evaluate("innerWidth") == WIDTH
    assert len(pages) >= 25
    assert browser.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
    assert faults == {}
