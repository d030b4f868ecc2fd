"""What a scrape by Prometheus gets, and that it asks for no more than is there."""

import sys

import gpupool


def starts_no_driver():
    lines = [line for line in gpupool.prometheus.text().split("\n") if line[:1] != "#"]
    info = f'gpupool_info{{runtime="",version="{gpupool.__version__}"}} 1.0'
    assert lines == ["gpupool_up 1.0", info, ""], f"the scrape has {lines}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
