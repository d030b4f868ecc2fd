"""gpupool on every worker of a Dask cluster.

>>> settings = gpupool.worker.Settings(enable=["cupy"], memory_fraction=0.9, warm={"cublas": 2})
>>> client.register_plugin(gpupool.dask.Plugin(settings))
>>> gpupool.dask.stats(client)  # {address: what gpupool.worker.stats() returns there}

Without a client, ``dask worker --preload gpupool.dask`` sets a worker up with the settings in its ``GPUPOOL_WORKER``.
The launcher decides which GPU a worker uses, as dask-cuda does with ``CUDA_VISIBLE_DEVICES``.
"""

from typing import TYPE_CHECKING, Any

from gpupool import worker
from gpupool._frameworks.plug import require_name, wrong

if TYPE_CHECKING:
    from distributed import Client, Worker

    from gpupool._frameworks.dask_plugin import Plugin

__all__ = ["Plugin", "stats"]


def _plugin() -> "type[Plugin]":
    # The plugin's base class is Dask's, which is imported when first needed.
    require_name("distributed", (2023, 10), "distributed")
    from gpupool._frameworks.dask_plugin import Plugin

    return Plugin


def __getattr__(name: str) -> Any:
    if name == "Plugin":
        return _plugin()
    raise AttributeError(f"module 'gpupool.dask' has no attribute {name!r}")


def stats(client: "Client") -> dict[str, dict[str, Any]]:
    """Return what :func:`gpupool.worker.stats` returns on each worker, by the worker's address.

    A worker that cannot report its statistics has only ``failure``. With an asynchronous client, await the result.
    """
    if not callable(getattr(client, "run", None)):
        raise wrong("client", client, "a distributed.Client")
    found: dict[str, dict[str, Any]] = client.run(worker.stats_or_failure)
    return found


async def dask_setup(dask_worker: "Worker") -> None:
    """Set the worker up; ``--preload`` calls this.

    https://docs.dask.org/en/stable/customize-initialization.html
    """
    await _plugin()().setup(dask_worker)


async def dask_teardown(dask_worker: "Worker") -> None:
    """Undo :func:`dask_setup`; ``--preload`` calls this at the end."""
    _plugin()().teardown(dask_worker)


def __dir__() -> list[str]:
    return sorted(__all__)
