"""The demo: threads come and go, and handles stay."""

import argparse
import threading
import time
from typing import Any

import gpupool
from gpupool import _native
from gpupool._cli.arguments import whole
from gpupool._cli.output import say
from gpupool._traces.bounds import MAX_THREADS
from gpupool._traces.progress import Progress

# The time and memory that a handle of the simulated library costs.
SIMULATED_CREATE_SECONDS = 65e-6
SIMULATED_HANDLE_BYTES = 64 << 20
CHECKOUTS = 2000


def add(commands: Any) -> None:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="threads come and go and share handles; a table shows what that saves"
    )
    parser.add_argument(
        "--threads",
        type=whole(1, MAX_THREADS),
        default=16,
        help=f"threads alive at a time, at most {MAX_THREADS} (default: 16)",
    )
    parser.add_argument(
        "--waves", type=whole(1, 10**9), default=8, help="how often all threads end and new ones start (default: 8)"
    )


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Let `waves` times `threads` threads check handles out of every available pool, and print what that cost."""
    threads, waves = options.threads, options.waves
    if gpupool.runtime() == "host":
        say("No GPU: the host runtime simulates one, and a library whose handles take 65 us and 64 MiB each.")
        _native.simulate_costly_handles(SIMULATED_CREATE_SECONDS, SIMULATED_HANDLE_BYTES)
        pools = [gpupool.simulated]
    else:
        say(f"{gpupool.device_count()} GPU(s), runtime {gpupool.runtime()}.")
        every = [pool for pool in vars(_native).values() if isinstance(pool, gpupool.HandlePool)]
        pools = [pool for pool in every if pool.available]
    served = threads * waves
    say(f"{served} threads, {threads} at a time, {CHECKOUTS} checkouts each from every pool.\n")
    header = f"{'pool':<11} {'version':<10} {'threads':>8} {'created':>8} {'hit':>8}"
    say(f"{header}   one handle for each thread would have cost")
    for pool in pools:
        with Progress(f"threads take handles of {pool.name}") as progress:
            hit = _serve(pool, threads, waves, progress)
        stats = pool.stats()
        seconds = stats.create_seconds / stats.created * served
        nbytes = stats.device_bytes / (stats.idle + stats.held) * served
        version = ".".join(map(str, pool.version or ()))
        say(
            f"{pool.name:<11} {version:<10} {served:>8} {stats.created:>8} {hit * 1e9:>5.0f} ns"
            f"   {seconds * 1e3:>9.1f} ms {nbytes / 2**20:>9.0f} MiB"
        )
    return 0


def _serve(pool: gpupool.HandlePool, threads: int, waves: int, progress: Progress) -> float:
    """Run the threads, wave after wave, and return the median time of a checkout in seconds."""
    times: list[float] = []
    errors: list[Exception] = []

    def work(barrier: threading.Barrier) -> None:
        try:
            stream = gpupool.Stream()
            first = pool.handle(stream)
            # Every thread of the wave holds a handle at once.
            barrier.wait()
            start = time.perf_counter()
            for _ in range(CHECKOUTS):
                handle = pool.handle(stream)
            times.append((time.perf_counter() - start) / CHECKOUTS)
            assert handle == first
        except Exception as error:
            barrier.abort()
            errors.append(error)

    for wave in range(waves):
        progress(wave / waves)
        barrier = threading.Barrier(threads)
        workers = [threading.Thread(target=work, args=(barrier,)) for _ in range(threads)]
        try:
            for worker in workers:
                worker.start()
        except RuntimeError as error:
            # Those that run wait for it.
            barrier.abort()
            raise gpupool.Unavailable(f"{threads} threads cannot be started here, take fewer: {error}") from error
        for worker in workers:
            worker.join()
        if errors:
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return sorted(times)[len(times) // 2]
