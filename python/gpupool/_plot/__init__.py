"""Pictures of trace files: `draw` and `comparison` make a `Picture` of numbers and names, `output` writes its files.

`spec` describes a picture to Vega-Lite, and vl-convert renders it as PNG, as SVG, which notebooks show, and as a page
that zooms. `picture` says what is drawn, in which colours and rows.
"""
