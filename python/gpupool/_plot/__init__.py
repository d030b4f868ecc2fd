"""Pictures of trace files: `draw` and `comparison` make a `Picture` of numbers and names, `output` the files of it.

`spec` tells Vega-Lite of a picture, and vl-convert renders that: as PNG, as SVG, which notebooks show, and as a page
that zooms. What is drawn, its colours and rows, stands in `picture`.
"""
