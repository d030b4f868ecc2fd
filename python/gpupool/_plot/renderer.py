"""The process that renders: vl-convert has a JavaScript engine, which ends its process where it finds no room for it.

It is run as a file, and imports nothing of gpupool: ``python renderer.py .png`` reads a specification of Vega-Lite from
standard input and writes the image to standard output; for ``.html`` it writes the library that a page needs.
"""

import sys
import zlib

import vl_convert

# The dots of a PNG for each pixel of its specification.
_SCALE = 1.5


def main(form: str) -> None:
    """Write what is asked for."""
    spec = sys.stdin.buffer.read().decode()
    if form == ".png":
        made = _packed(vl_convert.vegalite_to_png(spec, scale=_SCALE, config={"background": "white"}))
    elif form == ".svg":
        made = vl_convert.vegalite_to_svg(spec).encode()
    else:
        made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode()
    sys.stdout.buffer.write(made)


def _packed(png: bytes) -> bytes:
    """Return a PNG whose pixels are packed well: vl-convert packs them quickly, to three times the size and more.

    https://www.w3.org/TR/png-3/#5Chunk-layout
    """
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        chunks[kind] = chunks.get(kind, b"") + content
        at += length + 12
    chunks[b"IDAT"] = zlib.compress(zlib.decompress(chunks[b"IDAT"]), 9)
    made = png[:8]
    for kind, content in chunks.items():
        made += len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
    return made


if __name__ == "__main__":
    main(sys.argv[1])
