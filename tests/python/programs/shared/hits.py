"""Requests that nobody is told of."""

import gpupool


def hits() -> None:
    """Make requests of every kind that a thread serves itself; the first time they are not."""
    for _ in range(100):
        gpupool.host.handle()
        gpupool.host.lease().release()
        gpupool.empty(1000)
