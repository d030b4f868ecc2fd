"""The examples in docstrings that need a framework: `python tests/docstring_examples.py NAME` runs those of one module.

What an example takes for granted, such as a stream of the framework's or a client of a cluster, stands in `SETUPS`.
"""

import doctest
import importlib
import sys

import gpupool

# What comes before a module's examples, and what after them.
SETUPS = {
    "cuda_core": (
        """
        from concurrent.futures import ThreadPoolExecutor
        from cuda.core import Device
        device = Device()
        device.set_current()
        stream = device.create_stream()
        """,
        "",
    ),
    "cupy": ("import cupy", ""),
    "dask": (
        """
        from distributed import Client, LocalCluster
        cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")
        client = Client(cluster)
        """,
        """
        client.close()
        cluster.close()
        """,
    ),
    "numba": (
        """
        from numba import cuda
        import gpupool.numba
        gpupool.numba.enable()
        pool = gpupool.MemPool()
        """,
        "",
    ),
    "nvmath": (
        """
        import cupy
        from cupyx.scipy import sparse
        a = sparse.csr_matrix(2 * cupy.eye(8))
        b = cupy.ones(8)
        stream = gpupool.Stream()
        """,
        "",
    ),
    "prometheus": ("import prometheus_client", ""),
    "ray": (
        """
        import ray
        actors = []
        """,
        "ray.shutdown()",
    ),
    "rmm": ("import rmm", ""),
    "onnxruntime": (
        """
        import onnxruntime
        from onnxruntime.datasets import get_example
        model = get_example("sigmoid.onnx")
        """,
        "del session",
    ),
    "warp": ("import warp as wp", ""),
    "worker": ("", ""),
}


def examples(name):
    """Return the examples of a module, and of what is public in it."""
    module = importlib.import_module(f"gpupool.{name}")
    texts = [module.__doc__ or ""]
    for member in module.__all__:
        value = getattr(module, member)
        texts.append(value.__doc__ or "")
        if isinstance(value, type):
            # Numbers and texts have docstrings of their own classes.
            members = [held for held in vars(value).values() if not isinstance(held, int | str | tuple)]
            texts += [getattr(held, "__doc__", None) or "" for held in members]
    return [example for text in texts for example in doctest.DocTestParser().get_examples(text)]


def run(name):
    """Run a module's examples in this process, and return how many there were."""
    before, after = ("\n".join(line.strip() for line in text.strip().splitlines()) for text in SETUPS[name])
    names = {"gpupool": gpupool, "__name__": "__main__"}
    exec(before, names)
    found = examples(name)
    for example in found:
        exec(compile(example.source, f"gpupool.{name}", "exec"), names)
    exec(after, names)
    return len(found)


if __name__ == "__main__":
    print(run(sys.argv[1]), "examples")
