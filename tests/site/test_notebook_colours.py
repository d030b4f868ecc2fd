"""What notebooks show is readable on the guide's light and dark pages, in Chromium: text, and the words of drawings.

`make docs` runs this over what it has built; without Chromium, which shows the pages, it says so and tries nothing.
"""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "site/pictures/index.html"
# The contrast of each word with the page's ground, by the formula of WCAG 2, and which scheme the page has.
CONTRASTS = r"""(() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const contrasts = [];
  for (const shown of document.querySelectorAll(".shown")) {
    const texts = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const place = texts.currentNode.parentElement;
      if (!texts.currentNode.data.trim() || place.tagName === "title") continue;
      const style = getComputedStyle(place);
      const colour = light(place.tagName === "text" ? style.fill : style.color);
      contrasts.push((Math.max(colour, ground) + 0.05) / (Math.min(colour, ground) + 0.05));
    }
  }
  return { contrasts, scheme: document.body.dataset.mdColorScheme };
})()"""

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the site is not built: make docs")


@pytest.mark.parametrize(("scheme", "name"), [("light", "default"), ("dark", "slate")])
def test_words_stand_out(browse, scheme, name):
    browser = browse(1200, scheme)
    browser.open(PAGE)
    found = browser.evaluate(CONTRASTS)
    assert found["scheme"] == name
    assert len(found["contrasts"]) > 100
    # What WCAG asks of text, at its level AA.
    assert min(found["contrasts"]) >= 4.5
