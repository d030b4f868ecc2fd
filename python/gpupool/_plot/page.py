"""A picture as a web page: one file that needs no network, in which Vega zooms and tells what is under the cursor."""

import html as markup
import os

import gpupool

# The line near the start of a page by which it is known as one of gpupool's.
GENERATOR = '<meta name="generator" content="gpupool">'
_STYLE = """
body { margin: 20px 28px; background: Canvas; color: CanvasText; font: 13px system-ui, sans-serif; }
#vg-tooltip-element td { white-space: pre-wrap; max-width: 50em; overflow-wrap: anywhere; }
"""
# Expressions are interpreted (`ast`), since the page allows no code that is made of text.
_SCRIPT = """
for (const panel of spec.vconcat) panel.width = Math.max(300, Math.min(1400, innerWidth - 160));
const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
vegaEmbed("#picture", spec, { ast: true, actions: false, tooltip: { theme } });
"""


def html(title: str, spec: str, library: str) -> str:
    """Return the page with a specification, and the library that draws it."""
    # Only a less-than sign could end the script element.
    data = spec.replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{markup.escape(title)} - gpupool</title>
<style>{_STYLE}</style>
</head>
<body>
<p>Scroll over a picture to zoom, drag to move, double-click to see everything again.</p>
<div id="picture"></div>
<noscript>The pictures are drawn by JavaScript, which is switched off.</noscript>
<!-- Vega, Vega-Lite and Vega-Embed, under the BSD 3-Clause License: https://github.com/vega -->
<script>{library}</script>
<script>
const spec = {data};
{_SCRIPT}</script>
</body>
</html>
"""


def name_for(path: str) -> str:
    """Return the name of the page for a file, in the current folder.

    Raises:
        gpupool.InvalidValue: A file of that name is there which gpupool did not write.
        gpupool.Error: A file of that name is there which cannot be read.
    """
    stem = os.path.basename(path)
    stem = stem[:-3] if stem.endswith(".gz") else stem
    name = os.path.splitext(stem)[0] + ".html"
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            if GENERATOR not in file.read(1000):
                raise gpupool.InvalidValue(f"{name} is there already, and not of gpupool; name another with -o")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise gpupool.Error(f"{name}: cannot be written: {error.strerror or error}") from error
    return name
