"""Objects as HTML, which notebooks show in place of their ``repr`` and with the same facts.

The HTML has no script, loads nothing, and takes its text colours from the page, so that it is readable on a light and
on a dark background; each value is escaped. Styles are in the elements, since a page of a notebook may have many
outputs, and programs that show strangers' notebooks remove style sheets. ``import gpupool`` does not import this
package.

https://ipython.readthedocs.io/en/stable/config/integrating.html#custom-methods
"""
