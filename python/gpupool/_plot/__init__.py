"""Pictures of trace files: `draw` and `comparison` make a `Picture` of numbers and names, which has drawers.

`page` makes a web page of it and needs nothing; zooming lays the picture out anew, so JavaScript draws it. `figure`
makes a PNG file by matplotlib. Neither can do the other's part: shapes that Python has laid out could not be zoomed,
and without a package Python has no font to write with. `_notebook/drawing.py` makes a still drawing of it for
notebooks, where scripts may not run. What all need, colours and rows, stands in `picture`.
"""
