"""The cost of short-lived threads that each ask for a handle once and end, on gpupool and on its peers.

Waves of 16 threads run for every peer in turn, so that other work on the machine meets all alike. One peer's threads do
nothing. A wave lasts until the kernel knows none of its threads any more: a thread gives its handles back a little
after Python has joined it.
"""

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable

import gpupool

THREADS = 16
WAVES = 250
# The first waves create the handles.
WARM_UP = 5
# Seconds for each peer, where a thread takes long.
BUDGET = 5.0

# The pools whose handles a peer has in Python: PyTorch only cuBLAS's, CuPy all, but a new one for each thread.
LIBRARIES = ("cublas", "cusparse", "cusolver")


class Peer:
    """A way to get a handle, and the nanoseconds that threads took which asked for one."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self.ask = ask
        self.seconds = 0.0
        # The nanoseconds that each wave took for each thread: started one after another, and all released at once.
        self.lives: list[float] = []
        self.rushes: list[float] = []
        # The nanoseconds that asking took in each thread that was just started, with the waits for Python's lock.
        self.askings: list[int] = []

    def waves(self) -> None:
        """Make a wave of each kind."""
        start = time.perf_counter()
        self.lives.append(self._wave(None))
        gate = os.eventfd(0, os.EFD_SEMAPHORE)
        try:
            self.rushes.append(self._wave(gate))
        finally:
            os.close(gate)
        self.seconds += time.perf_counter() - start

    def _wave(self, gate: int | None) -> float:
        arrived = threading.Semaphore(0)
        failures: list[BaseException] = []

        def live() -> None:
            if gate is not None:
                arrived.release()
                os.eventfd_read(gate)
            start = time.perf_counter_ns()
            try:
                self.ask()
            except BaseException as error:
                failures.append(error)
            if gate is None:
                self.askings.append(time.perf_counter_ns() - start)

        threads = [threading.Thread(target=live) for _ in range(THREADS)]
        start = time.perf_counter_ns()
        for thread in threads:
            thread.start()
        if gate is not None:
            for _ in threads:
                arrived.acquire()
            start = time.perf_counter_ns()
            os.eventfd_write(gate, THREADS)
        for thread in threads:
            thread.join()
        for thread in threads:
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):
                os.sched_yield()
        taken = time.perf_counter_ns() - start
        if failures:
            raise failures[0]
        return taken / THREADS

    def figures(self) -> dict[str, float]:
        """Return the medians, and how many waves there were of each kind."""
        return {
            "life": statistics.median(self.lives[WARM_UP:]),
            "rush": statistics.median(self.rushes[WARM_UP:]),
            "asking": statistics.median(self.askings[WARM_UP * THREADS :]),
            "waves": len(self.lives) - WARM_UP,
        }


def peers() -> dict[str, Peer]:
    """Return every way to get a handle that is available here."""
    found = {"nothing": Peer(lambda: None)}
    for pool in (*(getattr(gpupool, name) for name in LIBRARIES), gpupool.simulated):
        if pool.available:
            found[f"gpupool {pool.name}"] = Peer(pool.handle)
    with contextlib.suppress(ImportError):
        import torch

        torch.cuda.init()
        found["torch cublas"] = Peer(torch.cuda.current_blas_handle)
    with contextlib.suppress(ImportError):
        import cupy

        for name in LIBRARIES:
            found[f"cupy {name}"] = Peer(getattr(cupy.cuda.device, f"get_{name}_handle"))
    return found


def python_churn() -> dict[str, dict[str, float]]:
    """Return the nanoseconds a thread took, by the name of the peer."""
    every = peers()
    for turn in range(WARM_UP + WAVES):
        for peer in every.values():
            if turn <= WARM_UP or peer.seconds < BUDGET:
                peer.waves()
    return {name: peer.figures() for name, peer in every.items()}
