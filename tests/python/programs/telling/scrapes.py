"""What a scrape by Prometheus gets, and that it asks for no more than is there."""

import sys

import gpupool


def starts_no_driver():
    lines = [line for line in gpupool.prometheus.text().split("\n") if line[:1] != "#"]
    info = f'gpupool_info{{version="{gpupool.__version__}",runtime=""}} 1'
    assert lines == ["gpupool_up 1", info, ""], f"the scrape has {lines}"


def needs_no_prometheus_client():
    gpupool.simulated.handle()
    text = gpupool.prometheus.text()
    assert 'gpupool_handles{device="0",library="simulated",state="held"} 1' in text, f"the scrape has {text}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
