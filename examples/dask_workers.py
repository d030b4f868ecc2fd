"""Workers of a Dask cluster that share a GPU: each gets its part of the memory and warm handles, and reports its work.

Run it with: python examples/dask_workers.py
It needs Dask (pip install distributed). With a GPU and CuPy the workers' arrays come from gpupool; without, devices are
simulated.
"""

import importlib.util

import gpupool
from gpupool.worker import Settings

WORKERS = 2


def work(seed):
    """Multiply two matrices of CuPy if there is a GPU for it, else allocate as much, and return the process's id."""
    side = 256 + 64 * seed
    if "cupy" in gpupool.worker.stats()["settings"]["enable"]:
        import cupy

        with cupy.cuda.Stream(non_blocking=True) as stream:
            matrix = cupy.ones((side, side))
            assert (matrix @ matrix)[0, 0] == side
            stream.synchronize()
    else:
        stream = gpupool.Stream()
        with gpupool.simulated.lease(stream):
            matrices = [gpupool.empty(8 * side * side, stream) for _ in range(2)]
            stream.synchronize()
            del matrices
    return gpupool.worker.stats()["process"]


def main():
    """Run tasks on every worker, and print what each of them used."""
    if importlib.util.find_spec("distributed") is None:
        print("Dask is not installed here; get it with: pip install distributed")
        return
    from distributed import Client, LocalCluster

    on_gpu = gpupool.runtime() == "cuda"
    has_cupy = on_gpu and importlib.util.find_spec("cupy") is not None
    settings = Settings(
        enable=["cupy"] if has_cupy else [],
        memory_fraction=0.8 / WORKERS,
        warm={"cublas" if on_gpu else "simulated": 1},
    )
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(gpupool.dask.Plugin(settings))
        processes = client.gather(client.map(work, range(16)))
        print(f"tasks  {len(processes)} in {len(set(processes))} processes")
        for address, stats in gpupool.dask.stats(client).items():
            peak = max((memory["peak_reserved_bytes"] for memory in stats["memory"].values()), default=0)
            created = sum(handles["created"] for handles in stats["handles"].values())
            print(f"{address}  {stats['runtime']}  peak reserved {peak >> 20} MiB  handles created {created}")


if __name__ == "__main__":
    main()
