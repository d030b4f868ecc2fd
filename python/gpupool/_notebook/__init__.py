"""Objects as HTML, which notebooks show in place of their ``repr`` and with the same facts.

The HTML has no script, loads nothing, and takes its colours of text from the page, so that it is readable on a light
and on a dark ground; each value is escaped. Styles stand in the elements, since a notebook may have many outputs on a
page, and programs that show notebooks of strangers remove style sheets. ``import gpupool`` does not import this
package.

https://ipython.readthedocs.io/en/stable/config/integrating.html#custom-methods
"""
