"""A forked child's scrape says that gpupool cannot tell there, and has the program's own metrics."""

import os

import gpupool
import prometheus_client
from forking import exit_code_of


def main():
    prometheus_client.Counter("mine", "The program's own.").inc()
    prometheus_client.REGISTRY.register(gpupool.prometheus.Collector())
    gpupool.simulated.handle()
    child = os.fork()
    if child == 0:
        lines = prometheus_client.generate_latest().decode().splitlines()
        assert "gpupool_up 0.0" in lines, f"the child is not told to be unable: {lines}"
        assert "mine_total 1.0" in lines, f"the program's own metric is missing: {lines}"
        assert "gpupool_handles" not in lines, f"the child tells of handles: {lines}"
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"


if __name__ == "__main__":
    main()
