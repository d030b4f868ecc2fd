"""The cost of getting this thread's handle, on gpupool and on its peers.

    python benches/peers.py [--bench PROGRAM]

All are measured in one run on one machine. PROGRAM is the Rust bench (`cargo bench --no-run` says where it is). A peer
that is not installed is left out. Every figure is in nanoseconds a call, the median of several rounds.
"""

import argparse
import contextlib
import glob
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path

import gpupool

CALLS = 100_000
ROUNDS = 9


def nanoseconds(statement: str, **names: object) -> float:
    """Return the median time of a statement, with what looping over it costs."""
    rounds = timeit.repeat(statement, globals=names, number=CALLS, repeat=ROUNDS)
    return statistics.median(rounds) / CALLS * 1e9


def python_figures() -> dict[str, float]:
    """Return what getting a handle takes from Python."""
    figures = {"empty lambda": nanoseconds("f()", f=lambda: None)}
    stream = gpupool.Stream()
    for pool in available_pools():
        names = {"handle": pool.handle, "stream": stream, "address": stream.ptr}
        figures[f"gpupool {pool.name} handle()"] = nanoseconds("handle()", **names)
        figures[f"gpupool {pool.name} handle(int)"] = nanoseconds("handle(address)", **names)
        figures[f"gpupool {pool.name} handle(gpupool.Stream)"] = nanoseconds("handle(stream)", **names)
    with contextlib.suppress(ImportError):
        import cupy

        cusparse, cublas = cupy.cuda.device.get_cusparse_handle, cupy.cuda.device.get_cublas_handle
        figures["cupy get_cusparse_handle"] = nanoseconds("get()", get=cusparse)
        figures["cupy get_cublas_handle"] = nanoseconds("get()", get=cublas)
        names = {"handle": gpupool.cusparse.handle, "stream": cupy.cuda.Stream(non_blocking=True)}
        figures["gpupool cusparse handle(cupy stream)"] = nanoseconds("handle(stream)", **names)
    with contextlib.suppress(ImportError):
        import torch

        torch.cuda.init()
        figures["torch current_blas_handle"] = nanoseconds("get()", get=torch.cuda.current_blas_handle)
        names = {"handle": gpupool.cublas.handle, "stream": torch.cuda.Stream()}
        figures["gpupool cublas handle(torch stream)"] = nanoseconds("handle(stream)", **names)
    return figures


def available_pools() -> list[gpupool.HandlePool]:
    """Return the pools of this runtime's libraries."""
    every = [
        gpupool.cudnn,
        gpupool.cusparse,
        gpupool.cudss,
        gpupool.cublas,
        gpupool.cublaslt,
        gpupool.cusolver,
        gpupool.simulated,
    ]
    return [pool for pool in every if pool.available]


def rust_figures(program: str) -> dict[str, float]:
    """Return the figures of the Rust benches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CRITERION_HOME": folder}
        # Not what many threads do at once, which run.sh measures beside.
        command = [program, "--bench", "--noplot", "--measurement-time", "1", "--warm-up-time", "0.3", r"^\w+/"]
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
        figures = {}
        for benchmark in sorted(glob.glob(f"{folder}/**/new/benchmark.json", recursive=True)):
            name = json.loads(Path(benchmark).read_text())["full_id"]
            estimates = json.loads((Path(benchmark).parent / "estimates.json").read_text())
            figures[name] = estimates["median"]["point_estimate"]
        return figures


def torch_getters() -> object:
    """Return the module of PyTorch's C++ getters: benches/torch_getters.cpp, built here."""
    import nvidia
    from torch.utils import cpp_extension

    folders = [include for root in nvidia.__path__ for include in glob.glob(f"{root}/*/include")]
    return cpp_extension.load(
        "torch_getters",
        [str(Path(__file__).with_name("torch_getters.cpp"))],
        extra_include_paths=folders,
        extra_cflags=["-O2"],
        with_cuda=True,
    )


def torch_figures(getters: object) -> dict[str, float]:
    """Return what getting a handle takes from C++."""
    names = ("cublas", "cusparse", "cudnn")
    return {name: statistics.median(getattr(getters, name)(10 * CALLS) for _ in range(ROUNDS)) for name in names}


def import_milliseconds() -> float:
    """Return the milliseconds that `import gpupool` takes, in new processes."""
    code = "import time; start = time.perf_counter(); import gpupool; print(time.perf_counter() - start)"
    run = [sys.executable, "-c", code]
    seconds = [float(subprocess.run(run, check=True, capture_output=True, text=True).stdout) for _ in range(ROUNDS)]
    return statistics.median(seconds) * 1e3


def machine() -> dict[str, object]:
    """Return a description of the machine that the figures are measured on."""
    versions = {"python": platform.python_version(), "gpupool": gpupool.__version__}
    for package in ("torch", "cupy-cuda12x", "cupy-cuda13x", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = []
    with contextlib.suppress(OSError):
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    libraries = {pool.name: pool.version for pool in available_pools()}
    return {"gpus": gpus, "cores": os.cpu_count(), "versions": versions, "libraries": libraries}


def main() -> None:
    """Measure everything that can be measured here and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="the Rust bench program")
    options = parser.parse_args()
    results: dict[str, object] = {
        "command": "python benches/peers.py" + (f" --bench {options.bench}" if options.bench else ""),
        "machine": machine(),
        "import_ms": import_milliseconds(),
        "python_ns": python_figures(),
    }
    if options.bench:
        results["rust_ns"] = rust_figures(options.bench)
    try:
        results["torch_cpp_ns"] = torch_figures(torch_getters())
    except ImportError as error:
        print(f"PyTorch's C++ getters are left out: {error}", file=sys.stderr)
    results["handles"] = {pool.name: pool.stats().as_dict() for pool in available_pools()}
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
