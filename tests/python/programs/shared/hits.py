"""Requests that nobody is told of."""

import gpupool


def hits() -> None:
    """Make requests of every kind that a thread serves itself; the first time they are not."""
    for _ in range(100):
        gpupool.simulated.handle()
        gpupool.simulated.lease().release()
        gpupool.empty(1000)
