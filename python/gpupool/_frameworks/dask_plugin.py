"""The plugin of :mod:`gpupool.dask`, apart from it since its base class needs `distributed` to be imported."""

import asyncio

from distributed import Worker, WorkerPlugin

from gpupool import worker as this_process
from gpupool.worker import Settings


class Plugin(WorkerPlugin):
    """A plugin that sets up every worker of a Dask cluster, also those that join or restart later.

    >>> client.register_plugin(gpupool.dask.Plugin(gpupool.worker.Settings(enable=["cupy"], memory_fraction=0.9)))

    Without settings each worker reads the ``GPUPOOL_WORKER`` of its own environment. Registering another plugin
    replaces this one; ``client.unregister_worker_plugin("gpupool")`` undoes it.

    ``register_plugin`` raises :class:`gpupool.worker.SetUpFailed` with the address of a worker that could not be set
    up, and leaves the others as asked. A worker that joins later and fails logs it, works on without gpupool, and says
    so in :func:`gpupool.dask.stats`.

    https://distributed.dask.org/en/stable/plugins.html
    """

    name = "gpupool"

    def __init__(self, settings: Settings | None = None) -> None:
        this_process._check(settings)
        self.settings = settings

    async def setup(self, worker: Worker) -> None:
        """Set up the worker's process, on a thread.

        Importing a framework on the event loop would keep the worker from its heartbeats.
        """
        await asyncio.to_thread(
            this_process.set_up, self.settings, worker=f"Dask worker {worker.address}", holder=str(worker.id)
        )

    def teardown(self, worker: Worker) -> None:
        """Undo :meth:`setup` when the last worker of the process closes, or the plugin is removed."""
        this_process.tear_down(str(worker.id))
