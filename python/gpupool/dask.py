"""gpupool on every worker of a Dask cluster.

>>> settings = gpupool.worker.Settings(enable=["cupy"], memory_fraction=0.9, warm={"cublas": 2})
>>> client.register_plugin(gpupool.dask.Plugin(settings))
>>> gpupool.dask.stats(client)  # {address: what gpupool.worker.stats() says there}

Where no client is at hand, ``dask worker --preload gpupool.dask`` sets a worker up as its ``GPUPOOL_WORKER`` says.
Which GPU a worker has is its launcher's to say, as dask-cuda does by ``CUDA_VISIBLE_DEVICES``.
"""

from typing import TYPE_CHECKING, Any

from gpupool import worker
from gpupool._frameworks.plug import require

if TYPE_CHECKING:
    from distributed import Client, Worker

    from gpupool._frameworks.dask_plugin import Plugin

__all__ = ["Plugin", "stats"]


def _plugin() -> "type[Plugin]":
    # Its base class is Dask's, which is imported when first needed.
    require("distributed", (2023, 10), "distributed")
    from gpupool._frameworks.dask_plugin import Plugin

    return Plugin


def __getattr__(name: str) -> Any:
    if name == "Plugin":
        return _plugin()
    raise AttributeError(f"module 'gpupool.dask' has no attribute {name!r}")


def stats(client: "Client") -> dict[str, dict[str, Any]]:
    """What :func:`gpupool.worker.stats` says on each worker, by its address.

    A worker that cannot answer has only ``failure``. With an asynchronous client this is to be awaited.
    """
    answers: dict[str, dict[str, Any]] = client.run(worker.stats_or_failure)
    return answers


async def dask_setup(dask_worker: "Worker") -> None:
    """What ``--preload`` calls. https://docs.dask.org/en/stable/customize-initialization.html"""
    await _plugin()().setup(dask_worker)


async def dask_teardown(dask_worker: "Worker") -> None:
    """What ``--preload`` calls at the end."""
    _plugin()().teardown(dask_worker)
