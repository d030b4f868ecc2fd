"""What a notebook is given of a pool whose library is loaded."""

import sys

import gpupool


def shows_its_library(name):
    pool = getattr(gpupool, name)
    assert "not loaded" in pool._repr_html_()
    assert not pool.loaded, "to be shown loads nothing"
    assert pool.handle()
    shown = pool._repr_html_()
    assert "not loaded" not in shown
    for told in (".".join(map(str, pool.version)), pool.path, pool.origin):
        assert told in shown


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
