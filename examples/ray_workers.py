"""Actors of Ray that share a GPU: each gets its part of the memory and warm handles, and reports its work.

Run it with: python examples/ray_workers.py
It needs Ray (pip install ray). With a GPU and CuPy the actors' arrays come from gpupool; without, devices are
simulated.
"""

import importlib.util

import gpupool
from gpupool.worker import Settings

ACTORS = 2


class Work:
    """An actor at work. Ray has said which devices it has before this begins, so handles can be made now."""

    def __init__(self):
        gpupool.worker.warm()

    def multiply(self, side):
        """Multiply two matrices of CuPy if there is a GPU for it, else allocate as much."""
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


def main():
    """Give every actor some work, and print what each of them used."""
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed here; get it with: pip install ray")
        return
    import ray

    on_gpu = gpupool.runtime() == "cuda"
    has_cupy = on_gpu and importlib.util.find_spec("cupy") is not None
    settings = Settings(
        enable=["cupy"] if has_cupy else [],
        memory_fraction=0.8 / ACTORS,
        warm={"cublas" if on_gpu else "simulated": 1},
    )
    ray.init(
        num_cpus=ACTORS,
        num_gpus=int(on_gpu),
        include_dashboard=False,
        logging_level="ERROR",
        runtime_env={"worker_process_setup_hook": gpupool.ray.setup(settings)},
    )
    try:
        actors = [ray.remote(num_gpus=on_gpu / ACTORS)(Work).remote() for _ in range(ACTORS)]
        results = ray.get([actors[number % ACTORS].multiply.remote(256 + 64 * number) for number in range(16)])
        print(f"calls  {len(results)} to {ACTORS} actors")
        for actor, stats in gpupool.ray.stats(actors).items():
            peak = max((memory["peak_reserved_bytes"] for memory in stats["memory"].values()), default=0)
            created = sum(handles["created"] for handles in stats["handles"].values())
            print(f"{actor}  {stats['runtime']}  peak reserved {peak >> 20} MiB  handles created {created}")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
